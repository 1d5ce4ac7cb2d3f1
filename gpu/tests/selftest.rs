//! The selftest, whole, on the emulated GPU.

use std::sync::atomic::AtomicBool;

use adit_gpu::selftest::{Check, Outcome, Verdict, run, verdict};

fn checks() -> Vec<Check> {
    run(0, &AtomicBool::new(false), &mut |_| ())
}

#[test]
fn every_check_passes_on_the_emulated_gpu_and_leaves_nothing_behind() {
    adit_gpu_emulated::load();
    for check in checks() {
        assert!(matches!(check.outcome, Outcome::Passed(_)), "{check:?}");
    }
    let report = adit_gpu_emulated::report();
    assert_eq!(
        (report.kernels_running, report.allocations, report.streams),
        (0, 0, 0),
        "{report:?}"
    );
    assert_eq!(
        (report.misuses, report.leaks, report.frees_behind_kernels),
        (0, 0, 0),
        "{report:?}"
    );
}
