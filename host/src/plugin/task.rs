//! One plugin: from its newest files to the revision that serves.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use pilothouse_core::{
    backoff::{Backoff, COSTLY, RECONNECT},
    grant::AdminFile,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, warn};

use super::{
    candidate::{Candidate, Settings, Verified, call_limits, told, verify},
    lifecycle::Shared,
    source::{Found, SettingsFile},
    status::{Failure, Serving, Stage, State, Status},
};
use crate::{
    guests::Account,
    name::PluginName,
    wasm::{CallError, Compiled, DescribeError, Digest, Linked, LoadError, PluginFile, Revision},
    yaml,
};

/// What should become of the plugin.
#[derive(Debug, Clone)]
pub(super) enum Wish {
    /// These files should serve; since when they are known.
    Serve { found: Arc<Found>, seen: Instant },
    /// Its file is gone.
    Gone,
}

/// One plugin's task.
pub(super) struct Task {
    shared: Arc<Shared>,
    wish: watch::Receiver<Wish>,
    /// Of the guests' threads: open as long as the plugin is known, so that what it used is not forgotten.
    account: Account,
    status: Status,
    /// The file that is being compiled: goes on where only the settings change meanwhile.
    compiling: Option<(Digest, Compiling)>,
    /// What became of the file that was compiled last.
    loaded: Option<(Digest, Result<Linked, Refusal>)>,
    /// The last settings that could be read.
    settings: Option<Settings>,
    active: Option<Active>,
    /// An activation was dropped half-way, or it is an earlier task's: `active` may not be what serves.
    unsure: bool,
}

type Compiling = BoxFuture<'static, Result<Compiled, Refusal>>;

/// What serves.
struct Active {
    candidate: Candidate,
    settings: Settings,
    /// The revision was described with the config of these settings; else with an older one, as it refused the new.
    whole: bool,
}

/// Why a file or its settings will not do.
#[derive(Debug, Clone)]
struct Refusal {
    stage: Stage,
    /// One word for metrics.
    kind: &'static str,
    message: String,
    /// Where the plugin was, innermost first; empty where it was not called.
    backtrace: Vec<String>,
    passes: Passes,
}

/// Whether something may pass by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Passes {
    Not,
    /// A try may cost seconds of a core, and most often is in vain.
    Hardly,
    /// What is missing may be back at any moment: the API server, room on a disk.
    Soon,
}

/// When to try again, since the files last changed.
struct Retries {
    soon: Backoff,
    hardly: Backoff,
}

impl Retries {
    fn new(seed: u64) -> Self {
        Self { soon: Backoff::new(RECONNECT, seed), hardly: Backoff::new(COSTLY, seed) }
    }

    /// After so long. None: not.
    fn next(&mut self, passes: Passes) -> Option<Duration> {
        match passes {
            Passes::Not => None,
            // Nothing that is brought up is healthy before it serves, and then this is over.
            Passes::Hardly => Some(self.hardly.next(Duration::ZERO)),
            Passes::Soon => Some(self.soon.next(Duration::ZERO)),
        }
    }
}

/// Why bringing up ended early.
enum Halt {
    Refused(Refusal),
    /// There is something newer to bring up.
    Superseded,
}

impl Refusal {
    fn new(stage: Stage, kind: &'static str, message: String) -> Self {
        Self { stage, kind, message, backtrace: Vec::new(), passes: Passes::Not }
    }

    /// The file cannot be loaded.
    fn load(stage: Stage, error: &LoadError) -> Self {
        let passes = match error {
            // It takes a compiler's time to find out.
            LoadError::Killed => Passes::Hardly,
            _ if error.passes() => Passes::Soon,
            _ => Passes::Not,
        };
        Self { passes, ..Self::new(stage, error.kind(), told(error)) }
    }

