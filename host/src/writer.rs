//! Carries out what a reconcile wants: children, what is no longer a child, status.
//!
//! Every write passes the plugin's grants, names the plugin as field manager, is left out where the cache shows that it would
//! change nothing, and enters the cache with its answer before the call returns (invariants 3 and 7).
//!
//! ```text
//! outcome ─┬─ settled: nothing
//!          └─ desired (checked, owned) ─► diff against the cache ─┬─ holds: nothing, and settled
//!                                                                 └─ differs: apply ─► answer, settled ─► informers
//!                                                                                      └─ the diff cannot prove it: apply with a mark
//! inventory − desired ─► delete
//! ```
//!
//! The inventory is the cluster's own: a child is ours where its controlling owner reference names the reconciled object's uid
//! and its managedFields say that this plugin applied it. So it survives restarts, and nothing else is ever deleted.
//!
//! The cache lags behind the server, and what it shows of a child may have changed hands. So each write to a child names what it was
//! decided on (`Basis`), and the server refuses it where something else is there. Then the child is looked at live, once:
//!
//! ```text
//! the cache shows     the write is good for     409
//! nothing             no object of that name ─┐
//! version 7           version 7 ──────────────┴► GET its metadata ─► ours: the same for its version │ not ours: refused, left alone
//! ```
//!
//! While no watch keeps the cache of an owned kind up to date ([`Lapse`]), its children are unknown. They are applied all the same, as the
//! server proves each; none is deleted, and the reconcile fails and says why.

mod basis;
mod client;
mod crd;
mod desired;
mod events;
mod fence;
mod identity;
mod mark;
pub(crate) mod metrics;
mod settled;

use std::{
    collections::HashSet,
    hash::RandomState,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
pub(crate) use basis::is_known;
use bytes::Bytes;
pub use client::ClientError;
pub use crd::CrdError;
pub use desired::ChildError;
pub(crate) use events::cut;
pub use events::{Events, Level};
pub use fence::{Closed, Fence, WITHDRAWN_AFTER};
use futures::{StreamExt, stream};
pub use identity::{Identities, Identity, IdentityTaken};
use pilothouse_core::{
    ParseError, diff,
    field::FieldPath,
    grant::{Denied, Grants},
    key::{Key, TypeMeta},
    manifest::Verb,
    object::{Object, Subresource, Uid},
};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::debug;

use self::{
    basis::{Basis, NO_VERSION, Standing, standing, unknown},
    desired::Desired,
};
use crate::{
    cluster::{self, Cluster, DeleteOptions, Patch, WriteOptions},
    informer::{Informers, Lapse, View},
    wasm::{Child, MAX_OUTCOME},
};

/// Children of one object that are written at a time: enough to hide the server's latency, few enough to leave it air.
const CHILDREN_AT_ONCE: usize = 8;

/// Children that are worked on in one turn: parsed, or compared with what is there, they take some microseconds each.
const TURN_CHILDREN: usize = 64;

/// Bytes of children that are worked on in one turn: a millisecond's work at some hundred megabytes a second.
const TURN_BYTES: usize = 256 << 10;

/// How many problems of one reconcile are told; the rest are counted.
const TOLD_PROBLEMS: usize = 5;

/// How many characters of each: names in it come from the guest, messages from the server.
const TOLD_CHARS: usize = 800;

/// Sees every write that was carried out, left out, left to the next call or refused. For metrics.
pub trait WriteObserver: Send + Sync + 'static {
    /// `verb` is `create`, `apply`, ...; `result` is `success`, `skipped`, `deferred` or `error`.
    fn wrote(&self, plugin: &str, verb: &'static str, result: &'static str);
}

impl WriteObserver for () {
    fn wrote(&self, _: &str, _: &'static str, _: &'static str) {}
}

