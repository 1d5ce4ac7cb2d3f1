//! The recovery ladder, step by step: which step a fault reaches, how its requests end, and that unaffected queues
//! continue.

use std::time::Duration;

use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, IoOpcode, Lba, LbaCount, Status};
use adit_driver::{
    Buffer, CommandError, Completion, ControllerOptions, QueuePair, QueuePairOptions,
};

use crate::rig::{Rig, Watch};

/// Past a command's default deadline, before that of its abort.
const OVERDUE: Duration = Duration::from_secs(11);
/// Past an abort's deadline.
const OUTLIVED: Duration = Duration::from_secs(3);

fn buffer(rig: &Rig, bytes: usize) -> Buffer {
    rig.controller.allocate(bytes).expect("buffer")
}

fn read(rig: &Rig, pair: &mut QueuePair<Buffer>) {
    let command = rig.namespace.read(Lba(0), buffer(rig, 4096));
    pair.submit(rig.now(), command).expect("room");
}

fn write(rig: &Rig, pair: &mut QueuePair<Buffer>) {
    let command = rig.namespace.write(Lba(0), buffer(rig, 4096));
    pair.submit(rig.now(), command).expect("room");
}

fn works(rig: &Rig, pair: &mut QueuePair<Buffer>) {
    let (mut data, _) =
        pair.execute(rig.namespace.write(Lba(64), filled(rig))).expect("it can be written");
    data.fill(0);
    let (data, _) = pair.execute(rig.namespace.read(Lba(64), data)).expect("it can be read");
    assert!(data.iter().all(|&byte| byte == 0x5a));
}

fn filled(rig: &Rig) -> Buffer {
    let mut data = buffer(rig, 4096);
    data.fill(0x5a);
    data
}

fn errors<B>(finished: &[Completion<B>]) -> Vec<CommandError> {
    finished.iter().map(|completion| completion.result.expect_err("it failed")).collect()
}

/// Polls past the deadline and past the abort's.
fn outlive(rig: &Rig, pair: &mut QueuePair<Buffer>) -> Vec<Completion<Buffer>> {
    rig.settle();
    rig.bus.soft.advance(OVERDUE);
    assert_eq!(pair.poll(rig.now(), |_| panic!("the abort has its time")), 0);
    rig.settle();
    rig.bus.soft.advance(OUTLIVED);
    rig.drain(pair)
}

#[test]
fn a_command_that_outlives_its_abort_costs_its_queue_only() {
    let rig = Rig::new("mem=16M");
    let (mut ill, mut well) = (rig.pair::<Buffer>(8), rig.pair::<Buffer>(8));
    rig.all_io(Verdict::Lose);
    read(&rig, &mut ill);
    write(&rig, &mut ill);
    rig.settle();
    rig.clear_hook();
    let finished = outlive(&rig, &mut ill);
    let mut written: Vec<bool> = errors(&finished)
        .iter()
        .map(|error| match error {
            CommandError::Reset { may_have_written } => *may_have_written,
            other => panic!("{other}"),
        })
        .collect();
    written.sort_unstable();
    assert_eq!(written, [false, true], "the read wrote nothing, the write may have");
    rig.controller.check().expect("in service");
    let stats = ill.stats();
    assert_eq!((stats.aborts, stats.recreations, stats.resets, stats.violations()), (2, 1, 2, 0));
    works(&rig, &mut well);
    works(&rig, &mut ill);
    drop((finished, ill, well));
    rig.finish();
}

#[test]
fn a_completion_that_comes_while_the_queue_is_deleted_counts() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.all_io(Verdict::Lose);
    read(&rig, &mut pair);
    rig.settle();
    rig.bus.soft.advance(OVERDUE);
    pair.poll(rig.now(), |_| panic!("lost"));
    // One more completes while the ladder reads CSTS, after its last poll of the ring.
    rig.all_io(Verdict::Hold);
    read(&rig, &mut pair);
    rig.settle();
    let soft = rig.bus.soft.clone();
    rig.bus.lie(move |offset, truth| {
        if offset == 0x1c {
            soft.release_held();
        }
        truth
    });
    rig.bus.soft.advance(OUTLIVED);
    let finished = rig.drain(&mut pair);
    let well = finished.iter().filter(|completion| completion.result.is_ok()).count();
    assert_eq!((finished.len(), well, pair.stats().resets), (2, 1, 1));
    drop((finished, pair));
    rig.finish();
}

