//! Keeps the webhook configurations at the API server.
//!
//! Each plugin has at most one `ValidatingWebhookConfiguration` and one `MutatingWebhookConfiguration`, named
//! `pilothouse-IDENTITY`. They are applied once the plugin serves, set back when somebody changes them, and deleted
//! when the plugin or its grant is gone. A configuration of a plugin that merely fails to load stays, so that its
//! failure policy decides.
//!
//! The host that acts for a plugin writes its configurations. The host that does the host's own work deletes those of plugins that are gone.
//!
//! The keeper deletes only what names this host's address, so several hosts may share a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use pilothouse_core::{
    informer::InformerKey,
    key::TypeMeta,
    manifest::{Webhook, WebhookType},
    object::Object,
    selector::{Requirement, Selector},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    Parts,
    board::{Kept, WebhookRow, admission_path, conversion_path},
    server::is_withdrawn,
};
use crate::{
    causes::with_causes,
    dispatch::Reviewing,
    informer::Lease,
    name::PluginName,
    writer::{Address, remove_configuration},
};

/// The API server accepts what a webhook's configuration says within this time.
const GROUP: &str = "admissionregistration.k8s.io/v1";

/// Selects the configurations of all hosts.
const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "pilothouse");

/// The label with the name of a configuration's plugin.
const PLUGIN: &str = "pilothouse.dev/plugin";

/// Interval at which everything is compared again. A comparison sends no request.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Says that this host does not write a webhook's configuration.
const OF_ANOTHER: &str = "another host acts for the plugin, and writes its configuration";

/// Delay before a failed change is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps the configurations.
pub(super) struct Keeper {
    parts: Parts,
    /// The configurations of both kinds at the API server.
    leases: [(WebhookType, Lease); 2],
    /// Changes whenever one of them does.
    edited: Arc<watch::Sender<()>>,
    /// The paths whose series have begun.
    counted: parking_lot::Mutex<BTreeSet<String>>,
}

impl Keeper {
    pub(super) fn new(parts: Parts) -> Self {
        let edited = Arc::new(watch::Sender::new(()));
        let leases = [WebhookType::Validating, WebhookType::Mutating].map(|of_type| {
            let labels = Selector::parse(&format!("{}={}", LABEL.0, LABEL.1)).expect("a constant selector is valid");
            let key = InformerKey {
                of: kind(of_type),
                namespace: None,
                labels,
                fields: Default::default(),
                keep: Default::default(),
            };
            let lease = parts.informers.acquire(key, "webhooks");
            let edited = edited.clone();
            let _subscription = lease.subscribe(Box::new(move |_, _| {
                edited.send_replace(());
            }));
            (of_type, lease)
        });
        Self { parts, leases, edited, counted: Default::default() }
    }

