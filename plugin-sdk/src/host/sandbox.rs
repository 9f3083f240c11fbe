//! The component's imports.

pub(crate) use crate::contract::pilothouse::plugin::cache::{get as cache_get, keys as cache_keys, list as cache_list};
pub(crate) use crate::contract::pilothouse::plugin::client::{apply, create, delete, get, patch, update};
pub(crate) use crate::contract::pilothouse::plugin::clock::now;
pub(crate) use crate::contract::pilothouse::plugin::log::write as log;
