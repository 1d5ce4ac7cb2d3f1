//! Completions that break the protocol: each is counted, none harms another command, and the controller is taken out of
//! service.

use std::sync::atomic::Ordering;

use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Cqe, Lba, Qid, Status};
use adit_driver::{Buffer, CommandError, QueuePair, Stats};

use crate::queues::supplied;
use crate::rig::Rig;

/// Runs ten reads, the third with `verdict`; returns the number of successes and the counters.
fn third_of_ten(verdict: Verdict) -> (usize, Stats) {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(16);
    let mut count = 0;
    rig.hook(move |_, qid| {
        count += usize::from(!qid.is_admin());
        if !qid.is_admin() && count == 3 { verdict } else { Verdict::Run }
    });
    for lba in 0..10 {
        let buffer = rig.controller.allocate(512).expect("buffer");
        pair.submit(rig.now(), rig.namespace.read(Lba(lba), buffer)).expect("room");
    }
    rig.settle();
    let (mut well, mut reset) = (0, 0);
    let lost = Err(CommandError::Reset { may_have_written: false });
    let ended = pair.poll(rig.now(), |completion| {
        well += usize::from(completion.result.is_ok());
        reset += usize::from(completion.result == lost);
    });
    let stats = pair.stats();
    assert_eq!((ended, pair.in_flight()), (10, 0));
    if stats.violations() == 0 {
        rig.controller.check().expect("in service");
        assert_eq!(reset, 0);
    } else {
        let error = rig.controller.check().expect_err("out of service").to_string();
        assert!(error.contains("on I/O queue 1, a completion"), "{error}");
        rig.clear_hook();
        rig.controller.recover().expect("it was a single one");
        let buffer = rig.controller.allocate(512).expect("buffer");
        pair.execute(rig.namespace.read(Lba(0), buffer)).expect("works again");
    }
    drop(pair);
    rig.finish();
    (well, stats)
}

#[test]
fn an_unknown_identifier_is_counted() {
    for alter in [
        (|cqe: &mut Cqe| cqe.cid = 0xffff.into()) as fn(&mut Cqe),
        |cqe| cqe.cid = 15.into(),
        // The right slot, an older generation.
        |cqe| cqe.cid = (cqe.cid.get() ^ 0x10).into(),
    ] {
        let (well, stats) = third_of_ten(Verdict::CorruptCqe(alter));
        assert_eq!((well, stats.unknown_cids, stats.violations()), (9, 1, 1));
    }
}

#[test]
fn a_completion_that_comes_twice_is_counted() {
    let (well, stats) = third_of_ten(Verdict::Twice);
    assert_eq!((well, stats.unknown_cids, stats.violations()), (10, 1, 1));
}

#[test]
fn a_completion_of_another_queue_is_counted() {
    let (well, stats) = third_of_ten(Verdict::CorruptCqe(|cqe| cqe.sqid = 7.into()));
    assert_eq!((well, stats.wrong_sqids, stats.violations()), (9, 1, 1));
}

#[test]
fn an_impossible_head_is_counted_and_the_command_completes() {
    for alter in
        [(|cqe: &mut Cqe| cqe.sqhd = 0xffff.into()) as fn(&mut Cqe), |cqe| cqe.sqhd = 16.into()]
    {
        let (well, stats) = third_of_ten(Verdict::CorruptCqe(alter));
        assert_eq!((well, stats.bad_sqheads, stats.violations()), (10, 1, 1));
    }
}

#[test]
fn a_head_that_is_only_implausible_is_counted_and_not_used() {
    let (well, stats) = third_of_ten(Verdict::CorruptCqe(|cqe| cqe.sqhd = 12.into()));
    assert_eq!((well, stats.stale_sqheads, stats.violations()), (10, 1, 0));
}

#[test]
fn any_status_is_given_to_its_own_command_only() {
    let (well, stats) = third_of_ten(Verdict::CorruptCqe(|cqe| cqe.status_word = 0xfffe.into()));
    assert_eq!((well, stats.violations()), (9, 0));
    let (well, _) = third_of_ten(Verdict::Fail(Status::INTERNAL_ERROR));
    assert_eq!(well, 9);
}

#[test]
fn a_violation_on_the_admin_queue_takes_the_controller_out_of_service() {
    let rig = Rig::new("mem=16M");
    rig.admin(AdminOpcode::IDENTIFY, Verdict::Twice);
    // The first may complete before its duplicate arrives.
    let ids = (0..2).map(|_| rig.controller.namespace_ids());
    ids.filter_map(Result::err).for_each(drop);
    let error = rig.controller.check().expect_err("out of service").to_string();
    assert!(error.contains("on the admin queue, a completion"), "{error}");
    assert!(rig.controller.admin_violations() >= 1);
    rig.clear_hook();
    rig.controller.recover().expect("recovered");
    rig.controller.namespace_ids().expect("answered");
    rig.finish();
}

fn write_entry(pair: &QueuePair<Buffer>, rings: &crate::queues::Supplied, at: u32, phase: bool) {
    let cqe = Cqe::new(0, 0, pair.qid(), adit_driver::spec::Cid(0x7777), Status::SUCCESS, phase);
    let words = rings.completion.dwords();
    for (index, value) in cqe.to_dwords().into_iter().enumerate() {
        words[at as usize * 4 + index].store(value, Ordering::Release);
    }
}

#[test]
fn a_flood_of_bogus_completions_is_one_lap_per_poll() {
    let rig = Rig::new("mem=16M");
    let (mut pair, rings) = supplied(&rig, 64);
    for lap in 1..=4 {
        (0..64).for_each(|at| write_entry(&pair, &rings, at, true));
        assert_eq!(pair.poll(rig.now(), |_| panic!("nothing was asked")), 0);
        assert_eq!(pair.stats().unknown_cids, lap * 64);
        rig.controller.check().expect_err("out of service");
        rig.controller.recover().expect("recovered");
        assert_eq!(pair.poll(rig.now(), |_| panic!("nothing was asked")), 0);
    }
    assert_eq!(pair.qid(), Qid(1));
}
