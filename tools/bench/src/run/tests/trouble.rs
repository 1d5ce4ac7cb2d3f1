//! Tests jobs over controllers that fail, lose data or lie.

use adit_driver::bus::BusEvent;

use super::super::progress::Progress;
use super::*;
use crate::command::verdict;
use crate::failure::FAILED;

#[test]
fn a_failed_io_ends_the_job_and_is_told_by_name() {
    let outcome = run_with("rw=write bs=4k", false, Verdict::Fail(Status::WRITE_FAULT), |number| {
        number > 100
    });
    let job = &outcome.jobs[0];
    assert_eq!(
        (job.ways[Way::Write].ios, job.ways[Way::Read].ios),
        (100, 0),
        "nothing is read back"
    );
    let failure = job.failure.as_ref().expect("a failure");
    assert!(
        (1..=16).contains(&failure.count),
        "what was in flight fails as well: {}",
        failure.count
    );
    let ended = verdict(&outcome).expect_err("failed");
    assert_eq!(ended.code(), FAILED);
    assert!(ended.to_string().contains("Write at offset 409600 failed: Write Fault"), "{ended}");
}

#[test]
fn a_lost_write_is_found_by_reading_back() {
    let outcome = run_with("rw=randwrite bs=4k", false, Verdict::Fail(Status::SUCCESS), |number| {
        number > 1000
    });
    let failure = outcome.jobs[0].failure.as_ref().expect("a failure");
    assert!(failure.errno == 84 && failure.first.contains("is all zeroes"), "{}", failure.first);
}

#[test]
fn a_stale_block_is_found_in_a_later_pass() {
    // The first pass is written in full; a part of the second is dropped.
    let options = "rw=randwrite bs=4k time_based runtime=20";
    let outcome =
        run_with(options, false, Verdict::Fail(Status::SUCCESS), |number| number > 1024 + 1000);
    let failure = outcome.jobs[0].failure.as_ref().expect("a failure");
    assert!(failure.first.contains("is stale: expected"), "{}", failure.first);
}

#[test]
fn tolerated_errors_are_counted_by_name_and_their_blocks_not_expected_back() {
    let options = "rw=randwrite bs=4k continue_on_error=write";
    let outcome =
        run_with(options, false, Verdict::Fail(Status::WRITE_FAULT), |number| number % 100 == 0);
    let job = &outcome.jobs[0];
    assert!(job.failure.is_none(), "{:?}", job.failure);
    assert_eq!(job.errors.by_name().collect::<Vec<_>>(), [("Write Fault", 10)]);
    assert_eq!((job.ways[Way::Write].ios, job.ways[Way::Read].ios), (1014, 1014), "of 1024 blocks");
}

#[test]
fn failures_among_ios_that_nothing_else_is_asked_of_are_counted_and_sent_again() {
    let run = |options: &str, status: Status| {
        let bus = bus();
        some_writes(&bus, Verdict::Fail(status), |number| number % 100 == 0);
        let job =
            format!("filename=soft:mem=4M iodepth=8 rw=randwrite bs=4k zero_buffers=1 {options}");
        run_on(&bus, &request(&[&job])).jobs.remove(0)
    };
    let job = run("continue_on_error=write", Status::WRITE_FAULT);
    assert!(job.failure.is_none(), "{:?}", job.failure);
    assert_eq!(job.errors.by_name().collect::<Vec<_>>(), [("Write Fault", 10)]);
    let write = &job.ways[Way::Write];
    assert_eq!((write.ios, write.lat.count(), write.bytes), (1014, 1014, 1014 * 4096));
    let job = run("retries=3", Status::NAMESPACE_NOT_READY);
    assert!(job.failure.is_none(), "{:?}", job.failure);
    let write = &job.ways[Way::Write];
    assert_eq!((write.ios, write.clat.count(), job.stats.retries), (1024, 1024, 10));
}

#[test]
fn errors_of_the_other_kind_still_end_the_job() {
    let options = "rw=randwrite bs=4k continue_on_error=read";
    let outcome =
        run_with(options, false, Verdict::Fail(Status::WRITE_FAULT), |number| number == 100);
    assert!(outcome.jobs[0].failure.as_ref().expect("a failure").first.contains("Write Fault"));
}

#[test]
fn a_list_of_errors_decides_which_of_them_end_the_job() {
    for (options, fails) in [
        ("ignore_error=,EIO", false),
        ("ignore_error=,ENOSPC:5", false),
        ("ignore_error=EIO", true),
        ("ignore_error=,ENOSPC continue_on_error=write", true),
    ] {
        let options = format!("rw=randwrite bs=4k {options}");
        let refuse = Verdict::Fail(Status::WRITE_FAULT);
        let outcome = run_with(&options, false, refuse, |number| number == 100);
        assert_eq!(outcome.jobs[0].failure.is_some(), fails, "{options}");
    }
}

