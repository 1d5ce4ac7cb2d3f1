//! libFuzzer's entry to `adit_fuzz::vfio_user_client`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::vfio_user_client::target(data));
