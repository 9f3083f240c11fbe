#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;
use crate::{
    object::Keep,
    predicate::{Condition, Expression, Test},
};

fn of(api_version: &str, kind: &str) -> raw::TypeMeta {
    raw::TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() }
}

fn watch(api_version: &str, kind: &str) -> raw::Watch {
    raw::Watch { of: of(api_version, kind), ..raw::Watch::default() }
}

fn permission(api_version: &str, kind: &str, verbs: &[Verb]) -> raw::Permission {
    raw::Permission { of: of(api_version, kind), verbs: verbs.to_vec(), ..raw::Permission::default() }
}

fn apples() -> raw::Manifest {
    let crd = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"myapples.stable.example.com"}}"#;
    raw::Manifest {
        version: "0.1.0".to_owned(),
        description: "Keeps ConfigMaps for apples.".to_owned(),
        controllers: vec![raw::Controller {
            name: "apples".to_owned(),
            for_: watch("stable.example.com/v1", "MyApple"),
            owns: vec![watch("v1", "ConfigMap")],
            ..raw::Controller::default()
        }],
        permissions: vec![
            permission("stable.example.com/v1", "MyApple", &[Verb::Read]),
            permission("v1", "ConfigMap", &[Verb::Read, Verb::Apply, Verb::Delete]),
            permission("apiextensions.k8s.io/v1", "CustomResourceDefinition", &[Verb::Apply]),
        ],
        crds: vec![crd.to_owned()],
        config_schema: Some(r#"{"type":"object"}"#.to_owned()),
        instances: Policy::Reuse,
        ..raw::Manifest::default()
    }
}

fn changed(change: impl FnOnce(&mut raw::Manifest)) -> String {
    let mut manifest = apples();
    change(&mut manifest);
    manifest.check().unwrap_err().to_string()
}

