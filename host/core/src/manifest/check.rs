//! Checks a raw manifest and collects every problem.
//!
//! The rules for names are those of Kubernetes (RFC 1123 labels and subdomains). The bounds are the host's own: a
//! manifest is read for every revision and shown to people. No bound is near what people write by hand.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    time::Duration,
};

use serde_json::Value;

use super::{
    Controller, DEFAULT_RESYNC, DEFAULT_TIMEOUT, HttpPermission, Invalid, MAX_CONCURRENCY, MAX_TIMEOUT, Manifest,
    Permission, Problem, Verb, Watch, WatchPattern, raw,
};
use crate::{
    http::{Pattern, check_method},
    key::TypeMeta,
    object::{Keep, Subresource},
    predicate::{Condition, Test},
    selector,
};

mod metrics;
mod watches;
mod webhooks;

use watches::Part;

/// Largest number of each: controllers, watches, indexes, permissions, namespaces, names, CRDs.
const MAX_ENTRIES: usize = 256;
/// Largest number of different watches, counted once per namespace. Each is a list and a watch at the API server, and
/// is compared with every other of its kind.
const MAX_WATCHED: usize = 1024;
/// Largest number of ways to cut one kind. Each changed object is copied for each way while its informer is locked.
pub(crate) const MAX_CUTS: usize = 8;
/// Largest number of selectors of one kind and scope by fields that only the API server can evaluate. Each has its own
/// watch and copy, as no wider informer can evaluate it.
pub(crate) const MAX_BY_FIELDS: usize = 8;
/// Largest number of patterns that a plugin observes. Each is compared with every kind that the API server serves.
const MAX_PATTERNS: usize = 16;
/// Largest number of keys at once over all controllers. Each has a worker, and an instance while it is reconciled.
const MAX_WORKERS: u32 = 1024;
/// Largest CRD in bytes: kube-apiserver accepts no larger request.
const MAX_CRD: usize = 3 << 20;
/// Largest sum of all CRDs in bytes.
const MAX_CRDS: usize = 16 << 20;
/// Largest schema of the configuration in bytes.
const MAX_SCHEMA: usize = 1 << 20;
/// Largest version and description in bytes.
const MAX_TEXT: usize = 1024;
/// Largest number of reported problems.
const MAX_PROBLEMS: usize = 50;

const CRD: (&str, &str) = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");

impl raw::Manifest {
    /// Returns the manifest if all of it is valid.
    ///
    /// # Errors
    /// All problems, in the order of the contract's fields (at most 50).
    pub fn check(self) -> Result<Manifest, Invalid> {
        let mut problems = Problems::default();
        text(&self.version, "version", &mut problems);
        if self.version.is_empty() {
            problems.add("version", "is empty");
        }
        text(&self.description, "description", &mut problems);

        let permissions: Vec<_> = bounded(self.permissions, "permissions", &mut problems)
            .enumerate()
            .filter_map(|(place, permission)| permission.check(&format!("permissions[{place}]"), &mut problems))
            .collect();
        let permissions_are_whole = problems.none_at("permissions");

        let converts = self.crds.iter().any(|definition| super::needs_conversion(definition));
        if self.controllers.is_empty() && self.observes.is_empty() && self.webhooks.is_empty() && !converts {
            problems.add("controllers", "there is none, so the plugin would never be called");
        }
        let mut names = BTreeSet::new();
        let controllers: Vec<_> = bounded(self.controllers, "controllers", &mut problems)
            .enumerate()
            .filter_map(|(place, controller)| {
                let at = format!("controllers[{place}]");
                if !names.insert(controller.name.clone()) {
                    problems.add(
                        &format!("{at}.name"),
                        format!("{} names another controller already", quoted(&controller.name)),
                    );
                }
                controller.check(&at, &mut problems)
            })
            .collect();
        check_finalizers(&controllers, &mut problems);
        let (observes, patterns) = check_observes(self.observes, &mut problems);
        let controllers_are_whole = problems.none_at("controllers");
        let cached: Vec<&Watch> = controllers.iter().flat_map(Controller::cached).collect();
        let indexes = watches::check_indexes(self.indexes, controllers_are_whole.then_some(&*cached), &mut problems);
        if controllers_are_whole && problems.none_at("indexes") {
            watches::check_mappings(&controllers, &indexes, &mut problems);
        }

        let webhooks = webhooks::check_webhooks(self.webhooks, &mut problems);
        let crds: Vec<_> = bounded(self.crds, "crds", &mut problems).collect();
        check_crds(&crds, &mut problems);
        if let Some(bytes) = self.config_schema.as_ref().map(String::len).filter(|bytes| *bytes > MAX_SCHEMA) {
            problems.add("config-schema", too_long(bytes, MAX_SCHEMA));
        } else if let Some(schema) = &self.config_schema {
            match serde_json::from_str(schema) {
                Ok(Value::Object(_) | Value::Bool(_)) => {}
                Ok(_) => problems.add("config-schema", "is not a JSON schema: expected an object or a boolean"),
                Err(error) => problems.add("config-schema", format!("is not valid JSON: {error}")),
            }
        }

        let http = bounded(self.http, "http", &mut problems)
            .enumerate()
            .filter_map(|(place, asked)| asked.check(&format!("http[{place}]"), &mut problems))
            .collect();

        let metrics = metrics::check_metrics(self.metrics, &mut problems);

        let manifest = Manifest {
            version: self.version,
            description: self.description,
            controllers,
            indexes,
            observes,
            patterns,
            permissions,
            crds,
            config_schema: self.config_schema,
            instances: self.instances,
            http,
            webhooks,
            metrics,
        };
        check_totals(&manifest, &mut problems);
        // A permission that could not be read may be the one that seems to be missing.
        if permissions_are_whole {
            check_needs(&manifest, &mut problems);
        }
        problems.into_result(manifest)
    }
}

