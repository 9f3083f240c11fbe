//! Tests of the server over HTTP, one file for each subject.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

mod admission;
mod cluster;
mod conversion;
mod crud;
mod custom;
mod discovery;
mod faults;
mod garbage;
mod hostile;
mod lists;
mod patches;
mod reviews;
mod snapshots;
mod watches;
mod webhook;
