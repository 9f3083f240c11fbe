//! Participants against the embedded API server.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::Arc;

use parking_lot::Mutex;
use pilothouse_core::key::Key;
use tokio::task::JoinHandle;

use super::*;
use crate::testing::{Api, comes_true, soon};

/// The plugins of a host.
#[derive(Debug, Default)]
struct Plugins {
    items: Mutex<BTreeSet<Box<str>>>,
    /// What the host has begun to act for, and whether it did so again.
    begun: Mutex<Vec<(Box<str>, bool)>>,
}

impl Terms for Plugins {
    fn begins(&self, item: Option<&str>, is_again: bool) {
        self.begun.lock().push((item.unwrap().into(), is_again));
    }
}

impl Items for Plugins {
    fn items(&self) -> BTreeSet<Box<str>> {
        self.items.lock().clone()
    }

    fn used(&self) -> BTreeMap<Box<str>, Duration> {
        BTreeMap::new()
    }
}

struct Host {
    plugins: Arc<Plugins>,
    switches: Switches,
    /// By item.
    acting: BTreeMap<&'static str, Acting>,
    owners: Owners,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

const ITEMS: [&str; 5] = ["apple", "fig", "lime", "pear", HOST];

impl Host {
    /// Starts a host that may act for this many seconds after a renewal, and whose Lease lasts a second longer.
    fn start(api: &Api, name: &str, renew: u64) -> Self {
        let timings = Timings {
            lease: Duration::from_secs(renew + 1),
            renew: Duration::from_secs(renew),
            retry: Duration::from_millis(200),
        };
        let (namespace, revision) = ("default".to_owned(), Some(String::new()));
        let options = Options { namespace, name: "pilothouse".to_owned(), timings, revision };
        let (switches, stop) = (Switches::each(), CancellationToken::new());
        let plugins =
            Arc::new(Plugins { items: Mutex::new(ITEMS.map(Box::<str>::from).into()), begun: Mutex::default() });
        let participant = Participant::new(options, api.cluster.clone(), switches.clone(), name);
        let owners = participant.owners();
        let acting = ITEMS.map(|item| (item, if item == HOST { switches.host().clone() } else { switches.of(item) }));
        let running = tokio::spawn({
            let (plugins, stop) = (plugins.clone(), stop.clone());
            async move { participant.run(&*plugins, || true, stop).await }
        });
        Self { plugins, switches, acting: acting.into(), owners, stop, running }
    }

    /// The items for which it may act.
    fn acts_for(&self) -> Vec<&'static str> {
        self.acting.iter().filter(|(_, acting)| acting.is_allowed()).map(|(item, _)| *item).collect()
    }

    async fn acts_for_all(&self) {
        comes_true("it acts for everything", || self.acts_for().len() == ITEMS.len()).await;
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }

    fn says(&self, text: &str) -> bool {
        self.owners.describe().is_ok_and(|described| described.contains(text))
    }
}

/// Waits until each item has one host that acts for it, and both have some.
async fn share(one: &Host, other: &Host) {
    comes_true("both have some", || {
        let (ours, theirs) = (one.acts_for(), other.acts_for());
        assert!(ours.iter().all(|item| !theirs.contains(item)), "{ours:?} {theirs:?}");
        ours.len() > 1 && theirs.len() > 1 && ours.len() + theirs.len() == ITEMS.len()
    })
    .await;
}

