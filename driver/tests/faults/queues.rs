//! Creating and deleting queues: identifiers, depths, supplied rings, interrupts.
#![allow(unsafe_code)]

use std::io::Read;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use adit_driver::controller::{RawQueuePair, RingDepths, RingSpace, SuppliedRings};
use adit_driver::soft::Verdict;
use adit_driver::spec::{
    AdminOpcode, Cid, DataPointer, Iova, Lba, LbaCount, Nsid, Qid, Sqe, Status,
};
use adit_driver::sys::Atomics;
use adit_driver::{
    Buffer, Controller, ControllerOptions, Error, Placement, QueuePair, QueuePairOptions,
};
use memmap2::{MmapOptions, MmapRaw};

use crate::rig::{Rig, Watch};

const PAGE: usize = 4096;

/// One memory file mapped twice: once for the controller, once for the driver's ring code.
pub(crate) struct Supplied {
    pub(crate) submission: Atomics,
    pub(crate) completion: Atomics,
    pub(crate) registered: Buffer,
    owner: Weak<MmapRaw>,
}

fn memory_file(len: usize) -> std::fs::File {
    let path = std::env::temp_dir().join(format!(
        "adit-rings-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("a file for both mappings");
    std::fs::remove_file(&path).expect("unlinked");
    file.set_len(len as u64).expect("as long as asked");
    file
}

fn first_byte(map: &MmapRaw) -> NonNull<u8> {
    NonNull::new(map.as_mut_ptr()).expect("mapped")
}

/// Makes memory for rings of up to 64 entries, a page each.
fn ring_memory(controller: &Controller) -> Supplied {
    let file = memory_file(2 * PAGE);
    let map = || MmapOptions::new().len(2 * PAGE).map_raw(&file).expect("mapped");
    let (theirs, ours) = (map(), Arc::new(map()));
    let at = first_byte(&theirs);
    // SAFETY: the mapping moves into the registration; its bytes are only used through it.
    let registered = unsafe { controller.register(at, 2 * PAGE, None, Box::new(theirs)) };
    let (at, owner) = (first_byte(&ours), Arc::downgrade(&ours));
    // SAFETY: the mapping is kept by `ours` and no references to its bytes are made.
    let whole = unsafe { Atomics::new(at, 2 * PAGE, ours) };
    Supplied {
        submission: whole.slice(0, PAGE),
        completion: whole.slice(PAGE, PAGE),
        registered: registered.expect("registered"),
        owner,
    }
}

fn placement(rings: &Supplied) -> Placement {
    let iova = rings.registered.iova();
    let space = |memory: &Atomics, offset| {
        // SAFETY: the file's pages are behind both; the registration outlives the queue.
        unsafe { RingSpace::new(memory.clone(), Iova(iova.0 + offset)) }
    };
    Placement::Supplied(SuppliedRings {
        submission: space(&rings.submission, 0),
        completion: space(&rings.completion, PAGE as u64),
        doorbells: None,
    })
}

/// Makes a queue pair on rings in a second mapping.
pub(crate) fn supplied(rig: &Rig, depth: u32) -> (QueuePair<Buffer>, Supplied) {
    let rings = ring_memory(&rig.controller);
    let placement = placement(&rings);
    let options = QueuePairOptions { depth, placement, ..Default::default() };
    (rig.controller.create_queue_pair(options).expect("queue pair"), rings)
}

fn buffer(rig: &Rig, bytes: usize) -> Buffer {
    rig.controller.allocate(bytes).expect("buffer")
}

fn write_and_read(rig: &Rig, pair: &mut QueuePair<Buffer>, byte: u8) {
    let mut data = buffer(rig, 4096);
    data.fill(byte);
    let (mut data, _) = pair.execute(rig.namespace.write(Lba(8), data)).expect("written");
    data.fill(0);
    let (data, _) = pair.execute(rig.namespace.read(Lba(8), data)).expect("read");
    assert!(data.iter().all(|&found| found == byte));
}

#[test]
fn rings_in_a_second_mapping_of_the_callers_work() {
    let rig = Rig::new("mem=16M");
    let (mut pair, rings) = supplied(&rig, 64);
    (0..200).for_each(|turn| write_and_read(&rig, &mut pair, turn));
    assert!(rings.completion.dwords().iter().any(|word| word.load(Ordering::Acquire) != 0));
    assert_eq!(pair.stats().violations(), 0);
    drop(pair);
    drop(rings);
    rig.finish();
}

#[test]
fn supplied_rings_are_freed_with_their_queue_unless_the_controller_cannot_be_stopped() {
    for stuck in [false, true] {
        let rig = Rig::new("mem=16M,nssr=off");
        let (pair, rings) = supplied(&rig, 16);
        if stuck {
            rig.admin(AdminOpcode::DELETE_IO_SQ, Verdict::Lose);
            rig.bus.soft.with_controller(|controller| controller.refuse_disable(true));
            rig.bus.fail_reset();
        }
        let Supplied { submission, completion, owner, .. } = rings;
        drop((submission, completion, pair));
        assert_eq!(owner.upgrade().is_some(), stuck);
    }
}

#[test]
fn supplied_rings_that_are_too_short_or_misaligned_are_refused() {
    let rig = Rig::new("mem=16M");
    let rings = ring_memory(&rig.controller);
    let options =
        QueuePairOptions { depth: 65, placement: placement(&rings), ..Default::default() };
    let error = rig.controller.create_queue_pair::<Buffer>(options).expect_err("65 entries");
    assert!(error.to_string().contains("hold 4160 bytes"), "{error}");
    let mut shifted = ring_memory(&rig.controller);
    shifted.registered = shifted.registered.split_off(8);
    let options =
        QueuePairOptions { depth: 16, placement: placement(&shifted), ..Default::default() };
    let misaligned = rig.controller.create_queue_pair::<Buffer>(options);
    assert!(misaligned.expect_err("8 bytes off").to_string().contains("4 KiB aligned"));
    drop((rings, shifted));
    rig.finish();
}

/// Writes `sqe` to entry `at` and rings, as an agent without the driver would.
fn post_by_hand(raw: &RawQueuePair, at: u32, sqe: Sqe) {
    let words = raw.submission().memory().expect("host memory").dwords();
    for (index, value) in sqe.to_dwords().into_iter().enumerate() {
        words[at as usize * 16 + index].store(value, Ordering::Relaxed);
    }
    raw.doorbells().0.ring((at + 1) % raw.depths().submission);
}

#[test]
fn a_raw_queue_pair_can_be_driven_by_hand() {
    let options = ControllerOptions { shadow_doorbells: false, ..Default::default() };
    let rig = Rig::open(Watch::new("mem=16M"), &options);
    let rings = ring_memory(&rig.controller);
    // SAFETY: the commands below reach a buffer of the test's own.
    let raw = unsafe { rig.controller.create_raw_queue_pair(4, placement(&rings)) }.expect("raw");
    let data = buffer(&rig, 512);
    for turn in 0..10u32 {
        let (at, phase) = (turn % 4, (turn / 4) % 2 == 0);
        let dptr = DataPointer::Prp { prp1: data.iova(), prp2: Iova(0) };
        let sqe =
            Sqe::read(Nsid(1), Lba(0), LbaCount::ONE).with_dptr(dptr).with_cid(Cid(turn as u16));
        post_by_hand(&raw, at, sqe);
        rig.settle();
        let entry =
            &raw.completion().memory().expect("host memory").dwords()[at as usize * 4..][..4];
        let dw3 = entry[3].load(Ordering::Acquire);
        assert_eq!((dw3 & 0xffff, dw3 >> 16 & 1), (turn, u32::from(phase)));
        raw.doorbells().1.ring((at + 1) % 4);
    }
    drop(raw);
    drop((rings, data));
    rig.finish();
}

/// Reads the completion at entry `at`: its identifier and phase.
fn completed(raw: &RawQueuePair, at: u32) -> (u32, u32) {
    let words = raw.completion().memory().expect("host memory").dwords();
    let dw3 = words[at as usize * 4 + 3].load(Ordering::Acquire);
    (dw3 & 0xffff, dw3 >> 16 & 1)
}

#[test]
fn a_deeper_completion_ring_takes_completions_that_the_controller_was_not_told_of() {
    let options = ControllerOptions { shadow_doorbells: false, ..Default::default() };
    let rig = Rig::open(Watch::new("mem=16M"), &options);
    let rings = ring_memory(&rig.controller);
    let depths = RingDepths { submission: 4, completion: 8 };
    // SAFETY: the commands below name no memory.
    let raw = unsafe { rig.controller.create_raw_queue_pair(depths, placement(&rings)) };
    let raw = raw.expect("raw");
    assert_eq!(raw.depths(), depths);
    // With four completion entries, the fourth command would wait for the doorbell.
    for turn in 0..7u32 {
        post_by_hand(&raw, turn % 4, Sqe::flush(Nsid(1)).with_cid(Cid(turn as u16)));
        rig.settle();
        assert_eq!(completed(&raw, turn), (turn, 1));
    }
    post_by_hand(&raw, 3, Sqe::flush(Nsid(1)).with_cid(Cid(7)));
    rig.settle();
    assert_eq!(completed(&raw, 7), (0, 0), "the ring is full");
    raw.doorbells().1.ring(7);
    rig.settle();
    assert_eq!(completed(&raw, 7), (7, 1));
    post_by_hand(&raw, 0, Sqe::flush(Nsid(1)).with_cid(Cid(8)));
    rig.settle();
    assert_eq!(completed(&raw, 0), (8, 0), "the second lap has the other phase");
    drop(raw);
    drop(rings);
    rig.finish();
}

#[test]
fn ring_depths_that_the_controller_or_the_memory_does_not_take_are_refused() {
    let options = ControllerOptions { shadow_doorbells: false, ..Default::default() };
    let rig = Rig::open(Watch::new("mem=16M,mqes=512"), &options);
    let rings = ring_memory(&rig.controller);
    let refusal = |submission, completion| {
        let depths = RingDepths { submission, completion };
        // SAFETY: refused before anything could be written into it.
        let raw = unsafe { rig.controller.create_raw_queue_pair(depths, placement(&rings)) };
        raw.expect_err("refused").to_string()
    };
    for completion in [0, 1, 513] {
        let why = refusal(4, completion);
        assert!(
            why.contains(&format!("{completion} entries")) && why.contains("2 to 512"),
            "{why}"
        );
    }
    assert!(refusal(4, 257).contains("hold 4112 bytes"));
    assert!(refusal(65, 256).contains("hold 4160 bytes"));
    drop(rings);
    rig.finish();
}

#[test]
fn a_raw_queue_pair_beside_shadow_doorbells_is_refused() {
    let rig = Rig::new("mem=16M");
    assert!(rig.controller.info().shadow_doorbells);
    // SAFETY: refused before anything could be written into it.
    let raw = unsafe { rig.controller.create_raw_queue_pair(4, Placement::Host) };
    let error = raw.expect_err("shadows");
    assert!(error.to_string().contains("dbbuf=off"), "{error}");
    rig.finish();
}

#[test]
fn all_identifiers_can_be_used_and_come_back() {
    let rig = Rig::new("mem=16M,ioqueues=3");
    assert_eq!(rig.controller.info().io_queues, 3);
    for _ in 0..3 {
        let mut pairs: Vec<_> = (0..3).map(|_| rig.pair::<Buffer>(8)).collect();
        assert!(pairs.iter().map(QueuePair::qid).eq([Qid(1), Qid(2), Qid(3)]));
        let error = rig.controller.create_queue_pair::<Buffer>(Default::default());
        let error = error.expect_err("none left").to_string();
        assert!(error.contains("all 3 I/O queues the controller granted are in use"), "{error}");
        pairs.iter_mut().for_each(|pair| write_and_read(&rig, pair, 7));
    }
    rig.finish();
}

#[test]
fn a_controller_with_one_queue_is_enough() {
    let rig = Rig::new("mem=16M,ioqueues=1");
    let mut pair = rig.pair(8);
    write_and_read(&rig, &mut pair, 1);
    assert!(rig.controller.create_queue_pair::<Buffer>(Default::default()).is_err());
    drop(pair);
    rig.finish();
}

#[test]
fn a_queue_made_anew_starts_from_zero() {
    for tail in ["mem=16M,ioqueues=1", "mem=16M,ioqueues=1,dbbuf=off"] {
        let rig = Rig::new(tail);
        for turn in 1..20 {
            let mut pair = rig.pair::<Buffer>(16);
            (0..turn).for_each(|byte| write_and_read(&rig, &mut pair, byte));
            assert_eq!(pair.stats().violations(), 0);
        }
        assert_eq!(rig.controller.poll(rig.now()), None, "no doorbell was wrong");
        rig.finish();
    }
}

#[test]
fn depths_from_two_to_the_limit_work_and_more_is_refused() {
    let rig = Rig::new("mem=16M,mqes=128");
    for depth in [2, 3, 128] {
        let mut pair = rig.pair(depth);
        assert_eq!(pair.capacity(), depth as usize - 1);
        (0..150).for_each(|byte| write_and_read(&rig, &mut pair, byte));
    }
    for depth in [0, 1, 129, u32::MAX] {
        let options = QueuePairOptions { depth, ..Default::default() };
        let error = rig.controller.create_queue_pair::<Buffer>(options).expect_err("too deep");
        assert!(error.to_string().contains("takes 2 to 128 (CAP.MQES)"), "{error}");
    }
    rig.finish();
}

#[test]
fn a_controller_with_queues_of_two_entries_works() {
    let rig = Rig::new("mem=16M,mqes=2");
    let mut pair = rig.pair(2);
    (0..10).for_each(|byte| write_and_read(&rig, &mut pair, byte));
    drop(pair);
    rig.finish();
}

#[test]
fn a_queue_larger_than_the_memory_buffer_is_an_error_and_takes_nothing() {
    let options = ControllerOptions { cmb: true, ..Default::default() };
    let rig = Rig::open(Watch::new("mem=16M,cmb=8k"), &options);
    let on_device = |depth| {
        let placement = Placement::Cmb;
        let options = QueuePairOptions { depth, placement, ..Default::default() };
        rig.controller.create_queue_pair::<Buffer>(options)
    };
    let error = on_device(256).expect_err("16 KiB").to_string();
    assert!(error.contains("no 16384 bytes left"), "{error}");
    for _ in 0..3 {
        let mut pair = on_device(128).expect("8 KiB");
        assert!(on_device(64).is_err());
        write_and_read(&rig, &mut pair, 3);
    }
    rig.finish();
}

#[test]
fn a_queue_without_a_doorbell_gives_its_place_in_the_memory_buffer_back() {
    let options = ControllerOptions { cmb: true, ..Default::default() };
    let rig = Rig::open(Watch::new("mem=16M,cmb=8k"), &options);
    let on_device = || {
        let placement = Placement::Cmb;
        let options = QueuePairOptions { depth: 128, placement, ..Default::default() };
        rig.controller.create_queue_pair::<Buffer>(options)
    };
    rig.bus.hide_doorbells(true);
    (0..3).for_each(|_| drop(on_device().expect_err("no doorbell")));
    rig.bus.hide_doorbells(false);
    drop(on_device().expect("all of the buffer"));
    rig.finish();
}

#[test]
fn a_refused_queue_gives_its_identifier_back() {
    for opcode in [AdminOpcode::CREATE_IO_CQ, AdminOpcode::CREATE_IO_SQ] {
        let rig = Rig::new("mem=16M,ioqueues=1");
        rig.admin(opcode, Verdict::Fail(Status::INTERNAL_ERROR));
        for _ in 0..3 {
            let error = rig.controller.create_queue_pair::<Buffer>(Default::default());
            assert!(matches!(error, Err(Error::Status { .. })));
        }
        rig.clear_hook();
        write_and_read(&rig, &mut rig.pair(8), 4);
        rig.finish();
    }
}

#[test]
fn a_queue_that_cannot_be_deleted_takes_the_controller_out_of_service() {
    let rig = Rig::new("mem=16M");
    rig.hook(|sqe, qid| match (qid.is_admin(), sqe.admin_opcode()) {
        (true, AdminOpcode::CREATE_IO_SQ | AdminOpcode::DELETE_IO_CQ) => {
            Verdict::Fail(Status::INTERNAL_ERROR)
        }
        _ => Verdict::Run,
    });
    assert!(rig.controller.create_queue_pair::<Buffer>(Default::default()).is_err());
    assert!(rig.controller.check().is_err(), "its completion queue may still be written");
    rig.finish();
}

#[test]
fn completions_make_their_queues_interrupt_readable() {
    let options = ControllerOptions { interrupts: true, ..Default::default() };
    let rig = Rig::open(Watch::new("mem=16M,ioqueues=2"), &options);
    let (mut first, second) = (rig.pair::<Buffer>(8), rig.pair::<Buffer>(8));
    let count = |pair: &QueuePair<Buffer>| {
        let fd = pair.interrupt().expect("a vector").as_fd().try_clone_to_owned();
        let mut bytes = [0; 8];
        let read = std::fs::File::from(fd.expect("descriptor")).read(&mut bytes);
        read.ok().and_then(|_| NonZero::new(u64::from_ne_bytes(bytes)))
    };
    assert_eq!(count(&first), None);
    first.submit(rig.now(), rig.namespace.read(Lba(0), buffer(&rig, 512))).expect("room");
    rig.settle();
    assert_eq!((count(&first), count(&second)), (NonZero::new(1), None));
    assert_eq!(first.poll(rig.now(), drop), 1);
    drop((first, second));
    rig.finish();
}

#[test]
fn a_polled_queue_has_no_interrupt() {
    let rig = Rig::new("mem=16M");
    assert!(rig.pair::<Buffer>(8).interrupt().is_none());
}
