//! A queue pair whose device is the test: what it reports, counts and waits for.

use std::sync::Arc;

use super::*;
use crate::bus::Doorbell;
use crate::queue_pair::ring::Bell;
use crate::sys::{Atomics, Backing, HostMemory, Window};

const QID: Qid = Qid(3);
const DEPTH: u32 = 8;
const TIMEOUT: Duration = Duration::from_nanos(1000);

fn memory() -> Atomics {
    let memory = HostMemory::allocate(4096, Backing::Any, &|_, _| ()).expect("memory");
    Arc::new(memory).atomics()
}

fn bell() -> Bell {
    let register = Window::of_a_page().register32(0).expect("inside");
    Bell::new(Doorbell::Mapped(register), None)
}

/// The device's end of the completion queue.
struct Device {
    entries: Atomics,
    written: u32,
}

impl Device {
    /// Completes a command, whose result is its identifier.
    fn complete(&mut self, Qid(sqid): Qid, sqhd: u16, Cid(cid): Cid, status: u32) {
        let at = (self.written % DEPTH) as usize * 2;
        let phase = u64::from((self.written / DEPTH).is_multiple_of(2));
        self.written += 1;
        let words = [
            u64::from(cid),
            u64::from(sqhd)
                | u64::from(sqid) << 16
                | u64::from(cid) << 32
                | phase << 48
                | u64::from(status) << 49,
        ];
        for (word, value) in self.entries.words()[at..].iter().zip(words) {
            word.store(value.to_le(), std::sync::atomic::Ordering::Release);
        }
    }
}

fn core(latencies: bool) -> (Core<()>, Device) {
    core_with(TIMEOUT, latencies)
}

fn core_with(timeout: Duration, latencies: bool) -> (Core<()>, Device) {
    let entries = memory();
    let parts = Parts {
        qid: QID,
        domain: DomainId::HOST,
        sq: SubmissionRing::new(memory(), DEPTH, bell()),
        cq: CompletionRing::new(entries.clone(), DEPTH, bell()),
        slots: DEPTH as usize - 1,
        lists: PagePool::new(memory(), Iova(0)),
        bounces: PagePool::new(memory(), Iova(0)),
        timeout,
        latencies,
    };
    (Core::new(parts), Device { entries, written: 0 })
}

fn flush() -> Sqe {
    Sqe::from_dwords([0; 16])
}

/// Posts a command as of `now_ns`.
fn post(core: &mut Core<()>, now_ns: u64) -> Cid {
    core.launch(flush(), (), Time::from_ns(now_ns) + TIMEOUT)
}

fn reap(core: &mut Core<()>, now_ns: u64) -> (usize, Vec<Result<u32, CommandError>>) {
    let mut results = Vec::new();
    let count = core.reap(Time::from_ns(now_ns), &mut |done| results.push(done.result));
    (count, results)
}

#[test]
fn only_whole_polls_with_news_are_counted_and_return_what_finished() {
    let (mut core, mut device) = core(false);
    let cids = [0, 0, 0].map(|now| post(&mut core, now));
    core.ring();
    core.ring();
    assert!(!core.has_news());
    assert_eq!(reap(&mut core, 0), (0, vec![]));
    assert_eq!((core.stats().submission_rings, core.stats().completion_rings), (1, 0));
    // Of four completions two are no command's.
    device.complete(QID, 1, cids[0], 0);
    device.complete(QID, 1, Cid(0x7fff), 0);
    device.complete(QID, 2, cids[1], 0x82);
    device.complete(QID, 2, cids[0], 0);
    assert!(core.has_news());
    let (count, results) = reap(&mut core, 0);
    assert!(!core.has_news());
    assert_eq!((count, results.len(), results[0]), (2, 2, Ok(cids[0].0.into())));
    let Err(CommandError::Status(status)) = results[1] else { panic!("{results:?}") };
    assert!(!status.is_success());
    let stats = core.stats();
    assert_eq!((stats.submitted, stats.completed, core.in_flight()), (3, 2, 1));
    assert_eq!((stats.submission_rings, stats.completion_rings), (1, 1));
    post(&mut core, 0);
    core.ring();
    device.complete(QID, 3, cids[2], 0);
    assert_eq!(reap(&mut core, 0).0, 1);
    assert_eq!((core.stats().submission_rings, core.stats().completion_rings), (2, 2));
}

