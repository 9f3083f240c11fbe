//! Benchmarks, with peers in the same run.
