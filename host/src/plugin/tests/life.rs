//! From files to revisions that serve, and back.

use std::{collections::BTreeSet, num::NonZeroU32, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use pilothouse_core::{key::TypeMeta, manifest::Verb};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
    task::JoinHandle,
};

use super::super::*;
use crate::{
    guests::Guests,
    informer::Informers,
    name::PluginName,
    testing::comes_true,
    wasm::{
        Digest, Engine, PluginFile,
        testing::{self as guest, Guest},
    },
};

/// Grants everything that [`Guest`] asks for.
pub(super) const GRANTS: &str = "
grants:
  - { apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read, apply, delete] }
  - { apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply] }
  - { apiVersion: v1, kind: ConfigMap, verbs: [read, apply, delete] }
";

/// Stands in for dispatch, and records the calls.
#[derive(Default)]
struct Dispatch {
    /// `+1.0.0` for an activation, `-` for a deactivation.
    calls: Mutex<Vec<String>>,
    latest: Mutex<Option<Candidate>>,
    /// Versions whose activation never ends.
    stuck: Mutex<BTreeSet<&'static str>>,
    /// Versions whose activation panics.
    panicking: Mutex<BTreeSet<&'static str>>,
    /// The number of next activations that fail.
    failing: Mutex<u32>,
    /// Notified when the kinds of patterns change.
    kinds: Notify,
}

#[derive(Debug, thiserror::Error)]
#[error("not synced")]
struct NotSynced;

impl Activate for Dispatch {
    fn activate(&self, candidate: Candidate) -> BoxFuture<'_, Result<(), ActivateError>> {
        let version = candidate.revision.manifest().version.clone();
        if self.stuck.lock().contains(&*version) {
            self.calls.lock().push(format!("?{version}"));
            return std::future::pending().boxed();
        }
        assert!(!self.panicking.lock().contains(&*version), "{version} panics, as it is to");
        async move {
            let fails = std::mem::replace(&mut *self.failing.lock(), 0);
            if fails > 0 {
                *self.failing.lock() = fails - 1;
                self.calls.lock().push(format!("!{version}"));
                return Err(ActivateError::new(&NotSynced));
            }
            self.calls.lock().push(format!("+{version}"));
            *self.latest.lock() = Some(candidate);
            Ok(())
        }
        .boxed()
    }

    fn kinds_changed<'a>(&'a self, _: &'a PluginName) -> BoxFuture<'a, ()> {
        self.kinds.notified().boxed()
    }

    fn deactivate<'a>(&'a self, _: &'a PluginName) -> BoxFuture<'a, ()> {
        self.calls.lock().push("-".to_owned());
        *self.latest.lock() = None;
        std::future::ready(()).boxed()
    }
}

struct Ears(mpsc::UnboundedSender<Status>, Failed);

