//! libFuzzer's entry to `adit_fuzz::strings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::strings::target(data));
