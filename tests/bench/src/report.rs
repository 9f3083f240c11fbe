//! Turns measured values into the table and `bench.json`.
//!
//! ```
//! use pilothouse_bench::report::{Budget, Measured};
//!
//! let queue = Measured { name: "queue", unit: "µs", budget: Some(Budget::AtMost(0.3)), rounds: vec![0.4, 0.2, 0.2], peers: vec![] };
//! let rows = queue.rows();
//! assert_eq!((rows[0].value, rows[0].budget, rows[0].holds), (0.2, Some(0.3), Some(true)));
//! ```

use serde::Serialize;

use crate::statistics::{median, range};

/// The budget of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// An upper bound, for times and sizes.
    AtMost(f64),
    /// A lower bound, for rates.
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

/// One figure and its measured values.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Its name in the report.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: &'static str,
    /// Its budget.
    pub budget: Option<Budget>,
    /// One value of each round.
    pub rounds: Vec<f64>,
    /// Its peers.
    pub peers: Vec<Others>,
}

/// A peer's values of the same figure.
#[derive(Clone, Debug)]
pub struct Others {
    /// The peer's name.
    pub name: &'static str,
    /// One value of each round; empty if it could not be measured.
    pub rounds: Vec<f64>,
    /// Budget of our value as a multiple of the peer's. It replaces the figure's own budget.
    pub allows: Option<f64>,
}

/// One row of the report and of `bench.json`: a figure beside one peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The figure's name.
    pub line: &'static str,
    /// The median of the rounds.
    pub value: f64,
    /// The unit of `value`, `budget` and `peer_value`.
    pub unit: &'static str,
    /// The bound: an upper one, or for rates a lower one.
    pub budget: Option<f64>,
    /// `true` if the value is within the budget.
    pub holds: Option<bool>,
    /// The peer that was measured in the same run.
    pub peer: Option<&'static str>,
    /// The median of the peer's rounds; `None` if it could not be measured.
    pub peer_value: Option<f64>,
    /// `value` divided by `peer_value`.
    pub ratio: Option<f64>,
}

impl Measured {
    /// Returns a row for each peer. There is a row without a peer if the figure has no peer, or if every peer sets its
    /// own budget. Without a measured round there is no row.
    pub fn rows(&self) -> Vec<Row> {
        let Some(value) = median(&self.rounds) else { return Vec::new() };
        let row = |peer: Option<&Others>| {
            let peer_value = peer.and_then(|peer| median(&peer.rounds));
            let budget = self.budget_beside(peer);
            Row {
                line: self.name,
                value,
                unit: self.unit,
                budget: budget.map(Budget::bound),
                holds: budget.map(|budget| budget.holds(value)),
                peer: peer.map(|peer| peer.name),
                peer_value,
                ratio: peer_value.map(|peer| value / peer),
            }
        };
        self.beside().into_iter().map(row).collect()
    }

    /// The peer of each row.
    fn beside(&self) -> Vec<Option<&Others>> {
        let its_own =
            self.peers.is_empty() || self.budget.is_some() && self.peers.iter().all(|peer| peer.allows.is_some());
        its_own.then_some(None).into_iter().chain(self.peers.iter().map(Some)).collect()
    }

    fn budget_beside(&self, peer: Option<&Others>) -> Option<Budget> {
        let allowed = peer.and_then(|peer| Some(Budget::AtMost(peer.allows? * median(&peer.rounds)?)));
        allowed.or(self.budget)
    }

    /// Returns the cells of its lines in the table.
    fn cells(&self) -> Vec<[String; COLUMNS.len()]> {
        let spread =
            range(&self.rounds).map_or_else(String::new, |(low, high)| format!("{}..{}", shown(low), shown(high)));
        let sign = |peer| self.budget_beside(peer).map_or(' ', Budget::sign);
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let cells = self.rows().into_iter().zip(self.beside()).map(|(row, peer)| {
            [
                row.line.to_owned(),
                shown(row.value),
                row.unit.to_owned(),
                spread.clone(),
                or_none(row.budget.map(|budget| format!("{} {}", sign(peer), shown(budget)))),
                or_none(row.holds.map(|holds| if holds { "yes" } else { "NO" }.to_owned())),
                or_none(row.peer_value.map(shown)),
                or_none(row.ratio.map(|ratio| format!("{} ×", shown(ratio)))),
                or_none(row.peer.map(str::to_owned)),
            ]
        });
        cells.collect()
    }
}