/// The failures, in order.
type Failed = Arc<Mutex<Vec<(Stage, &'static str)>>>;

impl Observer for Ears {
    fn changed(&self, status: &Status) {
        // The test may have ended.
        let _ = self.0.send(status.clone());
    }

    fn failed(&self, _: &PluginName, stage: Stage, kind: &'static str) {
        self.1.lock().push((stage, kind));
    }
}

pub(super) struct World {
    pub(super) changes: mpsc::Sender<Change>,
    heard: mpsc::UnboundedReceiver<Status>,
    failed: Failed,
    statuses: Statuses,
    dispatch: Arc<Dispatch>,
    engine: Engine,
    guests: Guests,
    running: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl World {
    pub(super) fn new(mode: Mode) -> Self {
        Self::with(mode, None)
    }

    /// Creates a world whose files may refer to objects in these caches.
    pub(super) fn with(mode: Mode, informers: Option<Informers>) -> Self {
        let dispatch = Arc::new(Dispatch::default());
        let guests = Guests::within(&Handle::current());
        let (ears, heard) = mpsc::unbounded_channel();
        let failed = Failed::default();
        let engine = Engine::new().unwrap();
        let lifecycle = Lifecycle::new(
            engine.clone(),
            dispatch.clone(),
            mode,
            guests.clone(),
            Arc::new(Ears(ears, failed.clone())),
        );
        let lifecycle = match informers {
            Some(informers) => lifecycle.with_informers(informers),
            None => lifecycle,
        };
        let statuses = lifecycle.statuses();
        let (changes, changed) = mpsc::channel(16);
        let running = tokio::spawn(lifecycle.run(changed));
        Self { changes, heard, failed, statuses, dispatch, engine, guests, running }
    }

    async fn send(&self, file: &[u8], settings: Option<&str>) {
        self.change(found("red", file, settings)).await;
    }

    async fn change(&self, change: Change) {
        self.changes.send(change).await.unwrap();
    }

    /// Returns the next status. The time is a limit, not a pause.
    async fn next(&mut self) -> Status {
        tokio::time::timeout(Duration::from_secs(60), self.heard.recv()).await.expect("nothing happens").unwrap()
    }

    /// Returns the next status for which `holds` is true.
    pub(super) async fn until(&mut self, holds: impl Fn(&Status) -> bool) -> Status {
        loop {
            let status = self.next().await;
            if holds(&status) {
                return status;
            }
        }
    }

    /// Returns the states up to the next one that lasts, and its status.
    async fn settle(&mut self) -> (Vec<State>, Status) {
        let mut states = Vec::new();
        loop {
            let status = self.next().await;
            states.push(status.state);
            if matches!(status.state, State::Active | State::Disabled | State::Failed | State::Gone) {
                return (states, status);
            }
        }
    }

    /// Sends the files, and returns the status that they lead to.
    pub(super) async fn bring(&mut self, file: &[u8], settings: Option<&str>) -> Status {
        self.send(file, settings).await;
        self.settle().await.1
    }

    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.dispatch.calls.lock())
    }

    pub(super) fn latest(&self) -> Candidate {
        self.dispatch.latest.lock().clone().expect("nothing serves")
    }
}

fn found(name: &str, file: &[u8], settings: Option<&str>) -> Change {
    Change::Found(Arc::new(Found {
        name: PluginName::new(name).unwrap(),
        wasm: PluginFile::new(file.to_vec()).into(),
        digest: Digest::of(file),
        settings: settings.map_or(SettingsFile::Missing, |text| SettingsFile::Text(text.into())),
    }))
}

fn removed(name: &str) -> Change {
    Change::Removed(PluginName::new(name).unwrap())
}

/// Returns stage and message of the failure.
pub(super) fn failure(status: &Status) -> (Stage, &str) {
    let failure = status.last_failure.as_ref().expect("nothing failed");
    (failure.stage, &failure.message)
}

pub(super) fn serving(status: &Status) -> &str {
    &status.serving.as_ref().expect("nothing serves").version
}

#[tokio::test]
async fn plugin_comes_up_step_by_step_and_goes_when_its_file_does() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().file();
    world.send(&file, Some(GRANTS)).await;
    let (states, status) = world.settle().await;
    let way = [
        State::Found,
        State::Compiling,
        State::Compiled,
        State::Linked,
        State::Described,
        State::Verified,
        State::Active,
    ];
    assert_eq!(states, way);
    assert!(status.is_ready());
    assert_eq!(
        (status.found, status.serving.as_ref().map(|s| s.digest)),
        (Some(Digest::of(&file)), Some(Digest::of(&file)))
    );
    assert_eq!((serving(&status), status.last_failure.clone(), &*status.warnings), ("1.0.0", None, &[][..]));
    assert_eq!(world.statuses.get(&status.plugin), Some(status));
    world.change(removed("red")).await;
    let (states, status) = world.settle().await;
    assert_eq!((&*states, status.serving), (&[State::Draining, State::Gone][..], None));
    // Its file comes back.
    assert_eq!(world.bring(&file, Some(GRANTS)).await.state, State::Active);
    assert_eq!(world.calls(), ["+1.0.0", "-", "+1.0.0"]);
}

