#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use super::*;

fn url(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) => format!("{} {}", url.origin(), url.target),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_url_has_one_reading_or_none() {
    assert_eq!(url("https://Example.COM./a/../b?c=d"), "https://example.com:443 /a/../b?c=d");
    assert_eq!(url("HTTP://a:8080"), "http://a:8080 /");
    assert_eq!(url("http://a?x"), "http://a:80 /?x");
    assert_eq!(url("https://[::1]:9/"), "https://[::1]:9 /");
    assert_eq!(url("https://[::ffff:127.0.0.1]/"), "https://127.0.0.1:443 /");
    for wrong in [
        "",
        "example.com",
        "ftp://a/",
        "https:a",
        "https://",
        "https://:1/",
        "https://a:0/",
        "https://a:65536/",
        "https://a:+1/",
        "https://[::1/",
        "https://[a]/",
        "https://[::1]x/",
        "https://[127.0.0.1]/",
        "https://a@b/",
        "https://a:b@c/",
        "https://a/#b",
        "https://a b/",
        "https://a\\b/",
        "https://ü/",
        "https://a..b/",
        "https://a%41/",
        "https://a,b/",
        "https:///a",
        "https://a:1:2/",
        "https://[fe80::1%25eth0]/",
    ] {
        assert!(Url::parse(wrong).is_err(), "{wrong}: {}", url(wrong));
    }
    assert_eq!(Url::parse(&format!("https://a/{}", "b".repeat(MAX_URL))), Err(UrlError::Long));
}

#[test]
fn an_address_has_one_spelling() {
    for other in [
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "0x7f.0.0.1",
        "127.0.0.0x1",
        "1.2.3.4.5",
        "256.1.1.1",
        "1.09",
        "0x",
    ] {
        assert_eq!(Host::parse(other), Err(HostError::Address), "{other}");
    }
    assert!(Host::parse("0xg").is_ok() && Host::parse("a1.b2").is_ok());
}

#[test]
fn a_location_is_resolved_as_rfc_3986_says() {
    let base = Url::parse("https://a:1/b/c/d?q").unwrap();
    let joined = |location: &str| base.join(location).map(|url| format!("{}{}", url.origin(), url.target));
    for (location, expected) in [
        ("g", "https://a:1/b/c/g"),
        ("./g/.", "https://a:1/b/c/g/"),
        ("../g", "https://a:1/b/g"),
        ("../../../g", "https://a:1/g"),
        ("..", "https://a:1/b/"),
        ("/g", "https://a:1/g"),
        ("?y", "https://a:1/b/c/d?y"),
        ("", "https://a:1/b/c/d?q"),
        ("#s", "https://a:1/b/c/d?q"),
        ("g?y/../x#z", "https://a:1/b/c/g?y/../x"),
        ("//g", "https://g:443/"),
        ("http://g/x", "http://g:80/x"),
        ("a/b:c", "https://a:1/b/c/a/b:c"),
    ] {
        assert_eq!(joined(location).as_deref(), Ok(expected), "{location}");
    }
    for wrong in ["ftp://g", "javascript:x", "https:g", "//u@g", "/\\g", "/ g", "///g"] {
        assert!(base.join(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_pattern_includes_names_below_it_and_no_others() {
    let matches = |pattern: &str, host: &str| Pattern::parse(pattern).unwrap().matches(&Host::parse(host).unwrap());
    assert!(matches("a.com", "A.com") && matches("*.a.com", "b.a.com") && matches("*.a.com", "c.b.a.com"));
    assert!(!matches("*.a.com", "a.com") && !matches("*.a.com", "ba.com") && !matches("a.com", "b.a.com"));
    assert!(matches("10.0.0.1", "::ffff:10.0.0.1") && matches("[::1]", "::1") && !matches("*.com", "10.0.0.1"));
    for wrong in ["", "*", "*.", "*.1.2.3.4", "a*.com", "*.*.com", "127.1", "https://a", "a/b", "a:1"] {
        assert!(Pattern::parse(wrong).is_err(), "{wrong}");
    }
    let covers = |one: &str, other: &str| Pattern::parse(one).unwrap().covers(&Pattern::parse(other).unwrap());
    assert!(covers("*.a.com", "*.a.com") && covers("*.a.com", "*.b.a.com") && covers("*.a.com", "b.a.com"));
    assert!(!covers("*.b.a.com", "*.a.com") && !covers("a.com", "*.a.com") && !covers("*.a.com", "a.com"));
}

#[test]
fn only_global_unicast_addresses_are_public() {
    let public = |text: &str| is_public(text.parse().unwrap());
    for address in [
        "0.0.0.0",
        "0.1.2.3",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:1ff::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ] {
        assert!(!public(address), "{address}");
    }
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "100.63.0.1",
        "100.128.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.0.1.1",
        "192.167.1.1",
        "223.255.255.255",
        "168.63.129.17",
        "2606:4700::1111",
        "2a00:1450::1",
        "2001:4860::8888",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ] {
        assert!(public(address), "{address}");
    }
}

#[test]
fn metadata_services_are_link_local() {
    let local = |text: &str| is_link_local(text.parse().unwrap());
    for address in [
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "192.0.0.192",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fe80::1",
        "febf::1",
    ] {
        assert!(local(address), "{address}");
        assert!(!is_public(address.parse().unwrap()), "{address}");
    }
    for address in
        ["10.0.0.1", "100.100.100.100", "127.0.0.1", "169.253.1.1", "192.168.1.1", "::1", "fd00::1", "fec0::1"]
    {
        assert!(!local(address), "{address}");
    }
}

#[test]
fn a_method_is_written_in_upper_case() {
    for method in ["GET", "POST", "M-SEARCH", "VERSION-CONTROL"] {
        assert_eq!(check_method(method), Ok(()), "{method}");
    }
    for method in ["", "get", "GET ", "G\r\nT", "-A", &"A".repeat(33)] {
        assert_eq!(check_method(method), Err(MethodError::Form), "{method}");
    }
    assert_eq!(["CONNECT", "TRACE"].map(check_method), [Err(MethodError::Forbidden); 2]);
}
