#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;

use super::*;

/// Replicas of one revision, named by their numbers, that all know the items `0..items`.
fn live(replicas: &[u32], items: u32) -> Live {
    replicas.iter().map(|number| (number.to_string().into(), replica(*number, "", items))).collect()
}

fn replica(born: u32, revision: &str, items: u32) -> Replica {
    let items = (0..items).map(|item| format!("plugin-{item}").into()).collect();
    Replica { born: format!("{born:04}").into(), revision: revision.into(), items }
}

/// Plans until nothing changes, and lets each owner release at once. Returns the table, and how often each item moved.
fn settled(mut table: Table, live: &Live) -> Table {
    for _ in 0..100 {
        let mut next = plan(&table, live);
        for entry in next.0.values_mut().filter(|entry| entry.to.is_some()) {
            entry.owner = entry.to.take();
            entry.moves += 1;
        }
        if next == table {
            return table;
        }
        table = next;
    }
    panic!("it does not come to rest: {table:?}");
}

fn rested(mut table: Table) -> Table {
    table.0.values_mut().for_each(|entry| entry.moves = 0);
    table
}

fn loads(table: &Table, live: &Live) -> BTreeMap<Box<str>, u32> {
    Loads::of(table, live).of
}

fn moved(before: &Table, after: &Table) -> Vec<Box<str>> {
    let moved = after.0.iter().filter(|(item, entry)| before.0.get(*item).is_some_and(|was| was.owner != entry.owner));
    moved.map(|(item, _)| item.clone()).collect()
}

#[test]
fn items_get_owners_that_share_them() {
    let three = live(&[1, 2, 3], 10);
    let table = settled(Table::default(), &three);
    assert!(table.0.values().all(|entry| entry.owner.is_some() && entry.to.is_none()), "{table:?}");
    let mut loads: Vec<_> = loads(&table, &three).into_values().collect();
    loads.sort_unstable();
    assert_eq!(loads, [3, 3, 4]);
}

#[test]
fn no_replica_has_nothing_while_another_has_several() {
    let weights: [&[u16]; 3] = [&[1], &[1, 8], &[128, 1, 4, 16]];
    let cases = (1..16).flat_map(|items| (1..6).map(move |replicas| (items, replicas)));
    for ((items, replicas), weights) in cases.flat_map(|case| weights.map(|weights| (case, weights))) {
        let mut all = Live::new();
        let mut table = Table::default();
        // They come one after the other, as pods do.
        for number in 0..replicas {
            let mut comes = replica(number, "", items);
            comes.items.insert(HOST.into());
            all.insert(format!("pilothouse-{:x}", score("of", &format!("{items}{number}"))).into(), comes);
            table = settled(rested(table), &all);
            for (entry, weight) in table.0.values_mut().zip(weights.iter().cycle()) {
                entry.weight = *weight;
            }
        }
        let table = settled(rested(table), &all);
        let mut counts: BTreeMap<&str, u32> = all.keys().map(|name| (&**name, 0)).collect();
        let plugins = table.0.iter().filter(|(item, _)| ***item != *HOST);
        plugins.for_each(|(_, entry)| *counts.entry(entry.owner.as_deref().unwrap()).or_default() += 1);
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        assert!(*least > 0 || *most < 2, "{counts:?} {table:?}");
        assert!(table.0[HOST].owner.is_some(), "{table:?}");
    }
}

#[test]
fn the_choice_is_the_same_in_all_versions_of_the_host() {
    // Replicas of two versions serve side by side during an update.
    assert_eq!((score("myapple", "pilothouse-a"), score("", "")), (0xac69_d986_0cd5_7acb, 0x4f2d_b50f_1240_40cd));
}