impl raw::Controller {
    fn check(self, at: &str, problems: &mut Problems) -> Option<Controller> {
        let well_formed = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if self.name.is_empty() || self.name.len() > 63 || !well_formed(&self.name) {
            let rule = "must be 1 to 63 lower-case letters, digits and `-`";
            problems.add(&format!("{at}.name"), format!("{} {rule}", quoted(&self.name)));
        }
        if self.timeout_ms == Some(0) {
            problems.add(&format!("{at}.timeout-ms"), "is 0, so every call would fail; leave it out for 10 000");
        }
        let timeout = self.timeout_ms.map_or(DEFAULT_TIMEOUT, |ms| Duration::from_millis(ms.into()));
        if timeout > MAX_TIMEOUT {
            let rule = "no call may run for more than 600 000: do the work over several reconciles";
            problems.add(&format!("{at}.timeout-ms"), format!("is {}, and {rule}", timeout.as_millis()));
        }
        let mut for_ = self.for_.check(&format!("{at}.for"), Part::Other, problems);
        if let Some(finalizer) = &self.finalizer {
            check_finalizer(finalizer, &format!("{at}.finalizer"), problems);
            // Otherwise a deletion that `when` filters out would wait for the next resync.
            for_.iter_mut().for_each(|for_| for_.when.or(Condition { test: Test::Deletion, negated: false }));
        }
        let mut kinds = BTreeSet::new();
        let owns: Vec<_> = bounded(self.owns, &format!("{at}.owns"), problems)
            .enumerate()
            .filter_map(|(place, watch)| {
                let at = format!("{at}.owns[{place}]");
                let watch = watch.check(&at, Part::Owned, problems)?;
                if !kinds.insert((watch.of.group().to_owned(), watch.of.kind.clone())) {
                    problems.add(&at, format!("{} is owned already", watch.of));
                }
                Some(watch)
            })
            .collect();
        let watches: Vec<_> = bounded(self.watches, &format!("{at}.watches"), problems)
            .enumerate()
            .filter_map(|(place, watch)| watch.check(&format!("{at}.watches[{place}]"), problems))
            .collect();
        let reads = check_watches(self.reads, &format!("{at}.reads"), problems);
        Some(Controller {
            name: self.name,
            for_: for_?,
            owns,
            watches,
            reads,
            max_concurrency: self.max_concurrency.clamp(1, MAX_CONCURRENCY),
            resync: match self.resync_seconds {
                None => Some(DEFAULT_RESYNC),
                Some(0) => None,
                Some(seconds) => Some(Duration::from_secs(seconds.into())),
            },
            timeout,
            finalizer: self.finalizer,
        })
    }
}

