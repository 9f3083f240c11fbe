//! Reviews that never reach their plugin: they are not granted, wait for caches, or are too many.

use pilothouse_core::manifest::{FailurePolicy, Operation, Webhook, WebhookRule, WebhookType};
use tokio::time::Instant;

use super::*;
use crate::{
    dispatch::reviewing::{self, Granted, ReviewError, Reviewing},
    wasm::{CallError, Review, User},
};

/// The slots of a plugin, and what may wait for one.
const MOST: usize = 32 + 256;

fn webhook() -> Webhook {
    Webhook {
        name: "images".to_owned(),
        of_type: WebhookType::Validating,
        rules: vec![WebhookRule {
            api_groups: vec![String::new()],
            api_versions: vec!["v1".to_owned()],
            resources: vec!["pods".to_owned()],
            operations: vec![Operation::Create],
        }],
        on_failure: FailurePolicy::Fail,
        timeout: Duration::from_secs(30),
        namespaces: None,
        labels: None,
        match_conditions: Vec::new(),
        reinvoke: false,
        reads: Vec::new(),
    }
}

fn review(webhook: &str) -> Review {
    Review {
        webhook: webhook.to_owned(),
        operation: Operation::Create,
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: Some("default".to_owned()),
        name: "web".to_owned(),
        subresource: None,
        object: None,
        old: None,
        user: User::default(),
        dry_run: false,
    }
}

/// Has the webhook `images`, whose plugin reads MyApples. Nobody serves these.
async fn waiting() -> (Scene, Arc<Reviewing>) {
    let scene = Scene::new().await;
    scene.activate(&Guest::new()).await;
    let parts = &scene.dispatch.parts;
    let (serving, record) = (scene.controller().serving(), scene.dispatch.records().remove(0));
    let leases = vec![Arc::new(parts.informers.acquire(InformerKey::all(apples()), "test"))];
    let identity = Identities::default().claim(record.plugin(), None).expect("it is alone");
    let serving = reviewing::Serving {
        revision: serving.revision.clone(),
        access: serving.access.clone(),
        identity,
        webhooks: vec![Granted { webhook: webhook(), leases }],
    };
    let reviewing = Reviewing::start(record, serving, parts);
    (scene, reviewing)
}

#[tokio::test]
async fn invariant_7_a_webhook_that_is_not_granted_is_not_called() {
    let (_scene, reviewing) = waiting().await;
    let answer = reviewing.review(review("labels"), Instant::now()).await;
    assert!(matches!(answer, Err(ReviewError::NotGranted)), "{answer:?}");
}

#[tokio::test]
async fn a_review_waits_for_its_caches_no_longer_than_the_api_server_for_it() {
    let (_scene, reviewing) = waiting().await;
    let arrived = Instant::now().checked_sub(Duration::from_secs(30)).expect("the clock is older");
    let answer = reviewing.review(review("images"), arrived).await;
    let Err(ReviewError::NotSynced(what)) = answer else { panic!("{answer:?}") };
    assert!(what.starts_with("stable.example.com/v1 MyApple: "), "{what}");
}

#[tokio::test]
async fn invariant_12_reviews_beyond_those_that_may_wait_are_refused_at_once() {
    let (_scene, reviewing) = waiting().await;
    let mut waiting: Vec<_> = (0..MOST).map(|_| Box::pin(reviewing.review(review("images"), Instant::now()))).collect();
    for one in &mut waiting {
        assert!(futures::poll!(one).is_pending());
    }
    let answer = reviewing.review(review("images"), Instant::now()).await;
    assert!(matches!(answer, Err(ReviewError::Busy)), "{answer:?}");
    let answer = reviewing.convert("v2".to_owned(), Vec::new(), Instant::now()).await;
    assert!(matches!(answer, Err(ReviewError::Busy)), "{answer:?}");
    // Those that the API server gives up make room.
    drop(waiting);
    let late = Instant::now().checked_sub(Duration::from_secs(30)).expect("the clock is older");
    let answer = reviewing.review(review("images"), late).await;
    assert!(matches!(answer, Err(ReviewError::NotSynced(_))), "{answer:?}");
}

#[tokio::test]
async fn a_call_whose_deadline_is_extended_is_answered_before_the_api_server_gives_up() {
    let (_scene, reviewing) = waiting().await;
    let (budget, answer_by) = (Duration::from_secs(30), Instant::now() + Duration::from_millis(20));
    let answer = reviewing.run::<()>("a review".to_owned(), budget, answer_by, std::future::pending()).await;
    assert!(matches!(answer, Err(ReviewError::Call(CallError::Deadline { .. }))), "{answer:?}");
}
