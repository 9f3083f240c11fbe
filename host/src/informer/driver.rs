//! Performs the reflector's effects: requests, waits and changes of the store. Decides nothing.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::BytesMut;
use futures::FutureExt;
use pilothouse_core::{
    backoff::{Backoff, RECONNECT},
    list::Status,
    rate::Rate,
    reflector::{Config, Effect, Failure, Input, PAGE_SIZE, Reflector, State},
};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, error, info, warn};

use super::{Informer, lines::Lines, packing};
use crate::cluster::{Cluster, Endpoint, Error, Select, Stream};

/// Silence after which a watch counts as dead. kube-apiserver sends a bookmark about once a minute.
const DEAD_AFTER: Duration = Duration::from_secs(150);

/// Lines about skipped objects. An aggregated API may list all of its objects without a uid.
const SKIPPED: Rate = Rate { burst: 1, every: Duration::from_secs(60) };

/// Lines about informers that are blocked. A plugin may ask for any number of kinds that nobody serves.
const BLOCKED: Rate = Rate { burst: 10, every: Duration::from_secs(10) };

/// The longest accepted watch line. etcd rejects objects above 1.5 MiB, but aggregated servers may have larger ones.
const MAX_LINE: usize = 64 << 20;

/// Feeds `informer` until the task is aborted. A fault of the host is logged and counted, and the driver restarts.
pub(super) async fn run(informer: Arc<Informer>, cluster: Cluster, seed: u64) {
    let restores = informer.shared.restores();
    // Each restart gets a fresh copy, because the driver before may have received a restore without acting on it.
    let fed = supervise(&informer, seed, || feed(informer.clone(), cluster.clone(), seed, restores.clone()));
    tokio::join!(fed, packing::run(&informer));
}

/// Runs `feed`, and runs it again with backoff whenever it panics or ends.
pub(super) async fn supervise<F: Future<Output = ()>>(informer: &Informer, seed: u64, feed: impl Fn() -> F) {
    let (mut backoff, origin) = (Backoff::new(RECONNECT, seed), Instant::now());
    loop {
        backoff.healthy(origin.elapsed());
        let ended = AssertUnwindSafe(feed()).catch_unwind().await;
        let delay = backoff.next(origin.elapsed());
        let reason = match ended.as_ref().map_err(|panic| panic.downcast_ref::<&str>()) {
            Ok(()) => "the host's driver ended, which is a fault of the host".to_owned(),
            Err(Some(what)) => format!("the host's driver panicked: {what}"),
            Err(None) => "the host's driver panicked".to_owned(),
        };
        error!(informer = %informer.key, reason, retry_in = ?delay, "an informer's driver ended; it will be restarted");
        informer.record_restart();
        informer.set_state(State::Waiting { delay, reason });
        tokio::time::sleep(delay).await;
    }
}

/// Lists and watches until aborted. `restores` changes when another informer has found a restore of the cluster.
pub(super) async fn feed(informer: Arc<Informer>, cluster: Cluster, seed: u64, restores: watch::Receiver<u64>) {
    let origin = Instant::now();
    let (of, keep) = (informer.key.of.clone(), informer.key.keep.clone());
    let config = Config { of, keep, page_size: PAGE_SIZE, streaming: true, seen: informer.newest(), seed };
    let mut reflector = Reflector::new(config);
    let kinds = informer.shared.kinds.looks();
    let skipped = Lines::default();
    let mut driver = Driver { informer, cluster, endpoint: None, restores, skipped, kinds, found_restore: false };
    let mut effects = Vec::new();
    reflector.step(origin.elapsed(), Input::Start, &mut effects);
    loop {
        // No watch is open here, so the reflector only remembers the restore.
        driver.apply_restores(&mut reflector, origin, &mut effects);
        let request = driver.perform_local(&mut effects);
        driver.announce_restore().await;
        let Some(request) = request else {
            // Every step ends with a request, except for watch lines, which `read_watch` handles.
            debug_assert!(false, "the reflector made no request");
            return;
        };
        match request {
            Effect::Resolve => {
                let input = driver.resolve().await.map_or_else(|failure| driver.failed(failure), |()| Input::Resolved);
                reflector.step(origin.elapsed(), input, &mut effects);
            }
            Effect::List { limit, continue_token, resource_version } => {
                match driver.list(limit, continue_token.as_deref(), resource_version.as_deref()).await {
                    Ok(page) => reflector.step(origin.elapsed(), Input::Page(&page), &mut effects),
                    Err(error) => reflector.step(origin.elapsed(), driver.failed(failure(error)), &mut effects),
                }
            }
            Effect::Watch { resource_version, initial_events, timeout } => {
                match driver.watch(&resource_version, initial_events, timeout).await {
                    Ok(stream) => driver.read_watch(&mut reflector, origin, stream, &mut effects).await,
                    Err(error) => reflector.step(origin.elapsed(), driver.failed(failure(error)), &mut effects),
                }
            }
            Effect::Wait(delay) => {
                driver.wait(delay).await;
                reflector.step(origin.elapsed(), Input::Elapsed, &mut effects);
            }
            _ => unreachable!("perform_local performs every other effect"),
        }
    }
}

