//! The mock's cluster: its objects, what was applied for which owner, and what outcomes do to it.
//!
//! Each interface of the host has a file, such as `cache`. `view` is what the plugin can see of the cluster, `wakes`
//! decides which keys a change wakes, and `backlog` holds the changes for the observer.

mod backlog;
mod cache;
mod client;
mod clock;
mod events;
mod finalizer;
mod http;
mod log;
mod metrics;
mod random;
mod view;
mod wakes;

use std::{
    cell::{Ref, RefCell, RefMut},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::Duration,
};

use jiff::Timestamp;
use pilothouse_core::{
    event::{Correlator, Event, KeyEvents, Level, StatusWrite},
    grant::{Denied, Grants, LackedBy},
    manifest as core,
};
use serde_json::{Value, json};

use super::{
    apply, bounds, convert,
    features::Features,
    http::{ExpectedHttp, HttpCall},
    keys,
    outcome::Failure,
    script::{Call, Expected},
};
use crate::{
    Key, TypeMeta, Verb,
    client::Subresource,
    contract::{
        exports::pilothouse::plugin::controller::{
            Child, Children, Controller, Manifest, Outcome, Permission, Watch, Watches,
        },
        observing::exports::pilothouse::plugin::observer,
        pilothouse::plugin::types as wire,
    },
    host::with_mock,
};

use backlog::Backlog;
use events::Left;
pub use events::RecordedEvent;
pub use log::LogLine;
use random::Random;
use view::{Objects, View};
use wakes::Reading;
pub use wakes::{By, Wake};

type Id = (TypeMeta, Key);

pub(super) struct World {
    state: RefCell<State>,
    features: Features,
}

struct State {
    manifest: Manifest,
    /// The same, as the host checked it.
    checked: core::Manifest,
    grants: Grants,
    view: View,
    refused: Vec<Permission>,
    objects: Objects,
    reading: Reading,
    backlog: Backlog,
    /// The last applied version of each child, by the uid of its owner.
    children: BTreeMap<String, BTreeMap<Id, Value>>,
    /// The last applied version of the plugin's own objects and of each status, by object and part.
    applied: BTreeMap<(Id, Option<Subresource>), Value>,
    faults: BTreeMap<Id, String>,
    /// What the last call of each controller and key leaves to the next one.
    left: BTreeMap<(String, Key), Left>,
    /// The object that the running call reconciles.
    own: Option<Id>,
    /// Events that the running call has recorded.
    recorded: usize,
    events: Vec<RecordedEvent>,
    correlator: Correlator<Id, (Level, String)>,
    expected: VecDeque<Expected>,
    /// `true` if requests that no test expects take effect.
    allows_requests: bool,
    expected_http: VecDeque<ExpectedHttp>,
    http_calls: Vec<HttpCall>,
    calls: Vec<Call>,
    lines: Vec<LogLine>,
    now: Timestamp,
    random: Random,
    series: metrics::Series,
    /// Counts changes. It is the resourceVersion of the latest.
    version: u64,
    uids: u64,
    /// Counts changes of what keys ask to be watched.
    asks: u64,
}

impl World {
    pub(super) fn new(manifest: &Manifest, checked: core::Manifest, features: Features) -> Self {
        let state = State {
            manifest: manifest.clone(),
            view: View::new(&checked),
            grants: Grants::all_asked(&checked.permissions).with_http(&checked.http, &[]),
            checked,
            refused: Vec::new(),
            objects: Objects::new(),
            reading: Reading::default(),
            backlog: Backlog::default(),
            children: BTreeMap::new(),
            applied: BTreeMap::new(),
            faults: BTreeMap::new(),
            left: BTreeMap::new(),
            own: None,
            recorded: 0,
            events: Vec::new(),
            correlator: Correlator::new(),
            expected: VecDeque::new(),
            allows_requests: false,
            expected_http: VecDeque::new(),
            http_calls: Vec::new(),
            calls: Vec::new(),
            lines: Vec::new(),
            now: "2026-01-01T00:00:00Z".parse().expect("a time in RFC 3339"),
            random: Random::default(),
            series: metrics::Series::new(),
            version: 0,
            uids: 0,
            asks: 0,
        };
        Self { state: RefCell::new(state), features }
    }

