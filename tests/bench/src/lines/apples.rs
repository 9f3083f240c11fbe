//! MyApples of any size, for calls of the example plugin without a host.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use pilothouse::{
    name::PluginName,
    wasm::{
        CacheImports, Children, ClientError, ClientImports, ClockImports, Compiled, Engine, EventError, EventsImports,
        HttpError, HttpImports, HttpRequest, HttpResponse, Imports, KeyPage, Limits, ListPage, ListQuery, LogImports,
        LogQuery, MetricsImports, Outcome, Page, PatchBody, Phase, Preconditions, Propagation, Query, RandomImports,
        ReadError, Request, Revision,
    },
};
use pilothouse_core::{
    event::Event,
    key::{Key, TypeMeta},
    object::{Object, Subresource},
    series::Change,
};
use pilothouse_e2e::Plugin;
use serde_json::{Value, json};

pub(super) const UID: &str = "6b1e7a52-54e4-4c83-9a0e-0c5d1f3b7a21";

/// The example plugin and the arguments of its calls.
#[derive(Clone)]
pub(super) struct Calls {
    revision: Revision,
    imports: Arc<dyn Imports>,
    request: Request,
}

impl Calls {
    /// Compiles the example plugin in this process.
    pub(super) async fn new(object: Arc<Object>, phase: Phase) -> Result<Self> {
        Self::of(&Engine::new()?.compile(&Plugin::myapple()?.wasm)?, object, phase).await
    }

    pub(super) async fn of(compiled: &Compiled, object: Arc<Object>, phase: Phase) -> Result<Self> {
        Self::within(Limits::default(), compiled, object, phase).await
    }

    /// Takes any plugin for MyApples.
    pub(super) async fn within(limits: Limits, compiled: &Compiled, object: Arc<Object>, phase: Phase) -> Result<Self> {
        let revision = compiled.link().await?.describe(PluginName::new("apples")?, "{}".into(), limits).await?;
        let controller = revision.manifest().controllers.first().context("the plugin has no controller")?;
        let controller = controller.name.as_str().into();
        let request = Request { controller, key: object.key().clone(), object, phase, attempt: 1, last_error: None };
        Ok(Self { revision, imports: Arc::new(Cached(child()?)), request })
    }

    /// Calls it once.
    pub(super) async fn call(&self) -> Result<Outcome> {
        let answer = self.revision.reconcile(Arc::clone(&self.imports), self.request.clone()).await;
        Ok(answer.context("the call failed")??)
    }

    /// Calls it once and checks the answer: one child and a status that counts it, for a live MyApple.
    pub(super) async fn check(&self) -> Result<()> {
        let answer = self.call().await?;
        let fits = if self.request.phase == Phase::Gone {
            answer
                == Outcome {
                    children: Children::Unchanged,
                    status: None,
                    requeue_after: None,
                    watches: None,
                    events: Vec::new(),
                }
        } else {
            let one_child = matches!(&answer.children, Children::Desired(children) if children.len() == 1);
            one_child && answer.status.as_ref().is_some_and(|status| status.contains(r#""available":1"#))
        };
        ensure!(fits, "the plugin answers {answer:?}");
        Ok(())
    }
}

/// Returns a MyApple of quantity 1 with this many bytes, in annotations and conditions of about 200 bytes each.
pub(super) fn apple(bytes: usize) -> Result<Arc<Object>> {
    let notes = (0..).take_while(|notes| text(*notes, 0).len() <= bytes).last().context("no MyApple is so small")?;
    let rest = bytes - text(notes, 0).len();
    let apple = parse(&text(notes, rest))?;
    ensure!(apple.json_len() == bytes, "it has {} bytes", apple.json_len());
    Ok(apple)
}

fn text(notes: usize, rest: usize) -> String {
    let note =
        |n: usize| format!("step {n} of the rollout is done; the next one begins when the orchard has been watered");
    let mut annotations: serde_json::Map<String, Value> =
        (0..notes).map(|n| (format!("orchard.example.com/note-{n:03}"), Value::from(note(n).repeat(2)))).collect();
    annotations.insert("orchard.example.com/rest".to_owned(), Value::from("x".repeat(rest)));
    let conditions: Vec<Value> = (0..notes)
        .map(|n| {
            json!({
                "type": format!("Stage{n}"), "status": "True", "reason": "Done", "message": note(n),
                "lastTransitionTime": "2026-05-04T03:02:01Z", "observedGeneration": 3,
            })
        })
        .collect();
    let apple = json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple",
        "metadata": {
            "name": "gala", "namespace": "orchard", "uid": UID, "resourceVersion": "4711", "generation": 3,
            "creationTimestamp": "2026-05-04T03:02:01Z", "annotations": annotations,
            "labels": {"app.kubernetes.io/name": "gala", "app.kubernetes.io/part-of": "orchard"},
        },
        "spec": {"color": "green", "size": "small", "quantity": 1},
        "status": {"available": 1, "observedGeneration": 3, "conditions": conditions},
    });
    apple.to_string()
}

