#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::time::Duration;

use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    rate::Rate,
    workqueue::{Limits as Backoff, Pace},
};

fn asks(api_version: &str, kind: &str, verbs: &[Verb]) -> Permission {
    Permission {
        of: TypeMeta::new(api_version, kind),
        subresource: None,
        verbs: verbs.iter().copied().collect(),
        namespaces: Vec::new(),
        names: Vec::new(),
    }
}

fn in_namespaces(permission: Permission, namespaces: &[&str]) -> Permission {
    Permission { namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(), ..permission }
}

fn of_names(permission: Permission, names: &[&str]) -> Permission {
    Permission { names: names.iter().map(|&name| name.to_owned()).collect(), ..permission }
}

fn file(yaml: &str) -> Result<AdminFile, String> {
    serde_saphyr::from_str(yaml).map_err(|error| error.to_string())
}

fn rules(yaml: &str) -> Vec<GrantRule> {
    file(&format!("grants: {yaml}")).unwrap().grants
}

/// A plugin for apples that asks for what it needs and is allowed it.
fn apples() -> Grants {
    let asked = [
        asks("stable.example.com/v1", "MyApple", &[Verb::Read]),
        Permission {
            subresource: Some(Subresource::Status),
            ..asks("stable.example.com/v1", "MyApple", &[Verb::Apply])
        },
        in_namespaces(asks("v1", "ConfigMap", &[Verb::Read, Verb::Apply, Verb::Delete]), &["a", "b"]),
        of_names(asks("v1", "Secret", &[Verb::Read]), &["token"]),
    ];
    let allowed = rules(
        "
        - { apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read] }
        - { apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply] }
        - { apiVersion: v1, kind: ConfigMap, verbs: [read, apply], namespaces: [b, c] }
        - { apiVersion: v1, kind: Secret, verbs: [read, create], names: [token, other] }
        - { apiVersion: v1, kind: Pod, verbs: ['*'] }",
    );
    Grants::new(&asked, &allowed)
}

/// What is tried: verb, apiVersion, kind, subresource, namespace, name.
type Try = (Verb, &'static str, &'static str, Option<Subresource>, Option<&'static str>, Option<&'static str>);

fn check(grants: &Grants, (verb, api_version, kind, subresource, namespace, name): Try) -> Result<(), LackedBy> {
    let of = TypeMeta::new(api_version, kind);
    grants.check(verb, &of, subresource, namespace, name).map_err(|denied| denied.by)
}

#[test]
fn the_same_rules_allow_another_what_it_asks_for() {
    let other = apples().for_asked(&[asks("v1", "Pod", &[Verb::Read])], &[]);
    assert_eq!(check(&other, (Verb::Read, "v1", "Pod", None, Some("a"), None)), Ok(()));
    assert_eq!(
        check(&other, (Verb::Read, "stable.example.com/v1", "MyApple", None, None, None)),
        Err(LackedBy::Manifest)
    );
    let none = other.for_asked(&[asks("v1", "Node", &[Verb::Read])], &[]);
    assert_eq!(check(&none, (Verb::Read, "v1", "Node", None, None, None)), Err(LackedBy::Administrator));
}

/// Each pair: something that is allowed, and its nearest neighbour that is not.
#[test]
fn invariant_7_what_both_sides_name_is_allowed_and_its_neighbour_is_not() {
    const APPLES: &str = "stable.example.com/v1";
    const STATUS: Option<Subresource> = Some(Subresource::Status);
    let pairs: [(Try, Try, LackedBy); 9] = [
        (
            (Verb::Read, APPLES, "MyApple", None, Some("a"), Some("red")),
            (Verb::Update, APPLES, "MyApple", None, Some("a"), Some("red")),
            LackedBy::Manifest,
        ),
        (
            (Verb::Read, APPLES, "MyApple", None, None, None),
            (Verb::Read, "stable.example.com/v2", "MyApple", None, None, None),
            LackedBy::Manifest,
        ),
        (
            (Verb::Apply, APPLES, "MyApple", STATUS, Some("a"), Some("red")),
            (Verb::Apply, APPLES, "MyApple", None, Some("a"), Some("red")),
            LackedBy::Manifest,
        ),
        (
            (Verb::Apply, APPLES, "MyApple", STATUS, Some("a"), Some("red")),
            (Verb::Apply, APPLES, "MyApple", Some(Subresource::Scale), Some("a"), Some("red")),
            LackedBy::Manifest,
        ),
        (
            (Verb::Apply, "v1", "ConfigMap", None, Some("b"), Some("red-0")),
            (Verb::Apply, "v1", "ConfigMap", None, Some("a"), Some("red-0")),
            LackedBy::Administrator,
        ),
        (
            (Verb::Read, "v1", "ConfigMap", None, Some("b"), None),
            (Verb::Read, "v1", "ConfigMap", None, Some("c"), None),
            LackedBy::Manifest,
        ),
        (
            (Verb::Read, "v1", "ConfigMap", None, Some("b"), Some("red-0")),
            // All namespaces, or none.
            (Verb::Read, "v1", "ConfigMap", None, None, Some("red-0")),
            LackedBy::Manifest,
        ),
        (
            (Verb::Apply, "v1", "ConfigMap", None, Some("b"), Some("red-0")),
            (Verb::Delete, "v1", "ConfigMap", None, Some("b"), Some("red-0")),
            LackedBy::Administrator,
        ),
        (
            (Verb::Read, "v1", "Secret", None, Some("a"), Some("token")),
            (Verb::Read, "v1", "Secret", None, Some("a"), Some("other")),
            LackedBy::Manifest,
        ),
    ];
    for (allowed, denied, by) in pairs {
        assert_eq!(check(&apples(), allowed), Ok(()), "{allowed:?}");
        assert_eq!(check(&apples(), denied), Err(by), "{denied:?}");
    }
}

