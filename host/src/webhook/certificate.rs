//! The serving certificate, and the certificates of the authorities that the API server must trust.
//!
//! A new certificate is served only after the API server trusts its authority, and the old authority stays trusted. So
//! no call fails while certificates change.
//!
//! | source | renewed |
//! |---|---|
//! | files, such as those of cert-manager | when their content changes |
//! | self-made, in a Secret that all hosts share | after two thirds of its life |
//! | self-made, in memory | after two thirds of its life, and at every start |
//!
//! The key of a self-made authority is dropped once it has signed one certificate.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use pilothouse_core::key::TypeMeta;
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::{
    acting::Acting,
    causes::with_causes,
    cluster::{Cluster, WriteOptions},
    tls::{CertificateError, LOOK, LOOK_AT_FILES, Pair, RENEW_AFTER, Serving, certificates},
    writer::Endpoint,
};

/// How long the API server trusts a self-made authority before its certificate is served. Other hosts look at the
/// Secret several times.
const SETTLE_MADE: Duration = Duration::from_secs(600);

/// How long the API server trusts an authority from a file before its certificate is served: it hears of a changed
/// configuration within a second.
const SETTLE_FILES: Duration = Duration::from_secs(3);

/// How long a new certificate waits until the configurations have its authority.
const CONFIRM_WITHIN: Duration = Duration::from_secs(60);

/// The server's name in errors.
const SERVER: &str = "webhooks";

/// The field manager of the Secret.
const MANAGER: &str = "pilothouse";

/// The annotation with a Secret's DNS names and times.
const STATE: &str = "pilothouse.dev/webhook-certificates";

/// Where the certificates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// Files in PEM.
    Files {
        /// The certificate, followed by those of intermediate authorities.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
        /// The authorities that the API server must trust.
        authorities: PathBuf,
    },
    /// Made by the host.
    SelfMade {
        /// The DNS names and addresses at which the API server reaches the host.
        hosts: Vec<String>,
        /// Namespace and name of the Secret that keeps them. `None` keeps them in memory.
        secret: Option<(String, String)>,
    },
}

/// A certificate with its key, and its authorities in PEM.
#[derive(Clone, PartialEq, Eq)]
struct Keys {
    pair: Pair,
    authorities: String,
}

impl Keys {
    /// Reads the three files. They may be replaced meanwhile, so they may not fit together.
    fn read(certificate: &Path, key: &Path, authorities: &Path) -> Result<Self, CertificateError> {
        let pair = Pair::read(certificate, key)?;
        let authorities =
            fs::read_to_string(authorities).map_err(|error| CertificateError::Read(authorities.to_owned(), error))?;
        Ok(Self { pair, authorities })
    }

    /// Makes an authority, and a certificate of it for these hosts.
    fn make(hosts: &[String], now: Timestamp) -> Result<Self, CertificateError> {
        let (pair, authorities) = Pair::make(hosts, "pilothouse webhooks", now)?;
        Ok(Self { pair, authorities })
    }

    fn certified(&self) -> Result<CertifiedKey, CertificateError> {
        let key = self.pair.certified(SERVER)?;
        certificates(&self.authorities).map_err(|error| {
            CertificateError::invalid(format!("the authority of the certificate of {SERVER}"), error)
        })?;
        Ok(key)
    }
}

/// Joins PEM texts, each once.
fn joined<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = Vec::new();
    for text in texts.into_iter().map(str::trim) {
        if !text.is_empty() && !all.iter().any(|before| before.contains(text)) {
            all.push(text);
        }
    }
    all.join("\n") + "\n"
}

