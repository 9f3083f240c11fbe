//! The interface `client` of the mock. Requests end as the test scripted them, or take effect on the cluster.

use pilothouse_core::selector::{FieldSelector, Selector};
use serde_json::{Value, json};

use super::{Id, World, identify};
use crate::{
    Key, TypeMeta, Verb,
    client::{self, Preconditions, Propagation, Reason, StatusError, Subresource, import::Functions},
    contract::pilothouse::plugin::client::{self as wire, Error, Eviction, ListQuery, LogQuery, Page, PatchBody},
    mock::{
        apply::{apply, merge},
        bounds, convert, keys,
        script::{Call, Ending, Request},
    },
};

/// Requests of one `send`.
const AT_ONCE: usize = 64;

impl Functions for World {
    fn get(&self, of: &TypeMeta, key: &Key, subresource: Option<Subresource>) -> Result<String, Error> {
        bounds::object(of, key).map_err(Error::Invalid)?;
        if !matches!(subresource, None | Some(Subresource::Status | Subresource::Scale)) {
            return Err(Error::Invalid("`get` takes the subresources status and scale".to_owned()));
        }
        let id = (of.clone(), key.clone());
        self.answer(Verb::Read, &id, subresource, Value::Null, |world| {
            let object = world.find(&id)?;
            Ok(if subresource == Some(Subresource::Scale) { scale(&object) } else { object })
        })
    }

    fn list(&self, query: &ListQuery) -> Result<Page, Error> {
        let ListQuery { of, namespace, labels, fields, .. } = query;
        bounds::live_query(query).map_err(Error::Invalid)?;
        // Lists need a permission for all names, and one over all namespaces needs all namespaces.
        let key = Key { namespace: namespace.clone(), name: String::new() };
        self.state().check_any(Verb::Read, of, namespace.as_deref()).map_err(Error::NotGranted)?;
        let invalid = |problem: &dyn ToString| refused(400, Reason::BadRequest, problem.to_string());
        let labels = Selector::parse(labels.as_deref().unwrap_or_default()).map_err(|error| invalid(&error))?;
        let fields = FieldSelector::parse(fields.as_deref().unwrap_or_default()).map_err(|error| invalid(&error))?;
        let listed = self.answer(Verb::Read, &(of.clone(), key), None, Value::Null, |world| {
            let all = world.objects(of).into_iter();
            let here = |object: &Value| {
                namespace.as_deref().is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
            };
            let matches = |object: &Value| {
                let object = convert::object(object);
                labels.matches(object.labels()) && convert::selects(&fields, &object)
            };
            Ok(all.filter(|object| here(object) && matches(object)).collect())
        })?;
        let Ok(Value::Array(items)) = serde_json::from_str(&listed) else {
            panic!("a list of {of} is answered by Expected::answer_all")
        };
        Ok(Page { items: items.iter().map(Value::to_string).collect(), next: None })
    }

    fn evict(&self, Eviction { pod, .. }: &Eviction) -> Result<(), Error> {
        let id = (TypeMeta::new("v1", "Pod"), pod.clone());
        bounds::object(&id.0, &id.1).map_err(Error::Invalid)?;
        let evicted = self.answer(Verb::Create, &id, Some(Subresource::Eviction), Value::Null, |world| {
            let live = world.find(&id)?;
            world.state_mut().delete(&id);
            Ok(live)
        });
        evicted.map(drop)
    }

    fn logs(&self, pod: &Key, _: &LogQuery) -> Result<String, Error> {
        let id = (TypeMeta::new("v1", "Pod"), pod.clone());
        bounds::object(&id.0, &id.1).map_err(Error::Invalid)?;
        let log = self.answer(Verb::Read, &id, Some(Subresource::Log), Value::Null, |world| {
            world.find(&id)?;
            Ok(Value::from(""))
        })?;
        let Ok(Value::String(log)) = serde_json::from_str(&log) else { panic!("a log is answered by Expected::text") };
        Ok(log)
    }

    fn send(&self, calls: &[wire::Call]) -> Vec<Result<String, Error>> {
        if calls.len() > AT_ONCE {
            let many = format!("calls: {} are more than the {AT_ONCE} that are sent at once", calls.len());
            return vec![Err(Error::Invalid(many)); calls.len()];
        }
        let one = |call: &wire::Call| match call {
            wire::Call::Get((of, key, part)) => self.get(of, key, *part),
            wire::Call::Create(object) => self.create(object),
            wire::Call::Update((object, part)) => self.update(object, *part),
            wire::Call::Patch((of, key, body, part)) => self.patch(of, key, body, *part),
            wire::Call::Apply((object, part, force)) => self.apply(object, *part, *force),
            wire::Call::Delete((of, key, propagation, preconditions)) => {
                Functions::delete(self, of, key, *propagation, preconditions).map(|()| String::new())
            }
        };
        calls.iter().map(one).collect()
    }

