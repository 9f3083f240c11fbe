//! The table of `/debug/webhooks`.

use super::lines;
use crate::webhook::{LastFailure, WebhookRow};

const HEAD: [&str; 10] = [
    "PLUGIN",
    "WEBHOOK",
    "TYPE",
    "IN FORCE",
    "ON FAILURE",
    "TIMEOUT",
    "CALLS",
    "DENIED",
    "FAILED",
    "CERTIFICATE UNTIL",
];

/// Returns a line for each webhook. Below it stand its rules, why it is not in force, and its last failure.
pub(in crate::admin) fn webhooks(rows: &[WebhookRow]) -> String {
    lines(&HEAD, rows, cells, |row, below| {
        row.rules.iter().for_each(|rule| below(1, rule));
        if let Some(remark) = &row.remark {
            below(1, remark);
        }
        if let Some(LastFailure { at, code, message }) = &row.last_failure {
            below(1, &format!("failed last at {at} with {code}: {message}"));
        }
    })
}

fn cells(row: &WebhookRow) -> [String; HEAD.len()] {
    [
        row.plugin.clone(),
        row.webhook.clone(),
        row.of_type.to_owned(),
        if row.in_force { "yes" } else { "no" }.to_owned(),
        row.on_failure.clone(),
        format!("{}s", row.timeout_seconds),
        row.calls.to_string(),
        row.denied.to_string(),
        row.failed.to_string(),
        row.certificate_expires.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}