impl Certificates {
    /// Serves the certificates that are there at once.
    pub(super) fn open(
        &self,
        serving: &Arc<Serving>,
        endpoint: &Endpoint,
        cluster: &Cluster,
        acting: &Acting,
    ) -> anyhow::Result<Source> {
        let current = match self {
            Self::Files { certificate, key, authorities } => {
                let keys = Keys::read(certificate, key, authorities)?;
                serving.serve(keys.certified()?);
                endpoint.trust(BASE64_STANDARD.encode(&keys.authorities));
                Some(keys)
            }
            Self::SelfMade { hosts, .. } => {
                if hosts.is_empty() {
                    anyhow::bail!("a certificate of webhooks needs a host name");
                }
                // Fails early if a name is not valid.
                Keys::make(hosts, Timestamp::now())
                    .with_context(|| format!("the host names {} of webhooks cannot be used", hosts.join(", ")))?;
                None
            }
        };
        Ok(Source {
            certificates: self.clone(),
            current,
            serving: serving.clone(),
            endpoint: endpoint.clone(),
            cluster: cluster.clone(),
            acting: acting.clone(),
        })
    }
}

/// Renews the certificates.
pub(super) struct Source {
    certificates: Certificates,
    current: Option<Keys>,
    serving: Arc<Serving>,
    endpoint: Endpoint,
    cluster: Cluster,
    acting: Acting,
}