/// Why something that a reconcile wants was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plugin was not granted it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The plugin may begin no write any more.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The child is none.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// Something of that name is there already, and is not this object's child.
    #[error("{of} {key} exists already and {why}")]
    Taken {
        /// The child's kind.
        of: TypeMeta,
        /// The child's key.
        key: Key,
        /// Whose it is, and what would help.
        why: String,
    },
    /// A child that the cache does not show is being deleted: nothing can be applied to it.
    #[error("{of} {key} is being deleted, and the cache does not show it yet; it is tried again")]
    Ending {
        /// The child's kind.
        of: TypeMeta,
        /// The child's key.
        key: Key,
    },
    /// The cache of an owned kind is not kept up to date, so nothing of it is deleted.
    #[error("cannot tell which children of {of} exist: the watch {lapse}")]
    Unknown {
        /// The children's kind.
        of: TypeMeta,
        /// Since when, and why.
        lapse: Lapse,
    },
    /// The cache of the owner's kind is not kept up to date, and children would have to be deleted.
    #[error("cannot tell which children {of} {key} still needs: the watch of {of} {lapse}")]
    OldOwner {
        /// The owner's kind.
        of: TypeMeta,
        /// The owner's key.
        key: Key,
        /// Since when, and why.
        lapse: Lapse,
    },
    /// The API server did not do it.
    #[error("cannot {verb} {of} {key}: {source}", source = display(source))]
    Request {
        /// The verb.
        verb: &'static str,
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
        /// What came instead of success.
        source: cluster::Error,
    },
    /// The cache does not hold that part of the status.
    #[error(
        "cannot tell whether the status of {of} {key} differs: {path} is left out of the cache; keep it in the watch (to go without \
         the spec, name `spec` in `without`), or write it by `client`"
    )]
    LeftOut {
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
        /// What is left out of objects, or has something in it that is.
        path: FieldPath,
    },
    /// The status is no JSON object.
    #[error("the status is no JSON object: {0}")]
    Status(String),
    /// The cache has the object, and the server does not find its status.
    #[error(
        "cannot write the status of {of} {key}: the API server does not find it; if the object is there, its kind has no status \
         subresource, and the CustomResourceDefinition needs `subresources: {{ status: {{}} }}`"
    )]
    NoStatus {
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
    },
    /// The server's answer to a write is no object; the write itself succeeded.
    #[error("the API server's answer about {of} {key} is no object")]
    Answer {
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
        /// What is wrong.
        #[source]
        source: ParseError,
    },
}

/// An error's text, bounded.
fn brief(error: &Error) -> String {
    let mut text = error.to_string();
    if let Some((end, _)) = text.char_indices().nth(TOLD_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn is_version(held: &Object, answer: &Object) -> bool {
    held.uid() == answer.uid() && held.resource_version() == answer.resource_version()
}

/// Whom the `Status` that answers a delete speaks of.
fn deleted_uid(answer: &[u8]) -> Option<Uid> {
    let status: Value = serde_json::from_slice(answer).ok()?;
    status.pointer("/details/uid")?.as_str().filter(|uid| !uid.is_empty()).map(Uid::parse)
}

fn display(error: &cluster::Error) -> String {
    match error {
        cluster::Error::Status(status) if !status.reason.is_empty() => {
            format!("{} ({})", status.message, status.reason)
        }
        other => other.to_string(),
    }
}

/// What a reconcile's writes came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Requests that succeeded.
    pub written: usize,
    /// Writes that the cache showed to be needless.
    pub skipped: usize,
    /// The first of what went wrong. The rest was carried out all the same.
    pub problems: Vec<Error>,
    /// How much more did.
    pub more_problems: usize,
    /// Something waits for a watch that does not keep its cache up to date.
    pub awaits_watch: bool,
    /// The fence closed before all was written.
    pub is_closed: bool,
    /// The longest that the server asked to be left alone for, in answer to one of the writes.
    pub retry_after: Option<Duration>,
}

impl Report {
    /// The problems in one line, bounded; none if there are none.
    pub fn problem(&self) -> Option<String> {
        if self.problems.is_empty() {
            return None;
        }
        let mut told: Vec<String> = self.problems.iter().map(brief).collect();
        if self.more_problems > 0 {
            told.push(format!("and {} more", self.more_problems));
        }
        Some(told.join("; "))
    }

    /// Something went wrong. Ten thousand children may go wrong at once: what nobody is told is not kept.
    pub fn failed(&mut self, error: Error) {
        self.awaits_watch |= matches!(error, Error::Unknown { .. } | Error::OldOwner { .. });
        if let Error::Request { source, .. } = &error {
            self.retry_after = self.retry_after.max(source.retry_after());
        }
        // The same of each child that is left.
        if matches!(error, Error::Closed(_)) && std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        if self.problems.len() < TOLD_PROBLEMS {
            self.problems.push(error);
        } else {
            self.more_problems += 1;
        }
    }

    fn take(&mut self, result: Result<Write, Error>) {
        match result {
            Ok(Write::Done) => self.written += 1,
            Ok(Write::Skipped) => self.skipped += 1,
            Err(error) => self.failed(error),
        }
    }
}

/// What became of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Done,
    Skipped,
}

