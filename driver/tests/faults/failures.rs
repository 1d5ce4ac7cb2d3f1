//! Overdue commands: abort, disable, function reset. Removal.

use std::time::Duration;

use adit_driver::bus::BusEvent;
use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Lba};
use adit_driver::{Buffer, CommandError, Completion, Error, Event, QueuePair};

use crate::rig::Rig;

/// Past a command's default deadline, before that of its abort.
const OVERDUE: Duration = Duration::from_secs(11);

fn read(rig: &Rig, pair: &mut QueuePair<Buffer>, lba: u64, bytes: usize) {
    let buffer = rig.controller.allocate(bytes).expect("buffer");
    pair.submit(rig.now(), rig.namespace.read(Lba(lba), buffer)).expect("room");
}

#[test]
fn an_overdue_command_is_aborted_and_the_controller_stays() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.all_reads(Verdict::Hold);
    read(&rig, &mut pair, 0, 4096);
    rig.settle();
    assert_eq!(pair.poll(rig.now(), |_| panic!("held")), 0);
    rig.bus.soft.advance(OVERDUE);
    let finished = rig.drain(&mut pair);
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0].buffer.len(), 4096);
    assert_eq!(finished[0].result, Err(CommandError::TimedOut { may_have_written: false }));
    assert_eq!((pair.stats().aborts, pair.stats().violations()), (1, 0));
    rig.controller.check().expect("in service");
    rig.clear_hook();
    let buffer = rig.controller.allocate(4096).expect("buffer");
    pair.execute(rig.namespace.read(Lba(0), buffer)).expect("works again");
    drop((finished, pair));
    rig.finish();
}

#[test]
fn a_split_request_ends_once_when_one_of_its_commands_is_aborted() {
    let rig = Rig::new("mem=16M,mdts=1");
    let mut pair = rig.pair::<Buffer>(32);
    let mut count = 0;
    rig.hook(move |_, qid| {
        count += usize::from(!qid.is_admin());
        if !qid.is_admin() && count == 1 { Verdict::Hold } else { Verdict::Run }
    });
    read(&rig, &mut pair, 0, 64 << 10);
    assert_eq!(pair.in_flight(), 8);
    rig.settle();
    pair.poll(rig.now(), |_| panic!("one command is held"));
    rig.bus.soft.advance(OVERDUE);
    let finished = rig.drain(&mut pair);
    assert_eq!(finished.len(), 1);
    let timed_out = CommandError::TimedOut { may_have_written: false };
    assert_eq!(finished[0].result, Err(timed_out));
    assert_eq!(pair.stats().aborts, 1);
}

#[test]
fn more_overdue_commands_than_aborts_may_be_sent_end_all_the_same() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(128);
    rig.all_reads(Verdict::Hold);
    (0..127).for_each(|lba| read(&rig, &mut pair, lba, 512));
    rig.settle();
    rig.bus.soft.advance(OVERDUE);
    let finished = rig.drain(&mut pair);
    // A few at a time, all of them in the end, and the queue survives.
    let timed_out = Err(CommandError::TimedOut { may_have_written: false });
    assert_eq!(finished.len(), 127);
    assert!(finished.iter().all(|completion| completion.result == timed_out));
    assert_eq!((pair.stats().aborts, pair.stats().recreations), (127, 0));
}

/// Makes a controller with two queues full of every kind of request, none of which completes.
fn stuck() -> (Rig, QueuePair<Buffer>, QueuePair<Vec<Buffer>>) {
    let rig = Rig::new("mem=64M,mdts=2,sgl=off,nssr=off");
    let mut first = rig.pair::<Buffer>(64);
    let mut second = rig.pair::<Vec<Buffer>>(64);
    // The queues cannot be deleted either.
    rig.hook(|sqe, qid| match qid.is_admin() && sqe.admin_opcode() != AdminOpcode::DELETE_IO_SQ {
        true => Verdict::Run,
        false => Verdict::Lose,
    });
    read(&rig, &mut first, 0, 4096);
    read(&rig, &mut first, 8, 16 << 10);
    read(&rig, &mut first, 64, 128 << 10);
    let pieces = |sizes: &[usize]| -> Vec<Buffer> {
        sizes.iter().map(|&bytes| rig.controller.allocate(bytes).expect("buffer")).collect()
    };
    let now = rig.now();
    let lists = rig.namespace.write(Lba(0), pieces(&[4096; 6]));
    second.submit(now, lists).expect("lists");
    let bounce = rig.namespace.read(Lba(512), pieces(&[200, 312]));
    second.submit(now, bounce).expect("bounce");
    assert!(second.stats().built_lists > 0 && second.stats().bounced_commands == 1);
    rig.settle();
    (rig, first, second)
}

fn all_reset<B>(finished: &[Completion<B>], count: usize) {
    assert_eq!(finished.len(), count);
    let reset = |c: &Completion<B>| matches!(c.result, Err(CommandError::Reset { .. }));
    assert!(finished.iter().all(reset));
}

