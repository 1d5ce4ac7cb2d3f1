//! Every path refuses to create a file without room for it.
//!
//! Runs in its own process, whose file size limit stands in for a full disk.

use adit_driver::{Device, DeviceOptions, Target};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

const LIMIT: u64 = 1 << 20;

#[test]
fn a_file_that_does_not_fit_is_refused_when_it_is_made() {
    setrlimit(Resource::RLIMIT_FSIZE, LIMIT, LIMIT).expect("a limit may be lowered");
    #[allow(unsafe_code)]
    // SAFETY: no handler is set; the signal that goes with the limit is ignored, and the call fails instead.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.expect("a signal may be ignored");
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("full-disk-{}", std::process::id()));
    for path in ["psync", "mmap", "uring"] {
        let target: Target = format!("{path}:{}", file.display()).parse().expect("a target");
        let open = |bytes| {
            let options = DeviceOptions { file_bytes: Some(bytes), ..DeviceOptions::default() };
            Device::open(&target, &options)
        };
        let refused = open(4 * LIMIT).expect_err("it is too large").to_string();
        assert!(refused.contains("ulimit -f"), "{refused}");
        assert!(!file.exists(), "{path}: nothing is left of what did not fit");
        assert_eq!(open(LIMIT).expect("it fits").info().bytes, LIMIT, "{path}");
        std::fs::remove_file(&file).expect("removing it");
    }
}
