//! Finds the API server and the credentials as kubectl does.
//!
//! ```text
//! --kubeconfig │ $KUBECONFIG (a list) │ ~/.kube/config ─► context ─► cluster, user ─┐
//!                                  pod's service account ──────────────────────────┼─► Settings
//!                 proxy-url │ HTTPS_PROXY, HTTP_PROXY, NO_PROXY ────────────────────┘
//! ```
//!
//! kube reads the files and runs exec plugins. This module chooses among them like client-go, because administrators
//! try a kubeconfig with kubectl first. It sends nothing.

use std::{
    ffi::OsString,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use secrecy::ExposeSecret;

use super::connect::{ConnectError, ConnectOptions};

/// Reads an environment variable.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// How to reach one API server.
#[derive(Debug)]
pub(super) struct Settings {
    /// The configuration for kube's client.
    pub(super) config: kube::Config,
    /// Files whose content is in `config`. They may change while the host runs.
    pub(super) files: Vec<PathBuf>,
}

/// Finds the settings. Blocks, because it reads files.
///
/// # Errors
/// Something is missing or wrong. The error names the file or variable.
pub(super) fn load(options: &ConnectOptions, environment: Environment<'_>) -> Result<Settings, ConnectError> {
    let mut settings = match kubeconfig(options, environment)? {
        Some(file) => of_context(&file, options.context.as_deref(), environment)?,
        None if options.context.is_some() => return Err(ConnectError::NoKubeconfig),
        None => in_pod(environment)?,
    };
    read_token_file(&mut settings)?;
    Ok(settings)
}

/// Reads the kubeconfig. Returns `None` if there is none, or if it is empty.
fn kubeconfig(options: &ConnectOptions, environment: Environment<'_>) -> Result<Option<Kubeconfig>, ConnectError> {
    let read = |path: &Path| {
        Kubeconfig::read_from(path).map_err(|source| ConnectError::Kubeconfig { path: path.to_owned(), source })
    };
    if let Some(path) = &options.kubeconfig {
        return read(path).map(Some);
    }
    let listed = environment("KUBECONFIG").filter(|list| !list.is_empty());
    let paths: Vec<PathBuf> = match listed {
        Some(list) => std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => environment("HOME").map(|home| Path::new(&home).join(".kube/config")).into_iter().collect(),
    };
    let mut merged = Kubeconfig::default();
    // As in client-go, a missing file of the list is skipped, and the first file that sets a value wins.
    for path in paths.iter().filter(|path| path.exists()) {
        let in_file = |source| ConnectError::Kubeconfig { path: path.clone(), source };
        merged = merged.merge(read(path)?).map_err(in_file)?;
    }
    let empty = merged.contexts.is_empty() && merged.clusters.is_empty() && text(&merged.current_context).is_none();
    Ok((!empty).then_some(merged))
}

/// Returns the settings of a context of the kubeconfig.
fn of_context(
    file: &Kubeconfig,
    context: Option<&str>,
    environment: Environment<'_>,
) -> Result<Settings, ConnectError> {
    let known = || file.contexts.iter().map(|context| context.name.clone()).collect();
    let Some(name) = context.or_else(|| text(&file.current_context)) else {
        return Err(ConnectError::NoContext { known: known() });
    };
    let context = file.contexts.iter().find(|one| one.name == name).and_then(|one| one.context.as_ref());
    let context = context.ok_or_else(|| ConnectError::UnknownContext { context: name.to_owned(), known: known() })?;
    let cluster = file.clusters.iter().find(|one| one.name == context.cluster).and_then(|one| one.cluster.as_ref());
    let cluster = cluster
        .ok_or_else(|| ConnectError::UnknownCluster { context: name.to_owned(), cluster: context.cluster.clone() })?;
    let user = file.auth_infos.iter().find(|one| Some(&one.name) == context.user.as_ref());
    let user = user.and_then(|one| one.auth_info.clone()).unwrap_or_default();
    of_cluster(cluster, &context.cluster, user, environment)
}

fn of_cluster(
    cluster: &Cluster,
    name: &str,
    user: AuthInfo,
    environment: Environment<'_>,
) -> Result<Settings, ConnectError> {
    let mut files = Vec::new();
    let mut user = without_empty(user);
    let roots = roots(cluster, &mut files)?;
    let insecure = cluster.insecure_skip_tls_verify == Some(true);
    if insecure && roots.is_some() {
        return Err(ConnectError::InsecureWithRoots { cluster: name.to_owned() });
    }
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        let in_cluster = |source| ConnectError::Cluster { cluster: name.to_owned(), source };
        exec.cluster = Some(cluster.try_into().map_err(in_cluster)?);
    }
    for (data, path) in [
        (user.client_certificate_data.is_some(), &user.client_certificate),
        (user.client_key_data.is_some(), &user.client_key),
    ] {
        files.extend(path.as_ref().filter(|_| !data).map(PathBuf::from));
    }
    let certified = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    let tls = insecure || roots.is_some() || certified;
    let server = text(&cluster.server).unwrap_or_default();
    let url = server_url(server, tls)
        .ok_or_else(|| ConnectError::Server { cluster: name.to_owned(), server: server.to_owned() })?;
    let mut config = kube::Config::new(url);
    config.proxy_url = proxy(&config.cluster_url, text(&cluster.proxy_url), environment)?;
    config.accept_invalid_certs = insecure;
    config.tls_server_name = text(&cluster.tls_server_name).map(str::to_owned);
    config.disable_compression = cluster.disable_compression == Some(true);
    config.root_cert = roots;
    config.auth_info = user;
    Ok(Settings { config, files })
}

