//! libFuzzer's entry to `adit_fuzz::kv_media::recovery`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::kv_media::recovery(data));
