//! The recipes of docs/cookbook.md, and the operator of the pages for people who know another framework.
//!
//! The code on these pages is a part of these files, so what a page shows compiles, and does what the page says.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use pilothouse_sdk::Object;

/// Declares the recipes, and collects their sources.
macro_rules! recipes {
    ($($name:ident),*) => {
        $(mod $name;)*

        const SOURCES: &[&str] = &[$(include_str!(concat!(stringify!($name), ".rs"))),*];
    };
}

recipes!(admission, cleanup, debounce, foreign, immutable, rollout, schedule, secrets, transitions, web);

const PAGES: [(&str, &str); 4] = [
    ("cookbook.md", include_str!("../../../docs/cookbook.md")),
    ("from-controller-runtime.md", include_str!("../../../docs/from-controller-runtime.md")),
    ("from-kube-rs.md", include_str!("../../../docs/from-kube-rs.md")),
    ("from-metacontroller-and-yoke.md", include_str!("../../../docs/from-metacontroller-and-yoke.md")),
];

/// Puts an object into the namespace `default`.
fn named<K: Object>(name: &str, mut object: K) -> K {
    let metadata = object.metadata_mut();
    (metadata.namespace, metadata.name) = (Some("default".to_owned()), Some(name.to_owned()));
    object
}

#[test]
fn the_code_on_the_pages_is_the_code_that_is_tested() {
    for (page, text) in PAGES {
        // Code that is no part of a recipe is marked as `rust,ignore`.
        let blocks = text.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
        let blocks: Vec<&str> = blocks.collect();
        assert!(!blocks.is_empty(), "{page} shows no code");
        for block in blocks {
            let is_tested = SOURCES.iter().any(|source| source.contains(block));
            assert!(is_tested, "{page} has code that no file in plugin-sdk/tests/cookbook has:\n{block}");
        }
    }
}
