#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

static TRAINED: LazyLock<Dictionary> = LazyLock::new(|| Dictionary::train((0..1_000).map(sample)).unwrap());

/// Words that all have in common, between some that few have.
fn sample(number: u32) -> String {
    let word = |i: u32| number.wrapping_add(i).wrapping_mul(0x9e37_79b9);
    let rules: Vec<_> = (0..6)
        .map(|i| {
            format!(
                r#"{{"apiGroups":["group-{:x}"],"resourceNames":[],"verbs":["get","list"],"weight":{}}}"#,
                word(i),
                word(i) % 9
            )
        })
        .collect();
    format!(
        r#"{{"kind":"Role","metadata":{{"name":"role-{number}","generateName":"role-"}},"rules":[{}]}}"#,
        rules.join(",")
    )
}

#[test]
fn texts_like_the_samples_get_much_smaller() {
    let dictionary = &*TRAINED;
    let text = sample(123_456);
    let packed = dictionary.pack("", &text).unwrap();
    let alone = Dictionary::train(Vec::<String>::new()).unwrap().pack("", &text).unwrap();
    assert!(2 * packed.len() < alone.len(), "{} and {} of {}", packed.len(), alone.len(), text.len());
    assert_eq!(Dictionary::unpacked_len(&packed), text.len());
}

#[test]
fn without_enough_samples_each_text_is_packed_by_itself() {
    for samples in [vec![], vec![sample(1)], vec!["x".to_owned(); 3]] {
        let dictionary = Dictionary::train(&samples).unwrap();
        let text = sample(1).repeat(20);
        let packed = dictionary.pack("", &text).unwrap();
        assert!(packed.len() < text.len());
        assert_eq!(dictionary.unpack(&packed), Some(text));
    }
}

#[test]
fn head_stands_before_what_is_packed() {
    let dictionary = &*TRAINED;
    let packed = dictionary.pack("head", "text").unwrap();
    assert_eq!(packed.strip_prefix(b"head").and_then(|packed| dictionary.unpack(packed)).as_deref(), Some("text"));
}

#[test]
fn bytes_count_both_directions() {
    let words = TRAINED.words.as_ref().unwrap();
    assert_eq!(TRAINED.bytes(), words.pack.sizeof() + words.unpack.sizeof());
    assert_eq!(Dictionary::train(Vec::<String>::new()).unwrap().bytes(), 0);
}

proptest! {
    #[test]
    fn any_text_comes_back(text in ".{0,400}", head in "[a-z]{0,9}") {
        let dictionary = &*TRAINED;
        let packed = dictionary.pack(&head, &text).unwrap();
        prop_assert_eq!(dictionary.unpack(&packed[head.len()..]), Some(text));
    }

    #[test]
    fn damage_makes_nothing_panic(at: prop::sample::Index, with: u8) {
        let dictionary = &*TRAINED;
        let mut packed = dictionary.pack("", &sample(5)).unwrap();
        let at = at.index(packed.len());
        packed[at] = with;
        let _ = dictionary.unpack(&packed);
    }
}
