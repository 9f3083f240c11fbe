//! From a candidate to an active plugin.
//!
//! ```text
//! candidate ─► CRDs ─► kinds of patterns ─► leases ─► all synced? ─► swap or start controllers and observer ─► end those without a successor
//!                                                     └ the old revision serves on        └ all at once
//! ```

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashSet},
    iter::{repeat, zip},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::future::join_all;
use pilothouse_core::{
    backoff::{self, Backoff},
    grant::{Grants, LeaseScope, Rights, Scope},
    key::TypeMeta,
    manifest::{self, Manifest, Watch},
    predicate::Predicate,
    reflector::State,
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    ActivePlugin, Dispatch, Parts,
    controller::{Controller, Source},
    imports::Access,
    left::left,
    metrics,
    observing::{self, Observing, Shown},
    patterns::{Matched, watches},
    record::{MatchedFigures, Record},
    reviewing::{self, Granted, Reviewing},
    routes::Wanted,
    serving::Serving,
};
use crate::{
    acting::Acting,
    causes::with_causes,
    cluster,
    informer::{InformerKey, Lease, View},
    name::PluginName,
    plugin::{ActivateError, Candidate},
    writer::{self, Closed, CrdError, Fence, Writer},
};

/// Time for the informers of a new revision to sync; after that the activation fails. As controller-runtime's
/// `CacheSyncTimeout`.
const SYNC_WITHIN: Duration = Duration::from_secs(120);

/// Time for the discovery of a new plugin's kinds. A server that responds does so in some milliseconds.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// Upper bound of a plugin's leases on single names, each of which has a watch of its own. With more names a watch
/// holds the namespace.
///
/// `pilothouse_core::informer` leaves as many informers by name of one plugin apart.
pub(super) const NAMED: usize = 64;

/// Everything that a revision needs to begin.
struct Prepared {
    writer: Writer,
    grants: Arc<ArcSwap<Grants>>,
    /// Shared with the plugin's record.
    fence: Arc<Fence>,
    /// What the plugin's service account may read.
    rights: Option<Arc<Rights>>,
    controllers: Vec<(manifest::Controller, Vec<Wanted<Source>>)>,
    observed: Vec<Wanted<Shown>>,
    /// The kinds of the manifest's patterns.
    matched: Option<Arc<Matched>>,
    webhooks: Vec<Granted>,
    /// The leases of all these, each once.
    leases: Vec<Arc<Lease>>,
    view: View,
}

impl Dispatch {
    /// Makes a candidate the active revision of its plugin.
    pub(super) async fn activate(&self, candidate: Candidate) -> Result<(), ActivateError> {
        let name = candidate.revision.plugin().clone();
        let _waiting = Waiting { dispatch: self, name: &name };
        let running = self.active.lock().plugins.get(&name).cloned().unwrap_or_default();
        // Grants are revoked at once, however long the rest takes, and even if it fails.
        running.allow(&with_rights(&candidate.grants, running.rights.as_ref()));
        let rights = candidate.act_as.as_ref().map(|act_as| match &running.rights {
            Some(rights) if *rights.account() == act_as.account => rights.clone(),
            _ => Arc::new(Rights::unknown(act_as.account.clone())),
        });
        let fence = match &running.record {
            Some(record) => record.fence().clone(),
            None => Arc::new(Fence::new(self.parts.acting.of(name.as_str()))),
        };
        let prepared = self.prepare(&candidate, &running, fence, rights).await?;
        if !running.controllers.is_empty() || running.reviewing.is_some() {
            self.sync(&name, &View::new(prepared.awaited(&running))).await?;
        }
        let before = running.servings();
        let ended = self.commit(&candidate, prepared, &running)?;
        self.end(ended).await;
        let now = &candidate.revision.manifest().controllers;
        let stays = |of: &TypeMeta, finalizer: &str| {
            now.iter().any(|now| now.for_.of == *of && now.finalizer.as_deref() == Some(finalizer))
        };
        let left = left(&name, before, &stays).await;
        self.left.lock().add(&name, left, stays);
        Ok(())
    }

