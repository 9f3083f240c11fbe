//! Sends the events of a resource as a stream of JSON lines.
//!
//! ```text
//!  [initial objects as ADDED] [bookmark: initial events end] ─► events after a revision … ─► bookmarks ─► bookmark, end
//! ```
//!
//! A watch has a position in the store's log, and reads on when the client has received what was sent. So a slow client
//! needs no buffer. If the log no longer has its position, it gets a 410 and starts over.

use std::{collections::VecDeque, convert::Infallible, num::NonZeroU32, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use http_body::Frame;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    convert::{all_to_requested, to_requested},
    faults::{
        Answer, Bookmark, Plan, answer,
        stream::{End, Held, WatchFaults, put},
    },
    metrics::OnEnd,
    object::{Key, Object, set_meta},
    present::Form,
    request::Params,
    resources::Resource,
    rest::list::{Match, Query, refuse},
    schema::Reason,
    server::Server,
    status::{Result, Status},
    storage::{Change, Event},
};

/// Upper bound for events in one frame.
const BATCH: usize = 256;
/// Time between two bookmarks, as in kube-apiserver.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// The default timeout of a watch: kube-apiserver's minimum request timeout.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// One watch.
pub(crate) struct Watch {
    server: Arc<Server>,
    resource: Arc<Resource>,
    query: Query,
    form: Form,
    bookmarks: bool,
    /// Objects to send first.
    initial: VecDeque<Arc<Object>>,
    /// `true` if a bookmark must mark the end of the initial objects.
    mark_initial: bool,
    /// Everything up to this revision has been sent.
    seen: u64,
    first: bool,
    commits: watch::Receiver<u64>,
    definitions: watch::Receiver<()>,
    ends: Instant,
    next_bookmark: Instant,
    ended: bool,
    /// `true` if the resource is no longer served. The watch ends after the remaining events of the log.
    last: bool,
    faults: WatchFaults,
    /// Number of the resource's last changes that the initial state ignores.
    stale: Option<NonZeroU32>,
    _count: Option<OnEnd>,
}

impl Watch {
    pub(crate) fn open(
        server: &Arc<Server>,
        resource: &Arc<Resource>,
        key: &Key,
        params: &Params,
        form: Form,
        plan: &Plan,
        faults: WatchFaults,
    ) -> Result<Self> {
        let query = Query::parse(resource, key, params, Status::unknown)?;
        let bookmarks = params.flag("allowWatchBookmarks");
        let initial = if plan.ignore_streaming { None } else { check_initial(&query, params)? };
        let timeout = match params.number::<u64>("timeoutSeconds")? {
            None | Some(0) => TIMEOUT,
            Some(seconds) => Duration::from_secs(seconds.min(u64::from(u32::MAX))),
        };
        let commits = server.store.subscribe(&resource.storage);
        let now = Instant::now();
        let mut watch = Watch {
            server: Arc::clone(server),
            resource: Arc::clone(resource),
            form,
            bookmarks,
            initial: VecDeque::new(),
            mark_initial: false,
            seen: query.version.unwrap_or(0),
            query,
            first: true,
            commits,
            definitions: server.definitions_changed(),
            ends: now + timeout,
            next_bookmark: now + BOOKMARKS,
            ended: false,
            last: false,
            faults,
            stale: plan.stale,
            _count: None,
        };
        if initial.unwrap_or(watch.seen == 0) {
            watch.take_initial()?;
            watch.mark_initial = initial.is_some() && bookmarks;
        } else if watch.seen == 0 {
            watch.seen = server.store.revision();
        }
        Ok(watch)
    }

    /// Counts the watch when it ends.
    pub(crate) fn counted(self, count: OnEnd) -> Self {
        Watch { _count: Some(count), ..self }
    }

