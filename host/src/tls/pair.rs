//! A certificate and its key.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{Span, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

/// Life of a self-made certificate, in days.
const DAYS: i64 = 90;

/// Age at which a self-made certificate is replaced.
pub(crate) const RENEW_AFTER: Duration = Duration::from_secs(60 * 24 * 3600);

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// It is not a certificate, or not a key, or the two do not fit together.
    #[error("{what} cannot be used")]
    Invalid {
        /// Which.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
}

impl CertificateError {
    pub(crate) fn invalid(what: String, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Invalid { what, source: source.into() }
    }
}

/// A certificate, followed by those of intermediate authorities, and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pair {
    /// Reads the two files. They may be replaced meanwhile, so they may not fit together.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        Ok(Self { certificate: read(certificate)?, key: read(key)? })
    }

    /// Makes an authority of this name, and a certificate of it for these hosts. Returns the authority's certificate,
    /// too. Its key is dropped.
    pub(crate) fn make(hosts: &[String], authority: &str, now: Timestamp) -> Result<(Self, String), CertificateError> {
        let date = |days: i64| {
            let then = now.checked_add(Span::new().hours(days * 24)).unwrap_or(now);
            let date = then.to_zoned(TimeZone::UTC).date();
            let [month, day] = [date.month(), date.day()].map(|part| u8::try_from(part).unwrap_or(1));
            rcgen::date_time_ymd(date.year().into(), month, day)
        };
        let params = |hosts: &[String]| -> Result<CertificateParams, rcgen::Error> {
            let mut params = CertificateParams::new(hosts)?;
            // Clocks differ.
            (params.not_before, params.not_after) = (date(-1), date(DAYS));
            Ok(params)
        };
        let mut issuer = params(&[])?;
        issuer.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        issuer.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        issuer.distinguished_name.push(DnType::CommonName, authority);
        let issuer_key = KeyPair::generate()?;
        let authorities = issuer.self_signed(&issuer_key)?.pem();
        let issuer = Issuer::new(issuer, issuer_key);
        let mut leaf = params(hosts)?;
        leaf.distinguished_name.push(DnType::CommonName, "pilothouse");
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?.pem();
        Ok((Self { certificate, key: key.serialize_pem() }, authorities))
    }

    /// Returns what can be served. `of` names its server in errors.
    pub(crate) fn certified(&self, of: &str) -> Result<CertifiedKey, CertificateError> {
        let chain = certificates(&self.certificate)
            .map_err(|error| CertificateError::invalid(format!("the certificate of {of}"), error))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|error| CertificateError::invalid(format!("the key of the certificate of {of}"), error))?;
        CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
            .map_err(|error| CertificateError::invalid(format!("the certificate of {of}, with its key,"), error))
    }
}

fn read(path: &Path) -> Result<String, CertificateError> {
    fs::read_to_string(path).map_err(|error| CertificateError::Read(path.to_owned(), error))
}

/// Returns the certificates in a PEM text. There is at least one.
pub(crate) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Box<dyn Error + Send + Sync>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>()?;
    if all.is_empty() { Err("it has no CERTIFICATE in PEM".into()) } else { Ok(all) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;
    use crate::tls::Serving;

    fn made(now: Timestamp) -> Pair {
        Pair::make(&["pilothouse.system.svc".to_owned(), "127.0.0.1".to_owned()], "test", now).unwrap().0
    }

    #[test]
    fn certificate_and_key_must_fit_together() {
        let [one, other] = [(); 2].map(|()| made(Timestamp::now()));
        assert!(one.certified("webhooks").is_ok());
        let mixed = Pair { key: other.key, ..one.clone() };
        let error = mixed.certified("webhooks").unwrap_err().to_string();
        assert_eq!(error, "the certificate of webhooks, with its key, cannot be used");
        let none = Pair { certificate: "text".to_owned(), ..one };
        assert_eq!(none.certified("webhooks").unwrap_err().to_string(), "the certificate of webhooks cannot be used");
    }

    #[test]
    fn a_self_made_certificate_ends_after_ninety_days() {
        let serving = Serving::default();
        assert_eq!(serving.expires(), None);
        let made_at = Timestamp::from_second(1_800_000_000).unwrap();
        serving.serve(made(made_at).certified("webhooks").unwrap());
        let day = made_at.checked_add(Span::new().hours(90 * 24)).unwrap().to_zoned(TimeZone::UTC).date();
        assert_eq!(serving.expires().unwrap().to_zoned(TimeZone::UTC).date(), day);
    }
}
