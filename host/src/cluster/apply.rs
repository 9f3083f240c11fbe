//! Rewrites the bodies of server-side applies, so that kube-apiserver's YAML parser reads the same values.
//!
//! kube-apiserver always reads an apply as YAML 1.1 (sigs.k8s.io/yaml, go-yaml v2). Some JSON means something else
//! there:
//!
//! | in the JSON | as YAML | sent instead |
//! |---|---|---|
//! | U+0085, blanks beside U+2028 and U+2029 | folded or dropped | the character as `\uXXXX` |
//! | U+007F–U+009F, U+FEFF, U+FFFE, U+FFFF | rejected | the character as `\uXXXX` |
//! | `\ud83d\ude00`, `\/` | rejected | the character itself |
//! | blanks and breaks between tokens | a tab or a long key may be rejected | nothing |
//! | a member's name of more than 1,022 characters, a lone surrogate | rejected | [`Error`] |
//! | a number beyond a float's range, such as 1e400 | a text | [`Error`] |

use std::borrow::Cow;

/// Longest name of a member, in characters as written. go-yaml looks for the `:` at most 1,024 characters after the
/// opening quote.
const MAX_NAME: usize = 1022;

/// Length of an escape such as `\u0085`, the longest form of one character.
const ESCAPE: usize = 6;

/// Why a body cannot be sent as an apply.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("a string has {0}, which is half of a surrogate pair and not a character")]
    Surrogate(String),
    #[error(
        "the member name {start}… has {chars} characters, but an apply takes at most {MAX_NAME}; write the object by create or update through `client`"
    )]
    Name { start: String, chars: usize },
    #[error(
        "the number {0} is out of range, so an apply would store it as a string; write a smaller number or a string"
    )]
    Number(String),
    #[error("a string has no closing quote")]
    Unfinished,
}

/// Rewrites valid JSON so that it means the same as YAML. A body that needs no change is not copied.
pub(super) fn body(json: &str) -> Result<Cow<'_, str>, Error> {
    let mut rewriter = Rewriter { json, out: String::new(), copied: 0 };
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'"' => rewriter.text(at)?,
            b' ' | b'\t' | b'\n' | b'\r' => rewriter.replace(at, at + 1, ""),
            b'-' | b'0'..=b'9' => rewriter.number(at)?,
            _ => at + 1,
        };
    }
    Ok(rewriter.finish())
}

struct Rewriter<'a> {
    json: &'a str,
    /// The rewritten form of `json` up to `copied`; empty before the first difference.
    out: String,
    copied: usize,
}

impl<'a> Rewriter<'a> {
    /// Writes `new` in place of a range, and returns the range's end.
    fn replace(&mut self, start: usize, end: usize, new: &str) -> usize {
        self.out.push_str(self.json.get(self.copied..start).unwrap_or_default());
        self.out.push_str(new);
        self.copied = end;
        end
    }

