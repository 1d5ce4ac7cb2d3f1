//! The memory that the client has handed over.
//!
//! A piece stays mapped here until the client takes it back; then the table's entry goes first, the mapping second. The
//! controller does not step meanwhile, as one thread does both.
//!
//! A client can cause SIGBUS here by shortening the files behind its memory. Files are sealed against that where the
//! kernel allows it, before their length is read. Files that cannot be sealed (on hugetlbfs and `/dev/shm`, memory
//! files made without `MFD_ALLOW_SEALING`) are refused with [`super::Options::sealed_memory_only`]; otherwise, accesses
//! to missing pages read zeroes, and [`ClientMemory::is_lost`] tells the server to drop the client. The same applies to
//! pages that the file system has no room for.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;

use memmap2::MmapOptions;

use super::refusal::{Refusal, ServeResult};
use crate::bus::vfio_user::wire::{DMA_READ, DMA_READ_WRITE, DmaMap, DmaUnmap, UNMAP_ALL};
use crate::sys::fragile::FragileMappings;
use crate::sys::{DmaTable, bus_error, memory_file};

const PAGE: u64 = 4096;
/// Maximum number of pieces (`max_dma_maps`). Each is a mapping of this process, which may have 65530.
pub(super) const PIECES_MAX: usize = 16 << 10;

/// The pieces that the client handed over, by address.
#[derive(Debug, Default)]
pub(super) struct ClientMemory {
    table: DmaTable,
    pieces: BTreeMap<u64, ClientMapping>,
    mappings: FragileMappings,
    /// Bytes that the controller may touch, without those on large pages.
    touchable_bytes: u64,
    /// The most of these, if there is a limit.
    touchable_max: Option<u64>,
    sealed_only: bool,
    warned: bool,
}

#[derive(Debug)]
struct ClientMapping {
    len: u64,
    /// Its part of [`ClientMemory::touchable_bytes`].
    touchable_bytes: u64,
    /// Start of its mapping. Absent for memory that the device may not read, and for read-only files that cannot be
    /// mapped.
    mapping: Option<usize>,
}

impl ClientMemory {
    /// Creates memory that a client hands over up to a limit, if there is one, and perhaps only in sealed files.
    pub(super) fn new(touchable_max: Option<u64>, sealed_only: bool) -> ClientMemory {
        ClientMemory { touchable_max, sealed_only, ..ClientMemory::default() }
    }

    /// Runs `work` with the controller's table.
    #[inline]
    pub(super) fn access<T>(&self, work: impl FnOnce(&DmaTable) -> T) -> T {
        self.mappings.guard(|| work(&self.table))
    }