#[test]
fn what_was_never_rung_survives_the_new_queue() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.all_io(Verdict::Lose);
    read(&rig, &mut pair);
    rig.settle();
    rig.bus.soft.advance(OVERDUE);
    pair.poll(rig.now(), |_| panic!("lost"));
    rig.settle();
    rig.clear_hook();
    rig.bus.soft.advance(OUTLIVED);
    pair.post(rig.now(), rig.namespace.write(Lba(64), filled(&rig))).expect("room");
    let finished = rig.drain(&mut pair);
    let results: Vec<_> = finished.iter().map(|completion| completion.result).collect();
    assert_eq!(results, [Err(CommandError::Reset { may_have_written: false }), Ok(0)]);
    assert_eq!(pair.stats().recreations, 1);
    let (data, _) = pair.execute(rig.namespace.read(Lba(64), buffer(&rig, 4096))).expect("read");
    assert!(data.iter().all(|&byte| byte == 0x5a));
    drop((finished, data, pair));
    rig.finish();
}

#[test]
fn a_queue_that_is_no_better_created_anew_costs_the_controller() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.all_io(Verdict::Lose);
    read(&rig, &mut pair);
    outlive(&rig, &mut pair);
    rig.controller.check().expect("in service, the first time");
    read(&rig, &mut pair);
    outlive(&rig, &mut pair);
    let error = rig.controller.check().expect_err("out of service").to_string();
    assert!(error.contains("just been recreated"), "{error}");
    rig.clear_hook();
    rig.controller.recover().expect("recovered");
    works(&rig, &mut pair);
    drop(pair);
    rig.finish();
}

#[test]
fn one_that_completed_something_meanwhile_is_created_anew_again() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    for turn in 1..=4 {
        rig.all_io(Verdict::Lose);
        read(&rig, &mut pair);
        outlive(&rig, &mut pair);
        rig.clear_hook();
        works(&rig, &mut pair);
        assert_eq!(pair.stats().recreations, turn);
    }
    drop(pair);
    rig.finish();
}

/// A split write that loses every other command.
#[test]
fn a_split_write_may_have_been_written_if_one_of_its_commands_was() {
    let rig = Rig::new("mem=16M,mdts=1");
    let mut pair = rig.pair::<Buffer>(32);
    let mut count = 0;
    rig.hook(move |_, qid| {
        count += u32::from(!qid.is_admin());
        if !qid.is_admin() && count % 2 == 0 { Verdict::Lose } else { Verdict::Run }
    });
    let command = rig.namespace.write(Lba(0), buffer(&rig, 64 << 10));
    pair.submit(rig.now(), command).expect("room");
    let finished = outlive(&rig, &mut pair);
    assert_eq!(errors(&finished), [CommandError::Reset { may_have_written: true }]);
    drop((finished, pair));
    rig.finish();
}

#[test]
fn commands_without_data_say_whether_they_write() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<()>(8);
    rig.all_io(Verdict::Lose);
    let now = rig.now();
    let count = LbaCount::new(8).expect("8");
    pair.submit(now, rig.namespace.flush()).expect("room");
    pair.submit(now, rig.namespace.write_zeroes(Lba(0), count, false)).expect("room");
    pair.submit(now, rig.namespace.verify(Lba(0), count)).expect("room");
    rig.settle();
    rig.bus.soft.with_controller(|controller| controller.fail());
    rig.bus.soft.advance(OVERDUE);
    let finished = rig.drain(&mut pair);
    let written = |error: &CommandError| *error == CommandError::Reset { may_have_written: true };
    assert_eq!(errors(&finished).iter().filter(|error| written(error)).count(), 1);
    drop((finished, pair));
    rig.finish();
}

#[test]
fn an_aborted_write_may_have_been_written_and_can_be_sent_again() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.all_io(Verdict::Hold);
    write(&rig, &mut pair);
    rig.settle();
    rig.bus.soft.advance(OVERDUE);
    let finished = rig.drain(&mut pair);
    let error = errors(&finished)[0];
    assert_eq!(error, CommandError::TimedOut { may_have_written: true });
    assert_eq!(rig.controller.retry_delay(&error), Some(Duration::ZERO));
    rig.clear_hook();
    for Completion { buffer, .. } in finished {
        let again = rig.namespace.write(Lba(0), buffer);
        pair.resubmit(rig.now(), again).expect("room");
    }
    assert!(rig.drain(&mut pair)[0].result.is_ok());
    assert_eq!(pair.stats().retries, 1);
    drop(pair);
    rig.finish();
}

#[test]
fn a_status_is_sent_again_only_where_that_can_help() {
    let rig = Rig::new("mem=16M");
    let delay = |status: Status| rig.controller.retry_delay(&CommandError::Status(status));
    assert_eq!(delay(Status::NAMESPACE_NOT_READY), Some(Duration::ZERO));
    assert_eq!(delay(Status::NAMESPACE_NOT_READY.with_dnr(true)), None);
    assert_eq!(delay(Status::LBA_OUT_OF_RANGE), None);
    rig.finish();
}

