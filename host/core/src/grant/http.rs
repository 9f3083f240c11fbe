//! Which servers a plugin may send requests to: what its manifest's `http` asks for and the administrator's `http`
//! allows.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Deserializer};

use super::LackedBy;
use crate::{
    http::{Host, Pattern, Url, check_method},
    manifest::HttpPermission,
    references::{KeySelector, Kind, Reference},
};

/// One line of `http`: `{ hosts: [hooks.slack.com], methods: [POST] }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RuleText")]
pub struct HttpRule {
    /// At least one.
    pub hosts: Vec<Pattern>,
    /// At least one.
    pub ports: Vec<u16>,
    /// `true` for `http://` instead of `https://`.
    pub plain: bool,
    /// At least one; `*` for all.
    pub methods: BTreeSet<String>,
    /// `true` if the hosts may have addresses that are not public.
    pub private: bool,
    /// Headers that the host adds.
    pub headers: Vec<HttpHeader>,
}

/// A header that the host fills from a Secret. The plugin never sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpHeader {
    /// In lower case.
    pub name: String,
    /// What stands before the value, such as `Bearer `.
    pub prefix: String,
    /// The value.
    pub secret: Reference,
}

/// The servers that one plugin may send requests to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HttpGrants {
    pub(super) asked: Vec<HttpPermission>,
    pub(super) rules: Vec<HttpRule>,
}

/// How a request that is granted is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGranted {
    /// `true` if the server may have an address that is not public.
    pub private: bool,
    /// Headers to add, each name once.
    pub headers: Vec<HttpHeader>,
}

/// A request to a server that is not granted. The message names the side that does not allow it, and the line to add.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct HttpDenied {
    /// The method.
    pub method: String,
    /// `true` for `http://`.
    pub plain: bool,
    /// The server.
    pub host: Host,
    /// Its port.
    pub port: u16,
    /// The side that does not allow it.
    pub by: LackedBy,
}

impl HttpGrants {
    /// Decides whether the plugin may send `method` to the server of `url`. `all_asked` allows everything that is asked
    /// for.
    pub(super) fn check(&self, method: &str, url: &Url, all_asked: bool) -> Result<HttpGranted, HttpDenied> {
        let denied =
            |by| HttpDenied { method: method.to_owned(), plain: url.plain, host: url.host.clone(), port: url.port, by };
        let asks = |asked: &HttpPermission| {
            asked.plain == url.plain
                && asked.port == url.port
                && asked.host.matches(&url.host)
                && asked.methods.contains(method)
        };
        if !self.asked.iter().any(asks) {
            return Err(denied(LackedBy::Manifest));
        }
        let allowing = self.rules.iter().filter(|rule| {
            rule.plain == url.plain
                && rule.ports.contains(&url.port)
                && rule.allows_method(method)
                && rule.hosts.iter().any(|host| host.matches(&url.host))
        });
        let (mut is_allowed, mut granted) = (all_asked, HttpGranted { private: all_asked, headers: Vec::new() });
        for rule in allowing {
            is_allowed = true;
            granted.private |= rule.private;
            for header in &rule.headers {
                if granted.headers.iter().all(|known| known.name != header.name) {
                    granted.headers.push(header.clone());
                }
            }
        }
        if is_allowed { Ok(granted) } else { Err(denied(LackedBy::Administrator)) }
    }

    /// Returns what is asked for and not allowed, as a line each.
    pub(super) fn refused(&self) -> impl Iterator<Item = String> + '_ {
        self.asked.iter().filter_map(|asked| {
            let allows = |method: &&String| {
                self.rules.iter().any(|rule| {
                    rule.plain == asked.plain
                        && rule.ports.contains(&asked.port)
                        && rule.allows_method(method)
                        && rule.hosts.iter().any(|host| host.covers(&asked.host))
                })
            };
            let refused: Vec<&str> =
                asked.methods.iter().filter(|method| !allows(method)).map(String::as_str).collect();
            let scheme = if asked.plain { "http" } else { "https" };
            (!refused.is_empty())
                .then(|| format!("http {} to {scheme}://{}:{}", refused.join(", "), asked.host, asked.port))
        })
    }
}

impl HttpRule {
    fn allows_method(&self, method: &str) -> bool {
        self.methods.contains(method) || self.methods.contains("*")
    }
}