    /// Calls the plugin with this world behind each interface.
    pub(super) fn serve<T>(self: &Rc<Self>, call: impl FnOnce() -> T) -> T {
        let call = || with_mock(&crate::cache::import::MOCK, self.clone(), call);
        let call = || with_mock(&crate::client::import::MOCK, self.clone(), call);
        let call = || with_mock(&crate::clock::import::MOCK, self.clone(), call);
        let call = || with_mock(&crate::events::import::MOCK, self.clone(), call);
        let call = || with_mock(&crate::http::import::MOCK, self.clone(), call);
        let call = || with_mock(&crate::log::import::MOCK, self.clone(), call);
        let call = || with_mock(&crate::metrics::import::MOCK, self.clone(), call);
        let call = || with_mock(&crate::random::import::MOCK, self.clone(), call);
        self.features.serve(call)
    }

    fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    fn state_mut(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    pub(super) fn set_now(&self, now: Timestamp) {
        self.state_mut().now = now;
    }

    pub(super) fn now(&self) -> Timestamp {
        self.state().now
    }

    pub(super) fn advance(&self, time: Duration) {
        let mut state = self.state_mut();
        state.now = state.now.checked_add(time).expect("the clock stays before the year 10000");
    }

    pub(super) fn refuse(&self, permission: Permission) {
        self.state_mut().refused.push(permission);
    }

    pub(super) fn expect(&self, expected: Expected) {
        self.state_mut().expected.push_back(expected);
    }

    pub(super) fn allow_requests(&self) {
        self.state_mut().allows_requests = true;
    }

    pub(super) fn expect_http(&self, expected: ExpectedHttp) {
        self.state_mut().expected_http.push_back(expected);
    }

    pub(super) fn http_calls(&self) -> Vec<HttpCall> {
        self.state().http_calls.clone()
    }

    pub(super) fn fail_child(&self, of: TypeMeta, key: Key, message: String) {
        self.state_mut().faults.insert((of, key), message);
    }

    pub(super) fn mend(&self) {
        self.state_mut().faults.clear();
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    pub(super) fn lines(&self) -> Vec<LogLine> {
        self.state().lines.clone()
    }

    pub(super) fn missing(&self) -> Vec<String> {
        let state = self.state();
        let http = state.expected_http.iter().map(|expected| format!("{} {}", expected.method, expected.url));
        state.expected.iter().map(|expected| expected.request.to_string()).chain(http).collect()
    }

    pub(super) fn version(&self) -> u64 {
        self.state().version
    }

    pub(super) fn object(&self, of: &TypeMeta, key: &Key) -> Option<Value> {
        self.state().objects.get(&(of.clone(), key.clone())).cloned()
    }

    pub(super) fn objects(&self, of: &TypeMeta) -> Vec<Value> {
        let state = self.state();
        state.objects.iter().filter(|((kind, _), _)| kind == of).map(|(_, object)| object.clone()).collect()
    }

    pub(super) fn keys(&self, of: &TypeMeta) -> Vec<Key> {
        self.state().objects.keys().filter(|(kind, _)| kind == of).map(|(_, key)| key.clone()).collect()
    }

    #[track_caller]
    pub(super) fn put(&self, object: &str) {
        let object: Value = serde_json::from_str(object).expect("an object is JSON");
        let id = identify(&object).expect("the object has apiVersion, kind and a name");
        self.state_mut().store(&id, object);
    }

    /// `missed` is `true` if the host does not see the deletion itself.
    pub(super) fn remove(&self, of: &TypeMeta, key: &Key, missed: bool) {
        self.state_mut().remove(&(of.clone(), key.clone()), missed);
    }

    /// Returns the changes that the observer has not handled.
    pub(super) fn pending_changes(&self) -> Vec<observer::Change> {
        self.state_mut().backlog.take()
    }

    pub(super) fn clear_pending(&self) {
        self.state_mut().backlog.clear();
    }

    /// Writes the children, then the status, then the Events. The status is written even if a child fails, because it may
    /// report that.
    ///
    /// As the host does, it postpones a status if the call has written children and has read what is different now.
    #[track_caller]
    pub(super) fn carry_out(&self, controller: &Controller, key: &Key, outcome: &Outcome) -> Result<(), Failure> {
        let mut state = self.state_mut();
        let (owner, place) = ((controller.for_.of.clone(), key.clone()), (controller.name.clone(), key.clone()));
        if let Watches::Desired(watches) = &outcome.watches
            && state.objects.contains_key(&owner)
        {
            state.ask(&controller.name, key, watches);
        }
        let Left { status: postponed, mut events } = state.left.remove(&place).unwrap_or_default();
        let before = state.objects.clone();
        let children = match &outcome.children {
            Children::Desired(children) if state.is_live(&owner) => state.write_children(controller, &owner, children),
            _ => Ok(()),
        };
        events.add(read_events(&outcome.events));
        let status = outcome.status.as_deref().or(postponed.as_deref());
        if let Some(status) = status
            && children.is_ok()
            && postponed.is_none()
            && before != state.objects
            && state.has_read_what_changed(&before)
        {
            state.left.insert(place, Left { status: Some(status.to_owned()), events });
            return Ok(());
        }
        let (status, written) = state.try_status(&owner, status);
        let carried_out = children.and(status).and_then(|()| match outcome.requeue_after {
            None => state.release(controller, &owner),
            Some(_) => Ok(()),
        });
        let release = events.release(written, carried_out.is_err());
        state.write_events(&owner, release);
        state.leave(place, events);
        carried_out.map_err(Failure::retry)
    }

    /// Returns how often the plugin's keys asked for something else than before.
    pub(super) fn asks(&self) -> u64 {
        self.state().asks
    }

    #[track_caller]
    pub(super) fn carry_out_failure(
        &self,
        controller: &Controller,
        key: &Key,
        failure: &Failure,
    ) -> Result<(), Failure> {
        let mut state = self.state_mut();
        let (owner, place) = ((controller.for_.of.clone(), key.clone()), (controller.name.clone(), key.clone()));
        let Left { status: postponed, mut events } = state.left.remove(&place).unwrap_or_default();
        let status = failure.status.as_deref().or(postponed.as_deref());
        let (status, written) = state.try_status(&owner, status);
        let own = failure.events.iter().map(|event| event.0.clone()).collect::<Vec<_>>();
        let release = events.failure(read_events(&own), written, failure.terminal);
        state.write_events(&owner, release.events);
        state.leave(place, events);
        status.map_err(Failure::retry)
    }
}

fn read_events(events: &[wire::Event]) -> Vec<Event> {
    events.iter().map(|event| bounds::event(event).expect("the answer was checked")).collect()
}

impl State {
    /// Writes a status, if there is one. Returns what became of it, for the Events, too.
    fn try_status(&mut self, owner: &Id, status: Option<&str>) -> (Result<(), String>, StatusWrite) {
        match status.map(|status| self.write_status(owner, status)) {
            None => (Ok(()), StatusWrite::None),
            Some(Ok(())) => (Ok(()), StatusWrite::Written),
            Some(Err(problem)) => (Err(problem), StatusWrite::Open),
        }
    }

    fn leave(&mut self, place: (String, Key), events: KeyEvents) {
        if !events.is_empty() {
            self.left.insert(place, Left { status: None, events });
        }
    }

    /// Stores an object as an API server does, if it differs from the stored one. Returns the stored object.
    fn store(&mut self, id: &Id, mut object: Value) -> Value {
        let live = self.objects.get(id).cloned();
        let meta = |object: &Value, field: &str| object["metadata"][field].clone();
        for field in ["uid", "creationTimestamp", "generation", "resourceVersion"] {
            let kept = live.as_ref().map_or(Value::Null, |live| meta(live, field));
            let kept = if kept.is_null() { meta(&object, field) } else { kept };
            object["metadata"][field] = match (field, kept) {
                ("uid", Value::Null) => {
                    self.uids += 1;
                    json!(format!("00000000-0000-0000-0000-{:012}", self.uids))
                }
                ("creationTimestamp", Value::Null) => json!(format!("{:.0}", self.now)),
                ("generation", Value::Null) => json!(1),
                ("resourceVersion", Value::Null) => json!("0"),
                (_, kept) => kept,
            };
        }
        match &live {
            Some(live) if *live == object => return object,
            Some(live) if content(live) != content(&object) => {
                let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
                object["metadata"]["generation"] = json!(generation + 1);
            }
            _ => {}
        }
        if finalizer::goes(live.as_ref(), &object) {
            self.remove(id, false);
            return object;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(id.clone(), object.clone());
        self.record_change(id, live.as_ref(), Some(&object), false);
        object
    }

    fn remove(&mut self, id: &Id, missed: bool) {
        if let Some(last) = self.objects.remove(id) {
            self.record_change(id, Some(&last), None, missed);
            self.version += 1;
            self.applied.retain(|(of, _), _| of != id);
            for children in self.children.values_mut() {
                children.remove(id);
            }
        }
    }

    /// Replaces what a key asks to be watched.
    fn ask(&mut self, controller: &str, key: &Key, watches: &[Watch]) {
        if self.view.ask(controller, key, watches) {
            self.asks += 1;
        }
    }

    fn is_live(&self, id: &Id) -> bool {
        self.objects.get(id).is_some_and(|object| !object["metadata"]["deletionTimestamp"].is_string())
    }

    /// Writes the children and deletes the others. Goes on after a failure, and returns the first.
    fn write_children(&mut self, controller: &Controller, owner: &Id, children: &[Child]) -> Result<(), String> {
        let uid = self.objects[owner]["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let mut wanted = BTreeMap::new();
        for asked in children {
            // A child that is not valid fails the whole outcome. Otherwise the existing child would be deleted.
            let (id, child) = self.child(controller, owner, &asked.object)?;
            if wanted.insert(id.clone(), (child, asked)).is_some() {
                return Err(format!("child {} {} is named twice", id.0, id.1));
            }
        }
        let mut first_problem = Ok(());
        let before = self.children.remove(&uid).unwrap_or_default();
        let mut applied = BTreeMap::new();
        for (id, (child, asked)) in &wanted {
            match self.write_child(owner, id, child, before.get(id), asked) {
                Ok(()) => drop(applied.insert(id.clone(), child.clone())),
                Err(problem) => {
                    applied.extend(before.get(id).map(|old| (id.clone(), old.clone())));
                    first_problem = first_problem.and(Err(problem));
                }
            }
        }
        for (id, old) in before.into_iter().filter(|(id, _)| !wanted.contains_key(id)) {
            match self.check(Verb::Delete, &id, None) {
                Ok(()) => self.remove(&id, false),
                Err(problem) => {
                    first_problem = first_problem.and(Err(format!("cannot delete child {} {}: {problem}", id.0, id.1)));
                    applied.insert(id, old);
                }
            }
        }
        self.children.insert(uid, applied);
        first_problem
    }

    /// Returns a child in the form in which it is applied. Fails if it is not valid.
    fn child(&self, controller: &Controller, owner: &Id, text: &str) -> Result<(Id, Value), String> {
        let mut child: Value =
            serde_json::from_str(text).map_err(|error| format!("a child is not valid JSON: {error}"))?;
        let (of, mut key) = identify(&child).ok_or("a child lacks apiVersion, kind or metadata.name")?;
        if !controller.owns.iter().any(|watch| watch.of == of) {
            return Err(format!("child {of} {key} is of a kind that controller {:?} does not own", controller.name));
        }
        if let Some(namespace) = &owner.1.namespace {
            let own = key.namespace.get_or_insert_with(|| namespace.clone());
            if own != namespace {
                return Err(format!("child {of} {key} is in another namespace than {}", owner.1));
            }
            child["metadata"]["namespace"] = json!(namespace);
        }
        let meta = &self.objects[owner]["metadata"];
        child["metadata"]["ownerReferences"] = json!([{
            "apiVersion": owner.0.api_version, "kind": owner.0.kind, "name": meta["name"], "uid": meta["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]);
        Ok(((of, key), child))
    }

    fn write_child(
        &mut self,
        owner: &Id,
        id: &Id,
        child: &Value,
        before: Option<&Value>,
        asked: &Child,
    ) -> Result<(), String> {
        let live = self.objects.get(id).cloned();
        if live.is_some() && before.is_none() && !asked.adopt {
            return Err(format!("{} {} exists already and was not made for {}", id.0, id.1, owner.1));
        }
        let result = apply::apply(live.clone().unwrap_or_default(), before.unwrap_or(&Value::Null), child);
        if live.as_ref() == Some(&result) {
            return Ok(());
        }
        let written = self.check(Verb::Apply, id, None).and_then(|()| keys::check(child));
        if let Err(problem) = written.and(self.faults.get(id).cloned().map_or(Ok(()), Err)) {
            return Err(format!("cannot apply child {} {}: {problem}", id.0, id.1));
        }
        if live.as_ref().is_some_and(|live| is_immutable(live) && data(live) != data(&result)) {
            if !asked.replace {
                return Err(format!(
                    "cannot change {} {}: a field is immutable: return the child with `replace`",
                    id.0, id.1
                ));
            }
            // The next call creates it.
            self.check(Verb::Delete, id, None)?;
            self.remove(id, false);
            return Ok(());
        }
        self.store(id, result);
        Ok(())
    }

    fn write_status(&mut self, id: &Id, status: &str) -> Result<(), String> {
        let status: Value =
            serde_json::from_str(status).map_err(|error| format!("the status is not valid JSON: {error}"))?;
        let Value::Object(members) = &status else { return Err("the status is not a JSON object".to_owned()) };
        let Some(mut object) = self.objects.get(id).cloned() else { return Ok(()) };
        let refused = |problem| format!("cannot write the status: {problem}");
        let keep = self.view.keep(&convert::object(&object));
        if let Some(path) = keep.and_then(|keep| keep.missing("status", members)) {
            self.check(Verb::Apply, id, Some(Subresource::Status)).map_err(refused)?;
            return Err(format!(
                "cannot tell whether the status of {} {} differs: {path} is left out of the cache; keep it in the watch (to go without \
                 the spec, name `spec` in `without`), or write it by `client`",
                id.0, id.1
            ));
        }
        let part = (id.clone(), Some(Subresource::Status));
        let before = self.applied.insert(part, status.clone()).unwrap_or_default();
        let applied = apply::apply(object["status"].take(), &before, &status);
        if self.objects[id]["status"] == applied {
            return Ok(());
        }
        self.check(Verb::Apply, id, Some(Subresource::Status)).map_err(refused)?;
        object["status"] = applied;
        self.store(id, object);
        Ok(())
    }

    /// Checks whether the plugin may do this. The error is the host's.
    fn check(&self, verb: Verb, id: &Id, subresource: Option<Subresource>) -> Result<(), String> {
        let name = (!id.1.name.is_empty()).then_some(&*id.1.name);
        let denied = self.denied(verb, &id.0, subresource, id.1.namespace.as_deref(), name);
        denied.map_or(Ok(()), |denied| Err(denied.to_string()))
    }

    /// As [`check`](Self::check), for every object of a kind, in every namespace or in one.
    fn check_any(&self, verb: Verb, of: &TypeMeta, namespace: Option<&str>) -> Result<(), String> {
        self.denied(verb, of, None, namespace, None).map_or(Ok(()), |denied| Err(denied.to_string()))
    }

    fn denied(
        &self,
        verb: Verb,
        of: &TypeMeta,
        subresource: Option<Subresource>,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Option<Denied> {
        let (asked, part) = (convert::verb(verb), subresource.map(convert::subresource));
        if let Err(denied) = self.grants.check(asked, &of.into(), part, namespace, name) {
            return Some(denied);
        }
        let refuses = |permission: &&Permission| {
            permission.of.selects(of)
                && permission.subresource == subresource
                && permission.verbs.contains(&verb)
                && (permission.namespaces.is_empty()
                    || namespace.is_none_or(|one| permission.namespaces.iter().any(|refused| refused == one)))
                && (permission.names.is_empty()
                    || name.is_some_and(|one| permission.names.iter().any(|refused| refused == one)))
        };
        self.refused.iter().find(refuses).map(|_| Denied {
            verb: asked,
            of: of.into(),
            subresource: part,
            namespace: namespace.map(ToOwned::to_owned),
            name: name.map(ToOwned::to_owned),
            by: LackedBy::Administrator,
        })
    }
}

/// Returns an object's kind and key, if it has them.
fn identify(object: &Value) -> Option<Id> {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
    let of = TypeMeta { api_version: text(&object["apiVersion"])?, kind: text(&object["kind"])? };
    Some((of, Key { namespace: text(&metadata["namespace"]), name: text(&metadata["name"])? }))
}

/// Returns `true` for a ConfigMap or a Secret whose content may not change.
fn is_immutable(object: &Value) -> bool {
    object["immutable"] == true
}

fn data(object: &Value) -> [&Value; 3] {
    ["data", "binaryData", "immutable"].map(|member| &object[member])
}

/// Returns what counts for `metadata.generation`: everything but metadata and status.
fn content(object: &Value) -> Value {
    let mut content = object.clone();
    if let Some(members) = content.as_object_mut() {
        members.remove("metadata");
        members.remove("status");
    }
    content
}
