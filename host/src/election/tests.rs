//! Candidates against the embedded API server.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::atomic::{AtomicUsize, Ordering};

use pilothouse_apiserver::faults::{Answer, Delay, Fault, Requests, Rule, Verb};
use pilothouse_core::key::{Key, TypeMeta};
use tokio::task::JoinHandle;

use super::*;
use crate::testing::{Api, comes_true, config_map, soon};

/// How often a host began to act again.
#[derive(Debug, Default)]
struct Begins(AtomicUsize);

impl Terms for Arc<Begins> {
    fn begins(&self, item: Option<&str>, is_again: bool) {
        assert_eq!(item, None);
        self.0.fetch_add(usize::from(is_again), Ordering::Relaxed);
    }
}

struct Host {
    acting: Acting,
    leadership: Leadership,
    begins: Arc<Begins>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Host {
    /// Starts a host that may act for this many seconds after a renewal, and whose Lease lasts a second longer.
    fn start(api: &Api, name: &str, renew: u64) -> Self {
        let timings = Timings {
            lease: Duration::from_secs(renew + 1),
            renew: Duration::from_secs(renew),
            retry: Duration::from_millis(200),
        };
        let options =
            Options { namespace: "default".to_owned(), name: "pilothouse".to_owned(), timings, revision: None };
        let (acting, begins, stop) = (Acting::new(false), Arc::<Begins>::default(), CancellationToken::new());
        let candidate = Candidate::new(options, api.cluster.clone(), acting.clone(), name);
        let leadership = candidate.leadership();
        let running = tokio::spawn({
            let (begins, stop) = (begins.clone(), stop.clone());
            async move { candidate.run(&begins, stop).await }
        });
        Self { acting, leadership, begins, stop, running }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

async fn lease(api: &Api) -> Value {
    let body = api.cluster.get(&kind(), Some("default"), "pilothouse").await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn one_host_acts_and_another_takes_over_when_it_releases_the_lease() {
    let api = Api::start().await;
    let first = Host::start(&api, "first", 600);
    soon("the first acts", first.acting.allowed()).await;
    let second = Host::start(&api, "second", 600);
    comes_true("the second stands by", || second.leadership.describe().is_ok_and(|text| text.contains("first_"))).await;
    assert!(!second.acting.is_allowed());
    assert!(first.leadership.describe().unwrap().starts_with("this host acts: it holds the Lease default/pilothouse"));
    let acting = first.acting.clone();
    first.stop().await;
    assert!(!acting.is_allowed());
    soon("the second acts", second.acting.allowed()).await;
    let lease = lease(&api).await;
    assert_eq!(lease.pointer("/spec/leaseTransitions"), Some(&json!(1)));
    assert!(lease["spec"]["holderIdentity"].as_str().unwrap().starts_with("second_"));
    assert_eq!(second.begins.0.load(Ordering::Relaxed), 0, "it was its first term");
}

#[tokio::test]
async fn a_host_that_cannot_renew_acts_no_more_and_begins_again_once_its_calls_are_over() {
    let api = Api::start().await;
    let host = Host::start(&api, "only", 1);
    soon("it acts", host.acting.allowed()).await;
    let call = host.acting.begin().unwrap();
    let refused =
        Rule::new(Fault::Status(Answer::code(500))).on(Requests::to("leases.coordination.k8s.io", &[Verb::Update]));
    let refused = api.server.faults().add(refused).unwrap();
    soon("it acts no more", host.acting.ended()).await;
    comes_true("it says why", || host.leadership.describe().is_err_and(|text| text.contains("read or taken"))).await;
    api.server.faults().remove(refused);
    comes_true("it has looked", || host.leadership.describe().is_ok()).await;
    assert!(!host.acting.is_allowed(), "a call of its last term is under way");
    drop(call);
    soon("it acts again", host.acting.allowed()).await;
    comes_true("it looks at everything again", || host.begins.0.load(Ordering::Relaxed) > 0).await;
}

#[tokio::test]
async fn a_lease_that_somebody_else_took_is_lost_and_one_whose_holder_is_gone_is_taken() {
    let api = Api::start().await;
    let host = Host::start(&api, "first", 1);
    soon("it acts", host.acting.allowed()).await;
    let took = async {
        loop {
            let mut taken = lease(&api).await;
            taken["spec"]["holderIdentity"] = "somebody".into();
            // What a later version of Kubernetes has in a Lease stays there.
            taken["spec"]["strategy"] = "OldestEmulationVersion".into();
            let options = WriteOptions { manager: "test", subresource: None };
            let body = taken.to_string().into_bytes();
            if api.cluster.update(&kind(), Some("default"), "pilothouse", body, options).await.is_ok() {
                break;
            }
        }
    };
    soon("it is taken", took).await;
    soon("it acts no more", host.acting.ended()).await;
    comes_true("it knows the holder", || host.leadership.holder().as_deref() == Some("somebody")).await;
    // Nobody renews it.
    soon("it acts again", host.acting.allowed()).await;
    let lease = lease(&api).await;
    assert_eq!(lease.pointer("/spec/leaseTransitions"), Some(&json!(1)));
    assert_eq!(lease.pointer("/spec/strategy"), Some(&json!("OldestEmulationVersion")));
    api.delete(&kind(), &Key::new(Some("default"), "pilothouse")).await;
    let made = async { while api.cluster.get(&kind(), Some("default"), "pilothouse").await.is_err() {} };
    soon("a deleted Lease is made again", made).await;
    host.stop().await;
}

#[tokio::test]
async fn nothing_that_changes_anything_is_sent_after_the_end() {
    let api = Api::start().await;
    let of = TypeMeta::new("v1", "ConfigMap");
    let acting = Acting::new(false);
    let fenced = api.cluster.for_plugin("a", None).fenced(acting.clone());
    let create =
        async |name: &str| fenced.create(&of, Some("default"), config_map(name).to_string().into_bytes(), "test").await;
    assert!(matches!(create("a").await, Err(Error::NotActing)));
    assert!(fenced.get(&of, Some("default"), "a").await.unwrap_err().is_not_found(), "reads change nothing");
    assert_eq!(api.requests("POST", "configmaps").await, 0);

    acting.allow_until(acting::now() + Duration::from_secs(3600));
    create("a").await.unwrap();
    // What is under way fails when the time is over, so that the caller does not go on.
    let slow = Fault::Delay(Delay { milliseconds: 60_000, up_to: None });
    let slow = api.server.faults().add(Rule::new(slow).on(Requests::to("configmaps", &[Verb::Create]))).unwrap();
    let under_way = tokio::spawn({
        let fenced = fenced.clone();
        let of = of.clone();
        async move { fenced.create(&of, Some("default"), config_map("b").to_string().into_bytes(), "test").await }
    });
    comes_true("it is under way", || api.server.faults().hits(slow) == Some(1)).await;
    acting.allow_until(acting::now() + Duration::from_millis(20));
    let error = soon("it ends", under_way).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Unreachable(why) if why.contains("given up")), "{error}");
}