    /// Installs the plugin's CRDs, and begins to cache what it needs.
    async fn prepare(
        &self,
        candidate: &Candidate,
        running: &ActivePlugin,
        fence: Arc<Fence>,
        rights: Option<Arc<Rights>>,
    ) -> Result<Prepared, ActivateError> {
        let (name, manifest) = (candidate.revision.plugin(), candidate.revision.manifest());
        let grants = Arc::new(ArcSwap::new(with_rights(&candidate.grants, rights.as_ref())));
        let Parts { cluster, informers, writes, .. } = &self.parts;
        let cluster = cluster
            .for_plugin(name.as_str(), candidate.limits.requests())
            .acting_as(candidate.act_as.as_ref())
            .fenced(fence.acting().clone());
        let (informers, writes) = (informers.clone(), writes.clone());
        let identity = candidate.identity.clone();
        let writer = Writer::new(cluster, informers, identity, grants.clone(), fence.clone(), writes);
        let warm = self.warm(candidate, fence.acting());
        if self.parts.webhooks.is_none() && !candidate.webhooks.is_empty() {
            warn!(plugin = %name, "{}", reviewing::UNSERVED);
        }
        self.install(name, &writer.as_host(), fence.acting(), &manifest.crds).await?;
        drop(warm);
        self.check_watchable(manifest).await?;

        let leasing = Leasing { candidate, named: RefCell::default() };
        let controllers: Vec<_> =
            manifest.controllers.iter().map(|spec| (spec.clone(), self.wanted(&leasing, spec))).collect();
        let matched = self.matched(candidate, running.matched.as_deref()).await.map(Arc::new);
        let by_pattern = matched.iter().flat_map(|matched| &matched.watches);
        let observed = manifest.observes.iter().chain(by_pattern).flat_map(|watch| {
            let leases = self.lease(&leasing, watch).into_iter();
            let shown = leasing.shown(watch);
            leases.map(move |lease| Wanted { lease, source: shown.clone(), when: watch.when.clone() })
        });
        let observed: Vec<Wanted<Shown>> = observed.collect();
        let webhooks = candidate.webhooks.iter().map(|webhook| Granted {
            leases: webhook.reads.iter().flat_map(|watch| self.lease(&leasing, watch)).collect(),
            webhook: webhook.clone(),
        });
        let webhooks: Vec<Granted> = webhooks.collect();
        let cached = controllers.iter().flat_map(|(_, wanted)| wanted.iter().map(|wanted| &wanted.lease));
        let mut keys = HashSet::new();
        let leases: Vec<Arc<Lease>> = cached
            .chain(observed.iter().map(|wanted| &wanted.lease))
            .chain(webhooks.iter().flat_map(|granted| &granted.leases))
            .filter(|lease| keys.insert(lease.key().clone()))
            .cloned()
            .collect();
        if let Some(rights) = &rights {
            let keys = leases.iter().map(|lease| lease.key());
            let reviewed = self.review_reads(name, running, rights, keys).await;
            reviewed.map_err(|error| ActivateError::new(&error))?;
        }
        let view = self.view(&leases, manifest);
        Ok(Prepared { writer, grants, fence, rights, controllers, observed, matched, webhooks, leases, view })
    }

