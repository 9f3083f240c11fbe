//! The JSON of `AdmissionReview` and `ConversionReview`, both in `v1`.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pilothouse_core::manifest::Operation;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::wasm::{Decision, Review, User};

/// Why a request is not a review, or its answer cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(super) String);

#[derive(Deserialize)]
struct Envelope<T> {
    request: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest {
    uid: String,
    kind: GroupVersionKind,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    operation: String,
    #[serde(default)]
    user_info: UserInfo,
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    old_object: Option<Value>,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Deserialize)]
struct GroupVersionKind {
    #[serde(default)]
    group: String,
    version: String,
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: String,
    groups: Vec<String>,
}

/// A request to review, and what is needed to answer it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) uid: String,
    pub(super) review: Review,
    /// The object as the plugin sees it.
    object: Option<Value>,
}

impl Asked {
    /// Reads an `AdmissionReview`.
    pub(super) fn read(body: &[u8], webhook: &str) -> Result<Self, Invalid> {
        let Envelope { request } = serde_json::from_slice::<Envelope<AdmissionRequest>>(body)
            .map_err(|error| Invalid(format!("this is not an AdmissionReview of admission.k8s.io/v1: {error}")))?;
        let operation = Operation::ALL.into_iter().find(|operation| operation.as_str() == request.operation);
        let operation = operation.ok_or_else(|| Invalid("the review has an unknown operation".to_owned()))?;
        let GroupVersionKind { group, version, kind } = request.kind;
        let api_version = if group.is_empty() { version } else { format!("{group}/{version}") };
        // The API server names a Namespace as its own namespace.
        let is_namespace = api_version == "v1" && kind == "Namespace";
        let namespace = request.namespace.filter(|namespace| !namespace.is_empty() && !is_namespace);
        let (object, old) = (request.object.map(without_managers), request.old_object.map(without_managers));
        let UserInfo { username: name, uid, groups } = request.user_info;
        let review = Review {
            webhook: webhook.to_owned(),
            operation,
            api_version,
            kind,
            namespace,
            name: request.name,
            subresource: request.sub_resource.filter(|part| !part.is_empty()),
            object: object.as_ref().map(Value::to_string),
            old: old.as_ref().map(Value::to_string),
            user: User { name, uid, groups },
            dry_run: request.dry_run.unwrap_or_default(),
        };
        Ok(Self { uid: request.uid, review, object })
    }

    /// Returns the answer. `changed` is the object as the plugin wants it.
    pub(super) fn answer(&self, decision: Decision, changed: Option<&str>) -> Result<Value, Invalid> {
        let patch = match (&self.object, changed) {
            (Some(object), Some(changed)) if decision.denied.is_none() => patch(object, changed)?,
            _ => None,
        };
        let mut response = Map::new();
        response.insert("uid".to_owned(), self.uid.as_str().into());
        response.insert("allowed".to_owned(), decision.denied.is_none().into());
        if let Some(message) = decision.denied {
            let code = decision.code.unwrap_or(403);
            response.insert("status".to_owned(), json!({ "code": code, "message": message }));
        }
        if let Some(patch) = patch {
            response.insert("patchType".to_owned(), "JSONPatch".into());
            response.insert("patch".to_owned(), BASE64_STANDARD.encode(patch).into());
        }
        if !decision.warnings.is_empty() {
            response.insert("warnings".to_owned(), decision.warnings.into());
        }
        if !decision.audit_annotations.is_empty() {
            let annotations = decision.audit_annotations.into_iter().map(|(key, value)| (key, Value::String(value)));
            response.insert("auditAnnotations".to_owned(), Value::Object(annotations.collect()));
        }
        Ok(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
    }
}

/// Returns the uid of an `AdmissionReview` whose plugin has no say.
pub(super) fn allowed(body: &[u8]) -> Result<Value, Invalid> {
    let asked = Asked::read(body, "")?;
    asked.answer(Decision::default(), None)
}

/// Removes `metadata.managedFields`, which plugins never see.
fn without_managers(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// Returns the JSON patch from one object to the other. `None` if they are equal.
fn patch(object: &Value, changed: &str) -> Result<Option<String>, Invalid> {
    let changed: Value = serde_json::from_str(changed)
        .map_err(|error| Invalid(format!("the changed object is not valid JSON: {error}")))?;
    let patch = json_patch::diff(object, &without_managers(changed));
    if patch.is_empty() {
        return Ok(None);
    }
    serde_json::to_string(&patch).map(Some).map_err(|error| Invalid(format!("cannot write the patch: {error}")))
}

#[derive(Deserialize)]
struct ConversionRequest {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    objects: Vec<Value>,
}

/// Objects to convert, and what is needed to answer.
#[derive(Debug)]
pub(crate) struct Conversion {
    uid: String,
    pub(crate) api_version: String,
    objects: Vec<Value>,
}

/// Members of `metadata` that a conversion may change.
const CONVERTED: [&str; 2] = ["labels", "annotations"];

impl Conversion {
    /// Creates the conversion of one object.
    pub(crate) fn of(object: Value, api_version: String) -> Self {
        Self { uid: String::new(), api_version, objects: vec![object] }
    }

    /// Reads a `ConversionReview`.
    ///
    /// # Errors
    /// If it is not one.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Invalid> {
        let Envelope { request } = serde_json::from_slice::<Envelope<ConversionRequest>>(body)
            .map_err(|error| Invalid(format!("this is not a ConversionReview of apiextensions.k8s.io/v1: {error}")))?;
        Ok(Self { uid: request.uid, api_version: request.desired_api_version, objects: request.objects })
    }

    /// Returns the objects as the plugin sees them.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.objects.iter().map(|object| without_managers(object.clone()).to_string()).collect()
    }

