//! Typed reads from the cache that the host keeps for all plugins.
//!
//! A read sends no request to the API server. It sees every earlier write that any plugin made through this host.
//! During one call, all reads of a kind show it as it was at the first of them. So the pages of a list fit together.
//! The host may have to give up this snapshot: see the interface `cache` in [`contract`](crate::contract).
//!
//! What a reconcile reads wakes it when it changes: see [`ControllerBuilder::reads`](crate::ControllerBuilder::reads).
//! So read as little as you can:
//! - one object instead of a list;
//! - a list by label or index instead of all objects;
//! - some fields instead of whole objects;
//! - keys instead of fields.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::{
    Dynamic, Key, Object, TypeMeta,
    contract::pilothouse::plugin::cache::{Query, ReadError},
    host,
};

host::interface!(cache {
    fn get(of: &TypeMeta, key: &Key) -> Result<Option<String>, ReadError>;
    fn list(query: &Query) -> Result<Page, ReadError>;
    fn keys(query: &Query) -> Result<KeyPage, ReadError>;
});

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not in the manifest's permissions, not granted by the administrator, or not cached for this plugin. The text
    /// says which.
    #[error("cannot read the cache: {0}")]
    NotGranted(String),
    /// The selector, the namespace, the index or a field path is not valid, or an object nests too deep. The text says
    /// why.
    #[error("the query is not valid: {0}")]
    Invalid(String),
    /// One object alone is larger than a call may return. Holds its size in bytes. Read some of its fields instead.
    #[error("an object of {0} bytes is too large to be read as a whole: read some of its fields")]
    TooLarge(u64),
    /// An object cannot be decoded as the requested type.
    #[error("cannot decode a cached {kind}")]
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
            ReadError::TooLarge(bytes) => Self::TooLarge(bytes),
        }
    }
}

/// The cache, during one call: see [`Context::cache`](crate::Context::cache).
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a>(PhantomData<&'a ()>);

impl<'a> Cache<'a> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }

    /// Returns an object, or `None` if the cluster has no such object.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Counts the keys of the ConfigMap `settings` in the namespace of the reconciled object.
    /// fn settings(ctx: &Context) -> Result<usize, Error> {
    ///     let settings = ctx.cache().get::<ConfigMap>(ctx.key().beside("settings"))?;
    ///     Ok(settings.and_then(|map| map.data).map_or(0, |data| data.len()))
    /// }
    /// ```
    ///
    /// # Errors
    /// Fails if the plugin may not read the kind, or if the object cannot be decoded as `K`.
    pub fn get<K: Object>(&self, key: impl Into<Key>) -> Result<Option<K>, Error> {
        let of = K::type_meta();
        let object = import::get(&of, &key.into())?;
        object.map(|object| decode(&of, &object)).transpose()
    }

    /// Returns an object of a kind that is known only at run time, or `None` if the cluster has no such object.
    ///
    /// # Errors
    /// Fails if the plugin may not read the kind.
    pub fn get_dynamic(&self, of: &TypeMeta, key: impl Into<Key>) -> Result<Option<Dynamic>, Error> {
        let object = import::get(of, &key.into())?;
        object.map(|object| decode(of, &object)).transpose()
    }

    /// As [`list`](Self::list), for a kind that is known only at run time.
    pub fn list_dynamic(&self, of: TypeMeta) -> List<'a, Dynamic> {
        let (namespace, labels, index, after) = (None, None, None, None);
        List::new(Query { of, namespace, labels, index, fields: Vec::new(), limit: 0, after })
    }

    /// Lists the objects of a kind in every granted namespace, ordered by namespace and then name. The methods of
    /// [`List`] select fewer.
    ///
    /// Fetches one page after the other during iteration, so a list of any length needs only the memory of its largest
    /// page. Ends after the first error.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn count(ctx: &Context) -> Result<usize, Error> {
    ///     let mut count = 0;
    ///     for map in ctx.cache().list::<ConfigMap>().namespace("default").labels("app=web") {
    ///         count += usize::from(map?.data.is_some());
    ///     }
    ///     Ok(count)
    /// }
    /// ```
    pub fn list<K: Object>(&self) -> List<'a, K> {
        let of = K::type_meta();
        let (namespace, labels, index, after) = (None, None, None, None);
        List::new(Query { of, namespace, labels, index, fields: Vec::new(), limit: 0, after })
    }
}

/// A list that has not been read yet, from [`Cache::list`]. Iterate over it, or over its [`keys`](Self::keys).
#[derive(Clone, Debug)]
#[must_use = "a list reads nothing until it is iterated over"]
pub struct List<'a, V> {
    query: Query,
    call: PhantomData<&'a ()>,
    value: PhantomData<fn() -> V>,
}