/// Returns the line of the administrator's file that allows this.
pub(super) fn rule(host: &str, port: u16, plain: bool, methods: &str) -> String {
    let host = serde_json::Value::from(host);
    let ports = if port == port_of(plain) { String::new() } else { format!(", ports: [{port}]") };
    let plain = if plain { ", plain: true" } else { "" };
    format!("{{ hosts: [{host}]{ports}, methods: [{methods}]{plain} }}")
}

/// Returns the line that allows what a manifest asks for.
pub(super) fn rule_of(asked: &HttpPermission) -> String {
    let methods: Vec<&str> = asked.methods.iter().map(String::as_str).collect();
    rule(&asked.host.to_string(), asked.port, asked.plain, &methods.join(", "))
}

impl fmt::Display for HttpDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, plain, host, port, by } = self;
        let scheme = if *plain { "http" } else { "https" };
        write!(f, "not granted: {method} to {scheme}://{host}:{port}: ")?;
        match by {
            LackedBy::Manifest => f.write_str("the plugin's manifest does not ask for it in `http`"),
            LackedBy::Administrator => {
                let rule = rule(&host.to_string(), *port, *plain, method);
                write!(f, "the administrator's file does not allow it; add under http: - {rule}")
            }
        }
    }
}

fn port_of(plain: bool) -> u16 {
    if plain { 80 } else { 443 }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    hosts: Vec<Option<String>>,
    methods: Vec<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    ports: Option<Vec<u16>>,
    #[serde(default)]
    plain: bool,
    #[serde(default)]
    private: bool,
    #[serde(default, deserialize_with = "given")]
    headers: Option<Vec<HeaderText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderText {
    name: String,
    #[serde(default)]
    prefix: String,
    secret: KeySelector,
}

/// Headers that belong to the connection, or that the host derives from the request.
const HOSTS_OWN: [&str; 6] = ["connection", "content-length", "host", "te", "transfer-encoding", "upgrade"];

impl TryFrom<HeaderText> for HttpHeader {
    type Error = String;

    fn try_from(text: HeaderText) -> Result<Self, String> {
        let HeaderText { name, prefix, secret } = text;
        let lower = name.to_ascii_lowercase();
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if lower.is_empty() || !lower.bytes().all(fits) || HOSTS_OWN.contains(&lower.as_str()) {
            return Err(format!("headers: {name:?} is not a header that can be set"));
        }
        if !prefix.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
            return Err(format!("headers: the prefix of {name} has other characters than ASCII"));
        }
        let secret = secret.of(Kind::Secret).map_err(|why| format!("headers: secret of {name}: {why}"))?;
        Ok(Self { name: lower, prefix, secret })
    }
}

