//! Who a token belongs to, and what a user may do.

use serde_json::{Value, json};

use crate::cluster::Cluster;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn token(cluster: &Cluster, account: &str, spec: Value) -> String {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let answer = cluster.post(&format!("{ACCOUNTS}/{account}/token"), &request).await.ok();
    assert_eq!(answer["kind"], "TokenRequest");
    answer["status"]["token"].as_str().unwrap().to_owned()
}

async fn whose(cluster: &Cluster, token: &str) -> Value {
    cluster.post(TOKEN_REVIEWS, &json!({"spec": {"token": token}})).await.ok()["status"].clone()
}

#[tokio::test]
async fn token_belongs_to_its_account_until_account_or_bound_object_is_gone() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        cluster.post(ACCOUNTS, &json!({"metadata": {"name": name}})).await.ok();
    }
    let secret = json!({"metadata": {"name": "s"}});
    cluster.post("/api/v1/namespaces/default/secrets", &secret).await.ok();
    let (free, bound) = (
        token(&cluster, "a", json!({})).await,
        token(&cluster, "b", json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}})).await,
    );
    let status = whose(&cluster, &free).await;
    assert_eq!((&status["authenticated"], &status["error"]), (&json!(true), &Value::Null));
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:a");
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    assert_eq!(status["user"]["groups"], json!(groups));
    assert_eq!(whose(&cluster, &bound).await["user"]["username"], "system:serviceaccount:default:b");

    cluster.delete(&format!("{ACCOUNTS}/a"), &Value::Null).await.ok();
    cluster.delete("/api/v1/namespaces/default/secrets/s", &Value::Null).await.ok();
    for gone in [&*free, &*bound, "made-up", ""] {
        assert_eq!(whose(&cluster, gone).await, json!({"user": {}, "error": "invalid bearer token"}), "{gone}");
    }
}

#[tokio::test]
async fn token_requests_that_cannot_be_met_are_refused_in_words() {
    let cluster = Cluster::start().await;
    let path = format!("{ACCOUNTS}/default/token");
    let none = cluster.post(&format!("{ACCOUNTS}/none/token"), &json!({"spec": {}})).await;
    assert_eq!((none.code, none.message()), (404, "serviceaccounts \"none\" not found"));
    let short = cluster.post(&path, &json!({"spec": {"expirationSeconds": 60}})).await;
    assert!(short.code == 422 && short.message().ends_with("may not specify a duration less than 10 minutes"));
    let bound = json!({"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "none"}}});
    assert_eq!(cluster.post(&path, &bound).await.refusal(), (404, "NotFound"));
    assert_eq!(cluster.get(&path).await.refusal(), (405, "MethodNotAllowed"));
}

async fn may(cluster: &Cluster, user: &str, groups: &[&str], attributes: Value) -> Value {
    let mut spec = json!({"user": user, "groups": groups});
    let member = if attributes["path"].is_null() { "resourceAttributes" } else { "nonResourceAttributes" };
    spec[member] = attributes;
    cluster.post(ACCESS_REVIEWS, &json!({ "spec": spec })).await.ok()["status"].clone()
}

#[tokio::test]
async fn access_is_judged_by_roles_and_bindings() {
    let cluster = Cluster::start().await;
    let rules = json!([
        {"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "*/scale"], "verbs": ["get"], "resourceNames": ["web"]},
    ]);
    cluster.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": "view"}, "rules": rules})).await.ok();
    let role =
        json!({"metadata": {"name": "pods"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]});
    cluster.post(&format!("{RBAC}/namespaces/default/roles"), &role).await.ok();
    let bind = |name: &str, kind: &str, role: &str, subject: Value| {
        json!({
            "metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        })
    };
    let account = json!({"kind": "ServiceAccount", "name": "a", "namespace": "default"});
    let cluster_wide = bind("views", "ClusterRole", "view", account);
    cluster.post(&format!("{RBAC}/clusterrolebindings"), &cluster_wide).await.ok();
    let in_default = bind("pods", "Role", "pods", json!({"kind": "Group", "name": "devs"}));
    cluster.post(&format!("{RBAC}/namespaces/default/rolebindings"), &in_default).await.ok();
    let admins = bind("admins", "ClusterRole", "cluster-admin", json!({"kind": "User", "name": "root"}));
    cluster.post(&format!("{RBAC}/clusterrolebindings"), &admins).await.ok();

    let a = "system:serviceaccount:default:a";
    let path = |verb: &str, path: &str| json!({"verb": verb, "path": path});
    let object = |verb: &str, group: &str, resource: &str, namespace: &str, name: &str| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        json!({
            "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
            "name": name,
        })
    };
    let allowed = may(&cluster, a, &[], path("get", "/metrics")).await;
    let reason = r#"RBAC: allowed by ClusterRoleBinding "views" of ClusterRole "view" to ServiceAccount "a/default""#;
    assert_eq!(allowed, json!({"allowed": true, "reason": reason}));
    let allowed = may(&cluster, "u", &["devs"], object("list", "", "pods", "default", "")).await;
    let reason = r#"RBAC: allowed by RoleBinding "pods/default" of Role "pods" to Group "devs""#;
    assert_eq!(allowed, json!({"allowed": true, "reason": reason}));
    for (user, groups, attributes, expected) in [
        (a, &[][..], path("get", "/debug/plugins/x"), true),
        (a, &[], path("release", "/debug/plugins/x/release"), false),
        (a, &[], path("get", "/metrics/x"), false),
        ("system:serviceaccount:other:a", &[], path("get", "/metrics"), false),
        (a, &[], object("get", "apps", "deployments", "default", "web"), true),
        (a, &[], object("get", "apps", "replicasets/scale", "other", "web"), true),
        (a, &[], object("get", "apps", "deployments/status", "default", "web"), false),
        (a, &[], object("get", "apps", "deployments", "default", "other"), false),
        (a, &[], object("list", "apps", "deployments", "default", ""), false),
        (a, &[], object("get", "", "deployments", "default", "web"), false),
        ("u", &["devs"], object("delete", "", "pods", "default", "p"), true),
        ("u", &["devs"], object("list", "", "pods", "other", ""), false),
        ("u", &["devs"], object("list", "", "pods", "", ""), false),
        ("root", &[], object("delete", "x", "y", "z", ""), true),
        ("root", &[], path("release", "/any"), true),
        ("u", &["system:masters"], path("release", "/any"), true),
        ("u", &["system:authenticated"], path("get", "/healthz"), false),
    ] {
        let status = may(&cluster, user, groups, attributes.clone()).await;
        assert_eq!(status["allowed"], expected, "{user} {groups:?} {attributes}: {status}");
    }
}
