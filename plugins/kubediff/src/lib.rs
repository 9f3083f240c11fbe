//! Reports what changes in the cluster, field by field: as lines of the log, to webhooks and to Slack.
//!
//! The administrator's configuration says which kinds, namespaces and fields count. Values of Secrets are never
//! reported.

mod config;
mod diff;
mod notify;
mod path;

use pilothouse_sdk::{k8s_openapi::jiff::Timestamp, log::Level, metrics::Counter, prelude::*};
use serde_json::{Value, json};

pub use crate::{
    config::{Config, Event},
    diff::Difference,
    path::Path,
};

/// Bytes of the differences in a line. The host cuts a message after 4,096 bytes.
const LINE: usize = 3000;

static CHANGES: Counter<1> = Counter::new("kubediff_changes_total", "Changes that were reported.").labels(["event"]);

/// A change that is reported.
pub(crate) struct Report<'a> {
    event: Event,
    time: Timestamp,
    of: TypeMeta,
    key: Key,
    /// The whole object before and after. Values of a Secret are hidden.
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    /// Empty for an object that was added or deleted.
    differences: Vec<Difference>,
}

/// The plugin.
///
/// # Errors
/// Fails if the configuration names something that is not a kind, a path or a URL.
#[plugin]
pub fn kubediff(config: Config) -> Result<Plugin, Error> {
    let mut plugin = Plugin::new("Reports what changes in the cluster, field by field.")
        .config_schema::<Config>()
        .metric(&CHANGES)
        .metric(&notify::NOTIFICATIONS);
    for target in notify::targets(&config) {
        plugin = plugin.http(target.permission()?);
    }
    let ignored = config.ignored()?;
    let watches = config.watches()?;
    // The plugin is built for each call, and so are the targets, which remember within a call who is away.
    let observer = std::rc::Rc::new(Observing { targets: notify::targets(&config), config, ignored });
    Ok(watches.into_iter().fold(plugin, |plugin, watch| {
        let observer = observer.clone();
        plugin.observe(watch, move |ctx, observed| observer.report(ctx, observed))
    }))
}

struct Observing {
    config: Config,
    ignored: Vec<Path>,
    targets: Vec<notify::Target>,
}

impl Observing {
    fn report(&self, ctx: &ObserverContext, observed: &Observed<Dynamic>) -> Result<(), Error> {
        let event = match observed.change {
            Change::Added(_) => Event::Added,
            Change::Updated { .. } => Event::Updated,
            Change::Deleted(_) => Event::Deleted,
        };
        if !self.config.events.contains(&event) || observed.initial && !self.config.initial {
            return Ok(());
        }
        let latest = observed.change.latest();
        let of = latest.type_meta();
        let is_secret = of == TypeMeta::new("v1", "Secret");
        let (mut old, mut new) = match &observed.change {
            Change::Added(new) => (None, Some(serde_json::to_value(new)?)),
            Change::Updated { old, new } => (Some(serde_json::to_value(old)?), Some(serde_json::to_value(new)?)),
            Change::Deleted(old) => (Some(serde_json::to_value(old)?), None),
        };
        let mut differences = Vec::new();
        if let (Some(old), Some(new)) = (&old, &new) {
            differences = diff::differences(old, new, &self.ignored);
            if differences.is_empty() {
                return Ok(());
            }
        }
        if is_secret {
            const VALUES: [&str; 2] = ["data", "stringData"];
            differences.iter_mut().filter(|found| found.path.begins_with(&VALUES)).for_each(Difference::hide);
            let sides = [&mut old, &mut new].into_iter().flatten();
            sides.flat_map(|side| VALUES.map(|member| side.get_mut(member).map(diff::hide))).for_each(drop);
        }
        let (old, new) = (old.as_ref(), new.as_ref());
        let report = Report { event, time: ctx.now(), of, key: latest.key(), old, new, differences };
        log(&report, observed);
        CHANGES.inc([event.as_str()]);
        self.targets.iter().for_each(|target| target.send(&ctx.http(), &report));
        Ok(())
    }
}

/// Writes one line, which is JSON. What has no room in it is counted in `more`.
fn log(report: &Report<'_>, observed: &Observed<Dynamic>) {
    let mut line = json!({
        "event": report.event.as_str(), "apiVersion": report.of.api_version, "kind": report.of.kind, "name": report.key.name,
    });
    if let Some(namespace) = &report.key.namespace {
        line["namespace"] = json!(namespace);
    }
    if report.event == Event::Updated {
        let shown = in_a_line(&report.differences);
        if shown.len() < report.differences.len() {
            line["more"] = json!(report.differences.len() - shown.len());
        }
        line["differences"] = shown.into();
    }
    if observed.merged > 1 {
        line["merged"] = json!(observed.merged);
    }
    for (name, is) in [("initial", observed.initial), ("missed", observed.missed)] {
        if is {
            line[name] = json!(true);
        }
    }
    pilothouse_sdk::log::write(Level::Info, &line.to_string(), &[]);
}

/// Returns the first differences, as many as have room. A value that alone is too long is cut.
fn in_a_line(differences: &[Difference]) -> Vec<Value> {
    let mut room = LINE;
    let whole_or_cut = |difference: &Difference| {
        let whole = json!(difference);
        if whole.to_string().len() <= LINE {
            return whole;
        }
        let side = |value: &Option<Value>| value.as_ref().map(|value| json!(notify::short(value)));
        json!(Difference { path: difference.path.clone(), old: side(&difference.old), new: side(&difference.new) })
    };
    let fits = |item: &Value| {
        let bytes = item.to_string().len() + 1;
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    };
    differences.iter().map(whole_or_cut).take_while(fits).collect()
}
