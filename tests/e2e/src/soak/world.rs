//! The objects of the cluster and the collections that are watched.

use pilothouse_core::key::TypeMeta;
use serde_json::{Value, json};

use crate::random::Random;

/// The objects' namespaces.
pub(super) const NAMESPACES: [&str; 3] = ["red", "green", "blue"];

/// A kind whose objects come and go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    /// Its name in fault rules.
    pub(super) resource: &'static str,
    /// The part of a path before the namespace.
    pub(super) prefix: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespaced: bool,
    /// Number of names in each namespace.
    pub(super) names: usize,
}

/// More ConfigMaps than one page holds, so that continue tokens are used.
pub(super) static KINDS: [Kind; 5] = [
    Kind::core("ConfigMap", "configmaps", 220),
    Kind::core("Secret", "secrets", 20),
    Kind::core("ServiceAccount", "serviceaccounts", 20),
    Kind {
        api_version: "stable.example.com/v1",
        kind: "MyApple",
        resource: "myapples.stable.example.com",
        prefix: "/apis/stable.example.com/v1",
        plural: "myapples",
        namespaced: true,
        names: 20,
    },
    Kind {
        api_version: "rbac.authorization.k8s.io/v1",
        kind: "ClusterRole",
        resource: "clusterroles.rbac.authorization.k8s.io",
        prefix: "/apis/rbac.authorization.k8s.io/v1",
        plural: "clusterroles",
        namespaced: false,
        names: 20,
    },
];

impl Kind {
    pub(super) const fn core(kind: &'static str, plural: &'static str, names: usize) -> Self {
        Self { api_version: "v1", kind, resource: plural, prefix: "/api/v1", plural, namespaced: true, names }
    }

    pub(super) fn type_meta(&self) -> TypeMeta {
        TypeMeta::new(self.api_version, self.kind)
    }

    /// The path of its collection.
    pub(super) fn path(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.prefix, self.plural),
            None => format!("{}/{}", self.prefix, self.plural),
        }
    }
}

/// The collection that one informer watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) kind: &'static Kind,
    pub(super) namespace: Option<&'static str>,
    pub(super) labels: &'static str,
    pub(super) fields: &'static str,
    pub(super) metadata_only: bool,
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind.kind)?;
        if let Some(namespace) = self.namespace {
            write!(f, " in {namespace}")?;
        }
        let selectors = [self.labels, self.fields];
        if let Some(selector) = selectors.iter().find(|selector| !selector.is_empty()) {
            write!(f, " where {selector}")?;
        }
        f.write_str(if self.metadata_only { ", metadata only" } else { "" })
    }
}

/// Returns twenty-five collections for five hosts. Within a host none covers another, so each has its own watch. Four
/// are metadata only.
pub(super) fn hosts() -> [Vec<Subject>; 5] {
    let [maps, secrets, accounts, apples, roles] = &KINDS;
    let of = |kind, namespace, labels| Subject { kind, namespace, labels, fields: "", metadata_only: false };
    let fields = |kind, namespace, fields| Subject { fields, ..of(kind, namespace, "") };
    let metadata = |subject| Subject { metadata_only: true, ..subject };
    let (red, green) = (Some("red"), Some("green"));
    [
        KINDS.iter().map(|kind| of(kind, None, "")).collect(),
        vec![
            of(maps, red, ""),
            metadata(of(secrets, red, "")),
            of(accounts, red, ""),
            of(apples, red, ""),
            of(roles, None, "color=a"),
        ],
        vec![
            of(maps, None, "color=a"),
            of(secrets, None, "color=a"),
            of(accounts, None, "color!=a"),
            metadata(of(apples, None, "color")),
            of(roles, None, "tier=web"),
        ],
        vec![
            metadata(of(maps, green, "tier=web")),
            of(secrets, green, "tier notin (db)"),
            of(accounts, green, "tier"),
            of(apples, green, "color in (a,b)"),
            of(roles, None, "!color"),
        ],
        vec![
            fields(maps, None, "metadata.name!=soak-7"),
            fields(secrets, red, "metadata.name=soak-3"),
            fields(accounts, None, "metadata.namespace=green"),
            // Objects enter and leave this selection by others' writes.
            fields(apples, None, "spec.tier=web"),
            metadata(fields(roles, None, "metadata.name!=soak-2")),
        ],
    ]
}

/// One change of one object.
#[derive(Debug)]
pub(super) struct Change {
    /// The path of the collection.
    pub(super) collection: String,
    pub(super) name: String,
    /// The desired object, or `None` to delete it.
    pub(super) object: Option<Value>,
}

/// Draws a change of any object.
pub(super) fn change(random: &mut Random) -> Change {
    let kind = random.one(&KINDS);
    let namespace = kind.namespaced.then(|| *random.one(&NAMESPACES));
    let index = random.below(kind.names);
    // About four of five names exist.
    if random.below(5) == 0 {
        return Change { collection: kind.path(namespace), name: name(index), object: None };
    }
    written(kind, namespace, index, random)
}

/// Returns one change for every possible object.
pub(super) fn first(random: &mut Random) -> Vec<Change> {
    let mut all = Vec::new();
    for kind in &KINDS {
        let namespaces = if kind.namespaced { NAMESPACES.map(Some).to_vec() } else { vec![None] };
        for namespace in namespaces {
            all.extend((0..kind.names).map(|index| written(kind, namespace, index, random)));
        }
    }
    all
}

fn name(index: usize) -> String {
    format!("soak-{index}")
}

fn written(kind: &Kind, namespace: Option<&str>, index: usize, random: &mut Random) -> Change {
    // Null in a merge patch removes the label.
    let color = random.one(&[json!("a"), json!("b"), Value::Null]).clone();
    let tier = random.one(&[json!("web"), json!("db"), Value::Null]).clone();
    // From a small object to one of usual size.
    let text = "x".repeat(200 + random.below(1800));
    let note = format!("{}-{text}", random.draw());
    let mut object = json!({
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name(index), "labels": {"color": color, "tier": &tier}, "annotations": {"note": note}},
    });
    if kind.kind == "MyApple" {
        object["spec"] = json!({ "tier": tier });
    }
    Change { collection: kind.path(namespace), name: name(index), object: Some(object) }
}

/// The CRD of MyApples: they accept any members and have a selectable field.
pub(super) fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "myapples.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced", "names": {"kind": "MyApple", "plural": "myapples"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"spec": {"type": "object", "properties": {"tier": {"type": "string"}}}},
                }},
                "selectableFields": [{"jsonPath": ".spec.tier"}],
            }],
        },
    })
}
