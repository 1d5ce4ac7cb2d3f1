//! libFuzzer's entry to `adit_fuzz::spec_bytes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::spec_bytes::target(data));
