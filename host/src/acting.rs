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
//! | CustomResourceDefinition | `dispatch/activate.rs`, before it is installed | waits |
//! | Event | `writer/events.rs`, before it is written | is dropped |
//! | webhook configuration | `webhook/keeper.rs`, before it compares; `writer/configuration.rs`, before it deletes | waits |
//! | Secret with the webhooks' certificates | `webhook/certificate.rs`, before it is written | waits |
//!
//! What is under way when it is turned off ends, so that its outcome is known. A call's later writes are refused.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// Whether this process may act. Clones share one switch.
#[derive(Clone, Debug)]
pub(crate) struct Acting(Arc<Switch>);

#[derive(Debug)]
struct Switch {
    is_on: AtomicBool,
    turned: Notify,
}

impl Acting {
    /// Creates a switch that is on or off.
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self(Arc::new(Switch { is_on: AtomicBool::new(is_allowed), turned: Notify::new() }))
    }

    /// Turns the switch on or off, for all clones.
    #[cfg(test)]
    pub(crate) fn set(&self, is_allowed: bool) {
        self.0.is_on.store(is_allowed, Ordering::Release);
        self.0.turned.notify_waiters();
    }

    /// `true` if this process may act now.
    pub(crate) fn is_allowed(&self) -> bool {
        self.0.is_on.load(Ordering::Acquire)
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
        // `pilothouse dev` applies the manifests that its user names, to a server of its own.
        let asking = [
            "cli/manifests.rs",
            "webhook/certificate.rs",
            "writer/client.rs",
            "writer/configuration.rs",
            "writer/events.rs",
            "writer/send.rs",
        ];
        assert_eq!(files.into_iter().collect::<Vec<_>>(), asking, "a new file that writes must ask `Acting` first");
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
