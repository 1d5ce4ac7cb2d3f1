//! Releases the space behind zeros: pages of a mapping, blocks of a file.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use memmap2::{MmapMut, UncheckedAdvice};

const PAGE: usize = 4096;
/// Below this size, writing zeros is cheaper than faulting the pages in again.
const DISCARD_MIN: usize = 64 << 10;

/// Zeroes `len` bytes at `offset` of an anonymous private mapping; returns whole pages of a long range to the system.
///
/// # Panics
/// If the range leaves the mapping: our own bug.
pub fn zero_mapping(map: &mut MmapMut, offset: usize, len: usize) {
    assert!(
        offset.checked_add(len).is_some_and(|end| end <= map.len()),
        "range outside its mapping"
    );
    let end = offset + len;
    let first = offset.next_multiple_of(PAGE);
    let last = end / PAGE * PAGE;
    if last.saturating_sub(first) < DISCARD_MIN {
        map[offset..end].fill(0);
        return;
    }
    map[offset..first].fill(0);
    map[last..end].fill(0);
    // SAFETY: whole pages inside the mapping, which we hold exclusively; private anonymous
    // pages read as zeros after DONTNEED.
    let discarded =
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, first, last - first) };
    if discarded.is_err() {
        map[first..last].fill(0);
    }
}

/// Deallocates `len` bytes at `offset` of `file`, which then read as zeros.
///
/// # Errors
/// The system's error; a file system without holes refuses.
pub fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = libc::off_t::try_from(offset).map_err(out_of_range)?;
    let len = libc::off_t::try_from(len).map_err(out_of_range)?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: `file` is open; the call takes no pointers.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_ranges_become_zero_and_their_neighbours_stay() {
        for (offset, len) in [(10, 20), (10, 300_000), (0, 1 << 19), (4096, 0)] {
            let mut map = MmapMut::map_anon(1 << 19).expect("memory");
            map.fill(0xa5);
            zero_mapping(&mut map, offset, len);
            assert!(map[offset..offset + len].iter().all(|b| *b == 0));
            assert!(map[..offset].iter().chain(&map[offset + len..]).all(|b| *b == 0xa5));
        }
    }
}