/// Reads a key that is present, so that a null is rejected.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl TryFrom<RuleText> for HttpRule {
    type Error = String;

    fn try_from(text: RuleText) -> Result<Self, String> {
        let RuleText { hosts, methods, ports, plain, private, headers } = text;
        let headers = headers.unwrap_or_default().into_iter().map(HttpHeader::try_from);
        let host = |host: Option<String>| {
            let host = host.unwrap_or_default();
            Pattern::parse(&host).map_err(|error| format!("hosts: {host:?}: {error}"))
        };
        let method = |method: Option<String>| -> Result<String, String> {
            let method = method.unwrap_or_default();
            if method != "*" {
                check_method(&method).map_err(|error| format!("methods: {method:?} {error}"))?;
            }
            Ok(method)
        };
        let rule = Self {
            hosts: hosts.into_iter().map(host).collect::<Result<_, _>>()?,
            ports: ports.unwrap_or_else(|| vec![port_of(plain)]),
            plain,
            methods: methods.into_iter().map(method).collect::<Result<_, _>>()?,
            private,
            headers: headers.collect::<Result<_, _>>()?,
        };
        for (is_empty, name) in
            [(rule.hosts.is_empty(), "hosts"), (rule.ports.is_empty(), "ports"), (rule.methods.is_empty(), "methods")]
        {
            if is_empty {
                return Err(format!("{name} is empty, so the rule grants nothing"));
            }
        }
        if rule.ports.contains(&0) {
            return Err("ports: 0 is no port".to_owned());
        }
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{AdminFile, Grants},
        *,
    };

    fn asks(host: &str, port: u16, plain: bool, methods: &[&str]) -> HttpPermission {
        let methods = methods.iter().map(|method| (*method).to_owned()).collect();
        HttpPermission { host: Pattern::parse(host).expect("it is a pattern"), port, plain, methods }
    }

    fn file(yaml: &str) -> Result<Vec<HttpRule>, String> {
        serde_saphyr::from_str::<AdminFile>(yaml).map(|file| file.http).map_err(|error| error.to_string())
    }

    fn grants(yaml: &str) -> Grants {
        let asked = [
            asks("*.slack.com", 443, false, &["GET", "POST"]),
            asks("10.0.0.1", 8080, true, &["PUT"]),
            asks("other.com", 443, false, &["GET"]),
        ];
        Grants::new(&[], &[]).with_http(&asked, &file(yaml).expect("it is a file"))
    }

    /// Returns who does not allow it, or whether private addresses are granted.
    fn checked(grants: &Grants, method: &str, url: &str) -> Result<bool, LackedBy> {
        let url = Url::parse(url).expect("it is a URL");
        grants.check_http(method, &url).map(|granted| granted.private).map_err(|denied| denied.by)
    }

    #[test]
    fn a_request_needs_both_sides() {
        let grants = grants(
            "http: [{ hosts: [hooks.slack.com, nobody.com], methods: [POST] }, \
             { hosts: [10.0.0.1], ports: [8080, 8081], methods: ['*'], plain: true, private: true }]",
        );
        use LackedBy::{Administrator, Manifest};
        for (method, url, expected) in [
            ("POST", "https://hooks.slack.com/x", Ok(false)),
            ("POST", "https://HOOKS.slack.com.:443/x", Ok(false)),
            ("GET", "https://hooks.slack.com/x", Err(Administrator)),
            ("DELETE", "https://hooks.slack.com/x", Err(Manifest)),
            ("POST", "https://hooks.slack.com:444/x", Err(Manifest)),
            ("POST", "http://hooks.slack.com:443/x", Err(Manifest)),
            ("POST", "https://api.slack.com/", Err(Administrator)),
            ("POST", "https://slack.com/", Err(Manifest)),
            ("POST", "https://nobody.com/", Err(Manifest)),
            ("GET", "https://other.com/", Err(Administrator)),
            ("PUT", "http://10.0.0.1:8080/", Ok(true)),
            ("PUT", "http://[::ffff:10.0.0.1]:8080/", Ok(true)),
            ("PUT", "http://10.0.0.1:8081/", Err(Manifest)),
            ("GET", "http://10.0.0.1:8080/", Err(Manifest)),
        ] {
            assert_eq!(checked(&grants, method, url), expected, "{method} {url}");
        }
    }

    #[test]
    fn nothing_is_granted_without_a_file_and_everything_asked_for_in_dev() {
        let none = grants("{}");
        assert_eq!(checked(&none, "POST", "https://hooks.slack.com/"), Err(LackedBy::Administrator));
        let dev = Grants::all_asked(&[]).with_http(&[asks("localhost", 1234, true, &["GET"])], &[]);
        assert_eq!(checked(&dev, "GET", "http://localhost:1234/"), Ok(true));
        assert_eq!(checked(&dev, "POST", "http://localhost:1234/"), Err(LackedBy::Manifest));
        assert_eq!(dev.refused_http(), [""; 0]);
    }

    #[test]
    fn any_rule_may_grant_private_addresses() {
        let grants = grants(
            "http: [{ hosts: ['*.slack.com'], methods: [GET] }, { hosts: [a.slack.com], methods: [GET], private: true }]",
        );
        assert_eq!(checked(&grants, "GET", "https://a.slack.com/"), Ok(true));
        assert_eq!(checked(&grants, "GET", "https://b.slack.com/"), Ok(false));
    }

    #[test]
    fn headers_come_from_the_rules_that_allow_the_request() {
        let header = |name: &str, key: &str| {
            format!("{{ name: {name}, prefix: 'Bearer ', secret: {{ namespace: ops, name: slack, key: {key} }} }}")
        };
        let yaml = format!(
            "http: [{{ hosts: [hooks.slack.com], methods: [POST], headers: [{}, {}] }}, {{ hosts: ['*.slack.com'], methods: [POST, GET], headers: [{}] }}]",
            header("Authorization", "a"),
            header("X-Team", "b"),
            header("authorization", "c")
        );
        let grants = grants(&yaml);
        let sent = |method: &str, url: &str| {
            let granted = grants.check_http(method, &Url::parse(url).expect("it is a URL")).expect("it is granted");
            granted.headers.iter().map(|header| format!("{}: {}", header.name, header.secret)).collect::<Vec<_>>()
        };
        assert_eq!(
            sent("POST", "https://hooks.slack.com/"),
            ["authorization: key a of Secret ops/slack", "x-team: key b of Secret ops/slack"]
        );
        assert_eq!(sent("GET", "https://api.slack.com/"), ["authorization: key c of Secret ops/slack"]);
        let file: AdminFile = serde_saphyr::from_str(&yaml).expect("it is a file");
        assert_eq!(file.references().len(), 3);
        for (header, why) in [
            ("{ name: Host, secret: { namespace: a, name: b, key: c } }", "not a header that can be set"),
            ("{ name: 'a b', secret: { namespace: a, name: b, key: c } }", "not a header that can be set"),
            ("{ name: a, value: b }", "unknown field `value`"),
            ("{ name: a }", "missing field `secret`"),
            ("{ name: a, prefix: \"a\\n\", secret: { namespace: a, name: b, key: c } }", "prefix"),
            ("{ name: a, secret: { namespace: a, name: '', key: c } }", "is not a name"),
        ] {
            let rule = format!("http: [{{ hosts: [a.com], methods: [GET], headers: [{header}] }}]");
            let error = self::file(&rule).expect_err(header);
            assert!(error.contains(why), "{header}: {error}");
        }
    }

    #[test]
    fn messages_say_what_to_add_and_the_line_grants_it() {
        let grants = grants("http: [{ hosts: ['*.slack.com'], methods: [POST] }]");
        let denied = |method: &str, url: &str| {
            grants.check_http(method, &Url::parse(url).expect("it is a URL")).expect_err("it is denied").to_string()
        };
        assert_eq!(
            denied("PUT", "http://10.0.0.1:8080/secret"),
            "not granted: PUT to http://10.0.0.1:8080: the administrator's file does not allow it; add under http: - \
             { hosts: [\"10.0.0.1\"], ports: [8080], methods: [PUT], plain: true }"
        );
        assert_eq!(
            denied("PUT", "https://a.com/"),
            "not granted: PUT to https://a.com:443: the plugin's manifest does not ask for it in `http`"
        );
        assert_eq!(
            grants.refused_http(),
            [
                "http GET to https://*.slack.com:443",
                "http PUT to http://10.0.0.1:8080",
                "http GET to https://other.com:443"
            ]
        );
        let lines: String = grants.http.asked.iter().map(|asked| format!("  - {}\n", rule_of(asked))).collect();
        let allowed = file(&format!("http:\n{lines}")).expect("it is a file");
        assert_eq!(Grants::new(&[], &[]).with_http(&grants.http.asked, &allowed).refused_http(), [""; 0]);
    }

    #[test]
    fn a_rule_that_is_misspelt_or_grants_nothing_is_rejected() {
        for (rule, why) in [
            ("{ hosts: [a.com] }", "missing field `methods`"),
            ("{ methods: [GET] }", "missing field `hosts`"),
            ("{ hosts: [], methods: [GET] }", "hosts is empty"),
            ("{ hosts: [a.com], methods: [] }", "methods is empty"),
            ("{ hosts: [a.com], methods: [GET], ports: [] }", "ports is empty"),
            ("{ hosts: [a.com], methods: [GET], ports: [0] }", "0 is no port"),
            ("{ hosts: [a.com], methods: [GET], ports: null }", "null"),
            ("{ hosts: [null], methods: [GET] }", "the host is empty"),
            ("{ hosts: ['https://a.com'], methods: [GET] }", "not a DNS name"),
            ("{ hosts: ['*'], methods: [GET] }", "not a DNS name"),
            ("{ hosts: ['127.1'], methods: [GET] }", "four decimal numbers"),
            ("{ hosts: [a.com], methods: [get] }", "upper case"),
            ("{ hosts: [a.com], methods: [CONNECT] }", "no plugin may use"),
            ("{ hosts: [a.com], methods: [GET], privat: true }", "unknown field `privat`"),
        ] {
            let error = file(&format!("http: [{rule}]")).expect_err(rule);
            assert!(error.contains(why), "{rule}: {error}");
        }
        assert_eq!(file("http: null"), Ok(Vec::new()));
    }

    #[test]
    fn a_newer_revision_of_the_plugin_has_the_same_rules() {
        let grants = grants("http: [{ hosts: [hooks.slack.com], methods: [POST] }]");
        let fewer = grants.for_asked(&[], &[asks("other.com", 443, false, &["GET"])]);
        assert_eq!(checked(&fewer, "POST", "https://hooks.slack.com/"), Err(LackedBy::Manifest));
        let again = fewer.for_asked(&[], &[asks("hooks.slack.com", 443, false, &["POST"])]);
        assert_eq!(checked(&again, "POST", "https://hooks.slack.com/"), Ok(false));
    }
}
