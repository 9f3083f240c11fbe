//! Denies Pods, and everything that makes Pods, if an image is not from an allowed registry.
//!
//! A ConfigMap lists the registries. The plugin reads it from the host's cache, so a review sends no request, and an
//! edit of the ConfigMap counts at once.
//!
//! An update is denied only for images that it adds. So labels, finalizers and scale of older objects can still be
//! changed.

mod registry;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{metrics::Counter, prelude::*};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

pub use crate::registry::Allowed;

/// The key of the ConfigMap with the registries, one a line.
pub const REGISTRIES: &str = "registries";

/// Images that a message names. Users fix them one by one anyway.
const NAMED: usize = 5;

static REVIEWS: Counter<1> =
    Counter::new("registry_policy_reviews_total", "Reviewed requests, by their result.").labels(["result"]);

/// The administrator's configuration.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The ConfigMap with the registries.
    pub config_map: Reference,
    /// A label selector of the namespaces whose objects are reviewed. Without it, all are.
    #[serde(default)]
    pub namespaces: Option<String>,
    /// `true` lets the API server allow everything while no host answers.
    #[serde(default)]
    pub allow_on_failure: bool,
}

/// Names a ConfigMap.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Reference {
    pub namespace: String,
    pub name: String,
}

/// The plugin.
#[plugin]
pub fn registry_policy(config: Config) -> Result<Plugin, Error> {
    let Reference { namespace, name } = &config.config_map;
    let policy = Watch::of::<ConfigMap>().namespaces([namespace]).fields(format!("metadata.name={name}"));
    let resources = [
        "pods",
        "pods/ephemeralcontainers",
        "podtemplates",
        "replicationcontrollers",
        "deployments",
        "replicasets",
        "statefulsets",
        "daemonsets",
        "jobs",
        "cronjobs",
    ];
    let mut webhook = Webhook::to("images", ["", "apps", "batch"], ["v1"], resources).reads(policy);
    if let Some(namespaces) = &config.namespaces {
        webhook = webhook.namespaces(namespaces);
    }
    if config.allow_on_failure {
        webhook = webhook.ignore_failures();
    }
    let description = "Allows only images from the registries in a ConfigMap.";
    Ok(Plugin::new(description)
        .config_schema::<Config>()
        .metric(&REVIEWS)
        .validate(webhook, move |ctx, request| review(&config.config_map, ctx, request)))
}

/// Decides about one request.
///
/// # Errors
/// Fails if the cache cannot be read. The API server then acts by the failure policy.
pub fn review(policy: &Reference, ctx: &AdmissionContext, request: &Review<Dynamic>) -> Result<Decision, Error> {
    let Some(object) = &request.object else { return Ok(Decision::allow()) };
    let known: Vec<&str> = request.old.iter().flat_map(images).map(|image| image.name).collect();
    let map = ctx.cache().get::<ConfigMap>(Key::new(&policy.namespace, &policy.name))?;
    let missing = map.is_none();
    let registries = map.and_then(|map| map.data).and_then(|mut data| data.remove(REGISTRIES)).unwrap_or_default();
    let allowed = Allowed::parse(&registries);

    let denied: Vec<Image<'_>> = images(object)
        .into_iter()
        .filter(|image| !known.contains(&image.name) && !allowed.allows(image.name))
        .collect();
    if denied.is_empty() {
        REVIEWS.inc(["allowed"]);
        return Ok(Decision::allow());
    }
    REVIEWS.inc(["denied"]);
    let mut named: Vec<String> =
        denied.iter().take(NAMED).map(|Image { name, place }| format!("{name} ({place})")).collect();
    if denied.len() > NAMED {
        named.push(format!("{} more", denied.len() - NAMED));
    }
    let Reference { namespace, name } = policy;
    let why = if missing {
        format!("the ConfigMap {namespace}/{name}, which lists the allowed registries, does not exist")
    } else {
        format!("the ConfigMap {namespace}/{name} allows these registries: {allowed}")
    };
    Ok(Decision::deny(format!("not from an allowed registry: {}; {why}", named.join(", "))))
}

/// An image in an object.
struct Image<'a> {
    name: &'a str,
    /// Such as `spec.initContainers[setup]`.
    place: String,
}

/// Returns all images in the Pod, or in the template of Pods, that an object has.
fn images(object: &Dynamic) -> Vec<Image<'_>> {
    let path: &[&str] = match object.type_meta().kind.as_str() {
        "Pod" => &["spec"],
        "PodTemplate" => &["template", "spec"],
        "CronJob" => &["spec", "jobTemplate", "spec", "template", "spec"],
        _ => &["spec", "template", "spec"],
    };
    let Some(spec) = path.iter().try_fold(&object.data, |value, member| value.get(member)) else { return Vec::new() };
    let lists = [
        ("initContainers", "/image"),
        ("containers", "/image"),
        ("ephemeralContainers", "/image"),
        // Volumes may be images, too.
        ("volumes", "/image/reference"),
    ];
    let mut images = Vec::new();
    for (list, member) in lists {
        for entry in spec.get(list).and_then(Value::as_array).into_iter().flatten() {
            if let Some(image) = entry.pointer(member).and_then(Value::as_str) {
                let place = format!("{}.{list}[{}]", path.join("."), entry["name"].as_str().unwrap_or_default());
                images.push(Image { name: image, place });
            }
        }
    }
    images
}
