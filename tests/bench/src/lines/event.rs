//! A watch event from bytes to a queued key: cut into lines, parsed, stored, routed to its owner, enqueued.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::BytesMut;
use pilothouse_core::{
    key::{Key, TypeMeta},
    reflector::Input,
    route::{Mapping, keys},
    workqueue::{CHANGE, Workqueue},
};

use super::cache::{Cache, watch_line};
use crate::{
    clock::cpu_time,
    objects::{Pod, scatter},
    statistics::median,
};

/// Number of objects in the cache.
pub(crate) const CACHED: u64 = 50_000;
/// Number of events in a pass.
pub(crate) const EVENTS: u64 = 20_000;
pub(crate) const PASSES: u64 = 5;
/// Bytes of a read from a connection.
const CHUNK: usize = 16 << 10;

/// Returns the lines of one pass, with line feeds: some pods at new versions.
pub(crate) fn lines(pass: u64) -> String {
    let mut lines = String::new();
    for event in pass * EVENTS..(pass + 1) * EVENTS {
        watch_line(&mut lines, "MODIFIED", &Pod::of(scatter(event) % CACHED), CACHED + 1 + event);
        lines.push('\n');
    }
    lines
}

/// Events per second of a core, without the connection itself.
pub(super) fn measure() -> Result<Vec<f64>> {
    let (mut cache, _) = Cache::new(true)?;
    cache.stream(CACHED)?;
    let mapping = Mapping::Owner { of: TypeMeta::new("apps/v1", "ReplicaSet"), namespaced: true };
    let mut queue: Workqueue<Key> = Workqueue::default();
    let mut passes = Vec::new();
    for pass in 0..PASSES {
        let bytes = lines(pass);
        let now = Duration::from_secs(pass);
        let (mut changes, mut routed) = (0, Vec::new());
        let time = cpu_time(|| {
            let mut buffer = BytesMut::new();
            for chunk in bytes.as_bytes().chunks(CHUNK) {
                let seen = buffer.len();
                buffer.extend_from_slice(chunk);
                let mut from = seen;
                while let Some(at) = memchr::memchr(b'\n', &buffer[from..]) {
                    let line = buffer.split_to(from + at + 1);
                    from = 0;
                    cache.feed(Input::Line(line.trim_ascii()), |change| {
                        changes += 1;
                        keys(&mapping, &change, |_, _, _| Vec::new(), &mut routed);
                        for key in routed.drain(..) {
                            queue.add(now, key, CHANGE);
                        }
                    });
                }
            }
        });
        passes.push(EVENTS as f64 / time.as_secs_f64());
        ensure!(changes == EVENTS, "{changes} of {EVENTS} events were changes");
        ensure!(!queue.is_empty(), "nothing was routed");
        while let Some(item) = queue.get(now) {
            queue.done(now, &item.key);
        }
    }
    Ok(median(&passes).into_iter().collect())
}
