//! Calls of a real plugin in the real sandbox, each in a fresh instance: all that a call costs besides cache and writes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use futures::future::BoxFuture;
use pilothouse::wasm::{
    Children, ClientError, Engine, Imports, KeyPage, Limits, Outcome, Page, PatchBody, Phase, PluginName,
    Preconditions, Propagation, Query, ReadError, Request, Revision,
};
use pilothouse_core::key::{Key, TypeMeta};
use pilothouse_core::object::{Object, Subresource};
use pilothouse_e2e::Plugin;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::clock::{micros_each, thread_time};
use crate::statistics::median;

const CALLS: usize = 500;
const PASSES: usize = 9;
const UID: &str = "6b1e7a52-54e4-4c83-9a0e-0c5d1f3b7a21";

/// The least that the example plugin does: parse a small object that is gone, and leave all as it is.
pub(super) fn empty() -> Result<Vec<f64>> {
    let object = apple(0)?;
    let outcome = Outcome { children: Children::Unchanged, status: None, requeue_after: None };
    measure(object, Phase::Gone, |answer| *answer == outcome)
}

/// An object of 6 kB is parsed, a cached child is read, a child and a status come back.
pub(super) fn reconcile() -> Result<Vec<f64>> {
    let object = apple(13)?;
    let size = object.json_len();
    ensure!((5_500..6_500).contains(&size), "the object has {size} bytes");
    measure(object, Phase::Live, |answer| {
        let one_child = matches!(&answer.children, Children::Desired(children) if children.len() == 1);
        one_child && answer.status.as_ref().is_some_and(|status| status.contains(r#""available":1"#))
    })
}

fn measure(object: Arc<Object>, phase: Phase, fits: impl Fn(&Outcome) -> bool) -> Result<Vec<f64>> {
    let runtime = Builder::new_current_thread().enable_time().build().context("cannot start a runtime")?;
    let revision = revision(&runtime)?;
    let controller: Arc<str> =
        revision.manifest().controllers.first().context("the plugin has no controller")?.name.as_str().into();
    let request = Request { controller, key: object.key().clone(), object, phase, attempt: 1, last_error: None };
    let imports: Arc<dyn Imports> = Arc::new(Cached(child()?));
    let call = async || -> Result<Outcome> {
        Ok(revision.reconcile(Arc::clone(&imports), request.clone()).await.context("the call failed")??)
    };
    let answer = runtime.block_on(call())?;
    ensure!(fits(&answer), "the plugin answers {answer:?}");

    let mut passes = Vec::with_capacity(PASSES);
    for _ in 0..PASSES {
        let time = runtime.block_on(async {
            let start = thread_time();
            for _ in 0..CALLS {
                black_box(call().await?);
            }
            anyhow::Ok(thread_time().saturating_sub(start))
        })?;
        passes.push(micros_each(time, CALLS));
    }
    Ok(median(&passes).into_iter().collect())
}

fn revision(runtime: &Runtime) -> Result<Revision> {
    let linked = Engine::new()?.compile(&Plugin::myapple()?.wasm)?.link()?;
    Ok(runtime.block_on(linked.describe(PluginName::new("myapple")?, "{}".into(), Limits::default()))?)
}

/// A MyApple of quantity 1 with so many notes and conditions, each about 200 bytes.
fn apple(notes: usize) -> Result<Arc<Object>> {
    let text =
        |n: usize| format!("step {n} of the rollout is done; the next one begins when the orchard has been watered");
    let annotations: serde_json::Map<String, Value> =
        (0..notes).map(|n| (format!("orchard.example.com/note-{n:02}"), Value::from(text(n).repeat(2)))).collect();
    let conditions: Vec<Value> = (0..notes)
        .map(|n| {
            json!({
                "type": format!("Stage{n}"), "status": "True", "reason": "Done", "message": text(n),
                "lastTransitionTime": "2026-05-04T03:02:01Z", "observedGeneration": 3,
            })
        })
        .collect();
    parse(&json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple",
        "metadata": {
            "name": "gala", "namespace": "orchard", "uid": UID, "resourceVersion": "4711", "generation": 3,
            "creationTimestamp": "2026-05-04T03:02:01Z", "annotations": annotations,
            "labels": {"app.kubernetes.io/name": "gala", "app.kubernetes.io/part-of": "orchard"},
        },
        "spec": {"color": "green", "size": "small", "quantity": 1},
        "status": {"available": 1, "observedGeneration": 3, "conditions": conditions},
    }))
}

/// Its child, as the cache has it.
fn child() -> Result<Arc<Object>> {
    let owner = json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple", "name": "gala", "uid": UID, "controller": true,
        "blockOwnerDeletion": true,
    });
    parse(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "gala-0", "namespace": "orchard", "uid": "f3a9d7c0-2b6e-4f18-8c55-91e0a7b3d642",
            "resourceVersion": "4712", "creationTimestamp": "2026-05-04T03:02:01Z", "ownerReferences": [owner],
        },
        "data": {"color": "green", "size": "small"},
    }))
}

fn parse(value: &Value) -> Result<Arc<Object>> {
    Ok(Arc::new(Object::parse(value.to_string().as_bytes(), &TypeMeta::new("", ""))?))
}

/// A cache of one object, and no API server.
struct Cached(Arc<Object>);

type Answer<'a, T> = BoxFuture<'a, Result<T, ClientError>>;

fn no_server<T: Send + 'static>() -> Answer<'static, T> {
    async { Err(ClientError::Unreachable("there is no API server".to_owned())) }.boxed()
}

impl Imports for Cached {
    fn now(&self) -> u64 {
        Duration::from_hours(500_000).as_millis().try_into().expect("that is some 1.8e12")
    }

    fn cached(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError> {
        Ok((self.0.key() == key && self.0.type_meta() == of).then(|| Arc::clone(&self.0)))
    }

    fn cached_list(&self, _: &Query) -> Result<Page, ReadError> {
        Ok(Page { items: vec![self.0.json().into_owned()], next: None })
    }

    fn cached_keys(&self, _: &Query) -> Result<KeyPage, ReadError> {
        Ok(KeyPage { items: vec![self.0.key().clone()], next: None })
    }

    fn get(&self, _: TypeMeta, _: Key) -> Answer<'_, Arc<Object>> {
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
}
