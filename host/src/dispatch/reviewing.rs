//! Answers the webhooks of a plugin: reviews of requests to the API server, and conversions of objects.
//!
//! The plugin is called within the time that the API server waits, on the plugin's own account. At most [`AT_ONCE`]
//! calls run at once, and [`QUEUE`] wait. The failure policy of the webhook decides about what is not answered.
//!
//! ```text
//! HTTPS server ─► granted? ─► free slot? ─► informers synced? ─► `validate`, `mutate`, `convert` (the revision of the moment)
//! ```

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use pilothouse_core::manifest::{MAX_REVIEW, Webhook};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info, info_span};

use super::{
    Parts,
    hook::HookError,
    imports::{Access, CallImports},
    record::Record,
};
use crate::{
    acting::Acting,
    guests::Account,
    informer::Lease,
    name::PluginName,
    wasm::{CallError, Decision, Review, Revision},
    writer::{Endpoint, Identity, Writer},
};

/// Calls of one plugin at once. More would only wait for each other's turns.
const AT_ONCE: usize = 32;

/// Reviews and conversions of one plugin that wait for a slot: some seconds' worth.
const QUEUE: usize = 256;

/// The part of the API server's waiting time that is left for the answer's way back: one in ten.
const MARGIN: u32 = 10;

/// Upper bound of the time that is left for the answer's way back.
const MAX_MARGIN: Duration = Duration::from_millis(500);

/// What to do about webhooks that are granted in a host without an address for them.
pub const UNSERVED: &str =
    "the plugin's webhooks are granted and not served: start the host with --webhook-service or --webhook-url";

/// Why a review or a conversion has no answer.
#[derive(Debug)]
pub enum ReviewError {
    /// The plugin has no such webhook, or the administrator does not grant it.
    NotGranted,
    /// Too many calls wait.
    Busy,
    /// What the plugin reads is not cached in time.
    NotSynced(String),
    /// No slot was free in time.
    Late,
    /// The host is stopping.
    Stopped,
    /// The plugin's own error.
    Refused(String),
    /// The call failed.
    Call(CallError),
}

