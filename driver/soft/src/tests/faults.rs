//! The effect of each fault on the command it meets.

use super::*;
use crate::{FaultPlan, Verdict};
use adit_spec::Lba;

fn rig(faults: &str) -> Rig {
    Rig::new(&format!("mem=1M,seed=5,faults={faults}"))
}

fn fill(rig: &mut Rig, seed: u8) -> Vec<u8> {
    let data = pattern(1024, seed);
    rig.poke(DATA, &data);
    data
}

fn stored(rig: &mut Rig, lba: Lba) -> Vec<u8> {
    rig.poke(DATA, &[0; 1024]);
    rig.ok(read(lba.0, 2));
    rig.peek(DATA, 1024)
}

#[test]
fn a_lost_command_is_neither_done_nor_found_by_abort_and_a_mute_one_is_done() {
    for (fault, is_done) in [("lose@write", false), ("mute@write", true)] {
        let mut rig = rig(fault);
        let data = fill(&mut rig, 1);
        let cid = rig.submit(1, write(0, 2));
        rig.step();
        assert!(rig.reap(1).is_empty());
        let abort = Cmd::new(8).with(10, u32::from(cid) << 16 | 1);
        assert_eq!(rig.admin(abort).dw0, 1, "not aborted");
        assert_eq!(stored(&mut rig, Lba(0)) == data, is_done, "{fault}");
        assert_eq!(rig.controller.fault_counts(), [1]);
    }
}

#[test]
fn a_delayed_command_runs_at_its_time_and_not_before() {
    let mut rig = rig("delay(5ms)@write:n=1");
    let data = fill(&mut rig, 1);
    rig.submit(1, write(0, 2));
    let start = rig.ns;
    assert_eq!(rig.step_at(start), 1);
    assert_eq!(rig.controller.next_due(), Some(Time::from_ns(start + 5_000_000)));
    rig.submit(1, read(0, 2).prp(DATA + 8192, DATA + 12288));
    rig.step_at(start + 4_999_999);
    assert_eq!(rig.reap(1).len(), 1, "the read overtakes it");
    assert_eq!(rig.peek(DATA + 8192, 1024), vec![0; 1024]);
    rig.step_at(start + 5_000_000);
    assert_eq!((rig.reap(1).len(), rig.controller.next_due()), (1, None));
    assert_eq!(stored(&mut rig, Lba(0)), data);
}

#[test]
fn a_command_that_waits_is_ended_by_abort_and_by_deleting_its_queue() {
    let mut rig = rig("delay(1s)");
    let first = rig.submit(1, write(0, 2));
    let second = rig.submit(1, write(4, 2));
    rig.step();
    assert_eq!(rig.admin(Cmd::new(8).with(10, u32::from(first) << 16 | 1)).dw0, 0);
    let ended = rig.reap(1);
    assert_eq!((ended[0].cid, ended[0].status), (first, Status::COMMAND_ABORT_REQUESTED));
    assert_eq!(rig.admin(Cmd::new(0).with(10, 1)).status, Status::SUCCESS);
    let ended = rig.reap(1);
    assert_eq!((ended[0].cid, ended[0].status), (second, Status::ABORTED_SQ_DELETION));
    assert_eq!(rig.controller.next_due(), None);
}

#[test]
fn completions_come_twice_or_again_later() {
    let mut twice = rig("twice@n=1");
    let cid = twice.submit(1, read(0, 1));
    twice.step();
    assert_eq!(twice.reap(1).iter().map(|done| done.cid).collect::<Vec<_>>(), [cid, cid]);
    let mut again = rig("again(3ms)@n=1");
    let cid = again.submit(1, read(0, 1));
    let start = again.ns;
    again.step_at(start);
    assert_eq!(again.reap(1).len(), 1);
    again.step_at(start + 2_999_999);
    assert!(again.reap(1).is_empty());
    again.step_at(start + 3_000_000);
    assert_eq!(again.reap(1)[0].cid, cid);
}