#[test]
fn an_io_is_sent_again_as_often_as_it_is_allowed() {
    let again = "rw=randwrite bs=4k retries=2";
    let twice =
        run_with(again, false, Verdict::Fail(Status::WRITE_FAULT), |number| number % 100 < 2)
            .jobs
            .remove(0);
    assert!(twice.failure.is_none(), "{:?}", twice.failure);
    assert_eq!((twice.ways[Way::Write].ios, twice.errors.total()), (1024, 0));
    assert!(twice.stats.retries >= 20, "{}", twice.stats.retries);
    let always = run_with(again, false, Verdict::Fail(Status::WRITE_FAULT), |number| number > 100)
        .jobs
        .remove(0);
    assert!(always.failure.is_some() && always.stats.retries >= 2, "{}", always.stats.retries);
    let useless =
        run_with(again, false, Verdict::Fail(Status::LBA_OUT_OF_RANGE), |number| number == 100)
            .jobs
            .remove(0);
    assert!(useless.failure.is_some() && useless.stats.retries == 0, "it would fail again");
}

#[test]
fn a_run_goes_on_after_the_controller_was_brought_back() {
    // A surplus completion breaks the protocol and takes the controller out of service.
    let job = run_with("rw=randwrite bs=4k", true, Verdict::Twice, |number| {
        number == 300 || number == 700
    })
    .jobs
    .remove(0);
    assert!(job.failure.is_none(), "{:?}", job.failure);
    assert_eq!(
        (job.ways[Way::Write].ios, job.ways[Way::Read].ios),
        (1024, 1024),
        "each block is checked"
    );
    assert!(job.stats.violations() > 0);
    assert!((1..=2).contains(&job.recoveries), "{}", job.recoveries);
    assert_eq!(job.errors.total(), 0, "what was caught was sent again");
}

#[test]
fn without_recover_the_reason_ends_the_job_whatever_is_tolerated() {
    for options in ["rw=randwrite bs=4k", "rw=randwrite bs=4k continue_on_error=all"] {
        let job = run_with(options, false, Verdict::Twice, |number| number == 300).jobs.remove(0);
        let failure = job.failure.expect("a failure").first;
        assert!(failure.contains("which is not in flight"), "{failure}");
        assert_eq!(job.recoveries, 0);
        assert!(job.errors.total() <= 8, "only what was in flight: {}", job.errors.total());
    }
}

/// A controller that is removed at its 300th write and refuses to reset, so it keeps the I/Os in flight.
fn pulled_out() -> Arc<SoftBus> {
    let options = "mem=4M,faults=remove@write:n=300".parse().expect("options");
    let bus = SoftBus::new(options, Drive::Thread).expect("a bus");
    bus.with_controller(|controller| controller.refuse_reset(true));
    bus
}

#[test]
fn nothing_is_waited_for_that_cannot_come_back_and_no_wait_is_in_the_figures() {
    let outcome =
        run_on(&pulled_out(), &request(&["filename=soft:mem=4M iodepth=8 rw=write bs=4k"]));
    let job = &outcome.jobs[0];
    let why = &job.failure.as_ref().expect("a failure").first;
    assert!(why.contains("the device is gone"), "{why}");
    let ways = &job.ways[Way::Write];
    assert!((200..300).contains(&ways.ios), "{}", ways.ios);
    // A regression waited longer, for buffers that a stuck controller keeps.
    let wait = Duration::from_secs(5);
    assert!(ways.runtime < wait && job.elapsed < wait, "{:?}, {:?}", ways.runtime, job.elapsed);
}

#[test]
fn with_recover_a_device_that_is_away_is_waited_for() {
    let bus = pulled_out();
    let mut request = request(&[&format!("{VERIFIED} rw=write bs=4k")]);
    request.run.recover = true;
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Longer than the first recovery attempt takes to start.
            while !bus.with_controller(|controller| controller.is_removed()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(500));
            bus.with_controller(|controller| controller.refuse_reset(false));
            bus.replug();
        });
        run_on(&bus, &request)
    });
    let job = &ended.jobs[0];
    assert!(job.failure.is_none(), "{:?}", job.failure);
    assert_eq!((job.ways[Way::Write].ios, job.ways[Way::Read].ios), (1024, 1024));
    assert!(job.recoveries >= 1);
}

#[test]
fn a_request_to_give_the_device_back_ends_the_run_also_with_recover() {
    for recover in [false, true] {
        let bus = bus();
        let mut request = request(&[&format!("{VERIFIED} rw=randrw bs=4k time_based runtime=60")]);
        request.run.recover = recover;
        bus.report(BusEvent::RemovalRequested);
        let outcome = run_on(&bus, &request);
        let ended = verdict(&outcome).expect_err("failed");
        assert_eq!(ended.code(), FAILED);
        assert!(ended.to_string().contains("for the device to be released"), "{ended}");
        assert_eq!(outcome.jobs[0].recoveries, 0);
    }
}

#[test]
fn a_job_whose_thread_panics_has_ended_for_jobs_that_wait_for_it() {
    let progress = Progress::default();
    progress.set_running(true);
    let died = super::super::ended(&progress, || -> JobOutcome { panic!("as arranged") });
    assert_eq!(died.map(drop), Err("as arranged".to_owned()));
    assert!(!progress.is_running() && progress.times().1.is_some());
}
