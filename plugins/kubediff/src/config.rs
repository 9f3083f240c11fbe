//! The administrator's configuration.

use pilothouse_sdk::{Error, TypeMeta, Watch, prelude::Dynamic};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::path::Path;

/// What is watched, and who gets a report.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Kinds, such as `v1/Pod`, `apps/v1/Deployment`, `apps/*` for a group, and `*` for all. The first that fits an
    /// object counts.
    #[serde(default = "everything")]
    pub resources: Vec<String>,
    /// Kinds that patterns leave out, written as `resources`.
    #[serde(default = "noise")]
    pub except: Vec<String>,
    /// Only objects in these namespaces. Without any, all objects, including those without a namespace.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// A label selector for the objects.
    #[serde(default)]
    pub labels: Option<String>,
    /// The changes that are reported.
    #[serde(default = "all_events")]
    pub events: Vec<Event>,
    /// `true` reports the objects that exist at the start, too, as `initial`.
    #[serde(default)]
    pub initial: bool,
    /// Paths of fields that do not count, with all below them: `status`, `spec.containers[*].image`.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// `true` adds whole objects to what webhooks get.
    #[serde(default)]
    pub objects: bool,
    /// Where each change is posted as JSON.
    #[serde(default)]
    pub webhooks: Vec<Webhook>,
    /// Where each change is posted as a message of Slack.
    #[serde(default)]
    pub slack: Option<Slack>,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Event {
    Added,
    Updated,
    Deleted,
}

impl Event {
    /// Returns the word in lines and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
        }
    }
}

/// A webhook that takes JSON.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// Its URL.
    pub url: String,
}

/// An incoming webhook of Slack, or of a server that takes the same messages. With a token, `chat.postMessage`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slack {
    /// Its URL. It is a secret, so take it from one.
    pub url: String,
    /// The channel, for `chat.postMessage`.
    #[serde(default)]
    pub channel: Option<String>,
    /// The first words of each message, such as the name of the cluster.
    #[serde(default)]
    pub title: Option<String>,
}

fn everything() -> Vec<String> {
    vec!["*".to_owned()]
}

/// What changes all the time, and concerns nobody.
fn noise() -> Vec<String> {
    ["v1/Event", "events.k8s.io/*", "coordination.k8s.io/*"].map(str::to_owned).into()
}

fn all_events() -> Vec<Event> {
    vec![Event::Added, Event::Updated, Event::Deleted]
}

impl Config {
    /// Returns what is observed: a watch for each resource.
    ///
    /// # Errors
    /// Fails if an entry of `resources` or `except` names no kind.
    pub fn watches(&self) -> Result<Vec<Watch<Dynamic>>, Error> {
        let except = self.except.iter().map(|kind| kind.parse()).collect::<Result<Vec<TypeMeta>, _>>()?;
        let watch = |kind: &String| {
            let of: TypeMeta = kind.parse()?;
            let is_pattern = of.kind == "*";
            // The annotation repeats the object, with the values of a Secret.
            let annotation = r#"metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]"#;
            let mut watch = Watch::to(of).namespaces(&self.namespaces).without([annotation]);
            if is_pattern {
                watch = watch.except(except.clone());
            }
            if let Some(labels) = &self.labels {
                watch = watch.labels(labels);
            }
            Ok(watch)
        };
        self.resources.iter().map(watch).collect()
    }

    /// Returns the paths that do not count. The first two differ in each update.
    ///
    /// # Errors
    /// Fails if one of them is not a path.
    pub fn ignored(&self) -> Result<Vec<Path>, Error> {
        let always = ["metadata.resourceVersion", "metadata.generation"];
        let all = always.into_iter().chain(self.ignore.iter().map(String::as_str));
        all.map(|path| Ok(path.parse()?)).collect()
    }
}