/// Checks that both queues end, later requests fail at once, and nothing is left.
fn ends_with_reset(rig: Rig, mut first: QueuePair<Buffer>, mut second: QueuePair<Vec<Buffer>>) {
    rig.bus.soft.advance(OVERDUE);
    let finished = rig.drain(&mut first);
    all_reset(&finished, 3);
    let others = rig.drain(&mut second);
    all_reset(&others, 2);
    assert!(first.stats().aborts > 0);
    assert_eq!(first.poll(rig.now(), |_| panic!("nothing is in flight")), 0);
    let error = rig.controller.check().expect_err("out of service").to_string();
    assert!(error.contains("Delete I/O Submission Queue"), "{error}");
    later_calls_fail(&rig, &mut first, finished.into_iter().map(|done| done.buffer).collect());
    drop(others);
    rig.bounded(|| drop((first, second)));
    rig.finish();
}

fn later_calls_fail(rig: &Rig, pair: &mut QueuePair<Buffer>, mut buffers: Vec<Buffer>) {
    let mut read = || rig.namespace.read(Lba(0), buffers.pop().expect("a buffer"));
    rig.bounded(|| {
        if pair.submit(rig.now(), read()).is_ok() {
            all_reset(&rig.drain(pair), 1);
        }
        let error = pair.execute(read()).expect_err("no service");
        assert!(matches!(rig.controller.allocate(512), Err(Error::Failed { .. })));
        assert!(matches!(error, Error::Failed { .. }), "{error}");
        assert!(matches!(rig.controller.namespace_ids(), Err(Error::Failed { .. })));
        assert!(rig.controller.create_queue_pair::<Buffer>(Default::default()).is_err());
        assert!(rig.controller.poll(rig.now()).is_none());
    });
}

#[test]
fn lost_commands_end_by_disabling_the_controller() {
    let (rig, first, second) = stuck();
    ends_with_reset(rig, first, second);
}

#[test]
fn a_controller_that_cannot_be_disabled_is_reset() {
    let (rig, first, second) = stuck();
    rig.bus.soft.with_controller(|controller| controller.refuse_disable(true));
    ends_with_reset(rig, first, second);
}

#[test]
fn buffers_of_a_controller_that_cannot_be_reset_never_come_back() {
    let (rig, mut first, second) = stuck();
    rig.bus.soft.with_controller(|controller| controller.refuse_disable(true));
    rig.bus.fail_reset();
    let spare = rig.controller.allocate(512).expect("buffer");
    let mapped = rig.bus.mapped();
    rig.bus.soft.advance(OVERDUE);
    rig.bounded(|| {
        while rig.controller.check().is_ok() {
            first.poll(rig.now(), |_| panic!("the device may still write it"));
            rig.controller.pause(Duration::from_millis(10));
        }
        later_calls_fail_stuck(&rig, &mut first, spare);
        drop((first, second));
    });
    let bus = rig.bus.clone();
    drop(rig);
    assert!(bus.mapped() > 0 && bus.mapped() < mapped, "in flight leaks, the rest does not");
    while bus.soft.step() > 0 {}
    bus.soft.release_held();
}

fn later_calls_fail_stuck(rig: &Rig, pair: &mut QueuePair<Buffer>, buffer: Buffer) {
    assert_eq!(pair.poll(rig.now(), |_| panic!("never")), 0);
    assert!(matches!(rig.controller.namespace_ids(), Err(Error::Failed { .. })));
    let error = pair.execute(rig.namespace.read(Lba(0), buffer)).expect_err("no service");
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    assert!(matches!(rig.controller.allocate(512), Err(Error::Failed { .. })));
}

#[test]
fn after_a_failure_the_device_can_be_opened_again() {
    let (rig, mut first, second) = stuck();
    rig.bus.soft.advance(OVERDUE);
    rig.drain(&mut first);
    let bus = rig.bus.clone();
    drop((first, second, rig));
    let rig = Rig::open(bus, &Default::default());
    rig.clear_hook();
    let mut pair = rig.pair::<Buffer>(8);
    let buffer = rig.controller.allocate(4096).expect("buffer");
    pair.execute(rig.namespace.read(Lba(0), buffer)).expect("works");
    drop(pair);
    rig.finish();
}

#[test]
fn a_fatal_status_is_the_reason_that_is_given() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.bus.soft.with_controller(|controller| controller.fail());
    read(&rig, &mut pair, 0, 4096);
    rig.bus.soft.advance(OVERDUE);
    all_reset(&rig.drain(&mut pair), 1);
    let error = rig.controller.check().expect_err("failed").to_string();
    assert!(error.contains("fatal status (CSTS.CFS)"), "{error}");
    drop(pair);
    rig.finish();
}

