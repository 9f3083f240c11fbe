//! Says whether this process may act on the cluster.
//!
//! The host owns one [`Acting`], and everything that acts holds a clone of it. While it is off, caches fill and plugins
//! load, and nothing below begins. Each kind of effect asks in one place:
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
//! With leader election it is on for a time, which each renewal of the Lease prolongs. Nobody has to turn it off: it is off when that time is
//! over, also if this process was stopped or the machine was suspended meanwhile.
//!
//! The fence of all of them is the API client itself: [`Cluster::fenced`](crate::cluster::Cluster::fenced) sends nothing that changes
//! anything while the switch is off, and gives up what is under way when it is turned off. A call's later writes are refused.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

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
    turned: Notify,
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
        let until = if is_allowed { ALWAYS } else { 0 };
        Self(Arc::new(Switch { until: AtomicU64::new(until), turned: Notify::new() }))
    }

    /// Turns the switch on or off, for all clones.
    #[cfg(test)]
    pub(crate) fn set(&self, is_allowed: bool) {
        self.turn(if is_allowed { ALWAYS } else { 0 });
    }

    /// Turns the switch on until this time of [`now`], for all clones.
    pub(crate) fn allow_until(&self, time: Duration) {
        self.turn(nanoseconds(time));
    }

    /// Turns the switch off, for all clones.
    pub(crate) fn forbid(&self) {
        self.turn(0);
    }

    fn turn(&self, until: u64) {
        self.0.until.store(until, Ordering::Release);
        self.0.turned.notify_waiters();
    }

    /// `true` if this process may act now.
    pub(crate) fn is_allowed(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns how long this process may still act.
    fn remaining(&self) -> Duration {
        match self.0.until.load(Ordering::Acquire) {
            ALWAYS => Duration::MAX,
            0 => Duration::ZERO,
            until => Duration::from_nanos(until.saturating_sub(nanoseconds(now()))),
        }
    }

    /// Waits until this process may act.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn allowed(&self) {
        while !self.is_allowed() {
            let turned = self.0.turned.notified();
            // It may have been turned on before `turned` could see that.
            if self.is_allowed() {
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
        // `pilothouse dev` applies the manifests that its user names, to a server of its own. The election writes the Lease by which this
        // process may act.
        let asking = [
            "cli/manifests.rs",
            "election.rs",
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
}
