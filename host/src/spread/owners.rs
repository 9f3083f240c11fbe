//! Who acts, for those who look at the host.

use std::{fmt::Write as _, sync::Arc};

use parking_lot::Mutex;
use pilothouse_core::spread::{Entry, HOST, Look, Spread};

use crate::{
    acting::{Acting, Switches},
    election::{Leadership, Options},
    metrics::{Registry, gauges, register},
};

/// How hosts share the work.
#[derive(Clone, Debug)]
pub(crate) enum Sharing {
    /// This host is alone.
    Alone,
    /// One host acts for all plugins.
    Leader(Leadership),
    /// Each plugin has an owner.
    Spread(Owners),
}

impl Sharing {
    /// Says who acts: the name of a check, and its result. `None` if this host is alone.
    pub(crate) fn describe(&self) -> Option<(&'static str, Result<String, String>)> {
        match self {
            Self::Alone => None,
            Self::Leader(leadership) => Some(("leader election", leadership.describe())),
            Self::Spread(owners) => Some(("spread", owners.describe())),
        }
    }

    /// Returns the host that acts for a plugin, and the one to which the plugin is about to move.
    pub(crate) fn owner(&self, plugin: &str) -> (Option<String>, Option<String>) {
        match self {
            Self::Alone => (None, None),
            Self::Leader(leadership) => (leadership.holder(), None),
            Self::Spread(owners) => {
                let seen = owners.0.seen.lock();
                let text = |name: &Option<Box<str>>| name.as_deref().map(str::to_owned);
                seen.look.table.0.get(plugin).map(|entry| (text(&entry.owner), text(&entry.to))).unwrap_or_default()
            }
        }
    }
}

/// Registers whether this host acts, under the name that other controllers have it.
pub(crate) fn register_metrics(registry: &mut Registry, sharing: &Sharing) {
    let sharing = sharing.clone();
    register(registry, move |encoder| {
        let (name, acts) = match &sharing {
            Sharing::Alone => return Ok(()),
            Sharing::Leader(leadership) => (leadership.lease(), leadership.is_mine()),
            Sharing::Spread(owners) => (&*owners.options().name, owners.acts()),
        };
        let help = "1 if this host acts, 0 if it is a standby.";
        gauges(encoder, "leader_election_master_status", help, std::iter::once(([("name", name)], u64::from(acts))))
    });
}

/// Who owns what.
#[derive(Clone, Debug)]
pub(crate) struct Owners(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    switches: Switches,
    seen: Mutex<Seen>,
}

/// The last look at the Leases.
#[derive(Debug, Default)]
struct Seen {
    /// The name of this host's own Lease.
    name: String,
    look: Look,
    /// The host that holds the Lease with the table by leader election.
    leader: Option<String>,
    /// Why the last request failed.
    error: Option<String>,
}

impl Owners {
    pub(super) fn new(options: Options, switches: Switches) -> Self {
        Self(Arc::new(Shared { options, switches, seen: Mutex::default() }))
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) fn switches(&self) -> &Switches {
        &self.0.switches
    }

    /// `true` if this host acts for something.
    pub(crate) fn acts(&self) -> bool {
        self.0.switches.all().values().any(Acting::is_allowed)
    }

    /// Says who acts for what. An error says why this host cannot know it, or owns nothing yet.
    pub(crate) fn describe(&self) -> Result<String, String> {
        let Options { namespace, name, .. } = &self.0.options;
        let acts = self.acts();
        let seen = self.0.seen.lock();
        let Seen { name: own, look, leader, error } = &*seen;
        if let Some(error) = error.as_ref().filter(|_| !acts) {
            return Err(format!("the Leases of {namespace} cannot be read or written: {error}"));
        }
        if !look.live.contains_key(&**own) {
            return Err("this host joins the others when its plugins and caches are ready".to_owned());
        }
        if let Some(leader) = leader {
            return Ok(format!("standby: {leader} holds the Lease {namespace}/{name} by leader election"));
        }
        let plugins = || look.table.0.iter().filter(|(item, _)| ***item != *HOST);
        let its = plugins().filter(|(_, entry)| entry.owner.as_deref() == Some(own.as_str())).count();
        let mut text = format!(
            "this host is {own}, one of {}: it acts for {its} of {} plugins",
            look.live.len(),
            plugins().count()
        );
        for (item, Entry { owner, to, .. }) in &look.table.0 {
            let _ = write!(text, "\n{item}: {}", owner.as_deref().unwrap_or("nobody yet"));
            if let Some(to) = to {
                let _ = write!(text, ", moving to {to}");
            }
        }
        Ok(text)
    }

    /// Records a look.
    pub(super) fn record(&self, spread: &Spread, leader: Option<String>) {
        let seen = &mut *self.0.seen.lock();
        seen.leader = leader;
        if seen.look != *spread.look() {
            seen.look = spread.look().clone();
        }
        if seen.name != spread.name() {
            spread.name().clone_into(&mut seen.name);
        }
    }

    /// Records why the last request failed. Returns `true` if that is news.
    pub(super) fn record_error(&self, error: Option<String>) -> bool {
        let seen = &mut *self.0.seen.lock();
        let is_news = seen.error != error;
        seen.error = error;
        is_news
    }
}
