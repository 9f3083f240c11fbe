//! Generates pods as a cluster has them, from numbers. The same number gives the same pod in every run.
//!
//! A pod is about 5 kB as the API server writes it, a fifth of it managedFields. Five pods share a ReplicaSet, two
//! ReplicaSets a Deployment, and Deployments are spread over namespaces. The pods are synthetic: they compare programs,
//! and do not predict the figures of a given cluster.
//!
//! ```
//! use pilothouse_bench::objects::Pod;
//!
//! let mut text = String::new();
//! Pod::of(7).write(&mut text, 1_000, true);
//! assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
//! ```

use std::fmt::Write as _;

/// Number of pods of a ReplicaSet.
const PODS_OF_A_SET: u64 = 5;
const NAMESPACES: [&str; 10] = [
    "default",
    "ingress",
    "orders-production",
    "orders-staging",
    "search",
    "billing",
    "observability",
    "batch",
    "accounts-production",
    "kube-system",
];
const ROLES: [&str; 4] = ["frontend", "backend", "worker", "cache"];

/// Returns a pseudorandom number: SplitMix64 of `seed`.
pub fn scatter(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Returns a UUID of version 4 for `seed`.
pub(crate) fn uid(seed: u64) -> String {
    let (a, b) = (scatter(seed), scatter(!seed));
    let group = |bits: u64, width: u32| bits & ((1 << width) - 1);
    format!("{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}", a >> 32, group(a, 16), group(a >> 16, 12), b >> 52, group(b, 48))
}

/// Returns `length` characters of the set that Kubernetes appends to names. It has no vowels, so they form no words.
fn suffix(seed: u64, length: usize) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut bits = scatter(seed);
    let mut next = || {
        let letter = LETTERS[(bits % 27) as usize];
        bits /= 27;
        char::from(letter)
    };
    (0..length).map(|_| next()).collect()
}

/// The names of one pod; its text is written by [`Pod::write`].
#[derive(Clone, Debug)]
pub struct Pod {
    number: u64,
    deployment: u64,
    namespace: &'static str,
    app: String,
    set: String,
    set_uid: String,
    name: String,
}

impl Pod {
    /// The pod of this number.
    pub fn of(number: u64) -> Self {
        let set = number / PODS_OF_A_SET;
        let deployment = set / 2;
        let app = format!("{}-{}", ROLES[(deployment % 4) as usize], suffix(deployment, 4));
        let set_name = format!("{app}-{}", suffix(set ^ 0x5e7, 9));
        Self {
            number,
            deployment,
            namespace: NAMESPACES[(scatter(deployment) % 10) as usize],
            name: format!("{set_name}-{}", suffix(number ^ 0x90d, 5)),
            set_uid: uid(set ^ (1 << 40)),
            set: set_name,
            app,
        }
    }

