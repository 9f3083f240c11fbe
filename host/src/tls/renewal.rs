//! Serves a certificate and renews it, for a server whose clients need no notice of a new one.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use tracing::{info, warn};

use super::{CertificateError, Pair, RENEW_AFTER, Serving};
use crate::causes::with_causes;

/// Interval between two looks at files.
pub(crate) const LOOK_AT_FILES: Duration = Duration::from_secs(2);

/// Interval between two looks at the age of a self-made certificate.
pub(crate) const LOOK: Duration = Duration::from_secs(60);

/// Where a certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// Two files in PEM, which are read again when they change.
    Files {
        /// The certificate, followed by those of intermediate authorities.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
    /// Made in memory, and again after 60 days.
    SelfMade {
        /// The DNS names and addresses of the server.
        hosts: Vec<String>,
    },
}

impl Certificates {
    /// Serves a certificate. `of` names the server in errors and in the log.
    ///
    /// # Errors
    /// If the files or the names cannot be used.
    pub(crate) fn open(self, of: &'static str, serving: Arc<Serving>) -> anyhow::Result<Renewal> {
        let mut renewal = Renewal { certificates: self, of, serving, current: None, made: Timestamp::now() };
        let pair = renewal.look(renewal.made).with_context(|| format!("cannot serve a certificate for {of}"))?;
        if let Some(pair) = pair {
            renewal.serve(pair)?;
        }
        Ok(renewal)
    }
}

/// Renews a certificate.
pub(crate) struct Renewal {
    certificates: Certificates,
    of: &'static str,
    serving: Arc<Serving>,
    current: Option<Pair>,
    /// When the current one was made or read.
    made: Timestamp,
}

impl Renewal {
    /// Renews until it is dropped.
    pub(crate) async fn run(mut self) -> Infallible {
        let pause = match &self.certificates {
            Certificates::Files { .. } => LOOK_AT_FILES,
            Certificates::SelfMade { .. } => LOOK,
        };
        let (of, mut said) = (self.of, String::new());
        loop {
            tokio::time::sleep(pause).await;
            match self.renew(Timestamp::now()) {
                Ok(true) => {
                    said.clear();
                    info!(server = of, "serving a new certificate");
                }
                Ok(false) => said.clear(),
                Err(error) => {
                    let error = with_causes(&error);
                    if said != error {
                        warn!(server = of, error, "the old certificate is served on");
                        said = error;
                    }
                }
            }
        }
    }

    /// Serves a new certificate, if there is one. The old one is served on if the new one cannot be used.
    fn renew(&mut self, now: Timestamp) -> Result<bool, CertificateError> {
        let Some(pair) = self.look(now)? else { return Ok(false) };
        self.serve(pair)?;
        self.made = now;
        Ok(true)
    }

    fn serve(&mut self, pair: Pair) -> Result<(), CertificateError> {
        self.serving.serve(pair.certified(self.of)?);
        self.current = Some(pair);
        Ok(())
    }

    /// Returns the certificate that is to be served instead of the current one.
    fn look(&self, now: Timestamp) -> Result<Option<Pair>, CertificateError> {
        match &self.certificates {
            Certificates::Files { certificate, key } => {
                let pair = Pair::read(certificate, key)?;
                Ok((self.current.as_ref() != Some(&pair)).then_some(pair))
            }
            Certificates::SelfMade { hosts } => {
                let age = Duration::try_from(now.duration_since(self.made)).unwrap_or_default();
                if self.current.is_some() && age < RENEW_AFTER {
                    return Ok(None);
                }
                Ok(Some(Pair::make(hosts, "pilothouse", now)?.0))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::fs;

    use jiff::Span;

    use super::*;

    fn hosts() -> Vec<String> {
        vec!["localhost".to_owned(), "127.0.0.1".to_owned()]
    }

    fn served(serving: &Serving) -> Vec<u8> {
        serving.0.load_full().unwrap().cert[0].to_vec()
    }

    #[test]
    fn files_that_change_are_served_and_those_that_do_not_fit_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
        let write = |pair: &Pair| {
            fs::write(&certificate, &pair.certificate).unwrap();
            fs::write(&key, &pair.key).unwrap();
        };
        let [first, second] = [(); 2].map(|()| Pair::make(&hosts(), "test", Timestamp::now()).unwrap().0);
        let files = Certificates::Files { certificate: certificate.clone(), key: key.clone() };
        let serving = Arc::<Serving>::default();
        let missing = files.clone().open("metrics", serving.clone()).err().map(|error| format!("{error:#}"));
        assert!(missing.is_some_and(|error| error.contains("tls.crt")));

        write(&first);
        let mut renewal = files.open("metrics", serving.clone()).unwrap();
        let before = served(&serving);
        let now = Timestamp::now();
        assert!(!renewal.renew(now).unwrap());
        // The certificate is new, and its key is not there yet.
        fs::write(&certificate, &second.certificate).unwrap();
        assert!(renewal.renew(now).is_err());
        assert_eq!(served(&serving), before);
        write(&second);
        assert!(renewal.renew(now).unwrap());
        assert_ne!(served(&serving), before);
        fs::remove_file(&key).unwrap();
        assert!(renewal.renew(now).is_err());
    }

    #[test]
    fn a_self_made_certificate_is_replaced_after_sixty_days() {
        let serving = Arc::<Serving>::default();
        let mut renewal = Certificates::SelfMade { hosts: hosts() }.open("metrics", serving.clone()).unwrap();
        let (before, made) = (served(&serving), renewal.made);
        let after = |days: i64| made.checked_add(Span::new().hours(days * 24)).unwrap();
        assert!(!renewal.renew(after(59)).unwrap());
        assert!(renewal.renew(after(60)).unwrap());
        assert_ne!(served(&serving), before);
        assert!(!renewal.renew(after(119)).unwrap());
        assert!(renewal.renew(after(120)).unwrap());
    }

    #[test]
    fn a_name_that_no_certificate_can_have_is_refused() {
        let certificates = Certificates::SelfMade { hosts: vec!["bücher".to_owned()] };
        assert!(certificates.open("metrics", Arc::default()).is_err());
    }
}