async fn table(api: &Api) -> Value {
    let body = api.cluster.get(&kind(), Some("default"), "pilothouse").await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// The names of the hosts' own Leases.
async fn own_leases(api: &Api) -> Vec<String> {
    let select = crate::cluster::Select {
        namespace: Some("default"),
        labels: String::new(),
        fields: String::new(),
        metadata_only: false,
    };
    let (leases, _) = crate::election::leases::list(&api.cluster, &select).await.unwrap();
    let names = leases.iter().map(|lease| metadata(lease, "name").to_owned());
    names.filter(|name| name != "pilothouse").collect()
}

#[tokio::test]
async fn hosts_share_what_there_is_and_take_over_at_once_from_one_that_ends() {
    let api = Api::start().await;
    let first = Host::start(&api, "first", 600);
    first.acts_for_all().await;
    assert!(first.says("one of 1: it acts for 4 of 4 plugins"), "{:?}", first.owners.describe());
    let second = Host::start(&api, "second.example", 600);
    share(&first, &second).await;
    comes_true("both say so", || [&first, &second].iter().all(|host| host.says("one of 2"))).await;
    let shown = |host: &Host| ITEMS.map(|item| Sharing::Spread(host.owners.clone()).owner(item));
    comes_true("both know the owners", || shown(&first) == shown(&second)).await;
    let its = first.acting.clone();
    first.stop().await;
    assert!(its.values().all(|acting| !acting.is_allowed()));
    second.acts_for_all().await;
    let leases = own_leases(&api).await;
    assert!(leases.len() == 1 && leases[0].starts_with("second-example-"), "{leases:?}");
    assert_eq!(table(&api).await.pointer("/spec/holderIdentity"), Some(&json!(ALL)));
    second.stop().await;
    // Nobody shares any more: a host with leader election may act at once.
    let table = table(&api).await;
    assert_eq!(
        (&table["spec"]["holderIdentity"], &table["metadata"]["annotations"][TABLE]),
        (&json!(""), &Value::Null)
    );
    assert_eq!(own_leases(&api).await, [] as [String; 0]);
}

#[tokio::test]
async fn a_plugin_moves_when_its_calls_are_over() {
    let api = Api::start().await;
    let first = Host::start(&api, "first", 600);
    first.acts_for_all().await;
    let mut calls: BTreeMap<_, _> =
        first.acting.iter().map(|(item, acting)| (*item, acting.begin().unwrap())).collect();
    let second = Host::start(&api, "second", 600);
    let leaving = || {
        let leaves = |acting: &Acting| acting.is_allowed() && !acting.may_begin();
        first.acting.iter().filter(|(_, acting)| leaves(acting)).map(|(item, _)| *item).collect::<Vec<_>>()
    };
    comes_true("two are to move", || leaving().len() == 2).await;
    comes_true("it says so", || first.says(", moving to second-")).await;
    let moves = leaving();
    assert_eq!(second.acts_for(), [""; 0]);
    calls.remove(moves[0]);
    comes_true("the one without calls moves", || second.acts_for() == [moves[0]]).await;
    assert_eq!(first.acts_for().len(), ITEMS.len() - 1);
    calls.clear();
    share(&first, &second).await;
    assert!(second.plugins.begun.lock().iter().all(|(_, is_again)| !is_again));
}

#[tokio::test]
async fn plugins_of_a_host_that_is_gone_are_taken_when_its_lease_has_expired() {
    let api = Api::start().await;
    let (first, second) = (Host::start(&api, "first", 1), Host::start(&api, "second", 1));
    share(&first, &second).await;
    first.running.abort();
    second.acts_for_all().await;
    assert_eq!(first.acts_for(), [""; 0], "it has stopped before");
    let leases = own_leases(&api).await;
    assert!(leases.len() == 1 && leases[0].starts_with("second-"), "{leases:?}");
}

#[tokio::test]
async fn a_host_that_has_lost_its_lease_joins_the_others_under_another_name() {
    let api = Api::start().await;
    let (first, second) = (Host::start(&api, "first", 600), Host::start(&api, "second", 600));
    share(&first, &second).await;
    let before = own_leases(&api).await;
    let lost = before.iter().find(|name| name.starts_with("first-")).unwrap();
    let had = first.acts_for();
    let call = first.acting[had[0]].begin().unwrap();
    first.plugins.begun.lock().clear();
    api.delete(&kind(), &Key::new(Some("default"), lost)).await;
    comes_true("it has another name", || first.says("this host is first-") && !first.says(lost)).await;
    comes_true("something comes back", || !first.acts_for().is_empty()).await;
    // A call of before is still under way.
    assert!(!first.acts_for().contains(&had[0]));
    drop(call);
    share(&first, &second).await;
    let began = first.plugins.begun.lock().clone();
    assert!(began.iter().all(|(item, is_again)| *is_again || !had.contains(&&**item)), "{began:?}");
    second.stop().await;
    first.acts_for_all().await;
}

#[tokio::test]
async fn hosts_stand_by_while_another_one_holds_the_lease_by_leader_election() {
    let api = Api::start().await;
    let held = |holder: &str| json!({"holderIdentity": holder, "leaseDurationSeconds": 600, "strategy": "Newer"});
    api.create(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "default", "name": "pilothouse"}, "spec": held("leader"),
    }))
    .await;
    let host = Host::start(&api, "first", 600);
    comes_true("it stands by", || host.says("standby: leader holds the Lease default/pilothouse")).await;
    assert_eq!(host.acts_for(), [""; 0]);
    let mut lease = table(&api).await;
    lease["spec"] = held("");
    api.update(lease).await;
    host.acts_for_all().await;
    let lease = table(&api).await;
    assert_eq!((&lease["spec"]["leaseDurationSeconds"], &lease["spec"]["strategy"]), (&json!(2404), &json!("Newer")));
}

#[tokio::test]
async fn a_plugin_that_a_host_does_not_have_any_more_goes_to_one_that_has_it() {
    let api = Api::start().await;
    let (first, second) = (Host::start(&api, "first", 600), Host::start(&api, "second", 600));
    share(&first, &second).await;
    // As a host does that ends, before its last calls are over.
    first.plugins.items.lock().clear();
    first.switches.look();
    second.acts_for_all().await;
    assert_eq!(first.acts_for(), [""; 0]);
    assert!(first.says("it acts for 0 of 4 plugins"), "{:?}", first.owners.describe());
}

#[test]
fn names_of_leases_are_valid_and_never_used_twice() {
    let name = lease_name("Build_Machine.example.");
    assert!(name.starts_with("build-machine-example-") && name.len() == 34, "{name}");
    assert_ne!(lease_name("a"), lease_name("a"));
    assert!(lease_name("...").starts_with("pilothouse-"));
}

#[tokio::test(start_paused = true)]
async fn a_host_waits_for_its_plugins_but_not_for_long() {
    let began = Instant::now();
    soon("it is warm", warm(|| began.elapsed() > Duration::from_secs(1))).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    warm(|| false).await;
    assert!(began.elapsed() >= WARM_WITHIN);
}