impl fmt::Display for ReviewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGranted => f.write_str("the plugin has no such webhook, or the administrator does not grant it"),
            Self::Busy => write!(f, "{AT_ONCE} calls of the plugin run, and {QUEUE} wait"),
            Self::NotSynced(what) => write!(f, "what the plugin reads is not cached yet: {what}"),
            Self::Late => write!(f, "{AT_ONCE} calls of the plugin run, and none ended in time"),
            Self::Stopped => f.write_str("the host is stopping"),
            Self::Refused(message) => write!(f, "the plugin failed: {message}"),
            Self::Call(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReviewError {}

/// A webhook that the administrator grants, and what its plugin reads to answer.
pub(super) struct Granted {
    pub(super) webhook: Webhook,
    pub(super) leases: Vec<Arc<Lease>>,
}

/// The revision that is called now.
pub(super) struct Serving {
    pub(super) revision: Arc<Revision>,
    pub(super) access: Arc<Access>,
    pub(super) identity: Identity,
    pub(super) webhooks: Vec<Granted>,
}

/// What answers the webhooks of one plugin.
pub struct Reviewing {
    plugin: PluginName,
    serving: ArcSwap<Serving>,
    slots: Semaphore,
    /// Calls that run or wait for a slot.
    calls: AtomicUsize,
    tasks: TaskTracker,
    record: Arc<Record>,
    account: Account,
}

impl Reviewing {
    pub(super) fn start(record: Arc<Record>, serving: Serving, parts: &Parts) -> Arc<Self> {
        let plugin = record.plugin().clone();
        Arc::new(Self {
            serving: ArcSwap::from_pointee(serving),
            slots: Semaphore::new(AT_ONCE),
            calls: AtomicUsize::new(0),
            tasks: TaskTracker::new(),
            account: parts.guests.account(&plugin),
            record,
            plugin,
        })
    }

    /// Returns the plugin.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Returns the switch of the plugin.
    pub fn acting(&self) -> &Acting {
        self.record.acting()
    }

    /// Returns the identity under which the plugin's configurations are written.
    pub fn identity(&self) -> Identity {
        self.serving.load().identity.clone()
    }

    /// Returns the writer for the configurations of the plugin's webhooks. They are the host's own.
    pub fn writer(&self) -> Writer {
        self.serving.load().access.writer.as_host()
    }

    /// Returns the webhooks that the administrator grants.
    pub fn webhooks(&self) -> Vec<Webhook> {
        self.serving.load().webhooks.iter().map(|granted| granted.webhook.clone()).collect()
    }

    /// Returns the revision that is called.
    pub fn revision(&self) -> Arc<Revision> {
        self.serving.load().revision.clone()
    }

    /// Returns `true` if the plugin converts objects.
    pub fn converts(&self) -> bool {
        self.revision().manifest().needs_conversion()
    }

    /// Applies the plugin's CustomResourceDefinitions again if they differ, for example after the certificates changed.
    ///
    /// # Errors
    /// See [`Writer::install`].
    pub async fn install(&self, endpoint: &Endpoint) -> Result<(), crate::writer::CrdError> {
        let serving = self.serving.load_full();
        let manifest = serving.revision.manifest();
        if manifest.needs_conversion() {
            serving.access.writer.as_host().install(&manifest.crds, Some(endpoint)).await?;
        }
        Ok(())
    }

    /// Calls the plugin with a review. `arrived` is when the API server began to wait.
    ///
    /// # Errors
    /// See [`ReviewError`].
    ///
    /// # Cancellation
    /// Dropping the future ends the call.
    pub async fn review(&self, review: Review, arrived: Instant) -> Result<(Decision, Option<String>), ReviewError> {
        let serving = self.serving.load_full();
        let Some(granted) = serving.webhooks.iter().find(|granted| granted.webhook.name == review.webhook) else {
            return Err(ReviewError::NotGranted);
        };
        let Times { deadline, answer_by } = Times::new(arrived, granted.webhook.timeout);
        let _call = self.begin()?;
        synced(&granted.leases, deadline).await?;
        let Ok(slot) = tokio::time::timeout_at(deadline, self.slots.acquire()).await else {
            return Err(ReviewError::Late);
        };
        let _slot = slot.map_err(|_| ReviewError::Stopped)?;
        let what = format!("review of {} {} ({})", review.kind, named(&review), review.webhook);
        let span = info_span!("review", plugin = %self.plugin, webhook = review.webhook);
        let (of_type, revision) = (granted.webhook.of_type, serving.revision.clone());
        let imports = Arc::new(CallImports::reviewing(serving.access.clone()));
        let budget = deadline.saturating_duration_since(Instant::now());
        let call = async move { revision.review(imports, of_type, &review, budget).await };
        self.run(what, budget, answer_by, call.instrument(span)).await
    }

    /// Converts objects. `arrived` is when the API server began to wait.
    ///
    /// # Errors
    /// See [`ReviewError`].
    ///
    /// # Cancellation
    /// Dropping the future ends the call.
    pub async fn convert(
        &self,
        api_version: String,
        objects: Vec<String>,
        arrived: Instant,
    ) -> Result<Vec<String>, ReviewError> {
        let Times { deadline, answer_by } = Times::new(arrived, MAX_REVIEW);
        let _call = self.begin()?;
        let Ok(slot) = tokio::time::timeout_at(deadline, self.slots.acquire()).await else {
            return Err(ReviewError::Late);
        };
        let _slot = slot.map_err(|_| ReviewError::Stopped)?;
        let what = format!("conversion of {} objects to {api_version}", objects.len());
        let span = info_span!("convert", plugin = %self.plugin, version = api_version);
        let revision = self.serving.load().revision.clone();
        let budget = deadline.saturating_duration_since(Instant::now());
        let call = async move { revision.convert(&api_version, &objects, budget).await };
        self.run(what, budget, answer_by, call.instrument(span)).await
    }

    /// Replaces the revision that is called. Calls in flight finish on the old one.
    pub(super) fn swap(&self, serving: Serving) {
        self.serving.store(Arc::new(serving));
    }

    /// The caches, writers and grants of the revision that is called.
    pub(super) fn access(&self) -> Arc<Access> {
        self.serving.load().access.clone()
    }

    /// Returns when the calls in flight are finished.
    pub(super) async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        info!(plugin = %self.plugin, "webhooks stopped");
    }

    /// Counts a call until the guard is dropped.
    fn begin(&self) -> Result<Call<'_>, ReviewError> {
        let call = Call(&self.calls);
        if self.calls.fetch_add(1, Ordering::Relaxed) >= AT_ONCE + QUEUE { Err(ReviewError::Busy) } else { Ok(call) }
    }

    /// Runs a call and records how it failed. A call that has no answer at `answer_by` is dropped, which ends it: its own
    /// deadline, after `budget`, is extended while it waits for a core, and the API server's is not.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        what: String,
        budget: Duration,
        answer_by: Instant,
        call: impl Future<Output = Result<Result<T, String>, CallError>> + Send + 'static,
    ) -> Result<T, ReviewError> {
        let call = self.account.spawn(self.tasks.track_future(call));
        let ended = match tokio::time::timeout_at(answer_by, call.ended()).await {
            Ok(ended) => ended.ok_or(ReviewError::Stopped)?,
            Err(_) => Err(CallError::Deadline { after: budget, backtrace: Vec::new() }),
        };
        let error = match ended {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(message)) => HookError::Refused(message),
            Err(error) => HookError::Call(error),
        };
        self.record.review_failed(&what, &error);
        Err(match error {
            HookError::Refused(message) => ReviewError::Refused(message),
            HookError::Call(error) => ReviewError::Call(error),
        })
    }
}

/// A call that runs or waits.
struct Call<'a>(&'a AtomicUsize);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The times of one call, given how long the API server waits for it.
struct Times {
    /// Until then the plugin may take.
    deadline: Instant,
    /// Until then there is an answer, whatever the plugin does.
    answer_by: Instant,
}

impl Times {
    fn new(arrived: Instant, timeout: Duration) -> Self {
        let margin = (timeout / MARGIN).min(MAX_MARGIN);
        Self { deadline: arrived + timeout - margin, answer_by: arrived + timeout - margin / 2 }
    }
}

/// Waits until all leases have synced.
async fn synced(leases: &[Arc<Lease>], deadline: Instant) -> Result<(), ReviewError> {
    for lease in leases {
        let mut synced = lease.synced();
        // Nearly always at once.
        if *synced.borrow() {
            continue;
        }
        if tokio::time::timeout_at(deadline, synced.wait_for(|synced| *synced)).await.is_err() {
            return Err(ReviewError::NotSynced(format!("{}: {}", lease.key(), lease.state())));
        }
    }
    Ok(())
}

/// Names the reviewed object.
fn named(review: &Review) -> String {
    match &review.namespace {
        Some(namespace) => format!("{namespace}/{}", review.name),
        None => review.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_time_is_left_for_the_way_back_and_no_more_than_half_a_second() {
        let arrived = Instant::now();
        let times = |seconds| {
            let Times { deadline, answer_by } = Times::new(arrived, Duration::from_secs(seconds));
            [deadline, answer_by].map(|time| (time - arrived).as_millis())
        };
        assert_eq!([times(1), times(10), times(30)], [[900, 950], [9_500, 9_750], [29_500, 29_750]]);
    }
}