/// Gives way now and then in the course of long work: the threads that plugins share go on to the next only where one waits, and of ten
/// thousand children that hold already none does.
#[derive(Debug, Default)]
struct Courtesy {
    children: usize,
    bytes: usize,
}

impl Courtesy {
    /// One more child of so many bytes was worked on.
    async fn worked(&mut self, bytes: usize) {
        self.children += 1;
        self.bytes += bytes;
        if self.children >= TURN_CHILDREN || self.bytes >= TURN_BYTES {
            *self = Self::default();
            tokio::task::yield_now().await;
        }
    }
}

/// The object whose children and status are written.
pub struct Owner<'a> {
    /// As the plugin saw it.
    pub object: &'a Arc<Object>,
    /// The kinds that its controller owns.
    pub owns: &'a [TypeMeta],
}

/// The writes of one plugin.
#[derive(Clone)]
pub struct Writer {
    cluster: Cluster,
    informers: Informers,
    plugin: Arc<str>,
    manager: Arc<str>,
    identity: Identity,
    grants: Arc<ArcSwap<Grants>>,
    fence: Arc<Fence>,
    observer: Arc<dyn WriteObserver>,
    /// Bytes of children and status that may be parsed: as long as they are written they take up to sixteen times as much.
    room: Arc<Semaphore>,
    /// Makes [digests](Self::digest) that nobody can foresee, and that no other writer has.
    digests: RandomState,
}

impl Writer {
    /// Writes as the field manager of `identity`, within what `grants` are at the time of each write, and until `fence` closes.
    pub fn new(
        cluster: Cluster,
        informers: Informers,
        identity: Identity,
        grants: Arc<ArcSwap<Grants>>,
        fence: Arc<Fence>,
        observer: Arc<dyn WriteObserver>,
    ) -> Self {
        Self {
            cluster,
            informers,
            plugin: identity.plugin().as_str().into(),
            manager: identity.manager().clone(),
            identity,
            grants,
            fence,
            observer,
            room: Arc::new(Semaphore::new(MAX_OUTCOME)),
            digests: RandomState::new(),
        }
    }

    /// Waits until the plugin's texts may be parsed, so many bytes more until what is returned is dropped.
    async fn room(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let bytes = u32::try_from(bytes.min(MAX_OUTCOME)).unwrap_or(u32::MAX);
        self.room.acquire_many(bytes).await.ok()
    }

    /// Makes `children` the children of `owner`: applies what differs, deletes what this plugin once applied and does not name.
    ///
    /// Nothing is deleted where a child could not be understood: it might be the one that is meant.
    pub async fn children(&self, owner: &Owner<'_>, view: &View, children: Vec<Child>) -> Report {
        let mut room = self.room(children.iter().map(|child| child.object.len()).sum()).await;
        let mut report = Report::default();
        let mut wanted = Vec::with_capacity(children.len());
        let mut named = HashSet::with_capacity(children.len());
        let mut courtesy = Courtesy::default();
        for (at, child) in children.into_iter().enumerate() {
            courtesy.worked(child.object.len()).await;
            let digest = self.digest(owner, &child);
            if let Some(settled) = self.settled(owner, view, &child, digest) {
                match named.replace(settled) {
                    None => report.take(Ok(self.skipped())),
                    Some((of, key)) => report.failed(ChildError::Twice { of, key }.into()),
                }
                continue;
            }
            match self.desire(owner, view, at, &child, digest).await {
                Ok(desired) if named.insert((desired.of.clone(), desired.key.clone())) => wanted.push(desired),
                Ok(desired) => report.failed(ChildError::Twice { of: desired.of, key: desired.key }.into()),
                Err(error) => report.failed(error),
            }
        }
        let all_understood = report.problems.is_empty();
        let applying = wanted.into_iter().map(|mut desired| {
            // Each gives its part back when it is written.
            let room = room.as_mut().and_then(|room| room.split(desired.bytes));
            async move {
                let written = self.apply_child(owner, view, &mut desired).await;
                drop(room);
                (desired.bytes, written)
            }
        });
        let mut applied = stream::iter(applying).buffer_unordered(CHILDREN_AT_ONCE);
        while let Some((bytes, result)) = applied.next().await {
            report.take(result);
            courtesy.worked(bytes).await;
        }
        let unknown = unknown(owner, view);
        if all_understood {
            let mut surplus = self.surplus(owner, view, &unknown, &named);
            let (of, key) = (owner.object.type_meta(), owner.object.key());
            if !surplus.is_empty()
                && let Some(lapse) = view.lapse(of, key.namespace.as_deref())
            {
                surplus.clear();
                report.failed(Error::OldOwner { of: of.clone(), key: key.clone(), lapse });
            }
            let pruning = surplus.into_iter().map(async |child| self.prune(owner, &child).await);
            let mut pruned = stream::iter(pruning).buffer_unordered(CHILDREN_AT_ONCE);
            while let Some(result) = pruned.next().await {
                report.take(result);
            }
        }
        unknown.into_iter().for_each(|(of, lapse)| report.failed(Error::Unknown { of, lapse }));
        report
    }

