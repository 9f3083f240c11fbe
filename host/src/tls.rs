//! TLS of the servers of this process: the certificate that is served, and handshakes within a bound.
//!
//! ```text
//! files │ self-made ─► Pair ─► Serving ◄─ Acceptor ◄─ connection
//!                 Renewal ──────┘
//! ```
//!
//! - `pair`: a certificate and its key, read from files or made
//! - `renewal`: follows the files of a certificate, or makes a new one in time
//! - `expiry`: when a certificate ends

mod expiry;
mod pair;
mod renewal;

use std::{fmt, io, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
pub use pair::CertificateError;
pub(crate) use pair::{Pair, RENEW_AFTER, certificates};
pub use renewal::Certificates;
pub(crate) use renewal::{LOOK, LOOK_AT_FILES, Renewal};
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::debug;

use self::expiry::expiry;

/// Time for a handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

/// The certificate that a server serves. It may change while the server runs.
#[derive(Default)]
pub(crate) struct Serving(ArcSwapOption<CertifiedKey>);

impl Serving {
    pub(crate) fn serve(&self, key: CertifiedKey) {
        self.0.store(Some(Arc::new(key)));
    }

    /// Returns when the first certificate of the chain ends. `None` if none is served.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.0.load().as_ref()?.cert.iter().filter_map(|certificate| expiry(certificate)).min()
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

/// Does the handshakes of a server.
#[derive(Clone)]
pub(crate) struct Acceptor {
    tls: TlsAcceptor,
    /// The server's name in the log.
    server: &'static str,
    within: Duration,
}

impl Acceptor {
    /// Serves what `serving` has, and offers `protocols` in this order. `within` is the time for a handshake.
    ///
    /// # Errors
    /// If the cryptography of this process cannot do TLS.
    pub(crate) fn new(
        server: &'static str,
        serving: Arc<Serving>,
        protocols: &[&[u8]],
        within: Duration,
    ) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(serving);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self { tls: TlsAcceptor::from(Arc::new(config)), server, within })
    }

    /// Does the handshake of a connection. `None` if it fails or takes too long, which only the log tells.
    ///
    /// # Cancellation
    /// Closes the connection.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let Self { tls, server, within } = self;
        match tokio::time::timeout(*within, tls.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                debug!(server, %error, "a TLS handshake failed");
                None
            }
            Err(_) => {
                debug!(server, "a TLS handshake took too long");
                None
            }
        }
    }
}
