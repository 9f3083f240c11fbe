//! Every transition as a line of a [script](script).
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use self::script::{config, play, play_on};
use super::*;

macro_rules! facts {
    ($($(#[$comment:meta])* $name:ident { $($script:expr),+ })*) => {
        $($(#[$comment])* #[test] fn $name() { play(&[$($script),+]); })*
    };
}

mod failures;
mod list;
mod restore;
pub(super) mod script;
mod watch;

/// To a watch that goes on from version 7, by a streaming list.
const STREAMED: &str = "
    start      => resolving, resolve
    resolved   => listing, stream
    opened     => begin
    added a@5  => upsert a@5
    complete 7 => finish 7, synced, watching
";

/// To a watch from version 7, by pages, because streaming was refused.
const PAGED: &str = "
    start          => resolving, resolve
    resolved       => listing, stream
    status 400     => list 500
    page 7 a@5 b@6 => begin, upsert a@5, upsert b@6, finish 7, synced, watch 7
    opened         => watching
";
