//! Where a request goes: URLs, patterns of hosts, and addresses that are not public.
//!
//! ```
//! use pilothouse_core::http::{Pattern, Url};
//!
//! let url = Url::parse("https://hooks.slack.com/services/a?b").unwrap();
//! assert!(Pattern::parse("*.slack.com").unwrap().matches(&url.host));
//! assert_eq!((url.port, url.target.as_str()), (443, "/services/a?b"));
//! // A spelling of 127.0.0.1 that some resolvers accept.
//! assert!(Url::parse("http://0x7f.1/").is_err());
//! ```

mod address;
mod url;

use std::{fmt, net::IpAddr};

pub use address::{is_link_local, is_public};
pub use url::{MAX_URL, Url, UrlError};

/// The server of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name in lower case, without a dot at its end.
    Name(String),
    /// An address. An IPv4 address in an IPv6 one (`::ffff:1.2.3.4`) is an IPv4 address.
    Address(IpAddr),
}

impl Host {
    /// Parses a name or an address, without brackets.
    ///
    /// # Errors
    /// If it is neither. A name whose last label is a number is an address in a spelling that is not accepted.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        let fits = |label: &str| {
            let alphanumeric = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(alphanumeric)
        };
        if name.len() > 253 || !name.split('.').all(fits) {
            return Err(HostError::Name);
        }
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_hexdigit());
        if last.bytes().all(|b| b.is_ascii_digit()) || last.strip_prefix("0x").is_some_and(is_hex) {
            return Err(HostError::Address);
        }
        Ok(Self::Name(name))
    }
}

/// Writes it as in a URL: an IPv6 address in brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Why a text is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// There is none.
    #[error("the host is empty")]
    Empty,
    /// A label or the name is too long, or has other characters.
    #[error("the host is not a DNS name; write an international name in its ASCII form (xn--…)")]
    Name,
    /// An address in octal, hexadecimal, or with fewer than four numbers.
    #[error("the host looks like an IPv4 address; write it as four decimal numbers without leading zeros")]
    Address,
}

/// Hosts that a manifest asks for or an administrator allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pattern {
    /// One host.
    One(Host),
    /// All names below this one: `*.example.com`. The name itself is not among them.
    Below(String),
}

impl Pattern {
    /// Parses a host name, `*.example.com`, or an address with or without brackets.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if let Some(name) = text.strip_prefix("*.") {
            return match Host::parse(name)? {
                Host::Name(name) => Ok(Self::Below(name)),
                Host::Address(_) => Err(HostError::Name),
            };
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        Host::parse(bare).map(Self::One)
    }

    /// Returns `true` if the pattern includes the host.
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::One(one), host) => one == host,
            (Self::Below(suffix), Host::Name(name)) => {
                name.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (Self::Below(_), Host::Address(_)) => false,
        }
    }

    /// Returns `true` if every host of `other` is one of this pattern's.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (pattern, Self::One(host)) => pattern.matches(host),
            (Self::Below(suffix), Self::Below(narrower)) => {
                suffix == narrower || self.matches(&Host::Name(narrower.clone()))
            }
            (Self::One(_), Self::Below(_)) => false,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(host) => write!(f, "{host}"),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

/// Bytes of a method's name. The longest registered one has 17.
const MAX_METHOD: usize = 32;

/// Checks a method's name: upper-case letters and `-`.
///
/// # Errors
/// If it is not well-formed, or would make a proxy or the server do something else than answer: `CONNECT`, `TRACE`.
pub fn check_method(method: &str) -> Result<(), MethodError> {
    let well_formed = (1..=MAX_METHOD).contains(&method.len())
        && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')
        && method.starts_with(|first: char| first.is_ascii_uppercase());
    match method {
        "CONNECT" | "TRACE" => Err(MethodError::Forbidden),
        _ if well_formed => Ok(()),
        _ => Err(MethodError::Form),
    }
}

/// Why a text is no method that a plugin may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// It is not a method's name.
    #[error("is not a method; write it in upper case, such as POST")]
    Form,
    /// Nobody may use it.
    #[error("is a method that no plugin may use")]
    Forbidden,
}

#[cfg(test)]
mod tests;
