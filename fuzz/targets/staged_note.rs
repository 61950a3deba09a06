//! `gangline_storage::fuzz::staged_note` on whatever libFuzzer comes up with.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| gangline_storage::fuzz::staged_note(input));
