//! The world of one case: an API server in memory, and the host's own dispatcher, caches and writer with the plugin.
//!
//! Everything runs on one thread with a clock that stands still. A step is over when nothing can go on but by the
//! passing of time.
//!
//! ```text
//! case ─► requests ─► Server ◄─ Local ◄─ Cluster ◄─ informers, writer ◄─ Dispatch ◄─ plugin
//!                                                           all on one paused runtime
//! ```

use std::{
    collections::BTreeMap,
    mem,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full};
use pilothouse_apiserver::{Local, Served, Server, keep_house};
use pilothouse_core::{
    key::Key,
    manifest::MAX_REVIEW,
    series::{Measured, Value as Measure},
};
use serde_json::{Map, Value, json};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tower::Service;

use super::{
    case::{Action, Case, Given, HOST, Reference, ReviewCall},
    parked::Parked,
    plugin::Plugin,
    record::{self, Seen},
    servers::Servers,
};
use crate::{
    acting::Acting,
    clock::Clock,
    cluster::Cluster,
    dispatch::{Attempt, Called, Controller, Dispatch, Observer, Parts},
    guests::Guests,
    informer::Informers,
    name::PluginName,
    outbound::Outbound,
    plugin::{Activate, Candidate},
    wasm::{Review, Revision, User},
    webhook::Conversion,
    writer::{Address, Endpoint, Events},
};

/// Time of the case that a step may take to settle. A request that hangs ends after about a minute.
const SETTLES_WITHIN: Duration = Duration::from_secs(600);

/// How far time moves at once while a call waits for it.
const STRIDE: Duration = Duration::from_millis(1);

/// The field manager of what a case writes.
const MANAGER: &str = "test";

/// The address of the plugin's webhooks. Nothing listens there: the API server calls them in this process.
const HOST_URL: &str = "https://pilothouse.invalid";

/// What a request of the case failed with.
#[derive(Debug)]
struct Refused {
    code: u16,
    message: String,
}

/// What has happened in one step.
#[derive(Debug, Default)]
pub(super) struct Happened {
    /// In order.
    pub(super) seen: Vec<Seen>,
    /// Events that are new or were counted again.
    pub(super) events: Vec<Value>,
    /// Writes of the case itself that the API server refused.
    pub(super) refused: Vec<String>,
    /// Requests of the plugin to other servers.
    pub(super) requests: Vec<Value>,
    /// Those that the case does not answer.
    pub(super) unanswered: Vec<String>,
    /// Answers to reviews, in order.
    pub(super) reviews: Vec<Value>,
    /// Converted objects, or why they cannot be converted, in order.
    pub(super) conversions: Vec<Result<Value, String>>,
    /// What the plugin waits for, and does not reconcile.
    pub(super) waits_for: Vec<String>,
}

/// A running world.
pub(super) struct World<'a> {
    plugin: &'a Plugin,
    server: Arc<Server>,
    dispatch: Arc<Dispatch>,
    parked: Parked,
    servers: Servers,
    reviews: Vec<Value>,
    /// The revision that converts objects.
    converting: Arc<ArcSwap<Revision>>,
    conversions: Vec<Result<Value, String>>,
    /// The count of each Event, by its name.
    events: BTreeMap<String, u64>,
}

/// Watches nothing.
struct Nobody;

impl Observer for Nobody {
    fn started(&self, _: &Controller) {}
    fn stopped(&self, _: &Controller) {}
    fn picked(&self, _: &Controller, _: Duration) {}
    fn finished(&self, _: &Controller, _: Duration) {}
    fn attempted(&self, _: &Controller, _: &Attempt) {}
    fn called(&self, _: &PluginName, _: Option<&Controller>, _: &Called) {}
    fn quarantined(&self, _: &PluginName, _: bool) {}
}

/// Sends the host's requests to the server.
struct HostClient(Local);

impl Service<Request<kube::client::Body>> for HostClient {
    type Response = <Local as Service<Request<kube::client::Body>>>::Response;
    type Error = std::io::Error;
    type Future = <Local as Service<Request<kube::client::Body>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<kube::client::Body>) -> Self::Future {
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(HOST));
        self.0.call(request)
    }
}