    /// The plugin does not say what it is.
    fn describe(error: &DescribeError) -> Self {
        let passes = match error {
            // The machine is too busy, or the plugin loops.
            DescribeError::Call(CallError::Deadline { .. }) => Passes::Hardly,
            DescribeError::Call(CallError::Host(_)) => Passes::Soon,
            _ => Passes::Not,
        };
        let backtrace = error.backtrace().to_vec();
        Self { backtrace, passes, ..Self::new(Stage::Describe, error.kind(), told(error)) }
    }
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Task {
    /// `unsure`: an earlier task may have left something that serves.
    pub(super) fn new(shared: Arc<Shared>, name: PluginName, wish: watch::Receiver<Wish>, unsure: bool) -> Self {
        let account = shared.guests.account(&name);
        let status = Status::new(name);
        Self { shared, wish, account, status, compiling: None, loaded: None, settings: None, active: None, unsure }
    }

    /// Follows what is wished until the plugin is gone, or nobody wishes any more.
    pub(super) async fn run(mut self) {
        loop {
            let wish = self.wish.borrow_and_update().clone();
            match wish {
                Wish::Gone => {
                    self.stop().await;
                    self.shared.identities.release(&self.status.plugin);
                    if !self.wish.has_changed().unwrap_or(false) {
                        info!("plugin is gone");
                        return self.advance(State::Gone);
                    }
                }
                Wish::Serve { found, seen } => self.bring_up_until_settled(&found, seen).await,
            }
            if self.wish.has_changed().is_err() {
                return;
            }
        }
    }

    /// Ends when there is something newer.
    async fn bring_up_until_settled(&mut self, found: &Found, seen: Instant) {
        let mut retries = Retries::new(seed(&found.name));
        while let Some(passes) = self.bring_up(found, seen).await {
            let mut newer = self.wish.clone();
            if let Some(delay) = retries.next(passes) {
                if tokio::time::timeout(delay, newer.changed()).await.is_err() {
                    continue;
                }
            } else {
                let _ = newer.changed().await;
            }
            return;
        }
    }

    /// Brings these files up, as far as they go. None: there is something newer.
    async fn bring_up(&mut self, found: &Found, seen: Instant) -> Option<Passes> {
        self.status.found = Some(found.digest);
        let mut refusals = Vec::new();
        let settings = match self.settings(&found.settings) {
            Ok(settings) => settings,
            Err(refusal) => {
                refusals.push(refusal);
                match &self.settings {
                    Some(old) => old.clone(),
                    None => return Some(self.settle(found, &refusals)),
                }
            }
        };
        self.account.set_share(settings.file.limits.share());
        self.settings = Some(settings.clone());
        if !settings.file.enabled {
            self.stop().await;
        }
        match self.serve(found, &settings, seen).await {
            Ok(()) => {}
            Err(Halt::Superseded) => return None,
            Err(Halt::Refused(refusal)) => {
                refusals.push(refusal);
                match self.settle_with(&settings).await {
                    Ok(()) => {}
                    Err(Halt::Superseded) => return None,
                    // Most often the same once more, of the revision that serves.
                    Err(Halt::Refused(refusal)) => {
                        if refusals.iter().all(|known| known.message != refusal.message) {
                            refusals.push(refusal);
                        }
                    }
                }
            }
        }
        Some(self.settle(found, &refusals))
    }

    /// Reads the administrator's file, and claims the identity that it gives the plugin.
    fn settings(&self, file: &SettingsFile) -> Result<Settings, Refusal> {
        let name = &self.status.plugin;
        let (file, missing) = read_settings(file, name)?;
        let identity = file.identity.as_deref().map(PluginName::new).transpose().map_err(|error| {
            let message = format!("cannot use {name}.yaml: identity: {error}");
            Refusal::new(Stage::Settings, "decode", message)
        })?;
        let identity = self.shared.identities.claim(name, identity).map_err(|taken| {
            // The other plugin may be on its way out: its file was renamed.
            Refusal { passes: Passes::Soon, ..Refusal::new(Stage::Settings, "identity", taken.to_string()) }
        })?;
        Ok(Settings { file, identity, missing })
    }

    /// From the files to a revision that serves.
    async fn serve(&mut self, found: &Found, settings: &Settings, seen: Instant) -> Result<(), Halt> {
        if let Some(active) = &self.active {
            let same = active.candidate.revision.digest() == found.digest && active.settings == *settings;
            if same && active.whole && !self.unsure {
                return Ok(());
            }
        }
        self.advance(State::Found);
        let linked = self.load(found).await?;
        let revision = self.describe(linked, settings).await?;
        self.advance(State::Described);
        let Verified { candidate, warnings } = verify(&Arc::new(revision), settings, self.shared.mode)
            .map_err(|message| Refusal::new(Stage::Verify, "grants", message))?;
        for warning in warnings.iter().filter(|warning| !self.status.warnings.contains(warning)) {
            warn!(digest = %found.digest, "plugin {warning}");
        }
        self.status.warnings = warnings;
        self.advance(State::Verified);
        if settings.file.enabled {
            self.activate(candidate, settings, true).await?;
            let took = seen.elapsed();
            let version = self.status.serving.as_ref().map(|serving| serving.version.as_str()).unwrap_or_default();
            info!(digest = %found.digest, version, ?took, "plugin is active");
            self.shared.observer.activated(&found.name, took);
        }
        Ok(())
    }

    /// Compiles and links, each content once.
    async fn load(&mut self, found: &Found) -> Result<Linked, Halt> {
        if self.loaded.as_ref().is_none_or(|(digest, _)| *digest != found.digest) {
            let linked = match self.compile(found).await? {
                Ok(compiled) => {
                    self.advance(State::Compiled);
                    compiled.link().await.map_err(|error| Refusal::load(Stage::Link, &error))
                }
                Err(refusal) => Err(refusal),
            };
            // What may pass is tried again, and not remembered.
            if let Err(refusal) = &linked
                && refusal.passes > Passes::Not
            {
                return Err(refusal.clone().into());
            }
            self.loaded = Some((found.digest, linked));
        }
        found.wasm.let_go();
        let linked = self.loaded.as_ref().map(|(_, linked)| linked.clone()).expect("it was loaded just now");
        let linked = linked?;
        self.advance(State::Linked);
        Ok(linked)
    }

    /// Compiles, unless something newer comes.
    async fn compile(&mut self, found: &Found) -> Result<Result<Compiled, Refusal>, Halt> {
        let mut newer = self.wish.clone();
        let (_, compiling) = match self.compiling.take() {
            Some(compiling) if compiling.0 == found.digest => self.compiling.insert(compiling),
            _ => {
                self.advance(State::Compiling);
                let content = found.wasm.get().expect("it is let go when it is loaded");
                self.compiling.insert((found.digest, compile(&self.shared, content)))
            }
        };
        tokio::select! {
            biased;
            compiled = compiling => {
                self.compiling = None;
                Ok(compiled)
            }
            _ = newer.changed() => Err(Halt::Superseded),
        }
    }

    /// Asks the plugin what it is and needs.
    async fn describe(&mut self, linked: Linked, settings: &Settings) -> Result<Revision, Halt> {
        let (name, config) = (self.status.plugin.clone(), settings.file.config.to_string().into());
        let limits = call_limits(&settings.file.limits);
        // Where this future is dropped, the call ends.
        let call = self.account.spawn(async move { linked.describe(name, config, limits).await });
        let mut newer = self.wish.clone();
        let described = tokio::select! {
            biased;
            described = call.ended() => described,
            _ = newer.changed() => return Err(Halt::Superseded),
        };
        match described {
            Some(Ok(revision)) => Ok(revision),
            Some(Err(error)) => Err(Refusal::describe(&error).into()),
            None => Err(Refusal::new(Stage::Describe, "host", "the host failed over the call".to_owned()).into()),
        }
    }

    /// Lets a candidate serve, unless something newer comes.
    async fn activate(&mut self, candidate: Candidate, settings: &Settings, whole: bool) -> Result<(), Halt> {
        let mut newer = self.wish.clone();
        let before = std::mem::replace(&mut self.unsure, true);
        // On the plugin's account: what its manifest makes the host do there is not for the threads that everybody's requests run on.
        let (shared, asked, superseded) = (self.shared.clone(), candidate.clone(), CancellationToken::new());
        let activate = {
            let superseded = superseded.clone();
            async move { superseded.run_until_cancelled(shared.activate.activate(asked)).await }
        };
        let mut activating = pin!(self.account.spawn(activate.in_current_span()).ended());
        let activated = tokio::select! {
            biased;
            activated = &mut activating => activated.flatten(),
            _ = newer.changed() => {
                // It may be about to end. The next activation begins when this one is over.
                superseded.cancel();
                activating.await;
                return Err(Halt::Superseded);
            }
        };
        // What serves is not known then: the task that comes after this one finds out.
        let activated = activated.expect("the host failed over the activation");
        if let Err(error) = activated {
            // What served before serves on, whatever that is.
            self.unsure = before;
            let passes = Passes::Soon;
            return Err(Refusal { passes, ..Refusal::new(Stage::Activate, "cluster", told(&error)) }.into());
        }
        self.unsure = false;
        self.status.serving = Some(Serving {
            digest: candidate.revision.digest(),
            version: candidate.revision.manifest().version.clone(),
            since: Timestamp::now(),
            instances: candidate.revision.manifest().instances,
        });
        self.active = Some(Active { candidate, settings: settings.clone(), whole });
        Ok(())
    }

    /// The newest files do not serve, so the older revision goes on: under the newest settings.
    async fn settle_with(&mut self, settings: &Settings) -> Result<(), Halt> {
        let Some(active) = &self.active else {
            if self.unsure {
                self.stop().await;
            }
            return Ok(());
        };
        if active.settings == *settings && !self.unsure {
            return Ok(());
        }
        let digest = active.candidate.revision.digest();
        match verify(&active.candidate.revision, settings, self.shared.mode) {
            Ok(Verified { candidate, warnings }) => {
                self.status.warnings = warnings;
                self.activate(candidate, settings, false).await?;
                info!(%digest, "older revision goes on under new settings");
                Ok(())
            }
            Err(message) => {
                warn!(%digest, error = message, "plugin is stopped: what it works on is not granted any more");
                self.stop().await;
                Err(Refusal::new(Stage::Verify, "grants", message).into())
            }
        }
    }

    /// No revision serves after this.
    async fn stop(&mut self) {
        if self.active.is_some() || self.unsure {
            self.advance(State::Draining);
            self.shared.activate.deactivate(&self.status.plugin).await;
            self.active = None;
            self.unsure = false;
            self.status.serving = None;
        }
    }

    /// These files are as far as they will go, unless that passes.
    fn settle(&mut self, found: &Found, refusals: &[Refusal]) -> Passes {
        self.status.last_failure = None;
        for Refusal { stage, kind, message, backtrace, .. } in refusals {
            let backtrace = (!backtrace.is_empty()).then(|| backtrace.join("\n"));
            warn!(digest = %found.digest, %stage, kind, error = message, backtrace, "cannot bring the plugin up");
            self.shared.observer.failed(&found.name, *stage, kind);
        }
        if let Some(first) = refusals.first() {
            self.status.last_failure = Some(Failure {
                stage: first.stage,
                message: refusals.iter().map(|refusal| refusal.message.as_str()).collect::<Vec<_>>().join("\n"),
                backtrace: refusals.iter().flat_map(|refusal| &refusal.backtrace).cloned().collect(),
                digest: found.digest,
                at: Timestamp::now(),
            });
        }
        let enabled = self.settings.as_ref().is_none_or(|settings| settings.file.enabled);
        self.advance(match (&self.active, refusals) {
            (Some(_), _) => State::Active,
            (None, []) if !enabled => {
                info!(digest = %found.digest, "plugin is disabled by its settings: it is not called");
                State::Disabled
            }
            (None, _) => State::Failed,
        });
        refusals.iter().map(|refusal| refusal.passes).max().unwrap_or(Passes::Not)
    }

    fn advance(&mut self, state: State) {
        self.status.state = state;
        self.shared.statuses.put(self.status.clone());
        self.shared.observer.changed(&self.status);
    }
}

/// Loads the file, in this task: what it says while it compiles is said of the plugin.
fn compile(shared: &Shared, wasm: PluginFile) -> Compiling {
    let engine = shared.engine.clone();
    async move { engine.load(wasm).await.map_err(|error| Refusal::load(Stage::Compile, &error)) }.boxed()
}

/// Reads the administrator's file, and whether it is missing.
fn read_settings(file: &SettingsFile, name: &PluginName) -> Result<(AdminFile, bool), Refusal> {
    let refused = |message: String| Refusal::new(Stage::Settings, "decode", message);
    match file {
        SettingsFile::Missing => Ok((AdminFile::default(), true)),
        SettingsFile::Unreadable(why) => Err(refused(format!("cannot read {name}.yaml: {why}"))),
        SettingsFile::Text(text) => {
            // Nothing but comments is no document to the parser.
            let blank = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
            let parsed = if blank { Ok(AdminFile::default()) } else { yaml::read(text) };
            let file = parsed.map_err(|error| refused(format!("cannot use {name}.yaml: {error}")))?;
            Ok((file, false))
        }
    }
}

/// Jitter that differs from plugin to plugin, so that not all come back at once.
fn seed(name: &PluginName) -> u64 {
    name.as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hardly_passes_is_tried_again_in_minutes_at_last_and_what_may_pass_soon_within_one() {
        let mut retries = Retries::new(7);
        let mut last = |passes| (0..20).fold(None, |_, _| retries.next(passes)).unwrap_or_default().as_secs();
        assert_eq!(last(Passes::Not), 0);
        assert!((150..300).contains(&last(Passes::Hardly)));
        assert!((30..60).contains(&last(Passes::Soon)));
        // The one kind of failure has not made the delays of the other longer.
        let mut retries = Retries::new(7);
        let first = [Passes::Hardly, Passes::Soon].map(|passes| retries.next(passes).unwrap_or_default().as_secs());
        assert!(first.iter().all(|delay| *delay < 2), "{first:?}");
    }
}
