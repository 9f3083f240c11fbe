//! A URL that a plugin sends a request to.
//!
//! Strict on purpose: what two parsers might read differently is refused.

use std::fmt;

use super::{Host, HostError};

/// Bytes of a URL (`wit/http.wit`).
pub const MAX_URL: usize = 8 << 10;

/// An absolute `http` or `https` URL without user and fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `true` for `http`.
    pub plain: bool,
    /// The server.
    pub host: Host,
    /// The port; 443 or 80 if the URL has none.
    pub port: u16,
    /// Path and query. Begins with `/`.
    pub target: String,
}

/// Why a text is not a URL for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It has more than [`MAX_URL`] bytes.
    #[error("the URL has more than {MAX_URL} bytes")]
    Long,
    /// A space, a control character, a backslash, or a character beyond ASCII.
    #[error("the URL has a space, a backslash, a control character or one beyond ASCII: write it as %XX")]
    Characters,
    /// Neither `http` nor `https`.
    #[error("the URL does not begin with https:// or http://")]
    Scheme,
    /// A user before the host.
    #[error("the URL has a user; send a header Authorization instead")]
    User,
    /// A fragment.
    #[error("the URL has a fragment, which no server gets; leave out `#` and the rest")]
    Fragment,
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The port is not 1 to 65535.
    #[error("the URL's port is not a number from 1 to 65535")]
    Port,
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// Says what is wrong. No message quotes the URL, which may hold a token.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        check_characters(text)?;
        if text.contains('#') {
            return Err(UrlError::Fragment);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let plain = match scheme {
            _ if scheme.eq_ignore_ascii_case("https") => false,
            _ if scheme.eq_ignore_ascii_case("http") => true,
            _ => return Err(UrlError::Scheme),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or(HostError::Name)?;
                if !address.contains(':') {
                    return Err(HostError::Name.into());
                }
                (Host::parse(address)?, port.strip_prefix(':').or(port.is_empty().then_some("")))
            }
            None => {
                let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
                (Host::parse(host)?, Some(port))
            }
        };
        let port = match port.ok_or(UrlError::Port)? {
            "" => default_port(plain),
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => match digits.parse::<u16>() {
                Ok(0) | Err(_) => return Err(UrlError::Port),
                Ok(port) => port,
            },
            _ => return Err(UrlError::Port),
        };
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Self { plain, host, port, target })
    }

    /// Returns the URL that a `Location` names, as RFC 3986 resolves it. Its fragment is left out.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn join(&self, location: &str) -> Result<Self, UrlError> {
        check_characters(location)?;
        let location = location.split('#').next().unwrap_or_default();
        let scheme = location.find([':', '/', '?']).filter(|at| location[*at..].starts_with(':'));
        if scheme.is_some() {
            return Self::parse(location);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("{}:{location}", self.scheme()));
        }
        let (path, query) =
            self.target.split_once('?').map_or((&*self.target, None), |(path, query)| (path, Some(query)));
        let (new_path, new_query) =
            location.split_once('?').map_or((location, None), |(path, query)| (path, Some(query)));
        let (path, query) = match new_path {
            "" => (path.to_owned(), new_query.or(query)),
            absolute if absolute.starts_with('/') => (without_dots(absolute), new_query),
            relative => {
                let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
                (without_dots(&format!("{folder}{relative}")), new_query)
            }
        };
        let target = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
        Ok(Self { target, ..self.clone() })
    }

    /// Returns `https` or `http`.
    pub fn scheme(&self) -> &'static str {
        if self.plain { "http" } else { "https" }
    }

    /// Returns host and port as the header `Host` has them: without the scheme's own port.
    pub fn authority(&self) -> String {
        if self.port == default_port(self.plain) {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Returns `true` if both have the same scheme, host and port.
    pub fn same_origin(&self, other: &Self) -> bool {
        (self.plain, &self.host, self.port) == (other.plain, &other.host, other.port)
    }

    /// Writes scheme, host and port: what a message may show.
    pub fn origin(&self) -> impl fmt::Display + '_ {
        format!("{}://{}:{}", self.scheme(), self.host, self.port)
    }
}

/// Returns the port of a scheme.
pub(crate) fn default_port(plain: bool) -> u16 {
    if plain { 80 } else { 443 }
}

fn check_characters(text: &str) -> Result<(), UrlError> {
    if text.len() > MAX_URL {
        return Err(UrlError::Long);
    }
    if text.bytes().any(|b| !b.is_ascii_graphic() || b == b'\\') {
        return Err(UrlError::Characters);
    }
    Ok(())
}

/// Resolves `.` and `..` in an absolute path.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    for (place, segment) in segments.iter().enumerate() {
        let is_last = place + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}