impl<'a> World<'a> {
    /// Creates the given state, and activates the plugin.
    ///
    /// # Errors
    /// If an object is refused, or the plugin cannot serve.
    pub(super) async fn begin(plugin: &'a Plugin, case: &Case, parked: Parked) -> anyhow::Result<Self> {
        record::begin();
        let Given { objects, config, clock, http } = &case.given;
        let servers = Servers::default();
        http.iter().rev().for_each(|answer| servers.answer(answer.clone()));
        let dialed = servers.clone();
        let (clock, io) = (Clock::starting(*clock), Handle::current());
        let (candidate, described) = plugin.candidate(config.as_ref()).await?;
        let server = Arc::new(match described.installed.get() {
            Some(snapshot) => Server::from_snapshot(snapshot, move || clock.now()),
            None => Server::with_clock(move || clock.now()),
        });
        let converting = Arc::new(ArcSwap::new(candidate.revision.clone()));
        let converts = converting.clone();
        server.answer_webhooks(HOST_URL, move |review| answer(converts.load_full(), review).boxed());
        tokio::spawn(keep_house(server.clone()));
        let client = kube::Client::new(HostClient(Local::new(server.clone())), "default");
        let cluster = Cluster::new(client, "the case", io.clone());
        let acting = Acting::new(true);
        let endpoint = Endpoint::new(Address::Url(HOST_URL.to_owned()));
        // No connection is made, so no authority needs to be trusted.
        endpoint.trust("");
        let events = Events::start(cluster.clone(), acting.clone(), Arc::default(), "case", &io).with_clock(clock);
        let dispatch = Arc::new(Dispatch::new(Parts {
            cluster: cluster.clone(),
            informers: Informers::new(cluster, io.clone()),
            guests: Guests::within(&io),
            observer: Arc::new(Nobody),
            writes: Arc::new(()),
            outbound: Outbound::instead(move |url| dialed.dial(url), Arc::default()),
            events,
            acting: acting.into(),
            webhooks: Some(endpoint.clone()),
            clock,
        }));
        let (reviews, conversions, events) = (Vec::new(), Vec::new(), BTreeMap::new());
        let world = Self { plugin, server, dispatch, parked, servers, reviews, converting, conversions, events };
        if described.installed.get().is_none() {
            world.install(&candidate, &endpoint).await?;
            described.installed.get_or_init(|| world.server.snapshot());
        }
        // Other cases begin here, so a case repeats exactly.
        world.server.number_draws();
        for (line, object) in in_order(objects) {
            let made = world.drive(world.give(object)).await.context("an object is never stored")?;
            made.map_err(|refused| anyhow!("{}:{line}: {}", case.file.display(), refused.message))?;
        }
        let activated = world.drive(Activate::activate(&*world.dispatch, candidate)).await;
        activated.ok_or_else(|| anyhow!("the plugin does not become active"))??;
        world.settle().await?;
        Ok(world)
    }

    /// Installs the definitions of the plugin, as the host would.
    async fn install(&self, candidate: &Candidate, webhooks: &Endpoint) -> anyhow::Result<()> {
        for definition in &candidate.revision.manifest().crds {
            let mut definition: Value = serde_json::from_str(definition)?;
            if definition["spec"]["conversion"]["strategy"] == "Webhook" {
                definition["spec"]["conversion"]["webhook"] = webhooks.conversion(&self.plugin.name).await;
            }
            definition.as_object_mut().map(|members| members.remove("status"));
            let made = self.apply(&definition, candidate.identity.manager()).await;
            made.map_err(|refused| {
                anyhow!("a CustomResourceDefinition of the plugin is refused: {}", refused.message)
            })?;
        }
        Ok(())
    }

