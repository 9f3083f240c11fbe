//! Audits the cluster, and reports what breaks a rule:
//! - objects without an owner;
//! - objects without the labels that costs are booked by;
//! - drift: objects that are no longer as they were applied.
//!
//! By its grants, it reads the cluster, and writes nothing but Events and the status of its reports.

mod desired;
mod drift;
mod resource;

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use pilothouse_sdk::{
    metrics::{Counter, Gauge},
    prelude::*,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::desired::Desired;
pub use crate::resource::{AuditReport, AuditReportSpec, AuditReportStatus, Finding, Rule};

/// Findings in a status. Its size has a bound.
const LISTED: usize = 100;

/// Events of one audit. More would help nobody.
const EVENTS: usize = 20;

/// Paths of fields in the message of a finding.
const PATHS: usize = 5;

static FINDINGS: Gauge<2> = Gauge::new("auditor_findings", "Objects that break a rule.").labels(["report", "rule"]);
static AUDITS: Counter = Counter::new("auditor_audits_total", "Audits of the cluster.");

/// The administrator's configuration: the rules. Kinds are written as `v1/Pod` and `apps/v1/Deployment`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Kinds whose objects need an owner.
    pub owned: Vec<String>,
    /// Kinds whose objects need `labels`.
    pub labelled: Vec<String>,
    /// The labels by which costs are booked, such as `team`.
    pub labels: Vec<String>,
    /// Kinds whose objects must be as `kubectl apply` applied them, or as `desired` declares them.
    pub applied: Vec<String>,
    /// A ConfigMap with objects as they should be, each entry in JSON. It counts before what `kubectl apply` left.
    pub desired: Option<Reference>,
    /// Paths of fields that may drift, with all below them: `spec.replicas`.
    pub ignore: Vec<String>,
    /// Namespaces that are not audited.
    pub except_namespaces: Vec<String>,
    /// The shortest time between two audits. 0 audits after each change.
    pub pause_seconds: u32,
}

/// Names a ConfigMap.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Reference {
    pub namespace: String,
    pub name: String,
}

impl Reference {
    fn key(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }
}

/// A kind, and the rules for its objects.
struct Audited {
    of: TypeMeta,
    rules: Vec<Rule>,
}

impl Config {
    /// # Errors
    /// Fails if a text names no kind.
    fn audited(&self) -> Result<Vec<Audited>, Error> {
        let mut all: Vec<Audited> = Vec::new();
        for (kinds, rule) in
            [(&self.owned, Rule::Ownerless), (&self.labelled, Rule::MissingLabels), (&self.applied, Rule::Drift)]
        {
            for kind in kinds {
                let of: TypeMeta = kind.parse()?;
                match all.iter_mut().find(|audited| audited.of == of) {
                    Some(audited) => audited.rules.push(rule),
                    None => all.push(Audited { of, rules: vec![rule] }),
                }
            }
        }
        Ok(all)
    }
}

/// The plugin.
///
/// # Errors
/// Fails if the configuration names something that is not a kind.
#[plugin]
pub fn auditor(config: Config) -> Result<Plugin, Error> {
    let audited = config.audited()?;
    // Its own status would wake it. So would each change of a status that nobody audits.
    let mut controller = Controller::of::<AuditReport>().when(Predicate::generation());
    for Audited { of, .. } in &audited {
        controller = controller.reads_with(Watch::to(of.clone()).without(["status"]));
    }
    let maps = TypeMeta::new("v1", "ConfigMap");
    if let Some(Reference { namespace, name }) = &config.desired
        && audited.iter().all(|audited| audited.of != maps)
    {
        let one = Watch::to(maps).namespaces([namespace]).fields(format!("metadata.name={name}"));
        controller = controller.reads_with(one);
    }
    let controller = controller.reconcile(move |ctx, report| reconcile(&config, &audited, ctx, report));
    Ok(Plugin::new("Reports objects without owner, without cost labels, and with drift.")
        .crd::<AuditReport>()
        .config_schema::<Config>()
        .metric(&FINDINGS)
        .metric(&AUDITS)
        .permission(Permission::events())
        .controller(controller))
}

