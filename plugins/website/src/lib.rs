//! Runs a website: a Deployment, a Service and, if it has a host name, an Ingress.
//!
//! - Its Pods are replaced when the ConfigMap or the Secret changes that they get their environment from.
//! - Its host name is registered at a server outside the cluster, and removed before the `Website` goes: [`registrar`].
//! - Events report transitions, and metrics count them.
//!
//! [`registrar`]: Config::registrar

mod children;
mod registrar;
mod resource;

use std::time::Duration;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Secret, Service},
        networking::v1::Ingress,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use pilothouse_sdk::{http::HttpPermission, metrics::Counter, prelude::*};
use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::registrar::{REQUESTS, Registrar};
pub use crate::resource::{Website, WebsiteSpec, WebsiteStatus};

/// The annotation of the Pods with the checksum of their environment: SHA-256 in hexadecimal.
pub const CHECKSUM: &str = "web.example.com/checksum";

/// The finalizer, which keeps a Website until its host name is no longer registered.
pub const FINALIZER: &str = "web.example.com/registrar";

/// Time after which a request that the registrar did not accept is repeated.
const RETRY: Duration = Duration::from_secs(15);

static ROLLOUTS: Counter =
    Counter::new("website_rollouts_total", "Replacements of Pods because their ConfigMap or Secret changed.");

/// The administrator's configuration.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The class of every Ingress. Without it, the cluster's default class serves them.
    #[serde(default)]
    pub ingress_class: Option<String>,
    /// The URL below which host names are registered, such as `https://dns.example.com/hosts`. Without it, none are.
    #[serde(default)]
    pub registrar: Option<String>,
}

