//! The finalizer of a controller: added before the first call, and removed after the cleanup.

use pilothouse_core::{
    manifest::{Permission, Verb},
    object::Object,
};
use serde_json::Value;

use super::*;
use crate::{
    plugin::Candidate,
    writer::{Finalizing, Writer},
};

const OWN: &str = "example.com/cleanup";
const FOREIGN: &str = "example.com/other";

/// Traps in the first call about an object that is being deleted, and in each call about a gone one.
const CLEANS_AT_THE_SECOND_TRY: &str = "(if (i32.eq (local.get 11) (i32.const 2)) (then unreachable)) \
    (if (i32.and (i32.eq (local.get 11) (i32.const 1)) (i32.eq (local.get 12) (i32.const 1))) (then unreachable)) \
    (i32.const {answer})";

fn cleans() -> Guest {
    Guest::new().owns_nothing().finalizer(OWN).reconcile(CLEANS_AT_THE_SECOND_TRY)
}

fn key() -> Key {
    Key::new(Some("default"), "a")
}

impl Scene {
    /// The MyApple `a` on the server, if it is there.
    async fn live(&self) -> Option<Value> {
        let body = self.api.cluster.get(&apples(), Some("default"), "a").await.ok()?;
        Some(serde_json::from_slice(&body).expect("an object is JSON"))
    }

    async fn finalizers(&self) -> Value {
        self.live().await.expect("it is there")["metadata"]["finalizers"].take()
    }

    async fn set_finalizers(&self, finalizers: &[&str]) {
        let mut apple = self.live().await.expect("it is there");
        apple["metadata"]["finalizers"] = json!(finalizers);
        self.api.update(apple).await;
    }

    fn writer(&self) -> Writer {
        self.controller().serving().access.writer.clone()
    }

    fn cached(&self) -> Arc<Object> {
        self.controller().serving().view.get(&apples(), &key()).expect("it is cached")
    }
}

#[tokio::test]
async fn object_has_the_finalizer_before_its_first_call_and_goes_after_its_cleanup() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&cleans()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(scene.finalizers().await, json!([OWN]));
    assert_eq!(scene.api.requests("PATCH", "myapples").await, 1);
    // It has the finalizer already, which costs no request.
    scene.set_finalizers(&[OWN, FOREIGN]).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);

    scene.api.delete(&apples(), &key()).await;
    assert_eq!(scene.next().await, ReconcileResult::Error);
    assert_eq!(scene.finalizers().await, json!([OWN, FOREIGN]));
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(scene.finalizers().await, json!([FOREIGN]));
    assert_eq!(scene.api.requests("PATCH", "myapples").await, 2);
    scene.set_finalizers(&[]).await;
    let controller = scene.controller();
    let is_known = || controller.ledger().look_up(&controller.serving(), &key()).is_some();
    comes_true("it is gone", || !is_known() && controller.ledger().queue().lock().is_idle()).await;
    assert!(scene.ended.try_recv().is_err(), "a call was about the gone object");
}

#[tokio::test]
async fn object_that_goes_with_the_finalizer_of_the_controller_is_not_called_for_again() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&cleans()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.api.delete(&apples(), &key()).await;
    assert_eq!(scene.next().await, ReconcileResult::Error);
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(scene.live().await, None);
    let controller = scene.controller();
    let ledger = controller.ledger();
    comes_true("its key rests", || ledger.queue().lock().is_idle() && ledger.gone().objects == 0).await;
    assert!(scene.ended.try_recv().is_err(), "a call was about the gone object");
}

#[tokio::test]
async fn invariant_7_finalizer_that_is_not_granted_is_not_written_and_nothing_is_called() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let Candidate { revision, identity, act_as, webhooks, limits, references, .. } = scene.candidate(&cleans()).await;
    let asked: Vec<Permission> = revision.manifest().permissions.clone();
    let granted = asked.into_iter().filter(|asked| !asked.verbs.contains(&Verb::Patch)).collect::<Vec<_>>();
    let grants = Arc::new(Grants::all_asked(&granted));
    scene
        .dispatch
        .activate(Candidate { revision, identity, act_as, grants, webhooks, limits, references })
        .await
        .expect("it can serve");
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Error);
    let (_, failing) = scene.controller().ledger().failing(1);
    let error = &failing.first().expect("it fails").error;
    assert!(
        error.starts_with(
            "cannot add the finalizer example.com/cleanup: not granted: patch stable.example.com/v1 MyApple "
        ),
        "{error}"
    );
    assert_eq!(scene.finalizers().await, json!(null));
}

#[tokio::test]
async fn finalizers_of_others_stay_though_the_cache_is_out_of_date() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&cleans()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let (writer, old) = (scene.writer(), scene.cached());
    scene.set_finalizers(&[FOREIGN, OWN]).await;
    assert_eq!(writer.remove_finalizer(&old, true, OWN).await.expect("it is removed"), Finalizing::Written);
    // The controller adds it again, after that of somebody else.
    comes_true("it is back", || scene.cached().has_finalizer(OWN)).await;
    assert_eq!(scene.finalizers().await, json!([FOREIGN, OWN]));

    // The server has it already.
    assert_eq!(writer.add_finalizer(&old, "example.com/new").await.expect("it is added"), Finalizing::Written);
    assert_eq!(writer.add_finalizer(&old, "example.com/new").await.expect("it is there"), Finalizing::Unchanged);
    // Another object of that name is not freed.
    let mut other: Value = serde_json::from_str(&old.json()).expect("an object is JSON");
    other["metadata"]["uid"] = json!("other");
    let other = Object::parse(other.to_string().as_bytes(), &apples()).expect("an object");
    assert_eq!(writer.remove_finalizer(&other, false, FOREIGN).await.expect("it is gone"), Finalizing::Ended);
    assert_eq!(scene.finalizers().await, json!([FOREIGN, OWN, "example.com/new"]));
}
