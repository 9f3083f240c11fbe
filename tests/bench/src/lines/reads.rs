//! The cost of tracking what each key has read, and of finding the keys that a change wakes.

use std::{hint::black_box, sync::Arc};

use anyhow::{Context, Result, ensure};
use pilothouse_core::{
    key::{Key, TypeMeta},
    object::Object,
    reads::{Aspect, Selection, Tracker},
    selector::Selector,
    store::Change,
};

use crate::{
    clock::{cpu_time, micros_each},
    memory::held_here,
    report::shown,
    statistics::median,
};

/// Number of keys of the controller.
const KEYS: usize = 10_000;
/// Number of objects that only one key reads.
const OBJECTS: usize = 10;
const PASSES: usize = 50;

/// Memory of a read by one key, and of a read that all keys share; time to route a change on which all keys depend, and
/// one on which a single key depends.
pub(super) fn measure() -> Result<Vec<f64>> {
    let before = held_here()?;
    let own = tracked(|key, read| read.objects(key));
    let own_bytes = held_here()?.saturating_sub(before) as f64 / (KEYS * OBJECTS) as f64;
    eprintln!("  {} B counted a read of its own", shown(own.bytes() as f64 / (KEYS * OBJECTS) as f64));
    drop(own);

    let shared = tracked(|_, read| (0..OBJECTS).for_each(|n| read.selection(&format!("app=web,shard!={n}"))));
    let shared_bytes = shared.bytes() as f64 / (KEYS * OBJECTS) as f64;
    let all = time(&mut tracked(|_, read| read.selection("app=web")), "web", KEYS)?;
    let one = time(&mut tracked(|key, read| read.selection(&format!("app=key-{key}"))), "key-4711", 1)?;
    Ok(vec![own_bytes, shared_bytes, all, one])
}

/// The reads of one reconcile.
struct Reading<'a> {
    tracker: &'a mut Tracker,
    run: pilothouse_core::reads::Run,
    of: &'a TypeMeta,
}

impl Reading<'_> {
    fn objects(&mut self, key: usize) {
        for n in 0..OBJECTS {
            let read = Key::new(Some("orders-production"), &format!("orders-{key:05}-{n}"));
            self.tracker.read_object(self.run, self.of, &read);
        }
    }

    fn selection(&mut self, labels: &str) {
        let labels = Selector::parse(labels).expect("a selector");
        let selection =
            Selection { namespace: Some("orders-production".into()), labels, index: None, aspect: Aspect::Whole };
        self.tracker.read_selection(self.run, self.of, selection);
    }
}

fn tracked(mut reads: impl FnMut(usize, &mut Reading<'_>)) -> Tracker {
    let (mut tracker, of) = (Tracker::default(), TypeMeta::new("v1", "Pod"));
    for key in 0..KEYS {
        let run = tracker.begin(&Key::new(Some("orders-production"), &format!("apple-{key:05}")));
        reads(key, &mut Reading { tracker: &mut tracker, run, of: &of });
        tracker.commit(run);
    }
    tracker
}

/// Measures the routing of a change of a Pod with the label `app`, in microseconds.
fn time(tracker: &mut Tracker, app: &str, expected: usize) -> Result<f64> {
    let of = TypeMeta::new("v1", "Pod");
    let pod = |version: usize| {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"orders-production","uid":"a","resourceVersion":"{version}","labels":{{"app":"{app}","tier":"backend","pod-template-hash":"5d4f8c7b9"}}}}}}"#
        );
        Object::parse(json.as_bytes(), &of).map(|object| Some(Arc::new(object)))
    };
    let (mut times, mut woken) = (Vec::new(), Vec::new());
    for pass in 0..PASSES {
        let change = Change { old: pod(pass + 1)?, new: pod(pass + 2)?, missed: false };
        woken.clear();
        times.push(micros_each(cpu_time(|| tracker.wakes(&of, black_box(&change), &mut woken)), 1));
        ensure!(woken.len() == expected, "{} keys were woken, and not {expected}", woken.len());
    }
    median(&times).context("there are no passes")
}