fn reconcile(config: &Config, audited: &[Audited], ctx: &Context, report: &AuditReport) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        Rule::ALL.iter().for_each(|rule| FINDINGS.set([report.name(), rule.as_str()], 0.0));
        return Ok(Outcome::new());
    }
    let before = report.status.clone().unwrap_or_default();
    if let Some(wait) = pause(config, ctx, report, &before) {
        // Debounce: a rollout changes many objects, and one audit after it is enough.
        return Ok(Outcome::new().requeue_after(wait));
    }

    AUDITS.inc([]);
    let mut findings = Vec::new();
    let mut desired = declared(config, ctx, &mut findings)?;
    for kind in audited {
        audit(config, kind, ctx, &report.spec.namespaces, &mut desired, &mut findings)?;
    }
    let in_scope = |key: &Key| is_audited(config, &report.spec.namespaces, key.namespace.as_ref());
    for (of, key) in desired.left().filter(|(_, key)| in_scope(key)) {
        if audited.iter().any(|kind| kind.of == of && kind.rules.contains(&Rule::Drift)) {
            findings.push(drifted(&of, key, "it is declared, and does not exist".to_owned()));
        } else if let Some(reference) = &config.desired {
            // The auditor may not read that kind, so it writes no Event on its object.
            let problem = format!("it declares the {} {key}, and that kind is not audited for drift", of.kind);
            findings.push(drifted(&TypeMeta::new("v1", "ConfigMap"), reference.key(), problem));
        }
    }
    let [ownerless, missing_labels, drift] = Rule::ALL.map(|rule| {
        let count = findings.iter().filter(|finding| finding.rule == rule).count();
        FINDINGS.set([report.name(), rule.as_str()], count as f64);
        u32::try_from(count).unwrap_or(u32::MAX)
    });
    let mut conditions = before.conditions.clone();
    let message = format!("{ownerless} ownerless, {missing_labels} without labels, {drift} drifted");
    let reason = if findings.is_empty() { "NothingFound" } else { "Findings" };
    conditions.set(ctx.condition("Clean", findings.is_empty(), reason, message));

    findings.truncate(LISTED);
    let events = findings.iter().filter(|finding| !before.findings.contains(finding)).take(EVENTS).map(event);
    let outcome = Outcome::new().events(events);
    Ok(outcome.status(AuditReportStatus {
        audited_at: Some(seconds(ctx.now()).to_string()),
        ownerless,
        missing_labels,
        drift,
        findings,
        conditions,
        observed_generation: report.metadata.generation,
    }))
}

/// Returns how long the next audit has to wait.
fn pause(config: &Config, ctx: &Context, report: &AuditReport, before: &AuditReportStatus) -> Option<Duration> {
    if before.observed_generation != report.metadata.generation {
        return None;
    }
    let last: Timestamp = before.audited_at.as_ref()?.parse().ok()?;
    let passed = Duration::try_from(ctx.now().duration_since(last)).ok()?;
    Duration::from_secs(config.pause_seconds.into()).checked_sub(passed).filter(|wait| !wait.is_zero())
}

fn seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Returns the declared objects, and adds what is wrong with their declaration.
fn declared(config: &Config, ctx: &Context, findings: &mut Vec<Finding>) -> Result<Desired, Error> {
    let Some(reference) = &config.desired else { return Ok(Desired::default()) };
    let mut desired = Desired::of(ctx.cache().get::<ConfigMap>(reference.key())?);
    let problems = std::mem::take(&mut desired.problems);
    let of = TypeMeta::new("v1", "ConfigMap");
    findings.extend(problems.into_iter().map(|problem| drifted(&of, reference.key(), problem)));
    Ok(desired)
}

fn drifted(of: &TypeMeta, key: Key, message: String) -> Finding {
    let TypeMeta { api_version, kind } = of.clone();
    Finding { rule: Rule::Drift, api_version, kind, namespace: key.namespace, name: key.name, message }
}

