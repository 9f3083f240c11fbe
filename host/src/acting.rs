//! Says whether this process may act on the cluster.
//!
//! Everything that acts holds a clone of an [`Acting`]. While it is off, caches fill and plugins load, and nothing below begins. Each kind of
//! effect asks in one place:
//!
//! | effect | asks | while it is off |
//! |---|---|---|
//! | reconcile | `dispatch/controller/workers.rs`, a worker that looks for a key | waits |
//! | `map`, `observe` | `dispatch/pending.rs`, the next batch | waits |
//! | write or live read of a plugin | `writer/send.rs` and `writer/client.rs`, by the plugin's `Fence` | is refused |
//! | request to another server | `dispatch/imports.rs`, before it and each of its redirects, by the plugin's `Fence` | is refused |
//! | CustomResourceDefinition | `writer/send.rs`, before one that is missing or differs is applied | `dispatch/activate.rs` waits |
//! | Event | `writer/events.rs`, before it is written | is dropped |
//! | webhook configuration | `webhook/keeper.rs`, before it compares; `writer/configuration.rs`, before it deletes | waits |
//! | Secret with the webhooks' certificates | `webhook/certificate.rs`, before it is written | waits |
//!
//! With leader election one switch is on for a time, which each renewal of the Lease prolongs. With spread each plugin has its own switch, and
//! the host's own work has one ([`Switches`]). A switch turns itself off when its time is over, also if this process was stopped or the machine was
//! suspended meanwhile.
//!
//! The fence of all of them is the API client itself: [`Cluster::fenced`](crate::cluster::Cluster::fenced) sends nothing that changes
//! anything while the switch is off, and gives up what is under way when it is turned off. A call's later writes are refused.
//!
//! Work that changes something holds a [`Call`] from before it begins until it is over. So the code that turns a switch off knows when another host may
//! begin:
//!
//! ```text
//! on ─► finishing: calls go on, and no other begins ─► is_over: the last one has ended ─► off ─► another host begins
//! ```

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_core::spread::HOST;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

/// How often somebody who waits for the end looks at the clock. Timers of the runtime stand still while the machine is suspended.
const LOOK: Duration = Duration::from_secs(1);

/// The process may act for as long as it runs.
const ALWAYS: u64 = u64::MAX;

/// Whether this process may act. Clones share one switch.
#[derive(Clone, Debug)]
pub(crate) struct Acting(Arc<Switch>);

#[derive(Debug)]
struct Switch {
    /// Until when, in nanoseconds of [`now`]. 0 if it may not, or [`ALWAYS`].
    until: AtomicU64,
    /// `true` if calls that have begun may go on, and no other may begin.
    finishes: AtomicBool,
    /// Calls that have begun and not ended.
    calls: AtomicUsize,
    turned: Notify,
    changed: Arc<Notify>,
}

/// Returns the time since the machine was started. It goes on while the process is stopped or the machine is suspended, and nobody can set it.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(ALWAYS - 1)
}

