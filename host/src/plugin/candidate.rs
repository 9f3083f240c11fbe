//! A candidate: a revision that may serve, with its grants and limits.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use pilothouse_core::{
    grant::{self, ActAs, AdminFile, Grants, LackedBy},
    informer::{Runs, bounded, plan},
    manifest::{Manifest, Verb, Watch, Webhook},
};

use super::mode::Mode;
use crate::{
    causes::with_causes,
    name::PluginName,
    references::References,
    wasm::{Limits, Revision},
    writer::Identity,
};

/// Makes revisions serve.
pub trait Activate: Send + Sync + 'static {
    /// Makes the candidate serve, in place of the plugin's older revision: every call from then on goes to the
    /// candidate.
    ///
    /// Waits for the informers that the candidate needs. The older revision serves meanwhile. If only grants or limits
    /// changed, the candidate has the revision that serves.
    ///
    /// # Errors
    /// Fails if the candidate cannot serve. The older revision goes on.
    ///
    /// # Cancellation
    /// The future is dropped when a newer file replaces the candidate. Then one of the two revisions serves, as a
    /// whole.
    fn activate(&self, candidate: Candidate) -> BoxFuture<'_, Result<(), ActivateError>>;

    /// Returns when the candidate that serves is to be activated again, because the API server serves other kinds for
    /// the patterns of its manifest. Never returns for a plugin without patterns.
    fn kinds_changed<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()> {
        let _ = name;
        Box::pin(std::future::pending())
    }

    /// Takes no more keys for the plugin, and waits for its calls in flight. Does nothing if the plugin does not serve.
    fn deactivate<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()>;
}

/// Why a candidate cannot serve, with all causes in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ActivateError(String);

impl ActivateError {
    /// Joins the messages of an error and its causes.
    pub fn new(error: &dyn std::error::Error) -> Self {
        Self(with_causes(error))
    }
}

/// A revision that may serve.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The revision.
    pub revision: Arc<Revision>,
    /// The identity under which it writes.
    pub identity: Identity,
    /// The service account as which its requests are sent. `None`: the host's own.
    pub act_as: Option<ActAs>,
    /// Its grants.
    pub grants: Arc<Grants>,
    /// Its webhooks that the administrator grants.
    pub webhooks: Vec<Webhook>,
    /// The administrator's limits. The revision has those of a single call.
    pub limits: grant::Limits,
    /// What the administrator's file refers to.
    pub references: References,
}

impl Candidate {
    /// Returns how many keys a controller may reconcile at once: `asked` by its manifest, or the administrator's limit
    /// if that is lower.
    pub fn concurrency(&self, asked: u32) -> u32 {
        self.limits.max_concurrency.map_or(asked, |most| most.get().min(asked))
    }
}

/// Returns the limits of a call under the administrator's limits.
pub(crate) fn call_limits(limits: &grant::Limits) -> Limits {
    let mut bounds = Limits::default();
    if let Some(mib) = limits.memory_mib {
        bounds.memory = usize::try_from(mib.get()).unwrap_or(usize::MAX).saturating_mul(1 << 20);
    }
    if let Some(mib) = limits.total_memory_mib {
        bounds.total_memory = usize::try_from(mib.get()).unwrap_or(usize::MAX).saturating_mul(1 << 20);
    }
    // One instance may always use its whole limit.
    bounds.total_memory = bounds.total_memory.max(bounds.memory);
    if let Some(calls) = limits.host_calls {
        bounds.host_calls = calls.get();
    }
    if let Some(mib) = limits.host_mib {
        bounds.host_bytes = usize::try_from(mib.get()).unwrap_or(usize::MAX).saturating_mul(1 << 20);
    }
    bounds.reuse = limits.reuse.unwrap_or(bounds.reuse);
    bounds.deadline = limits.timeout_ms.map(|ms| Duration::from_millis(ms.get().into()));
    bounds
}

/// The administrator's settings of one plugin.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) file: AdminFile,
    pub(super) config: Config,
    pub(super) references: References,
    pub(super) identity: Identity,
    /// `true` if there is no file, and these are the defaults.
    pub(super) missing: bool,
}

