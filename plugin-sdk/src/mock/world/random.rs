//! The interface `random` of the mock.

use super::World;
use crate::random::import::Functions;

/// As in the real host.
const MAX_BYTES: usize = 64 << 10;

/// Numbers that follow from a seed (SplitMix64), so that a test can be repeated.
#[derive(Default)]
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl World {
    pub(in super::super) fn seed(&self, seed: u64) {
        self.state_mut().random = Random(seed);
    }
}

impl Functions for World {
    fn bytes(&self, count: u32) -> Vec<u8> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        assert!(count <= MAX_BYTES, "random.bytes gives at most {MAX_BYTES} bytes at once, and was asked for {count}");
        let random = &mut self.state_mut().random;
        let mut bytes = vec![0; count];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}
