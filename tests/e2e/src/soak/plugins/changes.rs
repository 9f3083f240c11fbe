//! The objects of a run, and the tasks that change them.
//!
//! Each object has one writer, so the writer knows every state of it that was acknowledged. A request without an answer
//! is followed by a look at the object.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use http::Method;
use serde_json::{Value, json};

use super::{
    At,
    lines::{Histories, Of, Version, compared},
};
use crate::{
    random::Random,
    soak::{
        WRITERS,
        server::{DEFINITIONS, Server},
        world::{Change, Kind, NAMESPACES},
    },
    wait::eventually,
};

const GROUP: &str = "soak.example.com";

const fn apps(kind: &'static str, resource: &'static str, plural: &'static str, names: usize) -> Kind {
    Kind { api_version: "apps/v1", kind, resource, prefix: "/apis/apps/v1", plural, namespaced: true, names }
}

const fn fruit(kind: &'static str, resource: &'static str, plural: &'static str) -> Kind {
    let (api_version, prefix) = ("soak.example.com/v1", "/apis/soak.example.com/v1");
    Kind { api_version, kind, resource, prefix, plural, namespaced: true, names: 20 }
}

pub(super) static MAPS: Kind = Kind::core("ConfigMap", "configmaps", 220);
pub(super) static PODS: Kind = Kind::core("Pod", "pods", 0);
/// No plugin may read them.
pub(super) static SECRETS: Kind = Kind::core("Secret", "secrets", 0);
pub(super) static DEPLOYMENTS: Kind = apps("Deployment", "deployments.apps", "deployments", 20);
pub(super) static SETS: Kind = apps("ReplicaSet", "replicasets.apps", "replicasets", 0);
pub(super) static PEARS: Kind = fruit("Pear", "pears.soak.example.com", "pears");
pub(super) static PLUMS: Kind = fruit("Plum", "plums.soak.example.com", "plums");
/// Their definition comes and goes.
pub(super) static FIGS: Kind = fruit("Fig", "figs.soak.example.com", "figs");
pub(super) static WATCHES: Kind = Kind {
    api_version: "watch.example.com/v1",
    kind: "ResourceWatch",
    resource: "resourcewatches.watch.example.com",
    prefix: "/apis/watch.example.com/v1",
    plural: "resourcewatches",
    namespaced: false,
    names: 20,
};

/// The kinds that a ResourceWatch may name.
pub(super) static COUNTED: [&Kind; 8] = [&MAPS, &PODS, &DEPLOYMENTS, &SETS, &PEARS, &PLUMS, &FIGS, &SECRETS];

/// The kinds whose changes are compared with the lines of `kubediff`.
static OBSERVED: [&Kind; 4] = [&MAPS, &DEPLOYMENTS, &PEARS, &PLUMS];

/// The definition of a fruit.
pub(super) fn definition(of: &Kind) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": of.resource},
        "spec": {
            "group": GROUP, "scope": "Namespaced", "names": {"kind": of.kind, "plural": of.plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    })
}

/// Changes its share of the objects.
pub(super) struct Writer {
    server: Arc<Server>,
    random: Random,
    number: usize,
    begun: Instant,
    histories: Histories,
    /// Why it could not go on.
    broken: Option<anyhow::Error>,
}

impl Writer {
    pub(super) fn new(server: Arc<Server>, random: Random, number: usize, begun: Instant) -> Self {
        let mut histories = Histories::new();
        for kind in OBSERVED {
            for namespace in NAMESPACES {
                for index in (number..kind.names).step_by(writers()) {
                    let none = Version { sent: At::ZERO, acked: At::ZERO, state: None };
                    histories.insert(of(kind, Some(namespace), &name(kind, index)), vec![none]);
                }
            }
        }
        Self { server, random, number, begun, histories, broken: None }
    }

