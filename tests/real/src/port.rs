//! Free ports that no outgoing connection takes later.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    net::{Ipv4Addr, TcpListener},
};

use anyhow::{Context, Result};

/// Ports below Linux's range for outgoing connections (32768 to 60999): a restarted server finds its port free again.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Returns a port of the loopback address without a listener. Another process may take it first: the caller then
/// retries with another.
///
/// # Errors
/// Every port that was tried is in use.
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
