//! Merges configuration from many places into one ConfigMap, and says by a checksum when any of it has changed.
//!
//! A `Bundle` names a ConfigMap with defaults, a selection of ConfigMaps that override them, and a Secret; and any ConfigMap of the
//! namespace may volunteer by an annotation ([`FOR`]). The result is the ConfigMap `<name>-bundle`, with a checksum over
//! everything in its annotation [`CHECKSUM`], for workloads to restart by.
//!
//! Nothing here says when to look again. What [`reconcile`] reads decides that: the ConfigMap that it got, the Secret that it did
//! not find, the lists that it went through.

mod resource;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use pilothouse_sdk::prelude::*;
pub use resource::{Bundle, BundleSpec, BundleStatus};
use sha2::{Digest, Sha256};

/// The annotation by which a ConfigMap asks to be in the Bundle of that name.
pub const FOR: &str = "config.example.com/for";

/// The annotation of the result: SHA-256 in hexadecimal.
pub const CHECKSUM: &str = "config.example.com/checksum";

/// The index of ConfigMaps by [`FOR`].
const VOLUNTEERS: &str = "volunteers";

/// The plugin.
#[plugin]
pub fn bundle() -> Plugin {
    // Secrets of other types are of no use here, so they are not even cached; and nobody wants a second copy of what is in them.
    let secrets = Watch::of::<Secret>()
        .fields("type=Opaque")
        .without([r#"metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]"#]);
    let controller = Controller::of::<Bundle>()
        // Not by its own status.
        .when(Predicate::generation().or(Predicate::deletion()))
        .owns::<ConfigMap>()
        .reads_with(secrets)
        .max_concurrency(4)
        .reconcile(reconcile);
    Plugin::new("Merges configuration from many places into one ConfigMap.")
        .crd::<Bundle>()
        .index::<ConfigMap>(VOLUNTEERS, format!("metadata.annotations[\"{FOR}\"]"))
        .controller(controller)
}

/// What a `Bundle` comes to.
///
/// # Errors
/// Where the cache cannot be read: the selector is none, for instance.
pub fn reconcile(ctx: &Context, bundle: &Bundle) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let sources = match sources(ctx, bundle)? {
        Ok(sources) => sources,
        // What there was stays: half a configuration is worse than yesterday's.
        Err(missing) => return Ok(Outcome::new().status(waiting(ctx, bundle, &missing))),
    };
    let checksum = sources.checksum()?;
    let status = BundleStatus {
        sources: u32::try_from(sources.count())?,
        checksum: Some(checksum.clone()),
        conditions: ready(ctx, bundle, true, "Merged", format!("{} sources", sources.count())),
        observed_generation: bundle.metadata.generation,
    };
    Ok(Outcome::new().child(sources.merged(bundle, checksum)).status(status))
}

/// All that goes into one bundle.
struct Sources {
    /// In the order in which they override one another.
    maps: Vec<ConfigMap>,
    secret: Option<Secret>,
}

/// What the cache has of what a `Bundle` names, or what it lacks.
fn sources(ctx: &Context, bundle: &Bundle) -> Result<Result<Sources, String>, Error> {
    let (cache, spec) = (ctx.cache(), &bundle.spec);
    let Some(defaults) = cache.get::<ConfigMap>(ctx.key().beside(&spec.config_map))? else {
        return Ok(Err(format!("the ConfigMap {}", spec.config_map)));
    };
    let secret = match &spec.secret {
        None => None,
        Some(name) => match cache.get::<Secret>(ctx.key().beside(name))? {
            Some(secret) => Some(secret),
            None => return Ok(Err(format!("the Secret {name}"))),
        },
    };
    let mut sources = Sources { maps: vec![defaults], secret };
    let beside = || cache.list::<ConfigMap>().beside(ctx.key());
    let selected = spec.selector.iter().flat_map(|selector| beside().labels(selector));
    for map in selected.chain(beside().index(VOLUNTEERS, bundle.name())) {
        let map = map?;
        // The result itself may fit the selector. What it holds would stay in it for ever.
        let counts = map.name() != result_name(bundle) && sources.maps.iter().all(|known| known.name() != map.name());
        if counts {
            sources.maps.push(map);
        }
    }
    Ok(Ok(sources))
}

fn result_name(bundle: &Bundle) -> String {
    format!("{}-bundle", bundle.name())
}

impl Sources {
    fn count(&self) -> usize {
        self.maps.len() + usize::from(self.secret.is_some())
    }

    fn data(&self) -> BTreeMap<String, String> {
        self.maps.iter().filter_map(|map| map.data.clone()).flatten().collect()
    }

    /// Of the content in its order as JSON, in which nothing runs into its neighbour.
    fn checksum(&self) -> Result<String, Error> {
        let content = serde_json::to_vec(&(self.data(), self.secret.as_ref().map(|secret| &secret.data)))?;
        Ok(Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn merged(&self, bundle: &Bundle, checksum: String) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some(result_name(bundle)),
            annotations: Some([(CHECKSUM.to_owned(), checksum)].into()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, data: Some(self.data()), ..ConfigMap::default() }
    }
}

/// The status where something is not there. Its arrival wakes this Bundle, as the reconcile has looked for it.
fn waiting(ctx: &Context, bundle: &Bundle, missing: &str) -> BundleStatus {
    BundleStatus {
        conditions: ready(ctx, bundle, false, "Missing", format!("{missing} is not there")),
        observed_generation: bundle.metadata.generation,
        ..bundle.status.clone().unwrap_or_default()
    }
}

fn ready(ctx: &Context, bundle: &Bundle, ready: bool, reason: &str, message: String) -> Conditions {
    let mut conditions = bundle.status.clone().unwrap_or_default().conditions;
    conditions.set(match ctx.last_error() {
        None => ctx.condition("Ready", ready, reason, message),
        Some(error) => ctx.condition("Ready", false, "WriteFailed", format!("{message}: {error}")),
    });
    conditions
}
