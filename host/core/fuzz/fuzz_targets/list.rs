#![no_main]

use libfuzzer_sys::fuzz_target;
use pilothouse_core_fuzz::list;

fuzz_target!(|bytes: &[u8]| list::check(bytes));
