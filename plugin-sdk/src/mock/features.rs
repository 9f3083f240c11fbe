//! The interface `host` of the mock.

use std::{collections::BTreeSet, rc::Rc};

use crate::{features::import::Functions, host::with_mock};

/// A host that has every feature but some.
#[derive(Clone, Default)]
pub(super) struct Features(Rc<BTreeSet<String>>);

impl Features {
    pub(super) fn without(lacking: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(Rc::new(lacking.into_iter().map(Into::into).collect()))
    }

    /// Calls the plugin with these features.
    pub(super) fn serve<T>(&self, call: impl FnOnce() -> T) -> T {
        with_mock(&crate::features::import::MOCK, Rc::new(self.clone()), call)
    }
}

impl Functions for Features {
    fn has(&self, feature: &str) -> bool {
        !self.0.contains(feature)
    }

    fn version(&self) -> String {
        "0.1.0".to_owned()
    }
}