/// Returns the settings of the pod's service account.
fn in_pod(environment: Environment<'_>) -> Result<Settings, ConnectError> {
    let mut config = kube::Config::incluster().map_err(ConnectError::InPod)?;
    // `load` reads both files at once. kube would reload each file at a different time.
    let files = config.root_cert_file.take().into_iter().collect();
    config.proxy_url = proxy(&config.cluster_url, None, environment)?;
    Ok(Settings { config, files })
}

/// Reads the token from its file. As in client-go, the file wins over a token in the kubeconfig, and whitespace around
/// the token is dropped.
fn read_token_file(settings: &mut Settings) -> Result<(), ConnectError> {
    let user = &mut settings.config.auth_info;
    let Some(path) = user.token_file.take().map(PathBuf::from) else { return Ok(()) };
    match fs::read_to_string(&path) {
        Ok(token) => user.token = Some(token.trim().to_owned().into()),
        Err(_) if user.token.is_some() => {}
        Err(source) => return Err(ConnectError::File { what: "the token", path, source }),
    }
    settings.files.push(path);
    Ok(())
}

/// Returns an optional text. As in client-go, an empty text counts as absent.
fn text(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|text| !text.is_empty())
}

/// Removes empty members of a user, because some tools write `client-certificate-data: ""` for no certificate.
fn without_empty(mut user: AuthInfo) -> AuthInfo {
    let texts = [
        &mut user.username,
        &mut user.token_file,
        &mut user.client_certificate,
        &mut user.client_certificate_data,
        &mut user.client_key,
        &mut user.impersonate,
        &mut user.impersonate_uid,
    ];
    for member in texts {
        member.take_if(|text| text.is_empty());
    }
    // kube makes relative paths absolute, so an empty path has become the kubeconfig's folder with a `/` at its end.
    for path in [&mut user.token_file, &mut user.client_certificate, &mut user.client_key] {
        path.take_if(|path| path.ends_with('/'));
    }
    for secret in [&mut user.password, &mut user.token, &mut user.client_key_data] {
        secret.take_if(|secret| secret.expose_secret().is_empty());
    }
    user
}

/// Returns the certificates of the server's authorities, or `None` to use the system's.
fn roots(cluster: &Cluster, files: &mut Vec<PathBuf>) -> Result<Option<Vec<Vec<u8>>>, ConnectError> {
    let what = "the certificate authority";
    let (pem, place) = if let Some(data) = text(&cluster.certificate_authority_data) {
        let place = "certificate-authority-data".to_owned();
        let pem = STANDARD.decode(data.trim());
        (pem.map_err(|source| ConnectError::Base64 { place: place.clone(), source })?, place)
    } else if let Some(path) =
        text(&cluster.certificate_authority).filter(|path| !path.ends_with('/')).map(PathBuf::from)
    {
        let pem = fs::read(&path).map_err(|source| ConnectError::File { what, path: path.clone(), source })?;
        let place = path.display().to_string();
        files.push(path);
        (pem, place)
    } else {
        return Ok(None);
    };
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&pem).map(|der| der.map(|der| der.to_vec())).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(Some(certificates)),
        _ => Err(ConnectError::NoCertificate { place }),
    }
}

