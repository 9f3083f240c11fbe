//! The objects that the administrator declares: what they should be, independent of who applied them and how.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::prelude::*;
use serde_json::Value;

/// Declared objects that no audited object has taken yet, by kind and key.
#[derive(Debug, Default)]
pub(crate) struct Desired {
    objects: BTreeMap<(TypeMeta, Key), Value>,
    /// What is wrong with the declaration itself.
    pub(crate) problems: Vec<String>,
}

impl Desired {
    /// Reads the entries of a ConfigMap. Each is an object in JSON, or a List of objects.
    pub(crate) fn of(map: Option<ConfigMap>) -> Self {
        let mut desired = Self::default();
        let Some(map) = map else {
            desired.problems.push("it declares the desired state, and does not exist".to_owned());
            return desired;
        };
        for (name, text) in map.data.unwrap_or_default() {
            match serde_json::from_str::<Value>(&text) {
                Ok(object) => desired.add(&name, object),
                Err(error) => desired.problems.push(format!("its entry {name} is not JSON: {error}")),
            }
        }
        desired
    }

    fn add(&mut self, entry: &str, mut object: Value) {
        if let Some(Value::Array(items)) = object.get_mut("items").map(Value::take) {
            return items.into_iter().for_each(|item| self.add(entry, item));
        }
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        match (text("/apiVersion"), text("/kind"), text("/metadata/name")) {
            (Some(api_version), Some(kind), Some(name)) => {
                let key = Key { namespace: text("/metadata/namespace").map(str::to_owned), name: name.to_owned() };
                self.objects.insert((TypeMeta::new(api_version, kind), key), object);
            }
            _ => {
                self.problems
                    .push(format!("its entry {entry} has an object without apiVersion, kind or metadata.name"));
            }
        }
    }

    /// Takes what is declared for an object.
    pub(crate) fn take(&mut self, of: &TypeMeta, key: &Key) -> Option<Value> {
        self.objects.remove(&(of.clone(), key.clone()))
    }

    /// Returns the objects that were not taken.
    pub(crate) fn left(self) -> impl Iterator<Item = (TypeMeta, Key)> {
        self.objects.into_keys()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn objects_and_lists_are_declared_and_what_is_neither_is_a_problem() {
        let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": name}});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod("b"), pod("c")]});
        let data = json!({
            "1": pod("a").to_string(), "2": list.to_string(), "3": "a: 1", "4": json!({"kind": "Pod"}).to_string(),
        });
        let mut desired = Desired::of(Some(from_value(json!({"metadata": {}, "data": data})).expect("a ConfigMap")));
        let key = |name: &str| Key::new("a", name);
        let pods = TypeMeta::new("v1", "Pod");
        assert_eq!(desired.take(&pods, &key("b")), Some(pod("b")));
        assert_eq!(desired.take(&pods, &key("b")), None);
        assert_eq!(desired.problems.len(), 2, "{:?}", desired.problems);
        assert!(desired.problems[0].starts_with("its entry 3 is not JSON"));
        assert_eq!(desired.problems[1], "its entry 4 has an object without apiVersion, kind or metadata.name");
        assert_eq!(desired.left().map(|(_, key)| key.name).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(Desired::of(None).problems, ["it declares the desired state, and does not exist"]);
    }
}
