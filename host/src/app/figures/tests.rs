use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

use pilothouse_core::{election::Timings, informer::InformerKey, key::TypeMeta};
use tokio::runtime::Handle;

use super::*;
use crate::{
    acting::Acting,
    app::{Host, Options},
    dispatch::{Called, Hook, Observer as _},
    election,
    metrics::encode,
    plugin::Mode,
    testing::Api,
    writer::Events,
};

const PAGE: &str = include_str!("../../../../docs/metrics.md");

/// A family as it is exposed, and as a row of the page describes it.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    of: String,
    /// In the order of samples. `None` if there is no sample.
    labels: Option<String>,
    help: String,
}

/// Reads the families of OpenMetrics text, by the names that queries use. Checks that each is described once and that
/// no series comes twice.
fn exposed(text: &str) -> BTreeMap<String, Family> {
    let (mut families, mut series) = (BTreeMap::<String, Family>::new(), std::collections::HashSet::new());
    let (mut name, mut help) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ').expect("a name and a text").1.trim_end_matches('.').to_owned();
        } else if let Some(described) = line.strip_prefix("# TYPE ") {
            let (family, of) = described.split_once(' ').expect("a name and a type");
            name = if of == "counter" { format!("{family}_total") } else { family.to_owned() };
            let family = Family { of: of.to_owned(), labels: None, help: help.clone() };
            assert!(families.insert(name.clone(), family).is_none(), "described twice: {name}");
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').expect("a series and a value");
            assert!(sample.starts_with(&name), "{sample} stands under {name}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(sample), "twice: {sample}");
            let labels = sample.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
            let labels = labels.split("\",").filter_map(|label| label.split_once('=')).map(|(label, _)| label);
            let labels: Vec<_> = labels.filter(|label| *label != "le").map(|label| format!("`{label}`")).collect();
            families.get_mut(&name).expect("it was described").labels = Some(labels.join(", "));
        }
    }
    assert!(text.ends_with("# EOF\n"));
    families
}

/// Reads the rows of the page.
fn listed() -> BTreeMap<String, Family> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let family = |row: &str| {
        let (name, row) = row.split_once("` | ").expect("a name");
        let (of, row) = row.split_once(" | ").expect("a type");
        let (labels, help) = row.split_once(" | ").expect("labels");
        let labels = Some(labels.trim().to_owned());
        (name.to_owned(), Family { of: of.to_owned(), labels, help: help.to_owned() })
    };
    rows.map(family).collect()
}

#[tokio::test]
async fn the_page_of_metrics_lists_what_is_exposed() {
    let api = Api::start().await;
    let (mode, grace_period) = (Mode::Granted, Duration::ZERO);
    let (namespace, name) = ("default".to_owned(), "pilothouse".to_owned());
    let election = Some(election::Options { namespace, name, timings: Timings::default(), revision: None });
    let (plugins, stand_ins) = (PathBuf::from("none"), Vec::new());
    let check_accounts_every = grace_period;
    let options =
        Options { plugins, cache: None, mode, grace_period, webhooks: None, election, stand_ins, check_accounts_every };
    let host = Host::new(options, &api.cluster).expect("there is a host");
    let counters = Counters::default();
    let plugin = PluginName::new("apples").expect("it is a name");
    counters.begin(&plugin);
    let called = Called { hook: Hook::Map, ok: true, took: Duration::ZERO, trap: None };
    counters.calls.called(&plugin, None, &called);
    let pods = InformerKey::all(TypeMeta::new("v1", "Pod"));
    let lease = host.view.informers.acquire(pods, "apples");
    lease.synced().wait_for(|synced| *synced).await.expect("it syncs");
    let events = Events::start(api.cluster.clone(), Acting::new(true), Arc::default(), "test", &Handle::current());
    let exposed = exposed(&encode(&counters.register(&host.view, &events)));

    let listed = listed();
    let mut wrong = String::new();
    for (name, Family { of, labels, help }) in &exposed {
        let known = listed.get(name);
        let labels = labels.as_deref().or_else(|| known?.labels.as_deref()).unwrap_or("?");
        let row = Family { of: of.clone(), labels: Some(labels.to_owned()), help: help.clone() };
        if known != Some(&row) {
            writeln!(wrong, "| `{name}` | {of} | {labels} | {help} |").expect("a string takes everything");
        }
    }
    assert!(wrong.is_empty(), "docs/metrics.md must have these rows:\n{wrong}");
    let gone: Vec<_> = listed.keys().filter(|name| !exposed.contains_key(*name)).collect();
    assert!(gone.is_empty(), "docs/metrics.md must not have rows for {gone:?}");
}
