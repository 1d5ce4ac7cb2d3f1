//! The whole selftest on the emulated GPU, complete and with parts missing.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_gpu_tools::selftest::{Check, CheckOutcome, Verdict, run, verdict};

/// Serializes tests: the emulated GPU's settings belong to the process.
static ALONE: Mutex<()> = Mutex::new(());

fn emulated(settings: &str) -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    adit_gpu_emulated::load();
    adit_gpu_emulated::set(settings);
    alone
}

fn checks(gpu: u32) -> Vec<Check> {
    run(gpu, &AtomicBool::new(false), &mut |_| ())
}

fn named<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    let named = checks.iter().find(|check| check.name == name);
    named.unwrap_or_else(|| panic!("there is no check {name:?}"))
}

fn assert_nothing_is_left() {
    let report = adit_gpu_emulated::report();
    let left =
        (report.kernels_running, report.allocations, report.host_allocations, report.streams);
    assert_eq!(left, (0, 0, 0, 0), "{report:?}");
    let wrong = (report.misuses, report.leaks, report.frees_behind_kernels);
    assert_eq!(wrong, (0, 0, 0), "{report:?}");
}

#[test]
fn every_check_passes_on_the_emulated_gpu_and_leaves_nothing_behind() {
    let _alone = emulated("");
    let checks = checks(0);
    for check in &checks {
        assert_eq!(check.outcome, CheckOutcome::Passed, "{check:?}");
    }
    assert_eq!(verdict(&checks), Verdict::Sound);
    assert_nothing_is_left();
}

#[test]
fn without_a_gpu_every_check_is_skipped_with_a_reason() {
    let _alone = emulated("gpus=0");
    let checks = checks(0);
    assert_eq!(checks.len(), 20);
    for check in &checks {
        assert_eq!(check.outcome, CheckOutcome::Skipped, "{check:?}");
        assert!(check.detail.contains("GPU"), "{check:?}");
    }
    assert_eq!(verdict(&checks), Verdict::Unavailable);
}

#[test]
fn device_code_that_does_not_compile_fails_one_check_and_skips_what_needs_it() {
    let _alone = emulated("nvrtc=error");
    let checks = checks(0);
    let failed: Vec<_> =
        checks.iter().filter(|check| check.outcome == CheckOutcome::Failed).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].name, "device code");
    assert!(failed[0].detail.contains("undefined"), "{failed:?}");
    let passed = checks.iter().filter(|check| check.outcome == CheckOutcome::Passed);
    let passed: Vec<_> = passed.map(|check| check.name).collect();
    assert_eq!(passed, ["driver and GPU", "staged engine"], "staging needs no device code");
    assert_eq!(verdict(&checks), Verdict::Failed);
}

#[test]
fn without_green_contexts_the_rings_work_by_priorities() {
    let _alone = emulated("no-green");
    let checks = checks(0);
    let partitions = named(&checks, "partitions");
    assert_eq!(partitions.outcome, CheckOutcome::Skipped, "{partitions:?}");
    assert_eq!(verdict(&checks), Verdict::Sound);
    assert_nothing_is_left();
}

#[test]
fn memory_that_runs_out_is_named_and_the_other_checks_go_on() {
    // A controller, rings and blocks need more than this.
    let _alone = emulated("memory=1048576");
    let checks = checks(0);
    let shapes = named(&checks, "rings of several shapes in GPU memory");
    assert!(shapes.detail.contains("OUT_OF_MEMORY"), "{shapes:?}");
    assert_eq!(checks.len(), 20);
    assert_eq!(verdict(&checks), Verdict::Failed);
    assert_nothing_is_left();
}

#[test]
fn an_interrupted_selftest_ends_after_the_check_that_is_being_made() {
    let _alone = emulated("");
    let checks = run(0, &AtomicBool::new(true), &mut |_| ());
    let names: Vec<_> = checks.iter().map(|check| check.name).collect();
    assert_eq!(names, ["driver and GPU", "device code"]);
}