    /// Returns the answer to the API server: the converted objects, or why they cannot be converted.
    pub(crate) fn answer(&self, converted: Result<Vec<String>, String>) -> Value {
        let objects = converted.and_then(|objects| self.objects(&objects).map_err(|Invalid(why)| why));
        let response = match objects {
            Ok(objects) => json!({ "convertedObjects": objects, "result": { "status": "Success" } }),
            Err(why) => json!({ "convertedObjects": [], "result": { "status": "Failure", "message": why } }),
        };
        self.response(&response)
    }

    /// Returns the converted objects. Everything in `metadata` but labels and annotations stays as it was.
    ///
    /// # Errors
    /// If one of them is not what was asked for.
    pub(crate) fn objects(&self, converted: &[String]) -> Result<Vec<Value>, Invalid> {
        let objects = self.objects.iter().zip(converted).enumerate();
        let objects = objects.map(|(at, (object, converted))| {
            let invalid = |why: &str| Invalid(format!("converted object {at} {why}"));
            let mut converted: Value = serde_json::from_str(converted).map_err(|_| invalid("is not valid JSON"))?;
            if converted["apiVersion"] != *self.api_version {
                return Err(invalid(&format!("is not of {}", self.api_version)));
            }
            if converted["kind"] != object["kind"] {
                return Err(invalid("has another kind than before"));
            }
            for member in ["name", "namespace", "uid"] {
                if converted["metadata"][member] != object["metadata"][member] {
                    return Err(invalid(&format!("has another metadata.{member} than before")));
                }
            }
            let mut metadata = object["metadata"].clone();
            for member in CONVERTED {
                match converted["metadata"].get(member) {
                    Some(value) => metadata[member] = value.clone(),
                    None => drop(metadata.as_object_mut().and_then(|metadata| metadata.remove(member))),
                }
            }
            converted["metadata"] = metadata;
            Ok(converted)
        });
        objects.collect()
    }