/// Checks a finalizer as kube-apiserver does, and that it names a domain: names without one are those of Kubernetes.
fn check_finalizer(finalizer: &str, at: &str, problems: &mut Problems) {
    if !finalizer.contains('/') || !selector::is_label_key(finalizer) {
        let rule = "must be a domain, a slash and a name of at most 63 letters, digits, `-`, `_` and `.`, such as example.com/cleanup";
        problems.add(at, format!("{} {rule}", quoted(finalizer)));
    }
}

/// Checks that no two controllers of one kind have the same finalizer: the first cleanup would free the object.
fn check_finalizers(controllers: &[Controller], problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for (controller, place) in controllers.iter().zip(0..) {
        let Some(finalizer) = &controller.finalizer else { continue };
        let of = &controller.for_.of;
        if !seen.insert((of.group(), &of.kind, finalizer)) {
            let what = format!("{} is the finalizer of another controller for {of}", quoted(finalizer));
            problems.add(&format!("controllers[{place}].finalizer"), what);
        }
    }
}

/// Checks a watch that a reconcile asks for.
pub(super) fn asked(watch: raw::Watch) -> Result<Watch, Invalid> {
    let mut problems = Problems::default();
    let watch = raw::Watch { when: Vec::new(), ..watch };
    let checked = watch.check("of", Part::Other, &mut problems);
    match checked {
        Some(watch) if problems.found.is_empty() => Ok(watch),
        _ => Err(Invalid { problems: problems.found }),
    }
}

fn check_watches(watches: Vec<raw::Watch>, at: &str, problems: &mut Problems) -> Vec<Watch> {
    let watches = bounded(watches, at, problems).enumerate();
    watches.filter_map(|(place, watch)| watch.check(&format!("{at}[{place}]"), Part::Other, problems)).collect()
}

/// Returns the kinds that are observed by name, and the patterns.
fn check_observes(watches: Vec<raw::Watch>, problems: &mut Problems) -> (Vec<Watch>, Vec<WatchPattern>) {
    let (mut named, mut patterns) = (Vec::new(), Vec::new());
    for (watch, place) in bounded(watches, "observes", problems).zip(0..) {
        let at = format!("observes[{place}]");
        if watch.of.kind == "*" {
            patterns.extend(watch.check_pattern(&at, problems));
        } else {
            named.extend(watch.check(&at, Part::Other, problems));
        }
    }
    if patterns.len() > MAX_PATTERNS {
        problems.add("observes", format!("has {} patterns; at most {MAX_PATTERNS} are taken", patterns.len()));
    }
    (named, patterns)
}

impl raw::Permission {
    fn check(self, at: &str, problems: &mut Problems) -> Option<Permission> {
        let of = self.of.check_kinds(at, problems);
        if self.verbs.is_empty() {
            problems.add(&format!("{at}.verbs"), "is empty, so the permission allows nothing");
        }
        let verbs: BTreeSet<Verb> = self.verbs.into_iter().collect();
        if let Some(subresource) = self.subresource {
            let is_created = subresource == Subresource::Eviction;
            let lacked = [Verb::Create, Verb::Delete].into_iter().filter(|verb| *verb != Verb::Create || !is_created);
            for verb in lacked.filter(|verb| verbs.contains(verb)) {
                problems.add(&format!("{at}.verbs"), format!("a subresource ({subresource}) has no {verb}"));
            }
        }
        let namespaces = check_names(self.namespaces, &format!("{at}.namespaces"), Name::Label, problems);
        let names = check_names(self.names, &format!("{at}.names"), Name::Segment, problems);
        Some(Permission { of: of?, subresource: self.subresource, verbs, namespaces, names })
    }
}

impl raw::HttpPermission {
    fn check(self, at: &str, problems: &mut Problems) -> Option<HttpPermission> {
        let host = Pattern::parse(&self.host);
        if let Err(error) = &host {
            let rule = "write a name, *.NAME, or an IP address, without scheme and port";
            problems.add(&format!("{at}.host"), format!("{}: {error}; {rule}", quoted(&self.host)));
        }
        if self.port == Some(0) {
            problems.add(&format!("{at}.port"), "is 0; leave it out for the port of the scheme");
        }
        if self.methods.is_empty() {
            problems.add(&format!("{at}.methods"), "is empty, so the permission allows nothing");
        }
        let mut methods = BTreeSet::new();
        for (method, place) in bounded(self.methods, &format!("{at}.methods"), problems).zip(0..) {
            match check_method(&method) {
                Ok(()) => drop(methods.insert(method)),
                Err(error) => problems.add(&format!("{at}.methods[{place}]"), format!("{} {error}", quoted(&method))),
            }
        }
        let port = self.port.unwrap_or(if self.plain { 80 } else { 443 });
        Some(HttpPermission { host: host.ok()?, port, plain: self.plain, methods })
    }
}