/// Returns its child as the cache has it.
pub(super) fn child() -> Result<Arc<Object>> {
    let owner = json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple", "name": "gala", "uid": UID, "controller": true,
        "blockOwnerDeletion": true,
    });
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "gala-0", "namespace": "orchard", "uid": "f3a9d7c0-2b6e-4f18-8c55-91e0a7b3d642",
            "resourceVersion": "4712", "creationTimestamp": "2026-05-04T03:02:01Z", "ownerReferences": [owner],
        },
        "data": {"color": "green", "size": "small"},
    });
    parse(&child.to_string())
}

fn parse(text: &str) -> Result<Arc<Object>> {
    Ok(Arc::new(Object::parse(text.as_bytes(), &TypeMeta::new("", ""))?))
}

/// A cache with one object, without an API server.
struct Cached(Arc<Object>);

type Answer<'a, T> = BoxFuture<'a, Result<T, ClientError>>;

fn no_server<T: Send + 'static>() -> Answer<'static, T> {
    async { Err(ClientError::Unreachable("there is no API server".to_owned())) }.boxed()
}

impl Imports for Cached {}

impl ClockImports for Cached {
    fn now(&self) -> u64 {
        Duration::from_hours(500_000).as_millis().try_into().expect("that is some 1.8e12")
    }
}

impl HttpImports for Cached {
    fn send(&self, _: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        async { Err(HttpError::Unreachable("there is no network".to_owned())) }.boxed()
    }
}

impl EventsImports for Cached {
    fn record(&self, _: &Event) -> Result<(), EventError> {
        Ok(())
    }

    fn drop_events(&self, _: usize) {}
}

impl LogImports for Cached {}

impl MetricsImports for Cached {
    fn change(&self, _: &str, _: &[String], _: Change) {}
}

impl RandomImports for Cached {}

impl CacheImports for Cached {
    fn cached(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError> {
        Ok((self.0.key() == key && self.0.type_meta() == of).then(|| Arc::clone(&self.0)))
    }

    fn cached_list(&self, _: &Query) -> Result<Page, ReadError> {
        Ok(Page { items: vec![self.0.json().into_owned()], next: None })
    }

    fn cached_keys(&self, _: &Query) -> Result<KeyPage, ReadError> {
        Ok(KeyPage { items: vec![self.0.key().clone()], next: None })
    }
}

impl ClientImports for Cached {
    fn get(&self, _: TypeMeta, _: Key, _: Option<Subresource>) -> Answer<'_, Arc<Object>> {
        no_server()
    }

    fn list(&self, _: ListQuery) -> Answer<'_, ListPage> {
        no_server()
    }

    fn create(&self, _: String) -> Answer<'_, Arc<Object>> {
        no_server()
    }

    fn update(&self, _: String, _: Option<Subresource>) -> Answer<'_, Arc<Object>> {
        no_server()
    }

    fn patch(&self, _: TypeMeta, _: Key, _: PatchBody, _: Option<Subresource>) -> Answer<'_, Arc<Object>> {
        no_server()
    }

    fn apply(&self, _: String, _: Option<Subresource>, _: bool) -> Answer<'_, Arc<Object>> {
        no_server()
    }

    fn delete(&self, _: TypeMeta, _: Key, _: Propagation, _: Preconditions) -> Answer<'_, ()> {
        no_server()
    }

    fn evict(&self, _: Key, _: Option<u32>, _: Preconditions) -> Answer<'_, ()> {
        no_server()
    }

    fn logs(&self, _: Key, _: LogQuery) -> Answer<'_, String> {
        no_server()
    }
}
