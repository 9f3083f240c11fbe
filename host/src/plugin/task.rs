//! The task of one plugin: brings its newest files up, step by step, to the revision that serves.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use pilothouse_core::{grant::AdminFile, references};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, warn};

use super::{
    candidate::{Candidate, Config, Settings, Verified, call_limits, verify},
    change::{Found, SettingsFile},
    refusal::{Refusal, Retries, Retry},
    shared::Shared,
    status::{Failure, Serving, Stage, State, Status},
};
use crate::{
    causes::with_causes,
    guests::Account,
    name::PluginName,
    references::{Changes, References, Watched},
    wasm::{Compiled, Digest, Linked, PluginFile, Revision},
    yaml,
};

/// Time to find out whether the objects to which a file refers exist. A server that responds does so in some
/// milliseconds.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// Time until the next try to follow the kinds of patterns, after one has failed.
const RENEW_AFTER: Duration = Duration::from_secs(10);

/// What the plugin's task is to bring about.
#[derive(Debug, Clone)]
pub(super) enum Wish {
    /// These files serve. They were seen at this time.
    Serve { found: Arc<Found>, seen: Instant },
    /// The plugin's file is gone, and nothing serves.
    Gone,
}

/// The task of one plugin.
pub(super) struct Task {
    shared: Arc<Shared>,
    wish: watch::Receiver<Wish>,
    /// The plugin's account of the guests' threads. It stays open while the plugin is known, so that what it used
    /// counts.
    account: Account,
    status: Status,
    /// The file that is being compiled. That goes on if only the settings change.
    compiling: Option<(Digest, Compiling)>,
    /// The result for the file that was compiled last.
    loaded: Option<(Digest, Result<Linked, Refusal>)>,
    /// The last settings that could be read.
    settings: Option<Settings>,
    /// What the last file refers to, and what of its changes was seen.
    watched: Option<(Arc<Watched>, Changes)>,
    active: Option<Active>,
    /// `true` if something else than `active` may serve: an activation was dropped half-way, or an earlier task
    /// panicked.
    is_unsure: bool,
}

type Compiling = BoxFuture<'static, Result<Compiled, Refusal>>;

/// The revision that serves.
struct Active {
    candidate: Candidate,
    settings: Settings,
    /// `true` if the revision was described with the config of these settings. If it refused them, it has an older
    /// config.
    has_config: bool,
}

/// Why bringing up ended early.
enum Halt {
    Refused(Refusal),
    /// There are newer files.
    Superseded,
}

