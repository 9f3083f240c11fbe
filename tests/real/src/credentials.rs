//! Keys, certificates and tokens, generated for each cluster.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

/// Names of the files in the cluster's folder.
pub(crate) const SERVING_CERT: &str = "apiserver.crt";
pub(crate) const SERVING_KEY: &str = "apiserver.key";
pub(crate) const SERVICE_ACCOUNT_KEY: &str = "service-account.key";
pub(crate) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-account.pub";
pub(crate) const TOKENS: &str = "tokens.csv";
/// The authority of users' certificates.
pub(crate) const CLIENT_CA: &str = "clients.crt";
const CLIENT_CA_KEY: &str = "clients.key";
/// A second serving certificate, of an authority of its own.
pub(crate) const ROTATED_CERT: &str = "rotated.crt";
pub(crate) const ROTATED_KEY: &str = "rotated.key";

/// The name for which the server has a certificate of another authority, which tests may replace.
pub const ROTATED: &str = "rotated.example.test";

/// A name of the server.
const API: &str = "api.example.test";

/// A member of `system:masters`, with all permissions.
pub(crate) const ADMIN: &str = "admin";
/// A user without any permission.
pub(crate) const NOBODY: &str = "nobody";
/// An ordinary user to whom tests grant permissions. Unlike the administrator, it is subject to priority and fairness.
pub const OPERATOR: &str = "operator";

/// What clients need to know.
pub(crate) struct Credentials {
    ca: String,
}

impl Credentials {
    /// Generates all of them and writes the server's part to `folder`.
    pub(crate) fn write_to(folder: &Path) -> Result<Self> {
        let (ca, issuer) = authority()?;
        let names = ["127.0.0.1", "::1", "localhost", API].map(str::to_owned);
        let key = KeyPair::generate().context("cannot make a key")?;
        let serving = CertificateParams::new(names.to_vec())?
            .signed_by(&key, &issuer)
            .context("cannot make a serving certificate")?;
        let service_accounts = KeyPair::generate().context("cannot make a key")?;

        write(folder, SERVING_CERT, &serving.pem())?;
        write(folder, SERVING_KEY, &key.serialize_pem())?;
        write(folder, SERVICE_ACCOUNT_KEY, &service_accounts.serialize_pem())?;
        write(folder, SERVICE_ACCOUNT_PUBLIC_KEY, &service_accounts.public_key_pem())?;
        // The token of a user is its name: the server listens on the loopback address, and lives as long as a test.
        let tokens = format!(
            "{ADMIN},{ADMIN},{ADMIN},\"system:masters\"\n{NOBODY},{NOBODY},{NOBODY}\n{OPERATOR},{OPERATOR},{OPERATOR}\n"
        );
        write(folder, TOKENS, &tokens)?;
        let (clients, issuer) = authority()?;
        write(folder, CLIENT_CA, &clients)?;
        write(folder, CLIENT_CA_KEY, &issuer.key().serialize_pem())?;
        rotate(folder)?;
        Ok(Self { ca })
    }

    /// A kubeconfig of `user` for the server on `port`, as JSON, which is YAML too.
    pub(crate) fn kubeconfig(&self, user: &str, port: u16) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority-data": base64(self.ca.as_bytes()),
            }}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": "default"}}],
            "current-context": "test",
        })
        .to_string()
    }
}

/// Generates an authority and returns its certificate.
fn authority() -> Result<(String, Issuer<'static, KeyPair>)> {
    let key = KeyPair::generate().context("cannot make a key")?;
    let params = authority_params()?;
    let certificate = params.self_signed(&key).context("cannot make a CA")?.pem();
    Ok((certificate, Issuer::new(params, key)))
}

fn authority_params() -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, "pilothouse tests");
    Ok(params)
}

/// Writes a new certificate for [`ROTATED`], of a new authority. Returns the authority's certificate.
pub(crate) fn rotate(folder: &Path) -> Result<String> {
    let (ca, issuer) = authority()?;
    let key = KeyPair::generate().context("cannot make a key")?;
    let params = CertificateParams::new(vec![ROTATED.to_owned()])?;
    let certificate = params.signed_by(&key, &issuer).context("cannot make a serving certificate")?;
    write(folder, ROTATED_CERT, &certificate.pem())?;
    write(folder, ROTATED_KEY, &key.serialize_pem())?;
    Ok(ca)
}

/// A user's certificate and key, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Issues a certificate for a member of `system:masters`.
pub(crate) fn certificate(folder: &Path, valid: Duration) -> Result<Certificate> {
    let key = fs::read_to_string(folder.join(CLIENT_CA_KEY)).context("cannot read the authority's key")?;
    let key = KeyPair::from_pem(&key).context("cannot use the authority's key")?;
    let issuer = Issuer::new(authority_params()?, key);
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, ADMIN);
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::now();
    params.not_before = (now - Duration::from_secs(60)).into();
    params.not_after = (now + valid).into();
    let key = KeyPair::generate().context("cannot make a key")?;
    let certificate = params.signed_by(&key, &issuer).context("cannot make a certificate")?;
    Ok(Certificate { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// `k8s_openapi::ByteString` is base64 in JSON.
fn base64(bytes: &[u8]) -> serde_json::Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).expect("a byte string is always JSON")
}