    /// Replaces what is `running` by the candidate in one step. An activation that is dropped is either done, or has
    /// changed nothing.
    ///
    /// Returns what the caller must end.
    fn commit(
        &self,
        candidate: &Candidate,
        prepared: Prepared,
        running: &ActivePlugin,
    ) -> Result<ActivePlugin, ActivateError> {
        let Candidate { revision, .. } = candidate;
        let (name, manifest) = (revision.plugin(), revision.manifest());
        if self.active.lock().closed {
            return Err(ActivateError::new(&Stopping));
        }
        let Prepared { writer, grants, fence, rights, controllers, observed, matched, webhooks, leases, view } =
            prepared;
        let is_renewed = running.matched.as_ref().is_some_and(|before| before.is_of(candidate));
        let begin = || Arc::new(Record::new(name.clone(), fence, &self.parts, revision.remembered()));
        let record = running.record.clone().unwrap_or_else(begin);
        record.remembered().limit(revision.limits().total_memory);
        let caused = watches(manifest.requests()) + matched.as_ref().map_or(0, |matched| matched.caused);
        let most = usize::try_from(candidate.limits.watches().get()).unwrap_or(usize::MAX);
        record.remembered().watches.set_most(most.saturating_sub(caused));
        let figures = matched
            .as_ref()
            .map(|matched| MatchedFigures { kinds: matched.watches.len(), left_out: matched.left_out.clone() });
        if let Some(left_out) = record.set_matched(figures) {
            warn!(plugin = %name, "plugin {left_out}");
        }
        let before = running.access();
        let http = match &before {
            Some(before) => before.http.clone(),
            None => Arc::new(self.parts.outbound.client(name)),
        };
        http.limit(candidate.limits.http_requests());
        let http = (http, candidate.references.clone());
        let access =
            Arc::new(Access::new(view.clone(), writer, http, grants, manifest, record.clone(), before.as_ref()));
        let controllers = controllers.into_iter().map(|(spec, mut wanted)| {
            let own: Vec<_> = wanted.iter().map(|wanted| wanted.lease.key().clone()).collect();
            let reconciled = wanted.iter().filter(|wanted| wanted.source == Source::For);
            let reconciled: Vec<_> = reconciled.map(|wanted| wanted.lease.key().clone()).collect();
            wanted.retain(|wanted| !matches!(wanted.source, Source::Reads { .. }));
            // A controller may read everything that the plugin caches, and is woken by what it read.
            wanted.extend(leases.iter().map(|lease| {
                let source = Source::Reads { awaited: own.contains(lease.key()) };
                Wanted { lease: lease.clone(), source, when: Predicate::default() }
            }));
            let serving = Serving {
                concurrency: concurrency(candidate, &spec),
                pace: candidate.limits.pace(),
                revision: revision.clone(),
                owns: spec.owns.iter().map(|owned| owned.of.clone()).collect(),
                view: view.clone(),
                reconciles: view.only(&reconciled),
                access: access.clone(),
                spec,
            };
            // A controller of the same name and another kind is a new one.
            match running.successor_of(&serving.spec) {
                Some(controller) => {
                    controller.swap(serving, wanted);
                    if !is_renewed {
                        controller.look_at_all();
                    }
                    controller.clone()
                }
                None => self.start(&record, serving, wanted),
            }
        });
        let controllers = controllers.collect();
        let serving = observing::Serving { revision: revision.clone(), access: access.clone() };
        let observing = match &running.observing {
            _ if manifest.observes.is_empty() && manifest.patterns.is_empty() => None,
            Some(observing) => {
                observing.swap(serving, observed);
                // Another account may see other objects.
                if running.rights.as_ref().map(|rights| rights.account())
                    != rights.as_ref().map(|rights| rights.account())
                {
                    observing.listen_again(|_| true);
                }
                Some(observing.clone())
            }
            None => Some(Observing::start(record.clone(), serving, observed, &self.parts)),
        };
        let serving = reviewing::Serving {
            revision: revision.clone(),
            access: access.clone(),
            identity: candidate.identity.clone(),
            webhooks,
        };
        let reviewing = match &running.reviewing {
            _ if manifest.webhooks.is_empty() && !manifest.needs_conversion() => None,
            Some(reviewing) => {
                reviewing.swap(serving);
                Some(reviewing.clone())
            }
            None => Some(Reviewing::start(record.clone(), serving, &self.parts)),
        };
        let have_changed = reviewing.is_some() || running.reviewing.is_some();
        let new = ActivePlugin { controllers, observing, reviewing, matched, record: Some(record.clone()), rights };
        // Failures of the revision before, or under other settings, say nothing about this one.
        if !is_renewed && new.release() {
            info!(plugin = %name, "the plugin is not quarantined any more: it has a new revision, or new settings");
        }
        let mut active = self.active.lock();
        if active.closed {
            return Ok(new.without(running));
        }
        let series = usize::try_from(candidate.limits.metric_series().get()).unwrap_or(usize::MAX);
        record.measures().declare(&manifest.metrics, series);
        let others = active.plugins.iter().filter(|(other, _)| **other != *name);
        let others = others.filter_map(|(other, plugin)| Some((other, plugin.record.as_ref()?.measures())));
        for (metric, other) in
            others.flat_map(|(other, measures)| zip(measures.conflicting(&manifest.metrics), repeat(other)))
        {
            warn!(plugin = %name, metric, %other, "{}", metrics::CONFLICT);
        }
        let old = active.plugins.insert(name.clone(), new.clone()).unwrap_or_default();
        drop(active);
        self.parts.acting.look();
        if have_changed {
            self.reviewing_changed.send_replace(());
        }
        Ok(old.without(&new))
    }

