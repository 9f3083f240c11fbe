//! Brings the kind `Lamp` in two versions, and converts between them: `spec.lit` of `v1` is `spec.percent` of `v2`.
//!
//! A lamp whose `spec.percent` is more than 100 cannot be converted. With 1001 the plugin panics, with 1002 its
//! answer is too large, and with 1003 there is none.
//!
//! Used by `tests/e2e/suite/webhooks.rs`.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use pilothouse_sdk::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

const NAME: &str = "lamps.converting.example.com";

#[derive(Debug, Object, Deserialize, Serialize)]
#[object(api_version = "converting.example.com/v2", kind = "Lamp")]
struct Lamp {
    metadata: ObjectMeta,
}

fn definition() -> CustomResourceDefinition {
    let version = |name: &str, field: &str, of: &str| {
        let spec = json!({"type": "object", "properties": {field: {"type": of}}});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
        json!({"name": name, "served": true, "storage": name == "v2", "schema": schema})
    };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "converting.example.com", "scope": "Namespaced",
            "names": {"kind": "Lamp", "plural": "lamps", "singular": "lamp"},
            "versions": [version("v1", "lit", "boolean"), version("v2", "percent", "integer")],
        },
    });
    serde_json::from_value(definition).expect("it is a definition")
}

#[plugin]
fn converting() -> Plugin {
    Plugin::new("Lamps in two versions.").crd_versions::<Lamp>(NAME, definition, convert)
}

fn convert(mut lamp: Map<String, Value>, to: &str) -> Result<Map<String, Value>, Error> {
    let spec = lamp.get("spec").cloned().unwrap_or_default();
    let converted = match (to, &spec["lit"], &spec["percent"]) {
        ("v2", Value::Bool(lit), _) => json!({"percent": if *lit { 100 } else { 0 }}),
        ("v1", _, Value::Number(percent)) if percent.as_u64() == Some(1001) => panic!("a bad lamp"),
        ("v1", _, Value::Number(percent)) if percent.as_u64() == Some(1002) => json!({"much": "x".repeat(4 << 20)}),
        ("v1", _, Value::Number(percent)) if percent.as_u64() == Some(1003) => loop {
            std::hint::spin_loop();
        },
        ("v1", _, Value::Number(percent)) if percent.as_u64().is_some_and(|percent| percent > 100) => {
            return Err(Error::terminal("a lamp has at most 100 percent"));
        }
        ("v1", _, Value::Number(percent)) => json!({"lit": percent.as_u64() != Some(0)}),
        _ => spec,
    };
    lamp.insert("spec".to_owned(), converted);
    Ok(lamp)
}
