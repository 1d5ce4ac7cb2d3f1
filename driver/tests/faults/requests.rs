//! Requests that a queue refuses, and many that it accepts.

use adit_driver::soft::Verdict;
use adit_driver::spec::{IoOpcode, Lba, LbaCount, Nsid, Sqe};
use adit_driver::transfer::Unplannable;
use adit_driver::{Buffer, Command, ControllerOptions, QueuePair, RejectReason, Rejected};

use crate::rig::{Rig, Watch};

type Pair = QueuePair<Vec<Buffer>>;

fn rig() -> Rig {
    Rig::new("mem=64M,mdts=2,sgl=off,mqes=256")
}

fn pieces(rig: &Rig, sizes: &[usize]) -> Vec<Buffer> {
    sizes.iter().map(|&bytes| rig.controller.allocate(bytes).expect("buffer")).collect()
}

fn rejected(rig: &Rig, pair: &mut Pair, command: Command<'_, Vec<Buffer>>) -> RejectReason {
    let before = (pair.in_flight(), pair.stats());
    let rejection = pair.submit(rig.now(), command).map(drop).expect_err("refused");
    let Rejected { buffer, reason } = rejection;
    assert_eq!((pair.in_flight(), pair.stats()), before, "nothing was posted for {reason}");
    drop(buffer);
    reason
}

/// Fills the queue twice with commands that use all its slots, lists and bounce pages.
fn still_whole(rig: &Rig, pair: &mut Pair) {
    for _ in 0..2 {
        let lists = rig.namespace.read(Lba(0), pieces(rig, &[4096; 4]));
        pair.submit(rig.now(), lists).expect("lists");
        let bounces = rig.namespace.read(Lba(0), pieces(rig, &[200, 1024, 1024, 1024, 312]));
        pair.submit(rig.now(), bounces).expect("bounces");
        while pair.in_flight() < pair.capacity() {
            let one = rig.namespace.read(Lba(9), pieces(rig, &[512]));
            pair.submit(rig.now(), one).expect("room");
        }
        let full = pair.submit(rig.now(), rig.namespace.read(Lba(9), pieces(rig, &[512])));
        assert_eq!(full.expect_err("full").reason, RejectReason::Full);
        assert!(rig.drain(pair).iter().all(|completion| completion.result.is_ok()));
    }
}

#[test]
fn a_full_queue_gives_the_buffer_back_untouched() {
    let rig = rig();
    let mut pair = rig.pair(4);
    for _ in 0..3 {
        pair.post(rig.now(), rig.namespace.read(Lba(0), pieces(&rig, &[512]))).expect("room");
    }
    let mut mine = pieces(&rig, &[4096]);
    mine[0].fill(0x5a);
    let iova = mine[0].iova();
    let Rejected { buffer, reason } =
        pair.submit(rig.now(), rig.namespace.write(Lba(0), mine)).map(drop).expect_err("full");
    assert_eq!((reason, buffer[0].iova()), (RejectReason::Full, iova));
    assert!(buffer[0].iter().all(|&byte| byte == 0x5a));
    pair.ring();
    rig.drain(&mut pair);
    drop((buffer, pair));
    rig.finish();
}

#[test]
fn each_bad_request_is_refused_and_takes_nothing() {
    let rig = rig();
    let mut pair = rig.pair(32);
    let lbas = rig.namespace.lba_count();
    let ns = &rig.namespace;
    let reason = rejected(&rig, &mut pair, ns.read(Lba(lbas - 1), pieces(&rig, &[1024])));
    assert_eq!(reason, RejectReason::OutOfRange { lba: lbas - 1, end: lbas + 1, lbas });
    let reason = rejected(&rig, &mut pair, ns.read(Lba(u64::MAX), pieces(&rig, &[512])));
    assert!(matches!(
        reason,
        RejectReason::OutOfRange { .. } | RejectReason::Unplannable(Unplannable::PastEnd)
    ));
    let reason = rejected(&rig, &mut pair, ns.read(Lba(0), pieces(&rig, &[512, 100])));
    let partial = Unplannable::PartialLba { bytes: 612, lba_bytes: 512 };
    assert_eq!(reason, RejectReason::Unplannable(partial));
    let reason = rejected(&rig, &mut pair, ns.read(Lba(0), Vec::new()));
    assert_eq!(reason, RejectReason::Unplannable(Unplannable::Empty));
    let mut nothing = pieces(&rig, &[512]);
    nothing[0].split_off(0);
    let reason = rejected(&rig, &mut pair, ns.read(Lba(0), nothing));
    assert_eq!(reason, RejectReason::Unplannable(Unplannable::Empty));
    let reason = rejected(&rig, &mut pair, ns.read(Lba(0), pieces(&rig, &[1 << 20])));
    assert!(matches!(reason, RejectReason::TooLarge { what: "commands", needs: 64, has: 31 }));
    let scattered: Vec<usize> = [100usize, 412].repeat(40);
    let reason = rejected(&rig, &mut pair, ns.read(Lba(0), pieces(&rig, &scattered)));
    assert!(matches!(reason, RejectReason::TooLarge { what: "bounce pages", .. }), "{reason}");
    still_whole(&rig, &mut pair);
    drop(pair);
    rig.finish();
}

