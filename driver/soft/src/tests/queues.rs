//! Creating and deleting queues, wrapping and full completion queues, aborting.

use super::*;
use crate::Verdict;
use std::sync::{Arc, Mutex};

fn create_cq(qid: u32, entries_z: u32, cdw11: u32, base: u64) -> Cmd {
    Cmd::new(5).with(10, entries_z << 16 | qid).with(11, cdw11).prp(base, 0)
}

fn create_sq(qid: u32, entries_z: u32, cdw11: u32, base: u64) -> Cmd {
    Cmd::new(1).with(10, entries_z << 16 | qid).with(11, cdw11).prp(base, 0)
}

#[test]
fn each_bad_completion_queue_gets_its_status() {
    let mut rig = Rig::new("mem=1M,ioqueues=4,mqes=128");
    for (command, status) in [
        (create_cq(0, 63, 1, DATA), Status::INVALID_QUEUE_IDENTIFIER),
        (create_cq(1, 63, 1, DATA), Status::INVALID_QUEUE_IDENTIFIER),
        (create_cq(5, 63, 1, DATA), Status::INVALID_QUEUE_IDENTIFIER),
        (create_cq(2, 0, 1, DATA), Status::INVALID_QUEUE_SIZE),
        (create_cq(2, 128, 1, DATA), Status::INVALID_QUEUE_SIZE),
        (create_cq(2, 63, 5 << 16 | 3, DATA), Status::INVALID_INTERRUPT_VECTOR),
        (create_cq(2, 63, 0, DATA), Status::INVALID_FIELD_IN_COMMAND),
        (create_cq(2, 63, 1, DATA + 8), Status::PRP_OFFSET_INVALID),
        (create_cq(2, 127, 4 << 16 | 3, DATA), Status::SUCCESS),
    ] {
        assert_eq!(rig.admin(command).status, status);
    }
}

#[test]
fn each_bad_submission_queue_gets_its_status() {
    let mut rig = Rig::new("mem=1M,ioqueues=4,mqes=128");
    for (command, status) in [
        (create_sq(2, 63, 2 << 16 | 1, DATA), Status::COMPLETION_QUEUE_INVALID),
        (create_sq(2, 63, 1, DATA), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(2, 63, 9 << 16 | 1, DATA), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(0, 63, 1 << 16 | 1, DATA), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(1, 63, 1 << 16 | 1, DATA), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(2, 0, 1 << 16 | 1, DATA), Status::INVALID_QUEUE_SIZE),
        (create_sq(2, 63, 1 << 16, DATA), Status::INVALID_FIELD_IN_COMMAND),
        (create_sq(2, 63, 1 << 16 | 1, DATA + 64), Status::PRP_OFFSET_INVALID),
        (create_sq(2, 63, 1 << 16 | 1, DATA), Status::SUCCESS),
    ] {
        assert_eq!(rig.admin(command).status, status);
    }
}

#[test]
fn io_queues_want_their_entry_sizes() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.controller.write_register(0x14, 4, 1);
    assert_eq!(rig.admin(create_cq(1, 63, 1, DATA)).status, Status::INVALID_QUEUE_SIZE);
}

#[test]
fn deletion_goes_in_order() {
    let mut rig = Rig::new("mem=1M");
    let delete = |opcode, qid| Cmd::new(opcode).with(10, qid);
    assert_eq!(rig.admin(delete(4, 1)).status, Status::INVALID_QUEUE_DELETION);
    assert_eq!(rig.admin(delete(0, 0)).status, Status::INVALID_QUEUE_IDENTIFIER);
    assert_eq!(rig.admin(delete(4, 0)).status, Status::INVALID_QUEUE_IDENTIFIER);
    assert_eq!(rig.admin(delete(0, 1)).status, Status::SUCCESS);
    assert_eq!(rig.admin(delete(0, 1)).status, Status::INVALID_QUEUE_IDENTIFIER);
    assert_eq!(rig.admin(delete(4, 1)).status, Status::SUCCESS);
    assert_eq!(rig.admin(delete(4, 1)).status, Status::INVALID_QUEUE_IDENTIFIER);
    rig.poke(IO_CQ, &[0; 4096]);
    rig.add_queue(1, IO_SQ, IO_CQ, 2);
    rig.ok(read(0, 1));
}

#[test]
fn queues_wrap_and_the_phase_turns() {
    let mut rig = Rig::admin_only("mem=1M");
    rig.add_queue(1, IO_SQ, IO_CQ, 3);
    for turn in 1..20u16 {
        let done = rig.execute(1, read(0, 1));
        assert_eq!(done.sqhd, turn % 3);
    }
}

