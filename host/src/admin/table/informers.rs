//! The table of `/debug/informers`.

use super::lines;
use crate::informer::InformerRow;

const HEAD: [&str; 12] = [
    "KIND",
    "NAMESPACE",
    "SELECTOR",
    "KEEPS",
    "STATE",
    "LEASES",
    "OBJECTS",
    "BYTES",
    "EVENTS",
    "RELISTS",
    "HEARD",
    "VERSION",
];

/// Returns a line for each informer. Below it stand the reason of its state, and its leases.
pub(in crate::admin) fn informers(rows: &[InformerRow]) -> String {
    lines(&HEAD, rows, cells, |row, below| {
        if state(row) != row.state {
            below(1, &row.state);
        }
        for lease in &row.leases {
            below(1, &format!("{} asks for {}", lease.plugin, lease.asks));
        }
    })
}

fn cells(row: &InformerRow) -> [String; HEAD.len()] {
    let selectors: Vec<_> = [&row.labels, &row.fields].into_iter().filter(|text| !text.is_empty()).cloned().collect();
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    [
        row.kind.clone(),
        row.namespace.clone().unwrap_or_else(|| "*".to_owned()),
        or_dash(selectors.join(" and ")),
        keeps(row),
        state(row).to_owned(),
        row.leases.len().to_string(),
        row.objects.to_string(),
        row.bytes.to_string(),
        row.events.to_string(),
        row.relists.to_string(),
        row.heard_seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds}s ago")),
        row.version.to_string(),
    ]
}

/// Returns what is kept of objects, and how: `whole`, `metadata only, compressed`.
fn keeps(row: &InformerRow) -> String {
    let kept = if row.keeps.is_empty() { "whole" } else { &row.keeps };
    format!("{kept}{}", if row.compressed { ", compressed" } else { "" })
}

/// Returns the state without its reason.
fn state(row: &InformerRow) -> &str {
    let end = row.state.find([':', ';']).unwrap_or(row.state.len());
    &row.state[..end]
}