    fn create(&self, object: &str) -> Result<String, Error> {
        let mut object = parse(object)?;
        let generate = object["metadata"]["generateName"].as_str().map(ToOwned::to_owned);
        let generated = object["metadata"]["name"].is_null() && generate.is_some();
        if generated {
            object["metadata"]["name"] = json!(generate);
        }
        let is_named = object["metadata"]["name"].is_string();
        if !is_named {
            object["metadata"]["name"] = json!("-");
        }
        let mut id = id_of(&object)?;
        if !is_named {
            id.1.name.clear();
            object["metadata"].as_object_mut().into_iter().for_each(|metadata| drop(metadata.remove("name")));
        }
        self.answer(Verb::Create, &id, None, object.clone(), |world| {
            assert!(is_named, "the mock stores no object without a name: script the answer by Expected::answer");
            let mut id = id.clone();
            if generated {
                id.1.name = format!("{}{:05}", id.1.name, world.version());
                object["metadata"]["name"] = json!(id.1.name);
            }
            if world.object(&id.0, &id.1).is_some() {
                return Err(refused(409, Reason::AlreadyExists, format!("{} {} already exists", id.0, id.1)));
            }
            Ok(world.state_mut().store(&id, object.clone()))
        })
    }

    fn update(&self, object: &str, subresource: Option<Subresource>) -> Result<String, Error> {
        let object = parse(object)?;
        let id = id_of(&object)?;
        self.answer(Verb::Update, &id, subresource, object.clone(), |world| {
            let live = world.find(&id)?;
            unchanged(&object, &live, &id)?;
            Ok(world.state_mut().store(&id, part(live, &object, subresource)))
        })
    }

    fn patch(
        &self,
        of: &TypeMeta,
        key: &Key,
        body: &PatchBody,
        subresource: Option<Subresource>,
    ) -> Result<String, Error> {
        bounds::object(of, key).map_err(Error::Invalid)?;
        let id = (of.clone(), key.clone());
        let (text, is_merge) = match body {
            PatchBody::Merge(text) => (text, true),
            PatchBody::Json(text) | PatchBody::StrategicMerge(text) => (text, false),
        };
        let patch: Value = serde_json::from_str(text)
            .map_err(|error| Error::Invalid(format!("the patch is not valid JSON: {error}")))?;
        self.answer(Verb::Patch, &id, subresource, patch.clone(), |world| {
            assert!(
                is_merge && subresource != Some(Subresource::Scale),
                "the mock carries out merge patches of objects and their status only: script this one by Expected::answer"
            );
            let live = world.find(&id)?;
            unchanged(&patch, &live, &id)?;
            let mut patched = live.clone();
            merge(&mut patched, &patch);
            Ok(world.state_mut().store(&id, part(live, &patched, subresource)))
        })
    }

    fn apply(&self, object: &str, subresource: Option<Subresource>, _force: bool) -> Result<String, Error> {
        let object = parse(object)?;
        let id = id_of(&object)?;
        self.answer(Verb::Apply, &id, subresource, object.clone(), |world| {
            let live = world.object(&id.0, &id.1);
            if live.is_none() && subresource.is_some() {
                return world.find(&id);
            }
            // kube-apiserver returns 500 here, although the request is wrong.
            keys::check(&object).map_err(|problem| refused(500, Reason::InternalError, problem))?;
            let mut state = world.state_mut();
            let before = state.applied.insert((id.clone(), subresource), object.clone()).unwrap_or_default();
            let applied = apply(live.clone().unwrap_or_default(), &before, &object);
            Ok(state.store(&id, part(live.unwrap_or_default(), &applied, subresource)))
        })
    }

    fn delete(&self, of: &TypeMeta, key: &Key, _: Propagation, preconditions: &Preconditions) -> Result<(), Error> {
        bounds::object(of, key).map_err(Error::Invalid)?;
        let id = (of.clone(), key.clone());
        let answer = self.answer(Verb::Delete, &id, None, Value::Null, |world| {
            let live = world.find(&id)?;
            let holds = |wanted: &Option<String>, field: &str| {
                wanted.as_ref().is_none_or(|wanted| live["metadata"][field].as_str() == Some(wanted))
            };
            if !holds(&preconditions.uid, "uid") || !holds(&preconditions.resource_version, "resourceVersion") {
                return Err(refused(409, Reason::Conflict, "a precondition does not hold".to_owned()));
            }
            world.state_mut().delete(&id);
            Ok(live)
        });
        answer.map(drop)
    }
}

