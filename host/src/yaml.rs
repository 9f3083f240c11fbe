//! Reads the administrator's files: YAML with the values that Kubernetes reads (`0644` is 420, `yes` is true). No key
//! may come twice.

use pilothouse_apiserver::yaml;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads a file of one document. A file without one is an empty mapping.
///
/// # Errors
/// Describes what is wrong, with the line if it is known.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_path_to_error::deserialize(one(text)?).map_err(|error| {
        // This parser knows the line. It may accept a value that Kubernetes reads in another way.
        let place = serde_saphyr::from_str::<T>(text).err().and_then(|error| error.location());
        let line =
            place.map_or_else(String::new, |place| format!("line {}, column {}: ", place.line(), place.column()));
        let path = match error.path().to_string() {
            root if root == "." => String::new(),
            path => format!("{path}: "),
        };
        format!("{line}{path}{}", error.inner())
    })
}

fn one(text: &str) -> Result<Value, String> {
    let (documents, error) = yaml::documents(text);
    if let Some(error) = error {
        return Err(error.to_string());
    }
    let mut documents = documents.into_iter().filter(|document| !document.value.is_null());
    let Some(document) = documents.next() else { return Ok(Value::Object(Map::new())) };
    if documents.next().is_some() {
        return Err("the file holds several documents; remove all but one".to_owned());
    }
    match document.duplicates.first() {
        Some(path) => Err(format!("{path} is defined twice; remove one of them")),
        None => Ok(document.value),
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_core::grant::AdminFile;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_that_kubernetes_reads() {
        let file: AdminFile =
            read("config: { mode: 0644, on: yes, off: oFF }\nenabled: no\nlimits: { timeoutMs: 0x10 }")
                .expect("a file");
        assert_eq!(file.config, json!({ "mode": 420, "true": true, "false": "oFF" }));
        assert!(!file.enabled);
        assert_eq!(file.limits.timeout_ms.map(std::num::NonZeroU32::get), Some(16));
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let refused = |text: &str| read::<AdminFile>(text).expect_err("it is refused");
        let twice = refused("enabled: true\nconfig: { a: 1, a: 2 }");
        assert_eq!(twice, "config.a is defined twice; remove one of them");
        let several = refused("enabled: true\n---\nenabled: true");
        assert_eq!(several, "the file holds several documents; remove all but one");
        let unknown = refused("enabled: true\nlimit: {}");
        assert!(unknown.starts_with("line 2, column 1: ") && unknown.contains("unknown field `limit`"), "{unknown}");
        let number = refused("enabled: true\nlimits: {memoryMiB: lots}");
        assert!(number.starts_with("line 2, column 21: limits.memoryMiB: invalid type: string \"lots\""), "{number}");
        // A parser of YAML 1.2 accepts it as a text.
        let zero = refused("limits: { timeoutMs: 00 }");
        assert!(!zero.is_empty(), "{zero}");
        assert!(!refused("enabled: [").is_empty());
    }
}