    /// Returns what has happened since the last call.
    pub(super) async fn happened(&mut self) -> Happened {
        let waits_for = self.dispatch.controllers().into_iter().flat_map(|controller| controller.waking().waits_for());
        let waits_for = waits_for.map(|(informer, state)| format!("{informer}: {state}")).collect();
        let (requests, unanswered) = self.servers.take();
        let (reviews, conversions) = (mem::take(&mut self.reviews), mem::take(&mut self.conversions));
        let (seen, events) = (record::take(), self.new_events().await);
        Happened { seen, events, refused: Vec::new(), requests, unanswered, reviews, conversions, waits_for }
    }

    /// Performs the actions of a step, and waits until their effects have settled. Returns why the API server refused
    /// some of them.
    ///
    /// # Errors
    /// If an action makes no sense here, or the step never settles.
    pub(super) async fn perform(&mut self, actions: &[(usize, Action)]) -> anyhow::Result<Vec<String>> {
        let mut refused = Vec::new();
        for (line, action) in actions {
            if let Some(why) = self.act(action).await.with_context(|| format!("line {line}"))? {
                refused.push(why);
            }
        }
        self.settle().await?;
        Ok(refused)
    }

    /// Returns an object, or `None` if it does not exist.
    ///
    /// # Errors
    /// Its kind is not served.
    pub(super) async fn get(&self, of: &Reference) -> Result<Option<Value>, String> {
        let served = self.served(of).map_err(|refused| refused.message)?;
        match self.call(Method::GET, &path(&served, of, ""), "", None).await {
            Ok(object) => Ok(Some(object)),
            Err(Refused { code: 404, .. }) => Ok(None),
            Err(Refused { message, .. }) => Err(message),
        }
    }

    /// Returns the names of all objects of a kind.
    pub(super) async fn names(&self, of: &Reference) -> Vec<String> {
        let Ok(served) = self.served(of) else { return Vec::new() };
        let Ok(list) = self.call(Method::GET, &served.path("", ""), "", None).await else { return Vec::new() };
        let name = |object: &Value| {
            let name = object["metadata"]["name"].as_str()?;
            Some(match object["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.to_owned(),
            })
        };
        list["items"].as_array().into_iter().flatten().filter_map(name).collect()
    }

    /// Returns the values of the plugin's metrics: `name`, or `name{label=value}`. A histogram has `name_count` and
    /// `name_sum`.
    pub(super) fn metrics(&self) -> Value {
        let mut values = Map::new();
        for record in self.dispatch.records() {
            for Measured { metric, series } in record.series() {
                for (labels, value) in &series {
                    let labels = metric.labels.iter().zip(labels).map(|(name, value)| format!("{name}={value}"));
                    let labels = labels.collect::<Vec<_>>().join(",");
                    let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
                    let name = &metric.name;
                    match value {
                        Measure::Number(value) => drop(values.insert(format!("{name}{labels}"), number(*value))),
                        Measure::Histogram { counts, sum } => {
                            values.insert(format!("{name}_count{labels}"), counts.iter().sum::<u64>().into());
                            values.insert(format!("{name}_sum{labels}"), number(*sum));
                        }
                    }
                }
            }
        }
        values.into()
    }

    async fn new_events(&mut self) -> Vec<Value> {
        let list = self.call(Method::GET, "/api/v1/events", "", None).await.unwrap_or_default();
        let mut new = Vec::new();
        for event in list["items"].as_array().into_iter().flatten() {
            let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let count = event["count"].as_u64().unwrap_or(1);
            if self.events.insert(name, count) != Some(count) {
                new.push(event.clone());
            }
        }
        new
    }