    fn take_initial(&mut self) -> Result<()> {
        let current = self.server.store.revision();
        if self.seen > current {
            return Err(Status::version_too_large(self.seen, current));
        }
        let at = self.stale.and_then(|changes| self.server.store.before(&self.resource.storage, changes));
        let all = self.server.store.list(&self.resource.storage, self.query.namespace.as_deref(), None, at);
        let all = all.map_err(|_| Status::internal("the newest state is not kept"))?;
        self.seen = all.revision;
        self.initial = all.objects.into();
        Ok(())
    }

    async fn wants(&self, object: &Value) -> Result<bool> {
        if self.query.namespace.as_deref().is_some_and(|ns| ns != crate::object::namespace(object)) {
            return Ok(false);
        }
        if self.query.selector.is_empty() {
            return Ok(true);
        }
        let view = to_requested(&self.server, &self.resource, object).await?;
        Ok(self.query.selector.matches(&view))
    }

    /// Writes the next initial objects.
    async fn initial(&mut self, lines: &mut BytesMut) -> Result<()> {
        let next: Vec<_> = self.initial.drain(..self.initial.len().min(BATCH)).collect();
        let (server, resource) = (Arc::clone(&self.server), Arc::clone(&self.resource));
        let views = all_to_requested(&server, &resource, &next).await?;
        for (object, view) in next.iter().zip(&views) {
            if self.query.selector.is_empty() || self.query.selector.matches(view) {
                self.line(lines, "ADDED", object, view);
            }
        }
        Ok(())
    }

    /// Returns the lines as frames of a response body.
    pub(crate) fn frames(self) -> impl Stream<Item = std::result::Result<Frame<Bytes>, Infallible>> + Send {
        stream::unfold(self, |mut watch| async move {
            let lines = watch.next().await?;
            Some((Ok(Frame::data(lines)), watch))
        })
    }

