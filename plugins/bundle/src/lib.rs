//! Merges configuration from many places into one ConfigMap, with a checksum.
//!
//! A `Bundle` names a ConfigMap with defaults, a selection of ConfigMaps that override them, and a Secret. Any
//! ConfigMap of the namespace may volunteer by the annotation [`FOR`]. The result is the ConfigMap `<name>-bundle`. Its
//! annotation [`CHECKSUM`] covers all sources, so that workloads can restart when one of them changes.
//!
//! Nothing here says when to reconcile again. The reads of [`reconcile`] decide that: the ConfigMap that it got, the
//! Secret that it did not find, the lists that it read.

mod resource;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use pilothouse_sdk::prelude::*;
pub use resource::{Bundle, BundleSpec, BundleStatus};
use sha2::{Digest, Sha256};

/// The annotation with which a ConfigMap volunteers for a Bundle. Its value is the Bundle's name.
pub const FOR: &str = "config.example.com/for";

/// The annotation of the result with its checksum: SHA-256 in hexadecimal.
pub const CHECKSUM: &str = "config.example.com/checksum";

/// The index of ConfigMaps by [`FOR`].
const VOLUNTEERS: &str = "volunteers";

/// The plugin.
#[plugin]
pub fn bundle() -> Plugin {
    // Secrets of other types are not used, so they are not cached. Neither is the annotation that repeats their
    // content.
    let secrets = Watch::of::<Secret>()
        .fields("type=Opaque")
        .without([r#"metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]"#]);
    let controller = Controller::of::<Bundle>()
        // Changes of its own status do not wake the Bundle.
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

/// Returns the result of a `Bundle`, and its status.
///
/// # Errors
/// Fails if the cache cannot be read, for example because the selector is not valid.
pub fn reconcile(ctx: &Context, bundle: &Bundle) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let sources = match sources(ctx, bundle)? {
        Ok(sources) => sources,
        // Keep the old result: half a configuration is worse than an old one.
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

/// The sources of one Bundle.
struct Sources {
    /// Later ones override earlier ones.
    maps: Vec<ConfigMap>,
    secret: Option<Secret>,
}

/// Reads the sources of a `Bundle` from the cache, or returns the name of a missing one.
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
        // The selector may match the result itself. Its content would then stay in it forever.
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

    /// Returns the checksum of the content as JSON, which separates the values.
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

/// Returns the status while a source is missing. When it appears, it wakes the Bundle, because the reconcile read it.
fn waiting(ctx: &Context, bundle: &Bundle, missing: &str) -> BundleStatus {
    BundleStatus {
        conditions: ready(ctx, bundle, false, "Missing", format!("{missing} does not exist")),
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