    async fn act(&mut self, action: &Action) -> anyhow::Result<Option<String>> {
        let done = match action {
            Action::Apply(object) => self.apply(object, MANAGER).await,
            Action::Patch(object) => self.patch(object).await,
            Action::Status(object) => self.patch_status(object).await,
            Action::Delete(of) => self.delete(of).await,
            Action::Advance(time) => {
                // What the actions before it have caused comes first.
                self.settle().await?;
                sleep(*time).await;
                Ok(())
            }
            Action::Reconcile { controller, namespace, name } => {
                let key = Key::new(namespace.as_deref(), name);
                let all = self.dispatch.controllers();
                let chosen: Vec<_> =
                    all.iter().filter(|one| controller.as_deref().is_none_or(|name| name == one.name())).collect();
                if chosen.is_empty() {
                    let known: Vec<_> = all.iter().map(|controller| controller.name()).collect();
                    bail!("the plugin has no such controller; it has {}", known.join(", "));
                }
                chosen.into_iter().for_each(|controller| controller.resync(key.clone()));
                Ok(())
            }
            Action::Config(config) => {
                let (candidate, _) = self.plugin.candidate(Some(config)).await?;
                self.converting.store(candidate.revision.clone());
                let activated = self.drive(Activate::activate(&*self.dispatch, candidate)).await;
                activated.ok_or_else(|| anyhow!("the new configuration does not become active"))??;
                Ok(())
            }
            Action::Http(answer) => {
                self.servers.answer((**answer).clone());
                Ok(())
            }
            Action::Review(call) => {
                let review = self.review(call).await?;
                self.reviews.push(review);
                Ok(())
            }
            Action::Convert { object, to } => {
                let converted = self.convert(object, to).await?;
                self.conversions.push(converted);
                Ok(())
            }
            Action::Fault(rule) => {
                self.server.faults().add((**rule).clone())?;
                Ok(())
            }
        };
        Ok(done.err().map(|refused| refused.message))
    }

    /// Asks a webhook of the plugin, and returns its answer as a case has it.
    async fn review(&self, call: &ReviewCall) -> anyhow::Result<Value> {
        let ReviewCall { webhook, operation, object, old, user, groups, dry_run } = call;
        let Some(reviewing) = self.dispatch.reviewing_of(&self.plugin.name) else { bail!("the plugin has no webhook") };
        let known: Vec<String> = reviewing.webhooks().into_iter().map(|webhook| webhook.name).collect();
        let webhook = match (webhook, &*known) {
            (Some(name), _) => name.clone(),
            (None, [only]) => only.clone(),
            (None, _) => bail!("`review` needs a webhook: the plugin has {}", known.join(", ")),
        };
        let about = object.as_ref().or(old.as_ref()).context("a review is about an object")?;
        let of = Reference::of(about).map_err(anyhow::Error::msg)?;
        let namespaced = self.server.kind(&of.api_version, &of.kind).is_none_or(|served| served.namespaced);
        let namespace = if of.namespace.is_empty() { "default".to_owned() } else { of.namespace };
        let review = Review {
            webhook,
            operation: *operation,
            api_version: of.api_version,
            kind: of.kind,
            namespace: namespaced.then_some(namespace),
            name: of.name,
            subresource: None,
            object: object.as_ref().map(Value::to_string),
            old: old.as_ref().map(Value::to_string),
            user: User { name: user.clone(), uid: String::new(), groups: groups.clone() },
            dry_run: *dry_run,
        };
        let answer = self.drive(reviewing.review(review, Instant::now())).await;
        Ok(match answer.context("the review has no end")? {
            Ok((decision, changed)) => {
                let changed: Option<Value> = changed.map(|changed| serde_json::from_str(&changed)).transpose()?;
                json!({
                    "allowed": decision.denied.is_none(), "message": decision.denied, "code": decision.code,
                    "warnings": decision.warnings, "object": changed.as_ref().or(object.as_ref()),
                })
            }
            Err(error) => json!({ "error": error.to_string() }),
        })
    }

    /// Converts an object as the API server would let the plugin do it.
    async fn convert(&self, object: &Value, to: &str) -> anyhow::Result<Result<Value, String>> {
        let revision = self.converting.load_full();
        if !revision.manifest().needs_conversion() {
            bail!("the plugin converts no objects: none of its definitions has the conversion strategy Webhook");
        }
        let of = Reference::of(object).map_err(anyhow::Error::msg)?;
        for api_version in [&of.api_version, to] {
            let of = Reference { api_version: api_version.to_owned(), ..of.clone() };
            self.served(&of).map_err(|refused| anyhow!(refused.message))?;
        }
        let conversion = Conversion::of(object.clone(), to.to_owned());
        let converted = self.drive(converted(&revision, &conversion)).await.context("the conversion has no end")?;
        let objects = converted.and_then(|objects| conversion.objects(&objects).map_err(|invalid| invalid.to_string()));
        Ok(objects.map(|objects| objects.into_iter().next().unwrap_or_default()))
    }

