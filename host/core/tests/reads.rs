//! `Tracker::bytes` against an allocator that counts: what a tracker says it holds is what it asked for.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

#[path = "support/counting.rs"]
mod counting;

use std::sync::Arc;

use counting::live;

use pilothouse_core::{
    field::FieldPath,
    key::{Key, TypeMeta},
    reads::{Aspect, Selection, Tracker},
    selector::Selector,
};
use proptest::prelude::*;

/// What a kind has of its own, and its few tables: the paths by which it is indexed are not counted.
const SLACK: usize = 16 << 10;

fn pods() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}

/// Asserts that `tracker` holds what it says, within a fifth.
fn compare(tracker: &Tracker, before: usize) -> Result<(), TestCaseError> {
    let (says, holds) = (tracker.bytes(), live().wrapping_sub(before));
    prop_assert!(holds <= says + says / 5 + SLACK, "says {}, holds {}", says, holds);
    prop_assert!(says <= holds + holds / 5 + SLACK, "says {}, holds {}", says, holds);
    Ok(())
}

#[derive(Clone, Debug)]
enum Read {
    Object(String),
    Selection { labels: String, node: Option<String>, fields: Vec<&'static str>, keys: bool },
}

fn reads() -> impl Strategy<Value = Read> {
    let labels = prop_oneof![
        "[a-z]{1,40}",
        "![a-z]{1,200}/[a-z]{1,40}".prop_map(|text| text.replace('/', ".x/")),
        "[a-z]{1,20}=[a-z]{1,40}",
        "[a-z]{1,20} in \\([a-z]{1,20},[a-z]{1,20},[a-z]{1,20}\\),[a-z]{1,40}!=[a-z]{1,60}",
        "[a-z]{1,40}>[0-9]{1,9}",
    ];
    let fields =
        prop::sample::subsequence(vec!["spec.nodeName", "spec.containers[*].image", "metadata.annotations"], 0..3);
    prop_oneof![
        1 => "[a-z]{1,200}".prop_map(Read::Object),
        3 => (labels, prop::option::of("[a-z]{1,30}"), fields, any::<bool>())
            .prop_map(|(labels, node, fields, keys)| Read::Selection { labels, node, fields, keys }),
    ]
}

/// `labels` that a label cannot have become none.
fn selection(labels: &str, node: Option<&str>, fields: &[&str], keys: bool, namespace: &Arc<str>) -> Selection {
    let path = |text: &str| FieldPath::parse(text).unwrap();
    let aspect = match fields {
        [] if keys => Aspect::Keys,
        [] => Aspect::Whole,
        fields => Aspect::Fields(fields.iter().map(|field| path(field)).collect()),
    };
    let labels = Selector::parse(labels).unwrap_or_default();
    Selection {
        namespace: Some(namespace.clone()),
        labels,
        index: node.map(|node| (path("spec.nodeName"), node.into())),
        aspect,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn invariant_12_bytes_of_tracked_reads_are_those_that_were_allocated(
        runs in prop::collection::vec((0..40_usize, prop::collection::vec(reads(), 0..20), 0..4_u8), 1..80),
    ) {
        let (of, namespace) = (pods(), Arc::<str>::from("default"));
        let names: Vec<Arc<str>> = (0..40).map(|number| format!("reconciled-{number}").into()).collect();
        let before = live();
        let mut tracker = Tracker::default();
        for (number, reads, end) in &runs {
            let key = Key { namespace: Some(namespace.clone()), name: format!("{}-of-a-run", names[*number]).as_str().into() };
            let run = tracker.begin(&key);
            for read in reads {
                match read {
                    Read::Object(name) => tracker.read_object(run, &of, &Key { namespace: Some(namespace.clone()), name: name.as_str().into() }),
                    Read::Selection { labels, node, fields, keys } => {
                        tracker.read_selection(run, &of, selection(labels, node.as_deref(), fields, *keys, &namespace));
                    }
                }
            }
            match end {
                0 => tracker.abandon(run),
                1 => tracker.forget(&key),
                // It goes on, as long as no other one of its key begins.
                2 => {}
                _ => tracker.commit(run),
            }
        }
        compare(&tracker, before)?;
    }
}

#[test]
fn invariant_12_long_selectors_of_a_field_each_are_counted_as_they_are_held() {
    let (of, namespace, prefix) = (pods(), Arc::<str>::from("default"), ["a".repeat(60).as_str(); 4].join("."));
    let before = live();
    let mut tracker = Tracker::default();
    for key in 0..20 {
        let run = tracker.begin(&Key { namespace: Some(namespace.clone()), name: format!("{key}").as_str().into() });
        for number in 0..550 {
            let labels = format!("{prefix}/a{number}-{key}=v");
            tracker.read_selection(run, &of, selection(&labels, None, &["metadata.annotations"], false, &namespace));
        }
        tracker.commit(run);
    }
    assert!(tracker.dependencies() > 10_000);
    compare(&tracker, before).unwrap();
}
