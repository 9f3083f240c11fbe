//! Asks the API server what the service accounts of plugins may read of the shared cache: when a plugin is activated,
//! and at an interval.
//!
//! ```text
//! leases of the plugin ─► get, list, watch allowed? ─► Rights ─┬─ lost: reads fail, nothing is shown, keys are not reconciled
//!        └ one SubjectAccessReview for each verb               └─ back: every key is looked at again
//! ```
//!
//! What cannot be asked while a plugin is activated is tried again, and the plugin does not serve. Later, an API server
//! that does not answer changes nothing: it sends no changes either. One that refuses to answer ends the reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, future::try_join_all, stream};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use pilothouse_core::grant::{Changes, LeaseScope, Right, Rights, ServiceAccount};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{ActivePlugin, Dispatch};
use crate::{
    causes::with_causes,
    cluster::{self, Cluster, Endpoint},
    informer::InformerKey,
    name::PluginName,
};

/// What a plugin does with a scope of the cache.
const VERBS: [&str; 3] = ["get", "list", "watch"];

/// Scopes of one plugin that are asked about at a time.
const AT_ONCE: usize = 4;

/// How often the host looks for scopes of which nothing is known. A look sends no request if there are none.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time until the API server is asked again about scopes of which it could not say anything, such as those of a kind that
/// is not served yet.
const AGAIN: Duration = Duration::from_secs(5);

/// When the API server is to be asked about a plugin's scopes.
#[derive(Clone, Copy)]
struct Due {
    all: Instant,
    unknown: Instant,
}

impl Dispatch {
    /// Asks about all scopes of all plugins with a service account, each `every` so often.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn check_rights(&self, every: Duration) -> Infallible {
        let mut due: BTreeMap<PluginName, Due> = BTreeMap::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let plugins: Vec<_> = {
                let active = self.active.lock();
                let plugins = active.plugins.iter().filter(|(_, plugin)| plugin.rights.is_some());
                plugins.map(|(name, plugin)| (name.clone(), plugin.clone())).collect()
            };
            due.retain(|name, _| plugins.iter().any(|(plugin, _)| plugin == name));
            for (name, plugin) in plugins {
                let now = Instant::now();
                let next = due.entry(name.clone()).or_insert(Due { all: now + every, unknown: now });
                self.check_rights_of(&name, &plugin, next, every).await;
            }
        }
    }

    async fn check_rights_of(&self, name: &PluginName, plugin: &ActivePlugin, due: &mut Due, every: Duration) {
        let (Some(rights), now) = (&plugin.rights, Instant::now()) else { return };
        let leased = plugin.leased();
        let scopes: BTreeSet<LeaseScope> = leased.iter().cloned().chain(plugin.asked()).collect();
        let mut wanted: Vec<LeaseScope> = scopes.iter().filter(|scope| rights.of(scope).is_none()).cloned().collect();
        if due.all <= now {
            rights.retain(|scope| scopes.contains(scope));
            wanted = scopes.into_iter().collect();
            due.all = now + every;
        } else if wanted.is_empty() || now < due.unknown {
            return;
        }
        due.unknown = now + AGAIN;
        let answers = stream::iter(wanted)
            .map(async |scope| {
                let answer = ask(&self.parts.cluster, rights.account(), &scope).await;
                (scope, answer)
            })
            .buffer_unordered(AT_ONCE)
            .filter_map(async |(scope, answer)| match answer {
                Ok(right) => Some((scope, right?)),
                Err(error) if is_refusal(&error) => {
                    let why = format!("cannot be checked: {}", with_causes(&error));
                    Some((scope, Right::Lacking(why.into())))
                }
                Err(error) => {
                    let (account, error) = (rights.account(), with_causes(&error));
                    warn!(plugin = %name, %account, error, "cannot check what the plugin's service account may read; its reads go on as before");
                    None
                }
            })
            .collect::<Vec<_>>()
            .await;
        let mut changes = rights.record(answers);
        // Changes of these were not heard while nothing was known.
        changes.regained.extend(changes.given.iter().filter(|given| leased.contains(*given)).cloned());
        follow(name, plugin, rights, &changes);
    }

    /// Asks about the scopes of a candidate's leases. `running` is what serves meanwhile.
    pub(super) async fn review_reads(
        &self,
        name: &PluginName,
        running: &ActivePlugin,
        rights: &Arc<Rights>,
        leases: impl Iterator<Item = &InformerKey>,
    ) -> Result<(), NotChecked> {
        let scopes: BTreeSet<LeaseScope> = leases.map(LeaseScope::from).collect();
        let mut answers = stream::iter(scopes)
            .map(async |scope| {
                let answer = ask(&self.parts.cluster, rights.account(), &scope).await;
                (scope, answer)
            })
            .buffer_unordered(AT_ONCE);
        let mut known = Vec::new();
        while let Some((scope, answer)) = answers.next().await {
            let answer = answer.map_err(|source| NotChecked { account: rights.account().to_string(), source })?;
            known.extend(answer.map(|right| (scope, right)));
        }
        let changes = rights.record(known);
        let is_running = running.rights.as_ref().is_some_and(|running| Arc::ptr_eq(running, rights));
        let nobody = ActivePlugin::default();
        follow(name, if is_running { running } else { &nobody }, rights, &changes);
        Ok(())
    }

    /// Returns what the plugin's service account lacks to read what the plugin caches, for people.
    pub fn lacking(&self, plugin: &PluginName) -> Vec<String> {
        let active = self.active.lock();
        let rights = active.plugins.get(plugin).and_then(|plugin| plugin.rights.as_ref());
        rights.map(|rights| rights.lacking()).unwrap_or_default()
    }
}

