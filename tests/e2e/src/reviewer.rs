//! A webhook on this machine: an HTTPS server with a certificate of its own authority.
//!
//! It has each answer from a test, so that it can be wrong in every way.

use std::{io, net::Ipv4Addr, sync::Arc};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// How the webhook answers.
pub enum Answer {
    /// With the `response` of a review, which gets the request's uid.
    Response(Value),
    /// With a code and a body.
    Body(u16, String),
    /// By closing the connection.
    Close,
    /// Never.
    Silence,
}

type Answers = dyn Fn(&Value) -> Answer + Send + Sync;

/// A running webhook. Dropping it stops it.
pub struct Reviewer {
    port: u16,
    ca: Value,
    accepting: JoinHandle<()>,
}

impl Reviewer {
    /// Starts a webhook with a certificate for `name`. `answers` gets the `request` of each review.
    ///
    /// # Errors
    /// No port is free, or no certificate can be made.
    pub async fn start(name: &str, answers: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> Result<Self> {
        let (tls, ca) = certificate(name).context("cannot make a certificate")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen")?;
        let port = listener.local_addr().context("a listener has an address")?.port();
        let answers: Arc<Answers> = Arc::new(answers);
        let accepting = tokio::spawn(async move {
            // They end with this task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (tls, answers) = (tls.clone(), answers.clone());
                connections.spawn(async move {
                    // A client that does not trust the certificate, or goes away, is expected.
                    if let Ok(stream) = tls.accept(stream).await {
                        drop(serve(stream, &*answers).await);
                    }
                });
            }
        });
        Ok(Self { port, ca, accepting })
    }

    /// Its port at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The `clientConfig` with its address and its authority.
    pub fn client_config(&self) -> Value {
        json!({"url": format!("https://127.0.0.1:{}/review", self.port), "caBundle": self.ca})
    }
}

impl Drop for Reviewer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Returns what serves TLS with a new certificate for `name`, and the CA bundle of its authority.
pub(crate) fn certificate(name: &str) -> Result<(TlsAcceptor, Value)> {
    let mut authority = CertificateParams::new(Vec::new())?;
    // Go says more about an authority that is not the issuer and has its name.
    authority.distinguished_name.push(DnType::CommonName, format!("the authority of {name}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = serde_json::to_value(ByteString(authority.self_signed(&key)?.pem().into_bytes()))?;
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![name.to_owned()])?.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), ca))
}

/// Answers the requests of one connection, one after another.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answers: &Answers) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        let mut body = bytes.split_off(head);
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let length: usize = length.unwrap_or_default();
        while body.len() < length {
            if stream.read_buf(&mut body).await? == 0 {
                return Ok(());
            }
        }
        bytes = body.split_off(length);
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (code, body) = match answers(&review["request"]) {
            Answer::Response(mut response) => {
                response["uid"] = review["request"]["uid"].clone();
                let answer = json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response});
                (200, answer.to_string())
            }
            Answer::Body(code, body) => (code, body),
            Answer::Close => return Ok(()),
            Answer::Silence => std::future::pending().await,
        };
        let of = if code == 200 { "application/json" } else { "text/plain" };
        let length = body.len();
        let head = format!("HTTP/1.1 {code} Status\r\ncontent-type: {of}\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await?;
    }
}
