//! Returns the mistake that `spec.color` names. For any other color, it behaves well.
//!
//! | color | mistake |
//! |---|---|
//! | `foreign-kind` | a child of a kind that the controller does not own |
//! | `no-json` | a child that is not valid JSON |
//! | `no-object` | a child that is a JSON list |
//! | `no-name` | a child without a name |
//! | `bad-name` | a child whose name the API server rejects |
//! | `other-namespace` | a child in another namespace than its owner |
//! | `twice` | two children of the same kind and name |
//! | `nul` | a child whose name contains a NUL |
//! | `deep` | a child nested 100,000 deep |
//! | `status-no-json` | a status that is not valid JSON |
//! | `status-list` | a status that is a JSON list |
//! | `status-type` | a status whose `available` is text |
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]

use pilothouse_guests::apple::{self, MyApple};
use pilothouse_sdk::{
    Error, Plugin, contract,
    contract::exports::pilothouse::plugin::controller::{
        Child, Children, Failure, Guest, Manifest, Outcome, Request, Watches,
    },
    entry,
};
use serde_json::json;

struct Nonsense;

fn plugin() -> Plugin {
    apple::plugin("Returns nonsense.", apple::well_behaved)
}

impl Guest for Nonsense {
    fn describe(config: String) -> Result<Manifest, String> {
        entry::describe(&plugin, env!("CARGO_PKG_VERSION"), &config)
    }

    fn reconcile(config: String, request: Request) -> Result<Outcome, Failure> {
        let apple: MyApple = serde_json::from_str(&request.object).map_err(Error::from)?;
        let named =
            |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string();
        let mut status = Some(json!({"available": 1}).to_string());
        let children = match apple.spec.color.as_str() {
            "foreign-kind" => {
                vec![json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}).to_string()]
            }
            "no-json" => vec!["{\"apiVersion\": \"v1\",".to_owned()],
            "no-object" => vec!["[]".to_owned()],
            "no-name" => vec![json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}).to_string()],
            "bad-name" => vec![named("No Name!")],
            "other-namespace" => {
                let metadata = json!({"name": "x", "namespace": "kube-system"});
                vec![json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}).to_string()]
            }
            "twice" => vec![named("twin"), named("twin")],
            "nul" => vec![named("a\0b")],
            "deep" => {
                let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
                vec![named("deep").replacen('{', &format!("{{\"x\":{open}{close},"), 1)]
            }
            "status-no-json" => {
                status = Some("{".to_owned());
                vec![]
            }
            "status-list" => {
                status = Some("[]".to_owned());
                vec![]
            }
            "status-type" => {
                status = Some(json!({"available": "many"}).to_string());
                vec![]
            }
            _ => return entry::reconcile(&plugin, &config, request),
        };
        let children = children.into_iter().map(|object| Child { object, adopt: false, replace: false }).collect();
        Ok(Outcome {
            children: Children::Desired(children),
            status,
            requeue_after: None,
            watches: Watches::Unchanged,
            events: Vec::new(),
        })
    }
}

contract::export!(Nonsense with_types_in contract);
