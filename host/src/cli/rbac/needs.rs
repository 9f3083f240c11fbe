//! What the accounts of a host and of its plugins must be allowed, and why.
//!
//! ```text
//! manifest ∩ NAME.yaml ─┬─► reads of the cache: the host lists and watches; the plugin's account may get, list and watch
//!                       └─► writes and live reads: the plugin's account, or else the host's
//! ```

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_core::{
    grant::{AdminFile, By, Grants, ServiceAccount},
    key::TypeMeta,
    manifest::{Manifest, Permission, Verb, Watch},
    object::Subresource,
};
use serde_json::Value;

use crate::name::PluginName;

/// Watches by name that the host has for one plugin.
const NAMED: usize = 64;

const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");

/// A resource as RBAC names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) plural: String,
    pub(super) namespaced: bool,
    /// `true` if the kind is unknown, and its plural is a guess.
    pub(super) is_guessed: bool,
}

/// Resources by kind: those that plugins bring, and the built-in ones.
pub(super) struct Resources {
    brought: BTreeMap<(String, String), Resource>,
    builtin: pilothouse_apiserver::Server,
}

impl Resources {
    /// Finds the resources of the definitions that these manifests bring.
    pub(super) fn of<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Self {
        let definitions = manifests.into_iter().flat_map(|manifest| &manifest.crds);
        let definitions = definitions.filter_map(|text| serde_json::from_str::<Value>(text).ok());
        let brought = definitions.filter_map(|definition| {
            let spec = &definition["spec"];
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let resource = Resource {
                plural: text(&spec["names"]["plural"])?,
                namespaced: spec["scope"] != "Cluster",
                is_guessed: false,
            };
            Some(((text(&spec["group"])?, text(&spec["names"]["kind"])?), resource))
        });
        Self { brought: brought.collect(), builtin: pilothouse_apiserver::Server::new() }
    }

    fn find(&self, of: &TypeMeta) -> Resource {
        if *of.kind == *"*" {
            return Resource { plural: "*".to_owned(), namespaced: true, is_guessed: false };
        }
        if let Some(brought) = self.brought.get(&(group(of).to_owned(), of.kind.to_string())) {
            return brought.clone();
        }
        if let Some(served) = self.builtin.kind(&of.api_version, &of.kind) {
            return Resource { plural: served.plural, namespaced: served.namespaced, is_guessed: false };
        }
        Resource { plural: guessed(&of.kind), namespaced: true, is_guessed: true }
    }
}

/// Returns the plural that code generators make of a kind.
fn guessed(kind: &str) -> String {
    let kind = kind.to_ascii_lowercase();
    if kind.ends_with(['s', 'x', 'z']) || kind.ends_with("ch") || kind.ends_with("sh") {
        return kind + "es";
    }
    match kind.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u'])) {
        Some(stem) => format!("{stem}ies"),
        None => kind + "s",
    }
}

fn group(of: &TypeMeta) -> &str {
    match &*of.api_version {
        "*" => "*",
        api_version => api_version.split_once('/').map_or("", |(group, _)| group),
    }
}

/// What a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) group: String,
    /// `configmaps` or `configmaps/status`.
    pub(super) resource: String,
    /// Empty for all objects.
    pub(super) names: Vec<String>,
}

/// What an account must be allowed to do with a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) verbs: BTreeSet<String>,
    pub(super) reasons: Vec<String>,
}

/// The needs of all accounts, by account and namespace. `None` is all of the cluster.
pub(super) type Needs = BTreeMap<(ServiceAccount, Option<String>), BTreeMap<Target, Need>>;

/// Collects needs.
pub(super) struct Collecting<'a> {
    /// The host's own account.
    pub(super) host: &'a ServiceAccount,
    pub(super) resources: &'a Resources,
    pub(super) needs: Needs,
}

/// A part of a kind.
#[derive(Clone, Copy)]
struct Part<'a> {
    of: &'a TypeMeta,
    subresource: Option<&'a str>,
    namespace: Option<&'a str>,
    names: &'a [String],
}