/// References count by their values in the configuration. Those of headers are read when a request is sent.
impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let Self { file, config, references: _, identity, missing } = self;
        (file, config, identity, missing) == (&other.file, &other.config, &other.identity, &other.missing)
    }
}

/// The configuration as JSON text, with the values that it refers to.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Config(pub(super) Arc<str>);

/// Shows nothing of it.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Config")
    }
}

/// A candidate, and warnings about permissions that it asks for and does not get.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) candidate: Candidate,
    pub(super) warnings: Vec<String>,
}

/// Compares what the revision needs with what is granted.
///
/// A controller that may not read its kinds would never be woken, and nothing would show that. So such a plugin is
/// refused. Any other permission that is not granted fails when it is used, and causes a warning here.
///
/// # Errors
/// Returns what is missing, and the lines to add to the administrator's file.
pub(super) fn verify(revision: &Arc<Revision>, settings: &Settings, mode: Mode) -> Result<Verified, String> {
    let manifest = revision.manifest();
    let grants = match mode {
        Mode::Granted => Grants::new(&manifest.permissions, &settings.file.grants),
        Mode::Dev => Grants::all_asked(&manifest.permissions),
    }
    .with_http(&manifest.http, &settings.file.http);
    let name = revision.plugin();
    let mut unread: Vec<Unread<'_>> = manifest.watches().filter_map(|watch| Unread::of(watch, &grants)).collect();
    // Of the kinds of a pattern, the plugin gets those that are granted.
    let patterns = manifest.patterns.iter().map(|pattern| &pattern.watch);
    unread.extend(patterns.filter(|watch| !grants.reads_some_of(&watch.of)).map(|watch| Unread {
        watch,
        namespaces: Vec::new(),
        by: LackedBy::Administrator,
    }));
    if !unread.is_empty() {
        // Several watches of one kind lack the same grant.
        let mut reasons: Vec<String> = unread.iter().map(ToString::to_string).collect();
        reasons.dedup();
        // If only the manifest lacks something, no line of the administrator's file helps.
        let help = if unread.iter().all(|unread| unread.by == LackedBy::Manifest) {
            String::new()
        } else if settings.missing {
            format!(
                "\nthere is no {name}.yaml beside {name}.wasm, so nothing is granted; one that allows all that the plugin asks for:\n\n{}",
                Grants::yaml(manifest)
            )
        } else {
            format!("\nto allow all that the plugin asks for, put this into {name}.yaml:\n\n{}", Grants::yaml(manifest))
        };
        return Err(format!("may not read what it works on: {}{help}", reasons.join("; ")));
    }
    within_watches(manifest, &settings.file.limits).map_err(|error| format!("{error} in {name}.yaml"))?;
    let granted = |webhook: &&Webhook| mode == Mode::Dev || settings.file.webhooks.contains(&webhook.name);
    let webhooks: Vec<Webhook> = manifest.webhooks.iter().filter(granted).cloned().collect();
    let warnings = match mode {
        Mode::Granted => {
            let ungranted = ungranted(name, manifest, &settings.file).into_iter();
            ungranted.map(|ungranted| format!("asks for and is not granted: {ungranted}")).collect()
        }
        Mode::Dev => only_in_dev(name, manifest, settings).into_iter().collect(),
    };
    let limits = settings.file.limits;
    let revision = if revision.limits() == call_limits(&limits) {
        Arc::clone(revision)
    } else {
        Arc::new(revision.with_limits(call_limits(&limits)))
    };
    let (identity, grants) = (settings.identity.clone(), Arc::new(grants));
    let references = settings.references.clone();
    // In `dev`, one person runs the host and writes the plugin. The account need not exist.
    let act_as = settings.file.service_account.clone().filter(|_| mode == Mode::Granted);
    let candidate = Candidate { revision, identity, act_as, grants, webhooks, limits, references };
    Ok(Verified { candidate, warnings })
}

