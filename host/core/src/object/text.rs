//! The text of an object, plain or packed.

use std::{borrow::Cow, fmt, ops::Range, sync::Arc};

use crate::dictionary::Dictionary;

/// JSON, with the positions of labels and owners, which are read often.
#[derive(Clone)]
pub(super) struct Text {
    body: Body,
    labels: Span,
    owners: Span,
}

/// Start and end, in the JSON or in the packed bytes. Empty if there is nothing.
type Span = (u32, u32);

/// Ranges of some metadata in an object's JSON; empty if absent.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// The object `metadata.labels`.
    pub(super) labels: Range<usize>,
    /// The array `metadata.ownerReferences`.
    pub(super) owners: Range<usize>,
}

#[derive(Clone)]
enum Body {
    Plain(Box<str>),
    /// Labels and owners in plain text, followed by the whole JSON, packed.
    Packed(Box<[u8]>, Arc<Dictionary>),
}

/// The text is too long for its positions.
#[derive(Debug)]
pub(super) struct TooLong;

impl Text {
    pub(super) fn new(json: String, places: &Places) -> Result<Self, TooLong> {
        let at = |at: usize| u32::try_from(at).map_err(|_| TooLong);
        let span = |place: &Range<usize>| Ok((at(place.start)?, at(place.end)?));
        Ok(Self { labels: span(&places.labels)?, owners: span(&places.owners)?, body: Body::Plain(json.into()) })
    }

    pub(super) fn json(&self) -> Cow<'_, str> {
        match &self.body {
            Body::Plain(json) => Cow::Borrowed(json),
            Body::Packed(packed, dictionary) => {
                let json = dictionary.unpack(packed.get(self.owners.1 as usize..).unwrap_or_default());
                Cow::Owned(json.expect("it was unpacked once before it was kept"))
            }
        }
    }

    pub(super) fn json_len(&self) -> usize {
        match &self.body {
            Body::Plain(json) => json.len(),
            Body::Packed(packed, _) => {
                Dictionary::unpacked_len(packed.get(self.owners.1 as usize..).unwrap_or_default())
            }
        }
    }

    pub(super) fn labels(&self) -> &str {
        self.part(self.labels)
    }

    pub(super) fn owners(&self) -> &str {
        self.part(self.owners)
    }

    fn part(&self, (from, to): Span) -> &str {
        let place = from as usize..to as usize;
        match &self.body {
            Body::Plain(json) => json.get(place),
            Body::Packed(packed, _) => packed.get(place).and_then(|part| std::str::from_utf8(part).ok()),
        }
        .unwrap_or("")
    }

    /// Packs the text. Returns `None` if it would not be smaller.
    pub(super) fn pack(&self, dictionary: &Arc<Dictionary>) -> Option<Self> {
        let Body::Plain(json) = &self.body else { return None };
        let (labels, owners) = (self.labels(), self.owners());
        let plain = format!("{labels}{owners}");
        let packed = dictionary.pack(&plain, json)?;
        // Unpacking must not fail later.
        if packed.len() >= json.len() || dictionary.unpack(packed.get(plain.len()..)?).as_deref() != Some(json) {
            return None;
        }
        let [middle, end] = [labels.len(), plain.len()].map(u32::try_from);
        let (labels, owners) = ((0, middle.ok()?), (middle.ok()?, end.ok()?));
        Some(Self { labels, owners, body: Body::Packed(packed, dictionary.clone()) })
    }

    pub(super) fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        match &self.body {
            Body::Plain(_) => None,
            Body::Packed(_, dictionary) => Some(dictionary),
        }
    }

    /// Bytes held on the heap, without the dictionary.
    pub(super) fn bytes(&self) -> usize {
        match &self.body {
            Body::Plain(json) => json.len(),
            Body::Packed(packed, _) => packed.len(),
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl Eq for Text {}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json().fmt(f)
    }
}
