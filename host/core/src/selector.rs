//! Label selectors, in Kubernetes' syntax.

use std::{collections::BTreeSet, fmt};

/// A conjunction of requirements on labels; empty: everything matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// What one label must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Requirement {
    /// `key=value`, `key in (a,b)`.
    In(String, BTreeSet<String>),
    /// `key!=value`, `key notin (a,b)`: also where the label is absent.
    NotIn(String, BTreeSet<String>),
    /// `key`.
    Exists(String),
    /// `!key`.
    Absent(String),
}

/// A text that is no label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read label selector {selector:?}: {problem}")]
pub struct SelectorError {
    /// The whole text.
    pub selector: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Selector {
    /// Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k`; an empty text matches everything.
    ///
    /// # Errors
    /// When Kubernetes would refuse the text.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            requirements.push(if let Some((key, value)) = part.split_once("!=") {
                Requirement::NotIn(key.trim().into(), [value.trim().into()].into())
            } else if let Some((key, value)) = part.split_once('=') {
                Requirement::In(
                    key.trim().into(),
                    [value.trim_start_matches('=').trim().into()].into(),
                )
            } else if let Some(key) = part.strip_prefix('!') {
                Requirement::Absent(key.trim().into())
            } else {
                Requirement::Exists(part.into())
            });
        }
        Ok(Self { requirements })
    }

    /// True if nothing is required.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// All of these must hold.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// True if `labels`, each key at most once, meet every requirement.
    pub fn matches<K: AsRef<str>, V: AsRef<str>>(
        &self,
        labels: impl IntoIterator<Item = (K, V)>,
    ) -> bool {
        let mut open = self
            .requirements
            .iter()
            .filter(|r| matches!(r, Requirement::In(..) | Requirement::Exists(_)))
            .count();
        for (key, value) in labels {
            for requirement in &self.requirements {
                match requirement {
                    Requirement::In(k, values) if k == key.as_ref() => {
                        if values.contains(value.as_ref()) {
                            open -= 1
                        } else {
                            return false;
                        }
                    }
                    Requirement::NotIn(k, values) if k == key.as_ref() => {
                        if values.contains(value.as_ref()) {
                            return false;
                        }
                    }
                    Requirement::Exists(k) if k == key.as_ref() => open -= 1,
                    Requirement::Absent(k) if k == key.as_ref() => return false,
                    _ => {}
                }
            }
        }
        open == 0
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let join = |values: &BTreeSet<String>| {
                values
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(",")
            };
            match requirement {
                Requirement::In(key, values) => write!(f, "{key} in ({})", join(values))?,
                Requirement::NotIn(key, values) => write!(f, "{key} notin ({})", join(values))?,
                Requirement::Exists(key) => f.write_str(key)?,
                Requirement::Absent(key) => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}
