//! The arguments by which a host serves webhooks.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, bail, ensure};

use crate::webhook::{Address, Certificates, Options};

/// Port of the HTTPS server, as in controller-runtime.
const PORT: u16 = 9443;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Webhooks")]
pub(super) struct WebhookArgs {
    /// The Service by which the API server reaches this host, which then serves webhooks [port: 443]
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT]", conflicts_with = "webhook_url")]
    pub(super) webhook_service: Option<String>,
    /// The URL by which the API server reaches this host, for one outside the cluster
    #[arg(long, value_name = "https://HOST:PORT")]
    pub(super) webhook_url: Option<String>,
    /// Where webhooks are served [default: 0.0.0.0:9443, or the port of --webhook-url]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) webhook_address: Option<SocketAddr>,
    /// The certificate of webhooks in PEM [default: the host makes one]
    #[arg(long, value_name = "FILE", requires_all = ["webhook_key_file", "webhook_ca_file"])]
    pub(super) webhook_cert_file: Option<PathBuf>,
    /// The key of --webhook-cert-file
    #[arg(long, value_name = "FILE", requires = "webhook_cert_file")]
    pub(super) webhook_key_file: Option<PathBuf>,
    /// The authorities that the API server must trust
    #[arg(long, value_name = "FILE", requires = "webhook_cert_file")]
    pub(super) webhook_ca_file: Option<PathBuf>,
    /// The Secret that keeps certificates made by the host [default: NAMESPACE/NAME-tls of --webhook-service]
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "webhook_cert_file")]
    pub(super) webhook_secret: Option<String>,
}

impl WebhookArgs {
    /// Listens, if webhooks are to be served.
    ///
    /// # Errors
    /// If an argument is not valid, or the address is taken.
    pub(super) fn open(self) -> anyhow::Result<Option<Arc<Options>>> {
        let Some((address, hosts, port)) = self.reached()? else {
            let given =
                self.webhook_address.is_some() || self.webhook_cert_file.is_some() || self.webhook_secret.is_some();
            ensure!(
                !given,
                "no webhook is served: say how the API server reaches this host, by --webhook-service or --webhook-url"
            );
            return Ok(None);
        };
        let listening = self.webhook_address.unwrap_or(SocketAddr::new(IpAddr::from([0, 0, 0, 0]), port));
        let certificates = match (self.webhook_cert_file, self.webhook_key_file, self.webhook_ca_file) {
            (Some(certificate), Some(key), Some(authorities)) => Certificates::Files { certificate, key, authorities },
            _ => {
                let secret = match (&self.webhook_secret, &address) {
                    (Some(secret), _) => Some(pair(secret, "--webhook-secret")?),
                    (None, Address::Service { namespace, name, .. }) => {
                        Some((namespace.clone(), format!("{name}-tls")))
                    }
                    (None, Address::Url(_)) => None,
                };
                Certificates::SelfMade { hosts, secret }
            }
        };
        options(listening, address, certificates).map(Some)
    }

    /// Returns how the API server reaches the host: the address, its host names, and the port to listen on.
    fn reached(&self) -> anyhow::Result<Option<(Address, Vec<String>, u16)>> {
        if let Some(url) = &self.webhook_url {
            let uri: http::Uri = url.parse().with_context(|| format!("{url} is not a URL: see --webhook-url"))?;
            let is_plain = uri.path().trim_matches('/').is_empty() && uri.query().is_none();
            let (Some("https"), Some(host), true) = (uri.scheme_str(), uri.host(), is_plain) else {
                bail!("{url} is not of the form https://HOST:PORT: see --webhook-url");
            };
            let host = host.trim_matches(['[', ']']).to_owned();
            let address = Address::Url(url.trim_end_matches('/').to_owned());
            return Ok(Some((address, vec![host], uri.port_u16().unwrap_or(443))));
        }
        let Some(service) = &self.webhook_service else { return Ok(None) };
        let (service, port) = match service.split_once(':') {
            Some((service, port)) => {
                (service, port.parse().with_context(|| format!("{port} is not a port: see --webhook-service"))?)
            }
            None => (&**service, 443),
        };
        let (namespace, name) = pair(service, "--webhook-service")?;
        let hosts = vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")];
        Ok(Some((Address::Service { namespace, name, port }, hosts, PORT)))
    }
}

/// Listens at `listening`.
///
/// # Errors
/// If the address is taken.
fn options(listening: SocketAddr, address: Address, certificates: Certificates) -> anyhow::Result<Arc<Options>> {
    let listener = std::net::TcpListener::bind(listening).with_context(|| {
        format!("cannot serve webhooks on {listening}: choose another address with --webhook-address")
    })?;
    Ok(Arc::new(Options { listener, address, certificates }))
}

/// Serves webhooks to an API server on this machine.
///
/// # Errors
/// If there is no free port.
pub(super) fn local() -> anyhow::Result<Arc<Options>> {
    let listener =
        std::net::TcpListener::bind("127.0.0.1:0").context("cannot serve webhooks: there is no free port")?;
    let address = Address::Url(format!("https://{}", listener.local_addr()?));
    let certificates = Certificates::SelfMade { hosts: vec!["127.0.0.1".to_owned()], secret: None };
    Ok(Arc::new(Options { listener, address, certificates }))
}

fn pair(text: &str, argument: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => bail!("{text} is not of the form NAMESPACE/NAME: see {argument}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(args: &WebhookArgs) -> Result<Option<(Address, Vec<String>, u16)>, String> {
        args.reached().map_err(|error| error.to_string())
    }

    #[test]
    fn url_and_service_name_the_host_as_the_api_server_reaches_it() {
        let url = |url: &str| WebhookArgs { webhook_url: Some(url.to_owned()), ..WebhookArgs::default() };
        let expected = (Address::Url("https://10.0.0.1:9000".to_owned()), vec!["10.0.0.1".to_owned()], 9000);
        assert_eq!(reached(&url("https://10.0.0.1:9000/")), Ok(Some(expected)));
        for wrong in ["http://a:1", "https://a/path", "a:1"] {
            assert!(reached(&url(wrong)).is_err(), "{wrong}");
        }
        let service = |text: &str| WebhookArgs { webhook_service: Some(text.to_owned()), ..WebhookArgs::default() };
        let address = Address::Service { namespace: "system".to_owned(), name: "hooks".to_owned(), port: 443 };
        let hosts = vec!["hooks.system.svc".to_owned(), "hooks.system.svc.cluster.local".to_owned()];
        assert_eq!(reached(&service("system/hooks")), Ok(Some((address, hosts, 9443))));
        assert_eq!(
            reached(&service("hooks")),
            Err("hooks is not of the form NAMESPACE/NAME: see --webhook-service".to_owned())
        );
        assert_eq!(reached(&WebhookArgs::default()), Ok(None));
    }

    #[test]
    fn settings_without_an_address_are_refused() {
        let secret = WebhookArgs { webhook_secret: Some("a/b".to_owned()), ..WebhookArgs::default() };
        assert!(secret.open().is_err_and(|error| error.to_string().contains("--webhook-service")));
        assert!(WebhookArgs::default().open().is_ok_and(|options| options.is_none()));
    }
}