    /// Makes `status` (JSON) the status of `owner`.
    ///
    /// # Errors
    /// The one reason why it is not.
    pub async fn status(&self, owner: &Owner<'_>, view: &View, status: &str) -> Result<Report, Error> {
        let _room = self.room(status.len()).await;
        let digest = self.status_digest(status);
        let status: Value = serde_json::from_str(status).map_err(|error| Error::Status(error.to_string()))?;
        let Value::Object(members) = &status else {
            return Err(Error::Status("it is another JSON value".into()));
        };
        let (of, key) = (owner.object.type_meta().clone(), owner.object.key().clone());
        let (namespace, name) = (key.namespace.as_deref(), &*key.name);
        self.grants.load().check(Verb::Apply, &of, Some(Subresource::Status), namespace, Some(name))?;
        let mut report = Report::default();
        // As it is now: children were written since the plugin saw it.
        let live = view.find(&of, &key).filter(|(live, _)| live.uid() == owner.object.uid());
        let Some((live, keep)) = live else { return Ok(report) };
        if let Some(path) = keep.missing("status", members) {
            return Err(Error::LeftOut { of, key, path });
        }
        self.identity.report_leftovers(&live);
        let mut desired = json!({ "status": status });
        if diff::holds(&live, &self.manager, Some(Subresource::Status), &desired)
            || live.is_status_settled(digest, &self.digests)
        {
            report.take(Ok(self.skipped()));
            return Ok(report);
        }
        desired["apiVersion"] = (*of.api_version).into();
        desired["kind"] = (*of.kind).into();
        desired["metadata"] = match namespace {
            Some(namespace) => json!({ "namespace": namespace, "name": name, "uid": live.uid().to_string() }),
            None => json!({ "name": name, "uid": live.uid().to_string() }),
        };
        match self.apply(&of, &key, &desired, Some(Subresource::Status), true).await {
            Ok(applied) => {
                report.written += 1;
                // The server may store it in another form, and would be sent it at each reconcile.
                if !diff::holds(&applied, &self.manager, Some(Subresource::Status), &desired)
                    && let Some(held) = view.get(&of, &key).filter(|held| is_version(held, &applied))
                {
                    held.settle_status(digest, &self.digests);
                }
            }
            // Gone meanwhile: its deletion is on its way through the watch.
            Err(Error::Request { source, .. }) if source.is_not_found() && view.get(&of, &key).is_none() => {}
            Err(Error::Request { source, .. }) if source.is_not_found() => return Err(Error::NoStatus { of, key }),
            Err(error) => return Err(error),
        }
        Ok(report)
    }

    /// An apply was left out.
    fn skipped(&self) -> Write {
        self.observer.wrote(&self.plugin, "apply", "skipped");
        Write::Skipped
    }

    /// A status was left to the next call.
    pub(crate) fn deferred(&self) {
        self.observer.wrote(&self.plugin, "apply", "deferred");
    }

