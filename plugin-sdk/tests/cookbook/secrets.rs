//! A Secret that the plugin makes once, and one that the administrator's configuration refers to.

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::CustomResource;
use pilothouse_sdk::{
    http::HttpPermission,
    mock::{ExpectedHttp, MockHost},
    prelude::*,
    random,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Database", namespaced)]
struct DatabaseSpec {
    user: String,
}

#[plugin]
fn databases() -> Plugin {
    let controller = Controller::of::<Database>().owns::<Secret>().without_status().reconcile(login);
    Plugin::new("Makes a login for each database.").crd::<Database>().controller(controller)
}

fn login(ctx: &Context, database: &Database) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let name = format!("{}-login", database.name());
    // A password is drawn once. Another one in each call would be another Secret in each call.
    let known = ctx.cache().get::<Secret>(ctx.key().beside(&name))?;
    let known = known.filter(|secret| secret.is_controlled_by(database)).and_then(|secret| secret.data);
    let password = known.and_then(|mut data| data.remove("password"));
    let password = password.unwrap_or_else(|| ByteString(hex(&random::bytes(16)).into_bytes()));

    let mut secret = Secret::default();
    secret.metadata.name = Some(name);
    let user = ByteString(database.spec.user.clone().into_bytes());
    secret.data = Some([("user".to_owned(), user), ("password".to_owned(), password)].into());
    Ok(Outcome::new().child(secret))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    channel: String,
    token: String,
}

const CHAT: &str = "https://chat.example.com/messages";

#[plugin]
fn notifier(config: Config) -> Result<Plugin, Error> {
    let notify = move |ctx: &Context, map: &ConfigMap| {
        let message = json!({"channel": config.channel, "text": format!("{} has changed", map.name())});
        ctx.http().post(CHAT).bearer(&config.token).json(&message).send()?.error_for_status()?;
        Ok(Outcome::new())
    };
    Ok(Plugin::new("Reports changes of ConfigMaps.")
        .config_schema::<Config>()
        .http(HttpPermission::to("chat.example.com").methods(["POST"]))
        .controller(Controller::of::<ConfigMap>().without_status().reconcile(notify)))
}

#[test]
fn a_password_is_drawn_once() {
    let key = ("default", "shop");
    let shop = named("shop", Database::new("shop", DatabaseSpec { user: "app".into() }));
    let mut host = MockHost::new(databases).with(shop).seed(1);
    let login = |host: &MockHost| host.get::<Secret>(("default", "shop-login")).unwrap().data.unwrap();

    host.settle(key).expect("it settles");
    let first = login(&host);
    assert_eq!(first["password"].0.len(), 32);
    host.edit::<Database>(key, |shop| shop.spec.user = "admin".into());
    host.settle(key).expect("it settles");
    assert_eq!(login(&host)["password"], first["password"]);
    assert_eq!(login(&host)["user"].0, b"admin");
}

#[test]
fn the_token_of_the_configuration_is_sent() {
    // In a test, the configuration has the values that the host would fill in.
    let config = json!({"channel": "ops", "token": "s3cret"});
    let mut host = MockHost::configured(notifier, config).with(named("colors", ConfigMap::default()));
    host.expect_http(ExpectedHttp::post(CHAT));
    host.reconcile(("default", "colors")).expect("it is sent");
    let calls = host.http_calls();
    assert!(calls[0].headers.contains(&("authorization".into(), "Bearer s3cret".into())));
    assert_eq!(calls[0].json(), json!({"channel": "ops", "text": "colors has changed"}));
}