/// The plugin.
///
/// # Errors
/// Fails if the registrar's URL is not valid.
#[plugin]
pub fn website(config: Config) -> Result<Plugin, Error> {
    let registrar = config.registrar.as_deref().map(HttpPermission::for_url).transpose()?;
    // The checksum covers a Secret's data. The annotation would repeat it.
    let secrets =
        Watch::of::<Secret>().without([r#"metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]"#]);
    let controller = Controller::of::<Website>()
        .owns::<Deployment>()
        .owns::<Service>()
        .owns::<Ingress>()
        .reads::<ConfigMap>()
        .reads_with(secrets)
        .events()
        .finalizer(FINALIZER)
        .max_concurrency(4)
        .reconcile(move |ctx, site| reconcile(&config, ctx, site));
    let plugin = Plugin::new("Runs websites.")
        .crd::<Website>()
        .config_schema::<Config>()
        .metric(&ROLLOUTS)
        .metric(&REQUESTS)
        .controller(controller);
    Ok(match registrar {
        Some(permission) => plugin.http(permission.methods(["PUT", "DELETE"])),
        None => plugin,
    })
}

/// Returns what should exist for a `Website`, and its status. Cleans up if it is being deleted.
///
/// # Errors
/// Fails if the cache cannot be read, or if the cleanup fails.
pub fn reconcile(config: &Config, ctx: &Context, site: &Website) -> Result<Outcome, Error> {
    let registrar = config.registrar.as_deref().map(|url| Registrar { url, http: ctx.http() });
    match ctx.phase() {
        Phase::Live => live(config, registrar.as_ref(), ctx, site),
        Phase::Deleting => {
            let registered = site.status.as_ref().and_then(|status| status.host.as_deref());
            if let (Some(registrar), Some(host)) = (registrar, registered) {
                registrar.remove(host).map_err(|error| {
                    let event = Event::warning("CleanupFailed", format!("cannot remove {host}: {error}"));
                    Error::from(error).with_event(event)
                })?;
            }
            Ok(Outcome::new())
        }
        Phase::Gone => Ok(Outcome::new()),
    }
}

fn live(config: &Config, registrar: Option<&Registrar<'_>>, ctx: &Context, site: &Website) -> Result<Outcome, Error> {
    let before = site.status.clone().unwrap_or_default();
    let mut status = WebsiteStatus { observed_generation: site.metadata.generation, ..before.clone() };
    let mut outcome = Outcome::new();

    match registrar.map_or(Ok(()), |registrar| registrar.step(ctx, site, &mut status)) {
        Ok(()) => {}
        // The Pods can run without a host name. So this is no failure of the call, which would leave out the children.
        Err(error) => {
            status.conditions.set(ctx.condition("Registered", false, "RegistrarFailed", error.to_string()));
            outcome = outcome.requeue_after(RETRY);
        }
    }

    let deployed = ctx.cache().get::<Deployment>(ctx.key())?.filter(|found| found.is_controlled_by(site));
    match environment(ctx, site)? {
        Ok(checksum) => {
            if deployed.as_ref().is_some_and(|deployed| checksum_of(deployed) != checksum.as_deref()) {
                ROLLOUTS.inc([]);
                outcome = outcome.event(Event::normal("RollingOut", "the environment of the Pods has changed"));
            }
            status.conditions.set(ready(ctx, site, deployed.as_ref()));
            outcome = outcome.child(children::deployment(site, checksum)).child(children::service(site));
            if let Some(host) = &site.spec.host {
                outcome = outcome.child(children::ingress(site, host, config.ingress_class.clone()));
            }
        }
        // The old Pods go on. When the object appears, it wakes the Website, because the reconcile read it.
        Err(missing) => status.conditions.set(ctx.condition("Ready", false, "Missing", missing)),
    }

    let running = deployed.and_then(|deployed| deployed.status).unwrap_or_default();
    status.replicas = running.replicas.unwrap_or_default();
    status.available_replicas = running.available_replicas.unwrap_or_default();
    let labels = children::labels(site).into_iter().map(|(key, value)| format!("{key}={value}"));
    status.selector = Some(labels.collect::<Vec<_>>().join(","));
    Ok(outcome.events(transitions(&before.conditions, &status.conditions)).status(status))
}

/// Returns the checksum of what the Pods get as their environment, or which object is missing. There is none if they
/// get nothing.
fn environment(ctx: &Context, site: &Website) -> Result<Result<Option<String>, String>, Error> {
    let mut sha256 = Sha256::new();
    if let Some(name) = &site.spec.config_map {
        let Some(map) = ctx.cache().get::<ConfigMap>(ctx.key().beside(name))? else {
            return Ok(Err(format!("the ConfigMap {name} does not exist")));
        };
        sha256.update(serde_json::to_vec(&map.data)?);
    }
    if let Some(name) = &site.spec.secret {
        let Some(secret) = ctx.cache().get::<Secret>(ctx.key().beside(name))? else {
            return Ok(Err(format!("the Secret {name} does not exist")));
        };
        sha256.update(serde_json::to_vec(&secret.data)?);
    }
    let has_any = site.spec.config_map.is_some() || site.spec.secret.is_some();
    Ok(Ok(has_any.then(|| sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect())))
}

fn checksum_of(deployed: &Deployment) -> Option<&str> {
    let annotations = deployed.spec.as_ref()?.template.metadata.as_ref()?.annotations.as_ref()?;
    annotations.get(CHECKSUM).map(String::as_str)
}

/// Returns the condition `Ready`: whether the Deployment has rolled out the newest spec.
fn ready(ctx: &Context, site: &Website, deployed: Option<&Deployment>) -> Condition {
    if let Some(error) = ctx.last_error() {
        return ctx.condition("Ready", false, "WriteFailed", error);
    }
    let status = deployed.and_then(|deployed| deployed.status.clone()).unwrap_or_default();
    let newest = deployed.is_some_and(|deployed| status.observed_generation == deployed.metadata.generation);
    let wanted = site.spec.replicas;
    let [updated, available] = [status.updated_replicas, status.available_replicas].map(Option::unwrap_or_default);
    let message = format!("{available} of {wanted} Pods are available, {updated} are up to date");
    let all = newest && updated == wanted && available == wanted;
    ctx.condition("Ready", all, if all { "AllAvailable" } else { "RollingOut" }, message)
}

/// Returns an Event for each condition that became true, or became false for another reason than progress.
fn transitions(before: &Conditions, after: &Conditions) -> Vec<Event> {
    let event = |new: &Condition| match (new.status.as_str(), new.reason.as_str()) {
        ("True", _) => Some(Event::normal(new.type_.clone(), new.message.clone())),
        (_, "RollingOut") if !before.is_true(&new.type_) => None,
        _ => Some(Event::warning(format!("Not{}", new.type_), new.message.clone())),
    };
    after.transitions(before).filter_map(event).collect()
}
