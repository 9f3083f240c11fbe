//! The arguments by which a host shows itself.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::PathBuf,
    str::FromStr,
};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::app::{Certificates, Endpoints, Metrics, machine};

/// The default ports, as in controller-runtime and kubebuilder.
const METRICS: u16 = 8443;
const PROBES: u16 = 8081;

/// Names of the files in the directory of `--metrics-cert-dir`, as in a Secret of the type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Endpoints")]
pub(super) struct EndpointArgs {
    /// Where metrics, /debug and everything else is served; 0 for nowhere [default: :8443]
    ///
    /// Over TLS, and to those whom RBAC lets: the API server is asked about each bearer token. On a loopback address
    /// everything is plain and nobody is asked. Port 0 takes a free one; the log says which.
    #[arg(long, value_name = "[HOST]:PORT", alias = "metrics-bind-address")]
    pub(super) metrics_address: Option<Address>,
    /// Where /healthz, /livez and /readyz are served, plain and without details; 0 for nowhere [default: :8081]
    #[arg(long, value_name = "[HOST]:PORT", alias = "health-probe-bind-address")]
    pub(super) health_probe_address: Option<Address>,
    /// Serve --metrics-address over TLS to those whom RBAC lets [default: true, and false on a loopback address]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) metrics_secure: Option<bool>,
    /// A directory with tls.crt and tls.key in PEM, read again when they change [default: the host makes a certificate]
    #[arg(long, value_name = "DIR", alias = "metrics-cert-path")]
    pub(super) metrics_cert_dir: Option<PathBuf>,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Address {
    /// Nowhere.
    None,
    /// On all addresses of the machine, of IPv4 and IPv6.
    Everywhere(u16),
    At(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self::None);
        }
        let everywhere = text.strip_prefix(':').and_then(|port| port.parse().ok()).map(Self::Everywhere);
        everywhere
            .or_else(|| text.parse().ok().map(Self::At))
            .ok_or_else(|| format!("{text} is not an address such as :8443, 127.0.0.1:8443 or [::1]:8443, and not 0"))
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("0"),
            Self::Everywhere(port) => write!(f, ":{port}"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl Address {
    /// `true` if only this machine reaches it.
    fn is_loopback(self) -> bool {
        matches!(self, Self::At(address) if address.ip().is_loopback())
    }

    /// Listens, unless the address is nowhere. `argument` is named in errors.
    fn listen(self, argument: &str) -> anyhow::Result<Option<TcpListener>> {
        let listening = match self {
            Self::None => return Ok(None),
            // Linux takes connections of IPv4 there, too. A machine without IPv6 refuses.
            Self::Everywhere(port) => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))),
            Self::At(address) => TcpListener::bind(address),
        };
        listening.map(Some).with_context(|| format!("cannot listen on {self}: choose another address with {argument}"))
    }
}

/// Where the host shows itself, as it is configured.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    metrics: Address,
    probes: Address,
    is_secure: bool,
    certificates: Option<PathBuf>,
}

impl EndpointArgs {
    /// Returns the settings by arguments, then those of the file, then defaults.
    ///
    /// # Errors
    /// If there is a certificate and nothing that serves it.
    pub(super) fn or(self, file: Self) -> anyhow::Result<Settings> {
        let metrics = self.metrics_address.or(file.metrics_address).unwrap_or(Address::Everywhere(METRICS));
        let settings = Settings {
            metrics,
            probes: self.health_probe_address.or(file.health_probe_address).unwrap_or(Address::Everywhere(PROBES)),
            is_secure: self.metrics_secure.or(file.metrics_secure).unwrap_or(!metrics.is_loopback()),
            certificates: self.metrics_cert_dir.or(file.metrics_cert_dir),
        };
        ensure!(
            settings.certificates.is_none() || settings.is_secure && metrics != Address::None,
            "no certificate is served on {metrics}: leave out --metrics-cert-dir, or add --metrics-secure=true"
        );
        Ok(settings)
    }
}

