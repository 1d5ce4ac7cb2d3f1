//! A protected namespace: which faults below it the controller detects, and which it cannot.
//!
//! The software controller generates and checks guard and tags; the driver only requests that in its commands, and
//! transfers data alone.

use adit_driver::soft::Verdict;
use adit_driver::spec::{CopyRange, IoOpcode, Lba, LbaCount, Status};
use adit_driver::{
    Buffer, Command, Error, IoBuffer, Protection, QueuePair, QueuePairOptions, RejectReason,
};

use crate::Device;

const BYTES: usize = 32 << 10;
const KINDS: [Protection; 3] = [Protection::Type1, Protection::Type2, Protection::Type3];

fn protected(kind: Protection, more: &str) -> Device {
    let device = Device::new(&format!("mem=16M,pi={}{more}", kind.number()));
    assert_eq!(device.namespace.protection(), Some(kind));
    device
}

fn pair<B: IoBuffer>(device: &Device) -> QueuePair<B> {
    device.controller.create_queue_pair(QueuePairOptions::default()).expect("a queue pair")
}

/// Runs a command on its own queue.
fn run<B: IoBuffer>(device: &Device, command: Command<'_, B>) -> Result<B, Status> {
    match pair(device).execute(command) {
        Ok((buffer, _)) => Ok(buffer),
        Err(Error::Status { status, .. }) => Err(status),
        Err(error) => panic!("{error}"),
    }
}

fn filled(device: &Device, len: usize, byte: u8) -> Buffer {
    let mut buffer = device.controller.allocate(len).expect("memory");
    buffer.split_off(len);
    buffer.fill(byte);
    buffer
}

fn put(device: &Device, lba: u64, byte: u8) {
    run(device, device.namespace.write(Lba(lba), filled(device, BYTES, byte))).expect("written");
}

/// Reads from `lba` on, checks that all bytes are equal and returns that byte.
fn get(device: &Device, lba: u64) -> Result<u8, Status> {
    let read = run(device, device.namespace.read(Lba(lba), filled(device, BYTES, 0xee)))?;
    assert!(read.iter().all(|byte| *byte == read[0]), "one byte, all over");
    Ok(read[0])
}

fn lbas(device: &Device) -> LbaCount {
    LbaCount::new(BYTES as u32 / device.namespace.lba_bytes()).expect("some")
}

/// Applies the verdict to the next command with this opcode.
fn once(device: &Device, opcode: IoOpcode, verdict: Verdict) {
    let mut verdict = Some(verdict);
    device.bus.with_controller(|controller| {
        controller.set_hook(move |sqe, qid| {
            let is_meant = !qid.is_admin() && sqe.io_opcode() == opcode;
            verdict.take_if(|_| is_meant).unwrap_or(Verdict::Run)
        });
    });
}

#[test]
fn what_was_written_reads_back_however_it_is_cut() {
    for kind in KINDS {
        for more in
            ["", ",lba=4096", ",mdts=1", ",mdts=1,sgl=off,noiob=8", ",vwc=on", ",vwc=16k,lba=4096"]
        {
            let device = protected(kind, more);
            for (lba, byte) in [(0, 1), (64, 2), (3, 3)] {
                put(&device, lba, byte);
                assert_eq!(get(&device, lba), Ok(byte), "{kind}{more}");
            }
            let all = lbas(&device);
            run(&device, device.namespace.verify(Lba(3), all)).expect("as it was written");
            run(&device, device.namespace.write(Lba(9), filled(&device, BYTES, 4)).fua())
                .expect("FUA");
            run(&device, device.namespace.flush()).expect("flushed");
            assert_eq!(get(&device, 9), Ok(4), "{kind}{more}");
            assert_eq!(device.bus.dma_faults(), 0, "no byte of metadata moved");
        }
    }
}

#[test]
fn bytes_at_any_address_reach_a_protected_namespace_through_the_same_bounces() {
    let device = protected(Protection::Type1, ",sgl=off");
    // Two pieces that PRPs cannot join.
    let pieces = |byte| {
        let mut first = filled(&device, 8192, byte);
        let mut second = first.split_off(1024);
        second.split_off(4096 + 1024);
        vec![first, second.split_off(1024)]
    };
    run(&device, device.namespace.write(Lba(5), pieces(7))).expect("written");
    let read = run(&device, device.namespace.read(Lba(5), pieces(0))).expect("read");
    assert!(read.iter().all(|piece| piece.iter().all(|byte| *byte == 7)));
}

#[test]
fn what_was_never_written_zeroed_or_deallocated_reads_as_zeros() {
    for kind in KINDS {
        for more in ["", ",lba=4096", ",vwc=on"] {
            let device = protected(kind, more);
            let (all, namespace) = (lbas(&device), &device.namespace);
            assert_eq!(get(&device, 100), Ok(0), "never written");
            for deallocates in [false, true] {
                put(&device, 100, 9);
                run(&device, namespace.write_zeroes(Lba(100), all, deallocates)).expect("zeroed");
                assert_eq!(get(&device, 100), Ok(0), "{kind}{more}");
                run(&device, namespace.verify(Lba(100), all)).expect("zeroes that are protected");
            }
            put(&device, 100, 9);
            let range = adit_driver::spec::DsmRange::new(Lba(100), all.get());
            let command =
                namespace.deallocate(&[range], filled(&device, 4096, 0)).expect("one range");
            run(&device, command).expect("deallocated");
            assert_eq!(get(&device, 100), Ok(0), "{kind}{more}");
        }
    }
}

