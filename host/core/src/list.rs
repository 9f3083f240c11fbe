//! The shapes around objects on the wire: list pages, watch lines and `Status`.
//!
//! Splits a page into the raw texts of its items, and a line into the raw text of its object. Callers parse these with
//! [`Object::parse`](crate::object::Object::parse), so that an unreadable object costs only itself. The reflector and
//! its driver cut a body into lines and act on them.
//!
//! ```
//! use pilothouse_core::list::{WatchLine, list_page, watch_line};
//!
//! let (meta, items) = list_page(br#"{"metadata":{"resourceVersion":"9","continue":"abc"},"items":[{"a":1},{"b":2}]}"#)?;
//! assert_eq!(meta.continue_token.as_deref(), Some("abc"));
//! assert_eq!(items, [&br#"{"a":1}"#[..], br#"{"b":2}"#]);
//!
//! let line = watch_line(br#"{"type":"ADDED","object":{"a":1}}"#)?;
//! assert_eq!(line, WatchLine::Added(br#"{"a":1}"#));
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::time::Duration;

use crate::json::{ParseError, Reader, excerpt, utf8};

/// The Accept header of a list of `PartialObjectMetadata`: apiVersion, kind and metadata. A server that does not
/// support these sends whole objects.
pub const ACCEPT_METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// The same for a watch, and for one object. Not for a list: kube-apiserver rejects a list in this form with 406.
pub const ACCEPT_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// A list page's `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// The version of the whole list.
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
    /// The last state of an object that was deleted, or that the watch's selector no longer matches.
    Deleted(&'a [u8]),
    /// Nothing else changed up to this version.
    Bookmark {
        /// The version at which a new watch may begin.
        resource_version: String,
        /// `true` if all initial objects of a streaming list have been sent.
        initial_events_end: bool,
    },
    /// The watch ends with an error.
    Error(Status),
}

/// The content of a Kubernetes `Status` object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// One word, such as `Expired`; may be empty.
    pub reason: String,
    /// The message for people.
    pub message: String,
    /// `details.retryAfterSeconds`.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Parses a `Status` object; absent members are empty.
    ///
    /// # Errors
    /// Fails if the bytes are not a JSON object, or a member that is read here has another type.
    pub fn parse(json: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(utf8(json)?);
        let mut status = Self::default();
        reader.enter_object("status")?;
        while let Some(name) = reader.member()? {
            match &*name.decode() {
                "code" => {
                    let at = reader.at();
                    let code = reader.integer_or_null("code")?.unwrap_or(0);
                    status.code = code.try_into().map_err(|_| ParseError::new(at, "code is out of range"))?;
                }
                "reason" => status.reason = reader.string_or_null("reason")?.unwrap_or_default().into(),
                "message" => status.message = reader.string_or_null("message")?.unwrap_or_default().into(),
                "details" => status.retry_after = retry_after(&mut reader)?,
                _ => {
                    reader.value()?;
                }
            }
        }
        reader.end()?;
        Ok(status)
    }
}

fn retry_after(reader: &mut Reader<'_>) -> Result<Option<Duration>, ParseError> {
    let mut after = None;
    if reader.null()? {
        return Ok(after);
    }
    reader.enter_object("details")?;
    while let Some(name) = reader.member()? {
        if name.decode() == "retryAfterSeconds" {
            let seconds = reader.integer_or_null("details.retryAfterSeconds")?;
            after =
                seconds.and_then(|seconds| seconds.try_into().ok()).map(Duration::from_secs).filter(|d| !d.is_zero());
        } else {
            reader.value()?;
        }
    }
    Ok(after)
}

/// Splits a list page into its metadata and the raw text of each item.
///
/// # Errors
/// Fails if the body is not a list. The items themselves are not parsed.
pub fn list_page(body: &[u8]) -> Result<(ListMeta, Vec<&[u8]>), ParseError> {
    let mut reader = Reader::new(utf8(body)?);
    let (mut meta, mut items) = (None, None);
    reader.enter_object("list page")?;
    while let Some(name) = reader.member()? {
        // Objects of a list that is not read would seem deleted.
        let twice = |what: &str| Err(ParseError::new(name.start(), format!("{what} appears twice in its object")));
        match &*name.decode() {
            "metadata" if meta.is_some() => return twice("metadata"),
            "metadata" => meta = Some(list_meta(&mut reader)?),
            "items" if items.is_some() => return twice("items"),
            "items" => items = Some(raw_items(&mut reader)?),
            _ => {
                reader.skip()?;
            }
        }
    }
    let end = reader.at();
    reader.end()?;
    let missing = |what: &str| ParseError::new(end - 1, format!("list page has no {what}"));
    Ok((meta.ok_or_else(|| missing("metadata"))?, items.ok_or_else(|| missing("items"))?))
}