impl World {
    /// Checks the permission and the script, records the request, and returns the scripted result.
    fn answer(
        &self,
        verb: Verb,
        id: &Id,
        subresource: Option<Subresource>,
        body: Value,
        effect: impl FnOnce(&Self) -> Result<Value, Error>,
    ) -> Result<String, Error> {
        self.state().check(verb, id, subresource).map_err(Error::NotGranted)?;
        let request = Request { verb, of: id.0.clone(), key: id.1.clone(), subresource };
        let next = self.state_mut().expected.pop_front();
        let ending = match next {
            Some(expected) if expected.request == request => expected.ending,
            unexpected if self.state().allows_requests => {
                if let Some(later) = unexpected {
                    self.state_mut().expected.push_front(later);
                }
                Ending::Effect
            }
            Some(expected) => panic!("the plugin requests {request}, where {} is expected", expected.request),
            None => panic!("the plugin requests {request}, where nothing is expected: see MockHost::expect"),
        };
        let Request { verb, of, key, subresource } = request;
        self.state_mut().calls.push(Call { verb, of, key, subresource, body });
        match ending {
            Ending::Effect => effect(self).map(|object| object.to_string()),
            Ending::Answer(object) => {
                // A review has no name, and is stored nowhere.
                let is_stored = serde_json::from_str(&object).is_ok_and(|object| identify(&object).is_some());
                if verb != Verb::Read && verb != Verb::Delete && is_stored {
                    self.put(&object);
                }
                Ok(object)
            }
            Ending::Failure(error) => Err(match error {
                client::Error::NotGranted(why) => Error::NotGranted(why),
                client::Error::Invalid(why) => Error::Invalid(why),
                client::Error::Api(status) => Error::Api(status),
                client::Error::Unreachable(why) => Error::Unreachable(why),
                client::Error::Decode { problem, .. } => Error::Invalid(problem),
            }),
        }
    }

    fn find(&self, (of, key): &Id) -> Result<Value, Error> {
        self.object(of, key).ok_or_else(|| refused(404, Reason::NotFound, format!("{of} {key} not found")))
    }
}

/// # Errors
/// Fails with a conflict if `written` has the `resourceVersion` of another state than `live`.
fn unchanged(written: &Value, live: &Value, id: &Id) -> Result<(), Error> {
    let version = &written["metadata"]["resourceVersion"];
    if version.is_null() || *version == live["metadata"]["resourceVersion"] {
        return Ok(());
    }
    Err(refused(409, Reason::Conflict, format!("{} {} has been modified", id.0, id.1)))
}

/// Returns `live` with the part of `new` that a request to a subresource, or to the object itself, changes.
///
/// Through the status of a built-in kind, a request can change annotations, too.
fn part(live: Value, new: &Value, subresource: Option<Subresource>) -> Value {
    let (mut result, status) = match subresource {
        Some(_) => (live, &new["status"]),
        None => {
            let mut result = new.clone();
            if let Some(members) = result.as_object_mut() {
                members.remove("status");
            }
            return match live.get("status") {
                Some(status) => {
                    result["status"] = status.clone();
                    result
                }
                None => result,
            };
        }
    };
    result["status"] = status.clone();
    if is_built_in(&result) && new["metadata"]["annotations"] != result["metadata"]["annotations"] {
        result["metadata"]["annotations"] = new["metadata"]["annotations"].clone();
    }
    result
}

/// Returns `true` for a kind of Kubernetes itself. The group of any other kind has a dot.
fn is_built_in(object: &Value) -> bool {
    let group =
        object["apiVersion"].as_str().and_then(|version| version.rsplit_once('/')).map_or("", |(group, _)| group);
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Returns the scale of an object.
fn scale(object: &Value) -> Value {
    let replicas = |part: &str| object[part]["replicas"].as_u64().unwrap_or_default();
    json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": object["metadata"],
        "spec": { "replicas": replicas("spec") }, "status": { "replicas": replicas("status") },
    })
}

fn parse(object: &str) -> Result<Value, Error> {
    serde_json::from_str(object).map_err(|error| Error::Invalid(format!("the object is not valid JSON: {error}")))
}

fn id_of(object: &Value) -> Result<Id, Error> {
    identify(object).ok_or_else(|| Error::Invalid("the object lacks apiVersion, kind or metadata.name".to_owned()))
}

fn refused(code: u16, reason: Reason, message: String) -> Error {
    Error::Api(StatusError { code, reason, message, causes: Vec::new() })
}
