//! From measured values to the table and to `bench.json`.
//!
//! ```
//! use pilothouse_bench::report::{Budget, Measured};
//!
//! let queue = Measured { name: "queue", unit: "µs", budget: Some(Budget::AtMost(0.3)), rounds: vec![0.4, 0.2, 0.2], peer: None };
//! let row = queue.row().expect("there are rounds");
//! assert_eq!((row.value, row.budget, row.holds), (0.2, Some(0.3), Some(true)));
//! ```

use serde::Serialize;

use crate::statistics::{median, range};

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// So much or less: of times and sizes.
    AtMost(f64),
    /// So much or more: of rates.
    AtLeast(f64),
}

impl Budget {
    fn bound(self) -> f64 {
        match self {
            Self::AtMost(bound) | Self::AtLeast(bound) => bound,
        }
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }

    fn sign(self) -> char {
        match self {
            Self::AtMost(_) => '≤',
            Self::AtLeast(_) => '≥',
        }
    }
}

/// One figure, as often as it was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What the report calls it.
    pub name: &'static str,
    /// What its values are in.
    pub unit: &'static str,
    /// What they may be.
    pub budget: Option<Budget>,
    /// One value of each round.
    pub rounds: Vec<f64>,
    /// Who else was measured, and its value of each round.
    pub peer: Option<(&'static str, Vec<f64>)>,
}

/// One row of the report, as `bench.json` has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub line: &'static str,
    /// The median of the rounds.
    pub value: f64,
    /// What `value`, `budget` and `peer_value` are in.
    pub unit: &'static str,
    /// The bound: from above, or for rates from below.
    pub budget: Option<f64>,
    /// Whether the value is within the budget.
    pub holds: Option<bool>,
    /// Who else was measured in the same run.
    pub peer: Option<&'static str>,
    /// The median of the peer's rounds.
    pub peer_value: Option<f64>,
    /// `value` by `peer_value`.
    pub ratio: Option<f64>,
}

impl Measured {
    /// The row; none if no round was measured.
    pub fn row(&self) -> Option<Row> {
        let value = median(&self.rounds)?;
        let peer = self.peer.as_ref().and_then(|(name, rounds)| Some((*name, median(rounds)?)));
        Some(Row {
            line: self.name,
            value,
            unit: self.unit,
            budget: self.budget.map(Budget::bound),
            holds: self.budget.map(|budget| budget.holds(value)),
            peer: peer.map(|(name, _)| name),
            peer_value: peer.map(|(_, value)| value),
            ratio: peer.map(|(_, peer)| value / peer),
        })
    }

    /// The cells of its line in the table.
    fn cells(&self) -> Option<[String; COLUMNS.len()]> {
        let row = self.row()?;
        let (low, high) = range(&self.rounds)?;
        let none = || "-".to_owned();
        let held = |holds: bool| if holds { "yes" } else { "NO" }.to_owned();
        Some([
            row.line.to_owned(),
            shown(row.value),
            row.unit.to_owned(),
            format!("{}..{}", shown(low), shown(high)),
            self.budget.map_or_else(none, |budget| format!("{} {}", budget.sign(), shown(budget.bound()))),
            row.holds.map_or_else(none, held),
            row.peer_value.map_or_else(none, shown),
            row.ratio.map_or_else(none, |ratio| format!("{} ×", shown(ratio))),
            row.peer.map_or_else(none, str::to_owned),
        ])
    }
}

const COLUMNS: [&str; 9] = ["line", "value", "unit", "spread", "budget", "holds", "peer's", "ratio", "peer"];

/// The table for people: median and spread of the rounds. Figures without a round are left out.
pub fn table(measured: &[Measured]) -> String {
    let head = COLUMNS.map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head).chain(measured.iter().filter_map(Measured::cells)).collect();
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut table = String::new();
    for cells in &lines {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        table.push_str(padded.join("  ").trim_end());
        table.push('\n');
    }
    table
}

/// Three digits that count, and for large numbers those before the point.
pub fn shown(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    let places = usize::try_from(digits).unwrap_or(0);
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use serde_json::json;

    use super::*;

    fn event() -> Measured {
        Measured {
            name: "event",
            unit: "events/s",
            budget: Some(Budget::AtLeast(100_000.0)),
            rounds: vec![90_000.0, 120_000.0, 110_000.0],
            peer: Some(("other", vec![22_000.0])),
        }
    }

    fn compile() -> Measured {
        Measured { name: "compile", unit: "ms", budget: None, rounds: vec![97.5], peer: None }
    }

    #[test]
    fn a_row_in_json_has_every_member_and_null_for_what_is_not() {
        let rows: Vec<Row> = [event(), compile()].iter().filter_map(Measured::row).collect();
        assert_eq!(
            serde_json::to_value(rows).unwrap(),
            json!([
                {
                    "line": "event", "value": 110_000.0, "unit": "events/s", "budget": 100_000.0, "holds": true,
                    "peer": "other", "peer_value": 22_000.0, "ratio": 5.0,
                },
                {
                    "line": "compile", "value": 97.5, "unit": "ms", "budget": null, "holds": null,
                    "peer": null, "peer_value": null, "ratio": null,
                },
            ])
        );
    }

    #[test]
    fn a_rate_below_and_a_time_above_its_budget_do_not_hold() {
        let row = |budget, value| Measured { budget: Some(budget), rounds: vec![value], ..event() }.row().unwrap();
        assert_eq!(row(Budget::AtLeast(10.0), 9.9).holds, Some(false));
        assert_eq!(row(Budget::AtLeast(10.0), 10.0).holds, Some(true));
        assert_eq!(row(Budget::AtMost(10.0), 10.1).holds, Some(false));
        assert_eq!(row(Budget::AtMost(10.0), 10.0).holds, Some(true));
    }

    #[test]
    fn a_figure_without_a_round_has_no_row() {
        let unmeasured = Measured { rounds: Vec::new(), ..event() };
        assert_eq!(unmeasured.row(), None);
        assert_eq!(table(&[unmeasured]).lines().count(), 1);
        let alone = Measured { peer: Some(("other", Vec::new())), ..event() };
        assert_eq!(alone.row().unwrap().peer, None);
    }

    #[test]
    fn the_table_shows_median_and_spread() {
        assert_eq!(
            table(&[event(), compile()]),
            "line     value   unit      spread         budget    holds  peer's  ratio   peer\n\
             event    110000  events/s  90000..120000  ≥ 100000  yes    22000   5.00 ×  other\n\
             compile  97.5    ms        97.5..97.5     -         -      -       -       -\n"
        );
    }

    #[test]
    fn three_digits_are_shown() {
        let texts = [0.0, 0.012_345, 0.25, 1.149, 36.04, 999.6, 123_456.7].map(shown);
        assert_eq!(texts, ["0", "0.0123", "0.250", "1.15", "36.0", "1000", "123457"]);
    }
}