const COLUMNS: [&str; 9] = ["line", "value", "unit", "spread", "budget", "holds", "peer's", "ratio", "peer"];

/// Formats the table: median and spread of the rounds. Skips figures without a round.
pub fn table(measured: &[Measured]) -> String {
    let head = COLUMNS.map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head).chain(measured.iter().flat_map(Measured::cells)).collect();
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

/// Formats a number with three significant digits, and large numbers without decimals.
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

    fn others(name: &'static str, rounds: Vec<f64>) -> Others {
        Others { name, rounds, allows: None }
    }

    fn event() -> Measured {
        Measured {
            name: "event",
            unit: "events/s",
            budget: Some(Budget::AtLeast(100_000.0)),
            rounds: vec![90_000.0, 120_000.0, 110_000.0],
            peers: vec![others("other", vec![22_000.0])],
        }
    }

    fn compile() -> Measured {
        Measured { name: "compile", unit: "ms", budget: None, rounds: vec![97.5], peers: Vec::new() }
    }

    #[test]
    fn a_row_in_json_has_every_member_and_null_for_what_is_not() {
        let rows: Vec<Row> = [event(), compile()].iter().flat_map(Measured::rows).collect();
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
        let row = |budget, value| Measured { budget: Some(budget), rounds: vec![value], ..event() }.rows().remove(0);
        assert_eq!(row(Budget::AtLeast(10.0), 9.9).holds, Some(false));
        assert_eq!(row(Budget::AtLeast(10.0), 10.0).holds, Some(true));
        assert_eq!(row(Budget::AtMost(10.0), 10.1).holds, Some(false));
        assert_eq!(row(Budget::AtMost(10.0), 10.0).holds, Some(true));
    }

    #[test]
    fn a_figure_without_a_round_has_no_row() {
        let unmeasured = Measured { rounds: Vec::new(), ..event() };
        assert_eq!(unmeasured.rows(), []);
        assert_eq!(table(&[unmeasured]).lines().count(), 1);
    }

    #[test]
    fn a_peer_without_a_round_is_named_without_a_value() {
        let alone = Measured { peers: vec![others("other", Vec::new())], ..event() };
        let row = alone.rows().remove(0);
        assert_eq!((row.peer, row.peer_value, row.ratio), (Some("other"), None, None));
    }

    #[test]
    fn a_peer_of_which_only_a_share_is_allowed_sets_the_budget() {
        let third = Others { allows: Some(1.0 / 3.0), ..others("third", vec![9.0]) };
        let sized =
            Measured { budget: None, rounds: vec![4.0], peers: vec![others("any", vec![1.0]), third], ..event() };
        let held: Vec<_> = sized.rows().iter().map(|row| (row.peer, row.budget, row.holds)).collect();
        assert_eq!(held, [(Some("any"), None, None), (Some("third"), Some(3.0), Some(false))]);
    }

    #[test]
    fn a_budget_that_no_peer_stands_beside_has_a_row_of_its_own() {
        let twice = Others { allows: Some(2.0), ..others("twice", vec![0.25]) };
        let call = Measured { budget: Some(Budget::AtMost(0.4)), rounds: vec![0.45], peers: vec![twice], ..event() };
        let held: Vec<_> = call.rows().iter().map(|row| (row.peer, row.budget, row.holds)).collect();
        assert_eq!(held, [(None, Some(0.4), Some(false)), (Some("twice"), Some(0.5), Some(true))]);
        assert_eq!(table(&[call]).lines().filter(|line| line.contains("≤ 0.")).count(), 2);
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