/// Parses the server's address. As in client-go, an address without a scheme means HTTPS if anything about TLS is
/// configured.
fn server_url(server: &str, tls: bool) -> Option<Uri> {
    let url: Uri = if server.contains("://") {
        server.parse().ok()?
    } else {
        format!("{}://{server}", if tls { "https" } else { "http" }).parse().ok()?
    };
    (url.host().is_some_and(|host| !host.is_empty()) && matches!(url.scheme_str(), Some("http" | "https")))
        .then_some(url)
}

/// Returns the proxy for requests to `server`. As in client-go, `proxy-url` always applies. Otherwise the variables for
/// the server's scheme apply, unless `NO_PROXY` names the server or the server is on this machine.
fn proxy(server: &Uri, configured: Option<&str>, environment: Environment<'_>) -> Result<Option<Uri>, ConnectError> {
    if let Some(url) = configured {
        return proxy_url(url, "proxy-url of the kubeconfig").map(Some);
    }
    let variable = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| {
            let value = environment(name)?.into_string().ok()?;
            (!value.is_empty()).then_some((name, value))
        })
    };
    let https = server.scheme_str() == Some("https");
    let names = if https { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let Some((name, url)) = variable(names) else { return Ok(None) };
    let direct = is_this_machine(server)
        || variable(["NO_PROXY", "no_proxy"]).is_some_and(|(_, list)| names_server(&list, server, https));
    if direct { Ok(None) } else { proxy_url(&url, name).map(Some) }
}

/// Returns the proxy that the environment names for requests to `server`, as for an API server.
pub(crate) fn environment_proxy(server: &Uri, environment: Environment<'_>) -> Result<Option<Uri>, ConnectError> {
    proxy(server, None, environment)
}

fn is_this_machine(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// `true` if an entry of `NO_PROXY` matches this server. An entry may end with a port.
fn names_server(list: &str, server: &Uri, https: bool) -> bool {
    let port = server.port_u16().unwrap_or(if https { 443 } else { 80 });
    let entries = list.split(',').filter_map(|entry| {
        let entry = entry.trim();
        let entry = entry.strip_prefix("*.").map_or_else(|| entry.to_owned(), |domain| format!(".{domain}"));
        match entry.rsplit_once(':') {
            // An IPv6 address has several colons, or brackets before the port.
            Some((host, number)) if !host.contains(':') || host.ends_with(']') => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                (number.parse() == Ok(port)).then(|| host.to_owned())
            }
            _ => Some(entry.trim_start_matches('[').trim_end_matches(']').to_owned()),
        }
    });
    let entries: Vec<String> = entries.collect();
    let proxied = "http://proxy.invalid";
    let matcher = Matcher::builder().http(proxied).https(proxied).no(entries.join(",")).build();
    matcher.intercept(server).is_none()
}

