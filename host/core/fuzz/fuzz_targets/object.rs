#![no_main]

use libfuzzer_sys::fuzz_target;
use pilothouse_core_fuzz::object;

fuzz_target!(|bytes: &[u8]| object::check(bytes));
