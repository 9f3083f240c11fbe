//! The service account as which a plugin's requests are sent.

use std::{fmt, num::NonZeroU32};

use serde::{Deserialize, Deserializer, de::Error as _};

/// Life of a token in seconds, if the file names none. client-go asks for the same.
const TOKEN_SECONDS: NonZeroU32 = NonZeroU32::new(3600).expect("it is not 0");

/// The API server makes no token for less than 10 minutes. One that is valid for longer than a day is hardly better than a password.
const TOKEN_BOUNDS: std::ops::RangeInclusive<u32> = 600..=86_400;

/// Bytes of a namespace's name.
const MAX_NAMESPACE: usize = 63;

/// Bytes of an account's name.
const MAX_NAME: usize = 253;

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ServiceAccount {
    /// Returns the account's name as a user.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// Returns the groups that every service account of its namespace has.
    pub fn groups(&self) -> [String; 3] {
        let own = format!("system:serviceaccounts:{}", self.namespace);
        ["system:serviceaccounts".to_owned(), own, "system:authenticated".to_owned()]
    }

    fn check(self) -> Result<Self, String> {
        let is_label = |label: &str| {
            let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !label.is_empty() && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
        };
        if !is_label(&self.namespace) || self.namespace.len() > MAX_NAMESPACE {
            return Err(format!("{:?} is not the name of a namespace", self.namespace));
        }
        if !self.name.split('.').all(is_label) || self.name.len() > MAX_NAME {
            return Err(format!("{:?} is not the name of a service account", self.name));
        }
        Ok(self)
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How the host proves to be the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Each request has the host's own credentials, and names the account in `Impersonate-User`.
    Impersonation,
    /// Each request has a token of the account, which the host requests.
    Token {
        /// The life of a token that is asked for.
        seconds: NonZeroU32,
    },
}

/// The member `serviceAccount` of the administrator's file: `NAMESPACE/NAME`, or
/// `{ namespace: NAMESPACE, name: NAME, by: token, expirationSeconds: 3600 }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub struct ActAs {
    /// The account.
    pub account: ServiceAccount,
    /// How the host proves to be the account.
    pub by: By,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "write NAMESPACE/NAME, or { namespace: NAMESPACE, name: NAME, by: token }")]
enum Text {
    Short(String),
    Long(Long),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Long {
    namespace: String,
    name: String,
    #[serde(default)]
    by: Way,
    #[serde(default, deserialize_with = "seconds")]
    expiration_seconds: Option<NonZeroU32>,
}

/// Reads a number that is present. Null is none.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroU32>, D::Error> {
    NonZeroU32::deserialize(deserializer).map(Some)
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    #[default]
    Impersonation,
    Token,
}

impl TryFrom<Text> for ActAs {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let (namespace, name, by) = match text {
            Text::Short(text) => {
                let Some((namespace, name)) = text.split_once('/') else {
                    return Err(format!("serviceAccount {text:?} has no `/`: write NAMESPACE/NAME"));
                };
                (namespace.to_owned(), name.to_owned(), By::Impersonation)
            }
            Text::Long(Long { namespace, name, by, expiration_seconds }) => {
                let by = match (by, expiration_seconds) {
                    (Way::Impersonation, None) => By::Impersonation,
                    (Way::Impersonation, Some(_)) => {
                        return Err("serviceAccount: expirationSeconds is for `by: token` only".to_owned());
                    }
                    (Way::Token, seconds) => By::Token { seconds: seconds.unwrap_or(TOKEN_SECONDS) },
                };
                (namespace, name, by)
            }
        };
        if let By::Token { seconds } = by
            && !TOKEN_BOUNDS.contains(&seconds.get())
        {
            let (least, most) = (TOKEN_BOUNDS.start(), TOKEN_BOUNDS.end());
            return Err(format!("serviceAccount: expirationSeconds is {seconds}, and must be {least} to {most}"));
        }
        let account = ServiceAccount { namespace, name }.check().map_err(|why| format!("serviceAccount: {why}"))?;
        Ok(Self { account, by })
    }
}

impl fmt::Display for ActAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            By::Impersonation => write!(f, "{} by impersonation", self.account),
            By::Token { .. } => write!(f, "{} by token", self.account),
        }
    }
}

/// Reads the member. Null is rejected: one reader would take it for the host's own account, another for a mistake.
pub(super) fn member<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ActAs>, D::Error> {
    let Some(act_as) = Option::deserialize(deserializer)? else {
        return Err(D::Error::custom("serviceAccount is null: leave the key out to act as the host"));
    };
    Ok(Some(act_as))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;
    use crate::grant::AdminFile;

    fn read(member: &str) -> Result<Option<ActAs>, String> {
        let file: Result<AdminFile, _> = serde_saphyr::from_str(&format!("serviceAccount: {member}"));
        file.map(|file| file.service_account).map_err(|error| error.to_string())
    }

    #[test]
    fn an_account_is_named_shortly_or_with_how_it_is_proved() {
        let account = ServiceAccount { namespace: "orchard".to_owned(), name: "apples.v1".to_owned() };
        let act_as = |by| Ok(Some(ActAs { account: account.clone(), by }));
        let token = |seconds| By::Token { seconds: NonZeroU32::new(seconds).unwrap() };
        assert_eq!(read("orchard/apples.v1"), act_as(By::Impersonation));
        assert_eq!(read("{namespace: orchard, name: apples.v1}"), act_as(By::Impersonation));
        assert_eq!(read("{namespace: orchard, name: apples.v1, by: token}"), act_as(token(3600)));
        let given = read("{namespace: orchard, name: apples.v1, by: token, expirationSeconds: 600}");
        assert_eq!(given, act_as(token(600)));
        assert_eq!(account.user(), "system:serviceaccount:orchard:apples.v1");
    }

    #[test]
    fn a_member_that_names_no_account_is_refused() {
        for (member, why) in [
            ("null", "leave the key out"),
            ("", "leave the key out"),
            ("apples", "has no `/`: write NAMESPACE/NAME"),
            ("/apples", "\"\" is not the name of a namespace"),
            ("orchard/", "\"\" is not the name of a service account"),
            ("orchard/a/b", "\"a/b\" is not the name of a service account"),
            ("'orchard/a:b'", "\"a:b\" is not the name of a service account"),
            ("Orchard/a", "\"Orchard\" is not the name of a namespace"),
            ("{}", "write NAMESPACE/NAME, or"),
            ("{namespace: orchard}", "write NAMESPACE/NAME, or"),
            ("{namespace: a, name: b, by: magic}", "write NAMESPACE/NAME, or"),
            ("{namespace: a, name: b, expirationSeconds: 600}", "for `by: token` only"),
            ("{namespace: a, name: b, by: token, expirationSeconds: 599}", "must be 600 to 86400"),
            ("{namespace: a, name: b, by: token, expirationSeconds: 86401}", "must be 600 to 86400"),
        ] {
            let error = read(member).expect_err(member);
            assert!(error.contains(why), "{member}: {error}");
        }
    }
}