#[test]
fn a_lagging_queue_leaves_the_device_an_entry_for_each_command() {
    let (mut core, mut device) = core(false);
    core.lag();
    let rings = |core: &Core<()>| (core.stats().submission_rings, core.stats().completion_rings);
    let cid = post(&mut core, 0);
    core.ring();
    device.complete(QID, 1, cid, 0);
    assert_eq!((reap(&mut core, 0).0, rings(&core)), (1, (1, 0)), "one of eight may wait");
    let cids: Vec<Cid> = (0..6).map(|_| post(&mut core, 0)).collect();
    core.ring();
    assert_eq!(rings(&core), (2, 0), "six in flight and one untold fit in seven");
    post(&mut core, 0);
    core.ring();
    assert_eq!(rings(&core), (3, 1), "seven need all entries");
    device.complete(QID, 3, cids[0], 0);
    device.complete(QID, 3, cids[1], 0);
    assert_eq!((reap(&mut core, 0).0, rings(&core)), (2, (3, 2)), "two are many");
}

#[test]
fn a_device_that_never_stops_writing_keeps_a_poll_for_one_lap() {
    let (mut core, mut device) = core(false);
    let mut stale = 0;
    let cid = post(&mut core, 0);
    core.ring();
    (1..DEPTH).for_each(|_| device.complete(QID, 0, Cid(0x7fff), 0));
    device.complete(QID, 1, cid, 0);
    // The next lap is written while the last entry of this one is handed over.
    let count = core.reap(Time::ZERO, &mut |_| {
        (0..DEPTH).for_each(|_| device.complete(QID, 1, Cid(0x7fff), 0));
        stale += 1;
    });
    assert_eq!((count, stale, core.stats().unknown_cids), (1, 1, u64::from(DEPTH) - 1));
    assert!(core.has_news());
}

#[test]
fn each_violation_is_counted_by_its_kind_and_the_first_is_told_at_once() {
    let (mut core, mut device) = core(false);
    post(&mut core, 0);
    core.ring();
    assert_eq!((core.take_violation(), core.may_be_overdue(Time::ZERO)), (None, false));
    for (unknown, wrong, bad) in [(2, 3, 5), (3, 0, 1)] {
        (0..unknown).for_each(|_| device.complete(QID, 0, Cid(0x7fff), 0));
        reap(&mut core, 0);
        (0..wrong).for_each(|_| device.complete(Qid(4), 0, Cid(0x7fff), 0));
        reap(&mut core, 0);
        for _ in 0..bad {
            let cid = post(&mut core, 0);
            device.complete(QID, DEPTH as u16, cid, 0);
            assert_eq!(reap(&mut core, 0).0, 1, "the command did end");
        }
        assert!(core.may_be_overdue(Time::ZERO) && core.next_deadline() == Time::ZERO);
        assert_eq!(core.take_violation(), Some(Violation::UnknownCid(Cid(0x7fff))));
        assert_eq!(core.take_violation(), None);
    }
    let stats = core.stats();
    assert_eq!((stats.unknown_cids, stats.wrong_sqids, stats.bad_sqheads), (5, 3, 6));
    assert_eq!((stats.violations(), stats.stale_sqheads), (14, 0));
}

#[test]
fn a_head_in_the_ring_that_is_not_plausible_is_counted_and_not_used() {
    let (mut core, mut device) = core(false);
    let cids = [0; 3].map(|now| post(&mut core, now));
    core.ring();
    for (sqhd, cid) in [(2, cids[0]), (DEPTH as u16 - 1, cids[1]), (3, cids[2])] {
        device.complete(QID, sqhd, cid, 0);
    }
    assert_eq!(reap(&mut core, 0).0, 3);
    assert_eq!((core.stats().stale_sqheads, core.stats().violations()), (1, 0));
    assert_eq!(core.next_deadline(), Time::NEVER, "nothing is in flight");
    // Heads behind the end of the ring are those of its start.
    for round in 0..4u16 {
        let cids = [0; 3].map(|now| post(&mut core, now));
        core.ring();
        for (cid, at) in cids.into_iter().zip(1..) {
            device.complete(QID, (3 + 3 * round + at) % DEPTH as u16, cid, 0);
        }
        assert_eq!(reap(&mut core, 0).0, 3);
    }
    assert_eq!((core.stats().stale_sqheads, core.stats().violations()), (1, 0));
}

