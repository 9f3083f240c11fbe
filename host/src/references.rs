//! Values of Secrets and ConfigMaps that administrators' files refer to.
//!
//! Each file has [`Watched`] objects. Each object is cached by its name, and no others of its kind. A plugin gets no
//! grant by that: it sees a value only as part of its configuration, and not at all if the value goes into a header.
//!
//! No message of this module has a value in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::future::select_all;
use pilothouse_core::{
    key::{Key, TypeMeta},
    references::{self, Kind, Reference},
    selector::FieldSelector,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::informer::{InformerKey, Informers, Lease};

/// What a plugin's file refers to.
#[derive(Clone, Debug, Default)]
pub struct References {
    /// The objects. `None` if there are none.
    pub watched: Option<Arc<Watched>>,
    /// `true` if the configuration has values of Secrets, so that the plugin may quote one.
    pub secret_in_config: bool,
}

/// Objects that one file refers to, kept in the cache.
pub struct Watched {
    references: BTreeSet<Reference>,
    leases: BTreeMap<(TypeMeta, Key), Lease>,
    changes: watch::Sender<()>,
}

/// Why a value is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The object is not cached yet. Holds the state of its informer.
    Unknown(String),
    /// There is no such object.
    Object,
    /// The object has no such key.
    Key,
    /// The value is not UTF-8.
    Text,
}

/// The part of a Secret or ConfigMap that is read.
#[derive(Deserialize)]
struct Data {
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

impl References {
    /// Returns a value.
    ///
    /// # Errors
    /// Says why there is none.
    pub fn value(&self, reference: &Reference) -> Result<String, Missing> {
        self.watched.as_ref().map_or(Err(Missing::Object), |watched| watched.value(reference))
    }
}

impl Watched {
    /// Begins to cache the objects. `holder` is the plugin, for people.
    pub fn new(informers: &Informers, holder: &str, references: BTreeSet<Reference>) -> Self {
        let changes = watch::Sender::new(());
        let objects: BTreeSet<(TypeMeta, Key)> = references.iter().map(Reference::object).collect();
        let lease = |(of, key): (TypeMeta, Key)| {
            let one = InformerKey {
                of: of.clone(),
                namespace: key.namespace.as_deref().map(Into::into),
                labels: Default::default(),
                fields: FieldSelector::default().and_equal("metadata.name", &key.name),
                keep: Default::default(),
            };
            let lease = informers.acquire(one, holder);
            let changes = changes.clone();
            lease.subscribe(Box::new(move |_, _| changes.send_modify(|()| ())));
            ((of, key), lease)
        };
        let leases = objects.into_iter().map(lease).collect();
        Self { references, leases, changes }
    }

    /// Returns the references whose objects are cached.
    pub fn references(&self) -> &BTreeSet<Reference> {
        &self.references
    }

    /// Returns the value of a reference.
    ///
    /// # Errors
    /// Says why there is none.
    pub fn value(&self, reference: &Reference) -> Result<String, Missing> {
        let (of, key) = reference.object();
        let lease = self.leases.get(&(of.clone(), key.clone())).ok_or(Missing::Object)?;
        let Some(object) = lease.get(&key) else {
            let is_synced = *lease.synced().borrow();
            return Err(if is_synced { Missing::Object } else { Missing::Unknown(lease.state().to_string()) });
        };
        let Data { data } = serde_json::from_str(&object.json()).map_err(|_| Missing::Text)?;
        let text = data.and_then(|mut data| data.remove(&reference.key)).ok_or(Missing::Key)?;
        match reference.of {
            Kind::ConfigMap => Ok(text),
            Kind::Secret => {
                String::from_utf8(STANDARD.decode(text).map_err(|_| Missing::Text)?).map_err(|_| Missing::Text)
            }
        }
    }

    /// Replaces each reference in a configuration by its value.
    ///
    /// # Errors
    /// Names the references without a value, and says why.
    pub fn resolve(&self, config: &Value) -> Result<Value, String> {
        let (mut values, mut missing) = (BTreeMap::new(), Vec::new());
        for reference in references::find(config)? {
            match self.value(&reference) {
                Ok(value) => drop(values.insert(reference, value)),
                Err(Missing::Object | Missing::Key) if reference.optional => {}
                Err(why) => missing.push(format!("{reference}: {why}")),
            }
        }
        if missing.is_empty() {
            Ok(references::resolve(config, &|reference| values.get(reference).cloned()))
        } else {
            Err(missing.join("; "))
        }
    }

    /// Returns a handle that sees changes from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits until an object has changed since `changes` saw the last change, or until it is known whether another one
    /// exists.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn changed(&self, changes: &mut watch::Receiver<()>) {
        let unsynced: Vec<_> = self.unsynced().map(|lease| Box::pin(until_synced(lease))).collect();
        let known = async {
            if unsynced.is_empty() {
                return std::future::pending().await;
            }
            select_all(unsynced).await;
        };
        tokio::select! {
            _ = changes.changed() => {}
            () = known => {}
        }
    }

    /// Waits until it is known of each object whether it exists.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn synced(&self) {
        for lease in self.unsynced() {
            until_synced(lease).await;
        }
    }

    fn unsynced(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().filter(|lease| !*lease.synced().borrow())
    }
}

async fn until_synced(lease: &Lease) {
    let mut synced = lease.synced();
    if synced.wait_for(|synced| *synced).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(state) => write!(f, "the object is not cached yet ({state})"),
            Self::Object => f.write_str("there is no such object"),
            Self::Key => f.write_str("the object has no such key"),
            Self::Text => f.write_str("the value is not text in UTF-8"),
        }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("references", &self.references).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