impl<'a, V: DeserializeOwned> List<'a, V> {
    fn new(query: Query) -> Self {
        Self { query, call: PhantomData, value: PhantomData }
    }

    /// Selects objects in one namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.query.namespace = Some(namespace.into());
        self
    }

    /// Selects objects in the namespace of a key. Selects all objects if the key is cluster-scoped.
    pub fn beside(mut self, key: &Key) -> Self {
        self.query.namespace.clone_from(&key.namespace);
        self
    }

    /// Selects objects by a label selector in the syntax of Kubernetes, such as `app=web,tier!=cache`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.query.labels = Some(selector.into());
        self
    }

    /// Selects objects by a value in an index of the plugin ([`Plugin::index`](crate::Plugin::index)).
    pub fn index(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.index = Some((name.into(), value.into()));
        self
    }

    /// Sets how many objects are fetched at once. 0, the default, leaves it to the host.
    pub fn page_size(mut self, objects: u32) -> Self {
        self.query.limit = objects;
        self
    }

    /// Returns only some fields of each object, decoded as another type. apiVersion, kind, name and namespace are
    /// always there.
    ///
    /// Only changes of these fields wake the reconcile.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Placed { metadata: ObjectMeta, spec: Spec }
    ///
    /// #[derive(serde::Deserialize)]
    /// #[serde(rename_all = "camelCase")]
    /// struct Spec { node_name: Option<String> }
    ///
    /// fn placed(ctx: &Context) -> Result<usize, Error> {
    ///     let mut placed = 0;
    ///     for pod in ctx.cache().list::<Pod>().fields::<Placed>(["spec.nodeName"]) {
    ///         placed += usize::from(pod?.spec.node_name.is_some());
    ///     }
    ///     Ok(placed)
    /// }
    /// ```
    pub fn fields<S: DeserializeOwned>(self, paths: impl IntoIterator<Item = impl Into<String>>) -> List<'a, S> {
        List::new(Query { fields: paths.into_iter().map(Into::into).collect(), ..self.query })
    }

    /// Returns only the keys. Only objects that enter or leave the list wake the reconcile.
    pub fn keys(self) -> Pages<'a, Key, Key> {
        Pages::new(self.query, fetch_keys, |_, key| Ok(key))
    }
}

impl<'a, V: DeserializeOwned> IntoIterator for List<'a, V> {
    type Item = Result<V, Error>;
    type IntoIter = Pages<'a, String, V>;

    fn into_iter(self) -> Self::IntoIter {
        Pages::new(self.query, fetch_objects, |of, object| decode(of, &object))
    }
}

/// The items of a list, fetched one page after the other. Ends after the first error.
#[derive(Debug)]
pub struct Pages<'a, W, V> {
    of: TypeMeta,
    /// Fetches the next page. `None` after the last.
    query: Option<Query>,
    page: std::vec::IntoIter<W>,
    fetch: fn(&Query) -> Result<Fetched<W>, ReadError>,
    decode: fn(&TypeMeta, W) -> Result<V, Error>,
    call: PhantomData<&'a ()>,
}

type Fetched<W> = (Vec<W>, Option<String>);

impl<W, V> Pages<'_, W, V> {
    fn new(
        query: Query,
        fetch: fn(&Query) -> Result<Fetched<W>, ReadError>,
        decode: fn(&TypeMeta, W) -> Result<V, Error>,
    ) -> Self {
        let (of, page) = (query.of.clone(), Vec::new().into_iter());
        Self { of, query: Some(query), page, fetch, decode, call: PhantomData }
    }

    fn next_page(&mut self, mut query: Query) -> Result<(), ReadError> {
        let (items, next) = (self.fetch)(&query)?;
        self.page = items.into_iter();
        if next.is_some() {
            query.after = next;
            self.query = Some(query);
        }
        Ok(())
    }
}

impl<W, V> Iterator for Pages<'_, W, V> {
    type Item = Result<V, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.page.next() {
                let item = (self.decode)(&self.of, item);
                if item.is_err() {
                    self.query = None;
                    self.page = Vec::new().into_iter();
                }
                return Some(item);
            }
            // A page may be empty and still not be the last.
            let query = self.query.take()?;
            if let Err(error) = self.next_page(query) {
                return Some(Err(error.into()));
            }
        }
    }
}

fn fetch_objects(query: &Query) -> Result<Fetched<String>, ReadError> {
    import::list(query).map(|page| (page.items, page.next))
}

fn fetch_keys(query: &Query) -> Result<Fetched<Key>, ReadError> {
    import::keys(query).map(|page| (page.items, page.next))
}

fn decode<V: DeserializeOwned>(of: &TypeMeta, object: &str) -> Result<V, Error> {
    serde_json::from_str(object).map_err(|source| Error::Decode { kind: of.to_string(), source })
}