#[test]
fn invariant_7_what_is_allowed_and_not_asked_is_denied() {
    assert_eq!(check(&apples(), (Verb::Read, "v1", "Pod", None, Some("a"), Some("x"))), Err(LackedBy::Manifest));
    let asked =
        Grants::new(&[asks("v1", "Pod", &[Verb::Read])], &rules("[{ apiVersion: v1, kind: Pod, verbs: ['*'] }]"));
    assert_eq!(check(&asked, (Verb::Read, "v1", "Pod", None, Some("a"), Some("x"))), Ok(()));
}

#[test]
fn invariant_7_nothing_is_allowed_by_default() {
    let asked = [asks("v1", "Pod", &Verb::ALL)];
    let by_default = Grants::new(&asked, &AdminFile::default().grants);
    let in_dev = Grants::all_asked(&asked);
    for verb in Verb::ALL {
        let read = (verb, "v1", "Pod", None, Some("a"), Some("x"));
        assert_eq!(check(&by_default, read), Err(LackedBy::Administrator));
        assert_eq!(check(&in_dev, read), Ok(()));
        assert_eq!(check(&in_dev, (verb, "v1", "Node", None, None, Some("x"))), Err(LackedBy::Manifest));
    }
}

#[test]
fn invariant_7_a_request_without_a_name_needs_a_grant_without_names() {
    let list = (Verb::Read, "v1", "Secret", None, Some("a"), None);
    assert_eq!(check(&apples(), list), Err(LackedBy::Manifest));
    let asked = [asks("v1", "Secret", &[Verb::Read])];
    let of_one = Grants::new(&asked, &rules("[{ apiVersion: v1, kind: Secret, verbs: [read], names: [token] }]"));
    assert_eq!(check(&of_one, list), Err(LackedBy::Administrator));
    let of_all = Grants::new(&asked, &rules("[{ apiVersion: v1, kind: Secret, verbs: [read] }]"));
    assert_eq!(check(&of_all, list), Ok(()));
}

#[test]
fn invariant_7_stars_reach_no_further_than_their_api_version() {
    let asked = [asks("v1", "Pod", &[Verb::Read]), asks("apps/v1", "Deployment", &[Verb::Read])];
    let grants = Grants::new(&asked, &rules("[{ apiVersion: v1, kind: '*', verbs: ['*'] }]"));
    assert_eq!(check(&grants, (Verb::Read, "v1", "Pod", None, Some("a"), None)), Ok(()));
    assert_eq!(
        check(&grants, (Verb::Read, "apps/v1", "Deployment", None, Some("a"), None)),
        Err(LackedBy::Administrator)
    );
}

#[test]
fn invariant_7_a_star_for_status_is_not_one_for_objects() {
    let status = Permission { subresource: Some(Subresource::Status), ..asks("v1", "Pod", &[Verb::Apply]) };
    let grants = Grants::new(
        &[status, asks("v1", "Pod", &[Verb::Apply])],
        &rules("[{ apiVersion: v1, kind: '*/status', verbs: [apply] }]"),
    );
    assert_eq!(check(&grants, (Verb::Apply, "v1", "Pod", Some(Subresource::Status), Some("a"), Some("x"))), Ok(()));
    assert_eq!(check(&grants, (Verb::Apply, "v1", "Pod", None, Some("a"), Some("x"))), Err(LackedBy::Administrator));
}

