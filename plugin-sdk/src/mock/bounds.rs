//! The host's limits for what a plugin passes and returns, and its messages.
//!
//! A test must not pass here with something that the real host rejects. Limits of a call as a whole (time, memory,
//! bytes exchanged) are left out, because a native plugin uses the test's own.

use pilothouse_core::{
    event::{Event, Level, MAX_EVENTS},
    field::{FieldPath, FieldPathError},
    selector::Selector,
};

use super::manifest;
use crate::{
    Key, TypeMeta,
    contract::{
        admitting::exports::pilothouse::plugin::admission::Decision,
        exports::pilothouse::plugin::controller::{Children, Failure, Outcome, Watch, Watches},
        pilothouse::plugin::{
            cache::Query,
            client::ListQuery,
            types::{self as wire, EventType},
        },
    },
};

/// Limits in bytes.
const API_VERSION: usize = 253 + 1 + 63;
const KIND: usize = 63;
const NAMESPACE: usize = 63;
const NAME: usize = 1 << 10;
const INDEX: usize = 63;
const VALUE: usize = 4 << 10;
const LABELS: usize = 8 << 10;
const AFTER: usize = 8 << 10;
const OUTCOME: usize = 16 << 20;
const OBJECT: usize = 3 << 20;

/// Limits of numbers.
const FIELDS: usize = 64;
const KEYS: usize = 10_000;
const CHILDREN: usize = 10_000;
const WATCHES: usize = 64;
const NOTES: usize = 16;

/// Checks a decision of a webhook.
///
/// # Errors
/// Fails with the first bound that it exceeds.
pub(super) fn decision(decision: &Decision) -> Result<(), String> {
    if let Some(code) = decision.code.filter(|code| !(400..600).contains(code)) {
        return Err(format!("{code} is not a status code of a denial: it is 400 to 599"));
    }
    let counts =
        [(decision.warnings.len(), "warnings"), (decision.audit_annotations.len(), "entries of the audit log")];
    match counts.into_iter().find(|(count, _)| *count > NOTES) {
        Some((count, what)) => Err(format!("{count} {what} are more than the {NOTES} that a decision may hold")),
        None => Ok(()),
    }
}

/// Checks an Event as the host does.
///
/// # Errors
/// Says what is wrong.
pub(super) fn event(event: &wire::Event) -> Result<Event, String> {
    let about = event.about.as_ref().map(|about| {
        let of = TypeMeta::new(&about.api_version, &about.kind);
        let key = Key { namespace: about.namespace.clone(), name: about.name.clone() };
        object(&of, &key)?;
        Ok::<_, String>(((&of).into(), (&key).into()))
    });
    let level = match event.of_type {
        EventType::Normal => Level::Normal,
        EventType::Warning => Level::Warning,
    };
    Event::new(about.transpose()?, level, event.reason.clone(), &event.message)
}

/// Checks the identity of one object.
///
/// # Errors
/// Fails if a part is too long.
pub(super) fn object(of: &TypeMeta, of_key: &Key) -> Result<(), String> {
    type_meta(of)?;
    key(of_key)
}

fn type_meta(of: &TypeMeta) -> Result<(), String> {
    within("the apiVersion", &of.api_version, API_VERSION)?;
    within("the kind", &of.kind, KIND)
}

fn key(key: &Key) -> Result<(), String> {
    within("the namespace", key.namespace.as_deref().unwrap_or_default(), NAMESPACE)?;
    within("the name", &key.name, NAME)?;
    if key.name.is_empty() { Err("the name is empty".to_owned()) } else { Ok(()) }
}

/// Checks a query, and parses its labels and fields.
///
/// # Errors
/// Fails if a part is too long or not valid.
pub(super) fn query(query: &Query) -> Result<(Selector, Vec<FieldPath>), String> {
    type_meta(&query.of)?;
    within("the namespace", query.namespace.as_deref().unwrap_or_default(), NAMESPACE)?;
    if let Some((name, value)) = &query.index {
        within("the index's name", name, INDEX)?;
        within("the index's value", value, VALUE)?;
    }
    within("after", query.after.as_deref().unwrap_or_default(), NAMESPACE + 1 + NAME)?;
    let labels = query.labels.as_deref().unwrap_or_default();
    within("labels", labels, LABELS)?;
    let labels = Selector::parse(labels).map_err(|problem| format!("labels: {problem}"))?;
    if query.fields.len() > FIELDS {
        return Err(format!("fields: {} are more than the {FIELDS} that a query may name", query.fields.len()));
    }
    let fields: Result<_, FieldPathError> = query.fields.iter().map(|path| FieldPath::parse(path)).collect();
    Ok((labels, fields.map_err(|problem| format!("fields: {problem}"))?))
}

