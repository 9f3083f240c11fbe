//! Whether the host is ready, and how its plugins and informers are.

use std::{sync::atomic::Ordering, time::Duration};

use pilothouse_core::reflector;

use super::{Check, Readiness, View, plugins};
use crate::{
    dispatch::Quarantined,
    name::PluginName,
    plugin::{State, Status},
};

impl Readiness for View {
    fn host(&self) -> Vec<Check> {
        let first_look = self.first_look();
        let informers = self.informers.all();
        let unreachable = if self.cluster.never_answered() {
            Some("no request has been answered so far: see the log for why".to_owned())
        } else if are_cut_off(informers.iter().map(|informer| (informer.state(), informer.health().stale()))) {
            let minutes = STALE_AFTER.as_secs() / 60;
            Some(format!("no informer has had an open watch for {minutes} minutes: see /readyz?verbose for why"))
        } else {
            None
        };
        let check = |name: &str, wrong: Option<String>| {
            let ok = wrong.is_none();
            Check { name: name.to_owned(), ok, detail: wrong.unwrap_or_default() }
        };
        let mut checks = vec![
            check("plugin directory", (!first_look.plugins).then(|| "the first plugins are being loaded".to_owned())),
            check("informers", (!first_look.informers).then(|| "the first lists are under way".to_owned())),
            check("API server", unreachable),
        ];
        if let Some((name, described)) = self.sharing.describe() {
            let ok = described.is_ok();
            let (Ok(detail) | Err(detail)) = described;
            checks.push(Check { name: name.to_owned(), ok, detail });
        }
        checks
    }

    fn parts(&self) -> Vec<Check> {
        let snapshot = self.statuses.snapshot();
        let (waiting, quarantined) = (self.dispatch.waiting(), plugins::quarantined(self));
        let plugins = snapshot.plugins.iter().filter(|status| status.state != State::Gone);
        let mut checks: Vec<_> = plugins
            .map(|status| {
                let lacking = self.dispatch.lacking(&status.plugin);
                plugin_check(status, waiting.get(&status.plugin), quarantined.get(&status.plugin), lacking)
            })
            .collect();
        for problem in snapshot.problems {
            checks.push(Check { name: format!("file {}", problem.path.display()), ok: false, detail: problem.message });
        }
        for informer in self.informers.all() {
            let (state, stale) = (informer.state(), informer.health().stale());
            checks.push(informer_check(&informer.key().to_string(), informer.is_synced(), &state, stale));
        }
        checks
    }

    fn plugin(&self, name: &str) -> Option<Check> {
        let snapshot = self.statuses.snapshot();
        let is_it = |status: &&Status| status.plugin.as_str() == name && status.state != State::Gone;
        let status = snapshot.plugins.iter().find(is_it)?;
        let (waiting, quarantined) = (self.dispatch.waiting(), plugins::quarantined(self));
        let lacking = self.dispatch.lacking(&status.plugin);
        Some(plugin_check(status, waiting.get(&status.plugin), quarantined.get(&status.plugin), lacking))
    }
}

/// An informer without an open watch for this long is stale. A watch that is cut comes back within seconds. A dead one
/// is noticed after 150 s, and an API server restarts within 30 s.
const STALE_AFTER: Duration = Duration::from_secs(180);

/// Which parts of the host's first look are over. They stay so: a later plugin does not make the host unready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FirstLook {
    plugins: bool,
    informers: bool,
}

impl View {
    /// `true` once the first plugins are loaded, or wait for something, and each first list is there or has failed.
    pub(crate) fn is_warm(&self) -> bool {
        let FirstLook { plugins, informers } = self.first_look();
        plugins && informers
    }

    fn first_look(&self) -> FirstLook {
        if self.began.load(Ordering::Relaxed) {
            return FirstLook { plugins: true, informers: true };
        }
        let waiting = self.dispatch.waiting();
        let waits = |plugin: &PluginName| waiting.contains_key(plugin);
        let plugins = self.statuses.snapshot().unsettled.is_some_and(|unsettled| unsettled.iter().all(waits));
        let informers = self.informers.all().iter().all(|informer| informer.has_looked());
        if plugins && informers {
            self.began.store(true, Ordering::Relaxed);
        }
        FirstLook { plugins, informers }
    }
}

