//! Tests jobs over working and failing controllers.

mod commands;
mod files;
mod trouble;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::paths::Device;
use adit_driver::soft::Verdict;
use adit_driver::spec::{Qid, Sqe, Status};
use adit_driver::{Controller, ControllerOptions, Target};

use super::start::Fleet;
use super::{plan, run_fleet};
use crate::interrupt::Interrupt;
use crate::options::{Request, RunOptions, Section};
use crate::outcome::{JobOutcome, RunOutcome};
use crate::way::Way;

const WRITE: u8 = 1;

fn request(jobs: &[&str]) -> Request {
    let sections = jobs.iter().map(|options| Section::of(options).expect("a job")).collect();
    Request { run: RunOptions::default(), global: Vec::new(), sections }
}

/// Runs jobs on their targets.
fn run(jobs: &[&str]) -> RunOutcome {
    super::run(&request(jobs), &Interrupt::default(), &mut |_| Ok(())).expect("runs")
}

/// Runs one job on its target, without failure.
fn run_one(options: &str) -> JobOutcome {
    let job = run(&[options]).jobs.remove(0);
    assert!(job.failure.is_none(), "{:?}", job.failure);
    job
}

fn refusal(jobs: &[&str]) -> String {
    let outcome = super::run(&request(jobs), &Interrupt::default(), &mut |_| Ok(()));
    outcome.expect_err("must be refused").to_string()
}

const VERIFIED: &str = "filename=soft:mem=4M iodepth=8 verify=crc32c";

fn bus() -> Arc<SoftBus> {
    SoftBus::new("mem=4M".parse().expect("options"), Drive::Thread).expect("a bus")
}

/// Runs a request on our controller instead of its target.
fn run_on(bus: &Arc<SoftBus>, request: &Request) -> RunOutcome {
    let controller = Controller::attach(bus.clone(), &ControllerOptions::default()).expect("opens");
    let target: Target = "soft:mem=4M".parse().expect("a target");
    let namespace = controller.namespace_of(&target).expect("a namespace");
    let device = Device::of_namespace(controller, namespace, &target);
    let threads = plan::threads(&request.sections);
    let its = vec![vec![target.clone()]; threads.len()];
    let devices = BTreeMap::from([(target.to_string(), (target, device))]);
    let fleet = Fleet::of(request, &threads, its, devices).expect("fits");
    run_fleet(request, &threads, &fleet, &Interrupt::default(), &mut |_| Ok(())).expect("runs")
}

/// Applies `then` to every write whose number, from 1, matches `which`.
fn some_writes(bus: &SoftBus, then: Verdict, which: impl Fn(u64) -> bool + Send + 'static) {
    let mut seen = 0;
    let hook = move |sqe: &Sqe, qid: Qid| {
        let is_write = !qid.is_admin() && sqe.opcode() == WRITE;
        seen += u64::from(is_write);
        if is_write && which(seen) { then } else { Verdict::Run }
    };
    bus.with_controller(|controller| controller.set_hook(hook));
}

/// Runs one verified job, applying `then` to some writes.
fn run_with(
    options: &str,
    recover: bool,
    then: Verdict,
    which: impl Fn(u64) -> bool + Send + 'static,
) -> RunOutcome {
    let bus = bus();
    let mut request = request(&[&format!("{VERIFIED} {options}")]);
    request.run.recover = recover;
    some_writes(&bus, then, which);
    run_on(&bus, &request)
}

#[test]
fn every_block_is_read_once() {
    for rw in ["read", "randread"] {
        let job = run_one(&format!("filename=soft:mem=1M bs=4k iodepth=7 rw={rw}"));
        let read = &job.ways[Way::Read];
        assert_eq!((read.ios, read.bytes, read.lat.count()), (256, 1 << 20, 256), "{rw}");
        assert!(read.slat.mean_ns() + read.clat.mean_ns() <= read.lat.mean_ns() * 1.01, "{rw}");
    }
}