#[tokio::test]
async fn plugin_is_activated_again_when_the_kinds_of_its_patterns_change() {
    let mut world = World::new(Mode::Granted);
    let before = world.bring(&Guest::new().file(), Some(GRANTS)).await;
    world.dispatch.kinds.notify_one();
    comes_true("it is activated again", || world.dispatch.calls.lock().len() == 2).await;
    // That is no new revision, and newer files are taken as before.
    assert_eq!(world.statuses.get(&before.plugin), Some(before));
    let newer = Guest::new().version("2.0.0").file();
    assert_eq!(world.bring(&newer, Some(GRANTS)).await.state, State::Active);
    assert_eq!(world.calls(), ["+1.0.0", "+1.0.0", "+2.0.0"]);
}

#[tokio::test]
async fn plugin_whose_task_panicked_serves_until_its_file_goes() {
    let mut world = with_a_lost_task().await;
    world.change(removed("red")).await;
    assert_eq!(world.settle().await.0, [State::Draining, State::Gone]);
    assert_eq!(world.calls(), ["-"]);
}

#[tokio::test]
async fn plugin_whose_task_panicked_is_stopped_where_its_next_file_will_not_do() {
    let mut world = with_a_lost_task().await;
    assert_eq!(world.bring(b"garbage", Some(GRANTS)).await.state, State::Failed);
    assert_eq!(world.calls(), ["-"]);
}

/// A plugin of which one revision serves, and whose task panicked during the next activation.
async fn with_a_lost_task() -> World {
    let mut world = World::new(Mode::Granted);
    let name = world.bring(&Guest::new().file(), Some(GRANTS)).await.plugin;
    world.dispatch.panicking.lock().insert("1.1.0");
    world.send(&Guest::new().version("1.1.0").file(), Some(GRANTS)).await;
    world.until(|status| status.state == State::Verified).await;
    let lost = async {
        while world.statuses.get(&name).is_none_or(|status| status.state != State::Failed) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), lost).await.expect("its task goes on");
    assert_eq!(world.calls(), ["+1.0.0"]);
    world
}

#[tokio::test]
async fn the_bytes_of_a_loaded_file_are_freed() {
    let mut world = World::new(Mode::Granted);
    let change = found("red", &Guest::new().file(), Some(GRANTS));
    let Change::Found(found) = &change else { panic!("{change:?}") };
    let content = Arc::clone(found);
    world.change(change).await;
    world.settle().await;
    assert_eq!(content.wasm.get(), None);
}

#[tokio::test]
async fn file_that_fails_leaves_the_old_revision_serving() {
    let mut world = World::new(Mode::Granted);
    let good = Guest::new().file();
    world.bring(&good, Some(GRANTS)).await;
    for (file, stage, kind) in [
        (b"garbage".to_vec(), Stage::Compile, "decode"),
        (good[..200].to_vec(), Stage::Compile, "decode"),
        (wat::parse_str("(component)").unwrap(), Stage::Link, "link"),
        (Guest::new().describe(guest::TRAP).file(), Stage::Describe, "trap"),
        (Guest::new().describe(guest::HOG).file(), Stage::Describe, "memory"),
        (Guest::new().controller("No Name").file(), Stage::Describe, "manifest"),
        (Guest::new().watches("apps/v1", "Deployment").file(), Stage::Verify, "grants"),
    ] {
        let status = world.bring(&file, Some(GRANTS)).await;
        assert_eq!((status.state, failure(&status).0, serving(&status)), (State::Active, stage, "1.0.0"));
        assert_eq!(status.last_failure.as_ref().map(|failure| failure.digest), Some(Digest::of(&file)));
        assert_eq!(std::mem::take(&mut *world.failed.lock()), [(stage, kind)]);
        assert!(!status.is_ready());
    }
    // The content that serves is back. Nothing has to be activated.
    let status = world.bring(&good, Some(GRANTS)).await;
    assert!(status.is_ready(), "{status:?}");
    assert_eq!(world.calls(), ["+1.0.0"]);
    let status = world.bring(&Guest::new().version("1.1.0").file(), Some(GRANTS)).await;
    assert_eq!((serving(&status), status.is_ready()), ("1.1.0", true));
    assert_eq!(world.calls(), ["+1.1.0"]);
}

