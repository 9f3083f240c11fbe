//! What is cached, as a table for people and as JSON; and what all such tables have in common.

use std::fmt::Write as _;

use serde::Serialize;

use super::plugins::PluginRow;

/// What can be looked into.
pub trait Inspect: Send + Sync + 'static {
    /// The informers that run. Called for each request: must not block.
    fn informers(&self) -> Vec<InformerRow>;
    /// The plugins that there are. Called for each request: must not block.
    fn plugins(&self) -> Vec<PluginRow>;
}

/// One informer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InformerRow {
    /// `apps/v1 Deployment`.
    pub kind: String,
    /// None: all.
    pub namespace: Option<String>,
    /// A label selector; empty: every object.
    pub labels: String,
    /// A field selector; empty: every object.
    pub fields: String,
    /// What is held of each object: `metadata only`, `without status.images`; empty: all.
    pub keeps: String,
    /// Whether objects are kept compressed: all who use it ask for that.
    pub compressed: bool,
    /// Whether the first list is in the store.
    pub synced: bool,
    /// What it is doing, and why it does not go on.
    pub state: String,
    /// Who uses it.
    pub leases: Vec<LeaseRow>,
    /// Objects in the store.
    pub objects: usize,
    /// Bytes that they and their indexes take.
    pub bytes: usize,
    /// Changes of the store since the start.
    pub events: u64,
    /// Objects that could not be read.
    pub skipped: u64,
    /// Lists after the first.
    pub relists: u64,
    /// Times that the host failed over it.
    pub restarts: u64,
    /// Since the API server last sent anything; none: it never did.
    pub heard_seconds: Option<u64>,
    /// How far the watch has come.
    pub version: u64,
    /// Versions that the newest the host has seen of any kind is ahead.
    pub behind: u64,
}

/// One use of an informer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseRow {
    /// Whose it is.
    pub plugin: String,
    /// What was asked for: `v1 Pod in web where app=a, metadata only, compressed`.
    pub asks: String,
}

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

/// A line for each informer, with one below for each lease that asks for less, and for what keeps it from going on.
pub(super) fn table(rows: &[InformerRow]) -> String {
    lines(&HEAD, rows, cells, |row, below| {
        if state(row) != row.state {
            below(1, &row.state);
        }
        for lease in &row.leases {
            below(1, &format!("{} asks for {}", lease.plugin, lease.asks));
        }
    })
}

/// One line as a terminal is to show it: what a plugin says may hold what would begin a line of its own, or steer the terminal.
pub(super) fn printable(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            '\n' => shown.push(' '),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// A table with a line for each row, and what is to be said below it: how deep, and what. All of it is [`printable`].
pub(super) fn lines<const N: usize, R>(
    head: &[&str; N],
    rows: &[R],
    cells: impl Fn(&R) -> [String; N],
    below: impl Fn(&R, &mut dyn FnMut(usize, &str)),
) -> String {
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default());
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let padded: Vec<_> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let mut write =
            |line: &str| writeln!(text, "{}", printable(line.trim_end())).expect("a string takes everything");
        write(&padded.join("  "));
        if let Some(row) = at.checked_sub(1).and_then(|row| rows.get(row)) {
            below(row, &mut |depth, line| write(&format!("{}{}", "    ".repeat(depth), line)));
        }
    }
    text
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

/// What is held of objects, and how: `whole`, `metadata only, compressed`.
fn keeps(row: &InformerRow) -> String {
    let kept = if row.keeps.is_empty() { "whole" } else { &row.keeps };
    format!("{kept}{}", if row.compressed { ", compressed" } else { "" })
}

/// The state in a word or two: what comes before its reason.
fn state(row: &InformerRow) -> &str {
    let end = row.state.find([':', ';']).unwrap_or(row.state.len());
    &row.state[..end]
}
