//! Looks for signatures on devices that the kernel does not manage.
//!
//! Reads the device's ends through a queue into an otherwise empty image of the device's size, and runs the
//! program used for block devices on it. All formats it knows have their signatures there: the ones farthest
//! from the start are VMFS's, at 1 and 2 MiB; the ones farthest from the end are MD's, within 128 KiB, and
//! ZFS's, within 512 KiB.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request, Split};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Completion, Device, Error, RejectReason, Rejected};
use adit_kvstore::{UNIT_BYTES, survey};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::disk::{Signature, signatures_of_file};
use crate::root::Root;

/// Bytes read from the start.
const START_BYTES: u64 = 4 << 20;
/// Bytes read from the end.
const END_BYTES: u64 = 1 << 20;
/// Maximum bytes per read.
const CHUNK_BYTES_MAX: u64 = 1 << 20;
/// Commands in flight.
const DEPTH: u32 = 64;
/// Time until a read is aborted, and then until the abort is given up.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Polling interval.
const LOOK: Duration = Duration::from_micros(50);

/// A read's buffer and its byte offset.
type Chunk = (Buffer, u64);

/// Returns the signatures on `device`.
///
/// # Errors
/// Why the search failed.
pub(super) fn signatures(root: &Root, device: &Device) -> Result<Vec<Signature>, String> {
    let mut image = None;
    let found = each_chunk(device, &ends(device), |offset, data| {
        // Zeroes need neither an image nor the program.
        if data.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        let image = match &image {
            Some(image) => image,
            None => image.insert(empty_image(device.info().bytes)?),
        };
        image.write_all_at(data, offset).map_err(|why| why.to_string())
    });
    found?;
    let Some(image) = image else { return Ok(Vec::new()) };
    let file = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
    // Messages name the device before this text.
    signatures_of_file(root, &file, "it")
}

/// Returns whether the places of signatures hold only zeroes.
///
/// # Errors
/// Why reading failed.
pub(super) fn are_zero(device: &Device) -> Result<bool, String> {
    let mut zero = true;
    each_chunk(device, &ends(device), |_, data| {
        zero &= data.iter().all(|&byte| byte == 0);
        Ok(())
    })?;
    Ok(zero)
}

/// Returns whether the device is one of a store, by either of its superblocks.
///
/// # Errors
/// Why reading failed.
pub(super) fn hold_store(device: &Device) -> Result<bool, String> {
    let lba_bytes = u64::from(device.info().lba_bytes);
    let units = device.info().bytes / UNIT_BYTES;
    let bytes = lba_bytes.max(UNIT_BYTES);
    let mut places = vec![(0, bytes)];
    if units > 1 {
        let last = (units - 1) * UNIT_BYTES;
        places.push((last - last % lba_bytes, bytes));
    }
    places.truncate(units as usize);
    let mut holds = false;
    each_chunk(device, &places, |_, data| {
        holds |= survey::is_superblock(data);
        Ok(())
    })?;
    Ok(holds)
}

/// Creates a sparse file in memory as long as the device.
fn empty_image(bytes: u64) -> Result<File, String> {
    let image = memfd_create("adit-device-image", MFdFlags::MFD_CLOEXEC);
    let image = File::from(image.map_err(|why| why.to_string())?);
    image.set_len(bytes).map_err(|why| why.to_string())?;
    Ok(image)
}

/// Returns the pieces of both ends.
fn ends(device: &Device) -> Vec<(u64, u64)> {
    let info = device.info();
    chunks(info.bytes, info.lba_bytes.into(), info.split(1))
}

