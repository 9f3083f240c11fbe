//! What a plugin says it is and needs: `manifest` of `wit/controller.wit`, checked.
//!
//! Owns the shape and its rules. What of it the administrator allows is [`crate::grant`]'s; how a plugin's answer becomes this
//! shape is the host's.

use std::{collections::BTreeSet, fmt, time::Duration};

use crate::{key::TypeMeta, object::Subresource, selector::Selector};

/// The longest name of a controller: it becomes a metric label and part of log lines, and has the form of a DNS label.
const MAX_NAME: usize = 63;

/// What a plugin is and needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The plugin's own version, for people.
    pub version: String,
    /// One sentence, for people.
    pub description: String,
    /// Its reconcile loops.
    pub controllers: Vec<Controller>,
    /// What it asks to be granted.
    pub permissions: Vec<Permission>,
    /// CustomResourceDefinitions that it brings, as JSON text.
    pub crds: Vec<String>,
    /// A JSON schema of its configuration, for people.
    pub config_schema: Option<String>,
}

/// One reconcile loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Controller {
    /// Unique within the plugin.
    pub name: String,
    /// The kind whose keys are reconciled.
    pub for_: Watch,
    /// Kinds of children.
    pub owns: Vec<Watch>,
    /// How many keys may be reconciled at once; at least 1.
    pub max_concurrency: u32,
    /// How long one call may run.
    pub timeout: Duration,
}

/// A kind to cache and to be woken by.
#[derive(Clone, Debug, PartialEq)]
pub struct Watch {
    /// The kind.
    pub of: TypeMeta,
    /// Empty: every namespace that is granted.
    pub namespaces: Vec<String>,
    /// None: every object.
    pub labels: Option<Selector>,
}

/// Something a plugin may do with objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// From the cache and from the API server; watching too.
    Read,
    /// Create.
    Create,
    /// Replace.
    Update,
    /// Patch.
    Patch,
    /// Server-side apply.
    Apply,
    /// Delete.
    Delete,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 6] = [Self::Read, Self::Create, Self::Update, Self::Patch, Self::Apply, Self::Delete];

    /// As it is written in the administrator's file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Apply => "apply",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something that the plugin asks to be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The kind.
    pub of: TypeMeta,
    /// None: the object itself.
    pub subresource: Option<Subresource>,
    /// What it wants to do; at least one.
    pub verbs: BTreeSet<Verb>,
    /// Empty: every namespace.
    pub namespaces: Vec<String>,
    /// Empty: every name.
    pub names: Vec<String>,
}

/// A rule that a manifest breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error("controller name {0:?} may only have lower-case letters, digits and `-`, must begin and end with a letter or a digit, and have at most {MAX_NAME} characters")]
    Name(String),
    #[error("two controllers are called {0:?}")]
    SameName(String),
    #[error("{place}: apiVersion {api_version:?} and kind {kind:?} do not name a kind, as `apps/v1` and `Deployment` do")]
    Kind { place: String, api_version: String, kind: String },
    #[error("{place}: a namespace is empty; an empty list means every namespace")]
    Namespace { place: String },
    #[error("controller {controller:?} owns {of} twice")]
    OwnedTwice { controller: String, of: TypeMeta },
    #[error("controller {0:?} owns the kind it is for; an object cannot be its own child")]
    OwnsItself(String),
    #[error("controller {0:?} has a deadline of 0 ms")]
    Timeout(String),
    #[error("the permission for {0} names no verb")]
    NoVerb(String),
    #[error("definition {0} is no JSON")]
    Definition(usize),
    #[error("the configuration's schema is no JSON")]
    ConfigSchema,
}

impl Manifest {
    /// Every rule that the manifest breaks; none: it can be used.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut names = BTreeSet::new();
        for controller in &self.controllers {
            if !is_label(&controller.name) {
                problems.push(Problem::Name(controller.name.chars().take(2 * MAX_NAME).collect()));
            }
            if !names.insert(&controller.name) {
                problems.push(Problem::SameName(controller.name.clone()));
            }
            controller.check(&mut problems);
        }
        for permission in &self.permissions {
            let of = &permission.of;
            check_kind(of, || "a permission".into(), &mut problems);
            if permission.verbs.is_empty() {
                problems.push(Problem::NoVerb(of.to_string()));
            }
        }
        let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        let broken = self.crds.iter().enumerate().filter(|(_, text)| !is_json(text));
        problems.extend(broken.map(|(at, _)| Problem::Definition(at)));
        if self.config_schema.as_deref().is_some_and(|schema| !is_json(schema)) {
            problems.push(Problem::ConfigSchema);
        }
        problems
    }
}

