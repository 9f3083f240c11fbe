//! From a file's bytes to a component that fits the contract.
//!
//! ```text
//! bytes ─ header ─┬─ component ────────────────┬─ child ─► Compiled ─ imports, export, types ─► Linked
//!                 └─ core module ─ componentise ┘
//! ```
//!
//! The file may be anything: each way in which it is no plugin has an error that says so.

use std::sync::{Arc, Weak};

use super::{
    super::{
        contract::export::{self, Export},
        load::{
            code::{Code, Ready},
            digest::Digest,
            error::LoadError,
        },
    },
    engine::Engine,
};

/// A plugin's file, compiled.
#[derive(Clone)]
pub struct Compiled {
    engine: Engine,
    code: Arc<Code>,
    digest: Digest,
    size: usize,
}

/// A compiled plugin whose imports and exports fit the contract: ready to be instantiated. Clones share it.
///
/// Its code is mapped while it is called now and then; see [`Engine::unmap_idle`].
#[derive(Clone)]
pub struct Linked {
    pub(crate) engine: Engine,
    pub(crate) code: Arc<Code>,
    digest: Digest,
    size: usize,
    imports: Arc<[String]>,
    exports: Arc<[String]>,
}

impl Compiled {
    pub(crate) fn new(engine: &Engine, code: Arc<Code>, digest: Digest, size: usize) -> Self {
        Self { engine: engine.clone(), code, digest, size }
    }

    /// The digest of the file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its code, for who does not keep it.
    pub(crate) fn code(&self) -> Weak<Code> {
        Arc::downgrade(&self.code)
    }

    /// Checks imports and exports against the contract.
    ///
    /// # Errors
    /// If the component imports what is not offered, lacks the export, or has either with other types.
    pub async fn link(&self) -> Result<Linked, LoadError> {
        let ready = self.engine.ready_plain(&self.code).await?;
        let Ready { imports, exports, .. } = &*ready;
        Ok(Linked {
            engine: self.engine.clone(),
            code: Arc::clone(&self.code),
            digest: self.digest,
            size: self.size,
            // Copies: what stays does not lie among what goes with the code.
            imports: imports.iter().cloned().collect(),
            exports: exports.iter().cloned().collect(),
        })
    }
}

impl Linked {
    /// The digest of the file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of the file.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The component's imports by name, such as `pilothouse:plugin/cache@0.1.0`: the list of its capabilities.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// The component's exports by name, such as `pilothouse:plugin/controller@0.1.0`.
    pub fn exports(&self) -> &[String] {
        &self.exports
    }

    /// Returns `true` if the component has this optional export.
    pub(crate) fn has(&self, export: Export) -> bool {
        export::has(&self.exports, export.interface())
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("digest", &self.digest).field("size", &self.size).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Linked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Linked")
            .field("digest", &self.digest)
            .field("size", &self.size)
            .field("imports", &self.imports)
            .field("exports", &self.exports)
            .finish_non_exhaustive()
    }
}