impl raw::TypeMeta {
    /// Checks a kind, or a pattern of kinds.
    fn check_kinds(self, at: &str, problems: &mut Problems) -> Option<TypeMeta> {
        if self.kind != "*" {
            return self.check(at, problems);
        }
        let named = match self.api_version.strip_suffix("/*") {
            Some(group) => raw::TypeMeta { api_version: format!("{group}/v1"), kind: "Kind".to_owned() },
            None if self.api_version == "*" => return Some(TypeMeta::new("*", "*")),
            None => raw::TypeMeta { api_version: self.api_version.clone(), kind: "Kind".to_owned() },
        };
        named.check(at, problems).map(|_| TypeMeta::new(&self.api_version, "*"))
    }

    fn check(self, at: &str, problems: &mut Problems) -> Option<TypeMeta> {
        let before = problems.count;
        let (group, version) =
            self.api_version.rsplit_once('/').map_or((None, &*self.api_version), |(g, v)| (Some(g), v));
        let looks_like_version =
            |text: &str| text.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let api_version = format!("{at}.api-version");
        if self.api_version.is_empty() {
            problems.add(&api_version, "is empty");
        } else if group.is_none() && !looks_like_version(version) {
            let what = format!("{} has no version: write group/version as in apps/v1, or v1", quoted(version));
            problems.add(&api_version, what);
        } else if !Name::Label.fits(version) || !group.is_none_or(|group| Name::Subdomain.fits(group)) {
            let what = format!("{} is not of the form apps/v1 or v1", quoted(&self.api_version));
            problems.add(&api_version, what);
        }
        if self.kind.is_empty() {
            problems.add(&format!("{at}.kind"), "is empty");
        } else if !is_kind(&self.kind) {
            let what = format!("{} is no kind: write it as in objects, such as ConfigMap", quoted(&self.kind));
            problems.add(&format!("{at}.kind"), what);
        }
        (problems.count == before).then(|| TypeMeta::new(&self.api_version, &self.kind))
    }
}

/// Returns `true` for a kind. Kubernetes requires kinds to be DNS labels in lower case; existing ones begin with a
/// capital, unlike resource names (`configmaps`).
fn is_kind(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase()) && Name::Label.fits(&text.to_ascii_lowercase())
}

/// Checks what is bounded over several lists.
fn check_totals(manifest: &Manifest, problems: &mut Problems) {
    let requests = manifest.requests();
    let mut by_fields: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for request in requests.iter().filter(|request| request.is_evaluated_by_server()) {
        by_fields.entry((&request.of, &request.namespace)).or_default().insert((&request.labels, &request.fields));
    }
    for ((of, _), selectors) in by_fields.iter().filter(|(_, selectors)| selectors.len() > MAX_BY_FIELDS) {
        let rule = "select by labels, or watch the kind as a whole";
        let many = selectors.len();
        problems.add(
            "controllers",
            format!("watch {of} by {many} selectors with fields other than metadata.name and metadata.namespace; at most {MAX_BY_FIELDS} are taken: {rule}"),
        );
    }
    let watched = requests.len();
    if watched > MAX_WATCHED {
        let rule = "leave namespaces out, and watch what is granted, or divide the plugin";
        problems.add(
            "controllers",
            format!("watch {watched} kinds and namespaces; at most {MAX_WATCHED} are taken: {rule}"),
        );
    }
    let mut cuts: BTreeMap<&TypeMeta, HashSet<Keep>> = BTreeMap::new();
    for watch in manifest.watches().filter(|watch| !watch.keep.is_whole()) {
        cuts.entry(&watch.of).or_default().insert(watch.keep.clone());
    }
    // A pattern may match these kinds, too.
    for (of, cuts) in &mut cuts {
        cuts.extend(manifest.observed(of).map(|watch| watch.keep).filter(|keep| !keep.is_whole()));
    }
    for (of, cuts) in cuts.iter().filter(|(_, cuts)| cuts.len() > MAX_CUTS) {
        let rule = "let its watches leave out the same fields";
        let what =
            format!("leave out of {of} other fields in {} ways; at most {MAX_CUTS} are taken: {rule}", cuts.len());
        problems.add("controllers", what);
    }
    let workers: u32 = manifest.controllers.iter().map(|controller| controller.max_concurrency).sum();
    if workers > MAX_WORKERS {
        problems.add("controllers", format!("want {workers} keys at once in all; at most {MAX_WORKERS} are taken"));
    }
}