#[test]
fn ios_that_become_more_commands_than_a_queue_holds_wait_for_their_turn() {
    // Like SPDK's target: 128 KiB a command, 255 commands a queue, so 31 of 32 I/Os of 1 MiB.
    let target = "filename=soft:mem=64M,mdts=5,mqes=256";
    let outcome = run(&[&format!("{target} rw=randwrite bs=1m iodepth=32 verify=crc32c")]);
    let job = &outcome.jobs[0];
    assert!(job.failure.is_none(), "{:?}", job.failure);
    assert_eq!((job.ways[Way::Write].ios, job.ways[Way::Read].ios), (64, 64));
    let crowded = outcome.warnings.iter().find(|warning| warning.code == "queue-full");
    let text = &crowded.expect("a warning").text;
    assert!(text.contains("up to 8 commands") && text.contains("about 31 I/Os"), "{text}");
    let why = refusal(&["filename=soft:mem=64M,mdts=1,mqes=64 rw=read bs=1m"]);
    assert!(why.contains("up to 128 commands") && why.ends_with("use a smaller bs"), "{why}");
}

#[test]
fn what_is_written_is_read_back_in_every_kind_of_workload() {
    for rest in [
        "rw=write bs=16k",
        "rw=randwrite bs=4k",
        "rw=randrw bs=4k rwmixread=30",
        "rw=randwrite bs=4k norandommap=1",
        "rw=randwrite bsrange=512-16k",
        "rw=randwrite bs=4k random_distribution=zipf:1.1 number_ios=3000 io_size=16m",
        "rw=randwrite bs=4k verify_backlog=64",
        "rw=randwrite bs=4k loops=3",
        "rw=write bs=8k verify_interval=4k",
    ] {
        let job = run_one(&format!("{VERIFIED} {rest}"));
        let (reads, writes) = (job.ways[Way::Read].ios, job.ways[Way::Write].ios);
        assert!(reads > 0 && writes > 0, "{rest}: {reads} reads, {writes} writes");
    }
}

#[test]
fn each_kind_of_check_holds_over_every_path() {
    let file = std::env::temp_dir().join(format!("adit-bench-paths-{}", std::process::id()));
    for path in ["psync", "mmap", "uring"] {
        for kind in ["crc32c", "xxhash", "md5", "meta"] {
            let target = format!("{path}:{}", file.display());
            let job = run_one(&format!(
                "filename={target} rw=randwrite bs=4k size=1m iodepth=4 verify={kind}"
            ));
            assert_eq!(job.ways[Way::Read].ios, 256, "{path} {kind}");
        }
    }
    std::fs::remove_file(file).expect("it was there");
}

#[test]
fn a_run_ends_after_its_time_its_bytes_or_its_ios() {
    let by_time = run_one("filename=null: rw=randread time_based runtime=300ms iodepth=4");
    let elapsed = by_time.elapsed;
    assert!(
        elapsed >= Duration::from_millis(300) && elapsed < Duration::from_secs(3),
        "{elapsed:?}"
    );
    assert_eq!(run_one("filename=null: rw=read bs=4k number_ios=77").ways[Way::Read].ios, 77);
    assert_eq!(
        run_one("filename=null: rw=randwrite bs=4k size=1m io_size=64k").ways[Way::Write].ios,
        16
    );
    assert_eq!(run_one("filename=null: rw=read bs=4k size=64k loops=3").ways[Way::Read].ios, 48);
}

#[test]
fn a_rate_is_kept() {
    let job =
        run_one("filename=null: rw=randread bs=4k iodepth=32 rate_iops=2000 time_based runtime=1");
    assert!((1900..=2002).contains(&job.ways[Way::Read].ios), "{}", job.ways[Way::Read].ios);
    let job =
        run_one("filename=null: rw=write bs=4k rate=4m rate_process=poisson time_based runtime=1");
    assert!((800..1300).contains(&job.ways[Way::Write].ios), "{}", job.ways[Way::Write].ios);
}

