//! A child that cannot be changed, so the host replaces it.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResource;
use pilothouse_sdk::{mock::MockHost, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Release", namespaced)]
struct ReleaseSpec {
    version: String,
}

#[plugin]
fn releases() -> Plugin {
    let controller = Controller::of::<Release>().owns::<ConfigMap>().without_status().reconcile(reconcile);
    Plugin::new("Keeps the version of each release.").crd::<Release>().controller(controller)
}

fn reconcile(ctx: &Context, release: &Release) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let mut map = ConfigMap { immutable: Some(true), ..ConfigMap::default() };
    map.metadata.name = Some(release.name().to_owned());
    map.data = Some([("version".to_owned(), release.spec.version.clone())].into());
    Ok(Outcome::new().replace(map))
}

#[test]
fn another_version_is_another_config_map() {
    let key = ("default", "shop");
    let shop = named("shop", Release::new("shop", ReleaseSpec { version: "1".into() }));
    let mut host = MockHost::new(releases).with(shop);
    host.settle(key).expect("it settles");
    let old: ConfigMap = host.get(key).unwrap();

    host.edit::<Release>(key, |shop| shop.spec.version = "2".into());
    host.settle(key).expect("it settles");
    let new: ConfigMap = host.get(key).unwrap();
    assert_ne!(new.metadata.uid, old.metadata.uid);
    assert_eq!(new.data.unwrap()["version"], "2");
}