#[test]
fn servers_are_named_by_host_port_and_methods() {
    let asks = |host: &str, port, plain, methods: &[&str]| raw::HttpPermission {
        host: host.to_owned(),
        port,
        plain,
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
    };
    let mut manifest = apples();
    manifest.http = vec![asks("Hooks.Slack.com", None, false, &["POST", "GET"]), asks("::1", None, true, &["GET"])];
    let checked = manifest.check().unwrap().http;
    let shown = |asked: &HttpPermission| (asked.host.to_string(), asked.port, asked.methods.len());
    assert_eq!(
        checked.iter().map(shown).collect::<Vec<_>>(),
        [("hooks.slack.com".to_owned(), 443, 2), ("[::1]".to_owned(), 80, 1)]
    );
    assert_snapshot!(changed(|manifest| {
        manifest.http = vec![
            asks("https://a.com", None, false, &["GET"]),
            asks("*", None, false, &["GET"]),
            asks("127.1", Some(0), false, &[]),
            asks("a.com", Some(1), true, &["get", "TRACE"]),
        ];
    }), @r#"
    the plugin's manifest cannot be used
      http[0].host: "https://a.com": the host is not a DNS name; write an international name in its ASCII form (xn--…); write a name, *.NAME, or an IP address, without scheme and port
      http[1].host: "*": the host is not a DNS name; write an international name in its ASCII form (xn--…); write a name, *.NAME, or an IP address, without scheme and port
      http[2].host: "127.1": the host looks like an IPv4 address; write it as four decimal numbers without leading zeros; write a name, *.NAME, or an IP address, without scheme and port
      http[2].port: is 0; leave it out for the port of the scheme
      http[2].methods: is empty, so the permission allows nothing
      http[3].methods[0]: "get" is not a method; write it in upper case, such as POST
      http[3].methods[1]: "TRACE" is a method that no plugin may use
    "#);
}

#[test]
fn metrics_have_names_that_openmetrics_allows() {
    let metric = |of_type, name: &str, labels: &[&str], buckets: &[&str]| raw::Metric {
        name: name.to_owned(),
        of_type,
        help: "Apples.".to_owned(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        buckets: buckets.iter().map(|bucket| (*bucket).to_owned()).collect(),
    };
    use MetricType::{Counter, Gauge, Histogram};
    let mut manifest = apples();
    manifest.metrics = vec![
        metric(Counter, "apples_total", &["color"], &[]),
        metric(Gauge, "_size2", &[], &[]),
        metric(Histogram, "took_seconds", &[], &["-1", "0.25", "1e3"]),
        metric(Histogram, "usual", &[], &[]),
    ];
    let checked = manifest.check().unwrap().metrics;
    let shown = |metric: &Metric| (metric.family().to_owned(), metric.buckets.len());
    assert_eq!(
        checked.iter().map(shown).collect::<Vec<_>>(),
        [("apples".to_owned(), 0), ("_size2".to_owned(), 0), ("took_seconds".to_owned(), 3), ("usual".to_owned(), 11)]
    );
    assert_snapshot!(changed(|manifest| {
        manifest.metrics = vec![
            metric(Counter, "apples", &[], &[]),
            metric(Gauge, "apples_count", &[], &[]),
            metric(Counter, "apples_total", &["le", "plugin", "__name__", "a", "a", "1", "a-b"], &[]),
            metric(Gauge, "a\n# HELP b", &[], &[]),
            metric(Gauge, "", &["a", "b", "c", "d", "e", "f", "g", "h", "i"], &["1"]),
            metric(Histogram, "took", &[], &["1", "1", "x", "NaN", "+Inf"]),
            metric(Histogram, &"x".repeat(129), &[], &[]),
        ];
    }), @r#"
    the plugin's manifest cannot be used
      metrics[0].name: "apples" must end in `_total`, as it is a counter
      metrics[1].name: "apples_count" must not end in `_count`, which Prometheus adds to names of counters and histograms
      metrics[2].labels[0]: "le" is reserved: choose another name
      metrics[2].labels[1]: "plugin" is reserved: choose another name
      metrics[2].labels[2]: "__name__" is reserved: choose another name
      metrics[2].labels[4]: "a" is there already
      metrics[2].labels[5]: "1" must be 1 to 128 letters, digits and `_`, and begin with no digit
      metrics[2].labels[6]: "a-b" must be 1 to 128 letters, digits and `_`, and begin with no digit
      metrics[2].name: "apples_total" names another metric already, perhaps with `_total`
      metrics[3].name: "a\n# HELP b" must be 1 to 128 letters, digits and `_`, and begin with no digit
      metrics[4].name: "" must be 1 to 128 letters, digits and `_`, and begin with no digit
      metrics[4].labels: has 9 entries; at most 8 are taken
      metrics[4].buckets: must be empty: only a histogram has buckets
      metrics[5].buckets[1]: "1" is not larger than the bucket before it
      metrics[5].buckets[2]: "x" is not a number such as 0.25
      metrics[5].buckets[3]: "NaN" is not finite; the last bucket is always infinite
      metrics[5].buckets[4]: "+Inf" is not finite; the last bucket is always infinite
      metrics[6].name: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"… must be 1 to 128 letters, digits and `_`, and begin with no digit
    "#);
    assert_eq!(
        changed(|manifest| {
            let all = (0..65).map(|n| metric(Gauge, &format!("m{n}"), &[], &[]));
            manifest.metrics = all.collect();
        }),
        "the plugin's manifest cannot be used: metrics: has 65 entries; at most 64 are taken"
    );
}

#[test]
fn requests_of_all_controllers_together_are_bounded() {
    let many = |controllers: usize, change: &dyn Fn(&mut raw::Controller)| {
        let mut manifest = apples();
        let controller = manifest.controllers.remove(0);
        manifest.controllers = (0..controllers)
            .map(|number| {
                let mut controller = raw::Controller { name: format!("apples-{number}"), ..controller.clone() };
                change(&mut controller);
                controller
            })
            .collect();
        manifest
            .check()
            .map(drop)
            .map_err(|invalid| invalid.problems.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let four = |controller: &mut raw::Controller| controller.max_concurrency = 256;
    assert_eq!(many(4, &four), Ok(()));
    assert_eq!(
        many(5, &four),
        Err(vec!["controllers: want 1280 keys at once in all; at most 1024 are taken".to_owned()])
    );
    let same = |controller: &mut raw::Controller| {
        controller.owns[0].namespaces = (0..255).map(|number| format!("n-{number}")).collect();
    };
    assert_eq!(many(200, &same), Ok(()), "they share what they watch");
    let namespaces = |controller: &mut raw::Controller| {
        let of = controller.name.trim_start_matches("apples-").to_owned();
        controller.owns[0].namespaces = (0..255).map(|number| format!("n-{of}-{number}")).collect();
    };
    assert_eq!(many(4, &namespaces), Ok(()));
    let cut = |controller: &mut raw::Controller| {
        let without = vec![format!("data['{}']", controller.name)];
        controller.reads.push(raw::Watch { without, ..watch("v1", "ConfigMap") });
    };
    assert_eq!(many(8, &cut), Ok(()));
    let told = "leave out of v1 ConfigMap other fields in 9 ways; at most 8 are taken: let its watches leave out the same fields";
    assert_eq!(many(9, &cut), Err(vec![format!("controllers: {told}")]));
    let by_field = |controller: &mut raw::Controller| {
        let fields = Some(format!("data.owner={}", controller.name));
        controller.reads.push(raw::Watch { fields, ..watch("v1", "ConfigMap") });
    };
    assert_eq!(many(8, &by_field), Ok(()));
    let told = "watch v1 ConfigMap by 9 selectors with fields other than metadata.name and metadata.namespace; at most 8 are taken: select by labels, or watch the kind as a whole";
    assert_eq!(many(9, &by_field), Err(vec![format!("controllers: {told}")]));
    let by_name = |controller: &mut raw::Controller| {
        let fields = Some(format!("metadata.name={}", controller.name));
        controller.reads.push(raw::Watch { fields, ..watch("v1", "ConfigMap") });
    };
    assert_eq!(many(9, &by_name), Ok(()), "the host evaluates these itself");
    let rule = "leave namespaces out, and watch what is granted, or divide the plugin";
    assert_eq!(
        many(5, &namespaces),
        Err(vec![format!("controllers: watch 1276 kinds and namespaces; at most 1024 are taken: {rule}")])
    );
}

#[test]
fn crds_and_the_schema_are_as_long_as_such_things_are() {
    let crds = |bytes: &[usize]| {
        let crd = |(number, bytes): (usize, &usize)| {
            let name = format!("{number}.stable.example.com");
            let start = format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"{name}"}}"#
            );
            format!("{start}{}}}", " ".repeat(bytes - start.len() - 1))
        };
        let crds = bytes.iter().enumerate().map(crd).collect();
        raw::Manifest { crds, ..apples() }.check().map(drop).map_err(|invalid| invalid.to_string())
    };
    assert_eq!(crds(&[3 << 20, 3 << 20]), Ok(()));
    let refused = crds(&[3 << 20, (3 << 20) + 1]).unwrap_err();
    assert!(refused.ends_with("crds[1]: has 3145729 bytes; at most 3145728 are taken"), "{refused}");
    let refused = crds(&[3 << 20; 6]).unwrap_err();
    assert!(refused.ends_with("crds: has 18874368 bytes; at most 16777216 are taken"), "{refused}");
    let long = changed(|manifest| manifest.config_schema = Some(" ".repeat((1 << 20) + 1)));
    assert!(long.ends_with("config-schema: has 1048577 bytes; at most 1048576 are taken"), "{long}");
}

#[test]
fn permissions_may_be_for_patterns() {
    let asked = |api_version: &str, kind: &str| {
        let mut manifest = apples();
        manifest.permissions.push(permission(api_version, kind, &[Verb::Read]));
        manifest
            .check()
            .map(|manifest| manifest.permissions.last().unwrap().of.to_string())
            .map_err(|error| error.to_string())
    };
    for good in ["*", "apps/*", "apps/v1", "v1", "stable.example.com/*"] {
        assert_eq!(asked(good, "*"), Ok(format!("{good} *")));
    }
    for bad in ["", "*/*", "*/v1", "/*", "apps/v1*", "Apps/*", "a b/*"] {
        assert!(asked(bad, "*").is_err(), "{bad}");
    }
    assert!(asked("apps/*", "Deployment").is_err());
    // A pattern covers what a watch needs.
    let mut manifest = apples();
    manifest.permissions = vec![permission("*", "*", &[Verb::Read, Verb::Apply])];
    assert!(manifest.check().is_ok());
}

#[test]
fn a_good_manifest_is_taken_with_its_defaults() {
    let mut raw = apples();
    raw.controllers[0].owns[0].labels = Some("app=apples".to_owned());
    let crds = raw.crds.clone();
    let watch = |api_version, kind| Watch::all(TypeMeta::new(api_version, kind));
    let asks = |api_version, kind, verbs: &[Verb]| Permission {
        of: TypeMeta::new(api_version, kind),
        subresource: None,
        verbs: verbs.iter().copied().collect(),
        namespaces: Vec::new(),
        names: Vec::new(),
    };
    let manifest = Manifest {
        webhooks: Vec::new(),
        metrics: Vec::new(),
        version: "0.1.0".to_owned(),
        description: "Keeps ConfigMaps for apples.".to_owned(),
        controllers: vec![Controller {
            name: "apples".to_owned(),
            for_: watch("stable.example.com/v1", "MyApple"),
            owns: vec![Watch { labels: Some(Selector::parse("app=apples").unwrap()), ..watch("v1", "ConfigMap") }],
            watches: Vec::new(),
            reads: Vec::new(),
            max_concurrency: 1,
            resync: Some(Duration::from_secs(36_000)),
            timeout: Duration::from_secs(10),
            finalizer: None,
        }],
        indexes: Vec::new(),
        observes: Vec::new(),
        patterns: Vec::new(),
        permissions: vec![
            asks("stable.example.com/v1", "MyApple", &[Verb::Read]),
            asks("v1", "ConfigMap", &[Verb::Read, Verb::Apply, Verb::Delete]),
            asks("apiextensions.k8s.io/v1", "CustomResourceDefinition", &[Verb::Apply]),
        ],
        crds,
        config_schema: Some(r#"{"type":"object"}"#.to_owned()),
        instances: Policy::Reuse,
        http: Vec::new(),
    };
    assert_eq!(raw.check(), Ok(manifest));
}

#[test]
fn all_problems_are_reported_together() {
    let mut raw = apples();
    raw.version.clear();
    raw.description = "two\nlines".to_owned();
    raw.permissions.push(raw::Permission {
        of: of("v1", "Pod"),
        subresource: Some(Subresource::Status),
        verbs: vec![Verb::Create, Verb::Apply],
        namespaces: vec!["Default".to_owned()],
        names: vec!["a/b".to_owned(), "system:x".to_owned(), "system:x".to_owned()],
    });
    raw.permissions.push(permission("", "", &[]));
    raw.controllers[0].name = "Apples!".to_owned();
    raw.controllers[0].timeout_ms = Some(0);
    raw.controllers[0].owns = vec![
        watch("v1", "ConfigMap"),
        watch("apps", "Deployment"),
        watch("apps/v1", "deployments"),
        watch("apps/v1", "StatefulSet"),
        watch("apps/v1beta1", "StatefulSet"),
        watch("Apps/v1/x", "A b"),
    ];
    let again = raw.controllers[0].clone();
    raw.controllers.push(raw::Controller { owns: Vec::new(), timeout_ms: Some(600_001), ..again });
    raw.crds = vec!["{".to_owned(), "{}".to_owned()];
    raw.config_schema = Some("[]".to_owned());

    assert_snapshot!(raw.check().unwrap_err(), @r#"
    the plugin's manifest cannot be used
      version: is empty
      description: has control characters or line breaks
      permissions[3].verbs: a subresource (status) has no create
      permissions[3].namespaces[0]: "Default" must be 1 to 63 lower-case letters, digits and `-`, with no `-` at its ends
      permissions[3].names[0]: "a/b" must be 1 to 253 characters without `/`, `%` and spaces
      permissions[3].names[2]: "system:x" is there already
      permissions[4].api-version: is empty
      permissions[4].kind: is empty
      permissions[4].verbs: is empty, so the permission allows nothing
      controllers[0].name: "Apples!" must be 1 to 63 lower-case letters, digits and `-`
      controllers[0].timeout-ms: is 0, so every call would fail; leave it out for 10 000
      controllers[0].owns[1].api-version: "apps" has no version: write group/version as in apps/v1, or v1
      controllers[0].owns[2].kind: "deployments" is no kind: write it as in objects, such as ConfigMap
      controllers[0].owns[4]: apps/v1beta1 StatefulSet is owned already
      controllers[0].owns[5].api-version: "Apps/v1/x" is not of the form apps/v1 or v1
      controllers[0].owns[5].kind: "A b" is no kind: write it as in objects, such as ConfigMap
      controllers[1].name: "Apples!" names another controller already
      controllers[1].name: "Apples!" must be 1 to 63 lower-case letters, digits and `-`
      controllers[1].timeout-ms: is 600001, and no call may run for more than 600 000: do the work over several reconciles
      crds[0]: is not valid JSON: EOF while parsing an object at line 1 column 1
      crds[1]: is not an apiextensions.k8s.io/v1 CustomResourceDefinition
      config-schema: is not a JSON schema: expected an object or a boolean
    "#);
}

#[test]
fn an_invalid_selector_is_reported_with_its_location() {
    let mut raw = apples();
    raw.controllers[0].owns[0].labels = Some("a in (b".to_owned());
    let places: Vec<_> = raw.check().unwrap_err().problems.into_iter().map(|problem| problem.at).collect();
    assert_eq!(places, ["controllers[0].owns[0].labels"]);
}

#[test]
fn a_selector_of_a_watch_is_bounded() {
    let labels = (0..100).map(|number| format!("!a{number}")).collect::<Vec<_>>().join(",");
    assert_snapshot!(changed(|manifest| manifest.controllers[0].owns[0].labels = Some(labels)), @r#"the plugin's manifest cannot be used: controllers[0].owns[0].labels: "!a0,!a1,!a2,!a3,!a4,!a5,!a6,!a7,!a8,!a9,!a10,!a11,!a12,!a13,!a14,!a15,!a16,!a17,"…: has more than 64 requirements"#);
}

#[test]
fn one_problem_is_reported_on_one_line() {
    assert_snapshot!(changed(|manifest| manifest.controllers[0].for_.of.kind.clear()), @"the plugin's manifest cannot be used: controllers[0].for.kind: is empty");
}

#[test]
fn a_controller_for_nothing_is_refused_though_it_owns() {
    assert_snapshot!(changed(|manifest| manifest.controllers[0].for_.of = raw::TypeMeta::default()), @r"
    the plugin's manifest cannot be used
      controllers[0].for.api-version: is empty
      controllers[0].for.kind: is empty
    ");
}

#[test]
fn a_watch_needs_a_permission_to_read() {
    assert_snapshot!(changed(|manifest| manifest.permissions[1].verbs = vec![Verb::Apply]), @"the plugin's manifest cannot be used: controllers[0].owns[0]: watching v1 ConfigMap needs a permission to read it, and none of `permissions` asks for that");
    assert_snapshot!(changed(|manifest| manifest.permissions[0].subresource = Some(Subresource::Status)), @"the plugin's manifest cannot be used: controllers[0].for: watching stable.example.com/v1 MyApple needs a permission to read it, and none of `permissions` asks for that");
    assert_snapshot!(
        changed(|manifest| {
            manifest.permissions[1].namespaces = vec!["default".to_owned()];
            manifest.controllers[0].owns[0].namespaces = vec!["default".to_owned(), "other".to_owned()];
        }),
        @"the plugin's manifest cannot be used: controllers[0].owns[0]: watching v1 ConfigMap needs a permission to read it, and none of `permissions` asks for that"
    );
}

#[test]
fn a_watch_without_namespaces_takes_what_is_asked() {
    let mut raw = apples();
    raw.permissions[1].namespaces = vec!["default".to_owned()];
    assert!(raw.check().is_ok());
}

#[test]
fn crds_need_a_permission_to_apply() {
    assert_snapshot!(changed(|manifest| drop(manifest.permissions.pop())), @"the plugin's manifest cannot be used: crds: installing them needs a permission to apply apiextensions.k8s.io/v1 CustomResourceDefinition, and none of `permissions` asks for that");
    assert_snapshot!(changed(|manifest| manifest.crds.push(manifest.crds[0].clone())), @r#"the plugin's manifest cannot be used: crds[1]: "myapples.stable.example.com" is there already"#);
}

#[test]
fn a_finalizer_names_a_domain_is_the_controllers_own_and_needs_a_permission_to_patch() {
    let finalizer = |finalizer: &str, asks: bool| {
        changed(|manifest| {
            manifest.controllers[0].finalizer = Some(finalizer.to_owned());
            if asks {
                manifest.permissions[0].verbs.push(Verb::Patch);
            }
            let again = raw::Controller { name: "again".to_owned(), ..manifest.controllers[0].clone() };
            manifest.controllers.push(again);
        })
    };
    assert_snapshot!(finalizer("example.com/cleanup", true), @r#"the plugin's manifest cannot be used: controllers[1].finalizer: "example.com/cleanup" is the finalizer of another controller for stable.example.com/v1 MyApple"#);
    let without = changed(|manifest| manifest.controllers[0].finalizer = Some("example.com/cleanup".to_owned()));
    assert_snapshot!(without, @"the plugin's manifest cannot be used: controllers[0].finalizer: needs a permission to patch stable.example.com/v1 MyApple, and none of `permissions` asks for that");
    for unqualified in ["orphan", "example.com/", "/cleanup", "example.com/a/b", "Example.com/a"] {
        let refused = finalizer(unqualified, true);
        assert!(refused.contains("must be a domain, a slash and a name"), "{refused}");
    }
}

#[test]
fn a_deletion_matters_to_a_controller_with_a_finalizer() {
    let mut raw = apples();
    raw.controllers[0].finalizer = Some("example.com/cleanup".to_owned());
    raw.controllers[0].for_.when = vec![vec![condition(raw::Test::Labels)]];
    raw.permissions[0].verbs.push(Verb::Patch);
    let test = |test| vec![Condition { test, negated: false }];
    let when = Predicate::new(vec![test(Test::Labels), test(Test::Deletion)]);
    assert_eq!(raw.clone().check().unwrap().controllers[0].for_.when, when);
    raw.controllers[0].for_.when.clear();
    assert!(raw.check().unwrap().controllers[0].for_.when.is_empty(), "every change matters");
}

#[test]
fn an_invalid_permission_is_not_reported_as_missing() {
    assert_snapshot!(changed(|manifest| manifest.permissions[0].of.api_version = "stable.example.com".to_owned()), @r#"the plugin's manifest cannot be used: permissions[0].api-version: "stable.example.com" has no version: write group/version as in apps/v1, or v1"#);
}

#[test]
fn texts_of_a_plugin_are_escaped_and_shortened() {
    assert_snapshot!(changed(|manifest| manifest.controllers[0].name = "\u{1b}[31m".repeat(1000)), @r#"the plugin's manifest cannot be used: controllers[0].name: "\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m\u{1b}[31m"… must be 1 to 63 lower-case letters, digits and `-`"#);
}

#[test]
fn endless_lists_are_bounded() {
    let invalid = changed(|manifest| manifest.permissions = vec![permission("v1", "Pod", &[]); 100_000]);
    assert_eq!(invalid.lines().count(), 51);
    assert_eq!(invalid.lines().nth(1), Some("  permissions: has 100000 entries; at most 256 are taken"));
}

#[test]
fn patterns_are_bounded() {
    let patterns = |number: usize| {
        let mut manifest = apples();
        manifest.observes = (0..number).map(|at| watch(&format!("g{at}.example.com/*"), "*")).collect();
        manifest.permissions.push(permission("*", "*", &[Verb::Read]));
        manifest.check().map(|manifest| manifest.patterns.len()).map_err(|invalid| invalid.to_string())
    };
    assert_eq!(patterns(16), Ok(16));
    let refused = "the plugin's manifest cannot be used: observes: has 17 patterns; at most 16 are taken".to_owned();
    assert_eq!(patterns(17), Err(refused));
}

/// Pears that follow Pods, ConfigMaps and Secrets.
fn pears() -> raw::Manifest {
    let reads = |api_version, kind| permission(api_version, kind, &[Verb::Read]);
    raw::Manifest {
        version: "0.1.0".to_owned(),
        controllers: vec![raw::Controller {
            name: "pears".to_owned(),
            for_: watch("stable.example.com/v1", "MyPear"),
            watches: vec![
                raw::MappedWatch {
                    watch: raw::Watch {
                        fields: Some("status.phase!=Failed,spec.nodeName==n1".to_owned()),
                        when: vec![
                            vec![condition(raw::Test::Labels), condition(raw::Test::Generation)],
                            vec![cel("object == null || object.status.phase == 'Running'")],
                        ],
                        ..watch("v1", "Pod")
                    },
                    mapping: raw::Mapping::Label("example.com/pear".to_owned()),
                },
                raw::MappedWatch {
                    watch: raw::Watch { metadata_only: true, ..watch("v1", "Secret") },
                    mapping: raw::Mapping::Index("by-secret".to_owned()),
                },
            ],
            reads: vec![raw::Watch {
                without: vec!["data.large".to_owned()],
                compressed: true,
                ..watch("v1", "ConfigMap")
            }],
            max_concurrency: 1000,
            resync_seconds: Some(0),
            ..raw::Controller::default()
        }],
        indexes: vec![raw::Index {
            name: "by-secret".to_owned(),
            of: of("stable.example.com/v1", "MyPear"),
            path: "spec.secretName".to_owned(),
        }],
        observes: vec![watch("v1", "Node")],
        permissions: vec![
            reads("stable.example.com/v1", "MyPear"),
            reads("v1", "Pod"),
            reads("v1", "Secret"),
            reads("v1", "ConfigMap"),
            reads("v1", "Node"),
        ],
        ..raw::Manifest::default()
    }
}

fn condition(test: raw::Test) -> raw::Condition {
    raw::Condition { test, negated: false }
}

fn cel(text: &str) -> raw::Condition {
    condition(raw::Test::Cel(text.to_owned()))
}

fn changed_pears(change: impl FnOnce(&mut raw::Manifest)) -> String {
    let mut manifest = pears();
    change(&mut manifest);
    manifest.check().unwrap_err().to_string()
}

#[test]
fn all_that_is_watched_is_taken_over() {
    let manifest = pears().check().unwrap();
    let all = |api_version, kind| Watch::all(TypeMeta::new(api_version, kind));
    let path = |text| FieldPath::parse(text).unwrap();
    let condition = |test| Condition { test, negated: false };
    let expression = Expression::compile("object == null || object.status.phase == 'Running'").unwrap();
    let pods = Watch {
        fields: Some(FieldSelector::parse("spec.nodeName=n1,status.phase!=Failed").unwrap()),
        when: Predicate::new(vec![
            vec![condition(Test::Labels), condition(Test::Generation)],
            vec![condition(Test::Cel(expression))],
        ]),
        ..all("v1", "Pod")
    };
    let secrets = Watch { keep: Keep::new(true, []).unwrap(), ..all("v1", "Secret") };
    let maps =
        Watch { keep: Keep::new(false, [path("data.large")]).unwrap(), compressed: true, ..all("v1", "ConfigMap") };
    let pears = all("stable.example.com/v1", "MyPear");
    assert_eq!(
        manifest.controllers,
        [Controller {
            name: "pears".to_owned(),
            for_: pears.clone(),
            owns: Vec::new(),
            watches: vec![
                MappedWatch { watch: pods.clone(), mapping: Mapping::Label("example.com/pear".to_owned()) },
                MappedWatch { watch: secrets.clone(), mapping: Mapping::Index("by-secret".to_owned()) },
            ],
            reads: vec![maps.clone()],
            max_concurrency: 256,
            resync: None,
            timeout: DEFAULT_TIMEOUT,
            finalizer: None,
        }]
    );
    let index = Index { name: "by-secret".to_owned(), of: pears.of.clone(), path: path("spec.secretName") };
    assert_eq!(manifest.index("by-secret"), Some(&index));
    assert_eq!(manifest.indexes, [index]);
    assert!(!manifest.needs_mapper());
    let watched: Vec<_> = manifest.watches().collect();
    assert_eq!(watched, [&pears, &pods, &secrets, &maps, &all("v1", "Node")]);
}

#[test]
fn all_problems_of_watches_are_reported_together() {
    assert_snapshot!(changed_pears(|manifest| {
        let pears = &mut manifest.controllers[0];
        pears.owns = vec![raw::Watch { metadata_only: true, without: vec!["data".to_owned(), String::new()], ..watch("v1", "Pod") }];
        let pods = &mut pears.watches[0];
        pods.watch.labels = Some("a in".to_owned());
        pods.watch.fields = Some("spec.nodeName".to_owned());
        pods.watch.when = vec![vec![cel("object.")], vec![], vec![cel("x > 1"), cel("object.status.phase ==")]];
        pods.mapping = raw::Mapping::Label("a b".to_owned());
        pears.reads[0].without = vec!["data.large".to_owned(), "data.large".to_owned(), "metadata.labels.app".to_owned()];
        let index = raw::Index { name: "by node".to_owned(), of: of("v1", "pods"), path: String::new() };
        manifest.indexes.extend([index.clone(), index]);
        manifest.observes[0].of.kind.clear();
    }), @r#"
    the plugin's manifest cannot be used
      controllers[0].owns[0].without[1]: "": the path is empty at byte 0
      controllers[0].owns[0].metadata-only: must be false: the host compares children whole
      controllers[0].owns[0].without: must be empty: the host compares children whole
      controllers[0].watches[0].mapping.label: "a b" is no label key
      controllers[0].watches[0].watch.labels: "a in": expected values in parentheses
      controllers[0].watches[0].watch.fields: "spec.nodeName": "spec.nodeName" has no `=` or `!=`
      controllers[0].watches[0].watch.when[0][0].cel: "object.": Syntax error: no viable alternative at input '.'
      controllers[0].watches[0].watch.when[1]: is empty, so every change matters: leave `when` out
      controllers[0].watches[0].watch.when[2][0].cel: "x > 1": there is no variable x: there are object and old
      controllers[0].watches[0].watch.when[2][1].cel: "object.status.phase ==": Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
      controllers[0].reads[0].without[1]: data.large is there already
      controllers[0].reads[0].without: cannot leave out metadata.labels.app: metadata.labels identifies the object or decides its fate, and is always kept; name the fields beside it
      observes[0].kind: is empty
      indexes[1].name: "by node" must be 1 to 63 letters, digits, `-`, `_` and `.`
      indexes[1].kind: "pods" is no kind: write it as in objects, such as ConfigMap
      indexes[1].path: "": the path is empty at byte 0
      indexes[2].name: "by node" names another index already
      indexes[2].name: "by node" must be 1 to 63 letters, digits, `-`, `_` and `.`
      indexes[2].kind: "pods" is no kind: write it as in objects, such as ConfigMap
      indexes[2].path: "": the path is empty at byte 0
    "#);
}

#[test]
fn an_index_is_of_a_cached_kind_and_its_name_is_its_own() {
    assert_snapshot!(changed_pears(|manifest| {
        let again = manifest.indexes[0].clone();
        manifest.indexes.extend([again, raw::Index { name: "by-node".to_owned(), of: of("v1", "Node"), path: "spec.x".to_owned() }]);
    }), @r#"
    the plugin's manifest cannot be used
      indexes[1].name: "by-secret" names another index already
      indexes[2]: no controller is for, owns, watches or reads v1 Node
    "#);
}

#[test]
fn an_index_is_of_what_is_cached() {
    let index =
        |name: &str, kind, path: &str| raw::Index { name: name.to_owned(), of: of("v1", kind), path: path.to_owned() };
    assert_snapshot!(changed_pears(|manifest| {
        manifest.indexes.extend([
            index("by-type", "Secret", "type"),
            index("by-team", "Secret", "metadata.labels.team"),
            index("by-data", "ConfigMap", "data.large.x"),
            index("by-datum", "ConfigMap", "data.small"),
        ]);
    }), @r"
    the plugin's manifest cannot be used
      indexes[1].path: type is not cached: `metadata-only` or `without` leave it out
      indexes[3].path: data.large.x is not cached: `metadata-only` or `without` leave it out
    ");
    // Another watch of the kind has all of it.
    let mut manifest = pears();
    manifest.indexes.push(index("by-type", "Secret", "type"));
    manifest.controllers[0].reads.push(watch("v1", "Secret"));
    assert_eq!(manifest.check().map(|manifest| manifest.indexes.len()), Ok(2));
}

#[test]
fn a_predicate_reads_what_is_cached() {
    assert_snapshot!(changed_pears(|manifest| {
        let pears = &mut manifest.controllers[0];
        pears.for_.without = ["status.images", "metadata.annotations"].map(str::to_owned).into();
        let images = cel("has(object.status.images) || object.status.phase == 'Ready'");
        pears.for_.when = vec![vec![images, condition(raw::Test::Annotations), condition(raw::Test::Generation)]];
        let secrets = &mut pears.watches[1].watch;
        secrets.when = vec![vec![cel("object.metadata.labels.a == 'b'")], vec![cel("old.data['key'] == ''")]];
    }), @r#"
    the plugin's manifest cannot be used
      controllers[0].for.when[0][0].cel: "has(object.status.images) || object.status.phase == 'Ready'": status.images is not cached, and never seen to change: `metadata-only` or `without` leave it out
      controllers[0].for.when[0][1]: metadata.annotations is not cached, and never seen to change: `metadata-only` or `without` leave it out
      controllers[0].watches[1].watch.when[1][0].cel: "old.data['key'] == ''": data is not cached, and never seen to change: `metadata-only` or `without` leave it out
    "#);
}

#[test]
fn a_mapping_by_index_names_one_of_the_controllers_kind() {
    assert_snapshot!(changed_pears(|manifest| manifest.indexes.clear()), @r#"the plugin's manifest cannot be used: controllers[0].watches[1].mapping.index: none of `indexes` has the name "by-secret""#);
    assert_snapshot!(changed_pears(|manifest| manifest.indexes[0].of = of("v1", "Pod")), @r#"the plugin's manifest cannot be used: controllers[0].watches[1].mapping.index: "by-secret" is an index of v1 Pod, and not of stable.example.com/v1 MyPear"#);
}

#[test]
fn all_that_is_watched_needs_a_permission_to_read() {
    assert_snapshot!(changed_pears(|manifest| manifest.permissions.clear()), @r"
    the plugin's manifest cannot be used
      controllers[0].for: watching stable.example.com/v1 MyPear needs a permission to read it, and none of `permissions` asks for that
      controllers[0].watches[0].watch: watching v1 Pod needs a permission to read it, and none of `permissions` asks for that
      controllers[0].watches[1].watch: watching v1 Secret needs a permission to read it, and none of `permissions` asks for that
      controllers[0].reads[0]: watching v1 ConfigMap needs a permission to read it, and none of `permissions` asks for that
      observes[0]: watching v1 Node needs a permission to read it, and none of `permissions` asks for that
    ");
}

#[test]
fn conditions_are_bounded() {
    assert_snapshot!(changed_pears(|manifest| {
        let pears = &mut manifest.controllers[0];
        pears.for_.when = vec![vec![condition(raw::Test::Labels); 17]; 17];
    }), @r"
    the plugin's manifest cannot be used
      controllers[0].for.when: has 17 entries; at most 16 are taken
      controllers[0].for.when[0]: has 17 entries; at most 16 are taken
      controllers[0].for.when[1]: has 17 entries; at most 16 are taken
      controllers[0].for.when[2]: has 17 entries; at most 16 are taken
      controllers[0].for.when[3]: has 17 entries; at most 16 are taken
      controllers[0].for.when[4]: has 17 entries; at most 16 are taken
      controllers[0].for.when[5]: has 17 entries; at most 16 are taken
      controllers[0].for.when[6]: has 17 entries; at most 16 are taken
      controllers[0].for.when[7]: has 17 entries; at most 16 are taken
      controllers[0].for.when[8]: has 17 entries; at most 16 are taken
      controllers[0].for.when[9]: has 17 entries; at most 16 are taken
      controllers[0].for.when[10]: has 17 entries; at most 16 are taken
      controllers[0].for.when[11]: has 17 entries; at most 16 are taken
      controllers[0].for.when[12]: has 17 entries; at most 16 are taken
      controllers[0].for.when[13]: has 17 entries; at most 16 are taken
      controllers[0].for.when[14]: has 17 entries; at most 16 are taken
      controllers[0].for.when[15]: has 17 entries; at most 16 are taken
    ");
    let invalid = changed_pears(|manifest| {
        let nodes = raw::Watch { when: vec![vec![cel("true"); 16]; 16], ..watch("v1", "Node") };
        manifest.observes = vec![nodes; 2];
    });
    assert_eq!(invalid.lines().nth(1), Some("  observes[0].when[15][15].cel: a manifest has at most 256 expressions"));
}

#[test]
fn a_plugin_may_observe_and_reconcile_nothing() {
    let observed = raw::Watch {
        of: raw::TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() },
        ..raw::Watch::default()
    };
    let permission = raw::Permission { of: observed.of.clone(), verbs: vec![Verb::Read], ..raw::Permission::default() };
    let manifest = raw::Manifest {
        version: "1".to_owned(),
        observes: vec![observed],
        permissions: vec![permission],
        ..raw::Manifest::default()
    };
    let checked = manifest.check().unwrap();
    assert_eq!((checked.controllers.len(), checked.observes.len()), (0, 1));
}

#[test]
fn a_mapping_by_the_plugin_needs_its_mapper() {
    let mut raw = pears();
    raw.controllers[0].watches[1].mapping = raw::Mapping::Plugin;
    assert!(raw.check().unwrap().needs_mapper());
}

proptest! {
    /// Names that are taken can stand in a path of the API and in a line of YAML.
    #[test]
    fn taken_names_are_safe(text in "[a-zA-Z0-9./%: -]{1,4}") {
        let mut raw = apples();
        raw.permissions[0].names = vec![text.clone()];
        raw.permissions[0].namespaces = vec![text.clone()];
        match raw.check() {
            Ok(_) => prop_assert!(text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')),
            Err(invalid) => prop_assert!(!invalid.problems.is_empty()),
        }
    }
}

#[test]
fn the_list_of_verbs_has_each_verb_once() {
    // A new verb does not compile here.
    let place = |verb: Verb| match verb {
        Verb::Read => 0,
        Verb::Create => 1,
        Verb::Update => 2,
        Verb::Patch => 3,
        Verb::Apply => 4,
        Verb::Delete => 5,
    };
    assert!(Verb::ALL.into_iter().map(place).eq(0..6));
}

#[test]
fn the_list_of_operations_has_each_operation_once() {
    // A new operation does not compile here.
    let place = |operation: Operation| match operation {
        Operation::Create => 0,
        Operation::Update => 1,
        Operation::Delete => 2,
        Operation::Connect => 3,
    };
    assert!(Operation::ALL.into_iter().map(place).eq(0..4));
}