#[test]
fn an_open_loop_counts_the_wait_of_what_was_due() {
    // Each I/O causes a pause; the schedule continues regardless.
    let open = run_one(
        "filename=null: rw=read bs=4k rate_iops=1000 thinktime=10ms time_based runtime=500ms",
    );
    let read = &open.ways[Way::Read];
    assert!(
        read.lat.max_ns() > 100_000_000,
        "the last were due long before: {}",
        read.lat.max_ns()
    );
    assert!(read.clat.mean_ns() < read.lat.mean_ns() / 10.0);
}

#[test]
fn thinking_takes_its_time() {
    let job =
        run_one("filename=null: rw=read bs=4k number_ios=20 thinktime=5ms thinktime_blocks=2");
    assert!(job.elapsed >= Duration::from_millis(45), "{:?}", job.elapsed);
}

#[test]
fn what_was_done_to_warm_up_does_not_count() {
    let options = "filename=null: rw=read bs=4k rate_iops=1000 time_based runtime=500ms";
    let job = run_one(&format!("{options} ramp_time=1500ms"));
    assert!((250..=520).contains(&job.ways[Way::Read].ios), "{}", job.ways[Way::Read].ios);
    assert!(job.elapsed < Duration::from_millis(1500), "{:?}", job.elapsed);
}

#[test]
fn flushes_come_after_so_many_writes_and_at_the_end() {
    let job = run_one("filename=soft:mem=1M rw=write bs=4k number_ios=100 fsync=10");
    assert!((9..=10).contains(&job.sync.count()), "{}", job.sync.count());
    let job = run_one("filename=soft:mem=1M rw=write bs=4k number_ios=100 end_fsync=1");
    assert_eq!(job.sync.count(), 1);
}

#[test]
fn trims_are_counted_apart() {
    let job = run_one("filename=soft:mem=1M rw=randtrim bs=16k");
    assert_eq!((job.ways[Way::Trim].ios, job.ways[Way::Trim].bytes), (64, 1 << 20));
    let job = run_one("filename=soft:mem=1M rw=trimwrite bs=16k");
    assert!(job.ways[Way::Trim].ios > 0 && job.ways[Way::Write].ios > 0);
}

#[test]
fn waves_follow_each_other_and_groups_are_reported_as_asked() {
    let outcome = run(&[
        "name=a filename=null: rw=read number_ios=10 numjobs=3 group_reporting=1",
        "name=b filename=null: rw=read number_ios=20 stonewall=1",
    ]);
    let told: Vec<_> = outcome
        .jobs
        .iter()
        .map(|job| (job.section.job.name.as_str(), job.threads, job.ways[Way::Read].ios))
        .collect();
    assert_eq!(told, [("a", 3, 30), ("b", 1, 20)]);
    assert_eq!(
        outcome.groups.iter().map(|group| group.ways[&Way::Read].bytes).collect::<Vec<_>>(),
        [122_880, 81_920]
    );
    let (slowest, fastest) = outcome.groups[0].ways[&Way::Read].rates;
    assert!(slowest == fastest, "as one: {slowest} to {fastest}");
}

#[test]
fn depths_and_batches_are_what_was_asked_for() {
    let job = run_one(
        "filename=null: rw=read bs=4k size=1m iodepth=16 iodepth_batch=4 iodepth_batch_complete_max=2",
    );
    assert!(job.submits.batch_percent()[1] > 99.0, "{:?}", job.submits.batch_percent());
    let few = run_one("filename=null: rw=read bs=4k size=1m iodepth=16 iodepth_low=4");
    assert!(
        few.submits.batch_percent()[1] < 50.0,
        "refilled only once 4 are left: {:?}",
        few.submits.batch_percent()
    );
}

#[test]
fn the_depth_that_keeps_a_latency_is_found() {
    let job = run_one(
        "filename=null: rw=read bs=4k iodepth=8 latency_target=1s latency_window=20ms latency_percentile=99 time_based \
         runtime=10",
    );
    assert_eq!(job.latency_depth, Some(8));
    assert!(job.elapsed < Duration::from_secs(5), "it ends when it is found: {:?}", job.elapsed);
}

