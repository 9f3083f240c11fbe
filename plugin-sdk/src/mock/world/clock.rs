//! The interface `clock` of the mock.

use super::World;
use crate::clock::import::Functions;

impl Functions for World {
    fn now(&self) -> u64 {
        u64::try_from(Self::now(self).as_millisecond()).expect("the clock of a test is after 1970")
    }
}
