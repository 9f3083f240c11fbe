//! Describes what cannot be: the host is to name every mistake.

#![cfg(target_arch = "wasm32")]

use pilothouse_sdk::contract;
use pilothouse_sdk::contract::exports::pilothouse::plugin::controller::{
    Controller, Failure, Guest, Manifest, Outcome, Permission, Request, Verb, Watch,
};
use pilothouse_sdk::{Error, TypeMeta};

struct Nonsense;

impl Guest for Nonsense {
    fn describe(_: String) -> Result<Manifest, String> {
        let watch =
            |of: TypeMeta, labels: Option<&str>| Watch { of, namespaces: vec![], labels: labels.map(Into::into) };
        let controller = || Controller {
            name: "No Name!".into(),
            for_: watch(TypeMeta::new("stable.example.com/v1", "MyApple"), Some("a in b")),
            owns: vec![watch(TypeMeta::new("", ""), None)],
            max_concurrency: 0,
            timeout_ms: Some(0),
        };
        Ok(Manifest {
            version: String::new(),
            description: String::new(),
            controllers: vec![controller(), controller()],
            permissions: vec![Permission {
                of: TypeMeta::new("v1", ""),
                subresource: None,
                verbs: vec![Verb::Read],
                namespaces: vec!["No Namespace!".into()],
                names: vec![],
            }],
            crds: vec!["{".into(), "[]".into()],
            config_schema: Some("{".into()),
        })
    }

    fn reconcile(_: String, _: Request) -> Result<Outcome, Failure> {
        Err(Error::terminal("nobody should load this").into())
    }
}

contract::export!(Nonsense with_types_in contract);