#[test]
fn an_admin_command_without_an_answer_takes_the_controller_out_of_service() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.hook(|_, _| Verdict::Lose);
    read(&rig, &mut pair, 0, 4096);
    let error = rig.bounded(|| rig.controller.namespace_ids()).expect_err("lost");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    all_reset(&rig.drain(&mut pair), 1);
    drop(pair);
    rig.finish();
}

#[test]
fn a_device_that_is_unplugged_in_flight_ends_everything() {
    let (rig, mut first, mut second) = stuck();
    rig.bus.soft.unplug();
    assert_eq!(rig.controller.poll(rig.now()), Some(Event::Bus(BusEvent::Gone)));
    rig.bus.soft.advance(OVERDUE);
    rig.bounded(|| {
        all_reset(&rig.drain(&mut first), 3);
        all_reset(&rig.drain(&mut second), 2);
    });
    let error = rig.controller.check().expect_err("gone").to_string();
    assert!(error.contains("the device is gone"), "{error}");
    rig.bounded(|| drop((first, second)));
    rig.finish();
}

#[test]
fn a_device_that_is_unplugged_can_be_dropped_at_once() {
    let (rig, first, second) = stuck();
    rig.bus.soft.unplug();
    let started = rig.now();
    drop((second, first));
    assert!(rig.now().since(started) < Duration::from_secs(1), "its answer is not awaited");
    rig.finish();
}

#[test]
fn a_failure_on_one_thread_ends_calls_on_another() {
    let rig = Rig::new("mem=16M");
    let started = rig.now();
    let mut pair = rig.pair::<Buffer>(8);
    rig.hook(|_, _| Verdict::Lose);
    read(&rig, &mut pair, 0, 512);
    rig.settle();
    let calls: Vec<_> = std::thread::scope(|scope| {
        let call = || scope.spawn(|| rig.controller.namespace_ids().expect_err("lost"));
        let threads: Vec<_> = (0..8).map(|_| call()).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let timeouts = calls.iter().filter(|error| matches!(error, Error::Timeout { .. })).count();
    // One thread times out; another may take its place before the first reports it.
    assert!((1..=2).contains(&timeouts), "{timeouts} of 8 waited to the end");
    assert!(rig.now().since(started) < Duration::from_secs(35));
    all_reset(&rig.drain(&mut pair), 1);
}

/// Polls until nothing is in flight. Other threads also advance the clock, even while this one is not scheduled, so the
/// bound is on the number of polls and thus on the virtual time that it adds itself.
fn drain_beside_others(rig: &Rig, pair: &mut QueuePair<Buffer>) -> usize {
    let mut finished = 0;
    for _ in 0..3000 {
        finished += pair.poll(rig.now(), drop);
        if pair.in_flight() == 0 {
            return finished;
        }
        rig.controller.pause(Duration::from_millis(100));
        std::thread::yield_now();
    }
    panic!("{pair:?} never finished");
}

#[test]
fn queues_on_many_threads_all_end_when_one_of_them_fails_the_controller() {
    for turn in 0..10 {
        let rig = Rig::new("mem=16M");
        let pairs: Vec<_> = (0..4).map(|_| rig.pair::<Buffer>(16)).collect();
        rig.all_io(if turn % 2 == 0 { Verdict::Lose } else { Verdict::Hold });
        rig.bus.soft.with_controller(|controller| controller.refuse_disable(turn % 3 == 0));
        std::thread::scope(|scope| {
            for mut pair in pairs {
                let rig = &rig;
                scope.spawn(move || {
                    (0..15).for_each(|lba| read(rig, &mut pair, lba, 512));
                    assert_eq!(drain_beside_others(rig, &mut pair), 15);
                });
            }
            scope.spawn(|| (0..50).for_each(|_| drop(rig.controller.namespace_ids())));
            scope.spawn(|| (0..500).filter(|_| rig.controller.poll(rig.now()).is_some()).count());
        });
        rig.finish();
    }
}

#[test]
fn aborts_that_are_lost_take_the_controller_out_of_service_at_the_next_one() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(64);
    for round in 0..2 {
        rig.hook(|sqe, qid| match (qid.is_admin(), sqe.admin_opcode()) {
            (false, _) => Verdict::Hold,
            (true, AdminOpcode::ABORT) => Verdict::Lose,
            _ => Verdict::Run,
        });
        (0..63).for_each(|lba| read(&rig, &mut pair, lba, 512));
        rig.settle();
        rig.bus.soft.advance(OVERDUE);
        let ended = pair.poll(rig.now(), |completion| all_reset(&[completion], 1));
        assert_eq!(ended, 63 * round);
        rig.settle();
        // They were slow, not lost: they complete although their aborts never arrived.
        rig.bus.soft.release_held();
        let finished = rig.drain(&mut pair);
        assert!(finished.iter().all(|completion| completion.result.is_ok()));
    }
    let error = rig.controller.check().expect_err("aborts are lost").to_string();
    assert!(error.contains("Abort command was not answered"), "{error}");
    drop(pair);
    rig.finish();
}
