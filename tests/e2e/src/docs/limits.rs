//! The page on limits has the values of the constants, and no limit is missing from it.

use std::collections::BTreeSet;

use super::{cells, files, quoted, read, root};

/// Constants that are not limits: sizes of steps, a guard against an API server that does not keep to the protocol, and
/// Kubernetes' own bounds of names.
const NO_LIMITS: [&str; 5] = [
    "host/src/informer.rs WORK",
    "host/core/src/reflector.rs PAGE_SIZE",
    "host/src/election/leases.rs MAX_LINE",
    "host/core/src/grant/account.rs MAX_NAMESPACE",
    "host/core/src/grant/account.rs MAX_NAME",
];

#[test]
fn page_on_limits_has_the_values_of_the_constants() {
    let mut wrong = Vec::new();
    for (limit, value, unit, file, name) in rows() {
        let path = root().join(&file);
        if !path.is_file() {
            wrong.push(format!("{limit}: {file} does not exist"));
            continue;
        }
        let number: u128 =
            value.replace(',', "").parse().unwrap_or_else(|_| panic!("{limit}: {value} is not a number"));
        match find(&read(&path), &name) {
            None => wrong.push(format!("{limit}: {file} has no {name} with a number")),
            // A constant may count in the unit itself, such as MiB.
            Some(found) if found == number || found == number * factor(&unit) => {}
            Some(found) => {
                wrong.push(format!("{limit}: the page says {value} {unit}, and {name} in {file} is {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_limit_of_the_host_is_on_the_page() {
    let named: BTreeSet<String> = rows()
        .into_iter()
        .map(|(.., file, name)| format!("{file} {}", name.split('.').next().unwrap_or(&name)))
        .collect();
    let mut missing = Vec::new();
    for path in files(&root().join("host/src"), "rs").into_iter().chain(files(&root().join("host/core/src"), "rs")) {
        let file = path.strip_prefix(root()).expect("it is below the root").display().to_string();
        if file.contains("test") {
            continue;
        }
        let text = read(&path);
        for (line, constant) in text.lines().filter_map(|line| line.trim_start().split_once("const ")) {
            let Some((name, typed)) = constant.split_once(": ") else { continue };
            let is_public = line == "pub " && NUMBERS.iter().any(|of| typed.starts_with(&format!("{of} =")));
            let is_most = name.starts_with("MAX_") && (line.is_empty() || line.starts_with("pub"));
            // A value that another file defines is a limit there.
            let is_here = find(&text, name).is_some() || typed.contains('{');
            let place = format!("{file} {name}");
            if (is_public || is_most) && is_here && !named.contains(&place) && !NO_LIMITS.contains(&place.as_str()) {
                missing.push(place);
            }
        }
    }
    let (page, list) = ("docs/limits.md", missing.join("\n"));
    assert!(missing.is_empty(), "add these to {page}, or to NO_LIMITS with a reason:\n{list}");
}

/// Types of constants that may be limits.
const NUMBERS: [&str; 7] = ["usize", "u32", "u64", "Duration", "NonZeroU32", "Rate", "Limits"];

/// Returns limit, value, unit, file and constant of each row that names one.
fn rows() -> Vec<(String, String, String, String, String)> {
    let page = read(&root().join("docs/limits.md"));
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|row| {
            let [limit, value, unit, _, set, _] = cells(row)[..] else { panic!("not six columns: {row}") };
            let [file, name] = quoted(set)[..] else { return None };
            Some((limit.to_owned(), value.to_owned(), unit.to_owned(), file.to_owned(), name.to_owned()))
        })
        .collect();
    assert!(rows.len() > 80, "{} rows were read", rows.len());
    rows
}

/// Returns what a unit stands for, in bytes or nanoseconds. Things that are counted stand for themselves.
fn factor(unit: &str) -> u128 {
    match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => 1,
    }
}

/// Returns the number of a constant (`MAX_FILE`), of a field of one (`RATE.burst`), or of a field (`memory`) in a
/// source.
fn find(source: &str, name: &str) -> Option<u128> {
    let constant = |name: &str| {
        let text = &source[source.find(&format!("const {name}: "))?..];
        let text = &text[text.find("= ")? + 2..];
        Some(&text[..text.find(';')?])
    };
    let field = |text: &str, name: &str| {
        let named = format!("{name}: ");
        let places = text.match_indices(&named).map(|(at, found)| at + found.len());
        places.filter_map(|at| Expression::of(source, text[at..].split([',', '}', '\n']).next()?).number()).next()
    };
    match name.split_once('.') {
        Some((of, part)) => field(constant(of)?, part),
        None if name.starts_with(char::is_uppercase) => Expression::of(source, constant(name)?).number(),
        None => field(source, name),
    }
}

/// The rest of an expression of numbers, such as `3 << 20`, `8 * STACK` or `Duration::from_secs(60)`.
struct Expression<'a> {
    source: &'a str,
    tokens: Vec<String>,
}

impl<'a> Expression<'a> {
    fn of(source: &'a str, text: &str) -> Self {
        // Paths and method calls are dropped down to what counts: the last name, and the argument of `new`.
        let text = text.split(".expect(").next().unwrap_or(text).replace(" as usize", "").replace("<<", " « ");
        let mut tokens: Vec<String> = Vec::new();
        let mut word = String::new();
        for char in text.chars().chain([' ']) {
            if char.is_alphanumeric() || "_:«".contains(char) {
                word.push(char);
                continue;
            }
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            if !char.is_whitespace() {
                tokens.push(char.to_string());
            }
        }
        tokens.reverse();
        Self { source, tokens }
    }

    fn number(mut self) -> Option<u128> {
        let number = self.shift()?;
        self.tokens.is_empty().then_some(number)
    }

    fn shift(&mut self) -> Option<u128> {
        let mut value = self.sum()?;
        while self.takes("«") {
            value <<= self.sum()?;
        }
        Some(value)
    }

    fn sum(&mut self) -> Option<u128> {
        let mut value = self.product()?;
        while self.takes("+") {
            value += self.product()?;
        }
        Some(value)
    }

    fn product(&mut self) -> Option<u128> {
        let mut value = self.atom()?;
        loop {
            if self.takes("*") {
                value *= self.atom()?;
            } else if self.takes("/") {
                value = value.checked_div(self.atom()?)?;
            } else {
                return Some(value);
            }
        }
    }

    fn atom(&mut self) -> Option<u128> {
        let token = self.tokens.pop()?;
        let unit = match token.as_str() {
            "(" | "NonZeroU32::new" => 1,
            "Duration::from_micros" => factor("µs"),
            "Duration::from_millis" => factor("ms"),
            "Duration::from_secs" => factor("s"),
            name if name.starts_with(char::is_uppercase) => return find(self.source, name),
            number => return number.replace('_', "").parse().ok(),
        };
        if token != "(" && !self.takes("(") {
            return None;
        }
        let value = self.shift()?;
        self.takes(")").then_some(value * unit)
    }

    /// `true` if `token` was next; it is taken then.
    fn takes(&mut self, token: &str) -> bool {
        let is_next = self.tokens.last().is_some_and(|next| next == token);
        if is_next {
            self.tokens.pop();
        }
        is_next
    }
}
