//! Ports that are free now, and that no outgoing connection takes later.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    net::{Ipv4Addr, TcpListener},
};

use anyhow::{Context, Result};

/// Below Linux's range for outgoing connections (32768 to 60999), so that a server that is killed finds its port free
/// again when it is restarted.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A port of the loopback address on which nobody listens at the moment. Another process may take it before its user
/// does: who starts a server on it tries again with another port if that happens.
///
/// # Errors
/// Every port that was tried is taken.
pub fn free() -> Result<u16> {
    let span = u64::from(RANGE.end - RANGE.start);
    (0..100_u32)
        .map(|attempt| {
            let random = RandomState::new().hash_one((attempt, std::process::id()));
            RANGE.start + u16::try_from(random % span).expect("the span of the range fits 16 bits")
        })
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port found among 100 tried between 20000 and 31999")
}
