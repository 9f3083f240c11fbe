//! The memory of a [`Guest`](super::Guest), laid out as the canonical ABI requires.

use std::fmt::Write as _;

use super::Mapping;

/// Where a guest's data begins.
pub(super) const BASE: usize = 1024;

/// The bytes of a guest's memory from [`BASE`] on.
#[derive(Default)]
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    /// `true` while kinds are written as [`Guest::frugal`](super::Guest::frugal) wants them.
    pub(super) frugal: bool,
    /// The Events of the answer.
    pub(super) events: (usize, usize),
}

impl Image {
    pub(super) fn put(&mut self, bytes: &[u8]) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let at = BASE + self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    pub(super) fn text(&mut self, text: &str) -> (usize, usize) {
        (self.put(text.as_bytes()), text.len())
    }

    pub(super) fn list(&mut self, items: &[Vec<u8>]) -> (usize, usize) {
        (self.put(&items.concat()), items.len())
    }

    pub(super) fn record(&mut self, fill: impl FnOnce(&mut Record)) -> usize {
        self.put(&Record::build(fill))
    }

    pub(super) fn watch(&mut self, of: (&str, &str)) -> Vec<u8> {
        let (api_version, kind) = (self.text(of.0), self.text(of.1));
        let frugal = u8::from(self.frugal);
        let without = if self.frugal {
            let annotations = self.text("metadata.annotations");
            let annotations = Record::build(|r| {
                r.pair(annotations);
            });
            self.list(&[annotations])
        } else {
            (0, 0)
        };
        Record::build(|r| {
            // No pattern; every namespace, label and field; every change.
            r.pair(api_version).pair(kind).pair((0, 0)).pair((0, 0)).pair((0, 0)).option(None).option(None);
            r.u8(frugal).align(4).pair(without).u8(frugal).align(4).pair((0, 0));
        })
    }

    pub(super) fn watches(&mut self, kinds: &[(&str, &str)]) -> (usize, usize) {
        let watches: Vec<Vec<u8>> = kinds.iter().map(|of| self.watch(*of)).collect();
        self.list(&watches)
    }

    pub(super) fn mapped_watch(&mut self, of: (&str, &str), mapping: Mapping) -> Vec<u8> {
        let watch = self.watch(of);
        let (tag, text) = match mapping {
            Mapping::SameKey => (2, ""),
            Mapping::Index(index) => (4, index),
            Mapping::Plugin => (5, ""),
        };
        let text = self.text(text);
        Record::build(|r| {
            r.bytes(&watch).u8(tag).align(4).pair(text);
        })
    }

    /// `result<list<key>, string>`: the key `default/mapped`.
    pub(super) fn mapped(&mut self) -> usize {
        let (namespace, name) = (self.text("default"), self.text("mapped"));
        let key = Record::build(|r| {
            r.option(Some(namespace)).pair(name);
        });
        let keys = self.list(&[key]);
        self.record(|r| {
            r.u8(0).align(4).pair(keys);
        })
    }

    pub(super) fn index(&mut self, (name, of, path): (&str, (&str, &str), &str)) -> Vec<u8> {
        let (name, path) = (self.text(name), self.text(path));
        let (api_version, kind) = (self.text(of.0), self.text(of.1));
        Record::build(|r| {
            r.pair(name).pair(api_version).pair(kind).pair(path);
        })
    }

    pub(super) fn permission(&mut self, of: (&str, &str), part: Option<u8>, verbs: &[u8]) -> Vec<u8> {
        let (api_version, kind) = (self.text(of.0), self.text(of.1));
        let verbs = (self.put(verbs), verbs.len());
        Record::build(|r| {
            r.pair(api_version).pair(kind).u8(u8::from(part.is_some())).u8(part.unwrap_or_default()).align(4);
            r.pair(verbs).pair((0, 0)).pair((0, 0));
        })
    }

    pub(super) fn outcome(
        &mut self,
        children: u8,
        list: (usize, usize),
        status: Option<(usize, usize)>,
        requeue_after: Option<u64>,
    ) -> usize {
        let events = self.events;
        self.record(|r| {
            r.u8(0).align(8).u8(children).align(4).pair(list).option(status);
            r.u8(u8::from(requeue_after.is_some())).align(8).u64(requeue_after.unwrap_or_default());
            // The watches stay as they are.
            r.u8(0).align(4).pair((0, 0)).pair(events).align(8);
        })
    }

    /// An Event of the type `Normal`, about the reconciled object.
    pub(super) fn event(&mut self, (reason, message): (&str, &str)) -> Vec<u8> {
        let (reason, message) = (self.text(reason), self.text(message));
        Record::build(|r| {
            r.u8(0)
                .align(4)
                .pair((0, 0))
                .pair((0, 0))
                .option(None)
                .pair((0, 0))
                .u8(0)
                .align(4)
                .pair(reason)
                .pair(message);
        })
    }

    pub(super) fn escaped(&self) -> String {
        self.bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "\\{byte:02x}").unwrap();
            text
        })
    }
}

/// A record, written field by field.
#[derive(Default)]
pub(super) struct Record(Vec<u8>);

impl Record {
    pub(super) fn build(fill: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut record = Self::default();
        fill(&mut record);
        record.0
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn align(&mut self, to: usize) -> &mut Self {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
        self
    }

    /// A string or a list: its address and length.
    pub(super) fn pair(&mut self, (at, len): (usize, usize)) -> &mut Self {
        self.u32(u32::try_from(at).unwrap()).u32(u32::try_from(len).unwrap())
    }

    pub(super) fn number(&mut self, number: Option<u32>) -> &mut Self {
        self.u8(u8::from(number.is_some())).align(4).u32(number.unwrap_or_default())
    }

    pub(super) fn option(&mut self, text: Option<(usize, usize)>) -> &mut Self {
        self.u8(u8::from(text.is_some())).align(4).pair(text.unwrap_or_default())
    }
}
