//! Configurations that refer to Secrets.

use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{
    super::*,
    life::{GRANTS, World, failure},
};
use crate::{
    informer::Informers,
    testing::{Api, soon},
    wasm::testing::{self as guest, Guest},
};

const CONFIG: &str =
    "config: { token: { valueFrom: { secretKeyRef: { namespace: default, name: slack, key: token } } } }";

fn secret(base64: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "slack", "namespace": "default"}, "data": {"token": base64}})
}

async fn world(api: &Api) -> World {
    World::with(Mode::Granted, Some(Informers::new(api.cluster.clone(), Handle::current())))
}

/// Waits until the plugin serves with this configuration, and nothing is wrong.
async fn serves(world: &mut World, config: &str) {
    loop {
        world.until(|status| status.state == State::Active && status.last_failure.is_none()).await;
        if &**world.latest().revision.config() == config {
            return;
        }
    }
}

#[tokio::test]
async fn a_configuration_follows_the_secret_that_it_refers_to() {
    let api = Api::start().await;
    let mut world = world(&api).await;
    let status = world.bring(&Guest::new().file(), Some(&format!("{CONFIG}{GRANTS}"))).await;
    assert_eq!(
        (status.state, failure(&status)),
        (
            State::Failed,
            (
                Stage::Settings,
                "waits for what the configuration in red.yaml refers to: key token of Secret default/slack: there is no such object"
            )
        )
    );
    api.create(secret("cmVk")).await;
    soon("the Secret is there", serves(&mut world, r#"{"token":"red"}"#)).await;
    api.update(secret("Ymx1ZQ==")).await;
    soon("it has another value", serves(&mut world, r#"{"token":"blue"}"#)).await;
    assert_eq!(world.calls(), ["+1.0.0", "+1.0.0"]);
    assert!(world.latest().references.secret_in_config);
    assert!(!format!("{:?}", world.latest()).contains("blue"));
}

#[tokio::test]
async fn a_secret_that_goes_leaves_the_old_configuration_under_the_new_file() {
    let api = Api::start().await;
    api.create(secret("cmVk")).await;
    let mut world = world(&api).await;
    let status = world.bring(&Guest::new().file(), Some(&format!("{CONFIG}{GRANTS}"))).await;
    assert_eq!(status.state, State::Active);
    let (config, grants) = (CONFIG.replace("slack", "other"), GRANTS.replace("read, apply, delete", "read"));
    let status = world.bring(&Guest::new().file(), Some(&format!("{config}{grants}"))).await;
    assert_eq!((status.state, failure(&status).0), (State::Active, Stage::Settings));
    let candidate = world.latest();
    assert_eq!(&**candidate.revision.config(), r#"{"token":"red"}"#);
    let maps = pilothouse_core::key::TypeMeta::new("v1", "ConfigMap");
    assert!(candidate.grants.check(pilothouse_core::manifest::Verb::Apply, &maps, None, Some("a"), Some("b")).is_err());
}

#[tokio::test]
async fn errors_of_a_plugin_with_secrets_in_its_configuration_are_withheld() {
    let api = Api::start().await;
    api.create(secret("cmVk")).await;
    let mut world = world(&api).await;
    let file = Guest::new().describe(guest::PICKY).file();
    let status = world.bring(&file, Some(&format!("{CONFIG}{GRANTS}"))).await;
    let (stage, message) = failure(&status);
    assert_eq!(stage, Stage::Describe);
    assert!(!message.contains(guest::REFUSAL) && message.contains("values of Secrets"), "{message}");
}
