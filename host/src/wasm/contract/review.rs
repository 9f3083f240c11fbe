//! What `validate`, `mutate` and `convert` take and return.
//!
//! Answers are bounded here: [`MAX_NOTES`] warnings and annotations, their lengths, and [`MAX_OBJECT`] for an object.

use pilothouse_core::manifest::Operation;

use super::{
    bindings::{
        admitting::{exports::pilothouse::plugin::admission as wit, pilothouse::plugin::types},
        converting,
    },
    call::MAX_OBJECT,
    error::CallError,
    text::{MAX_MESSAGE, shorten},
};

/// Warnings of a decision, and entries for the audit log. The API server shows no more than a few.
pub const MAX_NOTES: usize = 16;

/// Bytes of a warning. The API server cuts longer ones, and all of a response at 4 kB.
pub const MAX_WARNING: usize = 256;

/// Bytes of an entry for the audit log.
pub const MAX_ANNOTATION: usize = 1024;

/// Bytes of a key of the audit log.
const MAX_ANNOTATION_KEY: usize = 63;

/// Who sent a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// Its name, such as `system:serviceaccount:default:web`.
    pub name: String,
    /// May be empty.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
}

/// A request to the API server that a webhook reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// The webhook's name in the manifest.
    pub webhook: String,
    /// What the request does.
    pub operation: Operation,
    /// `apiVersion` of the kind in the request.
    pub api_version: String,
    /// The kind in the request.
    pub kind: String,
    /// `None` for cluster-scoped objects.
    pub namespace: Option<String>,
    /// Empty if the API server generates the name later.
    pub name: String,
    /// `None` for the object itself.
    pub subresource: Option<String>,
    /// The object as JSON text, without `managedFields`.
    pub object: Option<String>,
    /// The object before.
    pub old: Option<String>,
    /// Who sent the request.
    pub user: User,
    /// `true` if nothing will be stored.
    pub dry_run: bool,
}

/// A plugin's answer to a review.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Why the request is denied. `None` allows it.
    pub denied: Option<String>,
    /// The HTTP status code of a denial, from 400 to 599.
    pub code: Option<u16>,
    /// At most [`MAX_NOTES`] of [`MAX_WARNING`] bytes.
    pub warnings: Vec<String>,
    /// At most [`MAX_NOTES`].
    pub audit_annotations: Vec<(String, String)>,
}

impl Review {
    pub(crate) fn to_wit(&self) -> wit::Review {
        wit::Review {
            webhook: self.webhook.clone(),
            operation: match self.operation {
                Operation::Create => types::Operation::Create,
                Operation::Update => types::Operation::Update,
                Operation::Delete => types::Operation::Delete,
                Operation::Connect => types::Operation::Connect,
            },
            of: types::TypeMeta { api_version: self.api_version.clone(), kind: self.kind.clone() },
            key: types::Key { namespace: self.namespace.clone(), name: self.name.clone() },
            subresource: self.subresource.clone(),
            object: self.object.clone(),
            old: self.old.clone(),
            user: wit::User {
                name: self.user.name.clone(),
                uid: self.user.uid.clone(),
                groups: self.user.groups.clone(),
            },
            dry_run: self.dry_run,
        }
    }
}

impl Decision {
    /// Checks a decision and bounds its texts.
    pub(crate) fn from_wit(decision: wit::Decision) -> Result<Self, CallError> {
        let invalid = |why: String| Err(CallError::Answer(why));
        if let Some(code) = decision.code.filter(|code| !(400..600).contains(code)) {
            return invalid(format!("{code} is not a status code of a denial: it is 400 to 599"));
        }
        let (warnings, annotations) = (decision.warnings, decision.audit_annotations);
        for (count, what) in [(warnings.len(), "warnings"), (annotations.len(), "entries of the audit log")] {
            if count > MAX_NOTES {
                return invalid(format!("{count} {what} are more than the {MAX_NOTES} that a decision may hold"));
            }
        }
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if let Some((key, _)) =
            annotations.iter().find(|(key, _)| !(1..=MAX_ANNOTATION_KEY).contains(&key.len()) || !key.bytes().all(fits))
        {
            let key = shorten(key.clone(), 80);
            return invalid(format!(
                "{key:?} is not a key of the audit log: it has 1 to {MAX_ANNOTATION_KEY} letters, digits, `-`, `_` and `.`"
            ));
        }
        Ok(Self {
            denied: decision.denied.map(|message| shorten(message, MAX_MESSAGE)),
            code: decision.code,
            warnings: warnings.into_iter().map(|warning| shorten(warning, MAX_WARNING)).collect(),
            audit_annotations: annotations
                .into_iter()
                .map(|(key, value)| (key, shorten(value, MAX_ANNOTATION)))
                .collect(),
        })
    }
}