/// Returns `true` if no informer that could watch has watched for minutes. Then the API server is away, or rejects the
/// host. A kind that is missing or denied concerns only the plugins that use it.
fn are_cut_off(informers: impl Iterator<Item = (reflector::State, Duration)>) -> bool {
    let could_watch =
        |state: &reflector::State| !matches!(state, reflector::State::Missing(_) | reflector::State::Denied(_));
    let mut stale = informers.filter(|(state, _)| could_watch(state)).map(|(_, stale)| stale >= STALE_AFTER).peekable();
    stale.peek().is_some() && stale.all(|stale| stale)
}

/// Checks that an informer has its first list, and has had an open watch within minutes.
fn informer_check(key: &str, synced: bool, state: &reflector::State, stale: Duration) -> Check {
    let (is_stale, name) = (stale >= STALE_AFTER, format!("informer {key}"));
    let detail = match state {
        reflector::State::Watching if synced => String::new(),
        state if synced && is_stale => {
            format!("no watch for {} s, so its cache may be out of date: {state}", stale.as_secs())
        }
        state => state.to_string(),
    };
    Check { name, ok: synced && !is_stale, detail }
}

/// Checks that a plugin serves, or is meant not to. The detail names what is wrong with a newer file.
fn plugin_check(
    status: &Status,
    waiting: Option<&String>,
    quarantined: Option<&Quarantined>,
    lacking: Vec<String>,
) -> Check {
    let mut detail = Vec::new();
    if let Some(serving) = &status.serving {
        detail.push(format!("serving {} ({})", serving.version, serving.digest.short()));
    } else {
        detail.push(status.state.to_string());
    }
    if let Some(failure) = &status.last_failure {
        let digest = failure.digest.short();
        let still = if status.serving.is_some() { ", the one before goes on" } else { "" };
        detail.push(format!("revision {digest} failed to {}{still}: {}", failure.stage.act(), failure.message));
    }
    if let Some(waiting) = waiting {
        detail.push(format!("waiting: {waiting}"));
    }
    if let Some(Quarantined { times, why, .. }) = quarantined {
        detail.push(format!("quarantined (delay {times} in a row), as its calls fail: {why}"));
    }
    let sees_all = lacking.is_empty();
    detail.extend(lacking.into_iter().map(|lacking| format!("does not see what it caches: {lacking}")));
    detail.extend(status.warnings.iter().cloned());
    Check {
        name: format!("plugin {}", status.plugin),
        ok: status.serving.is_some() && sees_all || matches!(status.state, State::Disabled | State::Draining),
        detail: detail.join("\n"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    #[test]
    fn an_informer_without_a_watch_for_minutes_fails_its_check_though_it_has_synced() {
        let denied = reflector::State::Denied("secrets is forbidden".to_owned());
        let check = |synced, state: &reflector::State, seconds| {
            let Check { ok, detail, .. } = informer_check("v1 Secret *", synced, state, Duration::from_secs(seconds));
            (ok, detail)
        };
        assert_eq!(check(true, &reflector::State::Watching, 0), (true, String::new()));
        let denial = "denied; grant the host's account list and watch: secrets is forbidden";
        assert_eq!(check(false, &denied, 1), (false, denial.to_owned()));
        assert_eq!(check(true, &denied, 179), (true, denial.to_owned()));
        let stale = format!("no watch for 180 s, so its cache may be out of date: {denial}");
        assert_eq!(check(true, &denied, 180), (false, stale));
    }

    #[test]
    fn informers_are_cut_off_where_none_that_could_watch_has_watched_for_minutes() {
        use reflector::State;
        let waiting = || State::Waiting { delay: Duration::from_secs(30), reason: "connection refused".to_owned() };
        let (denied, missing) = (|| State::Denied("no".to_owned()), || State::Missing("no".to_owned()));
        let (short, long) = (Duration::from_secs(10), STALE_AFTER);
        for (informers, cut_off) in [
            (vec![], false),
            (vec![(denied(), long), (missing(), long)], false),
            (vec![(waiting(), short), (waiting(), long)], false),
            (vec![(State::Watching, Duration::ZERO), (waiting(), long)], false),
            (vec![(waiting(), long), (denied(), long)], true),
            (vec![(State::Unauthenticated("expired".to_owned()), long), (State::Resolving, long)], true),
        ] {
            assert_eq!(are_cut_off(informers.clone().into_iter()), cut_off, "{informers:?}");
        }
    }
}
