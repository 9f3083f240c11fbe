//! What a plugin's file holds, in memory.

use std::fmt;

use bytes::Bytes;

use super::digest::Digest;

/// The bytes of a plugin's file, whatever they are, and their digest. Clones share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PluginFile {
    // First: files that differ mostly differ here.
    digest: Digest,
    bytes: Bytes,
}

impl PluginFile {
    /// Reads through the bytes once, for the digest: some half a millisecond for each MB.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { digest: Digest::of(&bytes), bytes }
    }

    /// What tells it from other files.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// What it holds.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for PluginFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginFile").field("digest", &self.digest).field("bytes", &self.bytes.len()).finish()
    }
}
