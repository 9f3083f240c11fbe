//! Reviews Pods of one namespace, which its configuration names.
//!
//! - The webhook `images` denies a Pod whose images do not begin with the `registry` of the ConfigMap `images`.
//! - The webhook `labels` adds the label `reviewed`.
//!
//! Used by `tests/e2e/suite/webhooks.rs`.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use pilothouse_sdk::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    namespace: String,
    #[serde(default)]
    ignore: bool,
}

#[expect(clippy::needless_pass_by_value, reason = "a plugin owns its configuration")]
#[plugin]
fn reviewing(config: Config) -> Result<Plugin, Error> {
    let here = format!("kubernetes.io/metadata.name={}", config.namespace);
    let policies = Watch::of::<ConfigMap>().namespaces([&config.namespace]);
    let images = Webhook::of::<Pod>("images").operations([Operation::Create]).namespaces(&here).reads(policies);
    let images = if config.ignore { images.ignore_failures() } else { images };
    let labels = Webhook::of::<Pod>("labels").operations([Operation::Create]).namespaces(&here).ignore_failures();
    Ok(Plugin::new("Reviews the images of Pods.").validate(images, policy).mutate(labels, label))
}

fn policy(ctx: &AdmissionContext, review: &Review<Pod>) -> Result<Decision, Error> {
    let policy = ctx.cache().get::<ConfigMap>(review.key.beside("images"))?;
    let registry = policy.and_then(|policy| policy.data?.remove("registry")).unwrap_or_default();
    let containers = review.object.iter().filter_map(|pod| pod.spec.as_ref()).flat_map(|spec| &spec.containers);
    let foreign =
        containers.filter_map(|container| container.image.as_ref()).find(|image| !image.starts_with(&registry));
    let reviewed = |decision: Decision| decision.warn("the images were reviewed").audit("registry", &registry);
    Ok(reviewed(match foreign {
        Some(image) => Decision::deny(format!("the image {image} is not from {registry}")).code(422),
        None => Decision::allow(),
    }))
}

fn label(_: &AdmissionContext, review: &Review<Pod>) -> Result<Mutation<Pod>, Error> {
    let Some(mut pod) = review.object.clone() else { return Ok(Decision::allow().into()) };
    let how = if review.dry_run { "dry-run" } else { "yes" };
    pod.metadata.labels.get_or_insert_default().insert("reviewed".to_owned(), how.to_owned());
    Ok(Mutation::to(pod))
}