#[tokio::test]
async fn file_that_fails_where_nothing_serves_is_a_plugin_that_failed() {
    let mut world = World::new(Mode::Granted);
    let status = world.bring(b"garbage", Some(GRANTS)).await;
    assert_eq!(status.state, State::Failed);
    assert_eq!(failure(&status), (Stage::Compile, "the file is not WebAssembly: it begins with \"garbage\""));
    let status = world.bring(&Guest::new().describe(guest::LOOP).file(), Some("limits: { timeoutMs: 30 }")).await;
    assert_eq!(
        failure(&status),
        (Stage::Describe, "cannot call describe: plugin was stopped at its deadline of 30 ms")
    );
    let backtrace = status.last_failure.map(|failure| failure.backtrace).unwrap_or_default();
    assert!(backtrace.iter().any(|frame| frame.contains("describe")), "{backtrace:?}");
    assert_eq!(world.bring(&Guest::new().file(), Some(GRANTS)).await.state, State::Active);
    assert_eq!(world.calls(), ["+1.0.0"]);
}

#[tokio::test]
async fn the_identity_of_a_plugin_is_its_name_or_what_its_file_says() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().file();
    world.bring(&file, Some(GRANTS)).await;
    assert_eq!(world.latest().identity.manager(), "pilothouse.red");
    world.bring(&file, Some(&format!("identity: old-red{GRANTS}"))).await;
    assert_eq!(world.latest().identity.manager(), "pilothouse.old-red");
    let status = world.bring(&file, Some(&format!("identity: Old Red{GRANTS}"))).await;
    let (stage, message) = failure(&status);
    assert_eq!(stage, Stage::Settings);
    assert!(message.starts_with("cannot use red.yaml: identity: plugin name \"Old Red\" may only have"), "{message}");
    assert_eq!(world.calls(), ["+1.0.0", "+1.0.0"]);
}

#[tokio::test]
async fn a_plugin_with_the_identity_of_another_waits_until_that_is_gone() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().file();
    world.bring(&file, Some(GRANTS)).await;
    let settings = format!("identity: red{GRANTS}");
    world.change(found("blue", &file, Some(&settings))).await;
    let status = world.settle().await.1;
    assert_eq!((status.plugin.as_str(), status.state), ("blue", State::Failed));
    let taken =
        "the identity red belongs to plugin red: give blue another name, or change `identity` in blue.yaml or red.yaml";
    assert_eq!(failure(&status), (Stage::Settings, taken));
    world.change(removed("red")).await;
    let status = world.until(|status| status.plugin.as_str() == "blue" && status.state == State::Active).await;
    assert!(status.is_ready());
    assert_eq!(world.latest().identity.manager(), "pilothouse.red");
}

#[tokio::test]
async fn nothing_is_granted_without_settings() {
    let mut world = World::new(Mode::Granted);
    let status = world.bring(&Guest::new().file(), None).await;
    assert_eq!(status.state, State::Failed);
    insta::assert_snapshot!(failure(&status).1, @r"
    may not read what it works on: reading stable.example.com/v1 MyApple is not granted; reading v1 ConfigMap is not granted
    there is no red.yaml beside red.wasm, so nothing is granted; one that allows all that the plugin asks for:

    grants:
      - { apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read, apply, delete] }
      - { apiVersion: v1, kind: ConfigMap, verbs: [read, apply, delete] }
      - { apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply] }
    ");
    let status = world.bring(&Guest::new().file(), Some("# nothing yet\n")).await;
    insta::assert_snapshot!(failure(&status).1, @r"
    may not read what it works on: reading stable.example.com/v1 MyApple is not granted; reading v1 ConfigMap is not granted
    to allow all that the plugin asks for, put this into red.yaml:

    grants:
      - { apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read, apply, delete] }
      - { apiVersion: v1, kind: ConfigMap, verbs: [read, apply, delete] }
      - { apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply] }
    ");
    // And what the message says is enough.
    let (_, block) = failure(&status).1.split_once("\n\n").unwrap();
    let block = block.to_owned();
    let status = world.bring(&Guest::new().file(), Some(&block)).await;
    assert!(status.is_ready() && status.warnings.is_empty(), "{status:?}");
    assert_eq!(world.calls(), ["+1.0.0"]);
}

