//! A revision that would serve: with what it may do, checked before it is let to.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use pilothouse_core::{
    grant::{self, AdminFile, Grants, LackedBy},
    informer::{Runs, bounded, plan},
    manifest::{Manifest, Verb, Watch},
};

use super::lifecycle::Mode;
use crate::{
    name::PluginName,
    wasm::{Limits, Revision},
    writer::Identity,
};

/// Who lets revisions serve.
pub trait Activate: Send + Sync + 'static {
    /// Makes the candidate the one that serves, in the place of the plugin's older one if there is one: from then on every
    /// call is the candidate's. May take as long as its informers need; the older one serves until then. Also called with the
    /// revision that serves, where only grants or limits changed.
    ///
    /// # Errors
    /// If the candidate cannot serve. The older one goes on.
    ///
    /// # Cancellation
    /// The future is dropped where a newer file makes the candidate obsolete. Either revision may serve then, but one of them
    /// wholly.
    fn activate(&self, candidate: Candidate) -> BoxFuture<'_, Result<(), ActivateError>>;

    /// Takes no more keys for the plugin and waits for its calls in flight. No error where it does not serve.
    fn deactivate<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()>;
}

/// Why a candidate cannot serve, with all its causes in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ActivateError(String);

impl ActivateError {
    /// Takes the error's message and those of its causes.
    pub fn new(error: &dyn std::error::Error) -> Self {
        Self(told(error))
    }
}

/// A revision that would serve.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What is called.
    pub revision: Arc<Revision>,
    /// Whose fields it applies.
    pub identity: Identity,
    /// What it may do.
    pub grants: Arc<Grants>,
    /// The administrator's bounds. Those of a single call are in the revision already.
    pub limits: grant::Limits,
}

impl Candidate {
    /// How many keys a controller may reconcile at once: what its manifest says, or less if the administrator does.
    pub fn concurrency(&self, asked: u32) -> u32 {
        self.limits.max_concurrency.map_or(asked, |most| most.get().min(asked))
    }
}

/// The bounds of a call under the administrator's limits.
pub(crate) fn call_limits(limits: &grant::Limits) -> Limits {
    let mut bounds = Limits::default();
    if let Some(mib) = limits.memory_mib {
        bounds.memory = usize::try_from(mib.get()).unwrap_or(usize::MAX).saturating_mul(1 << 20);
    }
    if let Some(mib) = limits.total_memory_mib {
        bounds.total_memory = usize::try_from(mib.get()).unwrap_or(usize::MAX).saturating_mul(1 << 20);
    }
    // One that takes all it may always has room for that.
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

/// The administrator's word on one plugin.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) file: AdminFile,
    pub(super) identity: Identity,
    /// There is no file: the default stands for it.
    pub(super) missing: bool,
}

/// A candidate, and what it asks for in vain.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) candidate: Candidate,
    pub(super) warnings: Vec<String>,
}

/// Compares what the revision needs with what is granted.
///
/// A controller that may not read its kinds would never be woken, and would look as if all were well; so that is refused.
/// Whatever else is asked for in vain only fails when it is used: a warning.
///
/// The error is for people: what is missing, and the lines to add.
pub(super) fn verify(revision: &Arc<Revision>, settings: &Settings, mode: Mode) -> Result<Verified, String> {
    let manifest = revision.manifest();
    let grants = match mode {
        Mode::Granted => Grants::new(&manifest.permissions, &settings.file.grants),
        Mode::Dev => Grants::all_asked(&manifest.permissions),
    };
    let name = revision.plugin();
    let unread: Vec<Unread<'_>> = manifest.watches().filter_map(|watch| Unread::of(watch, &grants)).collect();
    if !unread.is_empty() {
        // Many watches of one kind lack one grant.
        let mut reasons: Vec<String> = unread.iter().map(ToString::to_string).collect();
        reasons.dedup();
        // Where only the manifest lacks something, no line of the administrator's helps.
        let help = if unread.iter().all(|unread| unread.by == LackedBy::Manifest) {
            String::new()
        } else if settings.missing {
            format!(
                "\nthere is no {name}.yaml beside {name}.wasm, so nothing is granted; one that allows all that the plugin asks for:\n\n{}",
                Grants::yaml(&manifest.permissions)
            )
        } else {
            format!(
                "\nto allow all that the plugin asks for, put this into {name}.yaml:\n\n{}",
                Grants::yaml(&manifest.permissions)
            )
        };
        return Err(format!("may not read what it works on: {}{help}", reasons.join("; ")));
    }
    within_watches(manifest, &settings.file.limits).map_err(|error| format!("{error} in {name}.yaml"))?;
    let warnings = grants.refused().iter().map(|refused| format!("asks for and is not granted: {refused}")).collect();
    let limits = settings.file.limits;
    let revision = if revision.limits() == call_limits(&limits) {
        Arc::clone(revision)
    } else {
        Arc::new(revision.with_limits(call_limits(&limits)))
    };
    let (identity, grants) = (settings.identity.clone(), Arc::new(grants));
    Ok(Verified { candidate: Candidate { revision, identity, grants, limits }, warnings })
}

/// Refuses a manifest that causes more watches at the API server than the plugin may have. An administrator who grants a kind in some namespaces
/// only has a watch in each of them: these count once, as the plugin did not ask for them.
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

/// A kind that a controller works on and that it may not read, or not where it wants to.
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

/// An error and its causes in one line.
pub(super) fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
