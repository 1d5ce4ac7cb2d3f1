//! Jobs over controllers that misbehave.

use std::sync::Arc;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::soft::Verdict;
use adit_driver::spec::{Qid, Sqe, Status};
use adit_driver::{Controller, ControllerOptions};

use super::options::{BenchArgs, ReadWrite, Verify};
use super::{Bench, verdict};
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

/// Lets `good` writes pass and does `then` to all others.
fn after_writes(bus: &SoftBus, good: u64, then: Verdict) {
    let mut seen = 0;
    let hook = move |sqe: &Sqe, qid: Qid| {
        let is_write = !qid.is_admin() && sqe.opcode() == WRITE;
        seen += u64::from(is_write);
        if is_write && seen > good { then } else { Verdict::Run }
    };
    bus.with_controller(|controller| controller.set_hook(hook));
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
