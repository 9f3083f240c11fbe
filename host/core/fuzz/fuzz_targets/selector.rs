#![no_main]

use libfuzzer_sys::fuzz_target;
use pilothouse_core_fuzz::selector;

fuzz_target!(|bytes: &[u8]| selector::check(bytes));