    /// Creates about four fifths of its objects of these kinds.
    pub(super) async fn fill(&mut self, kinds: &[&'static Kind]) -> Result<()> {
        for kind in kinds {
            let namespaces = if kind.namespaced { NAMESPACES.map(Some).to_vec() } else { vec![None] };
            for namespace in namespaces {
                for index in (self.number..kind.names).step_by(writers()) {
                    let object = (self.random.below(5) > 0).then(|| self.desired(kind, index));
                    self.write(kind, namespace, index, object).await;
                }
            }
        }
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Makes one change of any object. Returns `false` if it failed.
    pub(super) async fn change(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let kind = match self.random.below(100) {
            0..40 => &MAPS,
            40..45 => &PEARS,
            45..50 => &PLUMS,
            50..55 => &FIGS,
            55..80 => &DEPLOYMENTS,
            80..90 => &WATCHES,
            // One for all writers.
            90 if self.number == 0 => return self.redefine().await.is_ok(),
            _ => return self.disturb().await.is_ok(),
        };
        let (namespace, index) = self.any(kind);
        if kind == &DEPLOYMENTS && self.random.below(40) == 0 {
            return self.orphan(namespace, index).await;
        }
        let object = if self.random.below(if kind == &DEPLOYMENTS { 12 } else { 5 }) == 0 {
            None
        } else if kind == &DEPLOYMENTS && self.last(kind, namespace, index).is_some() {
            Some(self.revised(index))
        } else {
            Some(self.desired(kind, index))
        };
        self.write(kind, namespace, index, object).await
    }

    /// Ends what never becomes complete: images that are never ready, and most pauses.
    pub(super) async fn finish(&mut self) -> Result<()> {
        for namespace in NAMESPACES {
            for index in (self.number..DEPLOYMENTS.names).step_by(writers()) {
                let Some(last) = self.last(&DEPLOYMENTS, Some(namespace), index) else { continue };
                let paused = last["spec"]["paused"] == true && self.random.below(4) == 0;
                let name = name(&DEPLOYMENTS, index);
                let spec = json!({"paused": paused, "template": {"spec": {"containers": containers("web:last")}}});
                let patch = json!({"metadata": {"name": name}, "spec": spec});
                self.write(&DEPLOYMENTS, Some(namespace), index, Some(patch)).await;
            }
        }
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Returns the states of its objects.
    pub(super) fn histories(self) -> Histories {
        self.histories
    }

    /// Draws one of its objects.
    fn any(&mut self, kind: &Kind) -> (Option<&'static str>, usize) {
        let namespace = kind.namespaced.then(|| *self.random.one(&NAMESPACES));
        (namespace, self.random.below(kind.names / writers()) * writers() + self.number)
    }

    fn last(&self, kind: &Kind, namespace: Option<&str>, index: usize) -> Option<&Value> {
        self.histories.get(&of(kind, namespace, &name(kind, index)))?.last()?.state.as_ref()
    }

    /// Writes or deletes an object, and keeps its state. Returns `false` if the request failed.
    async fn write(
        &mut self,
        kind: &'static Kind,
        namespace: Option<&'static str>,
        index: usize,
        object: Option<Value>,
    ) -> bool {
        let (collection, name) = (kind.path(namespace), name(kind, index));
        let sent = self.begun.elapsed();
        let answer = self.server.write(&Change { collection, name, object }).await;
        self.keep(kind, namespace, index, sent, answer).await
    }

    async fn keep(
        &mut self,
        kind: &'static Kind,
        namespace: Option<&'static str>,
        index: usize,
        sent: At,
        answer: Result<Option<Value>>,
    ) -> bool {
        let name = name(kind, index);
        let is_ok = answer.is_ok();
        let Some(history) = self.histories.get_mut(&of(kind, namespace, &name)) else { return is_ok };
        let state = match answer {
            Ok(state) => Ok(state),
            Err(_) => self.server.get(&kind.path(namespace), &name).await,
        };
        match state {
            Ok(state) => {
                let state = state.map(compared);
                if history.last().is_none_or(|last| last.state != state) {
                    history.push(Version { sent, acked: self.begun.elapsed(), state });
                }
            }
            Err(error) => self.broken = Some(error.context(format!("the state of {name} is not known"))),
        }
        is_ok
    }

    /// Deletes a Deployment and leaves its ReplicaSets.
    async fn orphan(&mut self, namespace: Option<&'static str>, index: usize) -> bool {
        let path = DEPLOYMENTS.path(namespace);
        let name = name(&DEPLOYMENTS, index);
        let sent = self.begun.elapsed();
        let orphaning = format!("{path}/{name}?propagationPolicy=Orphan");
        let deleted = self.server.try_to(Method::DELETE, &orphaning, None).await;
        let gone = if deleted.is_ok() {
            let gone = async || match self.server.get(&path, &name).await? {
                None => Ok(None),
                Some(_) => bail!("it is still there"),
            };
            eventually("an orphaning Deployment is gone", gone).await
        } else {
            deleted.map(Some)
        };
        self.keep(&DEPLOYMENTS, namespace, index, sent, gone).await
    }

    /// Draws an object as it should be.
    fn desired(&mut self, kind: &Kind, index: usize) -> Value {
        let random = &mut self.random;
        // Null in a merge patch removes the label.
        let color = random.one(&[json!("a"), json!("b"), Value::Null]).clone();
        let tier = random.one(&[json!("web"), json!("db"), Value::Null]).clone();
        let labels = json!({"color": color, "tier": tier});
        let mut object = json!({
            "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name(kind, index), "labels": labels},
        });
        let content = json!({"value": random.below(1000).to_string(), "color": color});
        match kind.kind {
            "ConfigMap" => object["data"] = content,
            "Deployment" => {
                let (app, image) = (name(kind, index), image(random));
                let strategies = [
                    json!({"type": "RollingUpdate"}),
                    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
                    json!({"type": "Recreate"}),
                ];
                object["spec"] = json!({
                    "replicas": random.below(5), "selector": {"matchLabels": {"app": app}}, "revisionHistoryLimit": 2,
                    "strategy": random.one(&strategies),
                    "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": containers(image)}},
                });
            }
            "ResourceWatch" => {
                object["metadata"]["labels"] = json!({});
                object["spec"] = json!({"list": random.below(5), "resources": selected(random)});
            }
            _ => object["spec"] = content,
        }
        object
    }

    /// Draws a change of a Deployment that exists.
    fn revised(&mut self, index: usize) -> Value {
        let random = &mut self.random;
        let spec = match random.below(8) {
            0..3 => json!({"template": {"spec": {"containers": containers(image(random))}}}),
            3 | 4 => json!({"replicas": random.below(5)}),
            5 => json!({"paused": random.below(2) == 0}),
            6 => json!({"template": {"metadata": {"annotations": {"restart": random.below(1000).to_string()}}}}),
            _ => json!({}),
        };
        let labels = json!({"color": random.one(&["a", "b"])});
        json!({"metadata": {"name": name(&DEPLOYMENTS, index), "labels": labels}, "spec": spec})
    }

    /// Disturbs Pods and ReplicaSets of a Deployment, which belong to nobody's history.
    async fn disturb(&mut self) -> Result<()> {
        let (namespace, index) = self.any(&DEPLOYMENTS);
        let app = name(&DEPLOYMENTS, index);
        let stray = format!("{app}.stray");
        let label = |app: &str| json!({"metadata": {"labels": {"app": app}}});
        let (kind, labels, patch, subresource) = match self.random.below(10) {
            0..3 => (&PODS, &app, None, ""),
            3 => (&PODS, &app, Some(label(&stray)), ""),
            4 => (&PODS, &stray, Some(label(&app)), ""),
            5 => (&PODS, &app, Some(json!({"status": {"phase": "Failed"}})), "/status"),
            6 => (&SETS, &app, Some(label(&stray)), ""),
            7 => (&SETS, &stray, Some(label(&app)), ""),
            8 => (&PODS, &stray, None, ""),
            _ => (&SETS, &stray, None, ""),
        };
        let collection = kind.path(namespace);
        let found = self.server.list(&collection, &format!("app={labels}"), "").await?;
        if found.is_empty() {
            return Ok(());
        }
        let one = self.random.one(&found)["metadata"]["name"].as_str().context("an object without a name")?;
        let path = format!("{collection}/{one}{subresource}");
        let method = if patch.is_some() { Method::PATCH } else { Method::DELETE };
        self.server.try_to(method, &path, patch.as_ref()).await.map(drop)
    }

    /// Deletes the definition of figs, or creates it.
    async fn redefine(&self) -> Result<()> {
        if self.server.get(DEFINITIONS, FIGS.resource).await?.is_some() {
            let path = format!("{DEFINITIONS}/{}", FIGS.resource);
            self.server.try_to(Method::DELETE, &path, None).await.map(drop)
        } else {
            self.server.try_to(Method::POST, DEFINITIONS, Some(&definition(&FIGS))).await.map(drop)
        }
    }
}

fn writers() -> usize {
    usize::try_from(WRITERS).expect("a few")
}

fn of(kind: &Kind, namespace: Option<&str>, name: &str) -> Of {
    Of { kind: kind.kind.to_owned(), namespace: namespace.unwrap_or_default().to_owned(), name: name.to_owned() }
}

fn name(kind: &Kind, index: usize) -> String {
    format!("{}-{index}", kind.kind.to_lowercase())
}

fn image(random: &mut Random) -> &'static str {
    let images: [&'static str; 4] = ["web:1", "web:2", "web:3", "broken:1"];
    images[random.below(images.len())]
}

/// Returns the containers of an image. A Pod of the image `broken` is not ready within an hour.
fn containers(image: &str) -> Value {
    let mut container = json!({"name": "web", "image": image});
    if image.starts_with("broken") {
        container["readinessProbe"] = json!({"initialDelaySeconds": 3600, "httpGet": {"path": "/", "port": 80}});
    }
    json!([container])
}

/// Draws what a ResourceWatch counts.
fn selected(random: &mut Random) -> Value {
    let mut kinds = COUNTED;
    random.shuffle(&mut kinds);
    let entries = kinds.iter().take(1 + random.below(4)).map(|kind| {
        let mut entry = json!({"apiVersion": kind.api_version, "kind": kind.kind});
        match random.below(4) {
            0 => entry["labels"] = "color=a".into(),
            1 => entry["labels"] = "tier in (web),color!=b".into(),
            _ => {}
        }
        if random.below(2) == 0 {
            entry["namespaces"] = json!(NAMESPACES[..=random.below(2)]);
        }
        entry
    });
    entries.collect()
}
