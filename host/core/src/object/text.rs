//! The text of an object, as it is or packed.

use std::{borrow::Cow, fmt, ops::Range, sync::Arc};

use crate::dictionary::Dictionary;

/// JSON, and where its labels stand.
#[derive(Clone)]
pub(super) struct Text {
    body: Body,
    /// Of the labels: in the JSON, or in what is packed. Empty: there are none.
    labels: (u32, u32),
}

#[derive(Clone)]
enum Body {
    Plain(Box<str>),
    /// The labels, which selectors ask for again and again, as they are; after them the whole JSON, packed.
    Packed(Box<[u8]>, Arc<Dictionary>),
}

/// The text is longer than the places in it can be counted.
#[derive(Debug)]
pub(super) struct TooLong;

impl Text {
    /// `labels`: where the object `metadata.labels` stands in `json`.
    pub(super) fn new(json: String, labels: Option<Range<usize>>) -> Result<Self, TooLong> {
        let place = |at: usize| u32::try_from(at).map_err(|_| TooLong);
        let labels = labels.unwrap_or_default();
        Ok(Self { labels: (place(labels.start)?, place(labels.end)?), body: Body::Plain(json.into()) })
    }

    pub(super) fn json(&self) -> Cow<'_, str> {
        match &self.body {
            Body::Plain(json) => Cow::Borrowed(json),
            Body::Packed(packed, dictionary) => {
                let json = dictionary.unpack(packed.get(self.labels.1 as usize..).unwrap_or_default());
                Cow::Owned(json.expect("it was unpacked once before it was kept"))
            }
        }
    }

    pub(super) fn json_len(&self) -> usize {
        match &self.body {
            Body::Plain(json) => json.len(),
            Body::Packed(packed, _) => {
                Dictionary::unpacked_len(packed.get(self.labels.1 as usize..).unwrap_or_default())
            }
        }
    }

    pub(super) fn labels(&self) -> &str {
        let place = self.labels.0 as usize..self.labels.1 as usize;
        match &self.body {
            Body::Plain(json) => json.get(place),
            Body::Packed(packed, _) => packed.get(place).and_then(|labels| std::str::from_utf8(labels).ok()),
        }
        .unwrap_or("")
    }

    /// None where it would not get smaller.
    pub(super) fn pack(&self, dictionary: &Arc<Dictionary>) -> Option<Self> {
        let Body::Plain(json) = &self.body else { return None };
        let labels = self.labels();
        let packed = dictionary.pack(labels, json)?;
        // A read may fail at nothing.
        if packed.len() >= json.len() || dictionary.unpack(packed.get(labels.len()..)?).as_deref() != Some(json) {
            return None;
        }
        let labels = (0, u32::try_from(labels.len()).ok()?);
        Some(Self { labels, body: Body::Packed(packed, dictionary.clone()) })
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
