//! The one walk over an object's text that checks all of it and extracts the metadata.
//!
//! A member that is read here must not appear twice. Readers differ in which of the two they take, and the host must
//! index and grant what a plugin sees. The API server never writes a member twice.

use std::{borrow::Cow, ops::Range};

use super::{Applied, OwnerRef, Subresource, Uid, text::Places};
use crate::json::{ParseError, Reader, Text, excerpt};

/// The result of the walk. Ranges refer to the text that was read.
#[derive(Debug, Default)]
pub(super) struct Scan<'a> {
    /// The object itself, without surrounding white space.
    pub(super) object: Range<usize>,
    pub(super) api_version: Option<Cow<'a, str>>,
    pub(super) kind: Option<Cow<'a, str>>,
    pub(super) namespace: Option<Cow<'a, str>>,
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) uid: Option<Cow<'a, str>>,
    pub(super) resource_version: Option<Cow<'a, str>>,
    /// Position of the text of resourceVersion.
    pub(super) resource_version_at: usize,
    pub(super) generation: Option<i64>,
    pub(super) deleting: bool,
    pub(super) places: Places,
    pub(super) applied: Vec<Applied>,
    /// The member `metadata.managedFields` with one comma; empty if there is none.
    pub(super) cut: Range<usize>,
    /// Position after `metadata`; 0 if there is none.
    pub(super) metadata_end: usize,
}

/// A bit for each member that was seen.
#[derive(Default)]
struct Seen(u16);

impl Seen {
    fn once(&mut self, bit: u16, name: &Text<'_>) -> Result<(), ParseError> {
        if self.0 & (1 << bit) != 0 {
            return Err(ParseError::new(name.start(), format!("{} appears twice in its object", name.decode())));
        }
        self.0 |= 1 << bit;
        Ok(())
    }
}

pub(super) fn scan(text: &str) -> Result<Scan<'_>, ParseError> {
    let mut reader = Reader::new(text);
    let mut scan = Scan::default();
    let mut seen = Seen::default();
    reader.enter_object("text")?;
    scan.object.start = reader.at() - 1;
    while let Some(name) = reader.member()? {
        match &*name.decode() {
            "apiVersion" => {
                seen.once(0, &name)?;
                scan.api_version = Some(word(&mut reader, "apiVersion")?);
            }
            "kind" => {
                seen.once(1, &name)?;
                scan.kind = Some(word(&mut reader, "kind")?);
            }
            "metadata" => {
                seen.once(2, &name)?;
                scan.metadata(&mut reader)?;
            }
            _ => {
                reader.value()?;
            }
        }
    }
    scan.object.end = reader.at();
    reader.end()?;
    Ok(scan)
}

/// Reads a string that must not be empty.
fn word<'a>(reader: &mut Reader<'a>, what: &str) -> Result<Cow<'a, str>, ParseError> {
    let at = reader.at();
    match reader.string_or_null(what)? {
        Some(word) if !word.is_empty() => Ok(word),
        _ => Err(ParseError::new(at, format!("{what} is empty"))),
    }
}

impl<'a> Scan<'a> {
    fn metadata(&mut self, reader: &mut Reader<'a>) -> Result<(), ParseError> {
        let mut seen = Seen::default();
        // End of the previous member.
        let mut previous = None;
        let mut cut_to_next = false;
        reader.enter_object("metadata")?;
        while let Some(name) = reader.member()? {
            if cut_to_next {
                self.cut.end = name.start();
                cut_to_next = false;
            }
            match &*name.decode() {
                "name" => {
                    seen.once(0, &name)?;
                    self.name = Some(word(reader, "metadata.name")?);
                }
                "namespace" => {
                    seen.once(1, &name)?;
                    self.namespace = reader.string_or_null("metadata.namespace")?;
                }
                "uid" => {
                    seen.once(2, &name)?;
                    self.uid = Some(word(reader, "metadata.uid")?);
                }
                "resourceVersion" => {
                    seen.once(3, &name)?;
                    self.resource_version_at = reader.at();
                    self.resource_version = Some(word(reader, "metadata.resourceVersion")?);
                }
                "generation" => {
                    seen.once(4, &name)?;
                    self.generation = reader.integer_or_null("metadata.generation")?;
                }
                "deletionTimestamp" => {
                    seen.once(5, &name)?;
                    self.deleting = reader.string_or_null("metadata.deletionTimestamp")?.is_some();
                }
                "labels" => {
                    seen.once(6, &name)?;
                    self.places.labels = labels(reader)?;
                }
                "ownerReferences" => {
                    seen.once(7, &name)?;
                    self.places.owners = owners(reader)?;
                }
                "managedFields" => {
                    seen.once(8, &name)?;
                    self.applied = applied(reader)?;
                    self.cut = previous.unwrap_or(name.start())..reader.at();
                    // Cuts the comma before it, or after it if it is the first member.
                    cut_to_next = previous.is_none();
                }
                _ => {
                    reader.value()?;
                }
            }
            previous = Some(reader.at());
        }
        self.metadata_end = reader.at();
        Ok(())
    }
}