#[test]
fn the_next_deadline_is_the_earliest_until_overdue_commands_are_taken() {
    let (mut core, _) = core(false);
    assert_eq!(core.next_deadline(), Time::NEVER);
    let mut seen = Vec::new();
    for now_ns in [20, 30, 10] {
        post(&mut core, now_ns);
        seen.push(core.next_deadline());
    }
    let at = |now_ns: u64| Time::from_ns(now_ns) + TIMEOUT;
    assert_eq!(seen, [at(20), at(20), at(10)]);
    assert_eq!([9, 10, 11].map(|now| core.may_be_overdue(at(now))), [false, true, true]);
    let mut overdue = vec![7];
    core.take_overdue(at(20), &mut overdue);
    assert_eq!((overdue, core.next_deadline()), (vec![7, 0, 2], at(30)));
    core.extend(0, at(40));
    assert_eq!(core.next_deadline(), at(30));
    core.extend(2, at(25));
    assert_eq!(core.next_deadline(), at(25));
    let mut overdue = Vec::new();
    core.take_overdue(at(39), &mut overdue);
    assert_eq!((overdue, core.next_deadline()), (vec![1, 2], at(40)));
}

#[test]
fn latencies_are_those_of_commands_that_end_by_themselves() {
    let (mut core, mut device) = core(true);
    let cids = [100, 110].map(|now_ns| post(&mut core, now_ns));
    core.begin_abort(1, Time::from_ns(150), Time::NEVER).expect("to be aborted");
    core.ring();
    device.complete(QID, 1, Cid(0x7fff), 0);
    device.complete(QID, 2, cids[0], 0);
    device.complete(QID, 2, cids[1], 0);
    assert_eq!(reap(&mut core, 150).0, 2);
    let latencies = core.stats().latencies_ns.expect("asked for");
    assert_eq!((latencies.len(), latencies.min(), latencies.max()), (1, 50, 50));
}

#[test]
fn a_command_gets_a_hundred_years_at_most_and_latencies_an_hour() {
    let (mut core, _) = core_with(Duration::MAX, true);
    core.post(Time::ZERO, Command::whole(flush(), ())).expect("posted");
    assert_eq!(core.next_deadline(), Time::from_ns(3_153_600_000_000_000_000));
    let hour = core.stats().latencies_ns.expect("asked for").high();
    assert_eq!(hour, 3_600_000_000_000);
}

#[test]
fn a_restart_forgets_violations_and_sends_what_was_not_sent() {
    let (mut core, mut device) = core(false);
    post(&mut core, 10);
    post(&mut core, 10);
    core.ring();
    device.complete(QID, 1, Cid(0x7fff), 0);
    reap(&mut core, 0);
    device.entries.clear();
    core.restart(&[flush(), flush()]);
    assert_eq!((core.take_violation(), core.next_deadline()), (None, Time::ZERO));
    let pages = [memory(), memory()];
    let shadow = |index: usize| {
        let (doorbells, events) = (pages[index].clone(), memory());
        Shadow { doorbells, events, index, ring_always: false }
    };
    core.set_shadows(shadow(0), shadow(1));
    core.ring();
    device.written = 0;
    device.complete(QID, 1, Cid(0), 0);
    reap(&mut core, 0);
    let told = [0, 1].map(|at| pages[at].dwords()[at].load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(told.map(u32::from_le), [2, 1]);
    core.count_retry();
    core.count_recreation();
    assert_eq!((core.stats().retries, core.stats().recreations), (1, 1));
    assert_eq!((core.qid(), core.domain()), (QID, DomainId::HOST));
}