impl Collecting<'_> {
    /// Adds what one plugin needs, under its name, its manifest and its administrator's file.
    pub(super) fn add(&mut self, plugin: &PluginName, manifest: &Manifest, file: &AdminFile) {
        let grants = Grants::new(&manifest.permissions, &file.grants);
        let sender = file.service_account.as_ref().map_or(self.host, |act_as| &act_as.account).clone();
        for (watch, why) in watches(manifest) {
            self.cache(plugin, &sender, &grants, watch, &why);
        }
        let allowed = grants.allowed();
        let observed = |permission: &&Permission| {
            let selects = |of: &TypeMeta| of.selects(&permission.of) || permission.of.selects(of);
            permission.verbs.contains(&Verb::Read)
                && permission.subresource.is_none()
                && manifest.patterns.iter().any(|pattern| {
                    selects(&pattern.watch.of) && !pattern.except.iter().any(|except| except.selects(&permission.of))
                })
        };
        for permission in allowed.iter().filter(observed) {
            let watch = Watch { namespaces: permission.namespaces.clone(), ..Watch::all(permission.of.clone()) };
            self.cache(plugin, &sender, &grants, &watch, "which it observes by pattern");
        }
        let definitions = TypeMeta::new(DEFINITIONS.0, DEFINITIONS.1);
        let brought = definitions_of(manifest);
        for permission in allowed {
            let names: Vec<String> = match &*permission.names {
                [] => brought.clone(),
                names => names.iter().filter(|name| brought.contains(name)).cloned().collect(),
            };
            if permission.of == definitions && permission.verbs.contains(&Verb::Apply) && !names.is_empty() {
                let part = Part { of: &definitions, subresource: None, namespace: None, names: &names };
                let why = "the host installs the definitions that it brings";
                self.need(self.host.clone(), part, &["get", "create", "patch"], &format!("{plugin}: {why}"));
                continue;
            }
            self.permission(plugin, &sender, &permission);
        }
        for reference in file.references() {
            let (of, key) = reference.object();
            let names = [key.name.to_string()];
            let part = Part { of: &of, subresource: None, namespace: key.namespace.as_deref(), names: &names };
            self.need(self.host.clone(), part, &["list", "watch"], &format!("{plugin}: {plugin}.yaml refers to it"));
        }
        if let Some(act_as) = &file.service_account {
            let names = [act_as.account.name.clone()];
            let of = TypeMeta::new("v1", "ServiceAccount");
            let namespace = Some(&*act_as.account.namespace);
            let (subresource, verb, how) = match act_as.by {
                By::Impersonation => (None, "impersonate", "impersonates this account"),
                By::Token { .. } => (Some("token"), "create", "requests tokens of this account"),
            };
            let part = Part { of: &of, subresource, namespace, names: &names };
            self.need(self.host.clone(), part, &[verb], &format!("{plugin}: to send its requests, the host {how}"));
        }
    }

    /// Adds what a watch needs.
    fn cache(&mut self, plugin: &PluginName, sender: &ServiceAccount, grants: &Grants, watch: &Watch, why: &str) {
        let kind = &watch.of.kind;
        for scope in grants.scopes(watch, NAMED) {
            let names: Vec<String> = scope.name.into_iter().collect();
            let part = Part { of: &watch.of, subresource: None, namespace: scope.namespace.as_deref(), names: &names };
            self.need(self.host.clone(), part, &["list", "watch"], &format!("{plugin}: the host caches {kind}, {why}"));
            if sender != self.host {
                let reason = format!("{plugin}: sees {kind} in the cache, {why}");
                self.need(sender.clone(), part, &["get", "list", "watch"], &reason);
            }
        }
    }

    /// Adds what a permission needs.
    fn permission(&mut self, plugin: &PluginName, sender: &ServiceAccount, permission: &Permission) {
        let Permission { of, subresource, verbs, namespaces, names } = permission;
        let is_event = *of == TypeMeta::new("v1", "Event");
        let what = match subresource {
            Some(subresource) => format!("{}/{subresource}", of.kind),
            None => of.kind.to_string(),
        };
        for verb in verbs {
            let needed: &[&str] = match (verb, subresource) {
                (Verb::Read, None) => &["get", "list"],
                (Verb::Read, Some(_)) => &["get"],
                // Repeated Events are counted in the first one. The host's own rules have the same.
                (Verb::Create, None) if is_event && sender == self.host => continue,
                (Verb::Create, None) if is_event => &["create", "patch"],
                (Verb::Create, _) => &["create"],
                (Verb::Update, _) => &["update"],
                (Verb::Patch, _) | (Verb::Apply, Some(_)) => &["patch"],
                (Verb::Apply, None) => &["create", "patch"],
                (Verb::Delete, _) => &["delete"],
            };
            // An object that is created by POST has no name yet when the request is judged.
            let names = if *verb == Verb::Create && subresource.is_none() { &[][..] } else { names };
            let places = namespaces.iter().map(|namespace| Some(&**namespace));
            let everywhere = namespaces.is_empty().then_some(None);
            for namespace in places.chain(everywhere) {
                let subresource = subresource.map(Subresource::as_str);
                let part = Part { of, subresource, namespace, names };
                self.need(sender.clone(), part, needed, &format!("{plugin}: may {verb} {what}"));
            }
        }
        if *subresource == Some(Subresource::Approval) {
            let signers = Target { group: group(of).to_owned(), resource: "signers".to_owned(), names: Vec::new() };
            let reason = format!("{plugin}: approves requests of signers");
            self.put(sender.clone(), None, signers, &["approve"], &reason);
        }
    }

    fn need(&mut self, account: ServiceAccount, part: Part<'_>, verbs: &[&'static str], reason: &str) {
        let Resource { plural, namespaced, is_guessed } = self.resources.find(part.of);
        let resource = part.subresource.map_or(plural.clone(), |subresource| format!("{plural}/{subresource}"));
        let target = Target { group: group(part.of).to_owned(), resource, names: part.names.to_vec() };
        let place = part.namespace.filter(|_| namespaced).map(str::to_owned);
        let guess =
            if is_guessed { format!(" (the name of the resource is a guess from {})", part.of) } else { String::new() };
        self.put(account, place, target, verbs, &format!("{reason}{guess}"));
    }

    fn put(
        &mut self,
        account: ServiceAccount,
        place: Option<String>,
        target: Target,
        verbs: &[&'static str],
        reason: &str,
    ) {
        let need = self.needs.entry((account, place)).or_default().entry(target).or_default();
        need.verbs.extend(verbs.iter().map(ToString::to_string));
        if !need.reasons.iter().any(|known| known == reason) {
            need.reasons.push(reason.to_owned());
        }
    }
}