/// Checks the object that `mutate` or `convert` returned.
pub(crate) fn check_object(object: &str, what: &str) -> Result<(), CallError> {
    let bytes = object.len();
    if bytes > MAX_OBJECT {
        return Err(CallError::Answer(format!(
            "{what} has {bytes} bytes, and an API server takes at most {MAX_OBJECT}"
        )));
    }
    pilothouse_core::check_object(object).map_err(|error| CallError::Decode {
        reason: format!("{what} is not a JSON object: {error}"),
        backtrace: Vec::new(),
    })
}

/// Checks the objects that `convert` returned: as many as were asked for, and each a JSON object.
pub(crate) fn check_converted(
    objects: Vec<converting::exports::pilothouse::plugin::conversion::Object>,
    asked: usize,
) -> Result<Vec<String>, CallError> {
    if objects.len() != asked {
        let count = objects.len();
        return Err(CallError::Answer(format!("convert returned {count} objects for {asked}")));
    }
    objects.iter().enumerate().try_for_each(|(at, object)| check_object(object, &format!("converted object {at}")))?;
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision() -> wit::Decision {
        wit::Decision { denied: None, code: None, warnings: Vec::new(), audit_annotations: Vec::new() }
    }

    fn taken(decision: wit::Decision) -> Result<Decision, String> {
        Decision::from_wit(decision).map_err(|error| error.to_string())
    }

    #[test]
    fn long_texts_of_a_decision_are_cut() {
        let long = "x".repeat(10_000);
        let long = wit::Decision {
            denied: Some(long.clone()),
            code: Some(422),
            warnings: vec![long.clone(); MAX_NOTES],
            audit_annotations: vec![("why".to_owned(), long)],
        };
        let kept = taken(long).expect("it is taken");
        assert_eq!((kept.denied.map(|text| text.len()), kept.code), (Some(MAX_MESSAGE), Some(422)));
        assert!(kept.warnings.iter().all(|warning| warning.len() <= MAX_WARNING) && kept.warnings.len() == MAX_NOTES);
        assert!(kept.audit_annotations.iter().all(|(_, value)| value.len() <= MAX_ANNOTATION));
    }

    #[test]
    fn decision_that_is_out_of_bounds_is_refused() {
        let refused = |change: &dyn Fn(&mut wit::Decision)| {
            let mut decision = decision();
            change(&mut decision);
            taken(decision).map(drop)
        };
        let said = |why: &str| Err(format!("plugin gave an unusable answer: {why}"));
        assert_eq!(
            refused(&|decision| decision.code = Some(200)),
            said("200 is not a status code of a denial: it is 400 to 599")
        );
        assert_eq!(
            refused(&|decision| decision.warnings = vec![String::new(); 17]),
            said("17 warnings are more than the 16 that a decision may hold")
        );
        assert_eq!(
            refused(&|decision| decision.audit_annotations = vec![("a/b".to_owned(), String::new())]),
            said("\"a/b\" is not a key of the audit log: it has 1 to 63 letters, digits, `-`, `_` and `.`")
        );
    }

    #[test]
    fn converted_objects_are_as_many_as_were_asked_for() {
        let converted = |objects: &[&str], asked| {
            let objects = objects.iter().map(|object| (*object).to_owned()).collect();
            check_converted(objects, asked).map_err(|error| error.to_string())
        };
        assert_eq!(converted(&["{}"], 1), Ok(vec!["{}".to_owned()]));
        assert_eq!(
            converted(&["{}"], 2),
            Err("plugin gave an unusable answer: convert returned 1 objects for 2".to_owned())
        );
        assert_eq!(
            converted(&["1"], 1),
            Err("plugin passed text that is not valid: converted object 0 is not a JSON object: the text is not an object \
                 at byte 0"
                .to_owned())
        );
    }
}