#[tokio::test]
async fn invariant_12_a_manifest_that_causes_too_many_watches_is_refused_with_what_to_do() {
    let mut world = World::new(Mode::Dev);
    let name = |number: usize| -> &'static str { format!("Kind{number}").leak() };
    let guest = (0..63).fold(Guest::new(), |guest, number| guest.reads("v1", name(number)));
    let status = world.bring(&guest.file(), None).await;
    assert_eq!(status.state, State::Failed);
    assert_eq!(
        failure(&status).1,
        "its manifest causes 65 watches at the API server, and it may have 64: watch fewer kinds, or each in all namespaces; or set \
         limits.watches to 65 in red.yaml"
    );
    let status = world.bring(&guest.file(), Some("limits: { watches: 65 }\n")).await;
    assert!(status.is_ready(), "{status:?}");
}

#[tokio::test]
async fn dev_grants_what_is_asked() {
    let mut world = World::new(Mode::Dev);
    let status = world.bring(&Guest::new().file(), None).await;
    assert!(status.is_ready(), "{status:?}");
    let grants = world.latest().grants;
    let maps = TypeMeta::new("v1", "ConfigMap");
    assert!(grants.check(Verb::Delete, &maps, None, Some("orchard"), Some("red-0")).is_ok());
    assert!(grants.check(Verb::Create, &maps, None, Some("orchard"), Some("red-0")).is_err());
}

