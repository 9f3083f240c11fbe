//! Compares the lines of `kubediff` with the changes that were made.
//!
//! The states of an object have numbers, in the order in which they were acknowledged. Each line moves the reported
//! state forward: `added` and `deleted` to an object and to none, `updated` to the state that follows from its
//! differences. So a line is wrong if no later state fits. At the end the last state must be reported. Several numbers
//! may fit a line, and all of them are followed up.
//!
//! | what is promised | how it is checked |
//! |---|---|
//! | each change is reported, changes that come too fast are merged | lines lead from state to state, in order, up to the last |
//! | old and new values are those of the object | the differences are applied: old values must be there |
//! | deletions are reported, those that a watch missed as well | as for other changes |
//! | the objects of the first list are not reported as new | a start of the host moves the state without a line |

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::At;

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Of {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A state of an object, since a change that was acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Version {
    /// When the change was sent.
    pub(super) sent: At,
    /// When it was acknowledged.
    pub(super) acked: At,
    /// `None` while the object does not exist.
    pub(super) state: Option<Value>,
}

/// The states of each object. The first is that there is none.
pub(super) type Histories = BTreeMap<Of, Vec<Version>>;

/// What a host process reported.
#[derive(Debug)]
pub(super) struct Life {
    /// When it started.
    pub(super) began: At,
    /// When it had handed the objects of the first lists to the plugin.
    pub(super) settled: At,
    pub(super) lines: Vec<Value>,
}

/// The number of lines.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Told {
    /// Lines by event.
    pub events: BTreeMap<String, u64>,
    /// Those that stand for several changes.
    pub merged: u64,
    /// Deletions that no watch showed.
    pub missed: u64,
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) told: Told,
    /// Lines that fit no state.
    pub(super) wrong: Vec<String>,
    /// Objects whose last state is not reported.
    pub(super) unreported: Vec<String>,
}

/// Compares the lines of all host processes with the states.
pub(super) fn compare(histories: &Histories, lives: &[Life]) -> Comparison {
    let mut found = Comparison::default();
    let mut lines: Vec<BTreeMap<Of, Vec<&Value>>> = Vec::new();
    for life in lives {
        let mut by_object: BTreeMap<Of, Vec<&Value>> = BTreeMap::new();
        for line in &life.lines {
            found.told.count(line);
            let of = subject(line);
            if histories.contains_key(&of) {
                by_object.entry(of).or_default().push(line);
            } else {
                found.wrong.push(format!("nobody changed the object of {line}"));
            }
        }
        lines.push(by_object);
    }
    for (of, versions) in histories {
        let mut now = BTreeSet::new();
        for (life, lines) in lives.iter().zip(&lines) {
            now = silently(versions, &listed(versions, life));
            for line in lines.get(of).into_iter().flatten() {
                let next = told(versions, &now, line);
                if next.is_empty() {
                    let from = now.first().and_then(|number| versions[*number].state.as_ref());
                    let from = from.map_or_else(|| "none".to_owned(), Value::to_string);
                    let count = versions.len();
                    found.wrong.push(format!("none of {count} states follows {now:?} by {line}; the first is {from}"));
                    // Whatever comes next fits some state, or is wrong by itself.
                    now = (0..versions.len()).collect();
                } else {
                    now = silently(versions, &next);
                }
            }
        }
        if !now.contains(&(versions.len() - 1)) {
            let last = versions.len() - 1;
            let Of { kind, namespace, name } = of;
            found
                .unreported
                .push(format!("{kind} {namespace}/{name} is in state {last}, and reported to be in {now:?}"));
        }
    }
    found
}

impl Told {
    fn count(&mut self, line: &Value) {
        *self.events.entry(text(line, "event")).or_default() += 1;
        self.merged += u64::from(line.get("merged").is_some());
        self.missed += u64::from(line.get("missed").is_some());
    }
}

fn text(line: &Value, member: &str) -> String {
    line[member].as_str().unwrap_or_default().to_owned()
}

fn subject(line: &Value) -> Of {
    Of { kind: text(line, "kind"), namespace: text(line, "namespace"), name: text(line, "name") }
}

/// Returns the states that a first list of this process may have shown.
fn listed(versions: &[Version], life: &Life) -> BTreeSet<usize> {
    let ends = |number: usize| versions.get(number + 1).map(|next| next.acked);
    let fits =
        |number: &usize| versions[*number].sent <= life.settled && ends(*number).is_none_or(|ends| life.began <= ends);
    (0..versions.len()).filter(fits).collect()
}