impl Source {
    /// Never returns.
    pub(super) async fn run(mut self) {
        match self.certificates.clone() {
            Certificates::Files { certificate, key, authorities } => loop {
                tokio::time::sleep(LOOK_AT_FILES).await;
                match Keys::read(&certificate, &key, &authorities) {
                    Ok(keys) if self.current.as_ref() != Some(&keys) => self.replace(keys).await,
                    Ok(_) => {}
                    Err(error) => warn!(error = with_causes(&error), "the old certificate of webhooks is served on"),
                }
            },
            Certificates::SelfMade { hosts, secret } => {
                let mut stored = None;
                loop {
                    let looked = match &secret {
                        Some((namespace, name)) => self.look_at_secret(namespace, name, &hosts).await,
                        None => Stored::step(stored.as_ref(), &hosts, Timestamp::now())
                            .map(|new| new.or_else(|| stored.clone()))
                            .map_err(anyhow::Error::from),
                    };
                    match looked {
                        Ok(Some(now)) => {
                            self.adopt(&now);
                            stored = Some(now);
                        }
                        Ok(None) => {}
                        Err(error) => {
                            warn!(error = with_causes(error.as_ref()), "cannot renew the certificate of webhooks");
                        }
                    }
                    // Until there is a certificate, no webhook is served.
                    let pause = if stored.is_some() { LOOK } else { Duration::from_secs(2) };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Replaces certificates from files.
    async fn replace(&mut self, keys: Keys) {
        let certified = match keys.certified() {
            Ok(certified) => certified,
            Err(error) => {
                let error = with_causes(&error);
                return warn!(error, "the old certificate of webhooks is served on");
            }
        };
        let before = self.current.as_ref().map_or("", |current| &current.authorities);
        if before != keys.authorities {
            let both = joined([before, &keys.authorities]);
            self.trust_and_wait(&both).await;
        }
        self.serving.serve(certified);
        info!("serving a new certificate of webhooks");
        if before != keys.authorities {
            tokio::time::sleep(SETTLE_FILES).await;
            self.endpoint.trust(BASE64_STANDARD.encode(&keys.authorities));
        }
        self.current = Some(keys);
    }

    /// Waits until the API server trusts these authorities.
    async fn trust_and_wait(&self, authorities: &str) {
        let bundle: Arc<str> = BASE64_STANDARD.encode(authorities).into();
        self.endpoint.trust(bundle.clone());
        let mut confirmed = self.endpoint.confirmed();
        let confirmed = confirmed.wait_for(|confirmed| confirmed.as_ref() == Some(&bundle));
        if tokio::time::timeout(CONFIRM_WITHIN, confirmed).await.is_err() {
            warn!("the webhook configurations do not have the new certificate's authority yet");
        }
        tokio::time::sleep(SETTLE_FILES).await;
    }

    /// Serves what is stored.
    fn adopt(&mut self, stored: &Stored) {
        self.endpoint.trust(BASE64_STANDARD.encode(&stored.trusted));
        if self.current.as_ref() == Some(&stored.now) {
            return;
        }
        match stored.now.certified() {
            Ok(certified) => {
                self.serving.serve(certified);
                info!("serving a new certificate of webhooks");
                self.current = Some(stored.now.clone());
            }
            Err(error) => warn!(error = with_causes(&error), "cannot serve webhooks"),
        }
    }

    /// Reads the Secret, and renews what it keeps. Returns `None` if another host was faster.
    async fn look_at_secret(&self, namespace: &str, name: &str, hosts: &[String]) -> anyhow::Result<Option<Stored>> {
        let of = TypeMeta::new("v1", "Secret");
        let live = match self.cluster.get(&of, Some(namespace), name).await {
            Ok(body) => Some(serde_json::from_slice::<Value>(&body).context("the Secret is not valid JSON")?),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error).with_context(|| format!("cannot read the Secret {namespace}/{name}")),
        };
        let stored = live.as_ref().and_then(Stored::of_secret);
        if live.as_ref().is_some_and(|live| live["metadata"]["annotations"][STATE].is_null()) {
            anyhow::bail!(
                "the Secret {namespace}/{name} was not made by a host: name another one with --webhook-secret, or delete it"
            );
        }
        let Some(new) = Stored::step(stored.as_ref(), hosts, Timestamp::now())? else { return Ok(stored) };
        let Some(_call) = self.acting.begin() else { return Ok(stored) };
        let body = new.to_secret(namespace, name, live.as_ref()).to_string().into_bytes();
        let written = match live {
            None => self.cluster.create(&of, Some(namespace), body, MANAGER).await,
            Some(_) => {
                let options = WriteOptions { manager: MANAGER, subresource: None };
                self.cluster.update(&of, Some(namespace), name, body, options).await
            }
        };
        match written {
            Ok(_) => Ok(Some(new)),
            // The next look shows what the other host wrote.
            Err(error) if error.is_conflict() => Ok(stored),
            Err(error) => Err(error).with_context(|| format!("cannot write the Secret {namespace}/{name}")),
        }
    }
}

/// Self-made certificates.
#[derive(Clone, PartialEq, Eq)]
struct Stored {
    now: Keys,
    /// When `now` was made.
    made: Timestamp,
    /// The next ones, which are trusted and not served yet.
    next: Option<(Keys, Timestamp)>,
    /// The authorities of the last, this and the next certificate.
    trusted: String,
    hosts: Vec<String>,
}

impl Stored {
    /// Returns what is to be stored instead. `None` if all is well.
    fn step(stored: Option<&Self>, hosts: &[String], now: Timestamp) -> Result<Option<Self>, CertificateError> {
        let since = |then: Timestamp| Duration::try_from(now.duration_since(then)).unwrap_or_default();
        let Some(stored) = stored else {
            let keys = Keys::make(hosts, now)?;
            let trusted = keys.authorities.clone();
            return Ok(Some(Self { now: keys, made: now, next: None, trusted, hosts: hosts.to_vec() }));
        };
        Ok(match &stored.next {
            Some((keys, made)) if since(*made) >= SETTLE_MADE => Some(Self {
                trusted: joined([&*keys.authorities, &*stored.now.authorities]),
                now: keys.clone(),
                made: *made,
                next: None,
                hosts: stored.hosts.clone(),
            }),
            None if since(stored.made) >= RENEW_AFTER || stored.hosts != hosts => {
                let keys = Keys::make(hosts, now)?;
                let trusted = joined([&*stored.now.authorities, &*keys.authorities]);
                Some(Self { next: Some((keys, now)), trusted, hosts: hosts.to_vec(), ..stored.clone() })
            }
            _ => None,
        })
    }

    /// Reads a Secret. `None` if it is not one that a host wrote.
    fn of_secret(secret: &Value) -> Option<Self> {
        let text = |name: &str| {
            let bytes = BASE64_STANDARD.decode(secret["data"][name].as_str()?).ok()?;
            String::from_utf8(bytes).ok()
        };
        let state: Value = serde_json::from_str(secret["metadata"]["annotations"][STATE].as_str()?).ok()?;
        let time = |name: &str| Timestamp::from_second(state[name].as_i64()?).ok();
        let keys = |prefix: &str| {
            Some(Keys {
                pair: Pair { certificate: text(&format!("{prefix}tls.crt"))?, key: text(&format!("{prefix}tls.key"))? },
                authorities: text(&format!("{prefix}authority.crt"))?,
            })
        };
        let now = keys("")?;
        now.certified().ok()?;
        let next = keys("next-").zip(time("nextMade"));
        let hosts = state["hosts"].as_array()?.iter().filter_map(|host| Some(host.as_str()?.to_owned())).collect();
        Some(Self { now, made: time("made")?, next, trusted: text("ca.crt")?, hosts })
    }

    /// Writes a Secret of the type `kubernetes.io/tls`, in place of `live`.
    fn to_secret(&self, namespace: &str, name: &str, live: Option<&Value>) -> Value {
        let mut data = serde_json::Map::new();
        let mut put = |name: String, text: &str| data.insert(name, BASE64_STANDARD.encode(text).into());
        let next = self.next.as_ref().map(|(keys, _)| ("next-", keys));
        for (prefix, keys) in [("", &self.now)].into_iter().chain(next) {
            put(format!("{prefix}tls.crt"), &keys.pair.certificate);
            put(format!("{prefix}tls.key"), &keys.pair.key);
            put(format!("{prefix}authority.crt"), &keys.authorities);
        }
        put("ca.crt".to_owned(), &self.trusted);
        let state = json!({
            "made": self.made.as_second(),
            "nextMade": self.next.as_ref().map(|(_, made)| made.as_second()),
            "hosts": self.hosts,
        });
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": live.map_or(&json!("kubernetes.io/tls"), |live| &live["type"]),
            "metadata": {
                "namespace": namespace,
                "name": name,
                "resourceVersion": live.map(|live| &live["metadata"]["resourceVersion"]),
                "annotations": { STATE: state.to_string() },
            },
            "data": data,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    fn hosts() -> Vec<String> {
        vec!["pilothouse.system.svc".to_owned(), "127.0.0.1".to_owned()]
    }

    fn at(days: f64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + (days * 86_400.0) as i64).unwrap()
    }

    fn step(stored: &Stored, now: Timestamp) -> Option<Stored> {
        Stored::step(Some(stored), &stored.hosts, now).unwrap()
    }

    #[test]
    fn new_certificate_is_trusted_before_it_is_served_and_the_old_one_after() {
        let first = Stored::step(None, &hosts(), at(0.0)).unwrap().unwrap();
        assert!(step(&first, at(59.9)).is_none());
        let trusting = step(&first, at(60.0)).unwrap();
        assert!(trusting.now == first.now);
        let (next, _) = trusting.next.clone().unwrap();
        for keys in [&first.now, &next] {
            assert!(trusting.trusted.contains(keys.authorities.trim()));
        }
        assert!(step(&trusting, at(60.0)).is_none());
        let serving = step(&trusting, at(60.01)).unwrap();
        assert!(serving.now == next && serving.next.is_none());
        for keys in [&first.now, &next] {
            assert!(serving.trusted.contains(keys.authorities.trim()));
        }
        assert!(step(&serving, at(61.0)).is_none());
    }

    #[test]
    fn other_host_names_need_another_certificate() {
        let first = Stored::step(None, &hosts(), at(0.0)).unwrap().unwrap();
        let other = vec!["other.svc".to_owned()];
        let renewed = Stored::step(Some(&first), &other, at(0.1)).unwrap().unwrap();
        assert!(renewed.next.is_some());
        let promoted = Stored::step(Some(&renewed), &other, at(0.2)).unwrap().unwrap();
        assert!(Stored::step(Some(&promoted), &other, at(0.3)).unwrap().is_none());
    }

    #[test]
    fn secret_keeps_everything_and_another_one_is_replaced() {
        let first = Stored::step(None, &hosts(), at(0.0)).unwrap().unwrap();
        let trusting = step(&first, at(61.0)).unwrap();
        for stored in [first, trusting] {
            let secret = stored.to_secret("system", "tls", None);
            assert!(Stored::of_secret(&secret).unwrap() == stored);
        }
        assert!(Stored::of_secret(&json!({"data": {"tls.crt": "eA=="}})).is_none());
    }
}
