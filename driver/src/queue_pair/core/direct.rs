//! Which transfers become a command at once, and what that says.

use std::sync::Arc;

use super::*;
use crate::bus::soft::{Drive, SoftBus};
use crate::memory::Buffer;
use crate::spec::{IoOpcode, Lba, Nsid};
use crate::transfer::SglSupport;
use crate::{Controller, ControllerOptions};

const LBA_BYTES: u64 = 512;
/// 4 MiB of 512 bytes.
const LBAS: u64 = 8192;
const BOUNDARY: u64 = 6144;
const MAX_BYTES: u64 = 2 << 20;

fn open(options: &str) -> (Controller, Namespace) {
    let bus = SoftBus::new(options.parse().expect("options"), Drive::Manual).expect("a bus");
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default())
        .expect("a controller");
    let namespace = controller.namespace(Nsid(1)).expect("a namespace");
    (controller, namespace)
}

fn read(namespace: &Namespace, lba: u64) -> LbaCommand<'_> {
    LbaCommand { namespace, opcode: IoOpcode::READ, lba: Lba(lba), control: 0 }
}

/// Returns the pointer that the specification asks for, where it needs no list built.
fn pointer(namespace: &Namespace, buffer: &Buffer, stats: &mut Stats) -> Option<Pointer> {
    let Segment { iova: Iova(at), len } = buffer.segment(0);
    let is_whole = |unit: u64| at.is_multiple_of(unit) && len.is_multiple_of(unit);
    let takes_sgl = match namespace.limits().sgl {
        SglSupport::None => false,
        SglSupport::Byte => true,
        SglSupport::Dword => is_whole(4),
    };
    if takes_sgl {
        stats.sgl_commands = 1;
        return Some(Pointer::data_block(Iova(at), len as u32));
    }
    let pages: Vec<u64> = (at / 4096..(at + len).div_ceil(4096)).map(|page| page * 4096).collect();
    match pages[..] {
        _ if !at.is_multiple_of(4) => None,
        [_] => Some(Pointer::prps(Iova(at), Iova(0))),
        [_, second] => Some(Pointer::prps(Iova(at), Iova(second))),
        _ => {
            stats.prebuilt_lists = 1;
            let bytes = (pages.len() as u64 - 1) * 4096;
            let list = buffer.prebuilt(0)?.list(Iova(pages[1]), bytes);
            Some(Pointer::prps(Iova(at), list))
        }
    }
}

fn expected(namespace: &Namespace, buffer: &Buffer, lba: u64) -> Option<([u64; 8], Stats)> {
    let len = buffer.len() as u64;
    let end = lba + len / LBA_BYTES;
    let is_whole = len > 0 && len.is_multiple_of(LBA_BYTES) && len <= MAX_BYTES;
    if !is_whole || end > LBAS || (lba < BOUNDARY && end > BOUNDARY) {
        return None;
    }
    let mut stats = Stats { bytes: len, ..Stats::default() };
    let pointer = pointer(namespace, buffer, &mut stats)?;
    let tags = namespace.prinfo().tags(Lba(lba));
    Some((read(namespace, lba).qwords(Lba(lba), len / LBA_BYTES, pointer, tags), stats))
}

#[test]
fn a_transfer_is_one_command_where_limits_and_its_address_allow_it() {
    let lens = [0, 1, 511, 512, 513, 3584, 4096, 4608, 8192, 8704, 12288, 65536];
    let long = [255 * 4096, 256 * 4096, 257 * 4096, 511 * 4096, MAX_BYTES - 512, MAX_BYTES];
    let lens: Vec<u64> = lens.into_iter().chain(long).chain([MAX_BYTES + 512]).collect();
    for sgl in ["off", "dword", "on"] {
        let (controller, namespace) = open(&format!("mem=4M,sgl={sgl},mdts=9,noiob={BOUNDARY}"));
        let mut head = controller.allocate(3 << 20).expect("memory");
        for offset in [0, 1, 2, 4, 512, 2048, 4092, 4096, 256 * 4096, 257 * 4096 + 8] {
            for len in &lens {
                let count = len / LBA_BYTES;
                let mut buffer = head.split_off(offset);
                let tail = buffer.split_off((*len as usize).min(buffer.len()));
                for lba in [0, BOUNDARY - count, BOUNDARY, LBAS - count, LBAS - count + 1, LBAS + 9]
                    .into_iter()
                    .flat_map(|lba| [lba, lba.saturating_sub(1)])
                {
                    let mut stats = Stats::default();
                    let transfer = read(&namespace, lba);
                    let command = in_one(namespace.domain(), &mut stats, &transfer, &buffer);
                    let expected = expected(&namespace, &buffer, lba);
                    let case = format!("sgl={sgl}, {len} bytes from {offset} on LBA {lba}");
                    assert_eq!(command, expected.as_ref().map(|(words, _)| *words), "{case}");
                    assert!(expected.is_none_or(|(_, due)| due == stats), "{case}");
                }
                buffer.join(tail).expect("split off");
                head.join(buffer).expect("split off");
            }
        }
    }
}

#[test]
fn the_second_command_counts_as_the_first() {
    for (sgl, is_sgl) in [("off", 0), ("on", 1)] {
        let (controller, namespace) = open(&format!("mem=4M,mdts=9,sgl={sgl}"));
        let buffer = controller.allocate(65536).expect("memory");
        let mut stats = Stats::default();
        for _ in 0..2 {
            in_one(namespace.domain(), &mut stats, &read(&namespace, 0), &buffer).expect("plain");
        }
        let counted = (stats.bytes, stats.sgl_commands, stats.prebuilt_lists);
        assert_eq!(counted, (2 * 65536, 2 * is_sgl, 2 - 2 * is_sgl));
    }
}

#[test]
fn what_is_of_several_segments_or_of_another_controller_is_left_to_the_planner() {
    let (controller, namespace) = open("mem=4M");
    let (other, theirs) = open("mem=4M");
    let domain = namespace.domain();
    let made = |namespace: &Namespace, buffers: Vec<Buffer>| {
        in_one(domain, &mut Stats::default(), &read(namespace, 0), &buffers).is_some()
    };
    let ours = || controller.allocate(4096).expect("memory");
    assert!(made(&namespace, vec![ours()]));
    assert!(!made(&namespace, vec![ours(), ours()]) && !made(&namespace, vec![]));
    assert!(!made(&theirs, vec![ours()]));
    assert!(!made(&namespace, vec![other.allocate(4096).expect("memory")]));
    assert!(!made(&theirs, vec![other.allocate(4096).expect("memory")]));
}
