//! The table of built-in kinds.
//!
//! It has what discovery, validation of names and subresources need. Fields of objects are in `schema`, and columns in
//! `table`.

use crate::resources::{GroupResource, NameRule, Purpose, Resource, ScalePaths};

/// Cluster-scoped.
const CLUSTER: u16 = 1;
/// Has `/status`.
const STATUS: u16 = 1 << 1;
/// Has `/scale`.
const SCALE: u16 = 1 << 2;
/// In category `all`.
const ALL: u16 = 1 << 3;
/// Has `metadata.generation`.
const GENERATION: u16 = 1 << 4;
/// PUT may create.
const PUT_CREATES: u16 = 1 << 5;
/// Names are DNS labels.
const LABEL: u16 = 1 << 6;
/// Names are path segments.
const PATH: u16 = 1 << 7;
/// Is a review, which is answered and not stored.
const REVIEW: u16 = 1 << 8;

/// Plural, kind, short names, flags.
type Row = (&'static str, &'static str, &'static [&'static str], u16);

const CORE: &[Row] = &[
    ("configmaps", "ConfigMap", &["cm"], 0),
    ("endpoints", "Endpoints", &["ep"], 0),
    ("events", "Event", &["ev"], PUT_CREATES),
    ("limitranges", "LimitRange", &["limits"], 0),
    ("namespaces", "Namespace", &["ns"], CLUSTER | STATUS | LABEL),
    ("nodes", "Node", &["no"], CLUSTER | STATUS),
    ("persistentvolumeclaims", "PersistentVolumeClaim", &["pvc"], STATUS),
    ("persistentvolumes", "PersistentVolume", &["pv"], CLUSTER | STATUS),
    ("pods", "Pod", &["po"], STATUS | ALL | GENERATION),
    ("podtemplates", "PodTemplate", &[], GENERATION),
    ("replicationcontrollers", "ReplicationController", &["rc"], STATUS | SCALE | ALL | GENERATION),
    ("resourcequotas", "ResourceQuota", &["quota"], STATUS),
    ("secrets", "Secret", &[], 0),
    ("serviceaccounts", "ServiceAccount", &["sa"], 0),
    ("services", "Service", &["svc"], STATUS | ALL | LABEL),
];

const APPS: &[Row] = &[
    ("controllerrevisions", "ControllerRevision", &[], 0),
    ("daemonsets", "DaemonSet", &["ds"], STATUS | ALL | GENERATION),
    ("deployments", "Deployment", &["deploy"], STATUS | SCALE | ALL | GENERATION),
    ("replicasets", "ReplicaSet", &["rs"], STATUS | SCALE | ALL | GENERATION),
    ("statefulsets", "StatefulSet", &["sts"], STATUS | SCALE | ALL | GENERATION),
];

