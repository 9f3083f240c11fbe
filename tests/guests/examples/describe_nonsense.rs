//! Describes itself with many mistakes. The host must report each of them.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]

use pilothouse_sdk::{
    Error, TypeMeta, contract,
    contract::exports::pilothouse::plugin::controller::{
        Condition, Controller, Failure, Guest, Index, InstancePolicy, Manifest, MappedWatch, Mapping, Outcome,
        Permission, Request, Test, Verb, Watch,
    },
};

struct Nonsense;

fn apples() -> TypeMeta {
    TypeMeta::new("stable.example.com/v1", "MyApple")
}

fn maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

fn watch(of: TypeMeta) -> Watch {
    Watch {
        of,
        except: vec![],
        with_verbs: vec![],
        namespaces: vec![],
        labels: None,
        fields: None,
        metadata_only: false,
        without: vec![],
        compressed: false,
        when: vec![],
    }
}

fn controller() -> Controller {
    let mapped = |mapping| MappedWatch { watch: watch(maps()), mapping };
    Controller {
        name: "No Name!".into(),
        for_: Watch { labels: Some("a in b".into()), fields: Some("spec.color".into()), ..watch(apples()) },
        owns: vec![
            watch(TypeMeta::new("", "")),
            Watch { metadata_only: true, ..watch(maps()) },
            Watch { without: vec!["data".into()], ..watch(TypeMeta::new("v1", "Secret")) },
        ],
        watches: vec![
            mapped(Mapping::Index("nowhere".into())),
            // Declared, but for another kind than the controller's.
            mapped(Mapping::Index("of-maps".into())),
            mapped(Mapping::Label("No Label!".into())),
        ],
        reads: vec![
            Watch { without: vec!["data..color".into()], ..watch(maps()) },
            Watch { namespaces: vec!["No Namespace!".into()], ..watch(maps()) },
        ],
        max_concurrency: 0,
        resync_seconds: Some(0),
        timeout_ms: Some(0),
        finalizer: None,
    }
}

impl Guest for Nonsense {
    fn describe(_: String) -> Result<Manifest, String> {
        let cel = Condition { test: Test::Cel("object.spec ==".into()), negated: false };
        let index = |name: &str, of, path: &str| Index { name: name.into(), of, path: path.into() };
        Ok(Manifest {
            version: String::new(),
            description: String::new(),
            controllers: vec![controller(), controller()],
            indexes: vec![
                index("of-maps", maps(), "data.color"),
                index("twice", maps(), "data.color"),
                index("twice", maps(), "data.color"),
                index("pathless", maps(), ".color"),
                index("uncached", TypeMeta::new("v1", "Node"), "metadata.name"),
            ],
            observes: vec![Watch { when: vec![vec![cel]], ..watch(maps()) }],
            permissions: vec![Permission {
                of: TypeMeta::new("v1", ""),
                subresource: None,
                verbs: vec![Verb::Read],
                namespaces: vec!["No Namespace!".into()],
                names: vec![],
            }],
            crds: vec!["{".into(), "[]".into()],
            config_schema: Some("{".into()),
            instances: InstancePolicy::Fresh,
            metrics: vec![],
            http: vec![],
            webhooks: vec![],
        })
    }

    fn reconcile(_: String, _: Request) -> Result<Outcome, Failure> {
        Err(Error::terminal("no host should load this").into())
    }
}

contract::export!(Nonsense with_types_in contract);
