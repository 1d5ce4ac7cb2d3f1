//! The client's memory, as far as it handed it over.
//!
//! A piece is mapped here for as long as the client leaves it; taking it away ends the table's entry
//! first and the mapping then. The controller is not stepping meanwhile: one thread does both.
//!
//! A client can make our accesses fail with SIGBUS by shortening the file behind them. Files are
//! sealed against that where the kernel allows it; where it does not (files of hugetlbfs and
//! `/dev/shm`, memory files made without `MFD_ALLOW_SEALING`), the client is believed, unless
//! [`super::Options::sealed_memory_only`] says otherwise.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

use super::refusal::{Outcome, Refusal};
use super::system;
use crate::bus::vfio_user::wire::{DMA_READ_WRITE, DmaMap, DmaUnmap, UNMAP_ALL};
use crate::sys::DmaTable;

const PAGE: u64 = 4096;
/// Pieces at a time (`max_dma_maps`); each is a mapping of this process, which has 65530.
pub(super) const PIECES_MAX: usize = 16 << 10;

/// What the client handed over, by its address.
#[derive(Debug, Default)]
pub(super) struct ClientMemory {
    table: DmaTable,
    pieces: BTreeMap<u64, Piece>,
    warned: bool,
}

#[derive(Debug)]
struct Piece {
    len: u64,
    /// Absent for memory that may not be written: a controller has no use for it.
    _map: Option<MmapRaw>,
}

impl ClientMemory {
    /// The table that the controller goes by.
    #[inline]
    pub(super) fn table(&self) -> &DmaTable {
        &self.table
    }

    /// How many pieces there are.
    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Takes a piece of the client's memory.
    pub(super) fn map(&mut self, ask: &DmaMap, file: Option<File>, sealed_only: bool) -> Outcome {
        check_place(ask)?;
        if self.pieces.len() >= PIECES_MAX {
            return Err(Refusal::new(libc::ENOSPC, format!("{PIECES_MAX} pieces are the most")));
        }
        if self.overlaps(ask) {
            let why = format!("a mapping is at {:#x} already", ask.address);
            return Err(Refusal::new(libc::EEXIST, why));
        }
        let file = file.ok_or_else(|| {
            Refusal::unsupported("no file came with the memory; share it as a memfd")
        })?;
        let map = match ask.flags & DMA_READ_WRITE {
            DMA_READ_WRITE => Some(self.map_file(ask, &file, sealed_only)?),
            _ => None,
        };
        if let Some(map) = &map {
            let at = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
            // SAFETY: the mapping is readable and writable, is kept beside the table and leaves it
            // before it ends; nobody makes references to its bytes.
            let fits = unsafe { self.table.insert(ask.address, at, ask.size) };
            assert!(fits, "overlaps were looked for");
        }
        self.pieces.insert(ask.address, Piece { len: ask.size, _map: map });
        Ok(())
    }

    fn map_file(&mut self, ask: &DmaMap, file: &File, sealed_only: bool) -> Outcome<MmapRaw> {
        check_file(ask, file)?;
        if !system::seal_length(file) {
            let why = "the memory's file can be made shorter, which would end this server";
            if sealed_only {
                return Err(Refusal::new(libc::EPERM, format!("{why}; seal it (F_SEAL_SHRINK)")));
            }
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!("{why}; it is used as it is, since it cannot be sealed");
            }
        }
        let len = usize::try_from(ask.size).map_err(Refusal::invalid)?;
        MmapOptions::new()
            .offset(ask.offset)
            .len(len)
            .map_raw(file)
            .map_err(|why| Refusal::system("cannot map the memory", &why))
    }

    fn overlaps(&self, ask: &DmaMap) -> bool {
        let before = self.pieces.range(..ask.address + ask.size).next_back();
        before.is_some_and(|(at, piece)| at + piece.len > ask.address)
    }

    /// Gives a piece back, or all with [`UNMAP_ALL`].
    pub(super) fn unmap(&mut self, ask: &DmaUnmap) -> Outcome {
        match ask.flags {
            0 => self.unmap_one(ask),
            UNMAP_ALL if (ask.address, ask.size) == (0, 0) => {
                self.unmap_all();
                Ok(())
            }
            UNMAP_ALL => Err(Refusal::invalid("all memory has no address and no size")),
            flags => Err(Refusal::unsupported(format!("unmap flags {flags:#x}"))),
        }
    }

    fn unmap_one(&mut self, ask: &DmaUnmap) -> Outcome {
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
        self.pieces.remove(&ask.address);
        Ok(())
    }

    /// Forgets everything the client handed over.
    pub(super) fn unmap_all(&mut self) {
        for (address, piece) in std::mem::take(&mut self.pieces) {
            self.table.remove(address, piece.len);
        }
        self.warned = false;
    }
}