/// What ends a rest.
enum Until {
    /// There are newer files.
    Newer,
    /// The files are to be brought up again.
    Again,
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Task {
    /// `is_unsure` is `true` if an earlier task may have left something that serves.
    pub(super) fn new(shared: Arc<Shared>, name: PluginName, wish: watch::Receiver<Wish>, is_unsure: bool) -> Self {
        let account = shared.guests.account(&name);
        let status = Status::new(name);
        Self {
            shared,
            wish,
            account,
            status,
            compiling: None,
            loaded: None,
            settings: None,
            watched: None,
            active: None,
            is_unsure,
        }
    }

    /// Follows the wishes until the plugin is gone, or the lifecycle ends.
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

    /// Brings the files up, and does so again when something changes to which they refer, or as long as that may help.
    /// Returns when there are newer files.
    async fn bring_up_until_settled(&mut self, found: &Found, seen: Instant) {
        let mut retries = Retries::of(&found.name);
        while let Some(retry) = self.bring_up(found, seen).await {
            if let Until::Newer = self.rest(retries.next(retry)).await {
                return;
            }
        }
    }

    /// Waits until something calls for work on the files, at most for `delay`. Meanwhile, the candidate that serves is
    /// activated again whenever the kinds of its patterns change.
    async fn rest(&mut self, delay: Option<Duration>) -> Until {
        let mut newer = self.wish.clone();
        let mut watched = self.watched.clone();
        let mut retried = pin!(async {
            match delay {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        });
        let mut referred = pin!(async {
            match &mut watched {
                Some((_, changes)) => changes.changed().await,
                None => std::future::pending().await,
            }
        });
        let mut pause = Duration::ZERO;
        loop {
            let (activate, name) = (self.shared.clone(), self.status.plugin.clone());
            let kinds = async {
                tokio::time::sleep(pause).await;
                activate.activate.kinds_changed(&name).await;
            };
            tokio::select! {
                biased;
                _ = newer.changed() => return Until::Newer,
                () = &mut referred => return Until::Again,
                () = &mut retried => return Until::Again,
                () = kinds => {}
            }
            pause = match self.renew().await {
                Ok(()) => Duration::ZERO,
                Err(Halt::Superseded) => return Until::Newer,
                Err(Halt::Refused(refusal)) => {
                    warn!(
                        error = refusal.message,
                        "cannot observe the kinds that the API server serves now; trying again"
                    );
                    RENEW_AFTER
                }
            };
        }
    }

    /// Activates the candidate that serves again.
    async fn renew(&mut self) -> Result<(), Halt> {
        let Some(Active { candidate, settings, has_config }) = &self.active else { return Ok(()) };
        let (candidate, settings, has_config) = (candidate.clone(), settings.clone(), *has_config);
        let since = self.status.serving.as_ref().map(|serving| serving.since);
        self.activate(candidate, &settings, has_config).await?;
        if let (Some(serving), Some(since)) = (&mut self.status.serving, since) {
            serving.since = since;
        }
        Ok(())
    }

    /// Brings the files up once. Returns whether to retry, or `None` if there are newer files.
    async fn bring_up(&mut self, found: &Found, seen: Instant) -> Option<Retry> {
        self.status.found = Some(found.digest);
        let mut refusals = Vec::new();
        let settings = match self.settings(&found.settings).await {
            Ok((settings, missing)) => {
                refusals.extend(missing);
                settings
            }
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
                    // Most often the same message, about the revision that serves.
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

    /// Reads the administrator's file, claims the identity that it gives the plugin, and fills in the values to which
    /// it refers. If a value is missing, the result is the file with the configuration of before, and why.
    async fn settings(&mut self, file: &SettingsFile) -> Result<(Settings, Option<Refusal>), Refusal> {
        let name = &self.status.plugin.clone();
        let (file, missing) = read_settings(file, name)?;
        let identity = file.identity.as_deref().map(PluginName::new).transpose().map_err(|error| {
            let message = format!("cannot use {name}.yaml: identity: {error}");
            Refusal::new(Stage::Settings, "decode", message)
        })?;
        let identity = self.shared.identities.claim(name, identity).map_err(|taken| {
            // If a file was renamed, the plugin of its old name is about to end.
            Refusal::new(Stage::Settings, "identity", taken.to_string()).with_retry(Retry::Soon)
        })?;
        let references = References { watched: self.watch(&file).await?, secret_in_config: has_secrets(&file) };
        let config = match &references.watched {
            Some(watched) => watched.resolve(&file.config),
            None => Ok(file.config.clone()),
        };
        match (config, &self.settings) {
            (Ok(config), _) => {
                let config = Config(config.to_string().into());
                Ok((Settings { file, config, references, identity, missing }, None))
            }
            (Err(why), before) => {
                let message = format!("waits for what the configuration in {name}.yaml refers to: {why}");
                let refusal = Refusal::new(Stage::Settings, "references", message);
                let Some(before) = before else { return Err(refusal) };
                let secret_in_config = references.secret_in_config || before.references.secret_in_config;
                let references = References { secret_in_config, ..references };
                Ok((Settings { file, config: before.config.clone(), references, identity, missing }, Some(refusal)))
            }
        }
    }

    /// Caches what the file refers to, and nothing else. Waits a moment for it.
    async fn watch(&mut self, file: &AdminFile) -> Result<Option<Arc<Watched>>, Refusal> {
        let references = file.references();
        if references.is_empty() {
            self.watched = None;
            return Ok(None);
        }
        let known = self.watched.take().filter(|(watched, _)| *watched.references() == references);
        let (watched, changes) = match (known, &self.shared.informers) {
            (Some(known), _) => known,
            (None, Some(informers)) => {
                let watched = Watched::new(informers, self.status.plugin.as_str(), references);
                let changes = watched.changes();
                (Arc::new(watched), changes)
            }
            (None, None) => {
                let message = "the file refers to Secrets or ConfigMaps, and there is no cluster".to_owned();
                return Err(Refusal::new(Stage::Settings, "references", message));
            }
        };
        let mut newer = self.wish.clone();
        tokio::select! {
            biased;
            _ = newer.changed() => {}
            _ = tokio::time::timeout(LOOK_WITHIN, watched.synced()) => {}
        }
        let (_, changes) = self.watched.insert((watched.clone(), changes));
        changes.mark_unchanged();
        Ok(Some(watched))
    }

    /// Turns the files into a revision that serves.
    async fn serve(&mut self, found: &Found, settings: &Settings, seen: Instant) -> Result<(), Halt> {
        if let Some(active) = &self.active {
            let same = active.candidate.revision.digest() == found.digest && active.settings == *settings;
            if same && active.has_config && !self.is_unsure {
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

    /// Compiles and links the file. Each content is compiled once.
    async fn load(&mut self, found: &Found) -> Result<Linked, Halt> {
        if self.loaded.as_ref().is_none_or(|(digest, _)| *digest != found.digest) {
            let linked = match self.compile(found).await? {
                Ok(compiled) => {
                    self.advance(State::Compiled);
                    compiled.link().await.map_err(|error| Refusal::load(Stage::Link, &error))
                }
                Err(refusal) => Err(refusal),
            };
            // A failure that a retry may cure is not remembered.
            if let Err(refusal) = &linked
                && refusal.retry > Retry::Never
            {
                return Err(refusal.clone().into());
            }
            self.loaded = Some((found.digest, linked));
        }
        found.wasm.clear();
        let linked = self.loaded.as_ref().map(|(_, linked)| linked.clone()).expect("it was loaded above");
        let linked = linked?;
        self.advance(State::Linked);
        Ok(linked)
    }

    /// Compiles the file, unless there are newer files.
    async fn compile(&mut self, found: &Found) -> Result<Result<Compiled, Refusal>, Halt> {
        let mut newer = self.wish.clone();
        let (_, compiling) = match self.compiling.take() {
            Some(compiling) if compiling.0 == found.digest => self.compiling.insert(compiling),
            _ => {
                self.advance(State::Compiling);
                let content = found.wasm.get().expect("it is dropped only once it is loaded");
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

    /// Calls the plugin's `describe`.
    async fn describe(&mut self, linked: Linked, settings: &Settings) -> Result<Revision, Halt> {
        let (name, config) = (self.status.plugin.clone(), settings.config.0.clone());
        let limits = call_limits(&settings.file.limits);
        // Dropping this future ends the call.
        let call = self.account.spawn(async move { linked.describe(name, config, limits).await });
        let mut newer = self.wish.clone();
        let described = tokio::select! {
            biased;
            described = call.ended() => described,
            _ = newer.changed() => return Err(Halt::Superseded),
        };
        match described {
            Some(Ok(revision)) => Ok(revision),
            Some(Err(error)) if settings.references.secret_in_config => {
                Err(Refusal::describe(&error).withheld().into())
            }
            Some(Err(error)) => Err(Refusal::describe(&error).into()),
            None => Err(Refusal::new(Stage::Describe, "host", "the host panicked during the call".to_owned()).into()),
        }
    }

    /// Makes a candidate serve, unless there are newer files.
    async fn activate(&mut self, candidate: Candidate, settings: &Settings, has_config: bool) -> Result<(), Halt> {
        let mut newer = self.wish.clone();
        let before = std::mem::replace(&mut self.is_unsure, true);
        // On the plugin's account: its manifest decides how much work that is, and the threads for requests are for
        // everybody.
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
                // It may be almost complete. The next activation begins after it.
                superseded.cancel();
                activating.await;
                return Err(Halt::Superseded);
            }
        };
        // If it panicked, what serves is unknown. The plugin's next task finds out.
        let activated = activated.expect("the activation panicked");
        if let Err(error) = activated {
            // The revision of before still serves.
            self.is_unsure = before;
            return Err(Refusal::new(Stage::Activate, "cluster", with_causes(&error)).with_retry(Retry::Soon).into());
        }
        self.is_unsure = false;
        self.status.act_as.clone_from(&candidate.act_as);
        self.status.serving = Some(Serving {
            digest: candidate.revision.digest(),
            version: candidate.revision.manifest().version.clone(),
            since: Timestamp::now(),
            instances: candidate.revision.manifest().instances,
        });
        self.active = Some(Active { candidate, settings: settings.clone(), has_config });
        Ok(())
    }

    /// Applies the newest settings to the older revision, which goes on as the newest files do not serve.
    async fn settle_with(&mut self, settings: &Settings) -> Result<(), Halt> {
        let Some(active) = &self.active else {
            if self.is_unsure {
                self.stop().await;
            }
            return Ok(());
        };
        if active.settings == *settings && !self.is_unsure {
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

    /// Stops whatever serves.
    async fn stop(&mut self) {
        if self.active.is_some() || self.is_unsure {
            self.advance(State::Draining);
            self.shared.activate.deactivate(&self.status.plugin).await;
            self.active = None;
            self.is_unsure = false;
            self.status.serving = None;
            self.status.act_as = None;
        }
    }

    /// Records the result for these files, and returns whether to retry.
    fn settle(&mut self, found: &Found, refusals: &[Refusal]) -> Retry {
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
        refusals.iter().map(|refusal| refusal.retry).max().unwrap_or(Retry::Never)
    }

    fn advance(&mut self, state: State) {
        self.status.state = state;
        self.shared.statuses.put(self.status.clone());
        self.shared.observer.changed(&self.status);
    }
}

/// `true` if the configuration refers to a Secret.
fn has_secrets(file: &AdminFile) -> bool {
    let references = references::find(&file.config).unwrap_or_default();
    references.iter().any(|reference| reference.of == references::Kind::Secret)
}

/// Loads the file, in this task: lines that are logged meanwhile name the plugin.
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
            // A text of comments alone is an error to the parser.
            let blank = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
            let parsed = if blank { Ok(AdminFile::default()) } else { yaml::read(text) };
            let file = parsed.map_err(|error| refused(format!("cannot use {name}.yaml: {error}")))?;
            Ok((file, false))
        }
    }
}
