//! A rolling update of three hosts that share plugins, while objects change.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use pilothouse_core::spread::{MOVES, Table};

use super::{
    history::History,
    judge::{Fault, Judged, Timings, judge},
    load::Load,
    now,
    replica::{self, Replica},
    settled,
};
use crate::{apple::Apple, plugin::Plugin, random::Random, scene::Scene, wait::eventually};

/// Number of hosts.
const HOSTS: usize = 3;

/// Number of plugins. Each has a namespace of its own.
const PLUGINS: usize = 6;

/// Number of MyApples of each plugin.
const OBJECTS: usize = 10;

/// The results of an update.
#[derive(Clone, Debug)]
pub struct Updated {
    /// How often each plugin went to another host.
    pub moves: BTreeMap<String, usize>,
    /// What was judged, from the beginning of the update on.
    pub judged: Judged,
    /// Number of changes.
    pub changes: u64,
    /// Changes per second.
    pub rate: f64,
    /// Problems found. Empty means success.
    pub wrong: Vec<String>,
}

/// Replaces three hosts one by one by hosts of another revision, each before its predecessor ends. `timings` are those of the Leases, in seconds.
///
/// # Errors
/// The update could not be executed.
pub async fn run(scene: &mut Scene, timings: [u32; 3], rate: u32, seed: u64) -> Result<Updated> {
    let mut log = scene.cluster.audit().context("only a real API server has an audit log")?;
    let files = tempfile::tempdir().context("cannot create a folder for kubeconfigs")?;
    replica::grant(&scene.client(), &scene.namespace).await?;
    let plugins: Vec<String> = (0..PLUGINS).map(|number| format!("tree-{number}")).collect();
    let mut apples: Vec<Apple> = Vec::new();
    for plugin in &plugins {
        let namespace = format!("{}-{plugin}", scene.namespace);
        scene.create_namespace(&namespace).await?;
        scene.with(&[Plugin::myapple()?.named(plugin).confined_to(&namespace)])?;
        apples.extend((0..OBJECTS).map(|number| scene.apple_in(&namespace, &format!("apple-{number}"))));
    }
    let mut history = History::of(&scene.namespace);
    let mut hosts = Vec::new();
    share(scene, timings, "old");
    for number in 1..=HOSTS {
        let mut host = Replica::start(scene, files.path(), number).await?;
        host.is_ready().await?;
        hosts.push(host);
    }
    let load = Load::start(&apples, rate, &mut Random::new(seed)).await?;
    let mut rests = async |history: &mut History| {
        eventually("the plugins are shared", async || {
            history.extend(log.more()?)?;
            let tables = history.tables();
            is_shared(tables.last().context("there is no table of owners")?, &plugins)?;
            Ok(tables.len())
        })
        .await
    };
    let before = rests(&mut history).await?;
    let begun = now();
    share(scene, timings, "new");
    for number in HOSTS + 1..=2 * HOSTS {
        let mut host = Replica::start(scene, files.path(), number).await?;
        host.is_ready().await?;
        hosts.push(host);
        hosts.remove(0).host.terminate().await?;
    }
    let after = rests(&mut history).await?;
    let (changes, rate) = load.stop().await?;
    let mut wrong = settled(scene).await;
    for host in &mut hosts {
        host.host.terminate().await?;
    }
    history.extend(log.more()?)?;

    let moves = moves(&history.tables()[before - 1..after]);
    let often = moves.iter().filter(|(_, moves)| **moves > usize::from(MOVES));
    wrong.extend(often.map(|(plugin, moves)| format!("{plugin} moved {moves} times")));
    history.writes.retain(|write| write.received > begun);
    let [lease, renew, _] = timings.map(|seconds| Duration::from_secs(seconds.into()));
    // Each host has a Lease of its own, so there are no terms: all writes of a host at a key count as one stretch.
    let verdict = judge(Vec::new(), &history.writes, Timings { lease, renew, air: lease - renew });
    let overlaps = verdict.faults.iter().filter(|fault| matches!(fault, Fault::Overlap { .. }));
    wrong.extend(overlaps.map(ToString::to_string));
    Ok(Updated { moves, judged: verdict.judged, changes, rate, wrong })
}

/// Lets the hosts that start from now on share plugins, as those of one revision.
fn share(scene: &mut Scene, timings: [u32; 3], revision: &str) {
    let namespace = scene.namespace.clone();
    scene.elect(&namespace, timings);
    scene.add_argument("--spread".to_owned());
    scene.add_argument(format!("--spread-revision={revision}"));
}

/// Checks that each plugin has an owner, none is about to move, and each host owns one.
fn is_shared(table: &Table, plugins: &[String]) -> Result<()> {
    let mut owners = BTreeSet::new();
    for plugin in plugins {
        let entry = table.0.get(plugin.as_str()).with_context(|| format!("{plugin} is not in the table"))?;
        owners.insert(entry.owner.as_deref().with_context(|| format!("{plugin} has no owner"))?);
        ensure!(entry.to.is_none(), "{plugin} is about to move");
    }
    ensure!(owners.len() == HOSTS, "the owners are {owners:?}");
    Ok(())
}

/// Returns how often each item went from one owner to another.
fn moves(tables: &[&Table]) -> BTreeMap<String, usize> {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    let mut moves: BTreeMap<String, usize> = BTreeMap::new();
    for table in tables {
        for (item, entry) in &table.0 {
            let count = moves.entry(item.to_string()).or_default();
            // While it has no owner, it is on its way.
            let Some(owner) = entry.owner.as_deref() else { continue };
            let before = owners.insert(item, owner);
            *count += usize::from(before.is_some_and(|before| before != owner));
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use pilothouse_core::spread::Entry;

    use super::*;

    fn table(of: &[(&str, Option<&str>)]) -> Table {
        let entry = |owner: Option<&str>| Entry { owner: owner.map(Into::into), ..Entry::default() };
        Table(of.iter().map(|(item, owner)| ((*item).into(), entry(*owner))).collect())
    }

    #[test]
    fn a_plugin_moves_when_its_owner_is_another() {
        let tables = [
            table(&[("a", Some("x")), ("b", Some("x"))]),
            table(&[("a", None), ("b", Some("x"))]),
            table(&[("a", Some("y")), ("b", Some("x")), ("c", Some("y"))]),
            table(&[("a", Some("x")), ("c", None)]),
            table(&[("a", Some("x")), ("b", Some("y")), ("c", Some("y"))]),
        ];
        let moves = moves(&tables.iter().collect::<Vec<_>>());
        let moves: Vec<(&str, usize)> = moves.iter().map(|(item, moves)| (&**item, *moves)).collect();
        assert_eq!(moves, [("a", 2), ("b", 1), ("c", 0)]);
    }

    #[test]
    fn plugins_are_shared_when_each_has_an_owner_and_each_host_one_of_them() {
        let plugins = ["a", "b", "c"].map(str::to_owned);
        let all =
            |owner: Option<&str>| is_shared(&table(&[("a", Some("x")), ("b", Some("y")), ("c", owner)]), &plugins);
        all(Some("z")).expect("all have one");
        all(None).expect_err("one has none");
        all(Some("x")).expect_err("one host has none");
    }
}
