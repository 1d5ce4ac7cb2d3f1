//! libFuzzer's entry to `adit_fuzz::vfio_user_server`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::vfio_user_server::target(data));
