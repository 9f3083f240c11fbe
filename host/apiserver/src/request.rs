//! Parses and checks the path, query and headers of a request.
//!
//! ```text
//! /apis/apps/v1/namespaces/default/deployments/web/scale?fieldManager=me
//!       └group┘└v┘          └ namespace ┘└ plural ┘ └name┘└ subresource
//! ```

use http::{HeaderMap, Method, Uri, header};

use crate::{
    faults::Verb,
    schema::{Cause, Reason},
    status::{Result, Status},
};

/// A path below `/api/v1` or `/apis/GROUP/VERSION`. Names are percent-decoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    /// Empty for cluster-scoped objects and lists over all namespaces.
    pub(crate) namespace: String,
    pub(crate) plural: String,
    /// Empty for a collection.
    pub(crate) name: String,
    pub(crate) subresource: String,
}

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Resource(Target),
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(String),
    /// `/api/v1`, `/apis/GROUP/VERSION`
    Resources {
        group: String,
        version: String,
    },
    /// `/openapi/v3`
    OpenApi,
    /// `/openapi/v3/…`, with the rest of the path.
    OpenApiGroup(String),
    Version,
    /// `/healthz`, `/livez`, `/readyz`, and paths below them.
    Health,
    Metrics,
    /// `/debug/…`, with the rest of the path.
    Debug(Vec<String>),
    /// `/`
    Index,
    Unknown,
}

impl Route {
    pub(crate) fn of(path: &str) -> Self {
        let segments: Option<Vec<String>> =
            path.trim_matches('/').split('/').map(|segment| decode(segment, false)).collect();
        let Some(segments) = segments else { return Route::Unknown };
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match segments.as_slice() {
            [""] => Route::Index,
            ["api"] => Route::CoreVersions,
            ["apis"] => Route::Groups,
            ["apis", group] => Route::Group((*group).to_owned()),
            ["api", version] => Route::Resources { group: String::new(), version: (*version).to_owned() },
            ["apis", group, version] => Route::Resources { group: (*group).to_owned(), version: (*version).to_owned() },
            ["api", version, rest @ ..] => Self::resource("", version, rest),
            ["apis", group, version, rest @ ..] => Self::resource(group, version, rest),
            ["openapi", "v3"] => Route::OpenApi,
            ["openapi", "v3", rest @ ..] => Route::OpenApiGroup(rest.join("/")),
            ["version"] => Route::Version,
            ["healthz" | "livez" | "readyz", ..] => Route::Health,
            ["metrics"] => Route::Metrics,
            ["debug", rest @ ..] => Route::Debug(rest.iter().map(ToString::to_string).collect()),
            _ => Route::Unknown,
        }
    }

    fn resource(group: &str, version: &str, rest: &[&str]) -> Self {
        let target = |namespace: &str, plural: &str, name: &str, subresource: &str| {
            Route::Resource(Target {
                group: group.to_owned(),
                version: version.to_owned(),
                namespace: namespace.to_owned(),
                plural: plural.to_owned(),
                name: name.to_owned(),
                subresource: subresource.to_owned(),
            })
        };
        match rest {
            ["namespaces", name] => target("", "namespaces", name, ""),
            ["namespaces", name, subresource @ ("status" | "finalize")] if group.is_empty() => {
                target("", "namespaces", name, subresource)
            }
            ["namespaces", namespace, plural] => target(namespace, plural, "", ""),
            ["namespaces", namespace, plural, name] => target(namespace, plural, name, ""),
            ["namespaces", namespace, plural, name, subresource] => target(namespace, plural, name, subresource),
            [plural] => target("", plural, "", ""),
            [plural, name] => target("", plural, name, ""),
            [plural, name, subresource] => target("", plural, name, subresource),
            _ => Route::Unknown,
        }
    }
}