impl Acting {
    /// Creates a switch that is on or off.
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self::within(is_allowed, Arc::default())
    }

    fn within(is_allowed: bool, changed: Arc<Notify>) -> Self {
        let until = AtomicU64::new(if is_allowed { ALWAYS } else { 0 });
        let (finishes, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self(Arc::new(Switch { until, finishes, calls, turned: Notify::new(), changed }))
    }

    /// Turns the switch on or off, for all clones.
    #[cfg(test)]
    pub(crate) fn set(&self, is_allowed: bool) {
        self.turn(if is_allowed { ALWAYS } else { 0 }, false);
    }

    /// Turns the switch on until this time of [`now`], for all clones.
    pub(crate) fn allow_until(&self, time: Duration) {
        self.turn(nanoseconds(time), false);
    }

    /// Lets calls that have begun go on until this time of [`now`]. No other begins.
    pub(crate) fn finish_until(&self, time: Duration) {
        self.turn(nanoseconds(time), true);
    }

    /// Turns the switch off, for all clones.
    pub(crate) fn forbid(&self) {
        self.turn(0, false);
    }

    fn turn(&self, until: u64, finishes: bool) {
        let before = self.0.finishes.swap(finishes, Ordering::SeqCst);
        if self.0.until.swap(until, Ordering::SeqCst) != until || before != finishes {
            self.0.turned.notify_waiters();
        }
    }

    /// `true` if this process may act now: at least for calls that have begun.
    pub(crate) fn is_allowed(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// `true` if calls may begin now.
    pub(crate) fn may_begin(&self) -> bool {
        !self.0.finishes.load(Ordering::SeqCst) && self.is_allowed()
    }

    /// Begins a call, or other work that changes something. `None` if none may begin now.
    pub(crate) fn begin(&self) -> Option<Call> {
        // Counted first: either the one that turns the switch off sees the call, or the call sees that the switch is off.
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        let call = Call(self.clone());
        self.may_begin().then_some(call)
    }

    /// `true` if no call is under way. While none may begin, it stays so.
    pub(crate) fn is_over(&self) -> bool {
        self.0.calls.load(Ordering::SeqCst) == 0
    }

    /// Returns how long this process may still act.
    fn remaining(&self) -> Duration {
        match self.0.until.load(Ordering::SeqCst) {
            ALWAYS => Duration::MAX,
            0 => Duration::ZERO,
            until => Duration::from_nanos(until.saturating_sub(nanoseconds(now()))),
        }
    }

    /// Waits until calls may begin.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn allowed(&self) {
        while !self.may_begin() {
            let turned = self.0.turned.notified();
            // It may have been turned on before `turned` could see that.
            if self.may_begin() {
                return;
            }
            turned.await;
        }
    }

    /// Waits until this process may not act any more.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn ended(&self) {
        loop {
            let turned = self.0.turned.notified();
            let remaining = self.remaining();
            if remaining.is_zero() {
                return;
            }
            let over = async {
                match remaining {
                    Duration::MAX => std::future::pending().await,
                    remaining => tokio::time::sleep(remaining.min(LOOK)).await,
                }
            };
            tokio::select! {
                () = turned => {}
                () = over => {}
            }
        }
    }
}

/// A call under way. It is over when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the call"]
pub(crate) struct Call(Acting);

impl Drop for Call {
    fn drop(&mut self) {
        let Acting(switch) = &self.0;
        if switch.calls.fetch_sub(1, Ordering::SeqCst) == 1 && !self.0.may_begin() {
            switch.changed.notify_one();
        }
    }
}

/// The switches of this process: one for everything, or one for each plugin and one for the host's own work. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Switches {
    host: Acting,
    /// `None` if there is one for everything. A switch is there as long as something of its plugin holds it.
    plugins: Option<Arc<Mutex<ByPlugin>>>,
    changed: Arc<Notify>,
}

type ByPlugin = BTreeMap<Box<str>, Weak<Switch>>;

impl From<Acting> for Switches {
    /// Uses one switch for everything.
    fn from(host: Acting) -> Self {
        let changed = host.0.changed.clone();
        Self { host, plugins: None, changed }
    }
}

impl Switches {
    /// Creates switches for each plugin and for the host's own work. All are off.
    pub(crate) fn each() -> Self {
        Self { plugins: Some(Arc::default()), ..Self::from(Acting::new(false)) }
    }

    /// Returns the switch for the host's own work.
    pub(crate) fn host(&self) -> &Acting {
        &self.host
    }

    /// Returns the switch of a plugin. It is off if it is new.
    pub(crate) fn of(&self, plugin: &str) -> Acting {
        let Some(plugins) = &self.plugins else { return self.host.clone() };
        let mut plugins = plugins.lock();
        if let Some(switch) = plugins.get(plugin).and_then(Weak::upgrade) {
            return Acting(switch);
        }
        plugins.retain(|_, switch| switch.strong_count() > 0);
        let acting = Acting::within(false, self.changed.clone());
        plugins.insert(plugin.into(), Arc::downgrade(&acting.0));
        acting
    }

    /// Returns all switches, by plugin. The one for the host's own work stands under [`HOST`].
    pub(crate) fn all(&self) -> BTreeMap<Box<str>, Acting> {
        let plugins = self.plugins.as_ref().map(|plugins| plugins.lock().clone()).unwrap_or_default();
        let plugins = plugins.into_iter().filter_map(|(plugin, switch)| Some((plugin, Acting(switch.upgrade()?))));
        plugins.chain([(HOST.into(), self.host.clone())]).collect()
    }

    /// Wakes the task that turns the switches, after plugins have come or gone.
    pub(crate) fn look(&self) {
        self.changed.notify_one();
    }

