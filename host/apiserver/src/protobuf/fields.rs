//! The message fields of kinds that `kubectl` creates from flags.
//!
//! The numbers are from the `generated.proto` files of `k8s.io/api` and `k8s.io/apimachinery`, which never change them.

use super::{
    Field,
    Type::{
        Bytes, Flag, FlagPointer, Inline, IntOrString, Map, Message, Messages, Number, NumberPointer, Quantity, Text,
        Texts, Time,
    },
};

/// Returns the fields of a kind's message.
pub(super) fn of(api_version: &str, kind: &str) -> Option<&'static [Field]> {
    Some(match (api_version, kind) {
        ("v1", "ConfigMap") => &[
            (1, "metadata", META),
            (2, "data", Map(&Text)),
            (3, "binaryData", Map(&Bytes)),
            (4, "immutable", FlagPointer),
        ],
        ("v1", "Namespace") => &[
            (1, "metadata", META),
            (2, "spec", Message(&[(1, "finalizers", Texts)])),
            (3, "status", Message(&[(1, "phase", Text)])),
        ],
        ("v1", "Secret") => &[
            (1, "metadata", META),
            (2, "data", Map(&Bytes)),
            (3, "type", Text),
            (4, "stringData", Map(&Text)),
            (5, "immutable", FlagPointer),
        ],
        ("v1", "Service") => &[(1, "metadata", META), (2, "spec", Message(SERVICE_SPEC)), (3, "status", Message(&[]))],
        ("v1", "ServiceAccount") => &[
            (1, "metadata", META),
            (2, "secrets", Messages(OBJECT_REFERENCE)),
            (3, "imagePullSecrets", Messages(&[(1, "name", Text)])),
            (4, "automountServiceAccountToken", FlagPointer),
        ],
        ("v1", "ResourceQuota") => &[
            (1, "metadata", META),
            (2, "spec", Message(&[(1, "hard", Map(&Quantity)), (2, "scopes", Texts)])),
            (3, "status", Message(&[])),
        ],
        ("apps/v1", "Deployment") => {
            &[(1, "metadata", META), (2, "spec", Message(DEPLOYMENT_SPEC)), (3, "status", Message(&[]))]
        }
        ("batch/v1", "Job") => &[(1, "metadata", META), (2, "spec", Message(JOB_SPEC)), (3, "status", Message(&[]))],
        ("batch/v1", "CronJob") => {
            &[(1, "metadata", META), (2, "spec", Message(CRON_JOB_SPEC)), (3, "status", Message(&[]))]
        }
        ("autoscaling/v2", "HorizontalPodAutoscaler") => {
            &[(1, "metadata", META), (2, "spec", Message(AUTOSCALER_SPEC)), (3, "status", Message(&[]))]
        }
        ("networking.k8s.io/v1", "Ingress") => &[
            (1, "metadata", META),
            (2, "spec", Message(INGRESS_SPEC)),
            (3, "status", Message(&[(1, "loadBalancer", Message(&[]))])),
        ],
        ("policy/v1", "PodDisruptionBudget") => &[
            (1, "metadata", META),
            (
                2,
                "spec",
                Message(&[
                    (1, "minAvailable", IntOrString),
                    (2, "selector", Message(LABEL_SELECTOR)),
                    (3, "maxUnavailable", IntOrString),
                ]),
            ),
            (3, "status", Message(&[])),
        ],
        ("scheduling.k8s.io/v1", "PriorityClass") => &[
            (1, "metadata", META),
            (2, "value", NumberPointer),
            (3, "globalDefault", Flag),
            (4, "description", Text),
            (5, "preemptionPolicy", Text),
        ],
        ("rbac.authorization.k8s.io/v1", "Role" | "ClusterRole") => {
            &[(1, "metadata", META), (2, "rules", Messages(POLICY_RULE))]
        }
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => {
            &[(1, "metadata", META), (2, "subjects", Messages(SUBJECT)), (3, "roleRef", Message(ROLE_REF))]
        }
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => &[
            (1, "metadata", META),
            (2, "spec", Message(ACCESS_REVIEW_SPEC)),
            (3, "status", Message(ACCESS_REVIEW_STATUS)),
        ],
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => {
            &[(1, "metadata", META), (2, "spec", Message(&[(1, "namespace", Text)])), (3, "status", Message(&[]))]
        }
        ("authentication.k8s.io/v1", "TokenRequest") => &[
            (1, "metadata", META),
            (
                2,
                "spec",
                Message(&[
                    (1, "audiences", Texts),
                    (3, "boundObjectRef", Message(BOUND_OBJECT)),
                    (4, "expirationSeconds", NumberPointer),
                ]),
            ),
            (3, "status", Message(&[])),
        ],
        ("authentication.k8s.io/v1", "SelfSubjectReview") => {
            &[(1, "metadata", META), (2, "status", Message(&[(1, "userInfo", Message(&[]))]))]
        }
        ("v1" | "meta.k8s.io/v1", "DeleteOptions") => &[
            (1, "gracePeriodSeconds", NumberPointer),
            (2, "preconditions", Message(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
            (3, "orphanDependents", FlagPointer),
            (4, "propagationPolicy", Text),
            (5, "dryRun", Texts),
        ],
        _ => return None,
    })
}

pub(super) const TYPE_META: &[Field] = &[(1, "apiVersion", Text), (2, "kind", Text)];
pub(super) const TIME: &[Field] = &[(1, "seconds", Number), (2, "nanos", Number)];
pub(super) const QUANTITY: &[Field] = &[(1, "string", Text)];
pub(super) const INT_OR_STRING: &[Field] = &[(1, "type", Number), (2, "intVal", Number), (3, "strVal", Text)];

const META: super::Type = Message(&[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Number),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (10, "deletionGracePeriodSeconds", NumberPointer),
    (11, "labels", Map(&Text)),
    (12, "annotations", Map(&Text)),
    (13, "ownerReferences", Messages(OWNER_REFERENCE)),
    (14, "finalizers", Texts),
]);