/// Adds later states that are equal to one of these: the way there needs no line.
fn silently(versions: &[Version], from: &BTreeSet<usize>) -> BTreeSet<usize> {
    let equal = |number: &usize| {
        from.iter().any(|before| before <= number && versions[*before].state == versions[*number].state)
    };
    (0..versions.len()).filter(equal).collect()
}

/// Returns the states to which a line may lead.
fn told(versions: &[Version], from: &BTreeSet<usize>, line: &Value) -> BTreeSet<usize> {
    let event = text(line, "event");
    let mut to = BTreeSet::new();
    for number in from {
        let before = versions[*number].state.as_ref();
        let later = (number + 1..versions.len()).filter(|later| {
            let after = versions[*later].state.as_ref();
            match (&*event, before, after) {
                ("added", None, Some(_)) | ("deleted", Some(_), None) => true,
                // It came and went.
                ("deleted", None, None) => versions[number + 1..*later].iter().any(|version| version.state.is_some()),
                _ => false,
            }
        });
        to.extend(later);
        if let ("updated", Some(before)) = (&*event, before)
            && line.get("more").is_none()
            && let Some(after) = applied(before, &line["differences"])
        {
            to.extend((number + 1..versions.len()).filter(|later| versions[*later].state.as_ref() == Some(&after)));
        }
    }
    to
}

/// Applies the differences of a line. Returns `None` if an old value is not there.
fn applied(before: &Value, differences: &Value) -> Option<Value> {
    let mut after = before.clone();
    for difference in differences.as_array()? {
        let path = steps(difference["path"].as_str()?)?;
        set(&mut after, &path, difference.get("old"), difference.get("new"))?;
    }
    Some(compared(after))
}

