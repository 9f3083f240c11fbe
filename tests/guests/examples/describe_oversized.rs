//! Describes more controllers, watches and field selectors than a manifest may have, and a CRD of 4 MiB.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]

use pilothouse_sdk::{
    Error, TypeMeta, contract,
    contract::exports::pilothouse::plugin::controller::{
        Controller, Failure, Guest, InstancePolicy, Manifest, Outcome, Permission, Request, Verb, Watch,
    },
};

struct Oversized;

fn maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

fn watch() -> Watch {
    Watch {
        of: maps(),
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

fn controller(number: usize) -> Controller {
    let read = |read: usize| Watch { fields: Some(format!("data.x={number}-{read}")), ..watch() };
    Controller {
        name: format!("maps-{number}"),
        for_: watch(),
        owns: vec![],
        watches: vec![],
        reads: (0..16).map(read).collect(),
        max_concurrency: 16,
        resync_seconds: None,
        timeout_ms: None,
        finalizer: None,
    }
}

impl Guest for Oversized {
    fn describe(_: String) -> Result<Manifest, String> {
        Ok(Manifest {
            version: "1".into(),
            description: String::new(),
            controllers: (0..257).map(controller).collect(),
            indexes: vec![],
            observes: vec![],
            permissions: vec![Permission {
                of: maps(),
                subresource: None,
                verbs: vec![Verb::Read],
                namespaces: vec![],
                names: vec![],
            }],
            crds: vec![" ".repeat(4 << 20)],
            config_schema: None,
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

contract::export!(Oversized with_types_in contract);