struct Driver {
    informer: Arc<Informer>,
    cluster: Cluster,
    endpoint: Option<Arc<Endpoint>>,
    restores: watch::Receiver<u64>,
    skipped: Lines,
    /// Changes when the server may serve other kinds than before.
    kinds: watch::Receiver<u64>,
    /// `true` if the reflector has found a restore that is not announced to other informers yet.
    found_restore: bool,
}

impl Driver {
    /// Passes a restore that another informer has found to the reflector.
    fn apply_restores(&mut self, reflector: &mut Reflector, origin: Instant, effects: &mut Vec<Effect>) {
        if self.restores.has_changed().unwrap_or(false) {
            self.restores.mark_unchanged();
            reflector.step(origin.elapsed(), Input::Restored, effects);
        }
    }

    /// Performs the effects of a step, except for the request that ends it, if any. Returns that request.
    fn perform_local(&mut self, effects: &mut Vec<Effect>) -> Option<Effect> {
        let informer = self.informer.clone();
        for effect in effects.drain(..) {
            match effect {
                Effect::Upsert(object) => informer.upsert(object),
                Effect::Remove(last) => informer.remove(&last),
                Effect::BeginReplace { went_back } => informer.begin_replace(went_back),
                Effect::FinishReplace { version } => informer.finish_replace(version),
                Effect::AbortReplace => informer.abort_replace(),
                Effect::Covered(version) => informer.advance(version),
                Effect::Synced => {
                    informer.mark_synced();
                    info!(informer = %informer.key, objects = informer.size().0, "informer synced");
                }
                Effect::State(state) => self.set_state(state),
                Effect::Unreadable { key, why } => {
                    informer.skip(key.as_ref());
                    if let Some(others) = self.skipped.next(SKIPPED) {
                        warn!(informer = %informer.key, error = why, others, "cannot read an object; plugins see at most its metadata");
                    }
                }
                Effect::Relist(reason) => {
                    info!(informer = %informer.key, ?reason, "informer lists again");
                    informer.record_relist(reason);
                }
                Effect::Restored => self.found_restore = true,
                request @ (Effect::Resolve | Effect::List { .. } | Effect::Watch { .. } | Effect::Wait(_)) => {
                    return Some(request);
                }
            }
        }
        None
    }

    /// Announces a restore that this reflector has found to the other informers, unless the kind has its own server.
    async fn announce_restore(&mut self) {
        if !std::mem::take(&mut self.found_restore) {
            return;
        }
        let key = &self.informer.key;
        if self.cluster.has_own_server(&key.of).await {
            warn!(informer = %key, "resource versions went back; the kind has its own server, so other informers are not affected");
            return;
        }
        warn!(informer = %key, "resource versions went back because the cluster was restored; all informers list again");
        self.informer.shared.record_restore();
        // This informer knows already.
        self.restores.mark_unchanged();
    }

    fn set_state(&self, state: State) {
        let informer = &self.informer.key;
        match &state {
            State::Missing(_) | State::Unauthenticated(_) | State::Denied(_) | State::Waiting { .. } => {
                let line = self.informer.shared.blocked.lock().next(BLOCKED);
                match line {
                    Some(left_out) => warn!(%informer, %state, left_out, "informer is blocked"),
                    None => debug!(%informer, %state, "informer is blocked"),
                }
            }
            State::Resolving | State::Listing | State::Watching => {
                debug!(%informer, %state, "informer state");
            }
        }
        self.informer.set_state(state);
    }

