//! Jobs over controllers that misbehave.

use std::sync::Arc;

use adit_driver::bus::BusEvent;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::soft::Verdict;
use adit_driver::spec::{Qid, Sqe, Status};
use adit_driver::{Controller, ControllerOptions};

use super::errors::Tolerance;
use super::options::{BenchArgs, ReadWrite, Verify};
use super::{Bench, Outcome, verdict};
use crate::failure::FAILED;
use crate::interrupt::Interrupt;

const WRITE: u8 = 1;

fn args(rw: ReadWrite) -> BenchArgs {
    let target = "soft:mem=4M".parse().expect("a target");
    BenchArgs { rw, iodepth: 8, verify: Some(Verify::Crc32c), ..BenchArgs::new(target) }
}

fn bus() -> Arc<SoftBus> {
    SoftBus::new("mem=4M".parse().expect("options"), Drive::Thread).expect("a bus")
}

fn bench<'a>(args: &'a BenchArgs, bus: &Arc<SoftBus>) -> Bench<'a> {
    let controller = Controller::attach(bus.clone(), &ControllerOptions::default()).expect("opens");
    Bench::over(args, controller).expect("planned")
}

/// Does `then` to every write whose number, counted from 1, `which` picks.
fn some_writes(bus: &SoftBus, then: Verdict, which: impl Fn(u64) -> bool + Send + 'static) {
    let mut seen = 0;
    let hook = move |sqe: &Sqe, qid: Qid| {
        let is_write = !qid.is_admin() && sqe.opcode() == WRITE;
        seen += u64::from(is_write);
        if is_write && which(seen) { then } else { Verdict::Run }
    };
    bus.with_controller(|controller| controller.set_hook(hook));
}

/// Runs the one job of `args` with some writes met by `then`.
fn run(args: &BenchArgs, then: Verdict, which: impl Fn(u64) -> bool + Send + 'static) -> Outcome {
    let bus = bus();
    let bench = bench(args, &bus);
    some_writes(&bus, then, which);
    bench.run(&Interrupt::default()).expect("runs").remove(0)
}

/// Lets `good` writes pass and does `then` to all others.
fn after_writes(bus: &SoftBus, good: u64, then: Verdict) {
    some_writes(bus, then, move |number| number > good);
}

#[test]
fn a_failed_io_ends_the_job_and_is_told_by_name() {
    let (args, bus) = (args(ReadWrite::Write), bus());
    let bench = bench(&args, &bus);
    after_writes(&bus, 100, Verdict::Fail(Status::WRITE_FAULT));
    let outcomes = bench.run(&Interrupt::default()).expect("runs");
    let outcome = &outcomes[0];
    assert_eq!((outcome.write.ios(), outcome.read.ios()), (100, 0), "nothing is read back");
    let failure = outcome.failure.as_ref().expect("a failure");
    assert!(
        (1..=16).contains(&failure.count),
        "what was in flight fails as well: {}",
        failure.count
    );
    let ended = verdict(&args, &outcomes).expect_err("failed");
    assert_eq!(ended.code(), FAILED);
    assert!(ended.to_string().contains("Write at offset 409600 failed: Write Fault"), "{ended}");
}

#[test]
fn a_lost_write_is_found_by_reading_back() {
    let (args, bus) = (args(ReadWrite::Randwrite), bus());
    let bench = bench(&args, &bus);
    after_writes(&bus, 1000, Verdict::Fail(Status::SUCCESS));
    let outcomes = bench.run(&Interrupt::default()).expect("runs");
    let failure = outcomes[0].failure.as_ref().expect("a failure");
    assert!(failure.errno == 84 && failure.first.contains("is all zeroes"), "{}", failure.first);
}

#[test]
fn a_stale_block_is_found_in_a_later_pass() {
    let mut args = args(ReadWrite::Randwrite);
    (args.time_based, args.runtime) = (true, Some(std::time::Duration::from_secs(20)));
    let bus = bus();
    let bench = bench(&args, &bus);
    // The first pass is written whole; of the second, a part is dropped.
    after_writes(&bus, 1024 + 1000, Verdict::Fail(Status::SUCCESS));
    let outcomes = bench.run(&Interrupt::default()).expect("runs");
    let failure = outcomes[0].failure.as_ref().expect("a failure");
    assert!(failure.first.contains("is stale: expected generation 1"), "{}", failure.first);
}