    /// Returns the next lines, or `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let mut lines = BytesMut::new();
        loop {
            if self.ended {
                return None;
            }
            match self.faults.end() {
                None => {}
                Some(End::Over) => return None,
                Some(End::Error(code)) => {
                    self.ended = true;
                    put(&mut lines, "ERROR", answer::status(&Answer::code(code)).to_string().as_bytes());
                    return Some(lines.freeze());
                }
                Some(End::Connection(by)) => return self.faults.end_connection(by).await,
            }
            if let Some(held) = self.faults.held() {
                self.wait(&mut lines, held).await;
                if !lines.is_empty() {
                    return Some(lines.freeze());
                }
                continue;
            }
            if !self.initial.is_empty() {
                if let Err(status) = self.initial(&mut lines).await {
                    self.error(&mut lines, &status);
                }
                if !lines.is_empty() {
                    return Some(lines.freeze());
                }
                continue;
            }
            if std::mem::take(&mut self.mark_initial) && !self.faults.withholds(Bookmark::InitialEnd) {
                self.bookmark(&mut lines, true);
                return Some(lines.freeze());
            }
            // Before reading, so that no commit in between is missed.
            self.commits.mark_unchanged();
            let read = self.server.store.events(&self.resource.storage, self.seen, BATCH);
            if read.as_ref().is_ok_and(|(events, _)| !events.is_empty()) {
                self.faults.lag().await;
                if self.faults.end().is_some() {
                    continue;
                }
            }
            if self.commits.has_changed().is_err() {
                // An earlier state was restored, so the log has another history than the client has seen.
                return None;
            }
            match read {
                Ok((events, seen)) => {
                    self.seen = seen;
                    for event in &events {
                        if let Err(status) = self.event(&mut lines, event).await {
                            self.error(&mut lines, &status);
                            break;
                        }
                    }
                    if !lines.is_empty() {
                        return Some(lines.freeze());
                    }
                    if events.len() == BATCH {
                        continue;
                    }
                    if self.last {
                        return None;
                    }
                }
                Err(compacted) => {
                    let message = format!("too old resource version: {} ({})", self.seen, compacted.oldest);
                    self.error(&mut lines, &Status::expired(message));
                    return Some(lines.freeze());
                }
            }
            self.wait(&mut lines, Held::default()).await;
            if !lines.is_empty() {
                return Some(lines.freeze());
            }
        }
    }

    /// Waits for a commit, for the time of a bookmark or of the end, or for a fault.
    async fn wait(&mut self, lines: &mut BytesMut, held: Held) {
        // A bookmark means that everything before it was sent.
        let bookmarks = self.bookmarks && self.initial.is_empty() && !self.mark_initial;
        let quiet = if bookmarks { self.ends.min(self.next_bookmark) } else { self.ends };
        tokio::select! {
            changed = self.commits.changed() => self.ended = changed.is_err(),
            changed = self.definitions.changed() => {
                let registry = self.server.registry();
                let Resource { group, version, plural, .. } = &*self.resource;
                self.last = changed.is_err() || registry.find(group, version, plural).is_none();
            }
            () = self.faults.stirred(held.until) => {}
            () = sleep_until(quiet), if !held.silent => {
                self.ended = Instant::now() >= self.ends;
                if bookmarks && self.faults.withholds(Bookmark::Periodic) {
                    self.next_bookmark = Instant::now() + BOOKMARKS;
                } else if bookmarks {
                    self.bookmark(lines, false);
                }
            }
        }
    }

    async fn event(&mut self, lines: &mut BytesMut, event: &Event) -> Result<()> {
        let was = match &event.previous {
            Some(previous) => self.wants(&previous.value).await?.then_some(previous),
            None => None,
        };
        let is = event.change != Change::Deleted && self.wants(&event.object.value).await?;
        let last;
        let (kind, object) = match (was, is) {
            (None, true) => ("ADDED", &event.object),
            (Some(_), true) => ("MODIFIED", &event.object),
            (Some(_), false) if event.change == Change::Deleted => ("DELETED", &event.object),
            (Some(was), false) => {
                // The object left the selection. The client gets the last state that it could see, at this revision.
                last = Object::committed(was.value.clone(), event.revision);
                ("DELETED", &last)
            }
            (None, false) => return Ok(()),
        };
        let (server, resource) = (Arc::clone(&self.server), Arc::clone(&self.resource));
        let view = to_requested(&server, &resource, &object.value).await?;
        self.line(lines, kind, object, &view);
        Ok(())
    }

    /// Writes the line of an object. `view` is the object in the version of the resource.
    fn line(&mut self, lines: &mut BytesMut, kind: &str, object: &Object, view: &Value) {
        let stored = self.form.as_stored(&self.resource, object);
        let json = stored.unwrap_or_else(|| self.form.watched(&self.resource, view, self.first));
        self.first = false;
        self.faults.put(lines, kind, &json);
    }

    fn bookmark(&mut self, lines: &mut BytesMut, initial_events_end: bool) {
        self.next_bookmark = Instant::now() + BOOKMARKS;
        let mut object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": self.seen.to_string(), "creationTimestamp": null},
        });
        if initial_events_end {
            set_meta(&mut object, "annotations", json!({"k8s.io/initial-events-end": "true"}));
        }
        let json = self.form.watched(&self.resource, &object, self.first);
        put(lines, "BOOKMARK", &json);
    }

    fn error(&mut self, lines: &mut BytesMut, status: &Status) {
        self.ended = true;
        put(lines, "ERROR", status.to_value().to_string().as_bytes());
    }
}

/// Returns the error of a server without streaming lists.
pub(crate) fn no_streaming_lists() -> Status {
    let message = "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    refuse(Reason::Forbidden, "sendInitialEvents", message)
}

/// Returns whether the watch begins with the existing objects, or `None` if the client does not say.
fn check_initial(query: &Query, params: &Params) -> Result<Option<bool>> {
    if !params.has("sendInitialEvents") {
        if query.matching != Match::Unset {
            let message = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(refuse(Reason::Forbidden, "resourceVersionMatch", message));
        }
        return Ok(None);
    }
    if query.matching != Match::NotOlderThan {
        let message = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(refuse(Reason::Forbidden, "resourceVersionMatch", message));
    }
    Ok(Some(params.flag("sendInitialEvents")))
}