#[tokio::test]
async fn permissions_that_are_not_granted_are_warned_of() {
    let mut world = World::new(Mode::Granted);
    let read = "grants: [{ apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read] }, \
                { apiVersion: v1, kind: ConfigMap, verbs: [read, apply], namespaces: [orchard] }]";
    let status = world.bring(&Guest::new().file(), Some(read)).await;
    assert!(status.is_ready());
    assert_eq!(
        status.warnings,
        [
            "asks for and is not granted: apply, delete stable.example.com/v1 MyApple",
            "asks for and is not granted: delete v1 ConfigMap",
            "asks for and is not granted: read, apply v1 ConfigMap everywhere (allowed in orchard)",
            "asks for and is not granted: apply stable.example.com/v1 MyApple/status",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn plugin_that_is_not_called_holds_neither_instances_nor_code_after_two_minutes() {
    let mut world = World::new(Mode::Granted);
    world.bring(&Guest::new().reuse().file(), Some(GRANTS)).await;
    let held = |world: &World| {
        let alive = world.engine.instances().iter().map(|(_, of)| of.alive).sum::<usize>();
        (alive, world.engine.figures().mapped)
    };
    let revision = world.latest().revision;
    revision.reconcile(Arc::new(guest::Fake::default()), guest::request()).await.unwrap().unwrap();
    assert_eq!(held(&world), (1, 1));
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(held(&world).0, 1);
    // Instances are dropped up to ten seconds late, code up to a minute.
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(held(&world).0, 0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(held(&world), (0, 0));
}

#[tokio::test]
async fn settings_alone_do_not_compile_again() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().timeout_ms(5000).concurrency(4).file();
    world.bring(&file, Some(GRANTS)).await;
    let limits = "limits: { memoryMiB: 8, totalMemoryMiB: 9, timeoutMs: 700, hostCalls: 10, hostMiB: 11, reuse: false, \
                  maxConcurrency: 2, cpuWeight: 12, cpuMilli: 13 }\nconfig: { colour: red }\n";
    world.send(&file, Some(&format!("{limits}{GRANTS}"))).await;
    let (states, status) = world.settle().await;
    assert_eq!(states, [State::Found, State::Linked, State::Described, State::Verified, State::Active]);
    assert!(status.is_ready());
    let candidate = world.latest();
    assert_eq!(&**candidate.revision.config(), "{\"colour\":\"red\"}");
    let deadline = Some(Duration::from_millis(700));
    let limits_of_calls = crate::wasm::Limits {
        memory: 8 << 20,
        total_memory: 9 << 20,
        host_calls: 10,
        host_bytes: 11 << 20,
        reuse: false,
        deadline,
    };
    assert_eq!(candidate.revision.limits(), limits_of_calls);
    let share = world.guests.shares().into_values().next().unwrap();
    assert_eq!((share.weight.get(), share.cap.map(NonZeroU32::get)), (12, Some(13)));
    assert_eq!(candidate.revision.deadline("apples"), Some(Duration::from_millis(700)));
    assert_eq!((candidate.concurrency(4), candidate.concurrency(1)), (2, 1));
    // A comment changes nothing.
    world.send(&file, Some(&format!("{limits}# all of them\n{GRANTS}"))).await;
    assert_eq!(world.settle().await.0, [State::Active]);
    assert_eq!(world.calls(), ["+1.0.0", "+1.0.0"]);
}

#[tokio::test]
async fn settings_that_cannot_be_used_leave_the_old_ones() {
    let mut world = World::new(Mode::Granted);
    world.bring(&Guest::new().file(), Some(GRANTS)).await;
    let status = world.bring(&Guest::new().version("1.1.0").file(), Some("enabled: true\ngrant: []\n")).await;
    // The new file works under the old settings, and the failure is reported.
    assert_eq!((status.state, serving(&status)), (State::Active, "1.1.0"));
    let (stage, message) = failure(&status);
    assert_eq!(stage, Stage::Settings);
    assert!(
        message.starts_with("cannot use red.yaml: ") && message.contains("line 2") && message.contains("grant"),
        "{message}"
    );
    assert!(!status.is_ready());
    let status = world.bring(&Guest::new().version("1.1.0").file(), Some(GRANTS)).await;
    assert!(status.is_ready());
    assert_eq!(world.calls(), ["+1.0.0", "+1.1.0"]);
    // Without old settings the plugin fails.
    world.change(found("blue", &Guest::new().file(), Some("enabled: maybe"))).await;
    let (_, status) = world.settle().await;
    assert_eq!((status.state, failure(&status).0), (State::Failed, Stage::Settings));
}

#[tokio::test]
async fn switched_off_plugin_is_stopped_and_comes_back() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().file();
    let off = format!("enabled: false\n{GRANTS}");
    let status = world.bring(&file, Some(&off)).await;
    assert_eq!((status.state, status.is_ready(), status.serving), (State::Disabled, true, None));
    assert_eq!(world.bring(&file, Some(GRANTS)).await.state, State::Active);
    // Also if its file is garbage.
    let status = world.bring(b"garbage", Some(&off)).await;
    assert_eq!((status.state, status.serving.as_ref()), (State::Failed, None));
    assert_eq!(world.calls(), ["+1.0.0", "-"]);
}

#[tokio::test]
async fn grants_that_are_taken_away_are_gone_though_the_file_is_broken() {
    let mut world = World::new(Mode::Granted);
    let maps = TypeMeta::new("v1", "ConfigMap");
    let may_delete =
        |world: &World| world.latest().grants.check(Verb::Delete, &maps, None, Some("a"), Some("b")).is_ok();
    world.bring(&Guest::new().file(), Some(GRANTS)).await;
    assert!(may_delete(&world));
    let less = GRANTS.replace("ConfigMap, verbs: [read, apply, delete]", "ConfigMap, verbs: [read, apply]");
    let status = world.bring(b"garbage", Some(&less)).await;
    assert_eq!((status.state, failure(&status).0, serving(&status)), (State::Active, Stage::Compile, "1.0.0"));
    assert!(!may_delete(&world));
    assert_eq!(world.calls(), ["+1.0.0", "+1.0.0"]);
    // Without the kind that it reconciles it is stopped.
    let none = GRANTS.replace("kind: MyApple, verbs: [read, apply, delete]", "kind: MyApple, verbs: [apply]");
    let status = world.bring(b"garbage", Some(&none)).await;
    assert_eq!((status.state, status.serving.as_ref(), failure(&status).0), (State::Failed, None, Stage::Compile));
    assert!(failure(&status).1.contains("reading stable.example.com/v1 MyApple is not granted"), "{status:?}");
    assert_eq!(world.calls(), ["-"]);
}

#[tokio::test]
async fn grants_that_are_taken_away_stop_the_revision_that_needs_them() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().file();
    world.bring(&file, Some(GRANTS)).await;
    let status = world.bring(&file, None).await;
    assert_eq!((status.state, failure(&status).0), (State::Failed, Stage::Verify));
    assert_eq!(world.calls(), ["+1.0.0", "-"]);
}

#[tokio::test]
async fn refused_config_leaves_the_old_one_under_the_new_grants() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().describe(guest::PICKY).file();
    world.bring(&file, Some(GRANTS)).await;
    let less = GRANTS.replace("ConfigMap, verbs: [read, apply, delete]", "ConfigMap, verbs: [read]");
    let settings = format!("config: {{ colour: 7 }}\n{less}");
    let status = world.bring(&file, Some(&settings)).await;
    assert_eq!((status.state, failure(&status).0), (State::Active, Stage::Describe));
    assert!(failure(&status).1.ends_with(guest::REFUSAL));
    let candidate = world.latest();
    assert_eq!(&**candidate.revision.config(), "{}");
    assert!(
        candidate.grants.check(Verb::Apply, &TypeMeta::new("v1", "ConfigMap"), None, Some("a"), Some("b")).is_err()
    );
    // The same settings fail again.
    let status = world.bring(&file, Some(&format!("{settings}# again"))).await;
    assert_eq!(failure(&status).0, Stage::Describe);
    assert_eq!(world.calls(), ["+1.0.0", "+1.0.0"]);
}