#[test]
fn a_table_is_short_json() {
    let entry = Entry { owner: Some("a".into()), to: None, weight: 4, moves: 0 };
    let table = Table([("apple".into(), entry), ("pear".into(), Entry::default())].into());
    let text = serde_json::to_string(&table).unwrap();
    assert_eq!(text, r#"{"apple":{"owner":"a","weight":4},"pear":{}}"#);
    assert_eq!(serde_json::from_str::<Table>(&text).unwrap(), table);
}

#[test]
fn a_weight_is_a_power_of_two_and_changes_by_a_factor_of_four() {
    assert_eq!([0, 9, 10, 100, 500, 999, 100_000].map(weight), [1, 1, 2, 16, 64, 128, 128]);
    assert_eq!(
        [(0, 1), (1, 2), (1, 4), (16, 8), (16, 4), (0, 64)].map(|(before, now)| weighed(before, now)),
        [1, 1, 4, 16, 4, 64]
    );
}

#[test]
fn a_pods_revision_is_its_replica_set() {
    assert_eq!(revision("pilothouse-7d4b9c6f5-x2x9z"), "pilothouse-7d4b9c6f5");
    for other in ["pilothouse-0", "laptop", "db-server-north", "build-machine-12345", ""] {
        assert_eq!(revision(other), "");
    }
}

#[test]
fn an_item_goes_to_a_replica_that_knows_it() {
    let mut two = live(&[1, 2], 1);
    two.get_mut("2").unwrap().items = ["new".into()].into();
    let table = settled(Table::default(), &two);
    assert_eq!(table.0["plugin-0"].owner.as_deref(), Some("1"));
    assert_eq!(table.0["new"].owner.as_deref(), Some("2"));
    // Its owner does not know it any more.
    two.get_mut("1").unwrap().items.clear();
    two.get_mut("2").unwrap().items.insert("plugin-0".into());
    assert_eq!(plan(&table, &two).0["plugin-0"].to.as_deref(), Some("2"));
    two.get_mut("2").unwrap().items.remove("plugin-0");
    assert_eq!(plan(&table, &two).0["plugin-0"].to, None);
    two.remove("1");
    assert!(!plan(&table, &two).0.contains_key("plugin-0"));
}

/// A replica that has seen this.
fn spread(name: &str, version: &str, table: &Table, live: &Live) -> Spread {
    let mut spread = Spread::new(name);
    assert!(spread.see(Look { table: table.clone(), version: Some(version.into()), live: live.clone() }));
    spread
}

#[test]
fn an_item_that_was_released_stays_so_until_the_table_has_another_version() {
    let both = live(&[1, 2], 2);
    let own = |to: Option<&str>| Entry { owner: Some("1".into()), to: to.map(Into::into), ..Entry::default() };
    let table = Table([("plugin-0".into(), own(Some("2"))), ("plugin-1".into(), own(None))].into());
    let mut one = spread("1", "7", &table, &both);
    assert_eq!(
        (one.part("plugin-0"), one.part("plugin-1"), one.part("plugin-2")),
        (Part::Leaves, Part::Owns, Part::None)
    );
    assert_eq!(one.next(|_| false, |_| None, false), None);
    let next = one.next(|_| true, |_| None, false).unwrap();
    let given = Entry { owner: Some("2".into()), moves: 1, ..Entry::default() };
    assert_eq!(next.0["plugin-0"], given);
    assert_eq!(one.part("plugin-0"), Part::None);
    // Whether the request arrives is not known. It is sent again, whatever calls are in flight.
    let look = |version: &str| Look { table: table.clone(), version: Some(version.into()), live: both.clone() };
    assert!(one.see(look("7")));
    assert_eq!(one.part("plugin-0"), Part::None);
    assert_eq!(one.next(|_| false, |_| None, false), Some(next));
    // Somebody else was quicker, so it cannot arrive any more.
    assert!(one.see(look("8")));
    assert_eq!(one.part("plugin-0"), Part::Leaves);
}

#[test]
fn a_replica_without_its_lease_owns_nothing() {
    let one = live(&[1], 1);
    let table = settled(Table::default(), &one);
    let mut spread = Spread::new("1");
    // The look is older than its Lease.
    assert!(spread.see(Look::default()));
    assert!(spread.see(Look { table: table.clone(), version: Some("1".into()), live: one.clone() }));
    assert_eq!((spread.part("plugin-0"), spread.is_last()), (Part::Owns, true));
    assert!(!spread.see(Look { table, version: Some("1".into()), live: live(&[2], 1) }));
    assert_eq!((spread.part("plugin-0"), spread.next(|_| true, |_| None, false)), (Part::None, None));
}

#[test]
fn weights_are_published_by_owners_and_moves_forgotten_at_rest() {
    let one = live(&[1], 1);
    let mut table = settled(Table::default(), &one);
    table.0.get_mut("plugin-0").unwrap().moves = 2;
    let mut spread = spread("1", "1", &table, &one);
    assert_eq!(spread.next(|_| true, |_| None, false), None);
    let next = spread.next(|_| true, |_| Some(32), true).unwrap();
    assert_eq!((next.0["plugin-0"].weight, next.0["plugin-0"].moves), (32, 0));
}

/// Replaces replicas one by one, and returns the most moves of an item.
fn update(items: u32, weights: &[u16], steps: &[(Option<u32>, Option<u32>)]) -> (u8, Table, Live) {
    let mut live: Live = [1, 2, 3].map(|number| (number.to_string().into(), replica(number, "old", items))).into();
    let mut table = settled(Table::default(), &live);
    for (entry, weight) in table.0.values_mut().zip(weights.iter().cycle()) {
        entry.weight = *weight;
    }
    let mut table = rested(settled(table, &live));
    for (comes, goes) in steps {
        if let Some(goes) = goes {
            live.remove(goes.to_string().as_str());
        }
        if let Some(comes) = comes {
            live.insert(comes.to_string().into(), replica(*comes, "new", items));
        }
        table = settled(table, &live);
    }
    (table.0.values().map(|entry| entry.moves).max().unwrap_or(0), table, live)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_rolling_update_of_three_moves_each_item_twice_at_most(
        items in 1_u32..40,
        weights in prop::collection::vec((0_u32..8).prop_map(|power| 1_u16 << power), 1..10),
        order in Just(vec![1_u32, 2, 3]).prop_shuffle(),
    ) {
        let [one, two, three] = [order[0], order[1], order[2]].map(Some);
        // A new replica comes before an old one goes, or the other way around.
        let surge = [(Some(4), None), (None, one), (Some(5), None), (None, two), (Some(6), None), (None, three)];
        let gap = [(None, one), (Some(4), None), (None, two), (Some(5), None), (None, three), (Some(6), None)];
        for steps in [surge, gap] {
            let (moves, table, _) = update(items, &weights, &steps);
            prop_assert!(moves <= MOVES, "{moves} moves: {table:?}");
            prop_assert!(table.0.values().all(|entry| entry.owner.is_some() && entry.to.is_none()));
        }
    }

    #[test]
    fn loads_differ_by_the_heaviest_item_and_a_quarter_at_most(
        items in 1_u32..60,
        replicas in 1_u32..6,
        weights in prop::collection::vec((0_u32..8).prop_map(|power| 1_u16 << power), 1..10),
    ) {
        let all = live(&(0..replicas).collect::<Vec<_>>(), items);
        let mut table = settled(Table::default(), &all);
        for (entry, weight) in table.0.values_mut().zip(weights.iter().cycle()) {
            entry.weight = *weight;
        }
        let table = settled(rested(table), &all);
        let heaviest = table.0.iter().map(|(item, entry)| entry.load(item)).max().unwrap_or(0);
        let shares = Loads::of(&table, &all);
        for load in shares.of.values() {
            prop_assert!(*load <= shares.bound + heaviest && load + heaviest >= shares.low, "{shares:?} {table:?}", shares = shares.of);
        }
    }

    #[test]
    fn a_replica_that_goes_moves_only_what_it_had(items in 1_u32..60, replicas in 2_u32..6, goes in 0_u32..6) {
        let all: Vec<_> = (0..replicas).collect();
        let before = settled(Table::default(), &live(&all, items));
        let goes = goes % replicas;
        let rest: Vec<_> = all.into_iter().filter(|number| *number != goes).collect();
        let goes = goes.to_string();
        let after = settled(before.clone(), &live(&rest, items));
        for item in moved(&before, &after) {
            prop_assert_eq!(before.0[&item].owner.as_deref(), Some(&*goes));
        }
    }

    #[test]
    fn a_replica_that_comes_gets_its_share_and_little_else_moves(items in 1_u32..60, replicas in 1_u32..6) {
        let before = settled(Table::default(), &live(&(0..replicas).collect::<Vec<_>>(), items));
        let more = live(&(0..=replicas).collect::<Vec<_>>(), items);
        let after = settled(before.clone(), &more);
        let has = loads(&after, &more)[&*replicas.to_string()];
        let moved = moved(&before, &after);
        // All weigh the same. What moves leaves a replica that had more than the one that gets it.
        let had = loads(&before, &more);
        for item in &moved {
            let owner = |table: &Table| had[table.0[item].owner.as_deref().unwrap()];
            prop_assert!(owner(&before) > owner(&after), "{item} moved to one that had more");
        }
        let share = items / (replicas + 1);
        prop_assert!(has >= share * 3 / 4 && has <= share + 1, "{has} of {items}");
        prop_assert!(moved.len() <= usize::try_from(has + replicas).unwrap(), "{moved:?}");
    }
}