/// What the account of a candidate may read is not known.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask the API server what the service account {account} may read")]
pub(super) struct NotChecked {
    account: String,
    source: cluster::Error,
}

/// Stops the reads of what is lost, and lets those of what came back go on.
fn follow(name: &PluginName, plugin: &ActivePlugin, rights: &Rights, changes: &Changes) {
    if changes.is_empty() {
        return;
    }
    let account = rights.account();
    for (_, why) in &changes.lost {
        warn!(plugin = %name, %account, "the plugin does not see what it caches: the service account {account} {why}");
    }
    for LeaseScope { of, scope } in &changes.regained {
        let (namespace, object) = (scope.namespace.as_deref(), scope.name.as_deref());
        info!(plugin = %name, %account, %of, namespace, object, "the plugin sees this again: its service account may read it");
    }
    if !changes.lost.is_empty() {
        plugin.restrict();
    }
    if !changes.regained.is_empty() {
        plugin.controllers.iter().for_each(|controller| controller.look_at_all());
        if let Some(observing) = &plugin.observing {
            observing.listen_again(|key| changes.regained.contains(&LeaseScope::from(key)));
        }
    }
    plugin.controllers.iter().for_each(|controller| controller.ledger().asks().look());
}

/// Asks whether an account may read a scope. `None`: the kind is not served yet.
async fn ask(
    cluster: &Cluster,
    account: &ServiceAccount,
    LeaseScope { of, scope }: &LeaseScope,
) -> Result<Option<Right>, cluster::Error> {
    let endpoint = match cluster.endpoint(of).await {
        Ok(endpoint) => endpoint,
        Err(cluster::Error::Missing(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let group = of.api_version.split_once('/').map_or("", |(group, _)| group);
    let Endpoint { plural, namespaced, .. } = &*endpoint;
    let reviews = VERBS.map(async |verb| {
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(plural.clone()),
            namespace: scope.namespace.clone(),
            name: scope.name.clone(),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        Ok::<_, cluster::Error>((verb, cluster.may(account, attributes).await?))
    });
    let denied: Vec<&str> = try_join_all(reviews)
        .await?
        .into_iter()
        .filter_map(|(verb, is_allowed)| (!is_allowed).then_some(verb))
        .collect();
    if denied.is_empty() {
        return Ok(Some(Right::Given));
    }
    let resource = if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") };
    let name = scope.name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
    let place = match &scope.namespace {
        Some(namespace) => format!("in the namespace {namespace}"),
        None if *namespaced => "in all namespaces".to_owned(),
        None => "at the cluster scope".to_owned(),
    };
    Ok(Some(Right::Lacking(format!("may not {} {resource}{name} {place}", denied.join(", ")).into())))
}

/// `true` if the API server answered that the host may not ask.
fn is_refusal(error: &cluster::Error) -> bool {
    matches!(error, cluster::Error::Status(status) if matches!(status.code, 401 | 403))
}
