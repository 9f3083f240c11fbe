//! The finalizer of a controller, and what an API server does with finalizers.

use serde_json::{Value, json};

use super::{Id, State, World};
use crate::{
    Key, TypeMeta, Verb, contract::exports::pilothouse::plugin::controller::Controller, mock::outcome::Failure,
};

impl World {
    /// Deletes an object, or marks it if it has finalizers. Returns `false` if there is none.
    pub(in crate::mock) fn delete(&self, of: &TypeMeta, key: &Key) -> bool {
        self.state_mut().delete(&(of.clone(), key.clone()))
    }

    /// Returns `true` if the host does not call for the object any more: it went, or is being deleted without the
    /// controller's finalizer. `was_called` is `true` if the object was there before.
    pub(in crate::mock) fn is_finished(&self, controller: &Controller, key: &Key, was_called: bool) -> bool {
        let Some(finalizer) = &controller.finalizer else { return false };
        let state = self.state();
        let object = state.objects.get(&(controller.for_.of.clone(), key.clone()));
        object.map_or(was_called, |object| is_deleting(object) && !of(object).contains(finalizer))
    }

    /// Adds the controller's finalizer to a live object that lacks it.
    pub(in crate::mock) fn hold(&self, controller: &Controller, key: &Key) -> Result<(), Failure> {
        let Some(finalizer) = &controller.finalizer else { return Ok(()) };
        let id = (controller.for_.of.clone(), key.clone());
        if self.reconciled(&controller.name, key).is_none() {
            return Ok(());
        }
        let mut state = self.state_mut();
        let change = |finalizers: &mut Vec<String>| finalizers.push(finalizer.clone());
        match state.objects.get(&id) {
            Some(object) if !is_deleting(object) && !of(object).contains(finalizer) => state
                .change_finalizers(&id, change)
                .map_err(|problem| Failure::retry(format!("cannot add the finalizer {finalizer}: {problem}"))),
            _ => Ok(()),
        }
    }
}

impl State {
    pub(super) fn delete(&mut self, id: &Id) -> bool {
        let Some(mut object) = self.objects.get(id).cloned() else { return false };
        if of(&object).is_empty() {
            self.remove(id, false);
        } else if !is_deleting(&object) {
            object["metadata"]["deletionTimestamp"] = json!(format!("{:.0}", self.now));
            self.store(id, object);
        }
        true
    }

    /// Removes the controller's finalizer after a successful cleanup.
    pub(super) fn release(&mut self, controller: &Controller, id: &Id) -> Result<(), String> {
        let Some(finalizer) = &controller.finalizer else { return Ok(()) };
        match self.objects.get(id) {
            Some(object) if is_deleting(object) && of(object).contains(finalizer) => self
                .change_finalizers(id, |finalizers| finalizers.retain(|other| other != finalizer))
                .map_err(|problem| format!("cannot remove the finalizer {finalizer}: {problem}")),
            _ => Ok(()),
        }
    }

    fn change_finalizers(&mut self, id: &Id, change: impl FnOnce(&mut Vec<String>)) -> Result<(), String> {
        self.check(Verb::Patch, id, None)?;
        let Some(mut object) = self.objects.get(id).cloned() else { return Ok(()) };
        let mut finalizers = of(&object);
        change(&mut finalizers);
        object["metadata"]["finalizers"] = json!(finalizers);
        self.store(id, object);
        Ok(())
    }
}

/// Returns `true` if an object that is being deleted lost its last finalizer, so that the server deletes it.
pub(super) fn goes(live: Option<&Value>, new: &Value) -> bool {
    live.is_some_and(|live| is_deleting(live) && !of(live).is_empty()) && of(new).is_empty()
}

fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn of(object: &Value) -> Vec<String> {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}
