//! How well code is compiled.

/// How a file was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Soon: by Winch, in a sixth of the time or a fifth. What it makes takes almost twice as long to run, and more of the stack.
    Baseline,
    /// Well: by Cranelift.
    Optimized,
}

impl Tier {
    /// One word for metrics and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Optimized => "optimized",
        }
    }
}