const OWNER_REFERENCE: &[Field] = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", FlagPointer),
    (7, "blockOwnerDeletion", FlagPointer),
];

const OBJECT_REFERENCE: &[Field] = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];

const BOUND_OBJECT: &[Field] = &[(1, "kind", Text), (2, "apiVersion", Text), (3, "name", Text), (4, "uid", Text)];

const LABEL_SELECTOR: &[Field] = &[
    (1, "matchLabels", Map(&Text)),
    (2, "matchExpressions", Messages(&[(1, "key", Text), (2, "operator", Text), (3, "values", Texts)])),
];

const SERVICE_SPEC: &[Field] = &[
    (
        1,
        "ports",
        Messages(&[
            (1, "name", Text),
            (2, "protocol", Text),
            (3, "port", Number),
            (4, "targetPort", IntOrString),
            (5, "nodePort", Number),
            (6, "appProtocol", Text),
        ]),
    ),
    (2, "selector", Map(&Text)),
    (3, "clusterIP", Text),
    (4, "type", Text),
    (5, "externalIPs", Texts),
    (7, "sessionAffinity", Text),
    (10, "externalName", Text),
    (18, "clusterIPs", Texts),
];

const DEPLOYMENT_SPEC: &[Field] = &[
    (1, "replicas", NumberPointer),
    (2, "selector", Message(LABEL_SELECTOR)),
    (3, "template", Message(POD_TEMPLATE)),
    (
        4,
        "strategy",
        Message(&[
            (1, "type", Text),
            (2, "rollingUpdate", Message(&[(1, "maxUnavailable", IntOrString), (2, "maxSurge", IntOrString)])),
        ]),
    ),
    (5, "minReadySeconds", Number),
    (6, "revisionHistoryLimit", NumberPointer),
    (7, "paused", Flag),
    (9, "progressDeadlineSeconds", NumberPointer),
];

const JOB_SPEC: &[Field] = &[
    (1, "parallelism", NumberPointer),
    (2, "completions", NumberPointer),
    (3, "activeDeadlineSeconds", NumberPointer),
    (4, "selector", Message(LABEL_SELECTOR)),
    (5, "manualSelector", FlagPointer),
    (6, "template", Message(POD_TEMPLATE)),
    (7, "backoffLimit", NumberPointer),
    (8, "ttlSecondsAfterFinished", NumberPointer),
    (9, "completionMode", Text),
    (10, "suspend", FlagPointer),
];

const CRON_JOB_SPEC: &[Field] = &[
    (1, "schedule", Text),
    (2, "startingDeadlineSeconds", NumberPointer),
    (3, "concurrencyPolicy", Text),
    (4, "suspend", FlagPointer),
    (5, "jobTemplate", Message(&[(1, "metadata", META), (2, "spec", Message(JOB_SPEC))])),
    (6, "successfulJobsHistoryLimit", NumberPointer),
    (7, "failedJobsHistoryLimit", NumberPointer),
    (8, "timeZone", Text),
];