    /// Applies one child if the cache does not show that it holds already.
    async fn apply_child(&self, owner: &Owner<'_>, view: &View, desired: &mut Desired) -> Result<Write, Error> {
        let (of, key) = (desired.of.clone(), desired.key.clone());
        self.grants.load().check(Verb::Apply, &of, None, key.namespace.as_deref(), Some(&key.name))?;
        let taken = |why| Error::Taken { of: of.clone(), key: key.clone(), why };
        let basis = match view.find(&of, &key) {
            // It may be there all the same: the watch lags, or a selector hides it.
            None => Basis::Nothing,
            // What a watch of less shows of it says whose it is, but not whether it differs.
            Some((live, keep)) => match standing(owner, desired, &live).map_err(taken)? {
                // What is on its way out takes no change. Its end wakes this key again.
                Standing::Ending => return Ok(Write::Skipped),
                Standing::Ours if keep.is_whole() && self.holds(&live, desired) => {
                    live.settle(desired.digest, &self.digests);
                    return Ok(self.skipped());
                }
                Standing::Ours | Standing::Adopted => {
                    self.keep_mark(&live, desired);
                    Basis::Version(live.resource_version())
                }
            },
        };
        let applied = match self.apply_on(desired, basis).await {
            Err(Error::Request { source, .. }) if source.is_conflict() => {
                let basis = match self.look(&of, &key).await? {
                    // It went between the two. A server that creates nothing under a version says so here too.
                    None => Basis::Anything,
                    Some(live) => match standing(owner, desired, &live).map_err(taken)? {
                        // The cache does not show it, so its end may wake nobody.
                        Standing::Ending => return Err(Error::Ending { of, key }),
                        Standing::Ours | Standing::Adopted => Basis::Version(live.resource_version()),
                    },
                };
                self.apply_on(desired, basis).await?
            }
            applied => applied?,
        };
        let Some(applied) = self.mark(applied, desired).await else { return Ok(Write::Done) };
        // An apply that changed nothing is answered with the version that was here already.
        if let Some(held) = view.get(&of, &key).filter(|held| is_version(held, &applied)) {
            held.settle(desired.digest, &self.digests);
        }
        Ok(Write::Done)
    }