#[test]
fn readable_namespaces_are_those_of_both_sides() {
    let read = |asked: &[&[&str]], allowed: &[&str]| {
        let asked: Vec<_> = asked.iter().map(|asked| in_namespaces(asks("v1", "Pod", &[Verb::Read]), asked)).collect();
        let allowed: Vec<_> = allowed
            .iter()
            .flat_map(|namespaces| rules(&format!("[{{ apiVersion: v1, kind: Pod, verbs: [read]{namespaces} }}]")))
            .collect();
        Grants::new(&asked, &allowed).readable_namespaces(&TypeMeta::new("v1", "Pod"))
    };
    let some = |names: &[&str]| Namespaces::Some(names.iter().map(|&name| name.to_owned()).collect());
    assert_eq!(read(&[&[]], &[""]), Namespaces::All);
    assert_eq!(read(&[&[]], &[", namespaces: [b, a]", ", namespaces: [c]"]), some(&["a", "b", "c"]));
    assert_eq!(read(&[&["a"], &["b", "c"]], &[""]), some(&["a", "b", "c"]));
    assert_eq!(read(&[&["a", "b"]], &[", namespaces: [b, c]"]), some(&["b"]));
    assert_eq!(read(&[&["a"]], &[", namespaces: [b]"]), Namespaces::None);
    assert_eq!(read(&[&[]], &[]), Namespaces::None);
    assert_eq!(read(&[], &[""]), Namespaces::None);
    assert_eq!(
        Grants::all_asked(&[in_namespaces(asks("v1", "Pod", &[Verb::Read]), &["a"])])
            .readable_namespaces(&TypeMeta::new("v1", "Pod")),
        some(&["a"])
    );
    assert_eq!(
        Grants::all_asked(&[asks("v1", "Pod", &[Verb::Apply])]).readable_namespaces(&TypeMeta::new("v1", "Pod")),
        Namespaces::None
    );
}

