//! Observers by pattern: the kinds that they get as the API server serves others.

use pilothouse_core::reflector::State;

use super::*;

fn definition(kind: &str) -> serde_json::Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.example.com") },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}

fn fruit(kind: &str, name: &str) -> serde_json::Value {
    json!({ "apiVersion": "example.com/v1", "kind": kind, "metadata": { "namespace": "default", "name": name } })
}

fn observer(api_version: &'static str) -> Guest {
    Guest::new().owns_nothing().observes(api_version, "*").observe(TAKES)
}

impl Scene {
    /// Waits until the API server serves other kinds for the plugin, and activates it again as its task does.
    async fn renew(&self, candidate: &Candidate) {
        soon("the kinds change", self.dispatch.kinds_changed(candidate.revision.plugin())).await;
        soon("it is activated again", self.dispatch.activate(candidate.clone())).await.expect("it can serve");
    }

    fn runs(&self, kind: &str) -> bool {
        self.dispatch.parts.informers.all().iter().any(|informer| *informer.key().of.kind == *kind)
    }

    fn left_out(&self) -> Option<String> {
        self.dispatch.records()[0].matched().and_then(|matched| matched.left_out)
    }
}

#[tokio::test]
async fn a_kind_that_comes_is_observed_and_one_that_goes_is_watched_no_more() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("a")).await;
    let candidate = scene.candidate(&observer("example.com/*")).await;
    soon("it becomes active", scene.dispatch.activate(candidate.clone())).await.expect("it can serve");
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(scene.dispatch.observing().len(), 1);

    scene.api.create(definition("Pear")).await;
    scene.renew(&candidate).await;
    scene.api.create(fruit("Pear", "williams")).await;
    scene.saw("observe done", 1).await;

    let pears = TypeMeta::new("example.com/v1", "Pear");
    let informers = scene.dispatch.parts.informers.clone();
    let lease = informers.acquire(InformerKey::all(pears.clone()), "test");
    soon("it is cached", lease.synced().wait_for(|synced| *synced)).await.expect("the informer lives");
    scene
        .api
        .delete(
            &TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            &Key::new(None, "pears.example.com"),
        )
        .await;
    comes_true("its objects are gone", || lease.get(&Key::new(Some("default"), "williams")).is_none()).await;
    scene.renew(&candidate).await;
    scene.saw("observe done", 2).await;
    drop(lease);
    comes_true("no informer runs", || !scene.runs("Pear")).await;
    // The keys of controllers have nothing to do with it.
    assert!(scene.ended.try_recv().is_err());
}

#[tokio::test]
async fn kinds_that_are_not_granted_are_neither_listed_nor_forgotten() {
    let (api, sent) = Api::overheard().await;
    let scene = Scene::at(api).await;
    scene.api.serve_apples().await;
    scene.api.create(config_map("a")).await;
    let mut candidate = scene.candidate(&observer("v1")).await;
    let file: grant::AdminFile = serde_saphyr::from_str(
        "grants:\n- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read]}\n\
         - {apiVersion: v1, kind: ConfigMap, verbs: [read]}\n\
         - {apiVersion: v1, kind: Node, verbs: [read], namespaces: [default]}\n",
    )
    .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
    scene.saw("observe done", 1).await;
    assert!(scene.runs("ConfigMap") && !scene.runs("Secret") && !scene.runs("Node"));
    let sent = String::from_utf8_lossy(&sent.lock()).into_owned();
    assert!(!sent.contains("/secrets") && !sent.contains("/nodes"), "{sent}");
    let left_out = scene.left_out().expect("kinds are left out");
    for kind in ["are not granted", "v1 Secret", "v1 Node"] {
        assert!(left_out.contains(kind), "{left_out}");
    }
    assert!(!left_out.contains("ConfigMap"), "{left_out}");
}

#[tokio::test]
async fn invariant_12_a_pattern_over_more_kinds_than_allowed_is_cut() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    for kind in ["Apple", "Pear", "Plum"] {
        scene.api.create(definition(kind)).await;
    }
    let mut candidate = scene.candidate(&observer("example.com/*")).await;
    // One is for the controller's own kind.
    candidate.limits.watches = NonZeroU32::new(3);
    soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
    comes_true("two are cached", || {
        let all = scene.dispatch.parts.informers.all();
        let watching = all.iter().filter(|informer| informer.state() == State::Watching);
        watching.filter(|informer| informer.key().of.group() == "example.com").count() == 2
    })
    .await;
    assert_eq!(
        scene.left_out().as_deref(),
        Some("observes by pattern, and does not get: 1 kinds are over limits.watches: example.com/v1 Plum")
    );
}
