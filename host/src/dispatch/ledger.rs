//! What a controller knows of its keys.

pub(super) mod awaiting;
pub(super) mod deferred;
pub(super) mod failing;
pub(super) mod gone;