    /// Creates an object with its status, and its namespace if that does not exist. Owners need no uid.
    async fn give(&self, object: &Value) -> Result<(), Refused> {
        let mut object = object.clone();
        let of = reference(&object)?;
        if self.served(&of)?.namespaced {
            let namespace = if of.namespace.is_empty() { "default" } else { &of.namespace };
            let made = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            match self.call(Method::POST, "/api/v1/namespaces", "application/json", Some(&made)).await {
                Ok(_) | Err(Refused { code: 409, .. }) => {}
                Err(refused) => return Err(refused),
            }
        }
        for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
            if owner["uid"].is_string() {
                continue;
            }
            let text = |member: &str| owner[member].as_str().unwrap_or_default().to_owned();
            let by = Reference {
                api_version: text("apiVersion"),
                kind: text("kind"),
                namespace: of.namespace.clone(),
                name: text("name"),
            };
            let found = self.get(&by).await.map_err(|message| Refused { code: 0, message })?;
            let missing = || Refused { code: 0, message: format!("the owner {by} is not given before") };
            owner["uid"] = found.ok_or_else(missing)?["metadata"]["uid"].take();
        }
        self.apply(&object, MANAGER).await
    }

    async fn apply(&self, object: &Value, manager: &str) -> Result<(), Refused> {
        let mut main = object.clone();
        let status = main.as_object_mut().and_then(|members| members.remove("status"));
        if object["metadata"]["name"].is_null() {
            let mut of = reference(&json!({
                "apiVersion": object["apiVersion"], "kind": object["kind"],
                "metadata": { "name": "generated", "namespace": object["metadata"]["namespace"] },
            }))?;
            of.name.clear();
            let path = path(&self.served(&of)?, &of, "") + &format!("?fieldManager={manager}");
            return self.call(Method::POST, &path, "application/json", Some(&main)).await.map(drop);
        }
        let of = reference(object)?;
        let served = self.served(&of)?;
        let query = format!("?fieldManager={manager}&force=true");
        let path = path(&served, &of, "") + &query;
        self.call(Method::PATCH, &path, "application/apply-patch+yaml", Some(&main)).await?;
        match status {
            Some(status) if served.has_status => self.merge_status(&served, &of, &status).await,
            _ => Ok(()),
        }
    }

    async fn patch(&self, object: &Value) -> Result<(), Refused> {
        let of = reference(object)?;
        let served = self.served(&of)?;
        let path = path(&served, &of, "") + &format!("?fieldManager={MANAGER}");
        self.call(Method::PATCH, &path, "application/merge-patch+json", Some(object)).await?;
        match object.get("status") {
            Some(status) if served.has_status => self.merge_status(&served, &of, status).await,
            _ => Ok(()),
        }
    }

    async fn patch_status(&self, object: &Value) -> Result<(), Refused> {
        let of = reference(object)?;
        let served = self.served(&of)?;
        if served.has_status {
            self.merge_status(&served, &of, &object["status"]).await
        } else {
            self.patch(object).await
        }
    }

    async fn merge_status(&self, served: &Served, of: &Reference, status: &Value) -> Result<(), Refused> {
        let path = path(served, of, "/status") + &format!("?fieldManager={MANAGER}");
        let patch = json!({ "status": status });
        self.call(Method::PATCH, &path, "application/merge-patch+json", Some(&patch)).await.map(drop)
    }

    async fn delete(&self, of: &Reference) -> Result<(), Refused> {
        let served = self.served(of)?;
        self.call(Method::DELETE, &path(&served, of, ""), "", None).await.map(drop)
    }

    fn served(&self, of: &Reference) -> Result<Served, Refused> {
        let Reference { api_version, kind, .. } = of;
        self.server.kind(api_version, kind).ok_or_else(|| Refused {
            code: 404,
            message: format!(
                "{api_version} {kind} is not served: give its CustomResourceDefinition, or correct apiVersion and kind"
            ),
        })
    }

    /// Sends a request of the case itself, which no fault concerns.
    async fn call(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refused> {
        let failed = |error: &dyn std::error::Error| Refused { code: 0, message: error.to_string() };
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|error| failed(&error))?;
        if let Ok(content_type) = HeaderValue::from_str(content_type) {
            request.headers_mut().insert(header::CONTENT_TYPE, content_type);
        }
        let response = Local::new(self.server.clone()).call(request).await.map_err(|error| failed(&error))?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        if code < 300 {
            return Ok(value);
        }
        let message = value["message"].as_str().map(str::to_owned);
        let message = message.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
        Err(Refused { code, message })
    }

    /// Waits until nothing can go on but by the passing of time. Time passes only for calls that wait for it.
    async fn settle(&self) -> anyhow::Result<()> {
        let is_over = || {
            let controllers = self.dispatch.controllers();
            controllers.iter().all(|controller| controller.ledger().queue().lock().processing() == 0)
        };
        let began = Instant::now();
        loop {
            self.idle().await;
            if is_over() {
                return Ok(());
            }
            if began.elapsed() > SETTLES_WITHIN {
                bail!("a reconcile has not ended after {} s", SETTLES_WITHIN.as_secs());
            }
            sleep(STRIDE).await;
        }
    }

    /// Waits for `work`. Time passes only if the work waits for it. Returns `None` if it never ends.
    async fn drive<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let began = Instant::now();
        while began.elapsed() < SETTLES_WITHIN {
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                () = self.idle() => {}
            }
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                () = sleep(STRIDE) => {}
            }
        }
        None
    }

    /// Waits until no task can go on.
    async fn idle(&self) {
        // Timers that are due now fire only after the runtime was idle once.
        let mut times = 0;
        while times < 2 {
            self.parked.next().await;
            if self.plugin.engine.is_mapping() {
                times = 0;
                std::thread::yield_now();
            } else {
                times += 1;
            }
        }
    }
}

