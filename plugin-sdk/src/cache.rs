//! Typed reads from the cache that the host keeps for all plugins.
//!
//! A read sends no request, and sees every write that any plugin made through this host before.

use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::contract::pilothouse::plugin::cache::{Query, ReadError};
use crate::{Context, Key, Object, host};

/// Why a read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not in the manifest's permissions, not granted by the administrator, or not cached for this plugin.
    #[error("the cache may not be read: {0}")]
    NotGranted(String),
    /// The selector or the namespace cannot be used.
    #[error("the cache cannot be asked this: {0}")]
    Invalid(String),
    /// An object is not of the type that it was asked for as.
    #[error("cached {kind} does not fit its type")]
    Decode {
        /// The kind that was read.
        kind: String,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotGranted(why) => Self::NotGranted(why),
            ReadError::Invalid(why) => Self::Invalid(why),
        }
    }
}

/// The cache, for the length of one call: see [`Context::cache`].
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a>(PhantomData<&'a Context>);

impl<'a> Cache<'a> {
    pub(crate) fn new(_: &'a Context) -> Self {
        Self(PhantomData)
    }

    /// An object, or none if the cluster has no such object.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// How many keys the ConfigMap `settings` beside the reconciled object has.
    /// fn settings(ctx: &Context) -> Result<usize, Error> {
    ///     let settings = ctx.cache().get::<ConfigMap>(ctx.key().beside("settings"))?;
    ///     Ok(settings.and_then(|map| map.data).map_or(0, |data| data.len()))
    /// }
    /// ```
    ///
    /// # Errors
    /// Where the kind may not be read, or the object does not fit `K`.
    pub fn get<K: Object>(&self, key: impl Into<Key>) -> Result<Option<K>, Error> {
        let object = host::cache_get(&K::type_meta(), &key.into())?;
        object.map(|object| decode(&object)).transpose()
    }

    /// The objects that `selection` matches, in the order of namespace, then name.
    ///
    /// Fetches page after page while it is iterated over, so that a list of any length needs no more memory than its
    /// largest page. Ends after the first error.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::cache::Selection;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn count(ctx: &Context) -> Result<usize, Error> {
    ///     let maps = ctx.cache().list::<ConfigMap>(Selection::all().namespace("default").labels("app=web"));
    ///     let mut count = 0;
    ///     for map in maps {
    ///         count += usize::from(map?.data.is_some());
    ///     }
    ///     Ok(count)
    /// }
    /// ```
    pub fn list<K: Object>(&self, selection: Selection) -> List<'a, K> {
        let Selection { namespace, labels, page_size: limit } = selection;
        let query = Query { of: K::type_meta(), namespace, labels, limit, after: None };
        List { query: Some(query), page: VecDeque::new(), of: PhantomData }
    }
}

/// Which objects of a kind.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    namespace: Option<String>,
    labels: Option<String>,
    page_size: u32,
}

impl Selection {
    /// Every object in every namespace that is granted.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only those in one namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only those that a label selector in Kubernetes' syntax matches, such as `app=web,tier!=cache`.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// At most so many objects to be fetched at once; 0, the default, leaves it to the host.
    #[must_use]
    pub fn page_size(mut self, objects: u32) -> Self {
        self.page_size = objects;
        self
    }
}

/// The objects of a [`Cache::list`].
#[derive(Debug)]
pub struct List<'a, K> {
    /// What fetches the next page; none after the last.
    query: Option<Query>,
    page: VecDeque<String>,
    of: PhantomData<(&'a Context, K)>,
}

impl<K: Object> Iterator for List<'_, K> {
    type Item = Result<K, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        // A page may be empty and still not be the last.
        while self.page.is_empty() {
            let mut query = self.query.take()?;
            match host::cache_list(&query) {
                Ok(page) => {
                    self.page = page.items.into();
                    if page.next.is_some() {
                        query.after = page.next;
                        self.query = Some(query);
                    }
                }
                Err(error) => return Some(Err(error.into())),
            }
        }
        let object = decode(&self.page.pop_front()?);
        if object.is_err() {
            self.query = None;
            self.page.clear();
        }
        Some(object)
    }
}

fn decode<K: Object>(object: &str) -> Result<K, Error> {
    serde_json::from_str(object).map_err(|source| Error::Decode { kind: K::type_meta().to_string(), source })
}