#[test]
fn limits_that_are_broken_fail_the_job() {
    let slow = run(&["filename=soft:mem=1M rw=read bs=4k max_latency=1us"])
        .jobs
        .remove(0)
        .failure
        .expect("slow");
    assert!(slow.first.contains("more than max_latency") && slow.errno == 110, "{}", slow.first);
    let options = "filename=null: rw=read bs=4k thinktime=10ms rate_iops_min=90000 rate_cycle=200ms time_based runtime=5";
    let few = run(&[options]).jobs.remove(0).failure.expect("few");
    assert!(few.first.contains("rate_iops_min=90000"), "{}", few.first);
}

#[test]
fn a_minimum_rate_is_none_for_what_the_job_does_not_do() {
    let options = "filename=null: rw=read bs=4k rate_min=4k rate_iops_min=10 rate_cycle=100ms time_based runtime=500ms";
    let job = run(&[options]).jobs.remove(0);
    assert!(job.failure.is_none(), "{:?}", job.failure);
}

#[test]
fn a_synchronous_path_has_no_depth_and_says_so() {
    let file = std::env::temp_dir().join(format!("adit-bench-depth-{}", std::process::id()));
    let run_at = |depth: u32| {
        run(&[&format!("filename=psync:{} rw=write bs=4k size=1m iodepth={depth}", file.display())])
    };
    let has = |outcome: &RunOutcome, code: &str| {
        outcome.warnings.iter().any(|warning| warning.code == code)
    };
    let deep = run_at(16);
    assert!(has(&deep, "synchronous") && !has(&deep, "generator-limited"), "{:?}", deep.warnings);
    assert!(!has(&run_at(1), "synchronous"));
    std::fs::remove_file(&file).expect("was made");
}

#[test]
fn a_steady_job_ends_early() {
    let job = run_one(
        "filename=null: rw=read bs=4k rate_iops=500 time_based runtime=60 ss=iops:30% ss_dur=2",
    );
    assert!(job.elapsed < Duration::from_secs(20), "{:?}", job.elapsed);
    assert!(job.steady.expect("looked at").attained);
}

#[test]
fn reads_of_unwritten_blocks_are_reported() {
    let outcome = run(&["filename=soft:mem=4M rw=randread bs=4k iodepth=4"]);
    assert!(
        outcome.warnings.iter().any(|warning| warning.code == "never-written"),
        "{:?}",
        outcome.warnings
    );
    let outcome = run(&["filename=null: rw=randread bs=4k size=1m"]);
    assert!(
        outcome.warnings.iter().all(|warning| warning.code != "never-written"),
        "{:?}",
        outcome.warnings
    );
}

#[test]
fn a_file_that_is_not_there_is_laid_out_before_it_is_read() {
    let file = std::env::temp_dir().join(format!("adit-bench-layout-{}", std::process::id()));
    let outcome =
        run(&[&format!("filename={} rw=randread bs=4k size=2m direct=1", file.display())]);
    let content = std::fs::read(&file).expect("it was made");
    std::fs::remove_file(&file).expect("it was there");
    assert_eq!(outcome.jobs[0].ways[Way::Read].ios, 512);
    assert!(
        content.len() == 2 << 20
            && content.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0))
    );
    assert!(
        outcome.warnings.iter().all(|warning| warning.code != "never-written"),
        "{:?}",
        outcome.warnings
    );
}

#[test]
fn trims_are_cut_into_the_ranges_that_a_controller_takes_or_refused_before_the_first() {
    let with = "filename=soft:mem=4M,dmrl=3,dmrsl=4 rw=randtrim";
    for (bs, ios) in [("512", 8192), ("2k", 2048), ("4k", 1024), ("6k", 682)] {
        let job = run_one(&format!("{with} bs={bs} iodepth=4"));
        assert_eq!(job.ways[Way::Trim].ios, ios, "{bs}");
    }
    // Only trims are bounded.
    run_one("filename=soft:mem=4M,dmrl=3,dmrsl=4 rw=randread bs=64k");
    for bs in ["8k", "4k,4k,8k", "1k-64k"] {
        let bs = if bs.contains('-') { format!("bsrange={bs}") } else { format!("bs={bs}") };
        let said = refusal(&[&format!("{with} {bs}")]);
        assert!(said.contains("at most 6144 bytes (DMRL, DMRSL, DMSL)"), "{said}");
    }
}