/// Returns what a manifest caches, and why.
fn watches(manifest: &Manifest) -> impl Iterator<Item = (&Watch, String)> {
    let of_controllers = manifest.controllers.iter().flat_map(|controller| {
        let by = &controller.name;
        let owns = controller.owns.iter().map(move |watch| (watch, format!("the children of its controller {by}")));
        let woken = controller.watches.iter();
        let woken = woken.map(move |mapped| (&mapped.watch, format!("which wakes its controller {by}")));
        let reads = controller.reads.iter().map(move |watch| (watch, format!("which its controller {by} reads")));
        let reconciled = (&controller.for_, format!("which its controller {by} reconciles"));
        std::iter::once(reconciled).chain(owns).chain(woken).chain(reads)
    });
    let observed = manifest.observes.iter().map(|watch| (watch, "which it observes".to_owned()));
    let reviewed = manifest.webhooks.iter().flat_map(|webhook| {
        webhook.reads.iter().map(|watch| (watch, format!("which its webhook {} reads", webhook.name)))
    });
    of_controllers.chain(observed).chain(reviewed)
}

/// Returns the names of the definitions that a manifest brings.
fn definitions_of(manifest: &Manifest) -> Vec<String> {
    let definitions = manifest.crds.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    definitions.filter_map(|definition| Some(definition["metadata"]["name"].as_str()?.to_owned())).collect()
}