/// Returns `true` if a report covers objects of this namespace.
fn is_audited(config: &Config, namespaces: &[String], namespace: Option<&String>) -> bool {
    let is_excepted = namespace.is_some_and(|namespace| config.except_namespaces.contains(namespace));
    !is_excepted && (namespaces.is_empty() || namespace.is_some_and(|namespace| namespaces.contains(namespace)))
}

/// Adds what is wrong with the objects of a kind.
fn audit(
    config: &Config,
    kind: &Audited,
    ctx: &Context,
    namespaces: &[String],
    desired: &mut Desired,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    // Only changes of these fields wake the report.
    let mut fields = vec!["metadata.labels", "metadata.ownerReferences", "metadata.deletionTimestamp"];
    if kind.rules.contains(&Rule::Drift) {
        fields.extend(["metadata.annotations", "spec", "data"]);
    }
    let everywhere = || ctx.cache().list_dynamic(kind.of.clone()).fields::<Dynamic>(fields.clone());
    let lists = match namespaces {
        [] => vec![everywhere()],
        some => some.iter().map(|namespace| everywhere().namespace(namespace)).collect(),
    };
    let except: BTreeSet<&str> = config.except_namespaces.iter().map(String::as_str).collect();
    for object in lists.into_iter().flatten() {
        let object = object?;
        let metadata = &object.metadata;
        let wanted = desired.take(&kind.of, &object.key());
        let is_excepted = metadata.namespace.as_deref().is_some_and(|namespace| except.contains(namespace));
        if is_excepted || metadata.deletion_timestamp.is_some() {
            continue;
        }
        for rule in &kind.rules {
            if let Some(message) = problem(config, *rule, &object, wanted.as_ref())? {
                findings.push(Finding {
                    rule: *rule,
                    api_version: kind.of.api_version.clone(),
                    kind: kind.of.kind.clone(),
                    namespace: metadata.namespace.clone(),
                    name: object.name().to_owned(),
                    message,
                });
            }
        }
    }
    Ok(())
}

/// Returns how an object breaks a rule.
fn problem(config: &Config, rule: Rule, object: &Dynamic, wanted: Option<&Value>) -> Result<Option<String>, Error> {
    let metadata = &object.metadata;
    Ok(match rule {
        Rule::Ownerless => {
            let is_owned = metadata.owner_references.iter().flatten().next().is_some();
            (!is_owned).then(|| "nobody owns it".to_owned())
        }
        Rule::MissingLabels => {
            let has = |label: &String| metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label));
            let missing: Vec<&str> = config.labels.iter().filter(|label| !has(label)).map(String::as_str).collect();
            (!missing.is_empty()).then(|| format!("it lacks the labels {}", missing.join(", ")))
        }
        Rule::Drift => {
            let annotation = || metadata.annotations.as_ref().and_then(|all| all.get(drift::APPLIED));
            let (wanted, how) = match (wanted, annotation()) {
                (Some(wanted), _) => (wanted.clone(), "declared"),
                // Anybody may write an annotation, so it need not be JSON.
                (None, Some(applied)) => match serde_json::from_str(applied) {
                    Ok(applied) => (applied, "applied"),
                    Err(_) => return Ok(Some("its annotation of what was applied is not JSON".to_owned())),
                },
                (None, None) => return Ok(None),
            };
            let paths = drift::drift(&wanted, &serde_json::to_value(object)?, &config.ignore);
            let more = paths.len().saturating_sub(PATHS);
            let named = paths.iter().take(PATHS).cloned().collect::<Vec<_>>().join(", ");
            match paths.len() {
                0 => None,
                _ if more > 0 => Some(format!("not as it was {how}: {named} and {more} more")),
                _ => Some(format!("not as it was {how}: {named}")),
            }
        }
    })
}

/// Returns an Event on the object that breaks a rule.
fn event(finding: &Finding) -> Event {
    let Finding { rule, api_version, kind, namespace, name, message } = finding;
    let key = Key { namespace: namespace.clone(), name: name.clone() };
    Event::warning(rule.as_str(), message).about_a(TypeMeta::new(api_version, kind), key)
}