impl Controller {
    fn check(&self, problems: &mut Vec<Problem>) {
        let name = &self.name;
        self.for_.check(|| format!("controller {name:?}, for"), problems);
        let mut owned = BTreeSet::new();
        for watch in &self.owns {
            watch.check(|| format!("controller {name:?}, owns"), problems);
            if !owned.insert(&watch.of) {
                problems.push(Problem::OwnedTwice { controller: name.clone(), of: watch.of.clone() });
            }
            if watch.of == self.for_.of {
                problems.push(Problem::OwnsItself(name.clone()));
            }
        }
        if self.timeout.is_zero() {
            problems.push(Problem::Timeout(name.clone()));
        }
    }
}

impl Watch {
    fn check(&self, place: impl Fn() -> String, problems: &mut Vec<Problem>) {
        check_kind(&self.of, &place, problems);
        if self.namespaces.iter().any(String::is_empty) {
            problems.push(Problem::Namespace { place: place() });
        }
    }
}

fn check_kind(of: &TypeMeta, place: impl Fn() -> String, problems: &mut Vec<Problem>) {
    let part = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    let version = match of.api_version.split_once('/') {
        Some((group, version)) => part(group) && part(version),
        None => part(&of.api_version),
    };
    if !version || !part(&of.kind) {
        let (api_version, kind) = (of.api_version.to_string(), of.kind.to_string());
        problems.push(Problem::Kind { place: place(), api_version, kind });
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(api_version: &str, kind: &str) -> Watch {
        Watch { of: TypeMeta::new(api_version, kind), namespaces: Vec::new(), labels: None }
    }

    fn controller(name: &str) -> Controller {
        Controller {
            name: name.into(),
            for_: watch("stable.example.com/v1", "MyApple"),
            owns: vec![watch("v1", "ConfigMap")],
            max_concurrency: 1,
            timeout: Duration::from_secs(10),
        }
    }

    fn manifest(controllers: Vec<Controller>) -> Manifest {
        Manifest {
            version: "1".into(),
            description: String::new(),
            controllers,
            permissions: Vec::new(),
            crds: Vec::new(),
            config_schema: None,
        }
    }

    #[test]
    fn a_sound_manifest_has_no_problem() {
        assert_eq!(manifest(vec![controller("apples"), controller("pears")]).problems(), []);
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let mut bad = manifest(vec![
            Controller { owns: vec![watch("v1", "Pod"), watch("v1", "Pod")], ..controller("Apples") },
            Controller { for_: watch("", "My Apple"), timeout: Duration::ZERO, ..controller("b") },
            Controller { owns: vec![watch("stable.example.com/v1", "MyApple")], ..controller("b") },
            Controller { for_: Watch { namespaces: vec![String::new()], ..watch("v1", "Pod") }, ..controller("c") },
        ]);
        bad.permissions.push(Permission {
            of: TypeMeta::new("a/b/c", "Secret"),
            subresource: None,
            verbs: BTreeSet::new(),
            namespaces: Vec::new(),
            names: Vec::new(),
        });
        bad.crds.push("{".into());
        bad.config_schema = Some("nonsense".into());
        let told: Vec<String> = bad.problems().iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(told.join("\n"), @r#"
        controller name "Apples" may only have lower-case letters, digits and `-`, must begin and end with a letter or a digit, and have at most 63 characters
        controller "Apples" owns v1 Pod twice
        controller "b", for: apiVersion "" and kind "My Apple" do not name a kind, as `apps/v1` and `Deployment` do
        controller "b" has a deadline of 0 ms
        two controllers are called "b"
        controller "b" owns the kind it is for; an object cannot be its own child
        controller "c", for: a namespace is empty; an empty list means every namespace
        a permission: apiVersion "a/b/c" and kind "Secret" do not name a kind, as `apps/v1` and `Deployment` do
        the permission for a/b/c Secret names no verb
        definition 0 is no JSON
        the configuration's schema is no JSON
        "#);
    }
}
