//! How well code is optimized, and when.

/// How well code is optimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// By Winch, which takes a fifth of the time or less. The code takes almost twice as long to run, and more stack.
    Baseline,
    /// By Cranelift.
    Optimized,
}

impl Tier {
    /// Returns one word for metrics and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Optimized => "optimized",
        }
    }
}

/// When the baseline compiler's code is optimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizing {
    /// Soon, when no other file waits to be compiled.
    Soon,
    /// Never. For development: an edit replaces the code, and the build of that edit needs the cores. The code is kept
    /// in the cache.
    Never,
}
