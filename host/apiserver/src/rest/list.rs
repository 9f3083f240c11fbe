//! GET of a collection: selects the revision, the objects and the page.

use std::{num::NonZeroU32, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use crate::{
    convert,
    object::{Key, Object},
    present::ListMeta,
    request::{Params, options_error},
    resources::Resource,
    schema::Reason,
    selector::Selector,
    server::Server,
    status::{Result, Status},
};

/// How a list or a watch treats `resourceVersion`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    /// No `resourceVersionMatch` was given.
    Unset,
    Exact,
    NotOlderThan,
}

/// The query of a list or a watch.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    /// `None` for all namespaces.
    pub(crate) namespace: Option<String>,
    pub(crate) selector: Selector,
    /// `None` for the newest version, and 0 for any.
    pub(crate) version: Option<u64>,
    pub(crate) matching: Match,
}

impl Query {
    /// Reads the options that lists and watches share. `bad_version` makes the error for an invalid version.
    pub(crate) fn parse(
        resource: &Resource,
        key: &Key,
        params: &Params,
        bad_version: fn(String) -> Status,
    ) -> Result<Self> {
        let mut fields = params.get("fieldSelector").to_owned();
        if !key.name.is_empty() {
            let separator = if fields.is_empty() { "" } else { "," };
            fields.push_str(&format!("{separator}metadata.name={}", key.name));
        }
        let text = params.get("resourceVersion");
        let version = match text {
            "" => None,
            text => Some(text.parse::<u64>().map_err(|_| {
                bad_version(format!(
                    "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
                ))
            })?),
        };
        let matching = match params.get("resourceVersionMatch") {
            "" => Match::Unset,
            "Exact" => Match::Exact,
            "NotOlderThan" => Match::NotOlderThan,
            other => {
                let message =
                    format!("Unsupported value: \"{other}\": supported values: \"Exact\", \"NotOlderThan\", \"\"");
                return Err(refuse(Reason::NotSupported, "resourceVersionMatch", message));
            }
        };
        Ok(Query {
            namespace: (!key.namespace.is_empty()).then(|| key.namespace.to_string()),
            selector: Selector::parse(params.get("labelSelector"), &fields, resource)?,
            version,
            matching,
        })
    }
}

pub(crate) fn refuse(reason: Reason, field: &str, message: impl Into<String>) -> Status {
    options_error("ListOptions", reason, field, message.into())
}

/// Where a page ended, and at which revision.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    /// 0 for the newest, because the list's own revision has expired.
    revision: u64,
    last: Key,
}

impl Token {
    fn encode(&self) -> String {
        let token = json!({"v": 1, "rv": self.revision, "ns": self.last.namespace, "name": self.last.name});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        Self::decode(text).ok_or_else(|| Status::bad_request("invalid continue token: continue key is not valid"))
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
        let token: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
        let revision = token["rv"].as_u64()?;
        Some(Token { revision, last: Key::new(token["ns"].as_str()?, token["name"].as_str()?) })
    }
}

/// Returns the error for a page whose revision is no longer kept, with a token to continue at the newest revision.
pub(crate) fn expired_page(params: &Params) -> Result<Status> {
    let Token { last, .. } = Token::parse(params.get("continue"))?;
    Ok(Status::expired_continue(Token { revision: 0, last }.encode()))
}

/// Returns one page, or all objects. `stale` is the number of last changes to ignore, unless an exact revision is
/// requested.
pub(crate) async fn list(
    server: &Server,
    resource: &Resource,
    key: &Key,
    params: &Params,
    stale: Option<NonZeroU32>,
) -> Result<(Vec<Arc<Object>>, ListMeta)> {
    let query =
        Query::parse(resource, key, params, |why| Status::bad_request(format!("invalid resource version: {why}")))?;
    let limit = params.number::<i64>("limit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
    if params.flag("sendInitialEvents") {
        let message = "Forbidden: sendInitialEvents is forbidden for list";
        return Err(refuse(Reason::Forbidden, "sendInitialEvents", message));
    }
    let (after, at) = start(server, &query, params, limit)?;
    let stale = stale.filter(|_| after.is_none() && at.is_none());
    let at = stale.and_then(|changes| server.store.before(&resource.storage, changes)).or(at);
    // For any version, kube-apiserver answers from its cache and without pages.
    let limit = if query.version == Some(0) && after.is_none() { 0 } else { limit };

    let snapshot = server.store.list(&resource.storage, query.namespace.as_deref(), after.as_ref(), at);
    let snapshot = snapshot.map_err(|_| match &after {
        Some(last) => Status::expired_continue(Token { revision: 0, last: last.clone() }.encode()),
        None => Status::expired(format!("The resourceVersion for the provided list is too old: {}", at.unwrap_or(0))),
    })?;
    let revision = snapshot.revision;
    let mut objects = snapshot.objects;
    if !query.selector.is_empty() {
        let matches: Vec<bool> = convert::all_to_requested(server, resource, &objects)
            .await?
            .iter()
            .map(|view| query.selector.matches(view))
            .collect();
        let mut matches = matches.into_iter();
        objects.retain(|_| matches.next().unwrap_or_default());
    }
    let mut matching = objects.into_iter();
    if limit == 0 {
        let meta = ListMeta { revision, continue_token: None, remaining: None };
        return Ok((matching.collect(), meta));
    }
    let page: Vec<Arc<Object>> = matching.by_ref().take(limit).collect();
    let rest = matching.count();
    let token = page.last().filter(|_| rest > 0).map(|last| Token { revision, last: last.key() }.encode());
    let remaining = (rest > 0 && query.selector.is_empty()).then_some(rest);
    Ok((page, ListMeta { revision, continue_token: token, remaining }))
}

/// Returns the key after which the page begins, and its revision.
fn start(server: &Server, query: &Query, params: &Params, limit: usize) -> Result<(Option<Key>, Option<u64>)> {
    let token = params.get("continue");
    if !token.is_empty() {
        if query.matching != Match::Unset {
            let message = "Forbidden: resourceVersionMatch is forbidden when continue is provided";
            return Err(refuse(Reason::Forbidden, "resourceVersionMatch", message));
        }
        if query.version.is_some_and(|version| version != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let Token { revision, last } = Token::parse(token)?;
        return Ok((Some(last), (revision != 0).then_some(revision)));
    }
    let version = match (query.matching, query.version) {
        (Match::Unset, None | Some(0)) | (Match::NotOlderThan, Some(0)) => return Ok((None, None)),
        (Match::Exact | Match::NotOlderThan, None) => {
            let message = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
            return Err(refuse(Reason::Forbidden, "resourceVersionMatch", message));
        }
        (Match::Exact, Some(0)) => {
            let message = "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            return Err(refuse(Reason::Forbidden, "resourceVersionMatch", message));
        }
        (_, Some(version)) => version,
    };
    let current = server.store.revision();
    if version > current {
        return Err(Status::version_too_large(version, current));
    }
    // A limit without `resourceVersionMatch` means the exact version, as in older versions of Kubernetes.
    let exact = query.matching == Match::Exact || (query.matching == Match::Unset && limit > 0);
    Ok((None, exact.then_some(version)))
}
