//! Answers reviews: who a token belongs to, and what a user may do.

use serde_json::{Value, json};

use crate::{
    admission,
    object::array,
    rbac::{Action, User, allows},
    resources::Resource,
    server::Server,
    tokens,
};

/// Returns the answer to a review. `namespace` is that of the request.
///
/// Whoever asks about itself may do everything. Other users are judged by [`allows`].
pub(crate) fn answer(server: &Server, resource: &Resource, namespace: &str, mut review: Value) -> Value {
    review["status"] = match resource.plural.as_str() {
        "selfsubjectrulesreviews" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        "selfsubjectreviews" => json!({"userInfo": admission::user()}),
        "tokenreviews" => tokens::review(server, text(&review["spec"], "token")),
        "subjectaccessreviews" | "localsubjectaccessreviews" => access(server, namespace, &review["spec"]),
        _ => json!({"allowed": true}),
    };
    review
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Judges what a user may do.
fn access(server: &Server, namespace: &str, spec: &Value) -> Value {
    let user =
        User { name: text(spec, "user"), groups: array(&spec["groups"]).iter().filter_map(Value::as_str).collect() };
    let (object, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let action = if object.is_object() {
        Action::Object {
            verb: text(object, "verb"),
            group: text(object, "group"),
            resource: text(object, "resource"),
            subresource: text(object, "subresource"),
            namespace: if namespace.is_empty() { text(object, "namespace") } else { namespace },
            name: text(object, "name"),
        }
    } else {
        Action::Path { verb: text(path, "verb"), path: text(path, "path") }
    };
    match allows(server, &user, action) {
        Some(reason) if reason.is_empty() => json!({"allowed": true}),
        Some(reason) => json!({"allowed": true, "reason": reason}),
        None => json!({"allowed": false}),
    }
}