    fn start(&self, record: &Arc<Record>, serving: Serving, wanted: Vec<Wanted<Source>>) -> Arc<Controller> {
        let controller = Controller::start(record.clone(), serving, wanted, &self.parts);
        self.parts.observer.started(&controller);
        controller
    }

    /// Begins to cache what a candidate needs while its CRDs wait until this process may act.
    fn warm(&self, candidate: &Candidate, acting: &Acting) -> Vec<Arc<Lease>> {
        let manifest = candidate.revision.manifest();
        if manifest.crds.is_empty() || acting.is_allowed() {
            return Vec::new();
        }
        let leasing = Leasing { candidate, named: RefCell::default() };
        manifest.watches().flat_map(|watch| self.lease(&leasing, watch)).collect()
    }

    /// Installs the CRDs of a plugin, unless they are there. Waits until this process may act and the API server responds.
    pub(super) async fn install(
        &self,
        name: &PluginName,
        writer: &Writer,
        acting: &Acting,
        definitions: &[String],
    ) -> Result<(), ActivateError> {
        if definitions.is_empty() {
            return Ok(());
        }
        let mut backoff = Backoff::new(backoff::RECONNECT, 0);
        let origin = Instant::now();
        loop {
            // If none may begin, it only looks whether they are there.
            let call = acting.begin();
            let installed = writer.install(definitions, self.parts.webhooks.as_ref()).await;
            drop(call);
            let error = match installed {
                Ok(()) => return Ok(()),
                Err(CrdError::Install { source: writer::Error::Closed(Closed::NotActing), .. }) => {
                    let why = "this process may not act now; the plugin's CustomResourceDefinitions are installed when it may";
                    self.waiting.lock().insert(name.clone(), why.to_owned());
                    self.pending.lock().insert(name.clone());
                    self.parts.acting.look();
                    acting.allowed().await;
                    continue;
                }
                Err(error) if !passes(&error) => return Err(ActivateError::new(&error)),
                Err(error) => with_causes(&error),
            };
            let delay = backoff.next(origin.elapsed());
            warn!(plugin = %name, error, retry_in = ?delay, "cannot install the plugin's CustomResourceDefinitions");
            self.waiting.lock().insert(name.clone(), error);
            tokio::time::sleep(delay).await;
        }
    }

    /// Rejects a plugin that watches a kind which the server serves without watch.
    ///
    /// Informers wait for kinds that are not served yet, and for a server that does not respond.
    async fn check_watchable(&self, manifest: &Manifest) -> Result<(), ActivateError> {
        let kinds: BTreeSet<_> = manifest.watches().map(|watch| &watch.of).collect();
        let looks = join_all(kinds.into_iter().map(async |of| (of, self.parts.cluster.endpoint(of).await)));
        let Ok(found) = tokio::time::timeout(LOOK_WITHIN, looks).await else { return Ok(()) };
        for (of, endpoint) in found {
            if let Ok(endpoint) = endpoint {
                endpoint.check_watchable(of).map_err(|error| ActivateError::new(&error))?;
            }
        }
        Ok(())
    }

    /// Returns what a controller listens to, and starts the informers that do not run yet.
    fn wanted(&self, leasing: &Leasing<'_>, spec: &manifest::Controller) -> Vec<Wanted<Source>> {
        let owns = spec.owns.iter().map(|owned| (owned, Source::Owns));
        let watches = spec.watches.iter().map(|mapped| (&mapped.watch, Source::Watches(mapped.mapping.clone())));
        let reads = spec.reads.iter().map(|read| (read, Source::Reads { awaited: true }));
        let all = std::iter::once((&spec.for_, Source::For)).chain(owns).chain(watches).chain(reads);
        let wanted = all.flat_map(|(watch, source)| {
            let leases = self.lease(leasing, watch).into_iter();
            leases.map(move |lease| Wanted { lease, source: source.clone(), when: watch.when.clone() })
        });
        wanted.collect()
    }