#[test]
#[allow(unsafe_code)]
fn a_raw_command_takes_only_what_prps_can_say() {
    let rig = rig();
    let mut pair = rig.pair(32);
    let sqe = Sqe::read(Nsid(1), Lba(0), LbaCount::new(2).expect("two"));
    for sizes in [&[512usize, 512][..], &[4096, 100, 4096]] {
        // SAFETY: refused before anything is sent.
        let raw = unsafe { Command::raw(sqe, pieces(&rig, sizes)) };
        assert_eq!(rejected(&rig, &mut pair, raw), RejectReason::Scattered);
    }
    // SAFETY: refused before anything is sent.
    let raw = unsafe { Command::raw(sqe, pieces(&rig, &[40 << 20])) };
    assert!(matches!(rejected(&rig, &mut pair, raw), RejectReason::TooLarge { .. }));
    // SAFETY: two LBAs are 1024 bytes.
    let raw = unsafe { Command::raw(sqe, pieces(&rig, &[1024])) };
    pair.execute(raw).expect("fits");
    still_whole(&rig, &mut pair);
    drop(pair);
    rig.finish();
}

#[test]
fn buffers_and_namespaces_of_another_controller_are_refused() {
    let (rig, other) = (rig(), Rig::new("mem=64M,lba=4096"));
    let mut pair = rig.pair(32);
    let foreign = rig.namespace.read(Lba(0), pieces(&other, &[4096]));
    assert_eq!(rejected(&rig, &mut pair, foreign), RejectReason::Foreign);
    let foreign = other.namespace.read(Lba(0), pieces(&rig, &[4096]));
    assert_eq!(rejected(&rig, &mut pair, foreign), RejectReason::Foreign);
    still_whole(&rig, &mut pair);
    drop(pair);
    let mut pair = rig.pair::<()>(8);
    for command in [
        other.namespace.flush(),
        other.namespace.write_zeroes(Lba(0), LbaCount::ONE, true),
        other.namespace.verify(Lba(0), LbaCount::ONE),
    ] {
        let refused = pair.submit(rig.now(), command).expect_err("another controller's");
        assert_eq!(refused.reason, RejectReason::Foreign);
    }
    drop(pair);
    other.finish();
    rig.finish();
}

#[test]
fn a_namespace_of_a_closed_controller_is_foreign_to_all_later_ones() {
    for _ in 0..20 {
        let stale = Rig::new("mem=16M").namespace;
        let rig = Rig::new("mem=16M,lba=4096");
        let mut pair = rig.pair(8);
        let foreign = stale.read(Lba(0), pieces(&rig, &[4096]));
        assert_eq!(rejected(&rig, &mut pair, foreign), RejectReason::Foreign);
    }
}

/// Makes a request whose shape depends on `turn`.
fn mixed<'n>(rig: &'n Rig, turn: u64) -> Command<'n, Vec<Buffer>> {
    let lba = Lba(turn * 7 % 4096);
    let shapes: [&[usize]; 6] =
        [&[512], &[16384], &[4096; 4], &[200, 312], &[8192, 100, 412], &[40960]];
    let data = pieces(rig, shapes[turn as usize % shapes.len()]);
    match turn % 5 {
        0 | 1 => rig.namespace.write(lba, data),
        2 => rig.namespace.write(lba, data).fua(),
        _ => rig.namespace.read(lba, data),
    }
}

#[test]
fn ten_thousand_mixed_requests_some_of_which_fail_leak_nothing() {
    let rig = rig();
    let mut pair: Pair = rig.pair(32);
    let mut count = 0u64;
    rig.hook(move |sqe, qid| {
        count += 1;
        match (qid.is_admin(), count % 17, sqe.io_opcode()) {
            (false, 3, _) => Verdict::Fail(adit_driver::spec::Status::INTERNAL_ERROR),
            (false, 5, _) => Verdict::Twice,
            (false, 9, IoOpcode::READ) => Verdict::CorruptCqe(|cqe| cqe.sqhd = 0x1234.into()),
            _ => Verdict::Run,
        }
    });
    let (mut taken, mut finished) = (0, 0);
    while taken < 10_000 {
        if rig.controller.check().is_err() {
            rig.controller.recover().expect("recovered");
        }
        match pair.submit(rig.now(), mixed(&rig, taken)) {
            Ok(_) => taken += 1,
            Err(Rejected { reason, .. }) => {
                assert_eq!(reason, RejectReason::Full);
                rig.settle();
                finished += pair.poll(rig.now(), |_| ()) as u64;
            }
        }
    }
    finished += rig.drain(&mut pair).len() as u64;
    assert_eq!(finished, taken);
    rig.clear_hook();
    rig.controller.recover().expect("recovered, or still in service");
    pair.poll(rig.now(), |_| panic!("nothing is in flight"));
    still_whole(&rig, &mut pair);
    drop(pair);
    rig.finish();
}

#[test]
fn shadow_doorbells_that_are_not_polled_miss_no_wake_up() {
    for poll_always in [false, true] {
        let bus = Watch::new("mem=16M");
        bus.soft.with_controller(|controller| controller.poll_shadow(poll_always));
        let rig = Rig::open(bus, &ControllerOptions::default());
        assert!(rig.controller.info().shadow_doorbells);
        let mut pair = rig.pair::<Buffer>(33);
        let mut idle: Vec<Buffer> =
            (0..32).map(|_| rig.controller.allocate(512).expect("buffer")).collect();
        let mut left = 10_000;
        while left > 0 {
            let depth = 1 + left % 32;
            for buffer in idle.drain(32 - depth..) {
                pair.submit(rig.now(), rig.namespace.read(Lba(1), buffer)).expect("room");
                left = left.saturating_sub(1usize);
            }
            let started = rig.now();
            idle.extend(rig.drain(&mut pair).into_iter().map(|completion| completion.buffer));
            assert!(rig.now().since(started).as_millis() < 100, "a ring was missed");
        }
        assert_eq!(pair.stats().aborts, 0);
        drop((idle, pair));
        rig.finish();
    }
}