/// Checks that the plugin asks for permission for everything that it declares.
fn check_needs(manifest: &Manifest, problems: &mut Problems) {
    let asks = |verb: Verb, of: &TypeMeta, namespaces: &[String]| {
        let fits: Vec<_> = manifest
            .permissions
            .iter()
            .filter(|asked| asked.verbs.contains(&verb) && asked.subresource.is_none() && asked.of.selects(of))
            .collect();
        // A watch without namespaces takes all granted ones.
        !fits.is_empty()
            && namespaces.iter().all(|namespace| {
                fits.iter().any(|asked| asked.namespaces.is_empty() || asked.namespaces.contains(namespace))
            })
    };
    let patterns = manifest.patterns.iter().map(|pattern| (&pattern.watch, "observes".to_owned()));
    for (watch, at) in places(manifest).into_iter().chain(patterns) {
        if !asks(Verb::Read, &watch.of, &watch.namespaces) {
            let of = &watch.of;
            let what = format!("watching {of} needs a permission to read it, and none of `permissions` asks for that");
            problems.add(&at, what);
        }
    }
    for (controller, place) in manifest.controllers.iter().zip(0..) {
        let Watch { of, namespaces, .. } = &controller.for_;
        if controller.finalizer.is_some() && !asks(Verb::Patch, of, namespaces) {
            let what = format!("needs a permission to patch {of}, and none of `permissions` asks for that");
            problems.add(&format!("controllers[{place}].finalizer"), what);
        }
    }
    if !manifest.crds.is_empty() && !asks(Verb::Apply, &TypeMeta::new(CRD.0, CRD.1), &[]) {
        let what = format!(
            "installing them needs a permission to apply {} {}, and none of `permissions` asks for that",
            CRD.0, CRD.1
        );
        problems.add("crds", what);
    }
}

/// Returns all watches, and their locations in the manifest.
fn places(manifest: &Manifest) -> Vec<(&Watch, String)> {
    let mut places = Vec::new();
    for (controller, place) in manifest.controllers.iter().zip(0..) {
        let at = format!("controllers[{place}]");
        places.push((&controller.for_, format!("{at}.for")));
        places.extend(controller.owns.iter().zip(0..).map(|(watch, i)| (watch, format!("{at}.owns[{i}]"))));
        let watches = controller.watches.iter().zip(0..);
        places.extend(watches.map(|(mapped, i)| (&mapped.watch, format!("{at}.watches[{i}].watch"))));
        places.extend(controller.reads.iter().zip(0..).map(|(watch, i)| (watch, format!("{at}.reads[{i}]"))));
    }
    // Beside patterns, the place of a watch in the list is not known any more.
    let observed =
        |i: usize| if manifest.patterns.is_empty() { format!("observes[{i}]") } else { "observes".to_owned() };
    places.extend(manifest.observes.iter().zip(0..).map(|(watch, i)| (watch, observed(i))));
    for (webhook, place) in manifest.webhooks.iter().zip(0..) {
        let reads = webhook.reads.iter().zip(0..);
        places.extend(reads.map(|(watch, i)| (watch, format!("webhooks[{place}].reads[{i}]"))));
    }
    places
}

