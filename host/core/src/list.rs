//! The shapes around objects on the wire: list pages, watch lines and `Status`.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::ParseError;

/// A list page's `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// The point in history that the whole list shows.
    pub resource_version: Option<String>,
    /// Present if there are more pages.
    pub continue_token: Option<String>,
}

/// One line of a watch. Objects are raw, for [`Object::parse`](crate::object::Object::parse).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchLine<'a> {
    /// An object that is new to this watch.
    Added(&'a [u8]),
    /// A newer version of an object.
    Modified(&'a [u8]),
    /// The last state of an object that is gone, or that the watch's selector no longer matches.
    Deleted(&'a [u8]),
    /// Nothing changed up to here.
    Bookmark {
        /// Where a new watch may begin.
        resource_version: String,
        /// The objects that existed at the beginning of a streaming list have all been sent.
        initial_events_end: bool,
    },
    /// The watch cannot go on.
    Error(Status),
}

/// What a Kubernetes `Status` object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// One word, such as `Expired`; may be empty.
    pub reason: String,
    /// For people.
    pub message: String,
    /// `details.retryAfterSeconds`.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Reads a `Status` object; members that are absent are empty.
    ///
    /// # Errors
    /// When the bytes are no JSON object of that shape.
    pub fn parse(json: &[u8]) -> Result<Self, ParseError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[derive(Default)]
        struct Details {
            retry_after_seconds: Option<u32>,
        }
        #[derive(Deserialize)]
        struct Wire {
            code: Option<u16>,
            reason: Option<String>,
            message: Option<String>,
            details: Option<Details>,
        }
        let wire: Wire =
            serde_json::from_slice(json).map_err(|e| ParseError::new(e.column(), e.to_string()))?;
        Ok(Self {
            code: wire.code.unwrap_or(0),
            reason: wire.reason.unwrap_or_default(),
            message: wire.message.unwrap_or_default(),
            retry_after: wire
                .details
                .and_then(|d| d.retry_after_seconds)
                .map(|s| Duration::from_secs(s.into())),
        })
    }
}

/// Splits a list page into its metadata and the raw text of each item.
///
/// # Errors
/// When the body is no list.
pub fn list_page(body: &[u8]) -> Result<(ListMeta, Vec<&[u8]>), ParseError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        resource_version: Option<String>,
        #[serde(rename = "continue")]
        continue_token: Option<String>,
    }
    #[derive(Deserialize)]
    struct Page<'a> {
        metadata: Meta,
        #[serde(borrow)]
        items: Option<Vec<&'a RawValue>>,
    }
    let page: Page<'_> =
        serde_json::from_slice(body).map_err(|e| ParseError::new(e.column(), e.to_string()))?;
    let full = |s: Option<String>| s.filter(|s| !s.is_empty());
    let meta = ListMeta {
        resource_version: full(page.metadata.resource_version),
        continue_token: full(page.metadata.continue_token),
    };
    Ok((
        meta,
        page.items
            .unwrap_or_default()
            .into_iter()
            .map(|item| item.get().as_bytes())
            .collect(),
    ))
}

/// Splits one line of a watch.
///
/// # Errors
/// When the line is no watch event.
pub fn watch_line(line: &[u8]) -> Result<WatchLine<'_>, ParseError> {
    #[derive(Deserialize)]
    struct Line<'a> {
        r#type: String,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let line: Line<'_> =
        serde_json::from_slice(line).map_err(|e| ParseError::new(e.column(), e.to_string()))?;
    let raw = line.object.get().as_bytes();
    Ok(match &*line.r#type {
        "ADDED" => WatchLine::Added(raw),
        "MODIFIED" => WatchLine::Modified(raw),
        "DELETED" => WatchLine::Deleted(raw),
        "BOOKMARK" => {
            let object: serde_json::Value = serde_json::from_slice(raw)
                .map_err(|e| ParseError::new(e.column(), e.to_string()))?;
            WatchLine::Bookmark {
                resource_version: object["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                initial_events_end: object["metadata"]["annotations"]["k8s.io/initial-events-end"]
                    == "true",
            }
        }
        "ERROR" => WatchLine::Error(Status::parse(raw)?),
        other => return Err(ParseError::new(0, format!("unknown watch event {other:?}"))),
    })
}