const AUTOSCALER_SPEC: &[Field] = &[
    (1, "scaleTargetRef", Message(&[(1, "kind", Text), (2, "name", Text), (3, "apiVersion", Text)])),
    (2, "minReplicas", NumberPointer),
    (3, "maxReplicas", Number),
    (
        4,
        "metrics",
        Messages(&[
            (1, "type", Text),
            (
                4,
                "resource",
                Message(&[
                    (1, "name", Text),
                    (
                        2,
                        "target",
                        Message(&[
                            (1, "type", Text),
                            (2, "value", Quantity),
                            (3, "averageValue", Quantity),
                            (4, "averageUtilization", NumberPointer),
                        ]),
                    ),
                ]),
            ),
        ]),
    ),
];

const INGRESS_SPEC: &[Field] = &[
    (1, "defaultBackend", Message(INGRESS_BACKEND)),
    (2, "tls", Messages(&[(1, "hosts", Texts), (2, "secretName", Text)])),
    (
        3,
        "rules",
        Messages(&[
            (1, "host", Text),
            (
                2,
                "",
                Inline(&[(
                    1,
                    "http",
                    Message(&[(
                        1,
                        "paths",
                        Messages(&[(1, "path", Text), (2, "backend", Message(INGRESS_BACKEND)), (3, "pathType", Text)]),
                    )]),
                )]),
            ),
        ]),
    ),
    (4, "ingressClassName", Text),
];

const INGRESS_BACKEND: &[Field] =
    &[(4, "service", Message(&[(1, "name", Text), (2, "port", Message(&[(1, "name", Text), (2, "number", Number)]))]))];

const POD_TEMPLATE: &[Field] = &[(1, "metadata", META), (2, "spec", Message(POD_SPEC))];

const POD_SPEC: &[Field] = &[
    (2, "containers", Messages(CONTAINER)),
    (3, "restartPolicy", Text),
    (4, "terminationGracePeriodSeconds", NumberPointer),
    (5, "activeDeadlineSeconds", NumberPointer),
    (6, "dnsPolicy", Text),
    (7, "nodeSelector", Map(&Text)),
    (8, "serviceAccountName", Text),
    (9, "serviceAccount", Text),
    (10, "nodeName", Text),
    (11, "hostNetwork", Flag),
    (12, "hostPID", Flag),
    (13, "hostIPC", Flag),
    (15, "imagePullSecrets", Messages(&[(1, "name", Text)])),
    (16, "hostname", Text),
    (17, "subdomain", Text),
    (19, "schedulerName", Text),
    (20, "initContainers", Messages(CONTAINER)),
    (24, "priorityClassName", Text),
];

const CONTAINER: &[Field] = &[
    (1, "name", Text),
    (2, "image", Text),
    (3, "command", Texts),
    (4, "args", Texts),
    (5, "workingDir", Text),
    (
        6,
        "ports",
        Messages(&[
            (1, "name", Text),
            (2, "hostPort", Number),
            (3, "containerPort", Number),
            (4, "protocol", Text),
            (5, "hostIP", Text),
        ]),
    ),
    (7, "env", Messages(&[(1, "name", Text), (2, "value", Text)])),
    (8, "resources", Message(&[(1, "limits", Map(&Quantity)), (2, "requests", Map(&Quantity))])),
    (13, "terminationMessagePath", Text),
    (14, "imagePullPolicy", Text),
    (16, "stdin", Flag),
    (17, "stdinOnce", Flag),
    (18, "tty", Flag),
    (20, "terminationMessagePolicy", Text),
];

const POLICY_RULE: &[Field] = &[
    (1, "verbs", Texts),
    (2, "apiGroups", Texts),
    (3, "resources", Texts),
    (4, "resourceNames", Texts),
    (5, "nonResourceURLs", Texts),
];

const ROLE_REF: &[Field] = &[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)];

const SUBJECT: &[Field] = &[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)];

const ACCESS_REVIEW_SPEC: &[Field] = &[
    (
        1,
        "resourceAttributes",
        Message(&[
            (1, "namespace", Text),
            (2, "verb", Text),
            (3, "group", Text),
            (4, "version", Text),
            (5, "resource", Text),
            (6, "subresource", Text),
            (7, "name", Text),
        ]),
    ),
    (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)])),
];

const ACCESS_REVIEW_STATUS: &[Field] =
    &[(1, "allowed", Flag), (2, "reason", Text), (3, "evaluationError", Text), (4, "denied", Flag)];