/// Checks that labels are strings with unique keys, and returns their range.
fn labels(reader: &mut Reader<'_>) -> Result<Range<usize>, ParseError> {
    if reader.null()? {
        return Ok(Range::default());
    }
    let mut names = Vec::new();
    let mut ascending = true;
    let start = reader.at();
    reader.enter_object("metadata.labels")?;
    while let Some(name) = reader.member()? {
        if reader.peek() != Some(b'"') {
            return reader.unexpected("a label", "a string");
        }
        reader.string()?;
        let name = (name.decode(), name.start());
        ascending = ascending && names.last().is_none_or(|last| last < &name);
        names.push(name);
    }
    // The API server writes them in ascending order.
    if !ascending {
        names.sort_unstable();
    }
    match names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(ParseError::new(pair[1].1, format!("label {} appears twice", excerpt(&pair[1].0)))),
        None => Ok(start..reader.at()),
    }
}

/// Checks that owner references can be read, and returns their range.
fn owners(reader: &mut Reader<'_>) -> Result<Range<usize>, ParseError> {
    if reader.null()? {
        return Ok(Range::default());
    }
    let start = reader.at();
    reader.enter_array("metadata.ownerReferences")?;
    while reader.element()? {
        owner(reader)?;
    }
    Ok(start..reader.at())
}

/// Reads one owner reference.
pub(super) fn owner<'a>(reader: &mut Reader<'a>) -> Result<OwnerRef<'a>, ParseError> {
    let start = reader.at();
    let (mut api_version, mut kind, mut name, mut uid, mut controller) = (None, None, None, None, false);
    let mut seen = Seen::default();
    reader.enter_object("an owner reference")?;
    while let Some(member) = reader.member()? {
        match &*member.decode() {
            "apiVersion" => {
                seen.once(0, &member)?;
                api_version = Some(word(reader, "an owner's apiVersion")?);
            }
            "kind" => {
                seen.once(1, &member)?;
                kind = Some(word(reader, "an owner's kind")?);
            }
            "name" => {
                seen.once(2, &member)?;
                name = Some(word(reader, "an owner's name")?);
            }
            "uid" => {
                seen.once(3, &member)?;
                uid = Some(word(reader, "an owner's uid")?);
            }
            "controller" => {
                seen.once(4, &member)?;
                controller = reader.bool_or_null("an owner's controller")?;
            }
            _ => {
                reader.value()?;
            }
        }
    }
    let (Some(api_version), Some(kind), Some(name), Some(uid)) = (api_version, kind, name, uid) else {
        return Err(ParseError::new(start, "an owner reference lacks apiVersion, kind, name or uid"));
    };
    Ok(OwnerRef { api_version, kind, name, uid: Uid::parse(&uid), controller })
}

/// Reads what managers of this host applied.
fn applied(reader: &mut Reader<'_>) -> Result<Vec<Applied>, ParseError> {
    let mut kept = Vec::new();
    if reader.null()? {
        return Ok(kept);
    }
    reader.enter_array("metadata.managedFields")?;
    while reader.element()? {
        let (mut manager, mut operation, mut subresource, mut fields) = (None, None, None, None);
        let mut seen = Seen::default();
        reader.enter_object("an entry of metadata.managedFields")?;
        while let Some(member) = reader.member()? {
            match &*member.decode() {
                "manager" => {
                    seen.once(0, &member)?;
                    manager = reader.string_or_null("a field manager")?;
                }
                "operation" => {
                    seen.once(1, &member)?;
                    operation = reader.string_or_null("an operation")?;
                }
                "subresource" => {
                    seen.once(2, &member)?;
                    subresource = reader.string_or_null("a subresource")?;
                }
                "fieldsV1" => {
                    seen.once(3, &member)?;
                    fields = reader.value_apart()?;
                }
                _ => {
                    reader.value()?;
                }
            }
        }
        let Some(manager) = manager.filter(|manager| manager.starts_with(super::MANAGER_PREFIX)) else { continue };
        let subresource = match subresource.as_deref() {
            None | Some("") => None,
            Some(name) => match Subresource::of_name(name) {
                Some(subresource) => Some(subresource),
                None => continue,
            },
        };
        if let (Some("Apply"), Some(fields)) = (operation.as_deref(), fields) {
            let fields = reader.compact(fields);
            kept.push(Applied { manager: manager.into(), subresource, fields });
        }
    }
    Ok(kept)
}
