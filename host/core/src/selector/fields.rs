//! Field selectors, in the syntax of `kubectl --field-selector` and the API server.

use std::{borrow::Cow, fmt};

/// Requirements on fields. Without any, everything matches.
///
/// The API server decides which fields a kind has; here they are only names. Texts that differ only in order give equal
/// selectors and one [`Display`](fmt::Display).
///
/// ```
/// use pilothouse_core::selector::FieldSelector;
///
/// let selector = FieldSelector::parse("status.phase!=Failed,spec.nodeName==n1").expect("a selector");
/// assert_eq!(selector.to_string(), "spec.nodeName=n1,status.phase!=Failed");
/// assert!(selector.matches(|field| Some(if field == "spec.nodeName" { "n1" } else { "Running" }.into())));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldSelector {
    /// Sorted, without duplicates.
    requirements: Vec<FieldRequirement>,
}

/// A requirement on one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldRequirement {
    /// For example `spec.nodeName`.
    pub field: String,
    /// `false` for `!=`.
    pub equal: bool,
    /// The value, unescaped. An absent field counts as empty.
    pub value: String,
}

/// A text that is not a field selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read field selector {selector:?}: {problem}")]
pub struct FieldSelectorError {
    /// The whole text.
    pub selector: String,
    /// The problem.
    pub problem: String,
}

impl FieldSelector {
    /// Parses requirements joined by commas: `a.b=c`, `a.b==c`, `a.b!=c`. In values, `\`, `,` and `=` are escaped by
    /// `\`. An empty text matches everything.
    ///
    /// # Errors
    /// Fails if Kubernetes would reject the text, or if a field's name contains white space.
    pub fn parse(text: &str) -> Result<Self, FieldSelectorError> {
        let problem = |problem| FieldSelectorError { selector: text.to_owned(), problem };
        let terms = terms(text).filter(|term| !term.is_empty());
        let mut requirements = terms.map(requirement).collect::<Result<Vec<_>, _>>().map_err(problem)?;
        requirements.sort();
        requirements.dedup();
        Ok(Self { requirements })
    }

    /// Adds the requirement that a field has this value.
    #[must_use]
    pub fn and_equal(mut self, field: &str, value: &str) -> Self {
        let required = FieldRequirement { field: field.to_owned(), equal: true, value: value.to_owned() };
        if let Err(at) = self.requirements.binary_search(&required) {
            self.requirements.insert(at, required);
        }
        self
    }

    /// Returns `false` if a requirement of this field excludes the value.
    pub fn admits(&self, field: &str, value: &str) -> bool {
        self.requirements.iter().all(|required| required.field != field || (required.value == value) == required.equal)
    }

    /// Returns `true` if there are no requirements.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns the requirements, sorted by field. All of them must hold.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// Returns `true` if every requirement holds for the values that `field` returns. `None` stands for an absent
    /// field, which counts as empty.
    pub fn matches<'a>(&self, mut field: impl FnMut(&str) -> Option<Cow<'a, str>>) -> bool {
        self.requirements.iter().all(|required| {
            let value = field(&required.field);
            (value.as_deref().unwrap_or_default() == required.value) == required.equal
        })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, FieldRequirement { field, equal, value }) in self.requirements.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let operator = if *equal { "=" } else { "!=" };
            write!(f, "{comma}{field}{operator}")?;
            for c in value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// Splits at commas that no `\` escapes.
fn terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c: char| {
        let ends = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })
}

fn requirement(term: &str) -> Result<FieldRequirement, String> {
    let operator = term.find('=').ok_or_else(|| format!("{term:?} has no `=` or `!=`"))?;
    let (left, right) = term.split_at(operator);
    let (field, equal) = left.strip_suffix('!').map_or((left, true), |field| (field, false));
    let right = right.strip_prefix('=').unwrap_or(right);
    let right = if equal { right.strip_prefix('=').unwrap_or(right) } else { right };
    if field.is_empty() || field.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '\\' | '!')) {
        return Err(format!("{field:?} is no field: write it as in objects, such as spec.nodeName"));
    }
    Ok(FieldRequirement { field: field.to_owned(), equal, value: unescaped(right)? })
}

fn unescaped(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut rest = value.chars();
    while let Some(c) = rest.next() {
        match c {
            '=' => return Err(format!("value {value:?} has a `=`: write `\\=`")),
            '\\' => match rest.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                _ => return Err(format!("value {value:?} has a `\\` that escapes nothing: write `\\\\`")),
            },
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_that_is_required_besides_reads_as_if_it_were_written() {
        let with = |text: &str| FieldSelector::parse(text).unwrap().and_equal("metadata.name", "a=b");
        assert_eq!(with(""), FieldSelector::parse(r"metadata.name=a\=b").unwrap());
        assert_eq!(
            with(r"spec.x!=1,metadata.name=a\=b"),
            FieldSelector::parse(r"metadata.name=a\=b,spec.x!=1").unwrap()
        );
    }

    fn canonical(text: &str) -> String {
        FieldSelector::parse(text).unwrap().to_string()
    }

    fn problem(text: &str) -> String {
        FieldSelector::parse(text).unwrap_err().problem
    }

    #[test]
    fn equivalent_selectors_are_equal() {
        assert_eq!(canonical(""), "");
        assert_eq!(canonical(",a=1,,"), "a=1");
        assert_eq!(canonical("b!=2,a==1,b!=2"), "a=1,b!=2");
        assert_eq!(canonical("a="), "a=");
        assert_eq!(canonical("a!="), "a!=");
        assert_eq!(canonical(r"a=x\,y\=z\\"), r"a=x\,y\=z\\");
    }

    #[test]
    fn invalid_selectors_are_explained() {
        assert_eq!(problem("a"), r#""a" has no `=` or `!=`"#);
        assert_eq!(problem("=x"), r#""" is no field: write it as in objects, such as spec.nodeName"#);
        assert_eq!(problem("a=1, b=2"), r#"" b" is no field: write it as in objects, such as spec.nodeName"#);
        assert_eq!(problem("a===x"), r#"value "=x" has a `=`: write `\=`"#);
        assert_eq!(problem("a!==x"), r#"value "=x" has a `=`: write `\=`"#);
        assert_eq!(problem(r"a=x\y"), r#"value "x\\y" has a `\` that escapes nothing: write `\\`"#);
        assert_eq!(
            FieldSelector::parse("a").unwrap_err().to_string(),
            r#"cannot read field selector "a": "a" has no `=` or `!=`"#
        );
    }

    #[test]
    fn an_absent_field_is_empty() {
        let matches = |text| {
            FieldSelector::parse(text).unwrap().matches(|field| (field == "there").then_some(Cow::Borrowed("x")))
        };
        assert!(matches("there=x"));
        assert!(!matches("there!=x"));
        assert!(!matches("there=y"));
        assert!(matches("there!=y"));
        assert!(matches("absent="));
        assert!(!matches("absent!="));
        assert!(!matches("there=x,absent=y"));
    }

    proptest! {
        #[test]
        fn the_text_of_a_selector_gives_it_back(requirements in prop::collection::vec(("[a-z.]{1,4}", any::<bool>(), r"[a-z\\,= ]{0,4}"), 0..4)) {
            let mut requirements: Vec<_> =
                requirements.into_iter().map(|(field, equal, value)| FieldRequirement { field, equal, value }).collect();
            requirements.sort();
            requirements.dedup();
            let selector = FieldSelector { requirements };
            prop_assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
        }

        #[test]
        fn any_text_is_read_or_refused(text in r"[ab\\,=! ]{0,12}") {
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
            }
        }
    }
}