#[tokio::test]
async fn newer_file_takes_the_place_of_one_that_waits() {
    let mut world = World::new(Mode::Granted);
    world.dispatch.stuck.lock().insert("1.0.0");
    world.send(&Guest::new().file(), Some(GRANTS)).await;
    world.until(|status| status.state == State::Verified).await;
    assert!(!world.statuses.snapshot().settled);
    let status = world.bring(&Guest::new().version("1.1.0").file(), Some(GRANTS)).await;
    assert_eq!(serving(&status), "1.1.0");
    assert_eq!(world.calls(), ["?1.0.0", "+1.1.0"]);
}

#[tokio::test]
async fn activation_that_was_dropped_half_way_is_made_good() {
    let mut world = World::new(Mode::Granted);
    world.bring(&Guest::new().file(), Some(GRANTS)).await;
    world.dispatch.stuck.lock().insert("1.1.0");
    world.send(&Guest::new().version("1.1.0").file(), Some(GRANTS)).await;
    world.until(|status| status.state == State::Verified).await;
    // Which of both serves is unknown, and the broken file does not decide it.
    let status = world.bring(b"garbage", Some(GRANTS)).await;
    assert_eq!((status.state, serving(&status)), (State::Active, "1.0.0"));
    assert_eq!(world.calls(), ["+1.0.0", "?1.1.0", "+1.0.0"]);
    // If nothing served before, nothing serves after.
    world.dispatch.stuck.lock().insert("1.2.0");
    world.change(found("blue", &Guest::new().version("1.2.0").file(), Some(GRANTS))).await;
    world.until(|status| status.state == State::Verified).await;
    world.change(found("blue", b"garbage", Some(GRANTS))).await;
    assert_eq!(world.settle().await.1.state, State::Failed);
    assert_eq!(world.calls(), ["?1.2.0", "-"]);
}

#[tokio::test(start_paused = true)]
async fn activation_that_fails_is_tried_again() {
    let mut world = World::new(Mode::Granted);
    *world.dispatch.failing.lock() = 2;
    let status = world.bring(&Guest::new().file(), Some(GRANTS)).await;
    assert_eq!((status.state, failure(&status)), (State::Failed, (Stage::Activate, "not synced")));
    assert_eq!(world.settle().await.1.state, State::Failed);
    let (_, status) = world.settle().await;
    assert!(status.is_ready(), "{status:?}");
    assert_eq!(world.calls(), ["!1.0.0", "!1.0.0", "+1.0.0"]);
}