fn check_crds(crds: &[String], problems: &mut Problems) {
    let bytes: usize = crds.iter().map(String::len).sum();
    if bytes > MAX_CRDS {
        return problems.add("crds", too_long(bytes, MAX_CRDS));
    }
    let mut names = BTreeSet::new();
    for (crd, place) in crds.iter().zip(0..) {
        let at = format!("crds[{place}]");
        if crd.len() > MAX_CRD {
            problems.add(&at, too_long(crd.len(), MAX_CRD));
            continue;
        }
        let crd: Value = match serde_json::from_str(crd) {
            Ok(crd) => crd,
            Err(error) => {
                problems.add(&at, format!("is not valid JSON: {error}"));
                continue;
            }
        };
        let member = |name: &str| crd.get(name).and_then(Value::as_str).unwrap_or_default();
        if (member("apiVersion"), member("kind")) != CRD {
            problems.add(&at, format!("is not an {} {}", CRD.0, CRD.1));
            continue;
        }
        match crd.pointer("/metadata/name").and_then(Value::as_str) {
            None | Some("") => problems.add(&at, "has no metadata.name"),
            Some(name) if !names.insert(name.to_owned()) => {
                problems.add(&at, format!("{} is there already", quoted(name)));
            }
            Some(_) => {}
        }
    }
}

fn check_names(names: Vec<String>, at: &str, rule: Name, problems: &mut Problems) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let names: Vec<_> = bounded(names, at, problems).collect();
    for (name, place) in names.iter().zip(0..) {
        if !rule.fits(name) {
            problems.add(&format!("{at}[{place}]"), format!("{} {rule}", quoted(name)));
        } else if !seen.insert(name) {
            problems.add(&format!("{at}[{place}]"), format!("{} is there already", quoted(name)));
        }
    }
    names
}

fn too_long(bytes: usize, most: usize) -> String {
    format!("has {bytes} bytes; at most {most} are taken")
}

fn text(text: &str, at: &str, problems: &mut Problems) {
    if text.len() > MAX_TEXT {
        problems.add(at, too_long(text.len(), MAX_TEXT));
    }
    if text.chars().any(char::is_control) {
        problems.add(at, "has control characters or line breaks");
    }
}

fn bounded<T>(list: Vec<T>, at: &str, problems: &mut Problems) -> impl Iterator<Item = T> + use<T> {
    if list.len() > MAX_ENTRIES {
        problems.add(at, format!("has {} entries; at most {MAX_ENTRIES} are taken", list.len()));
    }
    list.into_iter().take(MAX_ENTRIES)
}

/// Kubernetes' rules for names.
#[derive(Clone, Copy)]
enum Name {
    /// RFC 1123 label: namespaces, versions.
    Label,
    /// RFC 1123 subdomain: groups.
    Subdomain,
    /// A path segment: the loosest rule for names of objects (RBAC's names have colons).
    Segment,
}

impl Name {
    fn fits(self, text: &str) -> bool {
        let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let label = |text: &str, max: usize| {
            (1..=max).contains(&text.len())
                && text.bytes().all(|b| alphanumeric(b) || b == b'-')
                && !text.starts_with('-')
                && !text.ends_with('-')
        };
        match self {
            Self::Label => label(text, 63),
            Self::Subdomain => text.len() <= 253 && text.split('.').all(|part| label(part, 253)),
            Self::Segment => {
                let bad = |c: char| c == '/' || c == '%' || c.is_control() || c.is_whitespace();
                (1..=253).contains(&text.len()) && text != "." && text != ".." && !text.chars().any(bad)
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Label => "must be 1 to 63 lower-case letters, digits and `-`, with no `-` at its ends",
            Self::Subdomain => "must be lower-case letters, digits, `-` and `.`",
            Self::Segment => "must be 1 to 253 characters without `/`, `%` and spaces",
        })
    }
}

/// Quotes a guest's text for a message: escaped and shortened.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{more}")
}

#[derive(Default)]
struct Problems {
    found: Vec<Problem>,
    /// Number of problems, including those that were not kept.
    count: usize,
    /// Number of CEL expressions so far.
    expressions: usize,
}

impl Problems {
    fn add(&mut self, at: &str, what: impl Into<String>) {
        self.count += 1;
        if self.found.len() < MAX_PROBLEMS {
            self.found.push(Problem { at: at.to_owned(), what: what.into() });
        }
    }

    /// Returns `true` if there is no problem under `at`.
    fn none_at(&self, at: &str) -> bool {
        !self.found.iter().any(|problem| problem.at.starts_with(at))
    }

    fn into_result(self, manifest: Manifest) -> Result<Manifest, Invalid> {
        if self.found.is_empty() { Ok(manifest) } else { Err(Invalid { problems: self.found }) }
    }
}