    fn failed(&self, failure: Failure) -> Input<'static> {
        self.informer.record_failure(&failure);
        Input::Failed(failure)
    }

    /// Waits for `delay`. If the kind is missing, a change of the server's kinds ends the wait early.
    async fn wait(&mut self, delay: Duration) {
        let elapsed = tokio::time::sleep(delay);
        if !matches!(self.informer.state(), State::Missing(_)) {
            return elapsed.await;
        }
        let _waits = self.informer.shared.kinds.wait();
        tokio::select! {
            () = elapsed => {}
            Ok(()) = self.kinds.changed() => {}
        }
    }

    async fn resolve(&mut self) -> Result<(), Failure> {
        let of = &self.informer.key.of;
        self.endpoint = None;
        // Only changes after this point call for another look.
        self.kinds.mark_unchanged();
        match self.cluster.discover(of).await {
            Ok(endpoint) => {
                self.informer.record_heard();
                // Looked up again later, like a missing kind, because its verbs may change.
                endpoint.check_watchable(of).map_err(|error| Failure::Missing(error.to_string()))?;
                // The server would ignore the namespace and list everything.
                if let (Some(namespace), false) = (&self.informer.key.namespace, endpoint.namespaced) {
                    let error = Error::Scope { of: of.clone(), namespace: namespace.as_ref().to_owned() };
                    return Err(Failure::Missing(error.to_string()));
                }
                self.endpoint = Some(endpoint);
                Ok(())
            }
            Err(error @ Error::Missing(_)) => match self.cluster.served_as(of).await {
                Ok(None) => Err(Failure::Gone(error.to_string())),
                Ok(Some(other)) => Err(Failure::Missing(format!("{error}; it serves {other} {}", of.kind))),
                Err(error) => Err(failure(error)),
            },
            Err(error) => Err(failure(error)),
        }
    }

    fn endpoint(&self) -> Result<&Endpoint, Error> {
        self.endpoint.as_deref().ok_or_else(|| Error::Missing(self.informer.key.of.clone()))
    }

    fn select(&self) -> Select<'_> {
        let key = &self.informer.key;
        Select {
            namespace: key.namespace.as_deref(),
            labels: key.labels.to_string(),
            fields: key.fields.to_string(),
            metadata_only: key.keep.metadata_only(),
        }
    }

    async fn list(
        &self,
        limit: u32,
        continue_token: Option<&str>,
        resource_version: Option<&str>,
    ) -> Result<bytes::Bytes, Error> {
        let page = self.cluster.list(self.endpoint()?, &self.select(), limit, continue_token, resource_version).await?;
        self.informer.record_heard();
        Ok(page)
    }

    async fn watch(&self, resource_version: &str, initial_events: bool, timeout: Duration) -> Result<Stream, Error> {
        let (endpoint, select) = (self.endpoint()?, self.select());
        let stream = self.cluster.watch(endpoint, &select, resource_version, initial_events, timeout).await?;
        self.informer.record_opened();
        Ok(stream)
    }

    /// Feeds lines to the reflector until it makes another request or the stream ends.
    async fn read_watch(
        &mut self,
        reflector: &mut Reflector,
        origin: Instant,
        mut stream: Stream,
        effects: &mut Vec<Effect>,
    ) {
        reflector.step(origin.elapsed(), Input::Opened, effects);
        // A restore may have been announced while the watch opened. Then it makes a request before any line comes.
        if self.has_request(effects) {
            return;
        }
        let mut buffer = BytesMut::new();
        loop {
            let read = tokio::select! {
                read = tokio::time::timeout(DEAD_AFTER, stream.next()) => read,
                Ok(()) = self.restores.changed() => {
                    reflector.step(origin.elapsed(), Input::Restored, effects);
                    if self.has_request(effects) {
                        return;
                    }
                    continue;
                }
            };
            let end = match read {
                Ok(Some(Ok(bytes))) => {
                    self.informer.record_heard();
                    let mut seen = buffer.len();
                    buffer.extend_from_slice(&bytes);
                    while let Some(at) = memchr::memchr(b'\n', &buffer[seen..]) {
                        let line = buffer.split_to(seen + at + 1);
                        seen = 0;
                        if line.trim_ascii().is_empty() {
                            continue;
                        }
                        reflector.step(origin.elapsed(), Input::Line(line.trim_ascii()), effects);
                        if self.has_request(effects) {
                            return;
                        }
                    }
                    if buffer.len() <= MAX_LINE {
                        continue;
                    }
                    self.failed(Failure::Transport(format!("a watch line is longer than {MAX_LINE} bytes")))
                }
                Ok(None) => Input::Ended,
                Ok(Some(Err(error))) => self.failed(Failure::Transport(error)),
                Err(_) => {
                    self.failed(Failure::Transport(format!("the watch was silent for {} s", DEAD_AFTER.as_secs())))
                }
            };
            reflector.step(origin.elapsed(), end, effects);
            return;
        }
    }

    /// Performs the effects of one line. Returns `true` if the reflector wants a request instead of more lines; it
    /// stays in `effects`.
    fn has_request(&mut self, effects: &mut Vec<Effect>) -> bool {
        match self.perform_local(effects) {
            Some(request) => {
                effects.push(request);
                true
            }
            None => false,
        }
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Missing(_) | Error::Scope { .. } | Error::Unwatchable { .. } => Failure::Missing(error.to_string()),
        Error::Status(status) => Failure::Status(Status {
            code: status.code,
            reason: status.reason,
            message: status.message,
            retry_after: status.retry_after,
        }),
        Error::Unreachable(_)
        | Error::NotActing
        | Error::Token { .. }
        | Error::TooLong(_)
        | Error::TooLarge(_)
        | Error::Name(_)
        | Error::Body(_)
        | Error::Answer { .. } => Failure::Transport(error.to_string()),
    }
}