/// Checks a query of the API server.
///
/// # Errors
/// Fails if a part is too long.
pub(super) fn live_query(query: &ListQuery) -> Result<(), String> {
    type_meta(&query.of)?;
    within("the namespace", query.namespace.as_deref().unwrap_or_default(), NAMESPACE)?;
    within("labels", query.labels.as_deref().unwrap_or_default(), LABELS)?;
    within("fields", query.fields.as_deref().unwrap_or_default(), LABELS)?;
    within("after", query.after.as_deref().unwrap_or_default(), AFTER)
}

/// Checks the keys that `map` returned.
///
/// # Errors
/// Fails if a key is not valid, or if there are too many.
pub(super) fn mapped(keys: &[Key]) -> Result<(), String> {
    if keys.len() > KEYS {
        return unusable(&format!("{} keys are more than the {KEYS} that map may give", keys.len()));
    }
    keys.iter().try_for_each(key).or_else(|problem| unusable(&format!("a key of map: {problem}")))
}

/// Checks the result of `reconcile`.
///
/// # Errors
/// Fails if a part is too long.
pub(super) fn answer(answer: &Result<Outcome, Failure>) -> Result<(), String> {
    let status = match answer {
        Ok(outcome) => &outcome.status,
        Err(failure) => &failure.status,
    };
    let children = match answer {
        Ok(Outcome { children: Children::Desired(children), .. }) => children.as_slice(),
        _ => &[],
    };
    let status = status.as_ref().map_or(0, String::len);
    let bytes = children.iter().map(|child| child.object.len()).sum::<usize>() + status;
    if bytes > OUTCOME {
        return unusable(&format!(
            "{bytes} bytes of children and status are more than the {OUTCOME} that an outcome may hold"
        ));
    }
    children.iter().enumerate().try_for_each(|(at, child)| taken(&format!("child {at}"), child.object.len()))?;
    taken("the status", status)?;
    let (Ok(Outcome { events, .. }) | Err(Failure { events, .. })) = answer;
    if events.len() > MAX_EVENTS {
        return unusable(&format!("{} Events are more than the {MAX_EVENTS} that an outcome may hold", events.len()));
    }
    for (at, returned) in events.iter().enumerate() {
        event(returned).map(drop).or_else(|why| unusable(&format!("event {at}: {why}")))?;
    }
    if children.len() > CHILDREN {
        return unusable(&format!("{} children are more than the {CHILDREN} that an outcome may hold", children.len()));
    }
    match answer {
        Ok(Outcome { watches: Watches::Desired(watches), .. }) => asked(watches),
        _ => Ok(()),
    }
}

/// Checks what an outcome asks to be watched.
fn asked(watches: &[Watch]) -> Result<(), String> {
    if watches.len() > WATCHES {
        return unusable(&format!("{} watches are more than the {WATCHES} that a key may ask for", watches.len()));
    }
    watches.iter().enumerate().try_for_each(|(at, watch)| {
        manifest::check_asked(watch).map(drop).or_else(|problem| unusable(&format!("watches[{at}]: {problem}")))
    })
}

fn taken(what: &str, bytes: usize) -> Result<(), String> {
    if bytes <= OBJECT {
        return Ok(());
    }
    unusable(&format!("{what} has {bytes} bytes, and an API server takes at most {OBJECT}"))
}

fn unusable(why: &str) -> Result<(), String> {
    Err(format!("plugin gave an unusable answer: {why}"))
}

