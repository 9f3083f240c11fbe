//! A compiled plugin, and one whose imports and exports fit the contract.
//!
//! ```text
//! bytes ─ header ─┬─ component ────────────────┬─ child ─► Compiled ─ imports, exports, types ─► Linked
//!                 └─ core module ─ componentise ┘
//! ```
//!
//! The file may be anything. Each way in which it is not a plugin has its own error.

use std::sync::{Arc, Weak};

use super::{
    super::super::{
        contract::export::{self, Export},
        load::{
            code::{Code, Ready},
            digest::Digest,
            error::LoadError,
        },
    },
    Engine,
};

/// A plugin's file, compiled.
#[derive(Clone)]
pub struct Compiled {
    engine: Engine,
    code: Arc<Code>,
    digest: Digest,
    size: usize,
}

/// A compiled plugin that fits the contract, ready to be instantiated. Clones share it. Its code is mapped while it is
/// in use; see [`Engine::unmap_idle`].
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

    /// Returns the digest of the file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the code, without keeping it alive.
    pub(crate) fn code(&self) -> Weak<Code> {
        Arc::downgrade(&self.code)
    }

    /// Checks imports and exports against the contract.
    ///
    /// # Errors
    /// If the component imports what is not offered, does not export `controller`, or has either with other types.
    pub async fn link(&self) -> Result<Linked, LoadError> {
        let ready = self.engine.ready_plain(&self.code).await?;
        let Ready { imports, exports, .. } = &*ready;
        Ok(Linked {
            engine: self.engine.clone(),
            code: Arc::clone(&self.code),
            digest: self.digest,
            size: self.size,
            // Copies, so that they do not share heap pages with data of mapped code.
            imports: imports.iter().cloned().collect(),
            exports: exports.iter().cloned().collect(),
        })
    }
}

impl Linked {
    /// Returns the digest of the file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the size of the file in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the component's imports, such as `pilothouse:plugin/cache@0.1.0`: the list of its capabilities.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// Returns the component's exports, such as `pilothouse:plugin/controller@0.1.0`.
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