#[test]
fn tolerated_errors_are_counted_by_name_and_their_blocks_not_expected_back() {
    let args = BenchArgs { continue_on_error: Tolerance::Write, ..args(ReadWrite::Randwrite) };
    let outcome = run(&args, Verdict::Fail(Status::WRITE_FAULT), |number| number % 100 == 0);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    let errors: Vec<_> = outcome.errors.by_name().collect();
    assert_eq!(errors, [("Write Fault", 10)]);
    assert_eq!((outcome.write.ios(), outcome.read.ios()), (1014, 1014), "of 1024 blocks");
}

#[test]
fn errors_of_the_other_kind_still_end_the_job() {
    let args = BenchArgs { continue_on_error: Tolerance::Read, ..args(ReadWrite::Randwrite) };
    let outcome = run(&args, Verdict::Fail(Status::WRITE_FAULT), |number| number == 100);
    assert!(outcome.failure.expect("a failure").first.contains("Write Fault"));
}

#[test]
fn an_io_is_sent_again_as_often_as_it_is_allowed() {
    let args = BenchArgs { retries: Some(2), ..args(ReadWrite::Randwrite) };
    let twice_each = run(&args, Verdict::Fail(Status::WRITE_FAULT), |number| number % 100 < 2);
    assert!(twice_each.failure.is_none(), "{:?}", twice_each.failure);
    assert_eq!((twice_each.write.ios(), twice_each.errors.total()), (1024, 0));
    assert!(twice_each.stats.retries >= 20, "{}", twice_each.stats.retries);
    let always = run(&args, Verdict::Fail(Status::WRITE_FAULT), |number| number > 100);
    assert!(always.failure.is_some() && always.stats.retries >= 2, "{}", always.stats.retries);
    let useless = run(&args, Verdict::Fail(Status::LBA_OUT_OF_RANGE), |number| number == 100);
    assert!(useless.failure.is_some() && useless.stats.retries == 0, "it would fail again");
}

#[test]
fn a_run_goes_on_after_the_controller_was_brought_back() {
    let args = BenchArgs { recover: true, ..args(ReadWrite::Randwrite) };
    // A completion too many breaks the protocol and takes the controller out of service.
    let outcome = run(&args, Verdict::Twice, |number| number == 300 || number == 700);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    assert_eq!((outcome.write.ios(), outcome.read.ios()), (1024, 1024), "each block is checked");
    assert!(outcome.stats.violations() > 0);
    assert!((1..=2).contains(&outcome.recoveries), "{}", outcome.recoveries);
    assert_eq!(outcome.errors.total(), 0, "what was caught was sent again");
}

#[test]
fn without_recover_the_reason_ends_the_job() {
    let outcome = run(&args(ReadWrite::Randwrite), Verdict::Twice, |number| number == 300);
    let failure = outcome.failure.expect("a failure").first;
    assert!(failure.contains("which is not in flight"), "{failure}");
    assert_eq!(outcome.recoveries, 0);
}

#[test]
fn a_controller_that_does_not_come_back_ends_the_run_whatever_is_tolerated() {
    let args = BenchArgs { continue_on_error: Tolerance::All, ..args(ReadWrite::Randwrite) };
    let outcome = run(&args, Verdict::Twice, |number| number == 300);
    let failure = outcome.failure.expect("a failure").first;
    assert!(failure.contains("which is not in flight"), "{failure}");
    assert!(outcome.errors.total() <= 8, "only what was in flight: {}", outcome.errors.total());
}

#[test]
fn a_request_to_give_the_device_back_ends_the_run_also_with_recover() {
    for recover in [false, true] {
        let mut args = BenchArgs { recover, ..args(ReadWrite::Randrw) };
        (args.time_based, args.runtime) = (true, Some(std::time::Duration::from_secs(60)));
        let bus = bus();
        let bench = bench(&args, &bus);
        bus.report(BusEvent::RemovalRequested);
        let outcomes = bench.run(&Interrupt::default()).expect("runs");
        let ended = verdict(&args, &outcomes).expect_err("failed");
        assert_eq!(ended.code(), FAILED);
        assert!(ended.to_string().contains("for the device back"), "{ended}");
        assert_eq!(outcomes[0].recoveries, 0);
    }
}
