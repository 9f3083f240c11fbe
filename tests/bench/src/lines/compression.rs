//! The gain of compressed texts in a cache, and the cost of their reads, on objects as different as those of people.
//!
//! All kinds are mixed. Objects of a single kind have more in common.

use std::{hint::black_box, sync::Arc, time::Instant};

use anyhow::{Context, Result};
use pilothouse_core::{
    dictionary::Dictionary,
    key::TypeMeta,
    object::Object,
    store::{Store, Work},
};

use crate::{manifests, report::shown, statistics::percentile};

/// Number of reads of each object.
const PASSES: usize = 5;

/// Three pairs of figures:
///
/// - compression ratio with a dictionary that was trained on other objects, and without one;
/// - time of a read, compressed and plain;
/// - bytes of a store for each object, compressed (with the dictionary) and plain.
pub(super) fn measure() -> Result<Vec<f64>> {
    let texts = manifests::collect()?;
    let of = TypeMeta::new("v1", "ConfigMap");
    let objects = texts.iter().map(|text| Object::parse(text.as_bytes(), &of)).collect::<Result<Vec<_>, _>>()?;
    let (known, unknown): (Vec<_>, Vec<_>) = objects.iter().enumerate().partition(|(number, _)| number % 2 == 0);
    let known = known.into_iter().map(|(_, object)| object.json());
    let trained = Arc::new(Dictionary::train(known).context("memory does not suffice")?);
    let alone = Arc::new(Dictionary::train(Vec::<String>::new()).context("memory does not suffice")?);
    let unknown: Vec<&Object> = unknown.into_iter().map(|(_, object)| object).collect();
    let plain: usize = unknown.iter().map(|object| object.json_len()).sum();

    let start = Instant::now();
    let packed: Vec<Object> = packed(&unknown, &trained);
    let each = start.elapsed().as_secs_f64() * 1e6 / unknown.len() as f64;
    eprintln!(
        "  {} objects of {} B, {} µs each to pack; a dictionary and its tables take {} kB",
        objects.len(),
        shown(plain as f64 / unknown.len() as f64),
        shown(each),
        trained.bytes() >> 10
    );
    let ratio = |packed: &[Object]| plain as f64 / text_bytes(packed, &unknown) as f64;
    let ratios = [ratio(&packed), ratio(&self::packed(&unknown, &alone))];
    let unpacked: Vec<Object> = unknown.into_iter().cloned().collect();
    let reads = [read(&packed)?, read(&unpacked)?];
    let count = objects.len() as f64;
    let (packed, raw) = stores(of, objects);
    Ok([ratios, reads, [packed as f64 / count, raw as f64 / count]].concat())
}

/// Returns the compressed text, or the plain one if that is smaller.
fn packed(objects: &[&Object], dictionary: &Arc<Dictionary>) -> Vec<Object> {
    objects.iter().map(|object| object.pack(dictionary).unwrap_or_else(|| (*object).clone())).collect()
}

/// Bytes of the texts as held. `plain` has the same objects uncompressed.
fn text_bytes(held: &[Object], plain: &[&Object]) -> usize {
    let text = |(held, plain): (&Object, &&Object)| held.bytes() + plain.json_len() - plain.bytes();
    held.iter().zip(plain).map(text).sum()
}

/// Measures the median time of a read in microseconds. A read copies the text, as for a plugin.
fn read(objects: &[Object]) -> Result<f64> {
    let mut times = Vec::with_capacity(PASSES * objects.len());
    for _ in 0..PASSES {
        for object in objects {
            let start = Instant::now();
            black_box(object.json().into_owned());
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    let (median, rare) = (percentile(&times, 50.0), percentile(&times, 99.0));
    eprintln!("  a read: p50 {} µs, p99 {} µs", shown(median.unwrap_or_default()), shown(rare.unwrap_or_default()));
    median.context("nothing was read")
}

/// Returns the bytes that a store counts, after it has compressed as it decides, and before.
fn stores(of: TypeMeta, objects: Vec<Object>) -> (usize, usize) {
    let mut store = Store::new(of);
    for object in objects {
        store.upsert(object);
    }
    let raw = store.bytes();
    store.set_compressed(true);
    while let Some(mut done) = store.packing().map(Work::run) {
        store.packed(&mut done);
    }
    (store.bytes(), raw)
}
