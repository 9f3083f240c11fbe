//! Deletes garbage: by owner references, and in namespaces and custom resources that are being deleted.
//!
//! ```text
//!  commit ──► graph: what may now be garbage ──► `run`: look, decide, write ──► commit …
//! ```
//!
//! Every decision uses the newest state and can be repeated. Work that comes late or twice changes nothing.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    crd,
    graph::{FOREGROUND, ORPHAN, Work},
    object::{
        Key, Object, OwnerRef, array, finalizers, is_deleting, namespace, owners, remove_meta, set_finalizers,
        set_meta, uid,
    },
    resources::{GroupResource, Registry, Resource},
    rest::delete::{Options, Propagation, remove},
    server::Server,
};

/// Does the work that commits queue, while it is polled.
pub(crate) async fn run(server: Arc<Server>) {
    let mut redefined = server.definitions_changed();
    loop {
        let work = tokio::select! {
            biased;
            // Not done by the writer of a definition, because that holds the store's lock.
            Ok(()) = redefined.changed() => {
                server.store.look_at_deferred();
                continue;
            }
            work = server.store.next_work() => work,
        };
        match &work {
            Work::Object(uid) => object(&server, uid),
            Work::Namespace(name) => empty_namespace(&server, name),
            Work::Resource(of) => empty_resource(&server, of),
        }
        // A large cascade leaves room for requests.
        tokio::task::yield_now().await;
    }
}

/// Repeats an optimistic write until it succeeds or is no longer wanted.
fn write(
    server: &Server,
    resource: &Arc<Resource>,
    of: &GroupResource,
    object: &Arc<Object>,
    change: impl Fn(&mut Value),
) {
    let mut current = Arc::clone(object);
    loop {
        let mut next = current.value.clone();
        change(&mut next);
        if next == current.value {
            return;
        }
        let ends = is_deleting(&next) && finalizers(&next).is_empty() && crate::kinds::may_vanish(resource, &next);
        let done = if ends {
            server.remove(resource, &current, next).is_ok()
        } else {
            server.update(resource, &current, next).is_ok()
        };
        if done {
            return;
        }
        match server.store.get(of, &current.key()) {
            Some(newer) if uid(&newer.value) == uid(&current.value) => current = newer,
            _ => return,
        }
    }
}

/// Deletes an object, and retries while others write it. An object that is already marked stays as it is.
fn delete(server: &Server, of: &GroupResource, object: &Arc<Object>, options: &Options) {
    let registry = server.registry();
    let Some(resource) = registry.preferred(of) else { return };
    let mut current = Arc::clone(object);
    while remove(server, resource, &current, options).is_none() {
        match server.store.get(of, &current.key()) {
            Some(newer) if uid(&newer.value) == uid(&current.value) => current = newer,
            _ => return,
        }
    }
}

/// The state of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Solid,
    /// The owner is deleted once its dependents are gone.
    Waiting,
    Absent,
    /// The owner's kind is not served, so its state is unknown.
    Unknown,
}

fn judge(server: &Server, registry: &Registry, owner: &OwnerRef<'_>, dependent: &Value) -> Owner {
    let Some(kind) = registry.find_kind(owner.api_version, owner.kind) else {
        // The owner was deleted with its definition, or it is not known.
        return if server.store.is_gone(owner.uid) { Owner::Absent } else { Owner::Unknown };
    };
    match server.store.by_uid(owner.uid) {
        Some((of, found)) => {
            let same = of == kind.storage && crate::object::name(&found.value) == owner.name;
            let reachable = namespace(&found.value).is_empty() || namespace(&found.value) == namespace(dependent);
            if !same || !reachable {
                Owner::Absent
            } else if is_deleting(&found.value) && finalizers(&found.value).contains(&FOREGROUND) {
                Owner::Waiting
            } else {
                Owner::Solid
            }
        }
        None => Owner::Absent,
    }
}

/// Handles an object whose owners or dependents have changed.
fn object(server: &Server, id: &str) {
    let Some((of, found)) = server.store.by_uid(id) else {
        // The object is gone, and its dependents have been queued.
        return;
    };
    if is_deleting(&found.value) {
        let held = finalizers(&found.value);
        if held.contains(&ORPHAN) {
            orphan(server, &of, &found);
        } else if held.contains(&FOREGROUND) {
            foreground(server, &of, &found);
        }
        return;
    }
    collect(server, &of, &found);
}