    /// Appends the pod at resourceVersion `version`. Versions differ in what a kubelet reports. With `with_kind` it has
    /// apiVersion and kind, as in watches; items of lists have neither.
    pub fn write(&self, out: &mut String, version: u64, with_kind: bool) {
        out.push('{');
        if with_kind {
            out.push_str(r#""kind":"Pod","apiVersion":"v1","#);
        }
        self.metadata(out, version);
        self.spec(out);
        self.status(out, version);
        out.push('}');
    }

    fn metadata(&self, out: &mut String, version: u64) {
        let Self { number, app, name, namespace, set, set_uid, .. } = self;
        let hash = set.rsplit_once('-').map_or("", |(_, hash)| hash);
        let (born, reported) = (time(*number), time(number ^ version));
        let (uid, sum) = (uid(*number), scatter(self.deployment ^ 0xc5));
        push(
            out,
            format_args!(
                r#""metadata":{{"name":"{name}","generateName":"{set}-","namespace":"{namespace}","uid":"{uid}","resourceVersion":"{version}","generation":1,"creationTimestamp":"{born}","labels":{{"app.kubernetes.io/instance":"{app}","app.kubernetes.io/name":"{app}","pod-template-hash":"{hash}"}},"annotations":{{"checksum/config":"{sum:016x}{sum:016x}","prometheus.io/port":"9090","prometheus.io/scrape":"true"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"{set}","uid":"{set_uid}","controller":true,"blockOwnerDeletion":true}}],"#,
            ),
        );
        push(
            out,
            format_args!(
                r#""managedFields":[{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"{born}","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:annotations":{{".":{{}},"f:checksum/config":{{}},"f:prometheus.io/port":{{}},"f:prometheus.io/scrape":{{}}}},"f:generateName":{{}},"f:labels":{{".":{{}},"f:app.kubernetes.io/instance":{{}},"f:app.kubernetes.io/name":{{}},"f:pod-template-hash":{{}}}},"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"{set_uid}\"}}":{{}}}}}},"f:spec":{{"f:containers":{{"k:{{\"name\":\"main\"}}":{{".":{{}},"f:args":{{}},"f:env":{{".":{{}},"k:{{\"name\":\"DATABASE_URL\"}}":{{".":{{}},"f:name":{{}},"f:value":{{}}}},"k:{{\"name\":\"POD_NAME\"}}":{{".":{{}},"f:name":{{}},"f:valueFrom":{{}}}}}},"f:image":{{}},"f:imagePullPolicy":{{}},"f:name":{{}},"f:ports":{{}},"f:readinessProbe":{{}},"f:resources":{{}}}}}},"f:dnsPolicy":{{}},"f:restartPolicy":{{}},"f:schedulerName":{{}}}}}}}},{{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"{reported}","fieldsType":"FieldsV1","fieldsV1":{{"f:status":{{"f:conditions":{{"k:{{\"type\":\"ContainersReady\"}}":{{".":{{}},"f:lastTransitionTime":{{}},"f:status":{{}},"f:type":{{}}}},"k:{{\"type\":\"Ready\"}}":{{".":{{}},"f:lastTransitionTime":{{}},"f:status":{{}},"f:type":{{}}}}}},"f:containerStatuses":{{}},"f:hostIP":{{}},"f:phase":{{}},"f:podIP":{{}},"f:startTime":{{}}}}}},"subresource":"status"}}]}},"#,
            ),
        );
    }

    fn spec(&self, out: &mut String) {
        let Self { number, app, namespace, .. } = self;
        let token = suffix(number ^ 0x70, 5);
        let memory = 128 << (self.deployment % 4);
        let (image, node) = (self.image(), self.node());
        push(
            out,
            format_args!(
                r#""spec":{{"volumes":[{{"name":"config","configMap":{{"name":"{app}","defaultMode":420}}}},{{"name":"kube-api-access-{token}","projected":{{"sources":[{{"serviceAccountToken":{{"expirationSeconds":3607,"path":"token"}}}},{{"configMap":{{"name":"kube-root-ca.crt","items":[{{"key":"ca.crt","path":"ca.crt"}}]}}}}],"defaultMode":420}}}}],"containers":[{{"name":"main","image":"{image}","args":["--config=/etc/{app}/config.yaml","--listen=:8080"],"ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],"env":[{{"name":"DATABASE_URL","value":"postgres://{app}@database.{namespace}.svc.cluster.local:5432/{app}?sslmode=require"}},{{"name":"POD_NAME","valueFrom":{{"fieldRef":{{"apiVersion":"v1","fieldPath":"metadata.name"}}}}}}],"#,
            ),
        );
        push(
            out,
            format_args!(
                r#""resources":{{"limits":{{"memory":"{memory}Mi"}},"requests":{{"cpu":"100m","memory":"{memory}Mi"}}}},"volumeMounts":[{{"name":"config","readOnly":true,"mountPath":"/etc/{app}"}},{{"name":"kube-api-access-{token}","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}],"readinessProbe":{{"httpGet":{{"path":"/readyz","port":"http","scheme":"HTTP"}},"timeoutSeconds":1,"periodSeconds":5,"successThreshold":1,"failureThreshold":3}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","securityContext":{{"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true}}}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"{app}","serviceAccount":"{app}","nodeName":"{node}","securityContext":{{"runAsNonRoot":true}},"schedulerName":"default-scheduler","tolerations":[{{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}],"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"}},"#,
            ),
        );
    }

    fn status(&self, out: &mut String, version: u64) {
        let (born, reported) = (time(self.number), time(self.number ^ version));
        let ready = !version.is_multiple_of(3);
        let word = if ready { "True" } else { "False" };
        let (image, bits) = (self.image(), scatter(self.number));
        let (b, c, d) = (bits & 0xff, (bits >> 8) & 0xff, (bits >> 16) & 0xff);
        let restarts = version % 4;
        let container = scatter(self.number ^ restarts);
        push(
            out,
            format_args!(
                r#""status":{{"phase":"Running","conditions":[{{"type":"PodReadyToStartContainers","status":"True","lastProbeTime":null,"lastTransitionTime":"{born}"}},{{"type":"Initialized","status":"True","lastProbeTime":null,"lastTransitionTime":"{born}"}},{{"type":"Ready","status":"{word}","lastProbeTime":null,"lastTransitionTime":"{reported}"}},{{"type":"ContainersReady","status":"{word}","lastProbeTime":null,"lastTransitionTime":"{reported}"}},{{"type":"PodScheduled","status":"True","lastProbeTime":null,"lastTransitionTime":"{born}"}}],"hostIP":"10.0.{b}.{c}","podIP":"10.{b}.{c}.{d}","podIPs":[{{"ip":"10.{b}.{c}.{d}"}}],"startTime":"{born}","containerStatuses":[{{"name":"main","state":{{"running":{{"startedAt":"{reported}"}}}},"lastState":{{}},"ready":{ready},"restartCount":{restarts},"image":"{image}","imageID":"{image}","containerID":"containerd://{container:032x}{bits:032x}","started":{ready}}}],"qosClass":"Burstable"}}"#,
            ),
        );
    }

    fn image(&self) -> String {
        let (app, digest) = (&self.app, scatter(self.deployment));
        format!(
            "registry.example.com/{}/{app}:1.{}.0@sha256:{digest:032x}{:032x}",
            self.namespace,
            digest % 40,
            !digest
        )
    }

    fn node(&self) -> String {
        let bits = scatter(self.number ^ 0x40de);
        format!("ip-10-0-{}-{}.eu-central-1.compute.internal", bits % 64, (bits >> 8) % 256)
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes all text");
}

/// Returns a time in the year 2026.
fn time(seed: u64) -> String {
    let bits = scatter(seed ^ 0x7173);
    let part = |shift: u32, many: u64| (bits >> shift) % many;
    format!(
        "2026-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        1 + part(0, 9),
        1 + part(8, 28),
        part(16, 24),
        part(24, 60),
        part(32, 60)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use std::collections::HashSet;

    use pilothouse_core::{key::TypeMeta, object::Object};

    use super::*;

    fn text(number: u64, version: u64) -> String {
        let mut text = String::new();
        Pod::of(number).write(&mut text, version, true);
        text
    }

    #[test]
    fn a_pod_is_one_to_kubernetes_types_and_to_the_host() {
        let text = text(7, 41);
        let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_str(&text).unwrap();
        let object = Object::parse(text.as_bytes(), &TypeMeta::new("v1", "Pod")).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some(&*object.key().name));
        assert_eq!(object.resource_version().0, 41);
        assert_eq!(object.controller().map(|owner| owner.kind).as_deref(), Some("ReplicaSet"));
        assert!(!object.json().contains("managedFields"));
    }

    #[test]
    fn a_pod_is_about_5_kb_of_which_a_fifth_is_managed_fields() {
        for number in 0..100 {
            let text = text(number, number);
            let stripped = Object::parse(text.as_bytes(), &TypeMeta::new("v1", "Pod")).unwrap().json().len();
            assert!((4_900..5_500).contains(&text.len()), "{}", text.len());
            let managed = (text.len() - stripped) as f64 / text.len() as f64;
            assert!((0.15..0.35).contains(&managed), "{managed}");
        }
    }

    #[test]
    fn numbers_have_pods_of_their_own_and_always_the_same() {
        let names: HashSet<String> = (0..10_000).map(|number| Pod::of(number).name).collect();
        assert_eq!(names.len(), 10_000);
        assert_eq!(text(3, 9), text(3, 9));
        assert_ne!(text(3, 9), text(3, 10));
    }
}