#[test]
fn a_queue_of_two_entries_takes_one_io_at_a_time() {
    let job = run_one("filename=soft:mem=4M,mqes=2 rw=randread bs=4k iodepth=1 number_ios=8");
    assert_eq!(job.ways[Way::Read].ios, 8);
    // It is a queue all the same: what waits for the device is not submission.
    assert!(job.ways[Way::Read].slat.count() > 0);
    let said = refusal(&["filename=soft:mem=4M,mqes=2 rw=randread bs=4k iodepth=2"]);
    assert!(said.contains("a queue of soft:mem=4M,mqes=2 holds 1 command"), "{said}");
    assert!(said.contains("iodepth=1 at most"), "{said}");
}

#[test]
fn verified_writers_do_not_share_blocks() {
    let both = refusal(&[&format!("{VERIFIED} rw=randwrite bs=4k numjobs=2")]);
    assert!(both.contains("offset_increment"), "{both}");
    let outcome =
        run(&[&format!("{VERIFIED} rw=randwrite bs=4k numjobs=2 size=1m offset_increment=1m")]);
    assert!(outcome.jobs.iter().all(|job| job.failure.is_none() && job.ways[Way::Read].ios == 256));
}

#[test]
fn what_an_interrupted_run_wrote_is_checked_by_the_next() {
    // The state lies where the run was started, so another process uses another directory.
    let name = format!("state{}", std::process::id());
    let file = std::env::temp_dir().join(&name);
    let job = format!(
        "name={name} filename=psync:{} rw=randwrite bs=4k size=4m verify=crc32c thinktime=1ms",
        file.display()
    );
    let interrupt = Interrupt::default();
    let first = std::thread::scope(|scope| {
        let run = scope.spawn(|| super::run(&request(&[&job]), &interrupt, &mut |_| Ok(())));
        std::thread::sleep(Duration::from_millis(300));
        interrupt.request();
        run.join().expect("ends").expect("runs")
    });
    let written = first.jobs[0].ways[Way::Write].ios;
    assert!(written > 10 && written < 1024, "interrupted in the middle: {written}");
    let second = run_one(&format!("{job} verify_state_load=1"));
    assert_eq!((second.ways[Way::Read].ios, second.ways[Way::Write].ios), (written, 0));
    std::fs::remove_file(format!("local-{name}-0-verify.state")).expect("it was saved");
    std::fs::remove_file(file).expect("it was there");
}

#[test]
fn all_blocks_are_looked_at_before_the_job_fails_unless_the_first_is_fatal() {
    let lost = Verdict::Fail(Status::SUCCESS);
    let job = run_with("rw=write bs=4k", false, lost, |number| number > 1014).jobs.remove(0);
    let failure = job.failure.expect("a failure");
    assert_eq!((failure.count, job.ways[Way::Read].ios), (10, 1024));
    let job = run_with("rw=write bs=4k verify_fatal=1", false, lost, |number| number > 500)
        .jobs
        .remove(0);
    assert!(job.failure.expect("a failure").count <= 16 && job.ways[Way::Read].ios < 600);
}

#[test]
fn rates_decide_a_mix_and_nothing_is_late_for_the_others_sake() {
    let options = "filename=null: rw=randrw rwmixread=70 bs=4k time_based runtime=1";
    let job = run_one(&format!("{options} rate_iops=500,2000"));
    for (way, expected) in [(Way::Read, 500), (Way::Write, 2000)] {
        let counted = &job.ways[way];
        assert!(counted.ios.abs_diff(expected) <= expected / 10, "{way:?}: {}", counted.ios);
        assert!(
            counted.lat.percentile_ns(50.0) < 20_000_000,
            "{} ns",
            counted.lat.percentile_ns(50.0)
        );
    }
    let one = run_one(&format!("{options} rate_iops=,500"));
    assert!(one.ways[Way::Write].ios <= 505, "{}", one.ways[Way::Write].ios);
    assert!(one.ways[Way::Read].ios > 5000, "it has no rate: {}", one.ways[Way::Read].ios);
}