/// Splits `spec.containers[web].image` and `labels["a.b/c"]`.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let (mut steps, mut rest) = (Vec::new(), path);
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, after) = quoted.split_once("\"]")?;
            steps.push(Step::Member(name));
            rest = after;
        } else if let Some(item) = rest.strip_prefix('[') {
            let (name, after) = item.split_once(']')?;
            steps.push(Step::Item(name));
            rest = after;
        } else {
            let member = rest.strip_prefix('.').unwrap_or(rest);
            let (name, after) = member.split_at(member.find(['.', '[']).unwrap_or(member.len()));
            steps.push(Step::Member(name));
            rest = after;
        }
    }
    Some(steps)
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Member(&'a str),
    /// The item of a list: its name, or its position.
    Item(&'a str),
}

fn set(value: &mut Value, path: &[Step<'_>], old: Option<&Value>, new: Option<&Value>) -> Option<()> {
    let (first, below) = path.split_first()?;
    match first {
        Step::Member(name) => {
            let members = value.as_object_mut()?;
            if !below.is_empty() {
                return set(members.get_mut(*name)?, below, old, new);
            }
            if members.get(*name) != old {
                return None;
            }
            match new {
                Some(new) => drop(members.insert((*name).to_owned(), new.clone())),
                None => drop(members.remove(*name)),
            }
        }
        Step::Item(name) => {
            let items = value.as_array_mut()?;
            let named = |item: &Value| ["name", "type"].iter().any(|by| item[*by] == *name);
            let place = items.iter().position(named).or_else(|| name.parse().ok())?;
            if !below.is_empty() {
                return set(items.get_mut(place)?, below, old, new);
            }
            match (items.get(place) == old, new) {
                (false, _) => return None,
                (true, Some(new)) if place < items.len() => items[place] = new.clone(),
                (true, Some(new)) => items.push(new.clone()),
                (true, None) => drop(items.remove(place)),
            }
        }
    }
    Some(())
}

/// Paths that the plugin is told to ignore: what others than the test change.
pub(super) const IGNORED: [&str; 5] = [
    "status",
    "metadata.annotations[\"deployment.kubernetes.io/revision\"]",
    "metadata.deletionTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.finalizers",
];

/// Returns what is compared of an object.
pub(super) fn compared(mut object: Value) -> Value {
    let mut remove = |pointer: &str, members: &[&str]| {
        if let Some(parent) = object.pointer_mut(pointer).and_then(Value::as_object_mut) {
            members.iter().for_each(|member| drop(parent.remove(*member)));
        }
    };
    remove("", &["status"]);
    let always = ["resourceVersion", "generation", "managedFields"];
    remove("/metadata", &always);
    remove("/metadata", &["deletionTimestamp", "deletionGracePeriodSeconds", "finalizers"]);
    remove("/metadata/annotations", &["deployment.kubernetes.io/revision"]);
    if object["metadata"]["annotations"].as_object().is_some_and(serde_json::Map::is_empty)
        && let Some(metadata) = object["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The states of one object: a number is its content, and each lasts a second.
    fn history(states: &[Option<u64>]) -> Histories {
        let version = |(second, state): (u32, &Option<u64>)| {
            let at = At::from_secs(second.into());
            let state = state.map(|n| json!({"kind": "Pear", "metadata": {"name": "a"}, "spec": {"n": n}}));
            Version { sent: at, acked: at, state }
        };
        let versions = (0..).zip(states).map(version).collect();
        BTreeMap::from([(Of { kind: "Pear".into(), namespace: "red".into(), name: "a".into() }, versions)])
    }

    fn line(event: &str, differences: &Value) -> Value {
        json!({"event": event, "kind": "Pear", "namespace": "red", "name": "a", "differences": differences})
    }

    fn updated(old: u64, new: u64) -> Value {
        line("updated", &json!([{"path": "spec.n", "old": old, "new": new}]))
    }

    fn life(began: u64, lines: Vec<Value>) -> Life {
        Life { began: At::from_millis(began * 1000 + 500), settled: At::from_millis(began * 1000 + 600), lines }
    }

    /// Returns the numbers of wrong lines and of objects that are not fully reported.
    fn faults(states: &[Option<u64>], lives: &[Life]) -> (usize, usize) {
        let found = compare(&history(states), lives);
        (found.wrong.len(), found.unreported.len())
    }

    #[test]
    fn lines_lead_from_state_to_state() {
        let added = || line("added", &json!([]));
        let deleted = || line("deleted", &json!([]));
        let states = [None, Some(1), Some(2), Some(3), None];
        for (lines, expected) in [
            (vec![added(), updated(1, 2), updated(2, 3), deleted()], (0, 0)),
            (vec![added(), updated(1, 3), deleted()], (0, 0)),
            (vec![added(), deleted()], (0, 0)),
            (vec![deleted()], (0, 0)),
            (vec![added(), updated(1, 2), updated(2, 3)], (0, 1)),
            (vec![added(), updated(2, 1)], (1, 0)),
            (vec![added(), updated(1, 2), updated(1, 2), deleted()], (1, 0)),
            (vec![updated(1, 2), deleted()], (1, 0)),
            (vec![added(), updated(1, 5), deleted()], (1, 0)),
            (vec![added(), added(), deleted()], (1, 0)),
        ] {
            assert_eq!(faults(&states, &[life(0, lines.clone())]), expected, "{lines:?}");
        }
    }

    #[test]
    fn what_a_start_finds_is_not_reported_and_what_comes_later_is() {
        let states = [None, Some(1), Some(2), Some(3)];
        assert_eq!(faults(&states, &[life(0, Vec::new())]), (0, 1));
        assert_eq!(faults(&states, &[life(3, Vec::new())]), (0, 0));
        assert_eq!(faults(&states, &[life(0, Vec::new()), life(2, vec![updated(2, 3)])]), (0, 0));
        assert_eq!(faults(&states, &[life(2, vec![line("added", &json!([]))])]), (1, 0));
        // The change was before the start.
        assert_eq!(faults(&states, &[life(2, vec![updated(1, 2)])]).0, 1);
    }

    #[test]
    fn differences_are_applied_by_path() {
        let before = json!({"c": [{"name": "a", "i": 1}, {"name": "b", "i": 2}], "l": {"a.b/c": "x"}, "n": [1, 2]});
        let differences = json!([
            {"path": "c[b].i", "old": 2, "new": 3}, {"path": "l[\"a.b/c\"]", "old": "x"},
            {"path": "n[2]", "new": 3}, {"path": "more", "new": {}},
        ]);
        let after = json!({"c": [{"name": "a", "i": 1}, {"name": "b", "i": 3}], "l": {}, "n": [1, 2, 3], "more": {}});
        assert_eq!(applied(&before, &differences), Some(after));
        assert_eq!(applied(&before, &json!([{"path": "c[b].i", "old": 1, "new": 3}])), None);
        assert_eq!(applied(&before, &json!([{"path": "gone", "old": 1}])), None);
    }
}
