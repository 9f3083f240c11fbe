#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;
use serde_json::Value;

use super::{grammar::plain_end, *};

/// Text made of the pieces that JSON is made of, mostly not JSON.
fn hostile() -> impl Strategy<Value = String> {
    let pieces = [
        "{", "}", "[", "]", ",", ":", "\"", "\\", "\\\"", "\\u", "\\ud83d", "\\ude00", "\\u0041", "\\n", "\\x", "true",
        "false", "null", "nul", "0", "01", "-", "12", ".5", "1.", "e9", "E+400", "1e400", "-0", " ", "\n", "\t",
        "\u{1}", "é", "😀", "\"a\":", "\"b\"", "[]", "{}", "[[", "]]",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..24).prop_map(|pieces| pieces.concat())
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~éß😀\\n\\t\"\\\\]{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[ -~😀\"\\\\]{0,20}", inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// What is accepted is exactly what `serde_json` reads.
fn agrees(text: &str) {
    let mut reader = Reader::new(text);
    let ours = reader.value().and_then(|_| reader.end());
    let theirs = serde_json::from_str::<Value>(text);
    assert_eq!(ours.is_ok(), theirs.is_ok(), "{text:?}: {ours:?}, serde_json: {theirs:?}");
    if let Err(error) = ours {
        assert!(error.at <= text.len(), "{text:?}: {error}");
    }
}

proptest! {
    #[test]
    fn whatever_is_accepted_serde_json_reads(text in hostile()) {
        agrees(&text);
    }

    #[test]
    fn whatever_serde_json_writes_is_accepted(value in any_json(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        agrees(&text);
    }

    #[test]
    fn damaged_json_is_judged_as_serde_json_does(value in any_json(), at: prop::sample::Index, byte in 0_u8..128) {
        let mut bytes = value.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            agrees(text);
        }
    }

    #[test]
    fn skip_and_value_end_at_the_same_place(value in any_json(), pretty: bool, tail in "[,}\\] ]?") {
        let mut text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let end = text.len();
        text.push_str(&tail);
        let (mut checked, mut skipped) = (Reader::new(&text), Reader::new(&text));
        checked.value().unwrap();
        skipped.skip().unwrap();
        prop_assert_eq!((checked.at(), skipped.at()), (end, end));
    }

    #[test]
    fn skip_of_anything_ends_within_the_text(text in hostile()) {
        let mut reader = Reader::new(&text);
        match reader.skip() {
            Ok(value) => prop_assert!(value.len() <= text.len()),
            Err(error) => prop_assert!(error.at <= text.len()),
        }
    }

    #[test]
    fn decoded_strings_are_what_serde_json_decodes(text in "([ -~éß😀&&[^\"\\\\]]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}|\\\\ud83d\\\\ude00){0,12}") {
        let quoted = format!("\"{text}\"");
        let ours = Reader::new(&quoted).string().map(|text| text.decode().into_owned());
        let theirs = serde_json::from_str::<String>(&quoted);
        prop_assert_eq!(ours.ok(), theirs.ok());
    }

    #[test]
    fn compact_is_what_serde_json_writes(value in any_json()) {
        let text = serde_json::to_string_pretty(&value).unwrap();
        let mut reader = Reader::new(&text);
        let range = reader.value().unwrap();
        prop_assert_eq!(&*reader.compact(range), serde_json::to_string(&value).unwrap());
    }

    #[test]
    fn special_bytes_are_found_wherever_they_stand(plain in "[ !#-\\[\\]-~é😀]{0,40}", special in "[\"\\\\\u{0}-\u{1f}]", rest in ".{0,20}") {
        let text = format!("{plain}{special}{rest}");
        prop_assert_eq!(plain_end(text.as_bytes(), 0), plain.len());
        prop_assert_eq!(plain_end(plain.as_bytes(), 0), plain.len());
    }
}

#[test]
fn depth_ends_where_serde_json_ends_it() {
    for depth in [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 100_000] {
        let depth = depth as usize;
        agrees(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        agrees(&format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)));
    }
}

#[test]
fn depth_counts_what_was_entered() {
    let inner = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    for (depth, fits) in [(126, true), (127, false)] {
        let text = inner(depth);
        let mut reader = Reader::new(&text);
        reader.enter_object("text").unwrap();
        reader.member().unwrap();
        assert_eq!(reader.value().is_ok(), fits);
    }
}

#[test]
fn errors_say_what_and_where() {
    let error = |text: &str| Reader::new(text).value().unwrap_err().to_string();
    let cases = ["{\"a\" 1}", "[1 2]", "{\"a\":1,}", "\"a\u{1}\"", "\"\\ud83d\"", "[1,", "1e999", "{a}", "[01]", "tru"];
    let errors = cases.map(|text| format!("{text}: {}", error(text))).join("\n");
    insta::assert_snapshot!(errors.replace('\u{1}', "^A"), @r#"
    {"a" 1}: expected ':' at byte 5
    [1 2]: expected ',' or ']' at byte 3
    {"a":1,}: expected a member's name at byte 7
    "a^A": control character in a string at byte 2
    "\ud83d": half of a surrogate pair in a string at byte 1
    [1,: text ends too early at byte 3
    1e999: number out of range at byte 0
    {a}: expected a member's name at byte 1
    [01]: expected ',' or ']' at byte 2
    tru: expected a value at byte 0
    "#);
}