#[test]
fn a_mix_that_is_verified_keeps_the_mix_and_its_latencies() {
    let job = run_one(
        "filename=soft:mem=8M iodepth=8 verify=crc32c rw=randrw rwmixread=80 bs=4k rate_iops=1000 runtime=1 do_verify=0",
    );
    let write = &job.ways[Way::Write];
    assert!(write.ios < 400, "a fifth, though they might be as many: {}", write.ios);
    // A wait behind reads held back for the mix would take half of the run.
    assert!(write.lat.percentile_ns(50.0) < 400_000_000, "{} ns", write.lat.percentile_ns(50.0));
}

#[test]
fn thinking_begins_when_nothing_is_in_flight_whatever_the_depth() {
    let options = "filename=null: rw=read bs=4k number_ios=10 thinktime=150ms iodepth=8";
    let job = run_one(&format!("{options} thinktime_blocks_type=issue"));
    assert!(job.elapsed >= Duration::from_millis(1350), "{:?}", job.elapsed);
    // Eight complete before the first pause, then one before each.
    let job = run_one(options);
    assert!(job.elapsed >= Duration::from_millis(300), "{:?}", job.elapsed);
    let job = run_one(&format!("{options} thinktime_blocks=5"));
    assert!(job.elapsed >= Duration::from_millis(150), "{:?}", job.elapsed);
    assert!(job.elapsed < Duration::from_millis(1350), "{:?}", job.elapsed);
}

#[test]
fn a_job_that_thinks_checks_and_flushes_what_it_wrote_at_its_end() {
    for end in ["number_ios=5", "runtime=60ms"] {
        let job = run_one(&format!("{VERIFIED} rw=write bs=4k thinktime=20ms end_fsync=1 {end}"));
        let (reads, writes) = (job.ways[Way::Read].ios, job.ways[Way::Write].ios);
        assert!(writes > 0, "{end}");
        assert_eq!((reads, job.sync.count()), (writes, 1), "{end}");
    }
}

#[test]
fn what_a_rate_left_no_time_for_is_neither_written_nor_expected() {
    for _ in 0..5 {
        let job = run_one(&format!("{VERIFIED} rw=randwrite bs=4k rate_iops=100 runtime=55ms"));
        let (reads, writes) = (job.ways[Way::Read].ios, job.ways[Way::Write].ios);
        assert!((1..=7).contains(&writes), "{writes}");
        assert_eq!(reads, writes);
    }
}

#[test]
fn checking_in_between_makes_nothing_late() {
    // Writes due during the first pass's verification would all be issued at once.
    let job = run_one(
        "filename=soft:mem=1M iodepth=8 verify=crc32c rw=write bs=4k loops=3 rate_iops=1000",
    );
    let write = &job.ways[Way::Write];
    assert_eq!(write.ios, 768);
    assert!(write.runtime >= Duration::from_millis(763), "{:?}", write.runtime);
}

#[test]
fn a_backlog_does_not_expect_what_was_overwritten_since() {
    for depth in [1, 16] {
        let job = run_one(&format!(
            "filename=soft:mem=256k verify=crc32c rw=randwrite bs=4k norandommap=1 verify_backlog=32 iodepth={depth}"
        ));
        assert!(job.ways[Way::Read].ios > 16, "{}", job.ways[Way::Read].ios);
    }
}

#[test]
fn a_job_whose_write_fails_ends_also_with_a_backlog() {
    let options = "rw=write bs=4k verify_backlog=1";
    let fault = Verdict::Fail(Status::WRITE_FAULT);
    let job = run_with(options, false, fault, |number| number == 20).jobs.remove(0);
    assert!(job.failure.expect("a failure").first.contains("Write Fault"));
}