    /// Applies a child where the server still has what the decision was made on. Elsewhere it answers 409.
    async fn apply_on(&self, desired: &mut Desired, basis: Basis) -> Result<Arc<Object>, Error> {
        let Desired { of, key, value, .. } = desired;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            match basis {
                Basis::Nothing => metadata.insert("resourceVersion".into(), NO_VERSION.to_string().into()),
                Basis::Version(version) => metadata.insert("resourceVersion".into(), version.to_string().into()),
                Basis::Anything => metadata.remove("resourceVersion"),
            };
        }
        let force = matches!(basis, Basis::Version(_));
        self.apply(of, key, value, None, force).await
    }

    /// The metadata of an object as the server has it now; none: it is not there.
    async fn look(&self, of: &TypeMeta, key: &Key) -> Result<Option<Object>, Error> {
        match self.cluster.get_metadata(of, key.namespace.as_deref(), &key.name).await {
            Ok(body) => match Object::parse(&body, of) {
                Ok(object) => Ok(Some(object)),
                Err(source) => Err(Error::Answer { of: of.clone(), key: key.clone(), source }),
            },
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(Error::Request { verb: "read", of: of.clone(), key: key.clone(), source }),
        }
    }

    /// What this plugin applied for `owner` and `named` does not hold, of kinds whose caches may be believed.
    fn surplus(
        &self,
        owner: &Owner<'_>,
        view: &View,
        unknown: &[(TypeMeta, Lapse)],
        named: &HashSet<(TypeMeta, Key)>,
    ) -> Vec<Arc<Object>> {
        let mut surplus = Vec::new();
        for of in owner.owns.iter().filter(|of| unknown.iter().all(|(unknown, _)| unknown != *of)) {
            for lease in view.of(of) {
                surplus.extend(lease.owned_by(owner.object.uid(), |child| {
                    self.identity.report_leftovers(child);
                    self.is_inventory(owner, child) && !named.contains(&(of.clone(), child.key().clone()))
                }));
            }
        }
        surplus
    }

    /// `true` if this plugin applied an object, and it is still a child of `owner` that is not being deleted.
    fn is_inventory(&self, owner: &Owner<'_>, child: &Object) -> bool {
        child.controller().is_some_and(|controller| controller.uid == *owner.object.uid())
            && child.applied(&self.manager, None).is_some()
            && !child.is_deleting()
    }

    /// Deletes a child, if the server has it as the cache shows it, or it is still this plugin's. A child that somebody took away stays.
    async fn prune(&self, owner: &Owner<'_>, child: &Object) -> Result<Write, Error> {
        let (of, key) = (child.type_meta(), child.key());
        self.grants.load().check(Verb::Delete, of, None, key.namespace.as_deref(), Some(&key.name))?;
        match self.delete_version(of, key, child).await {
            Err(Error::Request { source, .. }) if source.is_conflict() => match self.look(of, key).await? {
                Some(live) if self.is_inventory(owner, &live) => self.delete_version(of, key, &live).await,
                Some(_) => Ok(Write::Skipped),
                None => {
                    self.informers.own_delete(of, key, child.uid());
                    Ok(Write::Done)
                }
            },
            result => result,
        }
    }

    /// Deletes an object if the server has this version of it. Elsewhere it answers 409.
    async fn delete_version(&self, of: &TypeMeta, key: &Key, object: &Object) -> Result<Write, Error> {
        let options = DeleteOptions {
            propagation: "Background",
            uid: Some(object.uid().clone()),
            resource_version: Some(object.resource_version().to_string()),
        };
        match self.delete(of, key, &options).await {
            // Somebody was quicker.
            Err(Error::Request { source, .. }) if source.is_not_found() => {
                self.informers.own_delete(of, key, object.uid());
                Ok(Write::Done)
            }
            result => result.map(|()| Write::Done),
        }
    }

    /// Server-side apply; the answer is in the cache when this returns.
    async fn apply(
        &self,
        of: &TypeMeta,
        key: &Key,
        desired: &Value,
        subresource: Option<Subresource>,
        force: bool,
    ) -> Result<Arc<Object>, Error> {
        self.fence.check()?;
        let options = WriteOptions { manager: &self.manager, subresource };
        let body = desired.to_string().into_bytes();
        let sent = self.cluster.patch(of, key.namespace.as_deref(), &key.name, Patch::Apply { force }, body, options);
        self.written("apply", of, key, sent).await
    }

    /// Deletes; the cache shows it when this returns.
    async fn delete(&self, of: &TypeMeta, key: &Key, options: &DeleteOptions) -> Result<(), Error> {
        self.fence.check()?;
        let started = Instant::now();
        let answer = self.cluster.delete(of, key.namespace.as_deref(), &key.name, options).await;
        self.note("delete", of, key, started.elapsed(), answer.as_ref().err());
        let answer =
            answer.map_err(|source| Error::Request { verb: "delete", of: of.clone(), key: key.clone(), source })?;
        self.deleted(of, key, options, &answer);
        Ok(())
    }

    /// Takes the answer to a delete into the cache: the object where finalizers hold it, a `Status` where it is gone.
    fn deleted(&self, of: &TypeMeta, key: &Key, options: &DeleteOptions, answer: &Bytes) {
        match Object::parse(answer, of) {
            Ok(held) if held.type_meta() == of && held.is_deleting() => self.informers.own_write(&Arc::new(held)),
            // Some kinds answer with what was there.
            Ok(gone) if gone.type_meta() == of => self.informers.own_delete(of, key, gone.uid()),
            _ => {
                if let Some(uid) = options.uid.clone().or_else(|| deleted_uid(answer)) {
                    self.informers.own_delete(of, key, &uid);
                }
            }
        }
    }

    /// Waits for a write, notes it, and takes its answer into the cache.
    async fn written(
        &self,
        verb: &'static str,
        of: &TypeMeta,
        key: &Key,
        sent: impl Future<Output = Result<Bytes, cluster::Error>>,
    ) -> Result<Arc<Object>, Error> {
        let answer = self.answered(verb, of, key, sent).await?;
        self.take_in(of, &answer).map_err(|source| Error::Answer { of: of.clone(), key: key.clone(), source })
    }

    /// Waits for a write, and notes it.
    async fn answered(
        &self,
        verb: &'static str,
        of: &TypeMeta,
        key: &Key,
        sent: impl Future<Output = Result<Bytes, cluster::Error>>,
    ) -> Result<Bytes, Error> {
        let started = Instant::now();
        let answer = sent.await;
        self.note(verb, of, key, started.elapsed(), answer.as_ref().err());
        answer.map_err(|source| Error::Request { verb, of: of.clone(), key: key.clone(), source })
    }

    /// Takes an answer to a write into the cache.
    fn take_in(&self, of: &TypeMeta, answer: &[u8]) -> Result<Arc<Object>, ParseError> {
        let object = Arc::new(Object::parse(answer, of)?);
        self.informers.own_write(&object);
        Ok(object)
    }

    fn note(&self, verb: &'static str, of: &TypeMeta, key: &Key, took: Duration, error: Option<&cluster::Error>) {
        self.observer.wrote(&self.plugin, verb, if error.is_none() { "success" } else { "error" });
        match error {
            None => debug!(target: "pilothouse::feed", what = "wrote", verb, kind = %of.kind, object = %key, ?took),
            Some(error) => {
                debug!(target: "pilothouse::feed", what = "refused", verb, kind = %of.kind, object = %key, ?took, error = %display(error));
            }
        }
    }
}

#[cfg(test)]
mod tests;
