//! Conversion of objects between the versions of a CustomResourceDefinition.

use serde_json::{Map, Value, json};

use crate::Error;

/// Converts objects of one CustomResourceDefinition.
pub(crate) struct Converts {
    /// The group and kind of its objects.
    pub(crate) group: String,
    pub(crate) kind: String,
    function: Box<Function>,
}

type Function = dyn Fn(Map<String, Value>, &str) -> Result<Map<String, Value>, Error>;

impl Converts {
    pub(crate) fn new(
        group: String,
        kind: String,
        function: impl Fn(Map<String, Value>, &str) -> Result<Map<String, Value>, Error> + 'static,
    ) -> Self {
        Self { group, kind, function: Box::new(function) }
    }

    /// Converts one object. Sets its `apiVersion`.
    pub(crate) fn convert(&self, object: Map<String, Value>, api_version: &str) -> Result<Value, String> {
        let version = api_version.rsplit_once('/').map_or(api_version, |(_, version)| version);
        let mut converted = (self.function)(object, version).map_err(|error| error.to_string())?;
        converted.insert("apiVersion".to_owned(), api_version.into());
        Ok(Value::Object(converted))
    }
}

/// Converts objects by the first of `all` that is for their kind.
///
/// # Errors
/// Fails if an object is not valid, is of another kind, or its function fails.
pub(crate) fn convert(all: &[Converts], api_version: &str, objects: &[String]) -> Result<Vec<String>, String> {
    let converted = objects.iter().map(|text| {
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("cannot decode an object: {error}"))?;
        let member = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let group = member("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let Some(converts) = all.iter().find(|one| one.group == group && one.kind == member("kind")) else {
            return Err(format!("this plugin does not convert {} {}", member("apiVersion"), member("kind")));
        };
        Ok(converts.convert(object, api_version)?.to_string())
    });
    converted.collect()
}

/// Sets the conversion strategy of a definition. The host fills in the rest.
pub(crate) fn by_webhook(definition: &mut Value) {
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}});
}
