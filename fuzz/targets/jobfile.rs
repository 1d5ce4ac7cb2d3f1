//! libFuzzer's entry to `adit_fuzz::jobfile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::jobfile::target(data));
