//! Revisions: each template that becomes the newest gets the next number, though it may have had an earlier one.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ReplicaSet;

use super::sets::{self, DESIRED, MOST};

/// The annotation with the revision, of a ReplicaSet and of its Deployment.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// The annotation of a ReplicaSet with the revisions that it had before, oldest first.
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Bytes of that annotation. The oldest revisions are left out.
const MAX_HISTORY: usize = 2000;

/// Annotations of a Deployment that are its own. All others are copied to the ReplicaSet.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    HISTORY,
    DESIRED,
    MOST,
];

/// Returns the revision of a ReplicaSet, or 0.
pub(super) fn of(set: &ReplicaSet) -> i64 {
    sets::annotation(set, REVISION).and_then(|revision| revision.parse().ok()).unwrap_or_default()
}

/// Returns the next revision after those of older ReplicaSets.
pub(super) fn next(old: &[ReplicaSet]) -> i64 {
    old.iter().map(of).max().unwrap_or_default().saturating_add(1)
}

/// Copies the Deployment's annotations to the newest ReplicaSet, and gives it at least this revision.
///
/// It may have a later one already, when the ReplicaSets between were deleted.
pub(super) fn annotate(set: &mut ReplicaSet, deployment: Option<&BTreeMap<String, String>>, revision: i64) {
    for (name, value) in deployment.into_iter().flatten().filter(|(name, _)| !OWN.contains(&name.as_str())) {
        sets::annotate(set, name, value);
    }
    let before = sets::annotation(set, REVISION).map(ToOwned::to_owned);
    let number = before.as_deref().map_or(Ok(0), str::parse::<i64>);
    // A revision that is no number is somebody else's work, and stays.
    if !number.is_ok_and(|number| number < revision) {
        return;
    }
    sets::annotate(set, REVISION, &revision);
    if let Some(before) = before {
        let history =
            sets::annotation(set, HISTORY).map_or_else(|| before.clone(), |history| format!("{history},{before}"));
        sets::annotate(set, HISTORY, &shortened(&history));
    }
}

fn shortened(mut history: &str) -> &str {
    while history.len() > MAX_HISTORY {
        match history.split_once(',') {
            Some((_, rest)) => history = rest,
            None => break,
        }
    }
    history
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{HISTORY, REVISION, annotate, next, shortened};
    use crate::deployment::sets::{annotation, tests::set};

    fn annotated(before: &[(&str, &str)], revision: i64) -> BTreeMap<String, String> {
        let mut set = set("web", 0, 1, 1, 1);
        let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        set.metadata.annotations = Some(pairs(before));
        let deployment = pairs(&[("team", "shop"), (REVISION, "9"), ("deprecated.deployment.rollback.to", "1")]);
        annotate(&mut set, Some(&deployment), revision);
        set.metadata.annotations.unwrap_or_default()
    }

    #[test]
    fn a_template_that_becomes_the_newest_gets_the_next_revision_and_keeps_its_history() {
        for (before, revision, expected) in [
            (vec![], 1, vec![(REVISION, "1")]),
            (vec![(REVISION, "1")], 1, vec![(REVISION, "1")]),
            (vec![(REVISION, "1")], 3, vec![(REVISION, "3"), (HISTORY, "1")]),
            (vec![(REVISION, "3"), (HISTORY, "1")], 5, vec![(REVISION, "5"), (HISTORY, "1,3")]),
            // The ReplicaSets between are gone.
            (vec![(REVISION, "7")], 2, vec![(REVISION, "7")]),
            (vec![(REVISION, "mine")], 2, vec![(REVISION, "mine")]),
        ] {
            let expected = expected.iter().chain(&[("team", "shop")]);
            let expected = expected.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(annotated(&before, revision), expected, "{before:?} {revision}");
        }
    }

    #[test]
    fn the_next_revision_is_above_all_older_ones() {
        let with = |revision: &str| {
            let mut set = set("web", 0, 0, 0, 0);
            super::sets::annotate(&mut set, REVISION, &revision);
            set
        };
        assert_eq!(next(&[]), 1);
        assert_eq!(next(&[with("2"), with("10"), with("none")]), 11);
        assert_eq!(annotation(&with("2"), REVISION), Some("2"));
    }

    #[test]
    fn a_long_history_loses_its_beginning() {
        let long = vec!["1234"; 500].join(",");
        let kept = shortened(&long);
        assert!(kept.len() <= 2000 && kept.starts_with("1234,") && long.ends_with(kept), "{} bytes", kept.len());
    }
}