#[test]
fn a_status_is_given_with_its_flags_and_nothing_is_done() {
    let mut rig = rig("status(2:80:more)@write:n=1+status(0:0)@write:n=2");
    fill(&mut rig, 1);
    assert_eq!(rig.io(write(0, 2)), Status::WRITE_FAULT.with_more(true));
    rig.ok(write(0, 2));
    assert_eq!(stored(&mut rig, Lba(0)), vec![0; 1024], "claimed and not done");
}

#[test]
fn fields_of_completions_are_wrong_and_not_by_accident_right() {
    for fault in ["cid", "sqid", "sqhd"] {
        for seed in 0..50 {
            let mut rig = Rig::new(&format!("mem=1M,seed={seed},faults={fault}"));
            let cid = rig.submit(1, read(0, 1));
            rig.step();
            let done = rig.reap(1)[0];
            let wrong = [done.cid != cid, done.sqid != 1, done.sqhd != 1];
            assert_eq!(wrong, ["cid", "sqid", "sqhd"].map(|name| name == fault), "seed {seed}");
            assert!(fault != "sqhd" || u32::from(done.sqhd) >= QUEUE_ENTRIES);
        }
    }
}

#[test]
fn a_completion_of_the_wrong_phase_hides_all_that_follow() {
    let mut rig = rig("phase@n=2");
    for _ in 0..4 {
        rig.submit(1, read(0, 1));
    }
    assert_eq!(rig.step(), 4);
    assert_eq!(rig.reap(1).len(), 1);
    rig.submit(1, read(0, 1));
    rig.step();
    assert!(rig.reap(1).is_empty());
    // The queue works again once recreated.
    rig.admin(Cmd::new(0).with(10, 1));
    rig.admin(Cmd::new(4).with(10, 1));
    rig.poke(IO_SQ, &[0; 0x2000]);
    rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
    rig.ok(read(0, 1));
}