/// Returns what the plugin asks for and the administrator's file does not grant.
pub(crate) fn ungranted(name: &PluginName, manifest: &Manifest, file: &AdminFile) -> Vec<String> {
    let grants = Grants::new(&manifest.permissions, &file.grants).with_http(&manifest.http, &file.http);
    let webhooks =
        manifest.webhooks.iter().map(|webhook| &webhook.name).filter(|webhook| !file.webhooks.contains(webhook));
    let webhooks = webhooks
        .map(|webhook| format!("the webhook {webhook}; to allow it, add to `webhooks:` in {name}.yaml: - {webhook}"));
    let refused = grants.refused().iter().map(ToString::to_string).chain(grants.refused_http()).collect::<Vec<_>>();
    refused.into_iter().chain(webhooks).collect()
}

/// Returns the block for the administrator's file that grants all that the plugin asks for.
pub(crate) fn all_grants(manifest: &Manifest) -> String {
    let mut yaml = Grants::yaml(manifest);
    if !manifest.webhooks.is_empty() {
        let names: Vec<&str> = manifest.webhooks.iter().map(|webhook| &*webhook.name).collect();
        yaml.push_str(&format!("webhooks: [{}]\n", names.join(", ")));
    }
    yaml
}

/// Returns what a host in a cluster would not grant, though this one does. `None` if the administrator's file grants
/// all.
fn only_in_dev(name: &PluginName, manifest: &Manifest, settings: &Settings) -> Option<String> {
    let ungranted = ungranted(name, manifest, &settings.file);
    if ungranted.is_empty() {
        return None;
    }
    let lacks = if settings.missing {
        format!("has no {name}.yaml, so `pilothouse run` would grant nothing")
    } else {
        format!("gets more from dev than {name}.yaml grants; `pilothouse run` would not grant")
    };
    Some(format!(
        "{lacks}: {}\nto grant all that it asks for, put this into {name}.yaml:\n\n{}",
        ungranted.join("; "),
        all_grants(manifest)
    ))
}

/// Refuses a manifest that causes more watches at the API server than the plugin may have. A kind that is granted only
/// in some namespaces has a watch in each. Those count once, as the plugin did not ask for them.
fn within_watches(manifest: &Manifest, limits: &grant::Limits) -> Result<(), String> {
    let requests = bounded(manifest.requests(), |_| Runs::No);
    let (watches, most) = (plan(&requests, |_| false).len(), limits.watches().get());
    if watches <= usize::try_from(most).unwrap_or(usize::MAX) {
        return Ok(());
    }
    Err(format!(
        "its manifest causes {watches} watches at the API server, and it may have {most}: watch fewer kinds, or each in all namespaces; or set \
         limits.watches to {watches}"
    ))
}

/// A kind that a controller works on and may not read, or not in these namespaces.
struct Unread<'a> {
    watch: &'a Watch,
    namespaces: Vec<&'a str>,
    by: LackedBy,
}

impl<'a> Unread<'a> {
    fn of(watch: &'a Watch, grants: &Grants) -> Option<Self> {
        let denied = |namespace: Option<&str>| grants.check(Verb::Read, &watch.of, None, namespace, None).err();
        let readable = grants.readable_of(watch);
        if watch.namespaces.is_empty() {
            if !readable.is_empty() {
                return None;
            }
            let by = denied(None).map_or(LackedBy::Administrator, |denied| denied.by);
            return Some(Self { watch, namespaces: Vec::new(), by });
        }
        let lacking = |namespace: &&String| !readable.iter().any(|readable| readable.namespaces.contains(namespace));
        let namespaces: Vec<&str> = watch.namespaces.iter().filter(lacking).map(String::as_str).collect();
        let by = namespaces.first().and_then(|namespace| denied(Some(namespace)))?.by;
        Some(Self { watch, namespaces, by })
    }
}

impl fmt::Display for Unread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.watch.of;
        match self.by {
            LackedBy::Manifest => write!(f, "its manifest does not ask to read {of}")?,
            LackedBy::Administrator => write!(f, "reading {of} is not granted")?,
        }
        if self.namespaces.is_empty() { Ok(()) } else { write!(f, " in {}", self.namespaces.join(", ")) }
    }
}
