//! Keys, certificates and tokens, generated for each cluster.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::json;

/// Names of the files in the cluster's folder.
pub(crate) const SERVING_CERT: &str = "apiserver.crt";
pub(crate) const SERVING_KEY: &str = "apiserver.key";
pub(crate) const SERVICE_ACCOUNT_KEY: &str = "service-account.key";
pub(crate) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-account.pub";
pub(crate) const TOKENS: &str = "tokens.csv";

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
        let ca_key = KeyPair::generate().context("cannot make a key")?;
        let mut ca_params = CertificateParams::new(Vec::new())?;
        ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca_params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        ca_params.distinguished_name.push(DnType::CommonName, "pilothouse tests");
        let ca = ca_params.self_signed(&ca_key).context("cannot make a CA")?;
        let issuer = Issuer::new(ca_params, ca_key);

        let key = KeyPair::generate().context("cannot make a key")?;
        let serving = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?
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
        Ok(Self { ca: ca.pem() })
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

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// `k8s_openapi::ByteString` is base64 in JSON.
fn base64(bytes: &[u8]) -> serde_json::Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).expect("a byte string is always JSON")
}