/// Parses a proxy's address. `from` names its variable or member, for errors.
fn proxy_url(url: &str, from: &str) -> Result<Uri, ConnectError> {
    let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    // With both schemes, the proxy resolves names.
    let with_scheme = with_scheme.replacen("socks5h://", "socks5://", 1);
    let parsed = with_scheme.parse::<Uri>().ok().filter(|url| url.host().is_some_and(|host| !host.is_empty()));
    parsed
        .filter(|url| matches!(url.scheme_str(), Some("http" | "https" | "socks5")))
        .ok_or_else(|| ConnectError::Proxy { url: url.to_owned(), from: from.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tempfile::TempDir;

    use super::*;

    fn environment(variables: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| Some(variables.iter().find(|(known, _)| *known == name)?.1.into())
    }

    fn config(cluster: &Value, user: &Value) -> Value {
        json!({
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": user}],
        })
    }

    fn put(folder: &TempDir, name: &str, text: &str) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file can be written");
        path
    }

    fn loaded(config: &Value) -> Result<Settings, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = ConnectOptions { kubeconfig: Some(put(&folder, "config", &config.to_string())), context: None };
        load(&options, &|_| None).map_err(|error| format!("{:#}", anyhow::Error::from(error)))
    }

    #[test]
    fn a_proxy_is_chosen_as_client_go_chooses_it() {
        let on = |server: &str, configured: Option<&str>, variables: &'static [(&'static str, &'static str)]| {
            let proxy = proxy(&server.parse().expect("an address"), configured, &environment(variables));
            proxy.map(|proxy| proxy.map(|proxy| proxy.to_string())).map_err(|error| error.to_string())
        };
        let direct = Ok(None);
        let by = |url: &str| Ok(Some(url.to_owned()));
        assert_eq!(on("https://example.com", None, &[]), direct);
        assert_eq!(on("https://example.com", None, &[("HTTPS_PROXY", "http://p:1")]), by("http://p:1/"));
        assert_eq!(on("https://example.com", None, &[("https_proxy", "p:1")]), by("http://p:1/"));
        assert_eq!(on("https://example.com", None, &[("HTTPS_PROXY", "socks5h://p:1")]), by("socks5://p:1/"));
        assert_eq!(on("https://example.com", None, &[("HTTPS_PROXY", "")]), direct);
        // Each scheme has its variable, and only these two count.
        assert_eq!(on("http://example.com", None, &[("HTTPS_PROXY", "http://p:1")]), direct);
        assert_eq!(on("http://example.com", None, &[("HTTP_PROXY", "http://p:1")]), by("http://p:1/"));
        assert_eq!(on("https://example.com", None, &[("ALL_PROXY", "http://p:1")]), direct);
        // A server on this machine is never reached through a proxy, unless the kubeconfig says so.
        for server in ["https://127.0.0.1:6443", "https://localhost", "https://[::1]:6443"] {
            assert_eq!(on(server, None, &[("HTTPS_PROXY", "http://p:1")]), direct, "{server}");
            assert_eq!(on(server, Some("http://q:2"), &[("NO_PROXY", "*")]), by("http://q:2/"), "{server}");
        }
        let refused = on("https://example.com", None, &[("HTTPS_PROXY", "ftp://p:1")]);
        assert!(
            refused.as_ref().is_err_and(|text| text.contains("HTTPS_PROXY") && text.contains("ftp://p:1")),
            "{refused:?}"
        );
        assert!(on("https://example.com", Some("http://"), &[]).is_err_and(|text| text.contains("proxy-url")));
    }

    #[test]
    fn no_proxy_names_servers_as_in_client_go() {
        let named = |list: &str, server: &str| names_server(list, &server.parse().expect("an address"), true);
        for list in
            ["example.com", ".example.com", "*.example.com", "a.b,,api.example.com, ", "*", "api.example.com:443"]
        {
            assert!(named(list, "https://api.example.com"), "{list}");
        }
        for list in ["", "ample.com", "example.org", "api.example.com:6443"] {
            assert!(!named(list, "https://api.example.com"), "{list}");
        }
        for list in ["10.0.0.0/8", "10.1.2.3", "10.1.2.3:6443"] {
            assert!(named(list, "https://10.1.2.3:6443"), "{list}");
            assert!(!named(list, "https://11.1.2.3:6443"), "{list}");
        }
        for list in ["fd00::1", "fd00::/8", "[fd00::1]:6443", "[fd00::1]"] {
            assert!(named(list, "https://[fd00::1]:6443"), "{list}");
        }
    }

    #[test]
    fn a_server_without_a_scheme_is_on_https_where_tls_is_configured() {
        let url = |server: &str, tls| server_url(server, tls).map(|url| url.to_string());
        assert_eq!(url("10.0.0.1:6443", true).as_deref(), Some("https://10.0.0.1:6443/"));
        assert_eq!(url("localhost:8080", false).as_deref(), Some("http://localhost:8080/"));
        assert_eq!(
            url("https://example.com/k8s/clusters/c", false).as_deref(),
            Some("https://example.com/k8s/clusters/c")
        );
        assert_eq!(url("https://[fd00::1]:6443", false).as_deref(), Some("https://[fd00::1]:6443/"));
        for bad in ["", "https://", "ftp://example.com", "not an address"] {
            assert_eq!(url(bad, true), None, "{bad}");
        }
    }

    #[test]
    fn files_of_the_list_are_merged_and_missing_ones_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("sub")).expect("a folder");
        let token = json!({"tokenFile": "token"});
        put(&folder, "sub/token", "secret");
        let first = put(&folder, "sub/first", &config(&json!({"server": "https://first"}), &token).to_string());
        let second = put(&folder, "second", &config(&json!({"server": "https://second"}), &json!({})).to_string());
        let missing = folder.path().join("missing");
        let list = std::env::join_paths([&missing, &first, &second]).expect("paths without colons");
        let of_list = |name: &str| (name == "KUBECONFIG").then(|| list.clone());
        let settings = load(&ConnectOptions::default(), &of_list).expect("a server");
        assert_eq!(settings.config.cluster_url, "https://first/");
        // A path is relative to its kubeconfig file.
        assert_eq!(settings.files, [folder.path().join("sub/token")]);
        let home = |name: &str| (name == "HOME").then(|| folder.path().into());
        fs::create_dir(folder.path().join(".kube")).expect("a folder");
        fs::copy(&second, folder.path().join(".kube/config")).expect("a file can be copied");
        let settings = load(&ConnectOptions::default(), &home).expect("a server");
        assert_eq!(settings.config.cluster_url, "https://second/");
    }

    #[test]
    fn without_any_file_of_the_list_the_pods_account_is_used() {
        let error = load(&ConnectOptions::default(), &environment(&[("KUBECONFIG", "/nonexistent/a:/nonexistent/b")]));
        assert!(matches!(error, Err(ConnectError::InPod(_))), "{error:?}");
    }

    #[test]
    fn a_broken_kubeconfig_is_not_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = put(&folder, "config", "clusters: {");
        let broken = |name: &str| (name == "KUBECONFIG").then(|| path.clone().into_os_string());
        let error = load(&ConnectOptions::default(), &broken);
        assert!(matches!(&error, Err(ConnectError::Kubeconfig { path: named, .. }) if *named == path), "{error:?}");
    }

    #[test]
    fn a_wrong_context_is_reported_with_the_known_ones() {
        let mut file = config(&json!({"server": "https://a"}), &json!({}));
        let folder = tempfile::tempdir().expect("a folder");
        let options = ConnectOptions {
            kubeconfig: Some(put(&folder, "config", &file.to_string())),
            context: Some("other".into()),
        };
        let error = load(&options, &|_| None).expect_err("no such context").to_string();
        assert_eq!(error, "the kubeconfig has no context other (known: it)");
        file["current-context"] = json!("");
        let error = loaded(&file).expect_err("no context");
        assert!(error.contains("kubectl config use-context") && error.contains("known: it"), "{error}");
        file["current-context"] = json!("it");
        file["clusters"] = json!(null);
        let error = loaded(&file).expect_err("no cluster");
        assert_eq!(error, "context it names cluster it, which is not in the kubeconfig");
    }

    #[test]
    fn empty_members_count_as_absent() {
        let cluster = json!({
            "server": "https://a", "certificate-authority-data": "", "certificate-authority": "", "proxy-url": "", "tls-server-name": "",
        });
        let user =
            json!({"client-certificate-data": "", "client-key-data": "", "token": "", "tokenFile": "", "as": ""});
        let settings = loaded(&config(&cluster, &user)).expect("a server");
        let Settings { config, files } = settings;
        assert!(config.root_cert.is_none() && config.proxy_url.is_none() && config.tls_server_name.is_none());
        let user = config.auth_info;
        assert!(user.client_certificate_data.is_none() && user.token.is_none() && user.impersonate.is_none());
        assert_eq!(files, Vec::<PathBuf>::new());
    }

    #[test]
    fn settings_that_cannot_be_used_are_named() {
        let refused = |cluster: Value, user: Value| loaded(&config(&cluster, &user)).expect_err("it cannot be used");
        let error = refused(json!({"server": "https://a", "certificate-authority": "/nonexistent/ca.crt"}), json!({}));
        assert!(error.starts_with("cannot read the certificate authority from /nonexistent/ca.crt: "), "{error}");
        let error = refused(json!({"server": "https://a", "certificate-authority-data": "%%"}), json!({}));
        assert!(error.starts_with("certificate-authority-data of the kubeconfig is not valid base64: "), "{error}");
        let error = refused(json!({"server": "https://a", "certificate-authority-data": "aGVsbG8K"}), json!({}));
        assert_eq!(error, "certificate-authority-data has no certificate in PEM format");
        let error = refused(json!({"server": "https://a"}), json!({"tokenFile": "/nonexistent/token"}));
        assert!(error.starts_with("cannot read the token from /nonexistent/token: "), "{error}");
        let error = refused(json!({"server": "ftp://a"}), json!({}));
        assert!(error.contains("cluster it has server \"ftp://a\""), "{error}");
    }

    #[test]
    fn a_token_in_a_file_wins_while_the_file_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = put(&folder, "token", " in-file\n");
        let token = |user: Value| {
            let settings = loaded(&config(&json!({"server": "https://a"}), &user)).expect("a server");
            settings.config.auth_info.token.map(|token| token.expose_secret().to_owned())
        };
        assert_eq!(token(json!({"token": "inline", "tokenFile": file})).as_deref(), Some("in-file"));
        assert_eq!(token(json!({"token": "inline", "tokenFile": "/nonexistent"})).as_deref(), Some("inline"));
    }
}
