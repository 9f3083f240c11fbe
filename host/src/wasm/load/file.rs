//! The content of a plugin's file.

use std::fmt;

use bytes::Bytes;

use super::digest::Digest;

/// The bytes of a plugin's file, unchecked, and their digest. Clones share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PluginFile {
    // First, so that a comparison of different files ends early.
    digest: Digest,
    bytes: Bytes,
}

impl PluginFile {
    /// Computes the digest, which takes about half a millisecond per MB.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { digest: Digest::of(&bytes), bytes }
    }

    /// Returns the digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for PluginFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginFile").field("digest", &self.digest).field("bytes", &self.bytes.len()).finish()
    }
}
