//! Packing texts of one kind: zstd with a dictionary that is trained on some of them.
//!
//! Objects of a kind say much the same in the same words, and are too short each for a compressor to learn the words from. A
//! dictionary holds them: what is packed with it needs it to be read, so each packed text holds an `Arc` of its own.
//!
//! ```
//! use std::sync::Arc;
//! use pilothouse_core::{dictionary::Dictionary, key::TypeMeta, object::Object};
//!
//! let of = TypeMeta::new("v1", "ConfigMap");
//! let settings = |i: u32| {
//!     let metadata = format!(r#"{{"name":"settings-{i}","namespace":"default","uid":"{i}","resourceVersion":"{i}"}}"#);
//!     let data: Vec<_> = (0..9).map(|n| format!(r#""setting-{n}.properties":"{:x}""#, i.wrapping_mul(77_777_777 + n))).collect();
//!     Object::parse(format!(r#"{{"metadata":{metadata},"data":{{{}}}}}"#, data.join(",")).as_bytes(), &of)
//! };
//! let samples = (0..1_000).map(settings).collect::<Result<Vec<_>, _>>()?;
//! let dictionary = Arc::new(Dictionary::train(samples.iter().map(Object::json)).expect("memory suffices"));
//! let plain = settings(7_000)?;
//! let packed = plain.pack(&dictionary).expect("it gets smaller");
//! assert!(packed.bytes() + 200 < plain.bytes());
//! assert_eq!(packed.json(), plain.json());
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::{cell::RefCell, fmt};

use zstd_safe::{CCtx, CDict, DCtx, DDict};

/// The level of zstd. On varied manifests level 1 packs in four fifths of the time, and to a tenth more; level 6 takes four times as
/// long, to save as much.
const LEVEL: i32 = 3;

/// The largest dictionary in bytes. Varied manifests and API descriptions get smallest, and are read fastest, with 32 kB: 16 kB
/// pack to a tenth more, and so do 64, in which zstd's training of some kinds finds half as much. Tables of both directions are
/// fifteen times as large.
const LARGEST: usize = 32 << 10;

/// zstd's advice: samples a hundred times as long as the dictionary, and a tenth of that at least.
const SAMPLES_MAX: usize = 100 * LARGEST;

/// How much of one sample is looked at. A few very large objects would teach nothing of the others.
const SAMPLE_MAX: usize = 32 << 10;

/// What texts of one kind have in common, in the form that zstd packs and unpacks with.
pub struct Dictionary {
    /// None without words: zstd's tables for an empty dictionary are the largest.
    words: Option<Words>,
}

struct Words {
    pack: CDict<'static>,
    unpack: DDict<'static>,
}

thread_local! {
    // What zstd works in is larger than what it works on: about 150 kB to read, up to 1 MB to pack. One for each thread
    // that does it.
    static PACKER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

impl Dictionary {
    /// Learns from `samples`: what is beyond 3.2 MB of them is not looked at. Takes up to a second.
    ///
    /// From too few samples, or such that have nothing in common, comes an empty dictionary: texts are then packed each by
    /// itself. None where memory does not suffice.
    pub fn train<S: AsRef<str>>(samples: impl IntoIterator<Item = S>) -> Option<Self> {
        let (mut joined, mut lengths) = (Vec::new(), Vec::new());
        for sample in samples {
            let sample = sample.as_ref().as_bytes();
            let sample = &sample[..sample.len().min(SAMPLE_MAX)];
            if joined.len() + sample.len() > SAMPLES_MAX {
                break;
            }
            joined.extend_from_slice(sample);
            lengths.push(sample.len());
        }
        // A dictionary that is not much shorter than its samples holds what occurs once.
        let size = LARGEST.min(joined.len() / 10);
        let mut words = Vec::with_capacity(size);
        if zstd_safe::train_from_buffer(&mut words, &joined, &lengths).is_err() {
            return Some(Self { words: None });
        }
        let words = Words { pack: CDict::try_create(&words, LEVEL)?, unpack: DDict::try_create(&words)? };
        Some(Self { words: Some(words) })
    }

    /// `head` as it is, and after it `text` packed. None where memory does not suffice.
    pub(crate) fn pack(&self, head: &str, text: &str) -> Option<Box<[u8]>> {
        let mut body = Vec::with_capacity(zstd_safe::compress_bound(text.len()));
        PACKER.with_borrow_mut(|context| {
            let context = made(context, CCtx::try_create)?;
            match &self.words {
                Some(words) => context.compress_using_cdict(&mut body, text.as_bytes(), &words.pack).ok(),
                None => context.compress(&mut body, text.as_bytes(), LEVEL).ok(),
            }
        })?;
        let mut packed = Vec::with_capacity(head.len() + body.len());
        packed.extend_from_slice(head.as_bytes());
        packed.append(&mut body);
        Some(packed.into())
    }

    /// The text that was packed. None for anything but what this dictionary packed, without a head, and where memory does not
    /// suffice.
    pub(crate) fn unpack(&self, packed: &[u8]) -> Option<String> {
        let mut text = Vec::new();
        text.try_reserve_exact(Self::unpacked_len(packed)).ok()?;
        UNPACKER.with_borrow_mut(|context| {
            let context = made(context, DCtx::try_create)?;
            match &self.words {
                Some(words) => context.decompress_using_ddict(&mut text, packed, &words.unpack).ok(),
                None => context.decompress(&mut text, packed).ok(),
            }
        })?;
        String::from_utf8(text).ok()
    }

    /// Bytes of the text that was packed, without a look at it; 0 for anything else.
    pub(crate) fn unpacked_len(packed: &[u8]) -> usize {
        let length = zstd_safe::get_frame_content_size(packed).ok().flatten();
        length.and_then(|length| length.try_into().ok()).unwrap_or(0)
    }

    /// Bytes held, the tables of both directions included.
    pub fn bytes(&self) -> usize {
        self.words.as_ref().map_or(0, |words| words.pack.sizeof() + words.unpack.sizeof())
    }
}

fn made<C>(context: &mut Option<C>, make: fn() -> Option<C>) -> Option<&mut C> {
    if context.is_none() {
        *context = make();
    }
    context.as_mut()
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionary").field("bytes", &self.bytes()).finish()
    }
}

#[cfg(test)]
mod tests;
