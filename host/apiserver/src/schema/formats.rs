//! The `format` of strings. Unknown formats are ignored, as in Kubernetes.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use regex::Regex;

use super::node::Type;

/// `true` if the format of a type is known.
pub(crate) fn is_known(kind: Type, format: &str) -> bool {
    match kind {
        Type::String => check_of(format).is_some(),
        Type::Integer => matches!(format, "int32" | "int64"),
        Type::Number => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// `true` if a text has the format.
pub(crate) fn holds(format: &str, text: &str) -> bool {
    check_of(format).is_none_or(|check| check(text))
}

fn check_of(format: &str) -> Option<fn(&str) -> bool> {
    // Kubernetes ignores the dashes in a format's name.
    Some(match format.replace('-', "").as_str() {
        "byte" => |text| BASE64_STANDARD.decode(text).is_ok(),
        "cidr" => is_cidr,
        "date" => is_date,
        "datetime" => is_date_time,
        "duration" => |text| go_duration(text).is_some() || matches(&DURATION_WORDS, text),
        "email" => |text| matches(&EMAIL, text),
        "hexcolor" => |text| matches(&HEX_COLOR, text),
        "hostname" => |text| text.len() <= 253 && matches(&HOSTNAME, text),
        "ipv4" => |text| text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => |text| text.parse::<Ipv6Addr>().is_ok(),
        "k8slongname" => |text| text.len() <= 253 && matches(&LONG_NAME, text),
        "k8sshortname" => |text| text.len() <= 63 && matches(&SHORT_NAME, text),
        "mac" => |text| matches(&MAC, text),
        "microtime" => |text| matches(&MICRO_TIME, text) && is_date_time(text),
        "password" => |_| true,
        "rgbcolor" => |text| matches(&RGB_COLOR, text),
        "uri" => |text| matches(&URI, text),
        "uuid" => |text| matches(&UUID, text),
        "uuid3" => |text| matches(&UUID, text) && version_of_uuid(text) == Some('3'),
        "uuid4" => |text| matches(&UUID, text) && version_of_uuid(text) == Some('4'),
        "uuid5" => |text| matches(&UUID, text) && version_of_uuid(text) == Some('5'),
        _ => return None,
    })
}

fn matches(pattern: &LazyLock<Regex>, text: &str) -> bool {
    pattern.is_match(text)
}

macro_rules! patterns {
    ($($name:ident = $pattern:literal;)*) => {
        $(static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("a pattern of this module compiles"));)*
    };
}

patterns! {
    DATE_TIME = r"^(\d{4}-\d\d-\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d+)?([Zz]|[+-]\d\d:?\d\d)?$";
    DURATION_WORDS = r"^(\d+(\.\d+)?) ?(ns|nano|nanos|nanosecond|nanoseconds|us|µs|micro|micros|microsecond|microseconds|ms|milli|millis|millisecond|milliseconds|s|sec|secs|second|seconds|m|min|mins|minute|minutes|h|hr|hrs|hour|hours|d|day|days|w|wk|wks|week|weeks)$";
    EMAIL = r#"^[^\s@<>,;:"()\[\]]+@[^\s@<>,;:"()]+$"#;
    HEX_COLOR = r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
    HOSTNAME = r"^([a-zA-Z0-9\p{L}]([a-zA-Z0-9\p{L}-]{0,61}[a-zA-Z0-9\p{L}])?)(\.[a-zA-Z0-9\p{L}]([a-zA-Z0-9\p{L}-]{0,61}[a-zA-Z0-9\p{L}])?)*\.?$";
    LONG_NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$";
    MAC = r"^([0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}|[0-9a-fA-F]{4}(\.[0-9a-fA-F]{4}){2}|[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){7})$";
    MICRO_TIME = r"\d\d\.\d{6}(Z|[+-]\d\d:\d\d)$";
    RGB_COLOR = r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$";
    SHORT_NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";
    URI = r"^([a-zA-Z][a-zA-Z0-9+.-]*:\S+|/\S*)$";
    UUID = r"^(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
}

fn version_of_uuid(text: &str) -> Option<char> {
    text.chars().filter(|c| *c != '-').nth(12)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let bits = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.bytes().all(|digit| digit.is_ascii_digit()) && length.parse::<u8>().is_ok_and(|length| length <= bits)
}

fn is_date(text: &str) -> bool {
    let mut parts = text.split('-').map(|part| (part.len(), part.parse::<u32>().ok()));
    let (Some((4, Some(year))), Some((2, Some(month))), Some((2, Some(day))), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    let Some(parts) = DATE_TIME.captures(text) else { return false };
    let below = |group: usize, limit: u32| parts[group].parse::<u32>().is_ok_and(|value| value < limit);
    is_date(&parts[1]) && below(2, 24) && below(3, 60) && below(4, 60)
}

/// Parses a duration such as `1h15m` or `-1.5s` like Go's `time.ParseDuration`. Returns nanoseconds, or `None` if it is
/// invalid or out of Go's range.
pub(crate) fn go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let number: f64 = number.parse().ok()?;
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let nanoseconds = match unit {
            "ns" => 1.0,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number * nanoseconds;
        rest = tail;
    }
    // i64::MAX as a float is 2⁶³, which no longer fits.
    (total < i64::MAX as f64).then_some(if negative { -(total as i64) } else { total as i64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_tell_right_from_wrong() {
        let cases = [
            ("byte", "aGk=", "aGk"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("date", "2024-02-29", "2023-02-29"),
            ("date-time", "2026-01-02T03:04:05.6Z", "2026-01-02 03:04:05"),
            ("duration", "1h15m30.5s", "1 fortnight"),
            ("duration", "22 ns", "h1"),
            ("email", "a@example.com", "a at example.com"),
            ("hexcolor", "#ffAA00", "#ggg"),
            ("hostname", "a.example.com", "-a"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "::1", "::g"),
            ("k8s-long-name", "a.b-c", "a..b"),
            ("k8s-short-name", "a-b", "a.b"),
            ("mac", "01:23:45:67:89:ab", "01:23:45"),
            ("micro-time", "2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.5Z"),
            ("rgbcolor", "rgb(1, 20, 255)", "rgb(256,0,0)"),
            ("uri", "https://example.com/a", "no scheme"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
            ("uuid4", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
        ];
        for (format, right, wrong) in cases {
            assert!(holds(format, right), "{format}: {right}");
            assert!(!holds(format, wrong), "{format}: {wrong}");
        }
        assert!(holds("colour-of-the-day", "anything"));
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let cases = [
            ("0", Some(0)),
            ("1.5s", Some(1_500_000_000)),
            ("-2m", Some(-120_000_000_000)),
            ("1h1ns", Some(3_600_000_000_001)),
            ("", None),
            ("-", None),
            ("1", None),
            ("1.2.3s", None),
            ("99999999999h", None),
        ];
        for (text, expected) in cases {
            assert_eq!(go_duration(text), expected, "{text}");
        }
    }
}