/// Deletes an object whose owners are all gone. Drops references to absent owners if others remain.
fn collect(server: &Server, of: &GroupResource, found: &Arc<Object>) {
    let registry = server.registry();
    let judged: Vec<(OwnerRef<'_>, Owner)> =
        owners(&found.value).map(|owner| (owner, judge(server, &registry, &owner, &found.value))).collect();
    let any = |wanted: Owner| judged.iter().any(|(_, owner)| *owner == wanted);
    if any(Owner::Unknown) {
        server.store.defer(uid(&found.value));
        if !Arc::ptr_eq(&registry, &server.registry()) {
            // The kind may be served by now.
            server.store.look_at_deferred();
        }
        return;
    }
    if judged.is_empty() {
        return;
    }
    if any(Owner::Solid) {
        let gone: Vec<&str> = judged
            .iter()
            .filter(|(_, owner)| matches!(owner, Owner::Absent | Owner::Waiting))
            .map(|(owner, _)| owner.uid)
            .collect();
        let Some(resource) = registry.preferred(of).filter(|_| !gone.is_empty()) else { return };
        write(server, resource, of, found, |object| drop_owners(object, &gone));
    } else if any(Owner::Waiting)
        && server.store.dependents(uid(&found.value)).iter().any(|(_, d)| !is_deleting(&d.value))
    {
        // The owner is in foreground deletion, so this object is too.
        delete(server, of, found, &Options::with(Propagation::Foreground));
    } else {
        // A finalizer of the object decides about its own dependents. Otherwise they are deleted too.
        delete(server, of, found, &Options::default());
    }
}

/// Orphans all dependents of an object, and then removes its finalizer.
fn orphan(server: &Server, of: &GroupResource, owner: &Arc<Object>) {
    let registry = server.registry();
    for (dependent_of, dependent) in server.store.dependents(uid(&owner.value)) {
        if let Some(resource) = registry.preferred(&dependent_of) {
            write(server, resource, &dependent_of, &dependent, |object| drop_owners(object, &[uid(&owner.value)]));
        }
    }
    release(server, of, owner, ORPHAN);
}

/// Deletes all dependents of an object, and removes its finalizer when none of them blocks it.
fn foreground(server: &Server, of: &GroupResource, owner: &Arc<Object>) {
    let id = uid(&owner.value);
    let blocks = |object: &Value| owners(object).any(|reference| reference.uid == id && reference.blocks);
    for (_, dependent) in server.store.dependents(id) {
        if !is_deleting(&dependent.value) {
            server.store.again(Work::Object(uid(&dependent.value).to_owned()));
        }
    }
    if !server.store.dependents(id).iter().any(|(_, dependent)| blocks(&dependent.value)) {
        release(server, of, owner, FOREGROUND);
    }
}

fn release(server: &Server, of: &GroupResource, object: &Arc<Object>, finalizer: &str) {
    let registry = server.registry();
    let Some(resource) = registry.preferred(of) else { return };
    write(server, resource, of, object, |object| {
        let kept: Vec<String> =
            finalizers(object).into_iter().filter(|held| *held != finalizer).map(ToOwned::to_owned).collect();
        set_finalizers(object, &kept.iter().map(String::as_str).collect::<Vec<_>>());
    });
}

fn drop_owners(object: &mut Value, uids: &[&str]) {
    let kept: Vec<Value> = array(&object["metadata"]["ownerReferences"])
        .iter()
        .filter(|owner| !uids.contains(&owner["uid"].as_str().unwrap_or_default()))
        .cloned()
        .collect();
    if kept.is_empty() {
        remove_meta(object, "ownerReferences");
    } else {
        set_meta(object, "ownerReferences", kept.into());
    }
}

/// Deletes everything in a namespace that is being deleted, and the namespace when nothing is left.
fn empty_namespace(server: &Server, name: &str) {
    let of = GroupResource::namespaces();
    let Some(found) = server.store.get(&of, &Key::new("", name)) else { return };
    if !is_deleting(&found.value) {
        return;
    }
    for (content_of, content) in server.store.in_namespace(name) {
        if !is_deleting(&content.value) || finalizers(&content.value).is_empty() {
            // Without grace, because there is no kubelet to stop a pod.
            let options = Options { grace: Some(0), ..Options::with(Propagation::Background) };
            delete(server, &content_of, &content, &options);
        }
    }
    if server.store.in_namespace(name).is_empty()
        && let Some(resource) = server.registry().preferred(&of)
    {
        write(server, resource, &of, &found, |namespace| {
            if let Some(spec) = namespace["spec"].as_object_mut() {
                spec.remove("finalizers");
            }
        });
    }
}

/// Deletes all objects of a custom resource whose definition is being deleted, and the definition when none is left.
fn empty_resource(server: &Server, of: &GroupResource) {
    let crds = GroupResource::crds();
    let Some(definition) = server.store.get(&crds, &Key::new("", &of.to_string())) else { return };
    if !is_deleting(&definition.value) {
        return;
    }
    let Ok(all) = server.store.list(of, None, None, None) else { return };
    for object in all.objects.iter().filter(|object| !is_deleting(&object.value)) {
        delete(server, of, object, &Options::with(Propagation::Background));
    }
    if server.store.count(of) == 0 {
        release(server, &crds, &definition, crd::FINALIZER);
    }
}