    /// Returns whether accesses read zeroes in place of memory that the client took away.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.mappings.is_lost()
    }

    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn map(&mut self, ask: &DmaMap, file: Option<File>) -> ServeResult {
        check_place(ask)?;
        if self.pieces.len() >= PIECES_MAX {
            return Err(Refusal::new(
                libc::ENOSPC,
                format!("more than {PIECES_MAX} pieces of memory"),
            ));
        }
        if self.overlaps(ask) {
            let why = format!("{:#x} is already mapped", ask.address);
            return Err(Refusal::new(libc::EEXIST, why));
        }
        let file = file.ok_or_else(|| {
            Refusal::unsupported("no file came with the memory; share it as a memfd")
        })?;
        let touchable_bytes = self.touchable(ask, &file)?;
        let mapping = match ask.flags & DMA_READ_WRITE {
            DMA_READ_WRITE => Some(self.map_file(ask, &file)?),
            // A virtual machine also hands over its ROMs, which need not be memory files.
            DMA_READ => self.map_file(ask, &file).ok(),
            _ => None,
        };
        let touchable_bytes = if mapping.is_some() { touchable_bytes } else { 0 };
        self.touchable_bytes += touchable_bytes;
        self.pieces.insert(ask.address, ClientMapping { len: ask.size, touchable_bytes, mapping });
        Ok(())
    }

    /// Returns how much of a piece this process would be charged for, at worst: a virtual machine's memory has holes, and
    /// may get new ones at any time, so all of it.
    fn touchable(&self, ask: &DmaMap, file: &File) -> ServeResult<u64> {
        let bytes = if memory_file::page_bytes(file) == Some(PAGE) { ask.size } else { 0 };
        let all = self.touchable_bytes.saturating_add(bytes);
        match self.touchable_max {
            Some(most) if bytes > 0 && all > most => {
                let why = format!(
                    "{bytes} bytes of memory make {all}, and pages of it count towards this server's control group \
                     once it touches them: at most {most} are taken; raise the group's limit, or set --memory"
                );
                Err(Refusal::new(libc::ENOMEM, why))
            }
            _ => Ok(bytes),
        }
    }

    /// Maps the whole pages around the piece, which are larger than its own on hugetlbfs; returns where they start.
    fn map_file(&mut self, ask: &DmaMap, file: &File) -> ServeResult<usize> {
        let page = memory_file::page_bytes(file).ok_or_else(|| {
            Refusal::invalid("only memory files are mapped: memfd, /dev/shm, hugetlbfs")
        })?;
        self.seal(file)?;
        let end = check_length(ask, file)?.next_multiple_of(page);
        let start = ask.offset / page * page;
        let len = usize::try_from(end - start).map_err(Refusal::invalid)?;
        let cannot = |why| Refusal::system("cannot map the memory", &why);
        bus_error::catch().map_err(cannot)?;
        let is_writable = ask.flags & DMA_READ_WRITE == DMA_READ_WRITE;
        let mut options = MmapOptions::new();
        options.offset(start).len(len);
        let map = match is_writable {
            true => options.map_raw(file),
            false => options.map_raw_read_only(file),
        };
        let map = map.map_err(cannot)?;
        let mapping = self.mappings.insert(map);
        // SAFETY: the piece starts less than a page behind the start of the mapping, which ends no earlier than it.
        let at = unsafe { mapping.add((ask.offset - start) as usize) };
        // SAFETY: the mapping is readable, and writable where it is said to be, is kept beside the table and leaves it
        // before it ends; no reference to its bytes is made.
        let fits = unsafe { self.table.insert(ask.address, at, ask.size, is_writable) };
        assert!(fits, "overlaps were looked for");
        Ok(mapping.addr().get())
    }

    fn seal(&mut self, file: &File) -> ServeResult {
        if memory_file::seal_length(file) {
            return Ok(());
        }
        let why = "the client can shorten the memory's file while it is mapped here";
        if self.sealed_only {
            return Err(Refusal::new(libc::EPERM, format!("{why}; seal it (F_SEAL_SHRINK)")));
        }
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                "{why}, since it cannot be sealed; a client that does so is disconnected"
            );
        }
        Ok(())
    }

    fn overlaps(&self, ask: &DmaMap) -> bool {
        let before = self.pieces.range(..ask.address + ask.size).next_back();
        before.is_some_and(|(at, piece)| at + piece.len > ask.address)
    }

    /// Unmaps a piece, or all with [`UNMAP_ALL`].
    pub(super) fn unmap(&mut self, ask: &DmaUnmap) -> ServeResult {
        match ask.flags {
            0 => self.unmap_one(ask),
            UNMAP_ALL if (ask.address, ask.size) == (0, 0) => {
                self.unmap_all();
                Ok(())
            }
            UNMAP_ALL => {
                Err(Refusal::invalid("a request for all memory must have address 0 and size 0"))
            }
            flags => Err(Refusal::unsupported(format!("unmap flags {flags:#x}"))),
        }
    }

    fn unmap_one(&mut self, ask: &DmaUnmap) -> ServeResult {
        match self.pieces.get(&ask.address) {
            Some(piece) if piece.len == ask.size => {}
            Some(piece) => {
                let why = format!("{:#x} has {} bytes, not {}", ask.address, piece.len, ask.size);
                return Err(Refusal::invalid(why));
            }
            None => {
                let why = format!("no mapping is at {:#x}", ask.address);
                return Err(Refusal::new(libc::ENOENT, why));
            }
        }
        self.table.remove(ask.address, ask.size);
        if let Some(piece) = self.pieces.remove(&ask.address) {
            self.touchable_bytes -= piece.touchable_bytes;
            if let Some(mapping) = piece.mapping {
                self.mappings.remove(mapping);
            }
        }
        Ok(())
    }

    pub(super) fn unmap_all(&mut self) {
        for (address, piece) in std::mem::take(&mut self.pieces) {
            self.table.remove(address, piece.len);
        }
        self.mappings.clear();
        self.touchable_bytes = 0;
        self.warned = false;
    }
}