#[test]
fn the_deadlines_of_a_queue_are_its_own() {
    let rig = Rig::new("mem=16M");
    let options = QueuePairOptions {
        depth: 8,
        timeout: Duration::from_millis(50),
        abort_timeout: Duration::from_millis(20),
        ..QueuePairOptions::default()
    };
    let mut pair: QueuePair<Buffer> = rig.controller.create_queue_pair(options).expect("pair");
    rig.all_io(Verdict::Lose);
    let started = rig.now();
    read(&rig, &mut pair);
    let finished = rig.drain(&mut pair);
    assert_eq!(errors(&finished), [CommandError::Reset { may_have_written: false }]);
    assert!(rig.now().since(started) < Duration::from_millis(100));
    drop((finished, pair));
    rig.finish();
}

/// Makes a queue that cannot be deleted, with a lost command.
fn doomed(tail: &str) -> (Rig, QueuePair<Buffer>) {
    let rig = Rig::new(tail);
    let mut pair = rig.pair::<Buffer>(8);
    rig.hook(|sqe, qid| match (qid.is_admin(), sqe.admin_opcode()) {
        (false, _) | (true, AdminOpcode::DELETE_IO_SQ) => Verdict::Lose,
        _ => Verdict::Run,
    });
    read(&rig, &mut pair);
    (rig, pair)
}

#[test]
fn a_controller_that_cannot_be_disabled_has_its_subsystem_reset_before_its_function() {
    let (rig, mut pair) = doomed("mem=16M");
    assert!(rig.controller.info().subsystem_reset);
    rig.bus.soft.with_controller(|controller| controller.refuse_disable(true));
    // A function reset would fail.
    rig.bus.fail_reset();
    let finished = outlive(&rig, &mut pair);
    assert_eq!(errors(&finished), [CommandError::Reset { may_have_written: false }]);
    rig.clear_hook();
    rig.controller.recover().expect("it was reset");
    works(&rig, &mut pair);
    drop((finished, pair));
    rig.finish();
}

#[test]
fn a_subsystem_that_is_not_to_be_reset_is_not() {
    let bus = Watch::new("mem=16M");
    let options = ControllerOptions { subsystem_reset: false, ..ControllerOptions::default() };
    let rig = Rig::open(bus, &options);
    assert!(!rig.controller.info().subsystem_reset);
    rig.bus.soft.with_controller(|controller| {
        controller.refuse_disable(true);
        controller.fail();
    });
    rig.bus.fail_reset();
    rig.controller.poll(rig.now());
    rig.controller.recover().expect_err("neither disabled nor reset");
    rig.bus.allow_reset();
    rig.controller.recover().expect("the function was reset");
    rig.finish();
}

#[test]
fn a_device_that_cannot_be_reset_is_cut_off_and_everything_comes_back() {
    let (rig, mut pair) = doomed("mem=16M,nssr=off");
    rig.bus.allow_cut_off();
    rig.bus.soft.with_controller(|controller| controller.refuse_disable(true));
    rig.bus.fail_reset();
    let finished = outlive(&rig, &mut pair);
    assert_eq!(errors(&finished), [CommandError::Reset { may_have_written: false }]);
    assert_eq!(rig.bus.mapped(), 0);
    rig.bus.allow_reset();
    let error = rig.controller.recover().expect_err("it has no memory").to_string();
    assert!(error.contains("cut off") && error.contains("open it again"), "{error}");
    let bus = rig.bus.clone();
    drop((finished, pair, rig));
    assert_eq!(bus.mapped(), 0);
}

#[test]
fn latencies_are_measured_where_asked_for() {
    let rig = Rig::new("mem=16M");
    let options = QueuePairOptions { depth: 8, latencies: true, ..QueuePairOptions::default() };
    let mut pair: QueuePair<Buffer> = rig.controller.create_queue_pair(options).expect("pair");
    rig.all_reads(Verdict::Hold);
    read(&rig, &mut pair);
    rig.settle();
    rig.bus.soft.advance(Duration::from_millis(5));
    rig.bus.soft.release_held();
    assert_eq!(rig.drain(&mut pair).len(), 1);
    let stats = pair.stats();
    let latencies = stats.latencies_ns.expect("asked for");
    assert_eq!((latencies.len(), stats.completed, stats.bytes), (1, 1, 4096));
    assert!((4_900_000..=5_100_000).contains(&latencies.max()), "{}", latencies.max());
    assert!(rig.pair::<Buffer>(8).stats().latencies_ns.is_none());
    let sent = |sqe: &adit_driver::spec::Sqe| sqe.io_opcode() == IoOpcode::READ;
    rig.hook(move |sqe, qid| match !qid.is_admin() && sent(sqe) {
        true => Verdict::Hold,
        false => Verdict::Run,
    });
    read(&rig, &mut pair);
    rig.settle();
    rig.bus.soft.advance(OVERDUE);
    assert_eq!(rig.drain(&mut pair).len(), 1);
    let latencies = pair.stats().latencies_ns.expect("asked for");
    assert_eq!(latencies.len(), 1, "one that was aborted has none");
    drop(pair);
    rig.finish();
}