    /// Returns the caches that a plugin reads. The manifest's indexes live as long as this view.
    ///
    /// They need leases of their own: those of subscriptions may outlive the revision.
    fn view(&self, leases: &[Arc<Lease>], manifest: &Manifest) -> View {
        View::new(leases.iter().map(|lease| {
            let indexes = manifest.indexes.iter().filter(|index| index.of == lease.key().of);
            let paths: Vec<_> = indexes.map(|index| index.path.clone()).collect();
            if paths.is_empty() { lease.clone() } else { Arc::new(self.parts.informers.acquire_indexed(lease, paths)) }
        }))
    }

    /// Acquires one lease for each granted [scope](Grants::scopes) of a watch.
    fn lease(&self, leasing: &Leasing<'_>, watch: &Watch) -> Vec<Arc<Lease>> {
        let revision = &leasing.candidate.revision;
        // One lease may serve several watches of the kind, so it is compressed only if all of them ask for it.
        let compressed = watch.compressed
            && revision.manifest().watches().filter(|other| other.of == watch.of).all(|other| other.compressed);
        let acquire = |key: InformerKey| {
            let (informers, name) = (&self.parts.informers, revision.plugin().as_str());
            Arc::new(if compressed { informers.acquire_compressed(key, name) } else { informers.acquire(key, name) })
        };
        leasing.keys(watch).into_iter().map(acquire).collect()
    }

    /// Waits for the informers of a new revision while the old one serves.
    async fn sync(&self, name: &PluginName, view: &View) -> Result<(), ActivateError> {
        let pending = |view: &View| -> Vec<(InformerKey, State)> {
            let unsynced = view.leases().filter(|lease| !*lease.synced().borrow());
            unsynced.map(|lease| (lease.key().clone(), lease.state())).collect()
        };
        let listed = |pending: &[(InformerKey, State)]| {
            pending.iter().map(|(key, state)| format!("{key}: {state}")).collect::<Vec<_>>().join("; ")
        };
        let waiting = pending(view);
        if waiting.is_empty() {
            return Ok(());
        }
        self.waiting.lock().insert(name.clone(), listed(&waiting));
        let all = join_all(view.leases().map(|lease| {
            let mut synced = lease.synced();
            async move { synced.wait_for(|synced| *synced).await.is_ok() }
        }));
        match tokio::time::timeout(SYNC_WITHIN, all).await {
            Ok(_) => Ok(()),
            Err(_) => Err(ActivateError::new(&NotSynced(listed(&pending(view))))),
        }
    }
}

/// The leases of one activation.
struct Leasing<'a> {
    candidate: &'a Candidate,
    /// Leases on single names.
    named: RefCell<HashSet<InformerKey>>,
}

impl Leasing<'_> {
    /// Returns the informers of a watch. Where only names are granted, each name has its own, up to [`NAMED`] for the
    /// plugin.
    fn keys(&self, watch: &Watch) -> Vec<InformerKey> {
        let grants = &self.candidate.grants;
        let key = |scope: &Scope| watch.request_in(scope.namespace.as_deref(), scope.name.as_deref());
        let scopes = grants.scopes(watch, NAMED);
        let named: Vec<InformerKey> = scopes.iter().filter(|scope| scope.name.is_some()).map(key).collect();
        let mut all = self.named.borrow_mut();
        let new = named.iter().filter(|key| !all.contains(*key)).count();
        if all.len() + new > NAMED {
            return grants.scopes(watch, 0).iter().map(key).collect();
        }
        all.extend(named);
        scopes.iter().map(key).collect()
    }

    /// Returns the part of a watch's objects that an observer may see.
    fn shown(&self, watch: &Watch) -> Shown {
        let readable = self.candidate.grants.readable_of(watch);
        let has_names = readable.iter().any(|readable| !readable.names.is_empty());
        let is_all = readable.iter().any(|readable| readable.names.is_empty() && readable.namespaces.is_empty());
        let by_name = || self.keys(watch).iter().any(|key| self.named.borrow().contains(key));
        // A name that is granted later gets a lease of its own, unless there are too many names.
        if has_names && !is_all && !by_name() { Some(readable.into()) } else { None }
    }
}