fn check_place(ask: &DmaMap) -> ServeResult {
    let DmaMap { address, size, offset, flags, .. } = *ask;
    if size == 0 || !(address | size | offset).is_multiple_of(PAGE) {
        let why = format!("{size} bytes at {address:#x}, file offset {offset:#x}: not whole pages");
        return Err(Refusal::invalid(why));
    }
    if address.checked_add(size).is_none() || offset.checked_add(size).is_none() {
        return Err(Refusal::invalid(format!("{size:#x} bytes at {address:#x} wrap around")));
    }
    if flags & !DMA_READ_WRITE != 0 || flags == 0 {
        return Err(Refusal::invalid(format!("map flags {flags:#x}")));
    }
    Ok(())
}

/// Returns where the piece ends in the file. The file is long enough and, if sealed, stays so.
fn check_length(ask: &DmaMap, file: &File) -> ServeResult<u64> {
    let about = file.metadata().map_err(|why| Refusal::system("cannot inspect the file", &why))?;
    let (end, len) = (ask.offset + ask.size, about.len());
    if end > len {
        return Err(Refusal::invalid(format!(
            "the file has {len} bytes, the mapping ends at {end}"
        )));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    fn ask(address: u64, size: u64) -> DmaMap {
        DmaMap { argsz: 32, flags: DMA_READ_WRITE, offset: 0, address, size }
    }

    fn file(len: usize) -> File {
        memory_file(len as u64, true)
    }

    /// Makes a memory file, sealable or not.
    fn memory_file(len: u64, may_be_sealed: bool) -> File {
        let flags = if may_be_sealed { MFdFlags::MFD_ALLOW_SEALING } else { MFdFlags::empty() };
        let file = File::from(memfd_create(c"test", flags).expect("memfd"));
        file.set_len(len).expect("room");
        file
    }

    fn errno(outcome: ServeResult) -> i32 {
        outcome.expect_err("must be refused").errno
    }

    #[test]
    fn memory_comes_and_goes() {
        let mut memory = ClientMemory::default();
        memory.map(&ask(0x10000, 8192), Some(file(8192))).expect("mapped");
        memory.access(|table| table.write(0x11000, b"abc")).expect("reachable");
        assert_eq!(errno(memory.map(&ask(0x11000, 4096), Some(file(4096)))), libc::EEXIST);
        let unmap = |address, size, flags| DmaUnmap { argsz: 24, flags, address, size };
        assert_eq!(errno(memory.unmap(&unmap(0x10000, 4096, 0))), libc::EINVAL);
        assert_eq!(errno(memory.unmap(&unmap(0x20000, 4096, 0))), libc::ENOENT);
        assert_eq!(errno(memory.unmap(&unmap(0x10000, 8192, 1))), libc::EOPNOTSUPP);
        memory.unmap(&unmap(0x10000, 8192, 0)).expect("unmapped");
        assert_eq!(memory.access(|table| table.read(0x10000, &mut [0])), None);
        memory.map(&ask(0x10000, 4096), Some(file(4096))).expect("mapped again");
        memory.unmap(&unmap(0, 0, UNMAP_ALL)).expect("all");
        assert_eq!((memory.piece_count(), memory.access(DmaTable::mapped_bytes)), (0, 0));
    }

    #[test]
    fn a_client_hands_over_no_more_than_the_server_may_be_charged_for() {
        let mut memory = ClientMemory::new(Some(3 * 4096), true);
        memory.map(&ask(0x10000, 8192), Some(file(8192))).expect("room");
        let refused = memory.map(&ask(0x20000, 8192), Some(file(8192)));
        let refused = refused.expect_err("one page too many");
        assert!(refused.errno == libc::ENOMEM && refused.why.contains("--memory"), "{refused:?}");
        memory.map(&ask(0x20000, 4096), Some(file(4096))).expect("room");
        // What is not mapped costs nothing, nor what is not there any more.
        let rom = File::open("/proc/self/exe").expect("a file");
        let read_only = DmaMap { flags: DMA_READ, ..ask(0x30000, 4096) };
        memory.map(&read_only, Some(rom)).expect("taken");
        assert_eq!(errno(memory.map(&ask(0x40000, 4096), Some(file(4096)))), libc::ENOMEM);
        let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0x10000, size: 8192 };
        memory.unmap(&unmap).expect("unmapped");
        memory.map(&ask(0x40000, 8192), Some(file(8192))).expect("room again");
        memory.unmap_all();
        memory.map(&ask(0, 3 * 4096), Some(file(3 * 4096))).expect("room for all");
        ClientMemory::new(None, true).map(&ask(0, 1 << 40), Some(file(1 << 40))).expect("no limit");
    }

    #[test]
    fn what_cannot_be_mapped_is_refused_by_name() {
        let mut memory = ClientMemory::default();
        assert_eq!(errno(memory.map(&ask(0, 4096), None)), libc::EOPNOTSUPP);
        let other = || Some(File::open("/proc/self/status").expect("a file"));
        let mut refused = |ask: DmaMap, file| errno(memory.map(&ask, file));
        assert_eq!(refused(ask(0, 4096), other()), libc::EINVAL);
        assert_eq!(refused(ask(0, 8192), Some(file(4096))), libc::EINVAL);
        assert_eq!(refused(ask(0, 0), Some(file(4096))), libc::EINVAL);
        assert_eq!(refused(ask(1, 4096), Some(file(4096))), libc::EINVAL);
        assert_eq!(refused(ask(u64::MAX - 4095, 4096), Some(file(4096))), libc::EINVAL);
        let ask = DmaMap { flags: 0x13, ..ask(0, 4096) };
        assert_eq!(refused(ask, Some(file(4096))), libc::EINVAL);
        assert_eq!(memory.piece_count(), 0);
    }

    #[test]
    fn memory_that_may_not_be_written_is_read_where_it_is_a_memory_file_and_else_left_alone() {
        let mut memory = ClientMemory::default();
        let read_only = |address| DmaMap { flags: DMA_READ, ..ask(address, 4096) };
        memory.map(&read_only(0x10000), Some(file(4096))).expect("taken");
        assert_eq!(memory.access(|table| table.read(0x10000, &mut [0])), Some(()));
        assert_eq!(memory.access(|table| table.write(0x10000, &[0])), None);
        assert_eq!(errno(memory.map(&ask(0x10000, 4096), Some(file(4096)))), libc::EEXIST);
        let rom = File::open("/proc/self/exe").expect("a file");
        memory.map(&read_only(0x20000), Some(rom)).expect("taken");
        assert_eq!(memory.access(|table| table.read(0x20000, &mut [0])), None);
    }

    #[test]
    fn a_file_that_was_handed_over_cannot_be_cut_any_more() {
        let pages = file(8192);
        let mut memory = ClientMemory::new(None, true);
        let handed = pages.try_clone().expect("descriptor");
        memory.map(&ask(0, 8192), Some(handed)).expect("mapped");
        assert!(pages.set_len(4096).is_err(), "sealed by us where its maker did not");
        let stubborn = || Some(memory_file(4096, false));
        assert_eq!(errno(memory.map(&ask(0x10000, 4096), stubborn())), libc::EPERM);
        memory.sealed_only = false;
        memory.map(&ask(0x10000, 4096), stubborn()).expect("believed");
    }

    /// One thread keeps truncating the current file while another hands files over.
    #[test]
    fn a_sealed_piece_lies_in_its_file_whenever_the_client_cuts_it() {
        let present = Mutex::new(Arc::new(file(8192)));
        let ends = AtomicBool::new(false);
        let cut = || {
            while !ends.load(Ordering::Acquire) {
                let pages = Arc::clone(&present.lock().expect("no panic"));
                // A file that is already sealed keeps its length.
                let _ = pages.set_len(0);
            }
        };
        let hand_over = |_| {
            let (pages, mut memory) = (Arc::new(file(8192)), ClientMemory::new(None, true));
            let handed = pages.try_clone().expect("descriptor");
            *present.lock().expect("no panic") = Arc::clone(&pages);
            let mapped = memory.map(&ask(0x10000, 8192), Some(handed)).is_ok();
            !mapped || pages.metadata().expect("a file").len() == 8192
        };
        let all_whole = std::thread::scope(|scope| {
            scope.spawn(cut);
            let all_whole = (0..5000).all(hand_over);
            ends.store(true, Ordering::Release);
            all_whole
        });
        assert!(all_whole, "a mapping beyond the end of its file");
    }
}