/// Converts objects with the plugin.
async fn converted(revision: &Revision, conversion: &Conversion) -> Result<Vec<String>, String> {
    let converted = revision.convert(&conversion.api_version, &conversion.texts(), MAX_REVIEW).await;
    converted.unwrap_or_else(|error| Err(error.to_string()))
}

/// Answers a `ConversionReview` of the API server.
async fn answer(revision: Arc<Revision>, review: Value) -> Result<Value, String> {
    let conversion = Conversion::read(review.to_string().as_bytes()).map_err(|invalid| invalid.to_string())?;
    Ok(conversion.answer(converted(&revision, &conversion).await))
}

/// Returns objects in the order in which others need them: namespaces, definitions, the rest.
fn in_order(objects: &[(usize, Value)]) -> impl Iterator<Item = (usize, &Value)> {
    let rank = |object: &Value| match object["kind"].as_str() {
        Some("Namespace") => 0,
        Some("CustomResourceDefinition") => 1,
        _ => 2,
    };
    let ranked = move |wanted| objects.iter().filter(move |(_, object)| rank(object) == wanted);
    (0..3).flat_map(ranked).map(|(line, object)| (*line, object))
}

/// Returns a number as JSON has it: whole ones without a point.
fn number(value: f64) -> Value {
    let whole = value as i64;
    if whole as f64 == value { whole.into() } else { value.into() }
}

fn reference(object: &Value) -> Result<Reference, Refused> {
    Reference::of(object).map_err(|message| Refused { code: 0, message })
}

/// Returns the path of an object. `default` is the namespace of one that names none.
fn path(served: &Served, of: &Reference, part: &str) -> String {
    let namespace = if of.namespace.is_empty() { "default" } else { &of.namespace };
    served.path(namespace, &of.name) + part
}
