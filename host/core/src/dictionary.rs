//! Compresses texts of one kind: zstd with a dictionary that is trained on some of them.
//!
//! Objects of a kind share most of their words, and each is too short for a compressor to learn them. A dictionary
//! holds these words. It is needed to unpack, so each packed text holds an `Arc` of its dictionary.
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

/// The level of zstd. On varied manifests, level 1 takes four fifths of the time and a tenth more space; level 6 takes
/// four times as long and saves as much.
const LEVEL: i32 = 3;

/// The largest dictionary in bytes. Varied manifests and API descriptions pack best, and unpack fastest, with 32 kB.
/// With 16 kB or 64 kB they take a tenth more. The tables of both directions are fifteen times as large.
const LARGEST: usize = 32 << 10;

/// zstd's advice: samples a hundred times as long as the dictionary, and at least a tenth of that.
const SAMPLES_MAX: usize = 100 * LARGEST;

/// Largest part of one sample that is used: a few very large objects would dominate.
const SAMPLE_MAX: usize = 32 << 10;

/// The common words of one kind's texts, in the form that zstd uses.
pub struct Dictionary {
    /// `None` without words: zstd's tables for an empty dictionary are the largest.
    words: Option<Words>,
}

struct Words {
    pack: CDict<'static>,
    unpack: DDict<'static>,
}

thread_local! {
    // zstd's working memory is large: about 150 kB to unpack, up to 1 MB to pack. One for each thread that packs.
    static PACKER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

impl Dictionary {
    /// Trains a dictionary on the first 3.2 MB of `samples`. Takes up to a second.
    ///
    /// Too few samples, or samples without common words, give an empty dictionary: each text is then packed by itself.
    /// Returns `None` if memory does not suffice.
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
        // A dictionary almost as long as its samples would hold words that occur once.
        let size = LARGEST.min(joined.len() / 10);
        let mut words = Vec::with_capacity(size);
        if zstd_safe::train_from_buffer(&mut words, &joined, &lengths).is_err() {
            return Some(Self { words: None });
        }
        let words = Words { pack: CDict::try_create(&words, LEVEL)?, unpack: DDict::try_create(&words)? };
        Some(Self { words: Some(words) })
    }

    /// Returns `head` in plain text, followed by `text` packed. Returns `None` if memory does not suffice.
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

    /// Returns the text that was packed. Returns `None` for anything that this dictionary did not pack, and if memory
    /// does not suffice.
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

    /// Returns the length of the packed text in bytes, without unpacking it; 0 for anything else.
    pub(crate) fn unpacked_len(packed: &[u8]) -> usize {
        let length = zstd_safe::get_frame_content_size(packed).ok().flatten();
        length.and_then(|length| length.try_into().ok()).unwrap_or(0)
    }

    /// Returns the bytes held, including the tables of both directions.
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
