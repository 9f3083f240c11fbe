//! The field manager of each plugin, and managers of the host's that no plugin has any more.
//!
//! A plugin applies as `pilothouse.<identity>`. The identity is the plugin's name, or what its administrator's file
//! says. Fields and children belong to that manager: a plugin whose file is renamed would neither change nor prune what
//! it applied under its old name. So its old identity can be kept, and where it is not, the fields and children that
//! are left are reported.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use parking_lot::RwLock;
use pilothouse_core::object::Object;
use tracing::warn;

use crate::name::PluginName;

/// Managers without a plugin that are reported for each plugin. A host has had few names for one plugin.
const MOST_LEFTOVERS: usize = 10;

/// The identities of all loaded plugins. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Identities(Arc<RwLock<Loaded>>);

#[derive(Debug, Default)]
struct Loaded {
    plugins: BTreeMap<PluginName, Claim>,
    /// `true` once every plugin of the first look at the directory is known.
    is_complete: bool,
}

#[derive(Debug)]
struct Claim {
    identity: PluginName,
    /// Identities without a plugin that have fields or children of this plugin's objects, with the first such object.
    leftovers: BTreeMap<Box<str>, String>,
}

/// The identity of one plugin.
#[derive(Clone, Debug)]
pub struct Identity {
    plugin: PluginName,
    manager: Arc<str>,
    all: Identities,
}

/// Two plugins would have one field manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the identity {identity} belongs to plugin {other}: give {plugin} another name, or change `identity` in {plugin}.yaml or {other}.yaml"
)]
pub struct IdentityTaken {
    identity: PluginName,
    plugin: PluginName,
    other: PluginName,
}

impl Identities {
    /// Gives `plugin` an identity in place of the one it had. No other plugin may have its name or its identity, as
    /// either.
    ///
    /// # Errors
    /// If another loaded plugin has one of them.
    pub fn claim(&self, plugin: &PluginName, identity: Option<PluginName>) -> Result<Identity, IdentityTaken> {
        let identity = identity.unwrap_or_else(|| plugin.clone());
        let mut loaded = self.0.write();
        for (other, claim) in loaded.plugins.iter().filter(|(other, _)| *other != plugin) {
            if let Some(taken) = [&identity, plugin].into_iter().find(|word| [other, &claim.identity].contains(word)) {
                return Err(IdentityTaken { identity: taken.clone(), plugin: plugin.clone(), other: other.clone() });
            }
        }
        let manager = format!("pilothouse.{identity}").into();
        match loaded.plugins.get_mut(plugin) {
            Some(claim) => claim.identity = identity,
            None => drop(loaded.plugins.insert(plugin.clone(), Claim { identity, leftovers: BTreeMap::new() })),
        }
        Ok(Identity { plugin: plugin.clone(), manager, all: self.clone() })
    }

    /// Gives up the identity of a plugin that is gone.
    pub fn release(&self, plugin: &PluginName) {
        self.0.write().plugins.remove(plugin);
    }

    /// Records that every plugin of the first look has a task. Until then, an unknown identity may belong to a plugin
    /// that comes next.
    pub fn complete(&self) {
        self.0.write().is_complete = true;
    }

    /// Returns a warning for each identity without a plugin that has fields or children of this plugin's objects.
    pub fn leftovers(&self, plugin: &PluginName) -> Vec<String> {
        let loaded = self.0.read();
        let leftovers = loaded.plugins.get(plugin).into_iter().flat_map(|claim| &claim.leftovers);
        leftovers
            .filter(|(identity, _)| !loaded.has(identity))
            .map(|(identity, object)| leftover(plugin, identity, object))
            .collect()
    }
}

impl Loaded {
    fn has(&self, identity: &str) -> bool {
        self.plugins.values().any(|claim| claim.identity.as_str() == identity)
    }
}

impl Identity {
    /// Returns the plugin's name.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Returns the plugin's field manager.
    pub fn manager(&self) -> &str {
        &self.manager
    }

    /// Warns, once for each, of managers of this host that have applied something to `object` and that no loaded plugin
    /// has.
    pub(super) fn report_leftovers(&self, object: &Object) {
        // Nearly all objects have no other manager.
        for manager in object.managers().filter(|manager| **manager != *self.manager) {
            let Some((_, identity)) = manager.split_once('.') else { continue };
            if !self.all.0.read().has(identity) {
                self.report(identity, object);
            }
        }
    }

