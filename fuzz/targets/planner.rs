//! libFuzzer's entry to `adit_fuzz::planner`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::planner::target(data));