#[test]
fn a_denial_names_the_permission_its_plugin_and_the_line_to_write() {
    let denied = |(verb, api_version, kind, subresource, namespace, name): Try| {
        let of = TypeMeta::new(api_version, kind);
        apples().check(verb, &of, subresource, namespace, name).unwrap_err().to_string()
    };
    assert_snapshot!(denied((Verb::Delete, "v1", "ConfigMap", None, Some("b"), Some("red-0"))), @"not granted: delete v1 ConfigMap b/red-0: the administrator's file does not allow it; add under grants: - { apiVersion: v1, kind: ConfigMap, verbs: [delete], namespaces: [b] }");
    assert_snapshot!(denied((Verb::Create, "v1", "ConfigMap", None, Some("true"), None)), @r#"not granted: create v1 ConfigMap in namespace true: the plugin's manifest does not ask for it; it must have a permission like { apiVersion: v1, kind: ConfigMap, verbs: [create], namespaces: ["true"] }"#);
    assert_snapshot!(denied((Verb::Apply, "stable.example.com/v1", "MyApple", Some(Subresource::Scale), None, Some("red"))), @"not granted: apply stable.example.com/v1 MyApple/scale red: the plugin's manifest does not ask for it; it must have a permission like { apiVersion: stable.example.com/v1, kind: MyApple/scale, verbs: [apply] }");
    assert_snapshot!(denied((Verb::Read, "v1", "Node", None, None, None)), @"not granted: read v1 Node in all namespaces: the plugin's manifest does not ask for it; to read the cache, name the kind in `reads` of the controller; for a request, it must have a permission like { apiVersion: v1, kind: Node, verbs: [read] }");
}

#[test]
fn refused_is_what_is_asked_and_not_allowed_everywhere() {
    let lines: Vec<_> = apples().refused().iter().map(Refused::to_string).collect();
    assert_snapshot!(lines.join("\n"), @r"
    read, apply v1 ConfigMap in a
    delete v1 ConfigMap in a, b
    ");

    let asked = [
        asks("v1", "Pod", &[Verb::Read, Verb::Apply, Verb::Delete]),
        of_names(asks("v1", "Secret", &[Verb::Read]), &["a", "b"]),
    ];
    let allowed = rules(
        "
        - { apiVersion: v1, kind: Pod, verbs: [read, apply], namespaces: [x] }
        - { apiVersion: v1, kind: Pod, verbs: [read, apply], namespaces: [y] }
        - { apiVersion: v1, kind: Secret, verbs: [read], names: [a] }",
    );
    let lines: Vec<_> = Grants::new(&asked, &allowed).refused().iter().map(Refused::to_string).collect();
    assert_snapshot!(lines.join("\n"), @r"
    delete v1 Pod
    read, apply v1 Pod everywhere (allowed in x, y)
    read v1 Secret named a, b
    ");
    assert_eq!(Grants::all_asked(&asked).refused(), []);
}

#[test]
fn the_yaml_block_grants_what_is_asked() {
    let apples = apples();
    assert_snapshot!(Grants::yaml_of(&apples.asked), @r"
    grants:
      - { apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read] }
      - { apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply] }
      - { apiVersion: v1, kind: ConfigMap, verbs: [read, apply, delete], namespaces: [a, b] }
      - { apiVersion: v1, kind: Secret, verbs: [read], names: [token] }
    ");
    assert_snapshot!(Grants::yaml_of(&[of_names(in_namespaces(asks("v1", "Pod", &[Verb::Read]), &["on", "1e3"]), &["system:x"])]), @r#"
    grants:
      - { apiVersion: v1, kind: Pod, verbs: [read], namespaces: ["on", "1e3"], names: ["system:x"] }
    "#);
    assert_eq!(Grants::yaml_of(&[]), "grants: []\n");
}

#[test]
fn a_whole_file_is_read() {
    let yaml = "
enabled: false
identity: orchard
config: { greeting: hello, times: 3 }
webhooks: [images]
grants:
  - apiVersion: apps/v1
    kind: Deployment/scale
    verbs: [read, patch]
    namespaces: [default]
    names: [web]
limits: { memoryMiB: 64, totalMemoryMiB: 256, watches: 128, timeoutMs: 500, hostCalls: 1000, hostMiB: 16, reuse: false, maxConcurrency: 2, cpuWeight: 50, cpuMilli: 250,
          reconcilesPerSecond: 4, requestsPerSecond: 20, httpRequestsPerSecond: 10, metricSeries: 500, backoffBaseMs: 100, backoffCapMs: 60000 }
";
    let expected = AdminFile {
        enabled: false,
        identity: Some("orchard".to_owned()),
        service_account: None,
        config: json!({"greeting": "hello", "times": 3}),
        grants: vec![GrantRule {
            api_version: "apps/v1".to_owned(),
            kinds: Kinds::One("Deployment".to_owned()),
            parts: Parts::One(Subresource::Scale),
            verbs: [Verb::Read, Verb::Patch].into(),
            namespaces: vec!["default".to_owned()],
            names: vec!["web".to_owned()],
        }],
        http: Vec::new(),
        webhooks: vec!["images".to_owned()],
        limits: Limits {
            memory_mib: Some(64.try_into().unwrap()),
            total_memory_mib: Some(256.try_into().unwrap()),
            watches: Some(128.try_into().unwrap()),
            metric_series: Some(500.try_into().unwrap()),
            timeout_ms: Some(500.try_into().unwrap()),
            host_calls: Some(1000.try_into().unwrap()),
            host_mib: Some(16.try_into().unwrap()),
            reuse: Some(false),
            max_concurrency: Some(2.try_into().unwrap()),
            cpu_weight: Some(50.try_into().unwrap()),
            cpu_milli: Some(250.try_into().unwrap()),
            reconciles_per_second: Some(4.try_into().unwrap()),
            requests_per_second: Some(20.try_into().unwrap()),
            http_requests_per_second: Some(10.try_into().unwrap()),
            backoff_base_ms: Some(100.try_into().unwrap()),
            backoff_cap_ms: Some(60_000.try_into().unwrap()),
        },
    };
    let pace = Pace {
        backoff: Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(60) },
        rate: Some(Rate { burst: 4, every: Duration::from_millis(250) }),
    };
    assert_eq!(expected.limits.pace(), pace);
    assert_eq!(Limits::default().pace(), Pace::default());
    assert_eq!(expected.limits.requests(), Some(Rate { burst: 20, every: Duration::from_millis(50) }));
    assert_eq!(expected.limits.http_requests(), Some(Rate { burst: 10, every: Duration::from_millis(100) }));
    assert_eq!(file(yaml), Ok(expected.clone()));
    let as_json = json!({
        "enabled": false, "identity": "orchard", "config": {"greeting": "hello", "times": 3},
        "grants": [{"apiVersion": "apps/v1", "kind": "Deployment/scale", "verbs": ["read", "patch"], "namespaces": ["default"], "names": ["web"]}],
        "webhooks": ["images"],
        "limits": {"memoryMiB": 64, "totalMemoryMiB": 256, "watches": 128, "timeoutMs": 500, "hostCalls": 1000, "hostMiB": 16, "reuse": false, "maxConcurrency": 2, "cpuWeight": 50, "cpuMilli": 250,
                   "reconcilesPerSecond": 4, "requestsPerSecond": 20, "httpRequestsPerSecond": 10, "metricSeries": 500, "backoffBaseMs": 100, "backoffCapMs": 60000},
    });
    assert_eq!(serde_json::from_value::<AdminFile>(as_json).unwrap(), expected);
}

#[test]
fn missing_settings_have_their_defaults() {
    for yaml in ["", "{}", "# nothing\n", "config:\ngrants:\nlimits:\n", "enabled: true"] {
        assert_eq!(file(yaml), Ok(AdminFile::default()), "{yaml:?}");
    }
}

#[test]
fn invariant_7_a_key_without_a_value_grants_and_loosens_nothing() {
    let refused = |yaml: &str| file(yaml).unwrap_err().lines().next().unwrap_or_default().to_owned();
    let rule = |rest: &str| refused(&format!("grants:\n- apiVersion: v1\n  kind: Secret\n  {rest}\n"));
    for list in ["namespaces", "names"] {
        for null in ["", " null", " ~", "\n  # - default"] {
            let message = rule(&format!("verbs: [read]\n  {list}:{null}"));
            assert!(
                message.contains(&format!("{list} is null: leave the key out to grant all")),
                "{null:?}: {message}"
            );
        }
        for null in ["['']", "[a, null]", "[~]", "\n  -"] {
            let message = rule(&format!("verbs: [read]\n  {list}: {null}"));
            assert!(message.contains(&format!("{list} has an entry that is empty or null")), "{null:?}: {message}");
        }
    }
    for verbs in ["", " null", " ~", " [null]", " ['']"] {
        rule(&format!("verbs:{verbs}"));
    }
    for yaml in ["apiVersion: v1\n  kind:\n  verbs: [read]", "apiVersion:\n  kind: Pod\n  verbs: [read]"] {
        refused(&format!("grants:\n- {yaml}\n"));
    }
    refused("grants:\n-\n");
    refused("grants: [null]");
    refused("enabled:\n");
    for null in ["", " null", " ~", " [null]", " images"] {
        refused(&format!("webhooks:{null}\n"));
    }
    // Each bound that the file knows.
    let known = refused("limits: { none: 1 }");
    let known: Vec<&str> = known.split_once("expected one of ").unwrap().1.split(", ").collect();
    assert!(known.len() >= 12, "{known:?}");
    for limit in known {
        for null in ["", " null", " ~"] {
            refused(&format!("limits:\n  {limit}:{null}\n"));
        }
    }
    let json = json!({"grants": [{"apiVersion": "v1", "kind": "Secret", "verbs": ["read"], "names": null}]});
    assert!(serde_json::from_value::<AdminFile>(json).is_err());
}

/// Each line: what the manifest asks for, what the file allows, what is then readable, and what is not.
#[test]
fn invariant_7_a_pattern_grants_the_kinds_that_both_sides_select() {
    let kinds = |kinds: &[(&str, &str)]| kinds.iter().map(|(v, kind)| asks(v, kind, &[Verb::Read])).collect::<Vec<_>>();
    let (pods, secrets) = (("v1", "Pod"), ("v1", "Secret"));
    let (sets, old_sets) = (("apps/v1", "ReplicaSet"), ("apps/v1beta2", "ReplicaSet"));
    let apples = ("stable.example.com/v1", "MyApple");
    let all = [pods, secrets, sets, old_sets, apples];
    for (asked, allowed, readable) in [
        (("*", "*"), ("*", "*"), &all[..]),
        (("*", "*"), pods, &[pods]),
        (pods, ("*", "*"), &[pods]),
        (("apps/*", "*"), ("*", "*"), &[sets, old_sets]),
        (("*", "*"), ("apps/*", "*"), &[sets, old_sets]),
        (("apps/v1", "*"), ("apps/*", "*"), &[sets]),
        (("apps/*", "*"), ("v1", "*"), &[]),
        // `v1` is the core group, and no version of another one.
        (("*", "*"), ("v1", "*"), &[pods, secrets]),
    ] {
        let rule = file(&Grants::yaml_of(&kinds(&[allowed]))).unwrap().grants;
        let grants = Grants::new(&kinds(&[asked]), &rule);
        for of in all {
            let may = readable.contains(&of);
            let kind = TypeMeta::new(of.0, of.1);
            assert_eq!(grants.may_see(&kind, &Key::new(Some("a"), "b")), may, "{asked:?} {allowed:?} {kind}");
            assert_eq!(grants.readable(&kind).is_empty(), !may, "{asked:?} {allowed:?} {kind}");
        }
        // A pattern of reads grants no write, and no part of an object.
        let write = (Verb::Patch, "apps/v1", "ReplicaSet", None, None, None);
        let status = (Verb::Read, "apps/v1", "ReplicaSet", Some(Subresource::Status), None, None);
        assert!(check(&grants, write).is_err() && check(&grants, status).is_err());
    }
    for wrong in ["'apps/**'", "'*/v1'", "'*/*'", "'a*/*'", "'/*'"] {
        let refused = file(&format!("grants: [{{ apiVersion: {wrong}, kind: '*', verbs: [read] }}]")).unwrap_err();
        assert!(refused.contains("is no pattern"), "{refused}");
    }
    let refused = file("grants: [{ apiVersion: 'apps/*', kind: Deployment, verbs: [read] }]").unwrap_err();
    assert!(refused.contains(r#"apiVersion "apps/*" needs kind "*": name the version of Deployment"#), "{refused}");
}

#[test]
fn invariant_7_what_may_be_seen_is_what_may_be_read() {
    let secrets = TypeMeta::new("v1", "Secret");
    let seen = |name| apples().may_see(&secrets, &Key::new(Some("a"), name));
    assert_eq!([seen("token"), seen("other")], [true, false]);
    // A cluster-scoped object is in none of the namespaces.
    assert!(!apples().may_see(&TypeMeta::new("v1", "ConfigMap"), &Key::new(None, "red")));
    // May be written, and not be seen.
    let blind = Grants::all_asked(&[asks("v1", "Secret", &[Verb::Apply, Verb::Patch, Verb::Create])]);
    assert!(!blind.may_see(&secrets, &Key::new(Some("a"), "token")));
}

#[test]
fn readable_is_what_both_sides_name() {
    let secrets = TypeMeta::new("v1", "Secret");
    let asked = [
        of_names(asks("v1", "Secret", &[Verb::Read]), &["a", "b"]),
        in_namespaces(asks("v1", "Secret", &[Verb::Read]), &["x"]),
    ];
    let read = |allowed: &str| {
        let readable = Grants::new(&asked, &rules(allowed)).readable(&secrets);
        readable
            .into_iter()
            .map(|Readable { namespaces, names }| format!("{namespaces:?} {names:?}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(read("[{ apiVersion: v1, kind: Secret, verbs: [read] }]"), [r#"[] ["a", "b"]"#, r#"["x"] []"#]);
    assert_eq!(
        read("[{ apiVersion: v1, kind: Secret, verbs: [read], names: [b, c], namespaces: [x, y] }]"),
        [r#"["x", "y"] ["b"]"#, r#"["x"] ["b", "c"]"#]
    );
    // Nothing in common: not everything.
    assert_eq!(read("[{ apiVersion: v1, kind: Secret, verbs: [read], names: [c], namespaces: [y] }]"), [""; 0]);
    assert_eq!(Grants::all_asked(&asked).readable(&secrets).len(), 2);
    let apart = rules("[{ apiVersion: v1, kind: Secret, verbs: [read], names: [c], namespaces: [y] }]");
    assert_eq!(Grants::new(&asked, &apart).readable_namespaces(&secrets), Namespaces::None);
}

#[test]
fn names_are_looked_for_one_by_one_and_all_together_where_they_are_many() {
    let asked = [asks("v1", "Secret", &[Verb::Read])];
    let scopes = |watch: &Watch, allowed: &str, most| {
        let scopes = Grants::new(&asked, &rules(allowed)).scopes(watch, most);
        let text = |Scope { namespace, name }: Scope| {
            format!("{}/{}", namespace.as_deref().unwrap_or("*"), name.as_deref().unwrap_or("*"))
        };
        scopes.into_iter().map(text).collect::<Vec<_>>().join(" ")
    };
    let rule = |rest: &str| format!("[{{ apiVersion: v1, kind: Secret, verbs: [read]{rest} }}]");
    let all = Watch::all(TypeMeta::new("v1", "Secret"));
    assert_eq!(scopes(&all, &rule(""), 64), "*/*");
    assert_eq!(scopes(&all, &rule(", names: [b, a, b]"), 64), "*/a */b");
    assert_eq!(scopes(&all, &rule(", names: [a, b], namespaces: [x, y]"), 4), "x/a x/b y/a y/b");
    assert_eq!(scopes(&all, &rule(", names: [a, b], namespaces: [x, y]"), 3), "x/* y/*");
    assert_eq!(scopes(&all, &rule(", names: [a, b]"), 1), "*/*");
    assert_eq!(scopes(&all, "[]", 64), "");
    // What is granted whole needs no names, and what is granted everywhere no namespaces.
    let mixed = "
        - { apiVersion: v1, kind: Secret, verbs: [read], names: [a], namespaces: [x, y] }
        - { apiVersion: v1, kind: Secret, verbs: [read], names: [b] }
        - { apiVersion: v1, kind: Secret, verbs: [read], names: [b, c], namespaces: [z] }
        - { apiVersion: v1, kind: Secret, verbs: [read], namespaces: [x] }";
    assert_eq!(scopes(&all, mixed, 64), "x/* */b y/a z/c");
    // The manifest narrows it further.
    let some = Watch { namespaces: vec!["x".to_owned()], ..all.clone() };
    assert_eq!(scopes(&some, &rule(", names: [a]"), 64), "x/a");
    assert_eq!(scopes(&some, &rule(", names: [a], namespaces: [y]"), 64), "");
    let fields = |text| Watch { fields: Some(crate::selector::FieldSelector::parse(text).unwrap()), ..all.clone() };
    assert_eq!(scopes(&fields("metadata.name=a"), &rule(", names: [a, b]"), 64), "*/a");
    assert_eq!(scopes(&fields("metadata.name!=a"), &rule(", names: [a, b]"), 64), "*/b");
    assert_eq!(scopes(&fields("metadata.name=c"), &rule(", names: [a, b]"), 0), "");
    assert_eq!(scopes(&fields("type=Opaque"), &rule(", names: [a]"), 64), "*/a");
}

#[test]
fn mistakes_in_a_file_are_named() {
    let wrong = |yaml: &str| file(yaml).unwrap_err();
    let grant = |rest: &str| wrong(&format!("grants:\n  - {{ apiVersion: v1, kind: Pod, {rest} }}\n"));
    assert_snapshot!(wrong("enable: true"), @r"
    error: line 1 column 1: unknown field `enable`, expected one of enabled, identity, serviceAccount, config, grants, http, webhooks, limits
     --> <input>:1:1
      |
    1 | enable: true
      | ^ unknown field `enable`, expected one of enabled, identity, serviceAccount, config, grants, http, webhooks, limits
    ");
    assert_snapshot!(wrong("limits: { memoryMB: 1 }"), @r"
    error: line 1 column 11: unknown field `memoryMB`, expected one of memoryMiB, totalMemoryMiB, watches, metricSeries, timeoutMs, hostCalls, hostMiB, reuse, maxConcurrency, cpuWeight, cpuMilli, reconcilesPerSecond, requestsPerSecond, httpRequestsPerSecond, backoffBaseMs, backoffCapMs
     --> <input>:1:11
      |
    1 | limits: { memoryMB: 1 }
      |           ^ unknown field `memoryMB`, expected one of memoryMiB, totalMemoryMiB, watches, metricSeries, timeoutMs, hostCalls, hostMiB, reuse, maxConcurrency, cpuWeight, cpuMilli, reconcilesPerSecond, requestsPerSecond, httpRequestsPerSecond, backoffBaseMs, backoffCapMs
    ");
    assert_snapshot!(wrong("limits: { cpuWeight: 10001 }"), @r"
    error: line 1 column 22: 10001 is no weight: it is 1 to 10000
     --> <input>:1:22
      |
    1 | limits: { cpuWeight: 10001 }
      |                      ^ 10001 is no weight: it is 1 to 10000
    ");
    assert_snapshot!(wrong("limits: { timeoutMs: 0 }"), @r"
    error: line 1 column 11: invalid value: integer `0`, expected a nonzero u32
     --> <input>:1:11
      |
    1 | limits: { timeoutMs: 0 }
      |           ^ invalid value: integer `0`, expected a nonzero u32
    ");
    assert_snapshot!(grant("verbs: [read], namespace: [a]"), @r"
    error: line 2 column 49: unknown field `namespace`, expected one of apiVersion, kind, verbs, namespaces, names
     --> <input>:2:49
      |
    1 | grants:
    2 |   - { apiVersion: v1, kind: Pod, verbs: [read], namespace: [a] }
      |                                                 ^ unknown field `namespace`, expected one of apiVersion, kind, verbs, namespaces, names
    ");
    assert_snapshot!(grant("verbs: [read, list]"), @r#"
    error: line 2 column 5: unknown verb "list": it is part of read; there are read, create, update, patch, apply, delete, and "*" for all
     --> <input>:2:5
      |
    1 | grants:
    2 |   - { apiVersion: v1, kind: Pod, verbs: [read, list] }
      |     ^ unknown verb "list": it is part of read; there are read, create, update, patch, apply, delete, and "*" for all
    "#);
    assert_snapshot!(grant("verbs: [write]"), @r#"
    error: line 2 column 5: unknown verb "write": there are read, create, update, patch, apply, delete, and "*" for all
     --> <input>:2:5
      |
    1 | grants:
    2 |   - { apiVersion: v1, kind: Pod, verbs: [write] }
      |     ^ unknown verb "write": there are read, create, update, patch, apply, delete, and "*" for all
    "#);
    assert_snapshot!(grant("verbs: []"), @r"
    error: line 2 column 5: verbs is empty, so the rule grants nothing
     --> <input>:2:5
      |
    1 | grants:
    2 |   - { apiVersion: v1, kind: Pod, verbs: [] }
      |     ^ verbs is empty, so the rule grants nothing
    ");
    assert_snapshot!(grant("verbs: [read], namespaces: []"), @r"
    error: line 2 column 5: namespaces is empty: leave it out to grant all
     --> <input>:2:5
      |
    1 | grants:
    2 |   - { apiVersion: v1, kind: Pod, verbs: [read], namespaces: [] }
      |     ^ namespaces is empty: leave it out to grant all
    ");
    assert_snapshot!(grant("names: [a]"), @r"
    error: line 2 column 34: missing field `verbs`
     --> <input>:2:34
      |
    1 | grants:
    2 |   - { apiVersion: v1, kind: Pod, names: [a] }
      |                                  ^ missing field `verbs`
    ");
    assert_snapshot!(wrong("grants: [{ apiVersion: v1, kind: Pod/exec, verbs: [read] }]"), @r#"
    error: line 1 column 10: unknown subresource "exec" in kind "Pod/exec": there are status, scale, eviction, log, approval, ephemeralcontainers, resize
     --> <input>:1:10
      |
    1 | grants: [{ apiVersion: v1, kind: Pod/exec, verbs: [read] }]
      |          ^ unknown subresource "exec" in kind "Pod/exec": there are status, scale, eviction, log, approval, ephemeralcontainers, resize
    "#);
    assert_snapshot!(wrong("grants: [{ apiVersion: v1, kind: /status, verbs: [read] }]"), @r#"
    error: line 1 column 10: kind "/status" names no kind
     --> <input>:1:10
      |
    1 | grants: [{ apiVersion: v1, kind: /status, verbs: [read] }]
      |          ^ kind "/status" names no kind
    "#);
    assert_snapshot!(wrong("grants: [{ apiVersion: '', kind: Pod, verbs: [read] }]"), @r"
    error: line 1 column 10: apiVersion is empty
     --> <input>:1:10
      |
    1 | grants: [{ apiVersion: '', kind: Pod, verbs: [read] }]
      |          ^ apiVersion is empty
    ");
}

fn permissions() -> impl Strategy<Value = Vec<Permission>> {
    let names = || prop::collection::vec("[a-z0-9:.-]{1,3}|true|null|~", 0..3);
    let subresource = prop_oneof![Just(None), Just(Some(Subresource::Status)), Just(Some(Subresource::Scale))];
    let verbs = prop::collection::btree_set(prop::sample::select(Verb::ALL.as_slice()), 1..4);
    let kinds = prop_oneof![
        (prop_oneof!["v1", "x/v1"], prop_oneof!["Pod", "Yes", "N"]),
        (prop_oneof!["v1", "x/v1", "x/[*]", "[*]"], "[*]"),
    ];
    let one = (kinds, subresource, verbs, names(), names());
    let one = one.prop_map(|((api_version, kind), subresource, verbs, namespaces, names)| Permission {
        of: TypeMeta::new(&api_version, &kind),
        subresource,
        verbs,
        namespaces,
        names,
    });
    prop::collection::vec(one, 0..5)
}

/// Each of a list, or none in particular where the list means all.
fn one_or_any(list: &[String]) -> Vec<Option<&str>> {
    if list.is_empty() { vec![None] } else { list.iter().map(|one| Some(one.as_str())).collect() }
}

proptest! {
    /// Whatever is asked, the block that is offered allows all of it, read by a YAML reader.
    #[test]
    fn the_yaml_block_leaves_nothing_refused(asked in permissions()) {
        let file = file(&Grants::yaml_of(&asked)).map_err(TestCaseError::fail)?;
        prop_assert_eq!(Grants::new(&asked, &file.grants).refused(), []);
    }

    /// The line that a denial offers, where it is one for the administrator, allows what was denied.
    #[test]
    fn the_line_of_a_denial_allows_what_was_denied(asked in permissions(), namespace in prop::option::of("[a-z0-9]{1,3}")) {
        for permission in &asked {
            for &verb in &permission.verbs {
                let name = permission.names.first().map(String::as_str);
                let namespace = permission.namespaces.first().or(namespace.as_ref()).map(String::as_str);
                let check = |grants: &Grants| grants.check(verb, &permission.of, permission.subresource, namespace, name);
                let denied = check(&Grants::new(&asked, &[])).unwrap_err().to_string();
                let (_, line) = denied.split_once("add under grants: ").unwrap();
                let file = file(&format!("grants:\n  {line}\n")).map_err(TestCaseError::fail)?;
                prop_assert_eq!(check(&Grants::new(&asked, &file.grants)), Ok(()));
            }
        }
    }

    /// `refused` and `check` agree.
    #[test]
    fn permissions_that_are_not_refused_are_allowed(asked in permissions(), allowed in permissions()) {
        let allowed = file(&Grants::yaml_of(&allowed)).map_err(TestCaseError::fail)?.grants;
        let grants = Grants::new(&asked, &allowed);
        let refused = grants.refused();
        for permission in &asked {
            for &verb in &permission.verbs {
                let names = one_or_any(&permission.names);
                let namespaces = one_or_any(&permission.namespaces);
                for namespace in &namespaces {
                    let allowed = names.iter().all(|name| grants.check(verb, &permission.of, permission.subresource, *namespace, *name).is_ok());
                    let is_refused = refused.iter().any(|refused| {
                        refused.permission.of == permission.of
                            && refused.permission.subresource == permission.subresource
                            && refused.permission.names == permission.names
                            && refused.permission.verbs.contains(&verb)
                            && namespace.is_none_or(|one| refused.permission.namespaces.iter().any(|listed| listed == one))
                            && (namespace.is_some() || refused.permission.namespaces.is_empty())
                    });
                    prop_assert_eq!(allowed, !is_refused, "{:?} {:?}", permission, namespace);
                }
            }
        }
    }
}
