//! Tests plugins that learn at run time which kinds they handle.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{mock::MockHost, prelude::*};
use serde_json::json;

#[derive(serde::Serialize, serde::Deserialize)]
struct Config {
    api_version: String,
    kind: String,
}

fn backups() -> TypeMeta {
    TypeMeta::new("example.com/v1", "Backup")
}

fn volumes() -> TypeMeta {
    TypeMeta::new("example.com/v1", "Volume")
}

fn object(of: TypeMeta, name: &str, spec: serde_json::Value) -> Dynamic {
    let mut object = Dynamic::new(of, name);
    object.metadata.namespace = Some("db".into());
    object.data["spec"] = spec;
    object
}

/// Makes a Volume for each object of the configured kind, of the size that a ConfigMap names.
fn plugin(config: Config) -> Result<Plugin, Error> {
    let of = TypeMeta::new(config.api_version, config.kind);
    let reconcile = |ctx: &Context, backup: &Dynamic| {
        let sizes = ctx.cache().get::<ConfigMap>(ctx.key().beside("sizes"))?;
        let size = sizes.and_then(|sizes| sizes.data).and_then(|data| data.get(backup.name()).cloned());
        let existing = ctx.cache().list_dynamic(volumes()).beside(ctx.key()).keys().count();
        let mut volume = Dynamic::new(volumes(), backup.name());
        volume.data["spec"] = json!({"size": size, "keep": backup.data["spec"]["keep"]});
        Ok(Outcome::new().child(volume).status(json!({"volumes": existing})))
    };
    let seen = |_: &ObserverContext, seen: &Observed<Dynamic>| {
        info!("seen", volume = seen.change.key(), keep = seen.change.latest().data["spec"]["keep"]);
        Ok(())
    };
    let controller = Controller::to(of)
        .owns_with(Watch::to(volumes()))
        .reads::<ConfigMap>()
        .watches_with(Watch::to(TypeMeta::new("example.com/v1", "Schedule")), Mapping::same_key())
        .reconcile(reconcile);
    Ok(Plugin::new("Makes volumes.").controller(controller).observe(Watch::to(volumes()), seen))
}

#[test]
fn a_kind_from_the_configuration_is_reconciled_and_its_children_are_observed() {
    let config = Config { api_version: "example.com/v1".into(), kind: "Backup".into() };
    let mut host = MockHost::configured(plugin, config).with(object(backups(), "nightly", json!({"keep": 7})));
    let outcome = host.settle(("db", "nightly")).unwrap();
    assert_eq!(outcome.status::<serde_json::Value>(), json!({"volumes": 1}));
    let volume = host.get_dynamic(&volumes(), ("db", "nightly")).unwrap();
    assert_eq!(volume.data["spec"]["keep"], 7);
    assert_eq!(volume.metadata.owner_references.as_ref().unwrap()[0].kind, "Backup");
    assert_eq!(outcome.children_of(&volumes()).len(), 1);

    host.observe().unwrap();
    assert_eq!(host.lines().last().unwrap().message, "seen");

    let schedule = object(TypeMeta::new("example.com/v1", "Schedule"), "nightly", json!({}));
    assert_eq!(host.woken_by(|host| host.put(schedule)), [Key::new("db", "nightly")]);
    assert_eq!(
        host.woken_by(|host| drop(host.remove_dynamic(&volumes(), ("db", "nightly")))),
        [Key::new("db", "nightly")]
    );
}

#[test]
fn a_dynamic_object_is_what_a_typed_one_is() {
    let mut map = ConfigMap::default();
    map.metadata.name = Some("m".into());
    map.data = Some([("a".to_owned(), "b".to_owned())].into());
    let dynamic: Dynamic = serde_json::from_str(&map.to_json().unwrap()).unwrap();
    assert_eq!(dynamic.type_meta(), ConfigMap::type_meta());
    assert_eq!(dynamic.data, json!({"data": {"a": "b"}}));
    assert_eq!(dynamic.decode::<ConfigMap>().unwrap(), map);
    // An object without anything else has empty data.
    let bare: Dynamic = serde_json::from_str(r#"{"apiVersion":"v1","kind":"Pod"}"#).unwrap();
    assert_eq!((bare.name(), &bare.data), ("", &json!({})));
}

#[test]
fn a_pattern_observes_the_kinds_that_are_not_observed_by_name() {
    fn plugin() -> Plugin {
        fn named(_: &ObserverContext, seen: &Observed<ConfigMap>) -> Result<(), Error> {
            info!("named", name = seen.change.latest().name());
            Ok(())
        }
        fn any(_: &ObserverContext, seen: &Observed<Dynamic>) -> Result<(), Error> {
            info!("any", name = seen.change.latest().name());
            Ok(())
        }
        fn group(_: &ObserverContext, seen: &Observed<Dynamic>) -> Result<(), Error> {
            info!("group", name = seen.change.latest().name(), spec = seen.change.latest().data["spec"].is_null());
            Ok(())
        }
        Plugin::new("Observes.")
            .observe(Watch::group("example.com").except([volumes()]).metadata_only(), group)
            .observe(Watch::all().except([TypeMeta::new("v1", "Secret")]), any)
            .observe(Watch::of::<ConfigMap>(), named)
    }
    let mut map = ConfigMap::default();
    map.metadata.name = Some("m".into());
    let mut host = MockHost::new(plugin)
        .with(map)
        .with(object(backups(), "nightly", json!({"keep": 7})))
        .with(object(volumes(), "data", json!({})))
        .with(object(TypeMeta::new("v1", "Secret"), "token", json!({})));
    host.observe().unwrap();
    let lines: Vec<_> = host.lines().into_iter().map(|line| (line.message, line.fields[0].1.clone())).collect();
    let line = |what: &str, name: &str| (what.to_owned(), name.to_owned());
    assert_eq!(lines, [line("named", "m"), line("group", "nightly"), line("any", "data")]);
}

#[test]
#[should_panic(expected = "must name one kind: only `observes` takes patterns")]
fn a_controller_takes_no_pattern() {
    fn plugin() -> Plugin {
        let controller = Controller::to(backups()).reads_with(Watch::group("apps"));
        Plugin::new("Reads.").controller(controller.reconcile(|_: &Context, _: &Dynamic| Ok(Outcome::new())))
    }
    MockHost::new(plugin);
}
