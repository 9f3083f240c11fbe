//! What must hold for any bytes that reach a parser of `pilothouse-core`: laws that panic where they are broken.
//!
//! `serde_json` is the judge. The fuzz targets look for bytes that break a law; `tests/corpus.rs` of `pilothouse-core`
//! replays the corpus through the same functions in every `make test`.
//!
//! ```text
//! corpus/TARGET/* ─┬─► cargo fuzz run TARGET ─► fuzz_targets/TARGET.rs ─┐
//!                  └─► cargo test ────────────► ../tests/corpus.rs ─────┴─► TARGET::check(bytes)
//! ```

pub mod list;
pub mod object;
pub mod selector;
mod tree;