    fn response(&self, response: &Value) -> Value {
        let mut response = response.clone();
        response["uid"] = self.uid.as_str().into();
        json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "managedFields": [{"manager": "kubectl"}]},
            "spec": {"containers": [{"name": "a", "image": "x"}]},
        })
    }

    fn asked(change: impl FnOnce(&mut Value)) -> Result<Asked, Invalid> {
        let mut review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "name": "web", "namespace": "shop",
                "operation": "CREATE", "userInfo": {"username": "ann", "groups": ["devs"], "extra": {"a": ["b"]}},
                "object": pod(), "oldObject": null, "dryRun": true, "options": {"kind": "CreateOptions"},
            },
        });
        change(&mut review);
        Asked::read(review.to_string().as_bytes(), "images")
    }

    #[test]
    fn review_reaches_the_plugin_without_managed_fields() {
        let asked = asked(|_| {}).unwrap();
        let mut object = pod();
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        let expected = Review {
            webhook: "images".to_owned(),
            operation: Operation::Create,
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: Some("shop".to_owned()),
            name: "web".to_owned(),
            subresource: None,
            object: Some(object.to_string()),
            old: None,
            user: User { name: "ann".to_owned(), uid: String::new(), groups: vec!["devs".to_owned()] },
            dry_run: true,
        };
        assert_eq!(asked.review, expected);
    }

    #[test]
    fn a_namespace_is_in_no_namespace() {
        let asked = asked(|review| review["request"]["kind"]["kind"] = "Namespace".into()).unwrap();
        assert_eq!(asked.review.namespace, None);
    }

    #[test]
    fn what_is_not_a_review_is_refused() {
        assert!(Asked::read(b"{}", "a").unwrap_err().0.contains("is not an AdmissionReview"));
        assert!(asked(|review| review["request"]["operation"] = "READ".into()).is_err());
    }

    #[test]
    fn patch_is_the_difference_and_an_equal_object_needs_none() {
        let asked = asked(|_| {}).unwrap();
        let mut changed = pod();
        let unchanged = asked.answer(Decision::default(), Some(&changed.to_string())).unwrap();
        assert_eq!(unchanged["response"], json!({"uid": "u-1", "allowed": true}));
        changed["metadata"]["labels"] = json!({"team": "a"});
        changed["spec"]["containers"][0]["image"] = "y".into();
        let answer = asked.answer(Decision::default(), Some(&changed.to_string())).unwrap();
        let patch = BASE64_STANDARD.decode(answer["response"]["patch"].as_str().unwrap()).unwrap();
        let patch: Value = serde_json::from_slice(&patch).unwrap();
        let expected = json!([
            {"op": "add", "path": "/metadata/labels", "value": {"team": "a"}},
            {"op": "replace", "path": "/spec/containers/0/image", "value": "y"},
        ]);
        assert_eq!((patch, &answer["response"]["patchType"]), (expected, &json!("JSONPatch")));
    }

    #[test]
    fn denial_has_its_code_warnings_and_audit_annotations_and_no_patch() {
        let decision = Decision {
            denied: Some("no".to_owned()),
            code: Some(422),
            warnings: vec!["soon".to_owned()],
            audit_annotations: vec![("why".to_owned(), "policy".to_owned())],
        };
        let answer = asked(|_| {}).unwrap().answer(decision, Some("{}")).unwrap();
        let expected = json!({
            "uid": "u-1", "allowed": false, "status": {"code": 422, "message": "no"},
            "warnings": ["soon"], "auditAnnotations": {"why": "policy"},
        });
        assert_eq!(answer["response"], expected);
    }

    #[test]
    fn conversion_keeps_what_it_may_not_change() {
        let object = json!({
            "apiVersion": "example.com/v1", "kind": "Lamp",
            "metadata": {"name": "hall", "uid": "u", "generation": 3, "labels": {"a": "b"}, "managedFields": []},
        });
        let review = json!({"request": {"uid": "r", "desiredAPIVersion": "example.com/v2", "objects": [object]}});
        let conversion = Conversion::read(review.to_string().as_bytes()).unwrap();
        assert!(!conversion.texts()[0].contains("managedFields"));
        let converted = |name: &str, version: &str| {
            let metadata = json!({"name": name, "uid": "u", "annotations": {"c": "d"}, "generation": 9});
            let object = json!({"apiVersion": version, "kind": "Lamp", "metadata": metadata, "spec": {}});
            conversion.answer(Ok(vec![object.to_string()]))["response"].clone()
        };
        let answer = converted("hall", "example.com/v2");
        let expected =
            json!({"name": "hall", "uid": "u", "generation": 3, "annotations": {"c": "d"}, "managedFields": []});
        assert_eq!((&answer["convertedObjects"][0]["metadata"], &answer["uid"]), (&expected, &json!("r")));
        let failure = |message: &str| json!({"status": "Failure", "message": message});
        assert_eq!(
            converted("cellar", "example.com/v2")["result"],
            failure("converted object 0 has another metadata.name than before")
        );
        assert_eq!(
            converted("hall", "example.com/v1")["result"],
            failure("converted object 0 is not of example.com/v2")
        );
        assert_eq!(conversion.answer(Err("why".to_owned()))["response"]["result"], failure("why"));
    }
}