fn check_place(ask: &DmaMap) -> Outcome {
    let DmaMap { address, size, offset, flags, .. } = *ask;
    if size == 0 || !(address | size | offset).is_multiple_of(PAGE) {
        let why = format!("{size} bytes at {address:#x}, file offset {offset:#x}: no whole pages");
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

fn check_file(ask: &DmaMap, file: &File) -> Outcome {
    let about = file.metadata().map_err(|why| Refusal::system("cannot look at the file", &why))?;
    if !about.is_file() || !system::is_memory(file) {
        return Err(Refusal::invalid("only memory files are mapped: memfd, /dev/shm, hugetlbfs"));
    }
    if ask.offset + ask.size > about.len() {
        let why = format!(
            "the file has {} bytes, the mapping ends at {}",
            about.len(),
            ask.offset + ask.size
        );
        return Err(Refusal::invalid(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: u64, size: u64) -> DmaMap {
        DmaMap { argsz: 32, flags: DMA_READ_WRITE, offset: 0, address, size }
    }

    fn file(len: usize) -> File {
        system::unsealed(len as u64, true)
    }

    fn errno(outcome: Outcome) -> i32 {
        outcome.expect_err("must be refused").errno
    }

    #[test]
    fn memory_comes_and_goes() {
        let mut memory = ClientMemory::default();
        memory.map(&ask(0x10000, 8192), Some(file(8192)), true).expect("mapped");
        memory.table().write(0x11000, b"abc").expect("reachable");
        assert_eq!(errno(memory.map(&ask(0x11000, 4096), Some(file(4096)), true)), libc::EEXIST);
        let unmap = |address, size, flags| DmaUnmap { argsz: 24, flags, address, size };
        assert_eq!(errno(memory.unmap(&unmap(0x10000, 4096, 0))), libc::EINVAL);
        assert_eq!(errno(memory.unmap(&unmap(0x20000, 4096, 0))), libc::ENOENT);
        assert_eq!(errno(memory.unmap(&unmap(0x10000, 8192, 1))), libc::EOPNOTSUPP);
        memory.unmap(&unmap(0x10000, 8192, 0)).expect("unmapped");
        assert_eq!(memory.table().read(0x10000, &mut [0]), None);
        memory.map(&ask(0x10000, 4096), Some(file(4096)), true).expect("mapped again");
        memory.unmap(&unmap(0, 0, UNMAP_ALL)).expect("all");
        assert_eq!((memory.piece_count(), memory.table().mapped_bytes()), (0, 0));
    }

    #[test]
    fn what_cannot_be_mapped_is_refused_by_name() {
        let mut memory = ClientMemory::default();
        assert_eq!(errno(memory.map(&ask(0, 4096), None, false)), libc::EOPNOTSUPP);
        let other = || Some(File::open("/proc/self/status").expect("a file"));
        let mut refused = |ask: DmaMap, file| errno(memory.map(&ask, file, false));
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
    fn memory_that_may_not_be_written_is_taken_and_left_alone() {
        let mut memory = ClientMemory::default();
        let rom = DmaMap { flags: 1, ..ask(0x10000, 4096) };
        memory.map(&rom, Some(file(4096)), true).expect("taken");
        assert_eq!(memory.table().read(0x10000, &mut [0]), None);
        assert_eq!(errno(memory.map(&ask(0x10000, 4096), Some(file(4096)), true)), libc::EEXIST);
    }

    #[test]
    fn a_file_that_was_handed_over_cannot_be_cut_any_more() {
        let pages = file(8192);
        let mut memory = ClientMemory::default();
        let handed = pages.try_clone().expect("descriptor");
        memory.map(&ask(0, 8192), Some(handed), true).expect("mapped");
        assert!(pages.set_len(4096).is_err(), "sealed by us where its maker did not");
        let stubborn = || Some(system::unsealed(4096, false));
        assert_eq!(errno(memory.map(&ask(0x10000, 4096), stubborn(), true)), libc::EPERM);
        memory.map(&ask(0x10000, 4096), stubborn(), false).expect("believed");
    }
}