impl Prepared {
    /// Returns the leases that must have synced before this replaces what is `running`.
    ///
    /// An informer that a running controller waits for does not delay a newer revision or newer grants.
    fn awaited(&self, running: &ActivePlugin) -> impl Iterator<Item = Arc<Lease>> {
        let reviewed = self.webhooks.iter().flat_map(|granted| granted.leases.clone());
        let reviewed = reviewed.filter(|_| running.reviewing.is_some());
        let reconciled = self.controllers.iter().filter(|_| !running.controllers.is_empty());
        let reconciled = reconciled.flat_map(|(spec, wanted)| {
            let heard = running.successor_of(spec);
            let new = wanted.iter().map(|wanted| wanted.lease.clone());
            new.filter(move |lease| !heard.is_some_and(|running| running.waking().listens_to(lease.key())))
        });
        reconciled.chain(reviewed)
    }
}

impl ActivePlugin {
    /// Returns the access of the revision that serves. Its controllers and its observer share one.
    fn access(&self) -> Option<Arc<Access>> {
        let controller = self.controllers.first().map(|controller| controller.serving().access.clone());
        let observing = || self.observing.as_ref().map(|observing| observing.access());
        let reviewing = || self.reviewing.as_ref().map(|reviewing| reviewing.access());
        controller.or_else(observing).or_else(reviewing)
    }

    /// Revokes grants at once: for calls in flight, for waiting changes, and for deleted objects.
    pub(super) fn allow(&self, grants: &Grants) {
        let Some(access) = self.access() else { return };
        access.allow(grants);
        self.restrict();
    }

    /// Forgets changes and deleted objects that the plugin may not see any more.
    pub(super) fn restrict(&self) {
        self.controllers.iter().for_each(|controller| controller.restrict());
        if let Some(observing) = &self.observing {
            observing.restrict();
        }
    }

    /// Returns the scopes of the leases that the manifest causes.
    pub(super) fn leased(&self) -> BTreeSet<LeaseScope> {
        self.access().iter().flat_map(|access| access.reader.leased()).map(LeaseScope::from).collect()
    }

    /// Returns the scopes of what keys ask to be watched.
    pub(super) fn asked(&self) -> Vec<LeaseScope> {
        self.controllers.iter().flat_map(|controller| controller.asked_scopes()).collect()
    }

    /// Returns the running controller that goes on as this one.
    fn successor_of(&self, spec: &manifest::Controller) -> Option<&Arc<Controller>> {
        self.controllers.iter().find(|running| running.continues(spec))
    }
}

/// Returns grants under which only that is read of the cache what the plugin's account may read.
fn with_rights(grants: &Arc<Grants>, rights: Option<&Arc<Rights>>) -> Arc<Grants> {
    rights.map_or_else(|| grants.clone(), |rights| Arc::new(grants.with_rights(rights.clone())))
}

/// Returns the upper bound of concurrent reconciles.
fn concurrency(candidate: &Candidate, spec: &manifest::Controller) -> usize {
    usize::try_from(candidate.concurrency(spec.max_concurrency)).unwrap_or(usize::MAX)
}

/// The host is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the host is stopping")]
struct Stopping;

/// The informers that did not sync in time.
#[derive(Debug, thiserror::Error)]
#[error("not synced within {within} s: {0}", within = SYNC_WITHIN.as_secs())]
struct NotSynced(String);

/// `true` if the error may pass by itself: the server is unreachable or busy, or does not authorize us yet.
fn passes(error: &CrdError) -> bool {
    let source = match error {
        CrdError::Install { source: writer::Error::Request { source, .. }, .. } => source,
        _ => return false,
    };
    match source {
        cluster::Error::Unreachable(_)
        | cluster::Error::Missing(_)
        | cluster::Error::Answer { .. }
        | cluster::Error::NotActing
        | cluster::Error::Token { .. } => true,
        cluster::Error::Status(status) => matches!(status.code, 401 | 403 | 409 | 429 | 500..),
        cluster::Error::TooLong(_)
        | cluster::Error::TooLarge(_)
        | cluster::Error::Name(_)
        | cluster::Error::Body(_)
        | cluster::Error::Scope { .. }
        | cluster::Error::Unwatchable { .. } => false,
    }
}

/// An activation that may wait. On drop, its entries in [`Dispatch::waiting`] and [`Dispatch::pending`] are removed.
struct Waiting<'a> {
    dispatch: &'a Dispatch,
    name: &'a PluginName,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.dispatch.waiting.lock().remove(self.name);
        if self.dispatch.pending.lock().remove(self.name) {
            self.dispatch.parts.acting.look();
        }
    }
}
