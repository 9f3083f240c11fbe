//! Deployments and ReplicaSets, as kube-controller-manager reconciles them: a Deployment has ReplicaSets, and a
//! ReplicaSet has Pods.
//!
//! ```text
//!  Deployment ──► rollout: which ReplicaSets, of which size ──► ReplicaSet ──► which Pods come and go ──► Pod
//!      ▲                                                          │  ▲                                    │
//!      └───────────────────────── status ─────────────────────────┘  └────────────── status ──────────────┘
//! ```
//!
//! Two controllers, and no mapping between them: each wakes when the ReplicaSets or Pods change that it read. Both
//! write by requests, because Pods have generated names, and because ReplicaSets and Pods are adopted and released. A
//! controller in Go counts its writes as *expectations*, and waits until its cache shows them. Here, the cache shows a
//! write when the request returns.
//!
//! # Layers
//! A module imports only modules that stand before it in this list.
//!
//! - `labels`, `owners`: label selectors, and owner references
//! - `replicaset`: the controller of ReplicaSets. `pods`, `victims` and `status` are pure.
//! - `deployment`: the controller of Deployments. All of its modules are pure: `desired` (the spec with its defaults),
//!   `template` (equality and hash), `sets` (what a ReplicaSet says), `revision`, `conditions`, `rollout` and `scaling`
//!   (the sizes), `status`.

mod deployment;
mod labels;
mod owners;
mod replicaset;

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use pilothouse_sdk::prelude::*;

/// The indexes of ReplicaSets and of Pods by the uids of their owners.
const SETS_OF: &str = "replicasets-by-owner";
const PODS_OF: &str = "pods-by-owner";

/// The plugin.
#[plugin]
pub fn deployment() -> Plugin {
    let deployments = Controller::of::<Deployment>()
        .reads::<ReplicaSet>()
        .reads::<Pod>()
        .events()
        .max_concurrency(5)
        .reconcile(deployment::reconcile);
    let sets =
        Controller::of::<ReplicaSet>().reads::<Pod>().events().max_concurrency(5).reconcile(replicaset::reconcile);
    let owners = "metadata.ownerReferences[*].uid";
    Plugin::new("Reconciles Deployments and ReplicaSets as kube-controller-manager does.")
        .index::<ReplicaSet>(SETS_OF, owners)
        .index::<Pod>(PODS_OF, owners)
        .controller(deployments)
        .controller(sets)
        // The revision, which is an annotation. A change of the object itself would count as a new generation.
        .permission(Permission::of::<Deployment>().status().verbs([Verb::Patch]))
        .permission(Permission::of::<ReplicaSet>().verbs([Verb::Create, Verb::Patch, Verb::Delete]))
        .permission(Permission::of::<Pod>().verbs([Verb::Create, Verb::Patch, Verb::Delete]))
}
