//! libFuzzer's entry to `adit_fuzz::kv_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::kv_stream::target(data));
