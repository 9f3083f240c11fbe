//! Tables of `/debug/…` for people.

mod informers;
mod plugins;
mod webhooks;

use std::fmt::Write as _;

pub(super) use informers::informers;
pub(super) use plugins::plugins;
pub(super) use webhooks::webhooks;

/// Writes a line below a row: how deep it is indented, and its text.
type Below<'a> = &'a mut dyn FnMut(usize, &str);

/// Returns `line` as a terminal may show it. A plugin's text could otherwise begin a line of its own, or steer the
/// terminal.
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

/// Returns a table with a line for each row, and the lines that `below` writes under it. All lines are [`printable`].
fn lines<const N: usize, R>(
    head: &[&str; N],
    rows: &[R],
    cells: impl Fn(&R) -> [String; N],
    below: impl Fn(&R, Below<'_>),
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