fn list_meta(reader: &mut Reader<'_>) -> Result<ListMeta, ParseError> {
    let mut meta = ListMeta::default();
    reader.enter_object("metadata")?;
    while let Some(name) = reader.member()? {
        let (member, what) = match &*name.decode() {
            "resourceVersion" => (&mut meta.resource_version, "metadata.resourceVersion"),
            "continue" => (&mut meta.continue_token, "metadata.continue"),
            _ => {
                reader.value()?;
                continue;
            }
        };
        *member = reader.string_or_null(what)?.filter(|text| !text.is_empty()).map(Into::into);
    }
    Ok(meta)
}

fn raw_items<'a>(reader: &mut Reader<'a>) -> Result<Vec<&'a [u8]>, ParseError> {
    let mut items = Vec::new();
    if reader.null()? {
        return Ok(items);
    }
    reader.enter_array("items")?;
    while reader.element()? {
        items.push(reader.skip()?.as_bytes());
    }
    Ok(items)
}

/// Splits one line of a watch, with or without its newline.
///
/// API servers write `type`, then `object`, and nothing else. In this form, the object is assumed to reach to the end
/// of the line: this is the path of every event, and parsing the object detects other content. Any other order of
/// members is read step by step.
///
/// # Errors
/// Fails if the line is not a watch event. Objects that are added, modified or deleted are not parsed.
pub fn watch_line(line: &[u8]) -> Result<WatchLine<'_>, ParseError> {
    let usual = line.strip_prefix(br#"{"type":""#).and_then(|rest| {
        let quote = memchr::memchr(b'"', rest)?;
        let object = rest[quote..].strip_prefix(br#"","object":"#)?.trim_ascii_end().strip_suffix(b"}")?;
        of_object(&rest[..quote], object)
    });
    match usual {
        Some(line) => Ok(line),
        None => any_line(line),
    }
}

/// Builds the lines about one object.
fn of_object<'a>(r#type: &[u8], object: &'a [u8]) -> Option<WatchLine<'a>> {
    match r#type {
        b"ADDED" => Some(WatchLine::Added(object)),
        b"MODIFIED" => Some(WatchLine::Modified(object)),
        b"DELETED" => Some(WatchLine::Deleted(object)),
        _ => None,
    }
}

fn any_line(line: &[u8]) -> Result<WatchLine<'_>, ParseError> {
    let mut reader = Reader::new(utf8(line)?);
    let (mut r#type, mut object) = (None, None);
    reader.enter_object("watch event")?;
    while let Some(name) = reader.member()? {
        match &*name.decode() {
            "type" => r#type = reader.string_or_null("type")?,
            "object" => object = Some((reader.at(), reader.skip()?)),
            _ => {
                reader.skip()?;
            }
        }
    }
    let end = reader.at();
    reader.end()?;
    let missing = |what: &str| ParseError::new(end - 1, format!("watch event has no {what}"));
    let r#type = r#type.ok_or_else(|| missing("type"))?;
    let (at, object) = object.ok_or_else(|| missing("object"))?;
    if let Some(line) = of_object(r#type.as_bytes(), object.as_bytes()) {
        return Ok(line);
    }
    let within = |e: ParseError| ParseError { at: at + e.at, ..e };
    match &*r#type {
        "BOOKMARK" => bookmark(object).map_err(within),
        "ERROR" => Status::parse(object.as_bytes()).map(WatchLine::Error).map_err(within),
        other => Err(ParseError::new(0, format!("unknown type of watch event {:?}", excerpt(other)))),
    }
}

fn bookmark(object: &str) -> Result<WatchLine<'static>, ParseError> {
    let mut reader = Reader::new(object);
    let (mut version, mut initial_events_end) = (None, false);
    reader.enter_object("bookmark")?;
    while let Some(name) = reader.member()? {
        if name.decode() != "metadata" {
            reader.value()?;
            continue;
        }
        reader.enter_object("metadata")?;
        while let Some(name) = reader.member()? {
            match &*name.decode() {
                "resourceVersion" => version = reader.string_or_null("metadata.resourceVersion")?,
                "annotations" => initial_events_end = ends_initial_events(&mut reader)?,
                _ => {
                    reader.value()?;
                }
            }
        }
    }
    match version {
        Some(version) if !version.is_empty() => {
            Ok(WatchLine::Bookmark { resource_version: version.into(), initial_events_end })
        }
        _ => Err(ParseError::new(0, "bookmark has no metadata.resourceVersion")),
    }
}

fn ends_initial_events(reader: &mut Reader<'_>) -> Result<bool, ParseError> {
    let mut ends = false;
    if reader.null()? {
        return Ok(ends);
    }
    reader.enter_object("metadata.annotations")?;
    while let Some(name) = reader.member()? {
        // KEP-3157: the bookmark after the last initial event carries this.
        if name.decode() == "k8s.io/initial-events-end" {
            ends = reader.string_or_null("an annotation")?.as_deref() == Some("true");
        } else {
            reader.value()?;
        }
    }
    Ok(ends)
}

#[cfg(test)]
mod tests;