    fn finish(mut self) -> Cow<'a, str> {
        if self.copied == 0 {
            return Cow::Borrowed(self.json);
        }
        self.out.push_str(self.json.get(self.copied..).unwrap_or_default());
        Cow::Owned(self.out)
    }

    /// Rewrites a string or a member's name from its opening quote. Returns the position after the closing one.
    fn text(&mut self, start: usize) -> Result<usize, Error> {
        let bytes = self.json.as_bytes();
        // The string's position in the output.
        let written = self.out.len() + (start - self.copied);
        let mut at = start + 1;
        loop {
            at = match bytes.get(at).ok_or(Error::Unfinished)? {
                b'"' => break,
                b'\\' => self.escape(at)?,
                // Lead bytes of the characters that are escaped. U+007F is a single byte.
                0x7f | 0xc2 | 0xe2 | 0xef => self.character(at),
                _ => at + 1,
            };
        }
        let end = at + 1;
        if (end - start) * ESCAPE > MAX_NAME && self.is_name(end) {
            let whole = match self.out.get(written..) {
                Some(rewritten) if self.copied > start => {
                    Cow::Owned(format!("{rewritten}{}", self.json.get(self.copied..end).unwrap_or_default()))
                }
                _ => Cow::Borrowed(self.json.get(start..end).unwrap_or_default()),
            };
            let chars = whole.chars().count().saturating_sub(2);
            if chars > MAX_NAME {
                let start = whole.chars().skip(1).take(40).collect();
                return Err(Error::Name { start, chars });
            }
        }
        Ok(end)
    }

    /// `true` if a `:` follows.
    fn is_name(&self, after: usize) -> bool {
        self.json.get(after..).is_some_and(|rest| rest.trim_ascii_start().starts_with(':'))
    }

    /// Rewrites an escape sequence from its backslash.
    fn escape(&mut self, start: usize) -> Result<usize, Error> {
        let bytes = self.json.as_bytes();
        match bytes.get(start + 1) {
            Some(b'/') => Ok(self.replace(start, start + 2, "/")),
            Some(b'u') => {
                let unit = |at| {
                    let escape: &str = self.json.get(at..at + ESCAPE)?;
                    u16::from_str_radix(escape.strip_prefix("\\u")?, 16).ok()
                };
                let Some(first) = unit(start) else { return Ok(start + 2) };
                if !(0xd800..0xe000).contains(&first) {
                    return Ok(start + ESCAPE);
                }
                let pair = unit(start + ESCAPE).and_then(|second| char::decode_utf16([first, second]).next()?.ok());
                let alone = || Error::Surrogate(self.json.get(start..start + ESCAPE).unwrap_or_default().to_owned());
                let character = pair.ok_or_else(alone)?;
                Ok(self.replace(start, start + 2 * ESCAPE, character.encode_utf8(&mut [0; 4])))
            }
            _ => Ok(start + 2),
        }
    }

    /// Escapes a character if YAML requires it.
    fn character(&mut self, start: usize) -> usize {
        let Some(character) = self.json.get(start..).and_then(|rest| rest.chars().next()) else { return start + 1 };
        let end = start + character.len_utf8();
        match character {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                self.replace(start, end, &format!("\\u{:04x}", u32::from(character)))
            }
            _ => end,
        }
    }

    /// Checks a number from its first character.
    fn number(&self, start: usize) -> Result<usize, Error> {
        let rest = self.json.get(start..).unwrap_or_default();
        let end = rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let number = rest.get(..end).unwrap_or_default();
        // Up to 300 digits without an exponent are in range.
        if (end > 300 || number.contains(['e', 'E'])) && number.parse::<f64>().is_ok_and(f64::is_infinite) {
            return Err(Error::Number(number.chars().take(40).collect()));
        }
        Ok(start + end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn only_characters_that_yaml_reads_differently_are_escaped() {
        let rewritten = |text: &str| body(text).map(Cow::into_owned);
        for (json, yaml) in [
            ("{\"a\":\"x\u{85}y\"}", r#"{"a":"x\u0085y"}"#),
            ("[\"a \u{2028} \u{2029}\"]", r#"["a \u2028 \u2029"]"#),
            ("[\"\u{7f}\u{80}\u{9f}\u{a0}\"]", "[\"\\u007f\\u0080\\u009f\u{a0}\"]"),
            ("[\"\u{feff}\u{fffd}\u{fffe}\u{ffff}\"]", "[\"\\ufeff\u{fffd}\\ufffe\\uffff\"]"),
            (r#"["\ud83d\ude00\/\\/\"\u0085"]"#, r#"["😀/\\/\"\u0085"]"#),
            ("\t{ \"a\" :\n [1,\t-2.5e3] }", r#"{"a":[1,-2.5e3]}"#),
            ("{\"\u{85}\":\"é😀\"}", r#"{"\u0085":"é😀"}"#),
        ] {
            assert_eq!(rewritten(json), Ok(yaml.to_owned()));
        }
        assert!(matches!(body("{\"a\":\"é 😀 \u{2027}\"}"), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn texts_that_an_apply_cannot_carry_are_rejected() {
        let refused = |text: &str| body(text).expect_err("it is refused").to_string();
        insta::assert_snapshot!(refused(r#"["\ud83d"]"#), @r"a string has \ud83d, which is half of a surrogate pair and not a character");
        insta::assert_snapshot!(refused(r#"["\ude00\ud83d"]"#), @r"a string has \ude00, which is half of a surrogate pair and not a character");
        insta::assert_snapshot!(refused("[-1e400]"), @"the number -1e400 is out of range, so an apply would store it as a string; write a smaller number or a string");
        assert!(body(&format!("[1{}]", "0".repeat(400))).is_err());

        let named = |name: &str| format!("{{ \"{name}\" : \"{name}\"}}");
        assert!(body(&named(&"k".repeat(1022))).is_ok());
        assert!(body(&named(&"é".repeat(1022))).is_ok());
        insta::assert_snapshot!(refused(&named(&"k".repeat(1023))), @"the member name kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk… has 1023 characters, but an apply takes at most 1022; write the object by create or update through `client`");
        // Escapes count as they are written.
        assert!(body(&named(&"\u{85}".repeat(170))).is_ok());
        assert!(body(&named(&"\u{85}".repeat(171))).is_err());
        assert!(body(&format!("[\"{}\"]", "v".repeat(5000))).is_ok());
    }

    /// Texts with many of the characters that matter.
    fn text() -> impl Strategy<Value = String> {
        let odd = proptest::sample::select(vec![
            '\u{85}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{ffff}', '\u{7f}', '"', '\\', '/', ' ', '\n', '😀',
        ]);
        proptest::collection::vec(prop_oneof![odd, any::<char>()], 0..12).prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #[test]
        fn the_values_stay_what_they_were(texts in proptest::collection::vec((text(), text()), 0..6), number: i64, quarters: i32) {
            let members = texts.into_iter().map(|(name, text)| (name, text.into()));
            let value = Value::Object(members.collect());
            let value = serde_json::json!({ "value": value, "number": number, "float": f64::from(quarters) / 4.0, "list": [true, null] });
            for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap_or_default()] {
                let yaml = body(&json).expect("it can be sent");
                prop_assert_eq!(&serde_json::from_str::<Value>(&yaml).expect("it is JSON"), &value);
                let odd = |c: char| matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' | '\n');
                prop_assert!(!yaml.contains(odd));
            }
        }
    }
}
