//! Tests plugins whose reconciles ask for watches.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pilothouse_sdk::{mock::MockHost, prelude::*};
use serde_json::json;

const M: (&str, &str) = ("default", "m");

fn backups() -> TypeMeta {
    TypeMeta::new("example.com/v1", "Backup")
}

fn backup(name: &str) -> Dynamic {
    let mut backup = Dynamic::new(backups(), name);
    backup.metadata.namespace = Some("default".into());
    backup
}

/// Names the kinds that the plugin counts.
fn names(kinds: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    (map.metadata.namespace, map.metadata.name) = (Some("default".into()), Some("m".into()));
    map.data = Some([("kinds".to_owned(), kinds.to_owned())].into());
    map
}

/// Counts the objects of each kind that the ConfigMap names.
fn plugin() -> Plugin {
    let reconcile = |ctx: &Context, map: &ConfigMap| {
        let kinds = map.data.iter().flatten().flat_map(|(_, kinds)| kinds.split_whitespace());
        let kinds: Vec<TypeMeta> =
            kinds.filter_map(|kind| kind.rsplit_once('/')).map(|(of, kind)| TypeMeta::new(of, kind)).collect();
        let counted = kinds.iter().map(|of| {
            let keys: Result<Vec<_>, _> = ctx.cache().list_dynamic(of.clone()).keys().collect();
            keys.map_or_else(|error| error.to_string(), |keys| keys.len().to_string())
        });
        let status = json!({"counted": counted.collect::<Vec<_>>()});
        Ok(Outcome::new().watches(kinds.into_iter().map(Watch::to)).status(status))
    };
    Plugin::new("Counts.")
        .controller(Controller::of::<ConfigMap>().reconcile(reconcile))
        .permission(Permission::to(TypeMeta::new("example.com/*", "*")).verbs([Verb::Read]))
        .permission(Permission::of::<Secret>().verbs([Verb::Read]))
}

fn counted(host: &mut MockHost) -> Vec<String> {
    let status: serde_json::Value = host.settle(M).unwrap().status();
    serde_json::from_value(status["counted"].clone()).unwrap()
}

#[test]
fn what_a_key_asks_for_is_cached_and_wakes_it_until_it_asks_for_less() {
    let mut host = MockHost::new(plugin).with(names("example.com/v1/Backup")).with(backup("a"));
    assert_eq!(host.reconcile(M).unwrap().watches(), [backups()]);
    assert_eq!(counted(&mut host), ["1"]);
    assert_eq!(host.woken_by(|host| host.put(backup("b"))), [Key::from(M)]);
    assert_eq!(counted(&mut host), ["2"]);

    host.put(names(""));
    assert_eq!(counted(&mut host), [""; 0]);
    assert_eq!(host.woken_by(|host| host.put(backup("c"))), []);
}

#[test]
fn a_kind_that_is_not_granted_is_refused_in_words() {
    let mut host =
        MockHost::new(plugin).with(names("v1/Pod v1/Secret")).refuse(Permission::of::<Secret>().verbs([Verb::Read]));
    let counted = counted(&mut host);
    assert!(
        counted[0].contains("not granted: read v1 Pod in all namespaces: the plugin's manifest does not ask for it"),
        "{counted:?}"
    );
    assert!(
        counted[1]
            .contains("not granted: read v1 Secret in all namespaces: the administrator's file does not allow it"),
        "{counted:?}"
    );
}

#[test]
fn too_many_and_broken_watches_are_refused() {
    let many: Vec<String> = (0..65).map(|number| format!("example.com/v1/Kind{number}")).collect();
    let host = MockHost::new(plugin).with(names(&many.join(" ")));
    let refused = host.reconcile(M).unwrap_err().message;
    assert!(refused.contains("65 watches are more than the 64 that a key may ask for"), "{refused}");
    let host = MockHost::new(plugin).with(names("example.com/v1/*"));
    let refused = host.reconcile(M).unwrap_err().message;
    assert!(refused.contains("watches[0]: of.kind: must name one kind: only `observes` takes patterns"), "{refused}");
}

#[test]
fn an_outcome_without_watches_leaves_them_as_they_are() {
    fn keeps() -> Plugin {
        let reconcile = |ctx: &Context, map: &ConfigMap| {
            let count = ctx.cache().list_dynamic(backups()).keys().filter(Result::is_ok).count();
            let outcome = Outcome::new().status(json!({"count": count}));
            Ok(if map.data.is_some() { outcome.watch(Watch::to(backups())) } else { outcome })
        };
        let permission = Permission::to(backups()).verbs([Verb::Read]);
        Plugin::new("Keeps.").controller(Controller::of::<ConfigMap>().reconcile(reconcile)).permission(permission)
    }
    let mut host = MockHost::new(keeps).with(names("")).with(backup("a"));
    assert_eq!(host.settle(M).unwrap().status::<serde_json::Value>(), json!({"count": 1}));
    host.edit::<ConfigMap>(M, |map| map.data = None);
    let outcome = host.settle(M).unwrap();
    assert!(outcome.leaves_watches());
    assert_eq!(outcome.status::<serde_json::Value>(), json!({"count": 1}));
}
