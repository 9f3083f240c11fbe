//! Typed reads from the cache that the host keeps for all plugins.
//!
//! A read sends no request, and sees every write that any plugin made through this host before. During one call the rest of the
//! world stands still: all reads of a kind show it as it was at the first, so that pages of a list fit together. Only where more
//! changes during the call than the host keeps for it (16,384 objects of a kind, or 16 MiB), or another watch takes the kind over,
//! do later reads show the present; a reconcile is then run again.
//!
//! What a reconcile reads wakes it when it changes: see [`ControllerBuilder::reads`](crate::ControllerBuilder::reads). So read
//! what is needed and no more: one object rather than a list, a list by label or index rather than all, some fields rather than
//! objects, keys rather than fields.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::{
    Key, Object, TypeMeta,
    contract::pilothouse::plugin::cache::{Query, ReadError},
    host,
};

host::interface!(cache {
    fn get(of: &TypeMeta, key: &Key) -> Result<Option<String>, ReadError>;
    fn list(query: &Query) -> Result<Page, ReadError>;
    fn keys(query: &Query) -> Result<KeyPage, ReadError>;
});

/// Why a read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not in the manifest's permissions, not granted by the administrator, or not cached for this plugin.
    #[error("the cache may not be read: {0}")]
    NotGranted(String),
    /// The selector, the namespace, the index or a field path cannot be used.
    #[error("the cache cannot be asked this: {0}")]
    Invalid(String),
    /// One object alone is larger than a call may return: so many bytes. Ask for some of its fields.
    #[error("an object of {0} bytes is too large to be read as a whole: ask for some of its fields")]
    TooLarge(u64),
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
            ReadError::TooLarge(bytes) => Self::TooLarge(bytes),
        }
    }
}

/// The cache, for the length of one call: see [`Context::cache`](crate::Context::cache).
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a>(PhantomData<&'a ()>);

impl<'a> Cache<'a> {
    pub(crate) fn new() -> Self {
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
        let of = K::type_meta();
        let object = import::get(&of, &key.into())?;
        object.map(|object| decode(&of, &object)).transpose()
    }

    /// The objects of a kind in every namespace that is granted, in the order of namespace, then name; less of them by the
    /// methods of [`List`].
    ///
    /// Fetches page after page while it is iterated over, so that a list of any length needs no more memory than its
    /// largest page. Ends after the first error.
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

/// Which objects to list, and how much of each: made by [`Cache::list`], iterated over as it is or by [`keys`](Self::keys).
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

    /// Only those in one namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.query.namespace = Some(namespace.into());
        self
    }

    /// Only those in the namespace of a key; all, where the key is of a cluster-scoped kind.
    pub fn beside(mut self, key: &Key) -> Self {
        self.query.namespace.clone_from(&key.namespace);
        self
    }

    /// Only those that a label selector in Kubernetes' syntax matches, such as `app=web,tier!=cache`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.query.labels = Some(selector.into());
        self
    }

    /// Only those for which an index of the plugin ([`Plugin::index`](crate::Plugin::index)) holds this value.
    pub fn index(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.index = Some((name.into(), value.into()));
        self
    }

    /// At most so many to be fetched at once; 0, the default, leaves it to the host.
    pub fn page_size(mut self, objects: u32) -> Self {
        self.query.limit = objects;
        self
    }

    /// Only some fields of each, as values of another type; apiVersion, kind, name and namespace are always there.
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

    /// Only the keys. Only objects that enter or leave the list wake the reconcile.
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

/// What a list holds, fetched page after page. Ends after the first error.
#[derive(Debug)]
pub struct Pages<'a, W, V> {
    of: TypeMeta,
    /// What fetches the next page; none after the last.
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
