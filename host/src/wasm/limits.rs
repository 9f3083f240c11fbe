//! What the administrator lets a plugin take.

use std::time::Duration;

/// What one call may take, its instance, and the plugin's instances together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory.
    pub memory: usize,
    /// Bytes of linear memory that all instances of the plugin hold together, whatever they serve, with what the host remembers for it.
    pub total_memory: usize,
    /// Lowers the manifest's deadline; never raises it.
    pub deadline: Option<Duration>,
    /// Calls of imports.
    pub host_calls: u32,
    /// Bytes that these are asked and answer, in all.
    pub host_bytes: usize,
    /// Whether instances may serve again, where the manifest asks for it.
    pub reuse: bool,
}

impl Default for Limits {
    /// 64 MiB, 1 GiB in all instances, the manifest's deadline, 100,000 host calls and 1 GiB through them; instances as the manifest says.
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            // Sixteen that take all they may; a thousand that are usual.
            total_memory: 1 << 30,
            deadline: None,
            // Some tenths of a second, if the cache answers: a read for each object of a large cluster.
            host_calls: 100_000,
            // 200,000 Pods, page by page, as a whole.
            host_bytes: 1 << 30,
            reuse: true,
        }
    }
}

impl Limits {
    /// The deadline of a call that asks for so much.
    pub(crate) fn lowered(&self, asked: Duration) -> Duration {
        self.deadline.map_or(asked, |most| most.min(asked))
    }
}