#[test]
fn what_was_written_in_several_passes_or_in_part_is_checked_by_itself() {
    for options in ["loops=3", "number_ios=100", "io_size=6m", "loops=2 number_ios=600"] {
        let file = std::env::temp_dir().join(format!("adit-only-{}", std::process::id()));
        let job =
            format!("filename=psync:{} rw=randwrite bs=4k size=4m verify=crc32c", file.display());
        let written = run_one(&format!("{job} {options}"));
        assert!(written.ways[Way::Write].ios > 0);
        let checked = run_one(&format!("{job} {options} verify_only=1"));
        std::fs::remove_file(&file).expect("it was there");
        let of = |job: &JobOutcome, way: Way| (job.ways[way].ios, job.ways[way].bytes);
        assert_eq!(of(&checked, Way::Write), of(&written, Way::Write), "{options}");
        assert_eq!(checked.ways[Way::Write].runtime, Duration::ZERO, "{options}");
        // With loops, blocks were written several times and are there once.
        let read = of(&checked, Way::Read);
        assert!(read.0 > 0 && read.0 <= of(&checked, Way::Write).0, "{options}: {read:?}");
    }
}

#[test]
fn jobs_that_share_by_flow_all_come_to_their_end() {
    let jobs = [
        "filename=null: size=64m flow=1 number_ios=4000",
        "filename=null: size=64m flow=5 number_ios=4000 iodepth=4 flow_sleep=100",
        "filename=null: size=64m rw=randwrite flow=10 number_ios=4000 numjobs=2",
        "filename=null: size=64m flow=10 flow_id=1 number_ios=4000 rate_iops=1m",
    ];
    let ios = |job: &JobOutcome| job.ways.iter().map(|(_, way)| way.ios).sum::<u64>();
    let ended: Vec<u64> = run(&jobs).jobs.iter().map(ios).collect();
    assert_eq!(ended, [4000; 5]);
}

#[test]
fn flushes_after_so_many_writes_come_by_either_count() {
    let job = run_one("filename=null: rw=write bs=4k number_ios=16 fsync=4 fdatasync=3");
    assert_eq!(job.sync.count(), 7, "after 3, 4, 6, 8, 9, 12 and 15, as in fio");
}

#[test]
fn no_block_goes_beyond_what_was_asked_for() {
    for (options, ios) in [
        ("size=10k", 2),
        ("size=64k io_size=18k", 4),
        ("size=64k number_ios=3 loops=2", 6),
        ("size=10k rw=randread", 2),
    ] {
        let job = run_one(&format!("filename=null: rw=read bs=4k {options}"));
        assert_eq!(job.ways[Way::Read].ios, ios, "{options}");
    }
}

#[test]
fn a_job_ends_those_of_its_group_and_no_others() {
    let outcome = run(&[
        "name=a filename=null: rw=read number_ios=10 exitall=1",
        "name=b filename=null: rw=read startdelay=60 number_ios=10",
        "name=c filename=null: rw=read number_ios=20 stonewall=1",
    ]);
    let ios: Vec<u64> = outcome.jobs.iter().map(|job| job.ways[Way::Read].ios).collect();
    assert_eq!(ios, [10, 0, 20]);
}

#[test]
fn nothing_is_laid_out_where_nothing_may_be_written() {
    let file = std::env::temp_dir().join(format!("adit-readonly-{}", std::process::id()));
    let mut request = request(&[&format!("filename={} rw=read bs=4k size=1m", file.display())]);
    request.run.readonly = true;
    let refused = super::run(&request, &Interrupt::default(), &mut |_| Ok(()));
    let refused = refused.expect_err("refused").to_string();
    assert!(refused.contains("--readonly"), "{refused}");
    assert!(!file.exists());
}

#[test]
fn a_path_that_blocks_is_not_called_limited_by_its_thread() {
    let file = std::env::temp_dir().join(format!("adit-blocks-{}", std::process::id()));
    let outcome =
        run(&[&format!("filename=psync:{} rw=randread bs=4k size=1m iodepth=32", file.display())]);
    std::fs::remove_file(&file).expect("it was there");
    let codes: Vec<_> = outcome.warnings.iter().map(|warning| warning.code).collect();
    assert!(!codes.contains(&"generator-limited"), "{codes:?}");
}

