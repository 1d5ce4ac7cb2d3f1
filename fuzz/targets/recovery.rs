//! libFuzzer's entry to `adit_fuzz::recovery`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::recovery::target(data));