    /// Waits until plugins have come or gone, or the calls of one are over that may begin none.
    ///
    /// # Cancellation
    /// Safe. One task calls this.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// Adds the files below `folder` that send writes. Tests and the API client itself do not count.
    fn writing(src: &Path, folder: &Path, files: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("a file").path();
            let name = path.strip_prefix(src).expect("it is below").to_string_lossy().into_owned();
            if path.is_dir() && !name.ends_with("tests") && name != "cluster" {
                writing(src, &path, files);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "testing.rs" {
                let text = fs::read_to_string(&path).expect("a file");
                let writes = ["create", "update", "patch", "delete", "evict"].map(|verb| format!("cluster.{verb}("));
                if writes.iter().any(|write| text.contains(write)) {
                    files.insert(name);
                }
            }
        }
    }

    #[test]
    fn only_files_that_ask_send_writes() {
        let (src, mut files) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), BTreeSet::new());
        writing(&src, &src, &mut files);
        // `pilothouse dev` applies the manifests that its user names, to a server of its own. The election and the spread write the Leases by
        // which this process may act.
        let asking = [
            "cli/manifests.rs",
            "election.rs",
            "spread.rs",
            "webhook/certificate.rs",
            "writer/client.rs",
            "writer/configuration.rs",
            "writer/events.rs",
            "writer/send.rs",
        ];
        assert_eq!(files.into_iter().collect::<Vec<_>>(), asking, "a new file that writes must ask `Acting` first");
    }

    #[tokio::test]
    async fn it_is_off_when_its_time_is_over_though_nobody_turns_it_off() {
        let acting = Acting::new(false);
        acting.ended().await;
        acting.allow_until(now() + Duration::from_millis(30));
        acting.allowed().await;
        acting.ended().await;
        assert!(!acting.is_allowed());
        // A renewal prolongs it for those who wait for its end.
        acting.allow_until(now() + Duration::from_secs(3600));
        let ended = tokio::spawn({
            let acting = acting.clone();
            async move { acting.ended().await }
        });
        tokio::task::yield_now().await;
        acting.allow_until(now() + Duration::from_secs(7200));
        tokio::task::yield_now().await;
        assert!(!ended.is_finished() && acting.is_allowed());
        acting.forbid();
        ended.await.expect("it ends");
    }

    #[tokio::test]
    async fn waiting_tasks_go_on_when_acting_is_turned_on() {
        let acting = Acting::new(false);
        let waiting = tokio::spawn({
            let acting = acting.clone();
            async move { acting.allowed().await }
        });
        tokio::task::yield_now().await;
        acting.set(false);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && !acting.is_allowed());
        acting.set(true);
        waiting.await.expect("it ends");
        acting.allowed().await;
        acting.set(false);
        assert!(!acting.is_allowed());
    }

    #[test]
    fn calls_that_have_begun_go_on_while_none_may_begin_and_their_end_is_known() {
        let switches = Switches::each();
        let acting = switches.of("a");
        assert!(acting.begin().is_none() && acting.is_over());
        let soon = now() + Duration::from_secs(3600);
        acting.allow_until(soon);
        let calls = [acting.begin().expect("it may begin"), acting.begin().expect("it may begin")];
        acting.finish_until(soon);
        assert!(acting.begin().is_none() && acting.is_allowed() && !acting.is_over());
        let [first, second] = calls;
        drop(first);
        assert!(!acting.is_over());
        drop(second);
        assert!(acting.is_over());
        assert!(
            futures::FutureExt::now_or_never(switches.changed()).is_some(),
            "the task that turns the switches is woken"
        );
        acting.allow_until(soon);
        assert!(acting.begin().is_some());
    }

    #[test]
    fn each_plugin_has_its_own_switch_as_long_as_something_holds_it() {
        let switches = Switches::each();
        let (apple, pear) = (switches.of("apple"), switches.of("pear"));
        switches.of("apple").set(true);
        assert!(apple.is_allowed() && !pear.is_allowed() && !switches.host().is_allowed());
        assert_eq!(switches.all().into_keys().collect::<Vec<_>>(), [HOST, "apple", "pear"].map(Box::<str>::from));
        drop(pear);
        assert_eq!(switches.all().len(), 2);
        let one = Switches::from(Acting::new(false));
        one.host().set(true);
        assert!(one.of("apple").is_allowed());
        assert_eq!(one.all().len(), 1);
    }
}
