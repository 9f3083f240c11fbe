//! Reflector and store together, fed as the host's driver feeds them, without a network.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use pilothouse_core::{
    key::TypeMeta,
    object::Keep,
    reflector::{Config, Effect, Input, PAGE_SIZE, Reflector},
    store::{Change, Store},
};

use crate::objects::Pod;

/// A cache of pods.
pub(super) struct Cache {
    reflector: Reflector,
    pub(super) store: Store,
    effects: Vec<Effect>,
    now: Duration,
}

impl Cache {
    /// Creates an empty cache and returns its first request.
    pub(super) fn new(streaming: bool) -> Result<(Self, Effect)> {
        let of = TypeMeta::new("v1", "Pod");
        let config =
            Config { of: of.clone(), keep: Keep::default(), page_size: PAGE_SIZE, streaming, seen: None, seed: 1 };
        let mut cache = Self {
            reflector: Reflector::new(config),
            store: Store::new(of),
            effects: Vec::new(),
            now: Duration::from_secs(1),
        };
        cache.feed(Input::Start, |_| ());
        let request = cache.feed(Input::Resolved, |_| ()).context("the reflector asks for nothing")?;
        Ok((cache, request))
    }

    /// Passes an input to the reflector, applies its effects to the store, passes each change on, and returns the next
    /// request.
    pub(super) fn feed(&mut self, input: Input<'_>, mut changed: impl FnMut(Change)) -> Option<Effect> {
        self.now += Duration::from_micros(10);
        self.reflector.step(self.now, input, &mut self.effects);
        let mut request = None;
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Upsert(object) => self.store.upsert(object).into_iter().for_each(&mut changed),
                Effect::Remove(last) => self.store.remove(&last).into_iter().for_each(&mut changed),
                Effect::BeginReplace { went_back } => self.store.begin_replace(went_back),
                Effect::FinishReplace { version } => {
                    self.store.finish_replace(version).into_iter().for_each(&mut changed);
                }
                Effect::AbortReplace => self.store.abort_replace(),
                Effect::Covered(version) => self.store.advance(version),
                Effect::Synced
                | Effect::State(_)
                | Effect::Unreadable { .. }
                | Effect::Relist(_)
                | Effect::Restored => {}
                asked => request = Some(asked),
            }
        }
        request
    }

    /// Reads `count` pods by a streaming list, with versions from 1 upwards.
    pub(super) fn stream(&mut self, count: u64) -> Result<()> {
        self.feed(Input::Opened, |_| ());
        let mut line = String::new();
        for number in 0..count {
            line.clear();
            watch_line(&mut line, "ADDED", &Pod::of(number), number + 1);
            if let Some(asked) = self.feed(Input::Line(line.as_bytes()), drop) {
                bail!("the reflector asks for {asked:?} amid the list");
            }
        }
        let end = format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{count}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}"#
        );
        self.feed(Input::Line(end.as_bytes()), drop);
        self.check(count)
    }

    /// Answers `request` and the following ones with pages of `count` pods, at versions from `from` upwards, until the
    /// reflector watches.
    pub(super) fn pages(&mut self, mut request: Effect, count: u64, from: u64) -> Result<()> {
        while let Effect::List { limit, continue_token, .. } = request {
            let begin = continue_token.map_or(Ok(0), |token| token.parse()).context("not a continue token of ours")?;
            // Each page has its own body, as from the network.
            let body = page(begin, (begin + u64::from(limit)).min(count), count, from);
            request = self.feed(Input::Page(body.as_bytes()), drop).context("the reflector asks for nothing")?;
        }
        let Effect::Watch { .. } = request else { bail!("the reflector asks for {request:?} after the list") };
        self.feed(Input::Opened, drop);
        self.check(count)
    }

    /// Ends the watch as expired. Returns the first request of the new list, after the wait and the discovery that
    /// precede it.
    pub(super) fn expire(&mut self) -> Result<Effect> {
        let line = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"too old resource version","code":410}}"#;
        let mut request = self.feed(Input::Line(line), drop);
        loop {
            request = match request.context("the reflector asks for nothing")? {
                Effect::Wait(delay) => {
                    self.now += delay;
                    self.feed(Input::Elapsed, drop)
                }
                Effect::Resolve => self.feed(Input::Resolved, drop),
                list => return Ok(list),
            };
        }
    }

    fn check(&self, count: u64) -> Result<()> {
        let held = self.store.len();
        anyhow::ensure!(held as u64 == count, "the store holds {held} of {count} objects");
        Ok(())
    }
}

/// Appends a line of a watch, without the line feed.
pub(crate) fn watch_line(out: &mut String, event: &str, pod: &Pod, version: u64) {
    out.push_str(r#"{"type":""#);
    out.push_str(event);
    out.push_str(r#"","object":"#);
    pod.write(out, version, true);
    out.push('}');
}

fn page(begin: u64, end: u64, count: u64, from: u64) -> String {
    let more = if end < count { format!(r#","continue":"{end}""#) } else { String::new() };
    let version = from + count;
    let mut body =
        format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"{more}}},"items":["#);
    for number in begin..end {
        if number > begin {
            body.push(',');
        }
        Pod::of(number).write(&mut body, from + number, false);
    }
    body.push_str("]}");
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_filled_by_a_stream_and_by_pages_and_is_listed_again_where_its_watch_expires() -> Result<()> {
        let (mut streamed, _) = Cache::new(true)?;
        streamed.stream(3)?;
        let (mut paged, first) = Cache::new(false)?;
        paged.pages(first, 3, 1)?;
        let again = paged.expire()?;
        paged.pages(again, 5, 4)
    }
}
