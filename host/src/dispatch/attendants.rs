//! Tasks that serve a controller or an observer as long as it works, on its plugin's account.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::error;

use crate::{guests::Account, name::PluginName};

/// Pause before a task begins anew after the host panicked in it. A lasting fault must not fill the log.
pub(super) const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The tasks of one owner. Tasks hold their owner, so it calls [`shut_down`](Self::shut_down) in the end.
pub(super) struct Attendants {
    plugin: PluginName,
    account: Account,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

impl Attendants {
    /// Creates it without tasks.
    pub(super) fn new(plugin: &PluginName, account: Account) -> Self {
        Self { plugin: plugin.clone(), account, tasks: TaskTracker::new(), stopping: CancellationToken::new() }
    }

    /// Runs `work` with `owner` until it returns or the owner ends. It begins anew after a panic.
    pub(super) fn spawn<T, F>(&self, owner: &Arc<T>, work: impl Fn(Arc<T>) -> F + Send + 'static)
    where
        T: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (owner, stopping) = (owner.clone(), self.stopping.clone());
        // Boxed, because a future that waits for the token holds what it runs several times over.
        let persisting = Box::pin(persist(self.plugin.clone(), move || work(owner.clone())));
        let attend = async move { stopping.run_until_cancelled_owned(persisting).await };
        self.account.spawn(self.tasks.track_future(attend)).detach();
    }

    /// Runs `work` with `owner` until it returns, which it must do when [`stopping`](Self::stopping) is cancelled. It
    /// begins anew after a panic.
    pub(super) fn spawn_to_its_end<T, F>(&self, owner: &Arc<T>, work: impl Fn(Arc<T>) -> F + Send + 'static)
    where
        T: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let owner = owner.clone();
        let persisting = persist(self.plugin.clone(), move || work(owner.clone()));
        self.account.spawn(self.tasks.track_future(persisting)).detach();
    }

    /// Cancelled when the owner ends.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Ends the tasks.
    pub(super) fn shut_down(&self) {
        self.stopping.cancel();
        self.tasks.close();
    }

    /// Waits until all tasks have ended, after [`shut_down`](Self::shut_down).
    pub(super) async fn ended(&self) {
        self.tasks.wait().await;
    }
}

/// Runs `work` until it returns. After a panic it begins anew: nothing else would replace the task.
pub(super) async fn persist<F: Future<Output = ()>>(plugin: PluginName, work: impl Fn() -> F) {
    while AssertUnwindSafe(work()).catch_unwind().await.is_err() {
        error!(%plugin, again_in = ?RESTART_AFTER, "the host panicked in a task of the plugin");
        tokio::time::sleep(RESTART_AFTER).await;
    }
}