#[test]
fn a_full_completion_queue_is_never_overwritten() {
    let mut rig = Rig::admin_only("mem=1M");
    // Submission queue 1 has 64 entries, its completion queue only 4.
    assert_eq!(rig.admin(create_cq(1, 3, 1, IO_CQ)).status, Status::SUCCESS);
    assert_eq!(rig.admin(create_sq(1, 63, 1 << 16 | 1, IO_SQ)).status, Status::SUCCESS);
    rig.track(1, IO_SQ, IO_CQ, 64);
    let cids: Vec<u16> = (0..10).map(|_| rig.post(1, read(0, 1))).collect();
    rig.ring(1);
    rig.rings.get_mut(&1).expect("queue").entries = 4;
    let mut seen = Vec::new();
    for _ in 0..5 {
        rig.step();
        rig.step();
        let done: Vec<Done> = std::iter::from_fn(|| rig.take_completion(1)).take(8).collect();
        assert!(done.len() <= 3, "{} completions in a queue of 4", done.len());
        seen.extend(done.iter().map(|done| done.cid));
        let head = rig.rings[&1].head;
        rig.ring_doorbell(3, head);
    }
    assert_eq!(seen, cids);
}

/// Notes which entries of the I/O completion queue are posted, in order.
struct Posts<'a> {
    ram: &'a Ram,
    entries: RefCell<Vec<u64>>,
}

impl HostMemory for Posts<'_> {
    fn read(&self, iova: Iova, into: &mut [u8]) -> DmaResult {
        self.ram.read(iova, into)
    }

    fn write(&self, iova: Iova, from: &[u8]) -> DmaResult {
        self.ram.write(iova, from)
    }

    fn load32(&self, iova: Iova) -> Result<u32, Fault> {
        self.ram.load32(iova)
    }

    fn store32(&self, iova: Iova, value: u32) -> DmaResult {
        self.ram.store32(iova, value)
    }

    fn post(&self, iova: Iova, entry: &[u8; 16]) -> DmaResult {
        self.entries.borrow_mut().push((iova.0 - IO_CQ) / 16);
        self.ram.post(iova, entry)
    }
}

#[test]
fn completions_of_a_cache_line_come_together_and_none_waits_for_another_command() {
    let mut rig = Rig::admin_only("null");
    rig.add_queue(1, IO_SQ, IO_CQ, 10);
    for (commands, posted) in [
        (6, vec![3, 2, 1, 0, 5, 4]),
        (1, vec![6]),
        (4, vec![7, 9, 8, 0]),
        (9, vec![3, 2, 1, 7, 6, 5, 4, 9, 8]),
    ] {
        let cids: Vec<u16> = (0..commands).map(|_| rig.post(1, read(0, 1))).collect();
        rig.ring(1);
        let posts = Posts { ram: &rig.ram, entries: RefCell::default() };
        rig.controller.step(&posts, Time::ZERO);
        assert_eq!(posts.entries.into_inner(), posted);
        assert_eq!(rig.reap(1).iter().map(|done| done.cid).collect::<Vec<_>>(), cids);
    }
}

#[test]
fn a_script_finds_the_completions_of_all_commands_before() {
    let mut rig = Rig::new("null");
    rig.controller.set_hook(|sqe, qid| match (qid.0, sqe.cid().0 % 3) {
        (1, 0) => Verdict::Fatal,
        _ => Verdict::Run,
    });
    let cids: Vec<u16> = (0..3).map(|_| rig.post(1, read(0, 1))).collect();
    let done = cids.iter().take_while(|cid| *cid % 3 != 0).count();
    rig.ring(1);
    rig.step();
    assert_eq!(rig.reap(1).len(), done);
}

#[test]
fn impossible_doorbells_are_ignored() {
    let mut rig = Rig::new("mem=1M");
    rig.ring_doorbell(2, 64);
    rig.ring_doorbell(3, 5);
    assert_eq!(rig.step(), 0);
    rig.ok(read(0, 1));
}

#[test]
fn interrupts_follow_vector_enable_and_mask() {
    let mut rig = Rig::admin_only("mem=1M");
    let raised = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&raised);
    rig.controller.set_interrupt(Some(Box::new(move |v| seen.lock().expect("lock").push(v))));
    assert_eq!(rig.admin(create_cq(1, 63, 3 << 16 | 3, IO_CQ)).status, Status::SUCCESS);
    assert_eq!(rig.admin(create_sq(1, 63, 1 << 16 | 1, IO_SQ)).status, Status::SUCCESS);
    rig.track(1, IO_SQ, IO_CQ, 64);
    rig.post(1, read(0, 1));
    rig.ok_pair();
    assert_eq!(*raised.lock().expect("lock"), [0, 0, 3]);
    rig.controller.write_register(0x0c, 4, 8);
    rig.io(read(0, 1));
    assert_eq!(raised.lock().expect("lock").len(), 3);
    rig.controller.write_register(0x10, 4, 8);
    rig.io(read(0, 1));
    assert_eq!(raised.lock().expect("lock").len(), 4);
}