/// Reads these pieces, offsets with lengths in bytes, and passes each on, in order of completion.
fn each_chunk(
    device: &Device,
    chunks: &[(u64, u64)],
    mut show: impl FnMut(u64, &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let info = device.info();
    let total: u64 = chunks.iter().map(|&(_, bytes)| bytes).sum();
    let words = |error: Error| error.to_string();
    let mut rest = device.allocate(total as usize).map_err(words)?;
    let depth = DEPTH.min(info.queue_depth_max);
    let options = QueueOptions { depth, timeout: READ_LIMIT, abort_timeout: READ_LIMIT };
    let mut queue = device.create_queue(&options, &[&rest]).map_err(words)?;
    let mut waiting = Vec::with_capacity(chunks.len());
    for &(offset, bytes) in chunks {
        let after = rest.split_off(bytes as usize);
        waiting.push((rest, offset));
        rest = after;
    }
    waiting.reverse();
    let mut in_flight = 0;
    while in_flight > 0 || !waiting.is_empty() {
        in_flight += post(device, &mut queue, &mut waiting)?;
        let mut done = Vec::new();
        in_flight -= queue.poll(device.now(), |completion| done.push(completion));
        if done.is_empty() {
            queue.check().map_err(words)?;
            thread::sleep(LOOK);
        }
        for Completion { buffer: (buffer, offset), result } in done {
            result.map_err(|error| format!("reading at byte {offset} failed: {error}"))?;
            show(offset, &buffer)?;
        }
    }
    Ok(())
}

/// Posts reads from the end of `waiting` until the queue is full; returns how many. A slow drive completes them
/// all at once.
fn post(
    device: &Device,
    queue: &mut DeviceQueue<Chunk>,
    waiting: &mut Vec<Chunk>,
) -> Result<usize, String> {
    let mut posted = 0;
    while let Some(chunk) = waiting.pop() {
        let lba = Lba(chunk.1 / u64::from(device.info().lba_bytes));
        let request = Request { operation: Operation::Read(lba), buffer: chunk };
        match queue.post(device.now(), request) {
            Ok(()) => posted += 1,
            Err(Rejected { buffer, reason: RejectReason::Full }) => {
                waiting.push(buffer);
                break;
            }
            Err(rejected) => return Err(rejected.reason.to_string()),
        }
    }
    queue.ring();
    Ok(posted)
}

/// Returns offset and length in bytes of the reads of a device of `bytes` bytes, in whole LBAs without overlap.
fn chunks(bytes: u64, lba_bytes: u64, split: Split) -> Vec<(u64, u64)> {
    let command_bytes_max = CHUNK_BYTES_MAX.min(split.command_bytes_max);
    let split = Split { command_bytes_max, ..split };
    let bytes = bytes - bytes % lba_bytes;
    let start = START_BYTES.min(bytes);
    let end = bytes.saturating_sub(END_BYTES).next_multiple_of(lba_bytes).max(start);
    let pieces = split.pieces(0..start).chain(split.pieces(end..bytes));
    pieces.map(|piece| (piece.start, piece.end - piece.start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LBA: u64 = 512;

    /// Returns a drive of 64 MiB in memory with `pieces` of data.
    fn device(pieces: &[(u64, &[u8])]) -> Device {
        let target = "soft:mem=64M".parse().expect("a target");
        let device = Device::open(&target, &Default::default()).expect("open");
        let options = QueueOptions { depth: 1, timeout: READ_LIMIT, abort_timeout: READ_LIMIT };
        let mut queue = device.create_queue(&options, &[]).expect("a queue");
        for (offset, data) in pieces {
            let mut buffer = device.allocate(4096).expect("memory");
            buffer[..data.len()].copy_from_slice(data);
            let request = Request { operation: Operation::Write(Lba(offset / LBA)), buffer };
            queue.post(device.now(), request).expect("room");
            queue.ring();
            while queue.poll(device.now(), |done| assert!(done.result.is_ok(), "written")) == 0 {}
        }
        device
    }

    fn found(device: &Device) -> Vec<(String, u64)> {
        let root = Root::open(None).expect("this machine");
        let found = signatures(&root, device).expect("wipefs (util-linux) is installed");
        found.into_iter().map(|signature| (signature.kind, signature.offset)).collect()
    }

    /// Returns a version 1 swap header of 255 pages.
    fn swap_header() -> Vec<u8> {
        let mut page = vec![0; 4096];
        page[1024..1032].copy_from_slice(&[1, 0, 0, 0, 255, 0, 0, 0]);
        page[4086..].copy_from_slice(b"SWAPSPACE2");
        page
    }

    #[test]
    fn a_device_of_zeroes_holds_nothing_and_takes_no_program_to_tell() {
        let device = device(&[]);
        let recorded = Root::recorded("/recorded/nothing = x").expect("a recording");
        assert_eq!(signatures(&recorded, &device), Ok(Vec::new()));
        assert_eq!(are_zero(&device), Ok(true));
    }

    #[test]
    fn signatures_are_found_at_the_start_and_at_the_end() {
        let at_start = device(&[(0, &swap_header())]);
        assert_eq!(found(&at_start), [("swap".to_owned(), 4086)]);
        assert_eq!(are_zero(&at_start), Ok(false));
        // An MD superblock of version 1.0, 8 KiB before the end, aligned to 4 KiB.
        let sector = (64 << 20) / 512 - 16;
        let mut superblock = vec![0; 4096];
        superblock[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
        superblock[144..152].copy_from_slice(&u64::to_le_bytes(sector));
        let at_end = device(&[(sector * 512, &superblock)]);
        assert_eq!(found(&at_end), [("linux_raid_member".to_owned(), sector * 512)]);
    }

    #[test]
    fn data_without_a_signature_is_no_obstacle() {
        let noise: Vec<u8> = (0..4096u32).map(|byte| (byte % 251) as u8 | 1).collect();
        assert_eq!(found(&device(&[(0, &noise), (1 << 20, &noise)])), []);
    }

    #[test]
    fn an_image_that_cannot_be_judged_is_not_taken_for_an_empty_one() {
        let root = Root::recorded("/recorded/wipefs/x = y").expect("a recording");
        let why = signatures(&root, &device(&[(0, &swap_header())])).expect_err("not recorded");
        assert!(why.contains("wipefs"), "{why}");
    }

    #[test]
    fn the_ends_are_read_in_whole_lbas_and_nothing_twice() {
        let split = |kib: u64, boundary_kib: u64| Split {
            command_bytes_max: kib.saturating_mul(1024),
            boundary_bytes: boundary_kib << 10,
            commands: 1,
        };
        let splits = [split(u64::MAX, 0), split(256, 0), split(128, 96)];
        let sizes = [(0, 512), (512, 512), (1 << 20, 4096), (5 << 20, 512), (5 << 40, 4096)];
        for ((bytes, lba), split) in
            sizes.into_iter().flat_map(|size| splits.map(|split| (size, split)))
        {
            let chunks = chunks(bytes, lba, split);
            let mut at = 0;
            for &(offset, len) in &chunks {
                assert!(offset >= at && len > 0 && len <= CHUNK_BYTES_MAX, "{chunks:?}");
                assert_eq!(split.first(offset, len), len, "one command");
                assert!(offset % lba == 0 && len % lba == 0, "{chunks:?}");
                at = offset + len;
            }
            assert_eq!(at, bytes, "the end is read");
            let total: u64 = chunks.iter().map(|&(_, len)| len).sum();
            assert_eq!(total, bytes.min(START_BYTES + END_BYTES));
        }
        // If a file ends within a block, only whole blocks are read.
        assert_eq!(chunks(1000, 512, splits[0]), [(0, 512)]);
    }
}