/// The query of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(key, true)?, decode(value, true)?))
        });
        Params(decoded.collect())
    }

    /// Returns the first value of a parameter, or an empty text.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(found, _)| found == key).map_or("", |(_, value)| value)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(found, _)| found == key)
    }

    /// Returns a boolean as Kubernetes reads it: `true` if the parameter is present and neither `false` nor `0`.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.has(key) && !matches!(self.get(key).to_ascii_lowercase().as_str(), "false" | "0")
    }

    /// Returns a number, or `None` if the parameter is absent or empty.
    pub(crate) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>> {
        let text = self.get(key);
        if text.is_empty() {
            return Ok(None);
        }
        let refused = || Status::bad_request(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax"));
        text.parse().map(Some).map_err(|_| refused())
    }

    /// `true` if `dryRun=All` is requested.
    pub(crate) fn dry_run(&self, options: &str) -> Result<bool> {
        match self.get("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(options_error(
                options,
                Reason::NotSupported,
                "dryRun",
                format!("Unsupported value: [\"{other}\"]: supported values: \"All\""),
            )),
        }
    }

    pub(crate) fn field_validation(&self, options: &str) -> Result<FieldValidation> {
        match self.get("fieldValidation") {
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Ignore" => Ok(FieldValidation::Ignore),
            "Strict" => Ok(FieldValidation::Strict),
            other => Err(options_error(
                options,
                Reason::NotSupported,
                "fieldValidation",
                format!("Unsupported value: \"{other}\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""),
            )),
        }
    }

    /// Returns `fieldManager`, or else the first part of the User-Agent.
    pub(crate) fn manager(&self, headers: &HeaderMap, options: &str) -> Result<String> {
        let manager = self.get("fieldManager");
        if manager.len() > 128 {
            let message = "Too long: may not be more than 128 bytes".to_owned();
            return Err(options_error(options, Reason::TooLong, "fieldManager", message));
        }
        if !manager.is_empty() {
            return Ok(manager.to_owned());
        }
        let agent = text_header(headers, header::USER_AGENT);
        let first = agent.split('/').next().unwrap_or_default();
        Ok(if first.is_empty() { "unknown".to_owned() } else { first.chars().take(128).collect() })
    }
}

/// What happens to unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Dropped silently.
    Ignore,
    /// Dropped, with a Warning header.
    Warn,
    /// The request is rejected.
    Strict,
}

/// Returns a 422 about the options of a request, such as `PatchOptions`.
pub(crate) fn options_error(options: &str, reason: Reason, field: &str, message: String) -> Status {
    let cause = Cause { reason, field: field.to_owned(), message };
    Status::invalid_kind(options, "meta.k8s.io", "", &[cause])
}

/// Returns a request's verb as in kube-apiserver's metrics.
pub(crate) fn verb(method: &Method, target: &Target, watch: bool, apply: bool) -> &'static str {
    match (method.as_str(), target.name.is_empty()) {
        ("GET" | "HEAD", _) if watch => "WATCH",
        ("GET" | "HEAD", true) => "LIST",
        ("GET" | "HEAD", false) => "GET",
        ("POST", _) => "POST",
        ("PUT", _) => "PUT",
        ("PATCH", _) if apply => "APPLY",
        ("PATCH", _) => "PATCH",
        ("DELETE", true) => "DELETECOLLECTION",
        ("DELETE", false) => "DELETE",
        _ => "OTHER",
    }
}

/// Returns the verb as in fault rules, or `None` if no rule can select it.
pub(crate) fn fault_verb(verb: &str) -> Option<Verb> {
    Some(match verb {
        "GET" => Verb::Get,
        "LIST" => Verb::List,
        "WATCH" => Verb::Watch,
        "POST" => Verb::Create,
        "PUT" => Verb::Update,
        "PATCH" => Verb::Patch,
        "APPLY" => Verb::Apply,
        "DELETE" => Verb::Delete,
        "DELETECOLLECTION" => Verb::DeleteCollection,
        _ => return None,
    })
}

/// Returns a header as text. Empty if it is absent or not text.
pub(crate) fn text_header(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Decodes percent-encoded text. Returns `None` if the result is not UTF-8.
fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'+' if plus_is_space => bytes.push(b' '),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}