    pub(super) async fn run(self) {
        let mut changes = self.parts.dispatch.reviewing_changes();
        let (mut edited, mut bundle) = (self.edited.subscribe(), self.parts.endpoint.bundle());
        // The configurations of plugins without webhooks may be left from an earlier host.
        for (_, lease) in &self.leases {
            let mut synced = lease.synced();
            let _ended = synced.wait_for(|synced| *synced).await;
        }
        loop {
            let pause = if self.keep().await { LOOK_EVERY } else { RETRY };
            tokio::select! {
                _ = changes.changed() => {}
                _ = edited.changed() => {}
                _ = bundle.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Makes all configurations as they should be. Returns `false` if something failed and must be tried again.
    async fn keep(&self) -> bool {
        let bundle = self.parts.endpoint.bundle().borrow().clone();
        if bundle.is_none() {
            return true;
        }
        let reviewing = self.parts.dispatch.reviewing();
        self.count(&reviewing);
        let (mut is_kept, mut is_all, mut kept) = (true, true, Kept::default());
        for one in &reviewing {
            let Some(_call) = one.acting().begin() else {
                is_all = false;
                let paths = one.webhooks().into_iter().map(|webhook| admission_path(one.plugin(), &webhook.name));
                let paths = paths.chain([conversion_path(one.plugin())]);
                kept.by_path.extend(paths.map(|path| (path, Some(OF_ANOTHER.to_owned()))));
                continue;
            };
            let failed = self.keep_one(one).await.err().map(|error| {
                let error = with_causes(&error);
                warn!(plugin = %one.plugin(), error, "cannot apply the configuration of the plugin's webhooks");
                is_kept = false;
                error
            });
            let paths = one.webhooks().into_iter().map(|webhook| admission_path(one.plugin(), &webhook.name));
            kept.by_path.extend(paths.map(|path| (path, failed.clone())));
            let failed = one.install(&self.parts.endpoint).await.err().map(|error| {
                let error = with_causes(&error);
                warn!(plugin = %one.plugin(), error, "cannot tell the API server who converts the plugin's objects");
                is_kept = false;
                error
            });
            kept.by_path.insert(conversion_path(one.plugin()), failed);
        }
        is_kept &= self.remove_others(&reviewing, &mut kept).await;
        self.parts.board.keep(kept);
        if is_kept
            && is_all
            && let Some(bundle) = bundle
        {
            self.parts.endpoint.confirm(bundle);
        }
        is_kept
    }

    async fn keep_one(&self, reviewing: &Reviewing) -> Result<(), crate::writer::Error> {
        let (webhooks, writer) = (reviewing.webhooks(), reviewing.writer());
        for (of_type, lease) in &self.leases {
            let webhooks: Vec<&Webhook> = webhooks.iter().filter(|webhook| webhook.of_type == *of_type).collect();
            if webhooks.is_empty() {
                continue;
            }
            let name = name_of(reviewing);
            let desired = self.configuration(*of_type, &name, reviewing.plugin(), &webhooks).await;
            let live = live(lease, &name);
            if writer.configure(&kind(*of_type), &name, live.as_deref(), &desired).await? {
                let count = webhooks.len();
                info!(plugin = %reviewing.plugin(), configuration = name, webhooks = count, "applied the configuration of the plugin's webhooks");
            }
        }
        Ok(())
    }

    /// Deletes configurations that name this host and that no plugin needs. Adds those that stay without a plugin to
    /// `kept`.
    async fn remove_others(&self, reviewing: &[Arc<Reviewing>], kept: &mut Kept) -> bool {
        let mut wanted: BTreeMap<(WebhookType, String), &PluginName> = BTreeMap::new();
        for one in reviewing {
            for webhook in one.webhooks() {
                wanted.insert((webhook.of_type, name_of(one)), one.plugin());
            }
        }
        let (mut is_done, call) = (true, self.parts.acting.begin());
        for (of_type, lease) in &self.leases {
            for live in lease.keys().iter().filter_map(|key| lease.get(key)) {
                let configuration: Value = serde_json::from_str(&live.json()).unwrap_or_default();
                let name = live.key().name.to_string();
                if wanted.contains_key(&(*of_type, name.clone())) || !self.is_of_this_host(&configuration) {
                    continue;
                }
                let plugin = configuration["metadata"]["labels"][PLUGIN].as_str().unwrap_or_default();
                let serves = reviewing.iter().any(|one| one.plugin().as_str() == plugin);
                let is_gone = match PluginName::new(plugin) {
                    Ok(plugin) => serves || is_withdrawn(&self.parts.statuses, &plugin),
                    Err(_) => false,
                };
                if !is_gone {
                    kept.unanswered.extend(WebhookRow::unanswered(plugin, *of_type, &configuration));
                    continue;
                }
                if call.is_none() {
                    continue;
                }
                let Parts { cluster, informers, acting, .. } = &self.parts;
                match remove_configuration(cluster, informers, acting, &live).await {
                    Ok(()) => info!(plugin, configuration = name, "deleted the configuration of the plugin's webhooks"),
                    Err(error) => {
                        let error = with_causes(&error);
                        warn!(
                            plugin,
                            configuration = name,
                            error,
                            "cannot delete the configuration of the plugin's webhooks"
                        );
                        is_done = false;
                    }
                }
            }
        }
        is_done
    }

    /// `true` if all its webhooks name this host.
    fn is_of_this_host(&self, configuration: &Value) -> bool {
        let webhooks = configuration["webhooks"].as_array();
        webhooks.is_some_and(|webhooks| {
            webhooks.iter().all(|webhook| self.parts.endpoint.is_named_by(&webhook["clientConfig"]))
        })
    }

    /// Begins the series of webhooks that are served, and ends those of others.
    fn count(&self, reviewing: &[Arc<Reviewing>]) {
        let now: BTreeSet<String> = reviewing
            .iter()
            .flat_map(|one| {
                let paths = one.webhooks().into_iter().map(|webhook| admission_path(one.plugin(), &webhook.name));
                paths.chain(one.converts().then(|| conversion_path(one.plugin()))).collect::<Vec<_>>()
            })
            .collect();
        let mut counted = self.counted.lock();
        counted.difference(&now).for_each(|path| self.parts.board.counters.remove(path));
        now.difference(&counted).for_each(|path| self.parts.board.counters.begin(path));
        *counted = now;
    }

    /// Returns a configuration. Each field is there, even those that the API server would fill in: so the cache shows
    /// whether it holds.
    async fn configuration(
        &self,
        of_type: WebhookType,
        name: &str,
        plugin: &PluginName,
        webhooks: &[&Webhook],
    ) -> Value {
        let mut entries = Vec::new();
        for webhook in webhooks {
            let mut entry = json!({
                // The API server wants a name with a domain.
                "name": format!("{}.{plugin}.pilothouse.dev", webhook.name),
                "admissionReviewVersions": ["v1"],
                "clientConfig": self.parts.endpoint.client_config(&admission_path(plugin, &webhook.name)).await,
                "failurePolicy": webhook.on_failure.as_str(),
                "matchPolicy": "Equivalent",
                "namespaceSelector": self.namespaces(webhook),
                "objectSelector": selector(webhook.labels.as_ref(), []),
                "rules": webhook.rules.iter().map(|rule| json!({
                    "apiGroups": rule.api_groups,
                    "apiVersions": rule.api_versions,
                    "resources": rule.resources,
                    "operations": rule.operations.iter().map(|operation| operation.as_str()).collect::<Vec<_>>(),
                    "scope": "*",
                })).collect::<Vec<_>>(),
                "sideEffects": "None",
                "timeoutSeconds": webhook.timeout.as_secs(),
            });
            if of_type == WebhookType::Mutating {
                entry["reinvocationPolicy"] = if webhook.reinvoke { "IfNeeded" } else { "Never" }.into();
            }
            if !webhook.match_conditions.is_empty() {
                let conditions = webhook.match_conditions.iter();
                entry["matchConditions"] =
                    conditions.map(|(name, expression)| json!({ "name": name, "expression": expression })).collect();
            }
            entries.push(entry);
        }
        let kind = kind(of_type);
        json!({
            "apiVersion": GROUP,
            "kind": *kind.kind,
            "metadata": { "name": name, "labels": { LABEL.0: LABEL.1, PLUGIN: plugin.as_str() } },
            "webhooks": entries,
        })
    }

    /// Returns the selector of namespaces. It leaves out the host's own, so that a webhook without a host cannot keep
    /// the host from starting.
    fn namespaces(&self, webhook: &Webhook) -> Value {
        let own = match self.parts.endpoint.address() {
            Address::Service { namespace, .. } => Some(json!({
                "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace],
            })),
            Address::Url(_) => None,
        };
        selector(webhook.namespaces.as_ref(), own)
    }
}

/// Returns the name of a plugin's configurations.
fn name_of(reviewing: &Reviewing) -> String {
    let identity = reviewing.identity();
    let manager = identity.manager();
    // The manager is `pilothouse.IDENTITY`.
    manager.replacen('.', "-", 1)
}

fn kind(of_type: WebhookType) -> TypeMeta {
    let kind = match of_type {
        WebhookType::Validating => "ValidatingWebhookConfiguration",
        WebhookType::Mutating => "MutatingWebhookConfiguration",
    };
    TypeMeta::new(GROUP, kind)
}

fn live(lease: &Lease, name: &str) -> Option<Arc<Object>> {
    lease.get(&pilothouse_core::key::Key::new(None, name))
}

/// Returns a selector as Kubernetes writes it in specs.
fn selector(selector: Option<&Selector>, more: impl IntoIterator<Item = Value>) -> Value {
    let requirements = selector.into_iter().flat_map(Selector::requirements);
    let expressions = requirements.filter_map(|requirement| {
        let (operator, values) = match requirement {
            Requirement::In(_, values) => ("In", Some(values)),
            Requirement::NotIn(_, values) => ("NotIn", Some(values)),
            Requirement::Exists(_) => ("Exists", None),
            Requirement::Absent(_) => ("DoesNotExist", None),
            // The manifest was checked to have none.
            Requirement::Greater(..) | Requirement::Less(..) => return None,
        };
        let mut expression = json!({ "key": requirement.key(), "operator": operator });
        if let Some(values) = values {
            expression["values"] = values.iter().collect();
        }
        Some(expression)
    });
    let expressions: Vec<Value> = expressions.chain(more).collect();
    if expressions.is_empty() { json!({}) } else { json!({ "matchExpressions": expressions }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_is_written_as_expressions() {
        let text = Selector::parse("app in (a,b),!legacy,tier!=db,team").expect("a selector");
        let expected = json!({"matchExpressions": [
            {"key": "app", "operator": "In", "values": ["a", "b"]},
            {"key": "legacy", "operator": "DoesNotExist"},
            {"key": "team", "operator": "Exists"},
            {"key": "tier", "operator": "NotIn", "values": ["db"]},
        ]});
        assert_eq!(selector(Some(&text), []), expected);
        assert_eq!(selector(None, []), json!({}));
    }
}