const GROUPS: &[(&str, &str, &[Row])] = &[
    ("", "v1", CORE),
    ("apps", "v1", APPS),
    (
        "batch",
        "v1",
        &[("cronjobs", "CronJob", &["cj"], STATUS | ALL | GENERATION), ("jobs", "Job", &[], STATUS | ALL | GENERATION)],
    ),
    ("autoscaling", "v2", &[("horizontalpodautoscalers", "HorizontalPodAutoscaler", &["hpa"], STATUS | ALL)]),
    (
        "rbac.authorization.k8s.io",
        "v1",
        &[
            ("clusterrolebindings", "ClusterRoleBinding", &[], CLUSTER | PATH),
            ("clusterroles", "ClusterRole", &[], CLUSTER | PATH),
            ("rolebindings", "RoleBinding", &[], PATH),
            ("roles", "Role", &[], PATH),
        ],
    ),
    ("coordination.k8s.io", "v1", &[("leases", "Lease", &[], PUT_CREATES)]),
    ("events.k8s.io", "v1", &[("events", "Event", &["ev"], PUT_CREATES)]),
    ("discovery.k8s.io", "v1", &[("endpointslices", "EndpointSlice", &[], GENERATION)]),
    (
        "networking.k8s.io",
        "v1",
        &[
            ("ingressclasses", "IngressClass", &[], CLUSTER | GENERATION),
            ("ingresses", "Ingress", &["ing"], STATUS | GENERATION),
            ("networkpolicies", "NetworkPolicy", &["netpol"], GENERATION),
        ],
    ),
    ("policy", "v1", &[("poddisruptionbudgets", "PodDisruptionBudget", &["pdb"], STATUS | GENERATION)]),
    ("scheduling.k8s.io", "v1", &[("priorityclasses", "PriorityClass", &["pc"], CLUSTER | GENERATION)]),
    ("storage.k8s.io", "v1", &[("storageclasses", "StorageClass", &["sc"], CLUSTER)]),
    (
        "apiextensions.k8s.io",
        "v1",
        &[("customresourcedefinitions", "CustomResourceDefinition", &["crd", "crds"], CLUSTER | STATUS | GENERATION)],
    ),
    (
        "authorization.k8s.io",
        "v1",
        &[
            ("localsubjectaccessreviews", "LocalSubjectAccessReview", &[], REVIEW),
            ("selfsubjectaccessreviews", "SelfSubjectAccessReview", &[], CLUSTER | REVIEW),
            ("selfsubjectrulesreviews", "SelfSubjectRulesReview", &[], CLUSTER | REVIEW),
            ("subjectaccessreviews", "SubjectAccessReview", &[], CLUSTER | REVIEW),
        ],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        &[
            ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", &[], CLUSTER | GENERATION),
            ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", &[], CLUSTER | GENERATION),
        ],
    ),
    (
        "authentication.k8s.io",
        "v1",
        &[
            ("selfsubjectreviews", "SelfSubjectReview", &[], CLUSTER | REVIEW),
            ("tokenreviews", "TokenReview", &[], CLUSTER | REVIEW),
        ],
    ),
];

/// Field selectors of kube-apiserver's built-in kinds, besides `metadata.name` and `metadata.namespace`.
fn selectable(group: &str, plural: &str) -> &'static [&'static str] {
    match (group, plural) {
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "namespaces") => &["status.phase"],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") | ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        _ => &[],
    }
}

/// The whole table.
pub(crate) fn resources() -> Vec<Resource> {
    let rows = GROUPS.iter().flat_map(|(group, version, rows)| rows.iter().map(move |row| (*group, *version, row)));
    rows.map(|(group, version, row)| resource(group, version, row)).collect()
}

fn resource(group: &str, version: &str, (plural, kind, short_names, flags): &Row) -> Resource {
    let has = |flag: u16| flags & flag != 0;
    let mut resource = Resource::new(group, version, plural, kind);
    resource.namespaced = !has(CLUSTER);
    resource.short_names = short_names.iter().map(ToString::to_string).collect();
    if has(ALL) {
        resource.categories.push("all".to_owned());
    }
    if ["customresourcedefinitions", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
        .contains(plural)
    {
        resource.categories.push("api-extensions".to_owned());
    }
    resource.status = has(STATUS);
    resource.generation = has(GENERATION);
    resource.create_on_update = has(PUT_CREATES);
    resource.names = match () {
        () if has(LABEL) => NameRule::Label,
        () if has(PATH) => NameRule::PathSegment,
        () => NameRule::Subdomain,
    };
    if has(REVIEW) {
        resource.purpose = Purpose::Review;
    }
    if has(SCALE) {
        resource.scale = Some(ScalePaths {
            spec: ".spec.replicas".to_owned(),
            status: ".status.replicas".to_owned(),
            selector: Some(".spec.selector".to_owned()),
        });
    }
    resource.selectable = selectable(group, plural).iter().map(ToString::to_string).collect();
    if group == "events.k8s.io" {
        // Events are in two groups, and are stored once in the core group's form.
        resource.storage = GroupResource::new("", "events");
        resource.stored_as = "v1".to_owned();
    }
    resource
}
