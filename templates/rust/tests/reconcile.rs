//! Runs the plugin against the SDK's mock host: no cluster, no sandbox.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{Key, mock::MockHost};
use {{crate}}::{{{kind}}, {{kind}}Spec, {{crate}}};

fn object(message: &str) -> {{kind}} {
    let mut object = {{kind}}::new("first", {{kind}}Spec { message: message.into() });
    object.metadata.namespace = Some("default".into());
    object
}

#[test]
fn an_object_gets_its_config_map_and_becomes_ready() {
    let mut host = MockHost::new({{crate}}).with(object("Hello!"));

    host.settle(("default", "first")).expect("it settles");

    let child = host.get::<ConfigMap>(("default", "first-message")).expect("the ConfigMap exists");
    assert_eq!(child.data.expect("it has data")["message"], "Hello!");
    let object = host.get::<{{kind}}>(("default", "first")).expect("the object exists");
    let status = object.status.expect("it has a status");
    assert!(status.conditions.is_true("Ready"));
}

#[test]
fn a_config_map_that_is_deleted_comes_back() {
    let mut host = MockHost::new({{crate}}).with(object("Hello!"));
    host.settle(("default", "first")).expect("it settles");

    let woken = host.woken_by(|host| drop(host.remove::<ConfigMap>(("default", "first-message"))));

    assert_eq!(woken, [Key::from(("default", "first"))]);
    host.settle(("default", "first")).expect("it settles again");
    assert!(host.get::<ConfigMap>(("default", "first-message")).is_some());
}
