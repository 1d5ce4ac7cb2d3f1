//! libFuzzer's entry to `adit_fuzz::soft_host`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::soft_host::target(data));
