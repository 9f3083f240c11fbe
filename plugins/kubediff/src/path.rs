//! Paths of fields: `spec.containers[web].image`, `metadata.labels["app.kubernetes.io/name"]`.

use std::{fmt, str::FromStr};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The member of an object.
    Member(String),
    /// The item of a list: its `name`, or its position.
    Item(String),
}

/// The path of a field, from the object down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<Step>);

impl Path {
    /// Returns the path one step below.
    #[must_use]
    pub fn to(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }

    /// Returns `true` if this is `other`, or lies below it. The member `*` and the item `[*]` of `other` fit any.
    pub fn is_within(&self, other: &Self) -> bool {
        let fits = |(own, wanted): (&Step, &Step)| match (own, wanted) {
            (Step::Member(_), Step::Member(any)) | (Step::Item(_), Step::Item(any)) if any == "*" => true,
            (own, wanted) => own == wanted,
        };
        self.0.len() >= other.0.len() && self.0.iter().zip(&other.0).all(fits)
    }

    /// Returns `true` if its first member is one of these.
    pub fn begins_with(&self, members: &[&str]) -> bool {
        matches!(self.0.first(), Some(Step::Member(first)) if members.contains(&first.as_str()))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(i, step)| match step {
            Step::Item(item) => write!(f, "[{item}]"),
            Step::Member(name) if name.is_empty() || name.contains(['.', '[', ']', '"']) => write!(f, "[{name:?}]"),
            Step::Member(name) if i == 0 => f.write_str(name),
            Step::Member(name) => write!(f, ".{name}"),
        })
    }
}

/// Why a text is not a path.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a path: write it as spec.containers[*].image or metadata.labels[\"example.com/team\"]")]
pub struct NotAPath(String);

impl FromStr for Path {
    type Err = NotAPath;

    fn from_str(text: &str) -> Result<Self, NotAPath> {
        let not = || NotAPath(text.to_owned());
        let (mut steps, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            if let Some(quoted) = rest.strip_prefix("[\"") {
                let (name, after) = quoted.split_once("\"]").ok_or_else(not)?;
                steps.push(Step::Member(name.to_owned()));
                rest = after;
            } else if let Some(item) = rest.strip_prefix('[') {
                let (item, after) = item.split_once(']').ok_or_else(not)?;
                steps.push(Step::Item(item.to_owned()));
                rest = after;
            } else {
                let member = if steps.is_empty() { rest } else { rest.strip_prefix('.').ok_or_else(not)? };
                let (name, after) = member.split_at(member.find(['.', '[']).unwrap_or(member.len()));
                if name.is_empty() {
                    return Err(not());
                }
                steps.push(Step::Member(name.to_owned()));
                rest = after;
            }
        }
        if steps.is_empty() { Err(not()) } else { Ok(Self(steps)) }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_as_it_is_read() {
        for text in ["spec", "spec.containers[web].image", "a[0][1].b", r#"metadata.labels["a.b/c"]"#, "status.*"] {
            assert_eq!(text.parse::<Path>().unwrap().to_string(), text);
        }
        for text in ["", ".spec", "spec.", "spec..a", "spec[", "a[0]b", r#"a["b"#] {
            assert!(text.parse::<Path>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_covers_what_lies_below_it() {
        let within = |path: &str, of: &str| path.parse::<Path>().unwrap().is_within(&of.parse().unwrap());
        for (path, of) in [
            ("status.conditions[Ready].status", "status"),
            ("status.conditions[Ready].status", "status.conditions[*].status"),
            (r#"metadata.annotations["a.b/c"]"#, r#"metadata.annotations["a.b/c"]"#),
            ("spec.replicas", "*.replicas"),
        ] {
            assert!(within(path, of), "{path} {of}");
        }
        for (path, of) in [("status", "status.phase"), ("statuses", "status"), ("a[0]", "a.*"), ("a.b", "a[*]")] {
            assert!(!within(path, of), "{path} {of}");
        }
    }
}
