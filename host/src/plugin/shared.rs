//! What the tasks of all plugins share.

use std::sync::Arc;

use super::{
    candidate::Activate,
    mode::Mode,
    status::{Observer, Statuses},
};
use crate::{guests::Guests, informer::Informers, wasm::Engine, writer::Identities};

pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) activate: Arc<dyn Activate>,
    pub(super) mode: Mode,
    /// The threads that guests run on.
    pub(super) guests: Guests,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) statuses: Statuses,
    pub(super) identities: Identities,
    /// Caches what files refer to. `None` without a cluster.
    pub(super) informers: Option<Informers>,
}