fn within(what: &str, text: &str, most: usize) -> Result<(), String> {
    if text.len() <= most {
        return Ok(());
    }
    Err(format!("{what}: has {} bytes, and at most {most} are taken", text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::exports::pilothouse::plugin::controller::{Child, Watches};

    fn text(bytes: usize) -> String {
        "a".repeat(bytes)
    }

    fn maps() -> TypeMeta {
        TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() }
    }

    #[test]
    fn names_in_arguments_are_bounded() {
        let named = |(version, kind, namespace, name): (usize, usize, usize, usize)| {
            let of = TypeMeta { api_version: text(version), kind: text(kind) };
            object(&of, &Key { namespace: Some(text(namespace)), name: text(name) })
        };
        assert_eq!(named((317, 63, 63, 1024)), Ok(()));
        for (lengths, problem) in [
            ((1, 1, 1, 0), "the name is empty"),
            ((1, 1, 1, 1025), "the name: has 1025 bytes, and at most 1024 are taken"),
            ((1, 1, 64, 1), "the namespace: has 64 bytes, and at most 63 are taken"),
            ((318, 1, 1, 1), "the apiVersion: has 318 bytes, and at most 317 are taken"),
            ((1, 64, 1, 1), "the kind: has 64 bytes, and at most 63 are taken"),
        ] {
            assert_eq!(named(lengths), Err(problem.to_owned()));
        }
    }

    #[test]
    fn each_part_of_a_query_is_bounded() {
        let all = || Query {
            of: maps(),
            namespace: None,
            labels: None,
            index: None,
            fields: Vec::new(),
            limit: 0,
            after: None,
        };
        let fits = Query {
            namespace: Some(text(63)),
            labels: Some(format!("a,b{}", " ".repeat(8189))),
            index: Some((text(63), text(4096))),
            fields: vec![text(1024); 64],
            after: Some(text(63 + 1 + 1024)),
            ..all()
        };
        assert_eq!(query(&fits).map(drop), Ok(()));
        let selector = &"!a,".repeat(65)[..80];
        for (asked, problem) in [
            (
                Query { of: TypeMeta { kind: text(64), ..maps() }, ..all() },
                "the kind: has 64 bytes, and at most 63 are taken",
            ),
            (Query { namespace: Some(text(64)), ..all() }, "the namespace: has 64 bytes, and at most 63 are taken"),
            (Query { labels: Some(" ".repeat(8193)), ..all() }, "labels: has 8193 bytes, and at most 8192 are taken"),
            (
                Query { labels: Some("!a,".repeat(65)), ..all() },
                &format!("labels: cannot read label selector {selector:?}…: has more than 64 requirements"),
            ),
            (
                Query { index: Some((text(64), text(1))), ..all() },
                "the index's name: has 64 bytes, and at most 63 are taken",
            ),
            (
                Query { index: Some((text(1), text(4097))), ..all() },
                "the index's value: has 4097 bytes, and at most 4096 are taken",
            ),
            (Query { fields: vec![text(1); 65], ..all() }, "fields: 65 are more than the 64 that a query may name"),
            (Query { after: Some(text(1089)), ..all() }, "after: has 1089 bytes, and at most 1088 are taken"),
        ] {
            assert_eq!(query(&asked).map(drop), Err(problem.to_owned()));
        }
    }

    #[test]
    fn keys_of_a_mapping_are_bounded() {
        let keys = |count: usize, name: usize| mapped(&vec![Key { namespace: None, name: text(name) }; count]);
        assert_eq!(keys(10_000, 1024), Ok(()));
        let said = |why: &str| Err(format!("plugin gave an unusable answer: {why}"));
        assert_eq!(keys(10_001, 1), said("10001 keys are more than the 10000 that map may give"));
        assert_eq!(keys(1, 0), said("a key of map: the name is empty"));
    }

    #[test]
    fn an_answer_is_bounded() {
        let outcome = |children: usize, bytes: usize, status: usize| {
            let children = vec![Child { object: text(bytes), adopt: false, replace: false }; children];
            let outcome = Outcome {
                children: Children::Desired(children),
                status: Some(text(status)),
                requeue_after: None,
                watches: Watches::Unchanged,
                events: Vec::new(),
            };
            answer(&Ok(outcome))
        };
        let said = |why: &str| Err(format!("plugin gave an unusable answer: {why}"));
        let much = said("16777217 bytes of children and status are more than the 16777216 that an outcome may hold");
        assert_eq!(outcome(10_000, 2, 1), Ok(()));
        assert_eq!(outcome(10_001, 2, 1), said("10001 children are more than the 10000 that an outcome may hold"));
        assert_eq!(outcome(5, OBJECT, 1 << 20), Ok(()));
        assert_eq!(outcome(5, OBJECT, (1 << 20) + 1), much);
        let large = |what: &str| said(&format!("{what} has 3145729 bytes, and an API server takes at most 3145728"));
        assert_eq!(outcome(1, 2, OBJECT), Ok(()));
        assert_eq!(outcome(1, 2, OBJECT + 1), large("the status"));
        assert_eq!(outcome(1, OBJECT + 1, 2), large("child 0"));
        let failure =
            Failure { message: String::new(), terminal: false, status: Some(text(OBJECT + 1)), events: Vec::new() };
        assert_eq!(answer(&Err(failure)), large("the status"));
    }
}