#[tokio::test(start_paused = true)]
async fn description_that_loops_is_tried_again_ever_more_seldom() {
    let mut world = World::new(Mode::Granted);
    let file = Guest::new().describe(guest::LOOP).file();
    world.bring(&file, Some("limits: { timeoutMs: 20 }")).await;
    let mut waited = Duration::ZERO;
    for _ in 0..10 {
        let began = tokio::time::Instant::now();
        while world.heard.recv().await.unwrap().state != State::Failed {}
        waited = began.elapsed();
    }
    assert!((150..=300).contains(&waited.as_secs()), "{waited:?}");
    assert_eq!(*world.failed.lock(), [(Stage::Describe, "deadline"); 11]);
}

#[tokio::test]
async fn plugin_that_loops_in_describe_holds_up_no_other() {
    let mut world = World::new(Mode::Granted);
    // Compiled before, as that may take longer than the deadline.
    let good = Guest::new().file();
    world.change(found("ccc", &good, Some(GRANTS))).await;
    world.settle().await;
    world.change(found("aaa", &Guest::new().describe(guest::LOOP).file(), Some(GRANTS))).await;
    world.until(|status| status.plugin.as_str() == "aaa" && status.state == State::Linked).await;
    world.change(found("bbb", &good, Some(GRANTS))).await;
    let (_, status) = world.settle().await;
    assert_eq!((status.plugin.as_str(), status.state), ("bbb", State::Active));
}

#[tokio::test]
async fn a_describe_that_loops_ends_when_its_task_is_dropped() {
    let mut world = World::new(Mode::Granted);
    world.send(&Guest::new().describe(guest::LOOP).file(), Some(GRANTS)).await;
    world.until(|status| status.state == State::Linked).await;
    let engine = world.engine.clone();
    let alive = || engine.instances().iter().map(|(_, of)| of.alive).sum::<usize>();
    let begins = async {
        while alive() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), begins).await.expect("it is not called");
    drop(world);
    // Some turns of all tasks. The deadline would come after thousands.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(alive(), 0);
}

#[tokio::test]
async fn snapshot_is_settled_when_all_that_was_found_first_is() {
    let mut world = World::new(Mode::Granted);
    assert_eq!(world.statuses.snapshot(), Snapshot::default());
    world.bring(&Guest::new().file(), Some(GRANTS)).await;
    assert!(!world.statuses.snapshot().settled);
    let problem = Problem { path: "My_Apple.wasm".into(), message: "a message".to_owned() };
    world.change(found("blue", b"garbage", None)).await;
    world.change(Change::Looked(vec![problem.clone()])).await;
    world.settle().await;
    // Changes that were sent earlier were seen earlier.
    world.change(removed("none")).await;
    world.bring(&Guest::new().file(), Some(GRANTS)).await;
    let snapshot = world.statuses.snapshot();
    assert!(snapshot.settled);
    assert_eq!(snapshot.problems, [problem]);
    let states: Vec<_> = snapshot.plugins.iter().map(|status| (status.plugin.as_str(), status.state)).collect();
    assert_eq!(states, [("blue", State::Failed), ("red", State::Active)]);
}

#[tokio::test]
async fn plugins_that_are_gone_are_shown_for_a_while() {
    let mut world = World::new(Mode::Granted);
    for number in 0..20 {
        let name = format!("plugin-{number:02}");
        world.change(found(&name, b"garbage", None)).await;
        assert_eq!(world.settle().await.1.state, State::Failed);
        world.change(removed(&name)).await;
        assert_eq!(world.settle().await.1.state, State::Gone);
    }
    let shown: Vec<_> = world.statuses.snapshot().plugins.into_iter().map(|s| s.plugin.to_string()).collect();
    assert_eq!(shown, (4..20).map(|number| format!("plugin-{number:02}")).collect::<Vec<_>>());
}
