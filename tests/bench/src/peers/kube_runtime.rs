//! kube-runtime's reflector: a store of typed objects. It is fed without a network, as ours is.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod as Typed;
use kube::api::WatchEvent;
use kube_runtime::{reflector::store::Writer, watcher::Event};
use pilothouse_core::{key::TypeMeta, object::Object};

use crate::{
    clock::cpu_time,
    lines::event::{CACHED, EVENTS, PASSES, lines},
    memory::{held_here, peak, reset_peak},
    objects::Pod,
    statistics::median,
};

/// Its name in the report.
pub(crate) const NAME: &str = "kube-runtime 5 reflector of typed Pods";

/// Number of objects. It is lower than ours, because each is several times larger, and the ratio does not depend on the
/// number.
const OBJECTS: u64 = 20_000;

/// Measures parsing and storing. Cutting into lines, routing and enqueueing are not the reflector's work.
pub(crate) fn event() -> Result<Vec<f64>> {
    let mut writer = Writer::<Typed>::default();
    fill(&mut writer, CACHED, 1)?;
    let mut passes = Vec::new();
    for pass in 0..PASSES {
        let lines = lines(pass);
        let mut stored = 0;
        let time = cpu_time(|| {
            for line in lines.lines() {
                if let Ok(WatchEvent::Modified(pod)) = serde_json::from_str(line) {
                    writer.apply_watcher_event(&Event::Apply(pod));
                    stored += 1;
                }
            }
        });
        ensure!(stored == EVENTS, "{stored} of {EVENTS} events were stored");
        passes.push(EVENTS as f64 / time.as_secs_f64());
    }
    Ok(median(&passes).into_iter().collect())
}

/// Measures memory as the kernel counts it, divided by the same stripped JSON as ours. The reflector keeps whole pods.
pub(crate) fn object_bytes() -> Result<Vec<f64>> {
    let before = held_here()?;
    let mut writer = Writer::<Typed>::default();
    fill(&mut writer, OBJECTS, 1)?;
    let held = held_here()?.saturating_sub(before);
    let of = TypeMeta::new("v1", "Pod");
    let mut stripped = 0;
    for number in 0..OBJECTS {
        let mut text = String::new();
        Pod::of(number).write(&mut text, number + 1, true);
        stripped += Object::parse(text.as_bytes(), &of)?.json().len();
    }
    ensure!(writer.as_reader().len() as u64 == OBJECTS, "objects are missing");
    Ok(vec![held as f64 / stripped as f64])
}

/// Measures the peak of a relist divided by the settled size, as for ours.
pub(crate) fn relist_peak() -> Result<Vec<f64>> {
    let before = held_here()?;
    let mut writer = Writer::<Typed>::default();
    fill(&mut writer, OBJECTS, 1)?;
    let settled = held_here()?.saturating_sub(before);
    let mut ratios = Vec::new();
    for from in [1, OBJECTS + 1] {
        reset_peak()?;
        fill(&mut writer, OBJECTS, from)?;
        ratios.push(peak()?.saturating_sub(before) as f64 / settled as f64);
    }
    Ok(ratios)
}

/// A list as the watcher delivers it.
fn fill(writer: &mut Writer<Typed>, count: u64, from: u64) -> Result<()> {
    writer.apply_watcher_event(&Event::Init);
    let mut text = String::new();
    for number in 0..count {
        text.clear();
        Pod::of(number).write(&mut text, from + number, true);
        let pod = serde_json::from_str(&text).context("the pod is not one to k8s-openapi")?;
        writer.apply_watcher_event(&Event::InitApply(pod));
    }
    writer.apply_watcher_event(&Event::InitDone);
    Ok(())
}