#[test]
fn a_path_that_blocks_has_no_submission_latency_but_all_of_it_at_completion() {
    let file = std::env::temp_dir().join(format!("adit-slat-{}", std::process::id()));
    for path in ["psync", "mmap"] {
        let job =
            run_one(&format!("filename={path}:{} rw=randwrite bs=4k size=1m", file.display()));
        let write = &job.ways[Way::Write];
        assert_eq!((write.slat.count(), write.clat.count()), (0, 256), "{path}");
        assert!(
            write.clat.mean_ns() > write.lat.mean_ns() * 0.9,
            "{path}: {}",
            write.clat.mean_ns()
        );
    }
    std::fs::remove_file(&file).expect("it was there");
}

#[test]
fn verified_writers_do_not_share_a_file_by_two_paths() {
    let file = std::env::temp_dir().join(format!("adit-two-{}", std::process::id()));
    let job = |path: &str| {
        format!("filename={path}:{} rw=randwrite bs=4k size=1m verify=crc32c", file.display())
    };
    let refused = refusal(&[&job("psync"), &job("uring")]);
    std::fs::remove_file(&file).expect("it was there");
    assert!(refused.contains("writes the same blocks"), "{refused}");
}

#[test]
fn a_file_that_was_laid_out_by_half_is_as_long_as_before() {
    let file = std::env::temp_dir().join(format!("adit-half-{}", std::process::id()));
    std::fs::write(&file, [1; 8192]).expect("room");
    let job = format!("filename={} rw=read bs=4k size=64m", file.display());
    let interrupt = Interrupt::default();
    interrupt.request();
    let outcome = super::run(&request(&[&job]), &interrupt, &mut |_| Ok(()));
    assert!(outcome.expect_err("interrupted").to_string().contains("laid out"));
    let length = std::fs::metadata(&file).expect("it is there").len();
    std::fs::remove_file(&file).expect("it was there");
    assert_eq!(length, 8192);
}

#[test]
fn a_step_that_was_not_due_before_the_end_is_not_expected_back() {
    let job = run_one(&format!(
        "{VERIFIED} rw=randwrite bs=4k rate_iops=40 time_based runtime=330ms end_fsync=1"
    ));
    let (reads, writes) = (job.ways[Way::Read].ios, job.ways[Way::Write].ios);
    assert!((10..20).contains(&writes) && reads == writes, "{writes} written, {reads} read");
}

#[test]
fn a_write_lost_is_not_excused_by_the_same_run_before() {
    let (bus, request) = (bus(), request(&[&format!("{VERIFIED} rw=randwrite bs=4k")]));
    assert!(run_on(&bus, &request).jobs[0].failure.is_none());
    std::thread::sleep(Duration::from_millis(2));
    some_writes(&bus, Verdict::Fail(Status::SUCCESS), |number| number == 500);
    let again = run_on(&bus, &request).jobs.remove(0);
    let failure = again.failure.expect("a write was lost");
    assert!(failure.count == 1 && failure.first.contains("is stale"), "{failure:?}");
}

#[test]
fn checking_a_block_is_no_latency_of_the_next() {
    // Thirty-two blocks arrive at once; checking the others must not slow down the last.
    let options =
        "filename=null: rw=randwrite bs=1m size=32m iodepth=32 verify=md5 continue_on_error=verify";
    let read = run(&[options]).jobs.remove(0).ways[Way::Read].lat.clone();
    assert_eq!(read.count(), 32);
    assert!(
        read.max_ns() < 4 * read.min_ns() + 1_000_000,
        "{} to {}",
        read.min_ns(),
        read.max_ns()
    );
}

#[test]
fn making_the_data_of_a_batch_is_no_latency_of_its_first() {
    let written = run_one("filename=null: rw=randwrite bs=1m size=32m iodepth=32 refill_buffers=1");
    let lat = &written.ways[Way::Write].lat;
    // In a test build, filling a megabyte takes a millisecond or more.
    assert!(lat.count() == 32 && lat.max_ns() < 10_000_000, "{} to {}", lat.min_ns(), lat.max_ns());
}
