//! libFuzzer's entry to `adit_fuzz::hostile_controller`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::hostile_controller::target(data));
