//! The component's imports.

pub(crate) use crate::contract::pilothouse::plugin::{
    cache::{get as cache_get, keys as cache_keys, list as cache_list},
    client::{apply, create, delete, get, patch, update},
    clock::now,
    log::write as log,
};
