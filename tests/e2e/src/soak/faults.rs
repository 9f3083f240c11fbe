//! The faults of a run and their times.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroU64},
    time::Duration,
};

use anyhow::Result;
use pilothouse_apiserver::faults::{
    Answer, Bookmark, By, Content, Cut, Delay, Fault, Lag, Mangle, Often, Requests, Rule, Stale, Streaming, Truncate,
    Verb,
};
use serde_json::{Value, json};

use super::{Struck, server::Server};
use crate::random::Random;

/// The User-Agent by which rules select the host's requests, and spare the test's own.
pub(super) const USER_AGENT: &str = "pilothouse";

/// One kind of trouble.
pub(super) struct Trouble {
    pub(super) name: &'static str,
    /// `true` if recovery may take minutes by contract: the host waits 65 s for an answer, and 30 s after a 401 or 403.
    /// Short runs leave these faults out.
    pub(super) slow: bool,
    what: What,
}

enum What {
    /// A rule for a limited time: the fault and its subject.
    Rule(Fault, &'static [Verb]),
    /// The same for requests that are carried out, though the client does not get the answer.
    Unanswered(Fault, &'static [Verb]),
    /// A single request to the server: path and body.
    Order(&'static str, fn() -> Value),
    /// What the run itself does. It is always alone.
    Own(Own),
}

/// What a run does itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// The server's data go back.
    Restore,
    /// The host is killed and started again.
    Crash,
    /// The host ends as in a rollout, and is started again.
    Terminate,
    /// Another revision of each plugin comes.
    Reload,
}

/// The actions of an episode.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// Rules, and a cut of watches that causes requests.
    Rules(Vec<Rule>, Option<Value>),
    Order(&'static str, Value),
    Own(Own),
}

/// One or two troubles at a time.
#[derive(Clone, Debug)]
pub(super) struct Episode {
    pub(super) begins: Duration,
    pub(super) lasts: Duration,
    pub(super) acts: Vec<(&'static str, Act)>,
}

const READS: &[Verb] = &[Verb::List, Verb::Watch];
const LISTS: &[Verb] = &[Verb::List];
const WATCHES: &[Verb] = &[Verb::Watch];
const DISCOVERY: &[Verb] = &[Verb::Discovery];
const CONNECT: &[Verb] = &[Verb::Connect];
const WRITES: &[Verb] = &[Verb::Create, Verb::Patch, Verb::Apply, Verb::Delete];

/// Every fault of the server that concerns informers.
pub(super) fn of_informers() -> Vec<Trouble> {
    use What::{Order, Own, Rule};
    let answer =
        |code, body, retry_after_seconds| Fault::Status(Answer { retry_after_seconds, body, ..Answer::code(code) });
    let status = |code| answer(code, Content::Status, None);
    let cut = |after_events, after_milliseconds, error| Fault::Cut(Cut { after_events, after_milliseconds, error });
    let truncate = |by| Fault::Truncate(Truncate { by, after_events: 2 });
    let quick = [
        ("delay", Rule(Fault::Delay(Delay { milliseconds: 20, up_to: Some(400) }), READS)),
        ("429 with Retry-After", Rule(answer(429, Content::Status, Some(1)), READS)),
        ("410 to a watch", Rule(status(410), WATCHES)),
        ("410 to a list", Rule(status(410), LISTS)),
        ("500", Rule(status(500), READS)),
        ("502 as html", Rule(answer(502, Content::Html, None), READS)),
        ("503 as text", Rule(answer(503, Content::Text, None), READS)),
        ("504 without a body", Rule(answer(504, Content::Empty, None), READS)),
        ("503 to discovery", Rule(status(503), DISCOVERY)),
        ("reset", Rule(Fault::Disconnect(By::Reset), READS)),
        ("close", Rule(Fault::Disconnect(By::Close), READS)),
        ("reset of new connections", Rule(Fault::Disconnect(By::Reset), CONNECT)),
        ("truncate by reset", Rule(truncate(By::Reset), READS)),
        ("truncate by close", Rule(truncate(By::Close), READS)),
        ("expiredContinue", Rule(Fault::ExpiredContinue, LISTS)),
        ("tooLargeVersion", Rule(Fault::TooLargeVersion, READS)),
        ("stale", Rule(Fault::Stale(Stale { changes: NonZeroU32::MIN.saturating_add(4) }), READS)),
        ("streaming refused", Rule(Fault::StreamingLists(Streaming::Refused), WATCHES)),
        ("streaming ignored", Rule(Fault::StreamingLists(Streaming::Ignored), WATCHES)),
        ("cut after events", Rule(cut(Some(3), None, None), WATCHES)),
        ("cut after a time", Rule(cut(None, Some(300), None), WATCHES)),
        ("cut at once", Rule(cut(None, None, None), WATCHES)),
        ("cut with 410", Rule(cut(Some(2), None, Some(410)), WATCHES)),
        ("cut with 500", Rule(cut(Some(2), None, Some(500)), WATCHES)),
        ("hold", Rule(Fault::Hold, WATCHES)),
        ("silence", Rule(Fault::Silence, WATCHES)),
        ("lag", Rule(Fault::Lag(Lag { milliseconds: 200 }), WATCHES)),
        ("withhold periodic", Rule(Fault::Withhold(Bookmark::Periodic), WATCHES)),
        ("duplicate", Rule(Fault::Duplicate, WATCHES)),
        ("repeatOlder", Rule(Fault::RepeatOlder, WATCHES)),
        ("mangle json", Rule(Fault::Mangle(Mangle::Json), READS)),
        ("mangle metadata", Rule(Fault::Mangle(Mangle::Metadata), READS)),
        ("all watches cut", Order("faults/cut", || json!({"on": {"userAgent": USER_AGENT}}))),
        ("all watches cut with 410", Order("faults/cut", || json!({"on": {"userAgent": USER_AGENT}, "error": 410}))),
        ("all connections reset", Order("faults/cut", || json!({"on": {"userAgent": USER_AGENT}, "by": "reset"}))),
        ("compact", Order("compact", || json!({}))),
        ("restore", Own(self::Own::Restore)),
    ];
    let slow = [
        ("401", Rule(status(401), READS)),
        ("403", Rule(status(403), READS)),
        ("hang", Rule(Fault::Hang, READS)),
        ("hang of new connections", Rule(Fault::Hang, CONNECT)),
        ("withhold initialEnd", Rule(Fault::Withhold(Bookmark::InitialEnd), WATCHES)),
    ];
    let trouble = |slow| move |(name, what)| Trouble { name, slow, what };
    quick.into_iter().map(trouble(false)).chain(slow.into_iter().map(trouble(true))).collect()
}

/// Every fault that plugins must survive: those of informers, those of writes, and ends of the host.
///
/// Without mangled objects, which a plugin sees as the host keeps them. Without restores and lists of old states, which
/// undo changes that were acknowledged: `kubediff` rightly reports that.
pub(super) fn of_plugins() -> Vec<Trouble> {
    use What::{Own, Rule, Unanswered};
    let status = |code| Fault::Status(Answer::code(code));
    let busy = Fault::Status(Answer { retry_after_seconds: Some(1), ..Answer::code(429) });
    let writes = [
        ("delay of a write", Rule(Fault::Delay(Delay { milliseconds: 20, up_to: Some(400) }), WRITES)),
        ("429 to a write", Rule(busy, WRITES)),
        ("500 to a write", Rule(status(500), WRITES)),
        ("503 to a write", Rule(status(503), WRITES)),
        ("reset of a write", Rule(Fault::Disconnect(By::Reset), WRITES)),
        ("500 after a write", Unanswered(status(500), WRITES)),
        ("reset after a write", Unanswered(Fault::Disconnect(By::Reset), WRITES)),
        ("crash of the host", Own(self::Own::Crash)),
        ("end of the host", Own(self::Own::Terminate)),
        ("reload of the plugins", Own(self::Own::Reload)),
    ];
    let left_out = |name: &str| matches!(name, "restore" | "stale") || name.starts_with("mangle");
    let informers = of_informers().into_iter().filter(|trouble| !left_out(trouble.name));
    informers.chain(writes.map(|(name, what)| Trouble { name, slow: false, what })).collect()
}

/// No informer is served.
pub(super) fn down() -> Rule {
    Rule::new(Fault::Status(Answer::code(503)))
        .on(Requests { user_agent: Some(USER_AGENT.to_owned()), ..Requests::to("*", READS) })
}

impl Trouble {
    fn act(&self, resources: &[&str], random: &mut Random) -> Act {
        match &self.what {
            What::Order(path, body) => Act::Order(path, body()),
            What::Own(own) => Act::Own(*own),
            What::Rule(fault, verbs) => rules(fault, verbs, false, resources, random),
            What::Unanswered(fault, verbs) => rules(fault, verbs, true, resources, random),
        }
    }

    fn is_alone(&self) -> bool {
        matches!(self.what, What::Own(_))
    }
}

fn rules(fault: &Fault, verbs: &[Verb], performed: bool, resources: &[&str], random: &mut Random) -> Act {
    let spared = |requests: Requests| Requests { user_agent: Some(USER_AGENT.to_owned()), ..requests };
    let resource = *random.one(resources);
    let lasts = matches!(fault, Fault::Hold | Fault::Silence | Fault::Lag(_));
    let often = match random.below(3) {
        _ if lasts => Often::Always,
        0 => Often::Always,
        1 => Often::Every(NonZeroU32::MIN.saturating_add(1)),
        _ => Often::Probability(0.3),
    };
    let count = (!lasts && random.below(3) == 0).then(|| NonZeroU64::MIN.saturating_add(random.draw() % 20));
    let on = match verbs {
        // The server does not know who connects.
        CONNECT => Requests::to("*", verbs),
        DISCOVERY => spared(Requests::to("*", verbs)),
        _ => spared(Requests::to(if random.below(2) == 0 { resource } else { "*" }, verbs)),
    };
    let rule = Rule { often, count, performed, seed: Some(random.draw()), ..Rule::new(fault.clone()).on(on) };
    let mut rules = vec![rule];
    if verbs == LISTS {
        // Without this rule a list is a streaming watch.
        let on = spared(Requests::to(resource, WATCHES));
        rules.push(Rule::new(Fault::StreamingLists(Streaming::Refused)).on(on));
    }
    let mut cut = json!({"on": {"resource": resource, "userAgent": USER_AGENT}});
    match random.below(3) {
        _ if verbs == LISTS => cut["error"] = 410.into(),
        0 => cut["error"] = 410.into(),
        1 => cut["by"] = "reset".into(),
        _ => {}
    }
    let open_ones = matches!(fault, Fault::Duplicate | Fault::RepeatOlder | Fault::Withhold(Bookmark::Periodic));
    let needs_requests = !lasts && !open_ones && verbs != WRITES;
    Act::Rules(rules, needs_requests.then_some(cut))
}

/// Plans episodes for `total`. Each trouble is equally frequent if possible. Every second episode has two troubles;
/// what the run itself does is always alone.
pub(super) fn schedule(
    troubles: &[Trouble],
    resources: &[&str],
    total: Duration,
    short: bool,
    random: &mut Random,
) -> Vec<Episode> {
    let troubles: Vec<&Trouble> = troubles.iter().filter(|trouble| !(short && trouble.slow)).collect();
    let mut episodes = Vec::new();
    let mut left: Vec<&Trouble> = Vec::new();
    let mut begins = Duration::ZERO;
    while begins < total {
        let lasts = Duration::from_millis(if short { 400 } else { 3_000 + random.draw() % 5_000 });
        let mut acts: Vec<(&'static str, Act)> = Vec::new();
        for _ in 0..=episodes.len() % 2 {
            if left.is_empty() {
                left.clone_from(&troubles);
                random.shuffle(&mut left);
            }
            if !acts.is_empty() && left.last().is_some_and(|next| next.is_alone()) {
                break;
            }
            let Some(next) = left.pop() else { break };
            acts.push((next.name, next.act(resources, random)));
            if next.is_alone() {
                break;
            }
        }
        episodes.push(Episode { begins, lasts, acts });
        begins += lasts;
    }
    episodes
}

/// The effects of each trouble.
pub(super) type Effects = BTreeMap<&'static str, Struck>;

/// The rules of an episode, each with its trouble, while they apply.
pub(super) struct Applied(Vec<(&'static str, u64)>);

impl Episode {
    /// Adds its rules and sends its orders.
    pub(super) async fn begin(&self, server: &Server, effects: &mut Effects) -> Result<Applied> {
        let mut rules = Vec::new();
        for (name, act) in &self.acts {
            let struck = effects.entry(name).or_default();
            struck.times += 1;
            match act {
                Act::Rules(of, cut) => {
                    for rule in of {
                        rules.push((*name, server.add(rule).await?));
                    }
                    if let Some(cut) = cut {
                        server.order("faults/cut", cut).await?;
                    }
                }
                Act::Order(path, body) => {
                    server.order(path, body).await?;
                    struck.hits += 1;
                }
                Act::Own(_) => struck.hits += 1,
            }
        }
        Ok(Applied(rules))
    }

    /// Names its troubles.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.acts.iter().map(|(name, _)| *name)
    }

    /// Returns what the run itself has to do.
    pub(super) fn own(&self) -> Option<Own> {
        self.acts.iter().find_map(|(_, act)| if let Act::Own(own) = act { Some(*own) } else { None })
    }
}

impl Applied {
    /// Removes the rules and counts their hits.
    pub(super) async fn end(self, server: &Server, effects: &mut Effects) -> Result<()> {
        let hits: BTreeMap<u64, u64> = server.hits().await?.into_iter().collect();
        for (name, rule) in self.0 {
            server.remove(rule).await?;
            effects.entry(name).or_default().hits += hits.get(&rule).copied().unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCES: [&str; 2] = ["configmaps", "deployments.apps"];

    fn planned(troubles: &[Trouble], seconds: u64, seed: u64) -> Vec<Episode> {
        schedule(troubles, &RESOURCES, Duration::from_secs(seconds), false, &mut Random::new(seed))
    }

    #[test]
    fn a_seed_gives_the_same_schedule_again_and_another_seed_another() {
        let of = |seed| format!("{:?}", planned(&of_informers(), 60, seed));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn ten_minutes_bring_every_trouble_more_than_once() {
        for troubles in [of_informers(), of_plugins()] {
            for seed in 0..20 {
                let mut times: BTreeMap<&str, u32> = troubles.iter().map(|trouble| (trouble.name, 0)).collect();
                for episode in planned(&troubles, 600, seed) {
                    for (name, _) in episode.acts {
                        *times.entry(name).or_default() += 1;
                    }
                }
                let rare: Vec<_> = times.iter().filter(|(_, times)| **times < 2).collect();
                assert!(rare.is_empty(), "seed {seed}: {rare:?}");
            }
        }
    }

    #[test]
    fn every_rule_of_a_schedule_is_one_that_the_server_takes() {
        let server = pilothouse_apiserver::Server::new();
        for episode in planned(&of_plugins(), 600, 7).into_iter().chain(planned(&of_informers(), 600, 7)) {
            for (name, act) in episode.acts {
                let Act::Rules(rules, _) = act else { continue };
                for rule in rules {
                    let added = server.faults().add(rule).unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert!(server.faults().remove(added));
                }
            }
        }
    }
}