    fn report(&self, identity: &str, object: &Object) {
        let loaded = &mut *self.all.0.write();
        let Some(claim) = loaded.plugins.get_mut(&self.plugin).filter(|_| loaded.is_complete) else { return };
        if claim.leftovers.contains_key(identity) || claim.leftovers.len() >= MOST_LEFTOVERS {
            return;
        }
        let object = format!("{} {}", object.type_meta(), object.key());
        warn!(plugin = %self.plugin, "{}", leftover(&self.plugin, identity, &object));
        claim.leftovers.insert(identity.into(), object);
    }
}

/// Identities are equal if their field managers are.
impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.manager == other.manager
    }
}

fn leftover(plugin: &PluginName, identity: &str, object: &str) -> String {
    let mut text = format!(
        "finds fields or children of field manager pilothouse.{identity} (first: {object}), and no loaded plugin has it: "
    );
    let _ = write!(
        text,
        "they stay as they are. If this plugin was called {identity}, set `identity: {identity}` in {plugin}.yaml"
    );
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use pilothouse_core::key::TypeMeta;

    use super::*;

    fn name(name: &str) -> PluginName {
        PluginName::new(name).unwrap()
    }

    fn applied_by(manager: &str) -> Object {
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"1",
            "managedFields":[{{"manager":"{manager}","operation":"Apply","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{}}}}}}]}}}}"#
        );
        Object::parse(json.as_bytes(), &TypeMeta::new("v1", "ConfigMap")).unwrap()
    }

    #[test]
    fn a_name_or_an_identity_belongs_to_one_plugin() {
        let all = Identities::default();
        assert_eq!(all.claim(&name("a"), None).unwrap().manager(), "pilothouse.a");
        assert_eq!(all.claim(&name("b"), Some(name("old"))).unwrap().manager(), "pilothouse.old");
        let taken = |plugin: &str, identity: Option<&str>| {
            let IdentityTaken { identity, other, .. } = all.claim(&name(plugin), identity.map(name)).unwrap_err();
            (identity.to_string(), other.to_string())
        };
        assert_eq!(taken("c", Some("a")), ("a".to_owned(), "a".to_owned()));
        assert_eq!(taken("c", Some("b")), ("b".to_owned(), "b".to_owned()));
        assert_eq!(taken("c", Some("old")), ("old".to_owned(), "b".to_owned()));
        assert_eq!(taken("old", None), ("old".to_owned(), "b".to_owned()));
        assert_eq!(
            all.claim(&name("old"), None).unwrap_err().to_string(),
            "the identity old belongs to plugin b: give old another name, or change `identity` in old.yaml or b.yaml"
        );
        // Its own is no obstacle, and what is given up is free.
        all.claim(&name("b"), None).unwrap();
        all.claim(&name("old"), None).unwrap();
        all.release(&name("a"));
        assert_eq!(all.claim(&name("c"), Some(name("a"))).unwrap().manager(), "pilothouse.a");
    }

    #[test]
    fn a_manager_that_no_loaded_plugin_has_is_reported_once() {
        let all = Identities::default();
        let identity = all.claim(&name("new"), None).unwrap();
        // The plugin may be the next to be found.
        identity.report_leftovers(&applied_by("pilothouse.old"));
        assert_eq!(all.leftovers(&name("new")), [""; 0]);
        all.complete();
        for manager in ["pilothouse.old", "pilothouse.old", "pilothouse.new", "somebody"] {
            identity.report_leftovers(&applied_by(manager));
        }
        let told = "finds fields or children of field manager pilothouse.old (first: v1 ConfigMap n/a), and no loaded plugin has it: they \
                    stay as they are. If this plugin was called old, set `identity: old` in new.yaml";
        assert_eq!(all.leftovers(&name("new")), [told]);
        all.claim(&name("other"), Some(name("old"))).unwrap();
        assert_eq!(all.leftovers(&name("new")), [""; 0]);
    }

    #[test]
    fn invariant_12_leftovers_are_bounded() {
        let all = Identities::default();
        let identity = all.claim(&name("new"), None).unwrap();
        all.complete();
        for number in 0..100 {
            identity.report_leftovers(&applied_by(&format!("pilothouse.{number}")));
        }
        assert_eq!(all.leftovers(&name("new")).len(), MOST_LEFTOVERS);
    }
}
