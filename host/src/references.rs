//! Values of Secrets and ConfigMaps that administrators' files refer to.
//!
//! Each file has [`Watched`] objects. Each object is cached by its name, and no others of its kind. A plugin gets no
//! grant by that: it sees a value only as part of its configuration, and not at all if the value goes into a header.
//!
//! No message of this module has a value in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    pin::Pin,
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

/// Sees the changes of [`Watched`] objects, also those that come before somebody waits.
#[derive(Clone)]
pub struct Changes {
    objects: watch::Receiver<()>,
    /// Of each object: whether it is known that it exists or not.
    synced: Vec<watch::Receiver<bool>>,
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
    pub fn changes(&self) -> Changes {
        let synced = self.leases.values().map(Lease::synced).collect();
        Changes { objects: self.changes.subscribe(), synced }
    }

    /// Waits until it is known of each object whether it exists.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn synced(&self) {
        for lease in self.leases.values() {
            if lease.synced().wait_for(|synced| *synced).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Changes {
    /// Marks what has changed until now as seen.
    pub fn mark_unchanged(&mut self) {
        self.objects.mark_unchanged();
        self.synced.iter_mut().for_each(watch::Receiver::mark_unchanged);
    }

    /// Waits until an object has changed since this handle saw the last change, or until it is known whether another
    /// one exists.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn changed(&mut self) {
        let objects = std::iter::once(Box::pin(next(&mut self.objects)) as Pin<Box<dyn Future<Output = ()> + Send>>);
        let known = self.synced.iter_mut().map(|synced| Box::pin(next(synced)) as _);
        select_all(objects.chain(known)).await;
    }
}

/// Waits for a change. A sender that is dropped sends none.
async fn next<T>(changes: &mut watch::Receiver<T>) {
    if changes.changed().await.is_err() {
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