impl Rig {
    /// Rings for one more command than was posted and reaps both completions.
    fn ok_pair(&mut self) {
        self.submit(1, read(0, 1));
        self.step();
        assert_eq!(self.reap(1).len(), 2);
    }
}

#[test]
fn verdicts_lose_fail_alter_and_repeat() {
    let mut rig = Rig::new("mem=1M");
    rig.controller.set_hook(|sqe, qid| match (qid.0, sqe.cdw10.get()) {
        (1, 1) => Verdict::Lose,
        (1, 2) => Verdict::Fail(Status::WRITE_FAULT),
        (1, 3) => Verdict::CorruptCqe(|cqe| cqe.cid.set(0xbad)),
        (1, 4) => Verdict::Twice,
        _ => Verdict::Run,
    });
    for lba in 0..5 {
        rig.submit(1, read(lba, 1));
    }
    let first = rig.cid - 4;
    rig.step();
    let done: Vec<(u16, Status)> = rig.reap(1).iter().map(|d| (d.cid, d.status)).collect();
    assert_eq!(
        done,
        [
            (first, Status::SUCCESS),
            (first + 2, Status::WRITE_FAULT),
            (0xbad, Status::SUCCESS),
            (first + 4, Status::SUCCESS),
            (first + 4, Status::SUCCESS),
        ]
    );
    rig.controller.clear_hook();
    rig.ok(read(1, 1));
}

#[test]
fn abort_ends_held_and_waiting_commands_only() {
    let mut rig = Rig::new("mem=1M");
    rig.controller.set_hook(|sqe, qid| match (qid.0, sqe.cdw10.get()) {
        (1, 1) => Verdict::Hold,
        _ => Verdict::Run,
    });
    let held = rig.submit(1, read(1, 1));
    let ran = rig.submit(1, read(0, 1));
    rig.step();
    assert_eq!(rig.reap(1).len(), 1);
    let abort = |cid: u16| Cmd::new(8).with(10, u32::from(cid) << 16 | 1);
    assert_eq!(rig.admin(abort(held)).dw0, 0);
    let done = rig.reap(1);
    assert_eq!((done[0].cid, done[0].status), (held, Status::COMMAND_ABORT_REQUESTED));
    assert_eq!(rig.admin(abort(held)).dw0, 1);
    assert_eq!(rig.admin(abort(ran)).dw0, 1);
    assert_eq!(rig.admin(Cmd::new(8).with(10, 77)).dw0, 1);
}

#[test]
fn abort_reaches_commands_that_were_not_fetched() {
    let mut rig = Rig::admin_only("mem=1M");
    assert_eq!(rig.admin(create_cq(1, 1, 1, IO_CQ)).status, Status::SUCCESS);
    assert_eq!(rig.admin(create_sq(1, 63, 1 << 16 | 1, IO_SQ)).status, Status::SUCCESS);
    rig.track(1, IO_SQ, IO_CQ, 64);
    // The completion queue has room for one, so the second command waits in the ring.
    rig.submit(1, write(0, 1));
    let waiting = rig.submit(1, write(1, 1));
    rig.step();
    rig.rings.get_mut(&1).expect("queue").entries = 2;
    let abort = Cmd::new(8).with(10, u32::from(waiting) << 16 | 1);
    assert_eq!(rig.admin(abort).dw0, 0);
    assert_eq!(rig.reap(1).len(), 1);
    rig.step();
    let done = rig.reap(1);
    assert_eq!((done[0].cid, done[0].status), (waiting, Status::COMMAND_ABORT_REQUESTED));
}

#[test]
fn held_commands_run_when_released_or_end_with_their_queue() {
    let mut rig = Rig::new("mem=1M");
    rig.controller.set_hook(|_, qid| if qid.0 == 1 { Verdict::Hold } else { Verdict::Run });
    rig.submit(1, read(0, 1));
    rig.step();
    assert!(rig.reap(1).is_empty());
    assert_eq!(rig.controller.release_held(&rig.ram), 1);
    assert_eq!(rig.reap(1)[0].status, Status::SUCCESS);
    rig.submit(1, read(0, 1));
    rig.step();
    assert_eq!(rig.admin(Cmd::new(0).with(10, 1)).status, Status::SUCCESS);
    assert_eq!(rig.reap(1)[0].status, Status::ABORTED_SQ_DELETION);
}