impl Settings {
    /// Listens.
    ///
    /// # Errors
    /// If an address is taken.
    pub(super) fn open(self) -> anyhow::Result<Endpoints> {
        let probes = self.probes.listen("--health-probe-address")?;
        let Some(listener) = self.metrics.listen("--metrics-address")? else {
            return Ok(Endpoints { metrics: None, probes });
        };
        let certificates = match (self.is_secure, self.certificates) {
            (false, _) => None,
            (true, Some(dir)) => Some(Certificates::Files { certificate: dir.join(CERTIFICATE), key: dir.join(KEY) }),
            (true, None) => Some(Certificates::SelfMade { hosts: hosts(listener.local_addr()?.ip()) }),
        };
        Ok(Endpoints { metrics: Some(Metrics { listener, certificates }), probes })
    }
}

/// Returns the names and addresses of a certificate that the host makes.
fn hosts(listening: IpAddr) -> Vec<String> {
    let mut hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    if !listening.is_unspecified() && !listening.is_loopback() {
        hosts.push(listening.to_string());
    }
    let machine = machine();
    if machine.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
        hosts.push(machine);
    }
    hosts
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    fn settings(metrics: Option<&str>, secure: Option<bool>, dir: Option<&str>) -> anyhow::Result<Settings> {
        let args = EndpointArgs {
            metrics_address: metrics.map(|address| address.parse().unwrap()),
            metrics_secure: secure,
            metrics_cert_dir: dir.map(PathBuf::from),
            ..EndpointArgs::default()
        };
        args.or(EndpointArgs::default())
    }

    #[test]
    fn an_address_is_a_port_of_all_or_of_one_or_nowhere() {
        let parsed = |text: &str| text.parse::<Address>();
        assert_eq!(parsed("0"), Ok(Address::None));
        assert_eq!(parsed(":8443"), Ok(Address::Everywhere(8443)));
        for text in ["127.0.0.1:0", "[::1]:8443"] {
            assert_eq!(parsed(text), Ok(Address::At(text.parse().unwrap())));
            assert!(parsed(text).unwrap().is_loopback());
        }
        for text in ["", "8443", "localhost:8443", ":port", ":70000", "[::1]"] {
            assert!(parsed(text).is_err_and(|error| error.starts_with(&format!("{text} is not an address"))), "{text}");
        }
    }

    #[test]
    fn all_but_loopback_is_secure_unless_it_is_set_otherwise() {
        let is_secure = |metrics, secure| settings(metrics, secure, None).unwrap().is_secure;
        assert!(is_secure(None, None) && is_secure(Some("10.0.0.1:8443"), None) && is_secure(Some("0.0.0.0:1"), None));
        assert!(!is_secure(Some("127.0.0.1:8443"), None) && !is_secure(Some("[::1]:8443"), None));
        assert!(!is_secure(None, Some(false)) && is_secure(Some("127.0.0.1:8443"), Some(true)));
    }

    #[test]
    fn a_certificate_that_nothing_serves_is_refused() {
        assert!(settings(None, None, Some("/certs")).is_ok());
        for (metrics, secure) in [(Some("127.0.0.1:0"), None), (None, Some(false)), (Some("0"), None)] {
            let error = settings(metrics, secure, Some("/certs")).unwrap_err().to_string();
            assert!(error.contains("--metrics-cert-dir"), "{error}");
        }
    }

    #[test]
    fn nothing_is_served_where_the_address_is_0() {
        let nowhere = EndpointArgs {
            metrics_address: Some(Address::None),
            health_probe_address: Some(Address::None),
            ..EndpointArgs::default()
        };
        let Endpoints { metrics, probes } = nowhere.or(EndpointArgs::default()).unwrap().open().unwrap();
        assert!(metrics.is_none() && probes.is_none());
    }

    #[test]
    fn a_port_of_all_addresses_answers_on_ipv4() {
        let listener = Address::Everywhere(0).listen("--metrics-address").unwrap().unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    }

    #[test]
    fn an_address_that_is_taken_names_its_argument() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::At(taken.local_addr().unwrap());
        let error = address.listen("--metrics-address").unwrap_err().to_string();
        assert_eq!(error, format!("cannot listen on {address}: choose another address with --metrics-address"));
    }
}