#[test]
fn a_copy_is_checked_where_it_is_read_and_protected_where_it_is_written() {
    for kind in KINDS {
        let device = protected(kind, "");
        put(&device, 0, 5);
        let copy = |to| {
            let source = CopyRange::new(Lba(0), lbas(&device));
            let buffer = filled(&device, 4096, 0);
            run(&device, device.namespace.copy(Lba(to), &[source], buffer).expect("one source"))
        };
        copy(1000).expect("copied");
        assert_eq!(get(&device, 1000), Ok(5), "{kind}: with tags of where it is now");
        once(&device, IoOpcode::READ, Verdict::Rot { bit: 77 });
        assert_eq!(get(&device, 0), Err(Status::GUARD_CHECK_ERROR));
        assert_eq!(copy(2000).err(), Some(Status::GUARD_CHECK_ERROR), "{kind}");
        assert_eq!(get(&device, 2000), Ok(0), "nothing was copied");
    }
}

#[test]
fn a_flipped_bit_is_a_guard_error_until_it_is_written_again() {
    for kind in KINDS {
        for more in ["", ",vwc=on"] {
            for (opcode, bit) in [(IoOpcode::READ, 0), (IoOpcode::WRITE, 12_345)] {
                let device = protected(kind, more);
                once(&device, opcode, Verdict::Rot { bit });
                put(&device, 40, 1);
                assert_eq!(get(&device, 40), Err(Status::GUARD_CHECK_ERROR), "{kind}{more}");
                let verify = device.namespace.verify(Lba(40), lbas(&device));
                assert_eq!(run(&device, verify).err(), Some(Status::GUARD_CHECK_ERROR));
                assert_eq!(get(&device, 200), Ok(0), "its neighbours are well");
                put(&device, 40, 2);
                assert_eq!(get(&device, 40), Ok(2), "{kind}{more}");
            }
        }
    }
}

#[test]
fn a_misdirected_write_is_found_where_it_landed_and_not_where_it_is_missing() {
    for kind in KINDS {
        let device = protected(kind, "");
        put(&device, 0, 1);
        put(&device, 500, 2);
        once(&device, IoOpcode::WRITE, Verdict::Misdirect { slba: 500 });
        put(&device, 0, 3);
        let found =
            if kind.checks_place() { Err(Status::REFERENCE_TAG_CHECK_ERROR) } else { Ok(3) };
        assert_eq!(get(&device, 500), found, "{kind}");
        assert_eq!(get(&device, 0), Ok(1), "{kind}: old data with a tuple that fits them");
    }
}

#[test]
fn a_misdirected_read_is_a_reference_tag_error() {
    for kind in KINDS {
        let device = protected(kind, "");
        put(&device, 0, 1);
        put(&device, 500, 2);
        once(&device, IoOpcode::READ, Verdict::Misdirect { slba: 500 });
        let found =
            if kind.checks_place() { Err(Status::REFERENCE_TAG_CHECK_ERROR) } else { Ok(2) };
        assert_eq!(get(&device, 0), found, "{kind}");
        assert_eq!(get(&device, 0), Ok(1), "{kind}: the next one is led right");
        // Unwritten LBAs disable checking, so such a read is not detected.
        once(&device, IoOpcode::READ, Verdict::Misdirect { slba: 5000 });
        assert_eq!(get(&device, 0), Ok(0), "{kind}");
    }
}

#[test]
fn a_lost_write_leaves_old_data_that_no_tuple_tells_from_new_ones() {
    for kind in KINDS {
        let device = protected(kind, "");
        put(&device, 0, 1);
        once(&device, IoOpcode::WRITE, Verdict::Fail(Status::SUCCESS));
        put(&device, 0, 2);
        assert_eq!(get(&device, 0), Ok(1), "{kind}");
    }
}

#[test]
fn a_power_cut_takes_an_lba_with_its_tuple_and_a_tear_is_a_guard_error() {
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for seed in 0..40 {
        let tears = seed % 2 == 1;
        let faults = if tears { ",faults=tear" } else { "" };
        let device = protected(Protection::Type1, &format!(",lba=4096,vwc=on,seed={seed}{faults}"));
        put(&device, 0, 1);
        run(&device, device.namespace.flush()).expect("flushed");
        put(&device, 0, 2);
        device.bus.cut_power();
        let Device { bus, controller, namespace } = device;
        drop((namespace, controller));
        bus.restore_power();
        let device = Device::open(bus);
        for lba in 0..lbas(&device).get().into() {
            match run(&device, device.namespace.read(Lba(lba), filled(&device, 4096, 0))) {
                Ok(read) if read.iter().all(|byte| *byte == 1) => old += 1,
                Ok(read) if read.iter().all(|byte| *byte == 2) => new += 1,
                Ok(_) => panic!("seed {seed}: LBA {lba} is torn and reads well"),
                Err(Status::GUARD_CHECK_ERROR) if tears => torn += 1,
                Err(status) => panic!("seed {seed}: LBA {lba}: {status}"),
            }
        }
    }
    assert!(old > 0 && new > 0 && torn > 0, "{old} old, {new} new, {torn} torn");
}

#[test]
fn a_comparison_with_a_protected_namespace_is_refused_before_it_is_sent() {
    let device = protected(Protection::Type1, "");
    let mut pair = pair(&device);
    let compare = device.namespace.compare(Lba(0), filled(&device, BYTES, 0));
    let rejected = pair.submit(device.controller.now(), compare).expect_err("refused");
    assert_eq!(rejected.reason, RejectReason::Protected);
    assert_eq!(rejected.buffer.len(), BYTES, "the buffer comes back");
    assert_eq!(pair.in_flight(), 0);
}
