//! The administrator's limits for a plugin.

use std::time::Duration;

/// What a call, its instance, and all instances of the plugin may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Limits {
    /// Bytes of linear memory of one instance.
    #[serde(rename = "memory_bytes")]
    pub memory: usize,
    /// Bytes of linear memory of all the plugin's instances, and of what the host remembers for the plugin.
    #[serde(rename = "total_memory_bytes")]
    pub total_memory: usize,
    /// Lowers the manifest's deadline, and never raises it.
    #[serde(skip)]
    pub deadline: Option<Duration>,
    /// Host calls of one call.
    pub host_calls: u32,
    /// Bytes of their arguments and answers together.
    pub host_bytes: usize,
    /// `true` if instances may be reused, when the manifest asks for it.
    pub reuse: bool,
}

impl Default for Limits {
    /// Returns the defaults. See the table of limits in `docs/limits.md`.
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            // Sixteen instances at their limit, or a thousand usual ones.
            total_memory: 1 << 30,
            deadline: None,
            // A read for each object of a large cluster. With cached reads, that takes a few tenths of a second.
            host_calls: 100_000,
            // 200,000 whole Pods, page by page.
            host_bytes: 1 << 30,
            reuse: true,
        }
    }
}

impl Limits {
    /// Returns the shorter of `asked` and the administrator's deadline.
    pub(crate) fn lowered(&self, asked: Duration) -> Duration {
        self.deadline.map_or(asked, |most| most.min(asked))
    }
}