#[test]
fn bad_media_reads_again_once_it_is_written() {
    let mut rig = rig("media@read:n=1+media@write:n=2");
    let data = fill(&mut rig, 1);
    rig.ok(write(0, 2));
    assert_eq!(rig.io(read(1, 1)), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(rig.io(read(0, 4)), Status::UNRECOVERED_READ_ERROR);
    let compare = Cmd::new(5).nsid(1).lbas(1, 1).prp(DATA, 0);
    assert_eq!(rig.io(compare), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(rig.io(Cmd::new(0x0c).nsid(1).lbas(0, 2)), Status::UNRECOVERED_READ_ERROR);
    rig.ok(read(0, 1));
    assert_eq!(rig.peek(DATA, 512), data[..512], "its neighbour is sound");
    assert_eq!(rig.io(write(0, 2)), Status::WRITE_FAULT);
    assert_eq!(rig.io(read(0, 1)), Status::UNRECOVERED_READ_ERROR, "half written is not readable");
    let data = fill(&mut rig, 2);
    rig.ok(write(0, 2));
    assert_eq!(stored(&mut rig, Lba(0)), data);
    rig.controller.set_hook(|_, _| Verdict::MediaError);
    assert_eq!(rig.io(read(0, 2)), Status::UNRECOVERED_READ_ERROR);
    rig.controller.clear_hook();
    rig.ok(Cmd::new(8).nsid(1).lbas(0, 2));
    assert_eq!(stored(&mut rig, Lba(0)), vec![0; 1024], "zeroes were written");
}

#[test]
fn rot_flips_one_stored_bit_and_says_nothing() {
    for tail in ["mem=1M", "mem=1M,vwc=on", "mem=1M,lba=4096"] {
        for seed in 0..20 {
            for fault in ["rot@write:n=1", "rot@read:n=1"] {
                let mut rig = Rig::new(&format!("{tail},seed={seed},faults={fault}"));
                let len = 2 * rig.controller.options().lba_bytes[0] as usize;
                let data = pattern(len, 1);
                rig.poke(DATA, &data);
                rig.ok(write(0, 2));
                for _ in 0..2 {
                    rig.ok(read(0, 2));
                    let found = rig.peek(DATA, len);
                    let flipped: u32 =
                        found.iter().zip(&data).map(|(a, b)| (a ^ b).count_ones()).sum();
                    assert_eq!(flipped, 1, "{tail} {fault} seed {seed}");
                }
            }
        }
    }
}

#[test]
fn a_misdirected_write_lands_elsewhere_in_its_namespace() {
    for seed in 0..50 {
        let mut rig = Rig::new(&format!("mem=8k,namespaces=2,seed={seed},faults=misdirect@n=1"));
        let data = fill(&mut rig, 1);
        rig.ok(write(2, 2));
        assert_eq!(rig.controller.fault_counts(), [1]);
        // Eight LBAs: all of this namespace, and the other namespace's.
        let all = |rig: &mut Rig, nsid| {
            rig.ok(read(0, 8).nsid(nsid));
            rig.peek(DATA, 4096)
        };
        let found = all(&mut rig, 1);
        assert_ne!(found[1024..2048], data[..], "seed {seed}");
        assert!((0..7).any(|lba| found[lba * 512..][..1024] == data), "seed {seed}: nowhere");
        assert_eq!(all(&mut rig, 2), vec![0; 4096]);
    }
}

#[test]
fn an_abort_can_be_refused() {
    let mut rig = rig("hold@read+noabort@n=1");
    let cid = rig.submit(1, read(0, 1));
    rig.step();
    let abort = Cmd::new(8).with(10, u32::from(cid) << 16 | 1);
    let refused = rig.admin(abort);
    assert_eq!((refused.dw0, refused.status), (1, Status::SUCCESS));
    assert!(rig.reap(1).is_empty());
    assert_eq!(rig.admin(abort).dw0, 0);
    assert_eq!(rig.reap(1)[0].status, Status::COMMAND_ABORT_REQUESTED);
}

#[test]
fn a_controller_that_fails_or_goes_runs_nothing_after() {
    for (fault, csts) in [("cfs@n=2", 3), ("remove@n=2", u64::from(u32::MAX))] {
        let mut rig = rig(fault);
        for _ in 0..4 {
            rig.submit(1, read(0, 1));
        }
        rig.step();
        assert_eq!((rig.reap(1).len(), rig.csts()), (1, csts), "{fault}");
        assert_eq!(rig.controller.is_removed(), fault.starts_with("remove"));
        assert_eq!(rig.step(), 0);
    }
}

#[test]
fn another_plan_can_take_over() {
    let mut rig = rig("status(0:6)@io");
    assert_eq!(rig.io(read(0, 1)), Status::INTERNAL_ERROR);
    rig.controller.set_faults(Default::default());
    rig.ok(read(0, 1));
    let plan: FaultPlan = "media@read:n=2".parse().expect("a plan");
    rig.controller.set_faults(plan.clone());
    rig.ok(read(0, 1));
    assert_eq!(rig.io(read(0, 1)), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(rig.controller.options().faults, plan);
}

#[test]
fn one_seed_makes_one_run() {
    let run = |seed: u64| {
        let faults = "lose@p=0.05+cid@p=0.05+status(0:6)@p=0.1+rot@write:p=0.2+misdirect@p=0.1";
        let mut rig = Rig::new(&format!("mem=64k,vwc=16k,seed={seed},faults={faults}"));
        let mut seen = Vec::new();
        for turn in 0..200u64 {
            fill(&mut rig, turn as u8);
            let command = if turn % 3 == 0 { read(turn % 60, 2) } else { write(turn % 60, 2) };
            rig.submit(1, command);
            rig.step();
            seen.extend(rig.reap(1).iter().map(|done| (done.cid, done.status)));
        }
        (seen, rig.controller.fault_counts())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
