//! Media in memory of this process.
//!
//! One anonymous mapping: a page that was never written costs nothing, and one
//! that was deallocated is given back. The data goes with the controller.

use memmap2::{Advice, MmapMut, MmapOptions};

use super::{MediaError, MediaResult};
use crate::error::{Error, Result};
use crate::soft::memory::Dma;
use crate::spec::Iova;
use crate::sys;

const COMPARE_CHUNK: usize = 4096;

/// Memory as media.
#[derive(Debug)]
pub(in crate::soft) struct MemoryMedia {
    map: MmapMut,
}

impl MemoryMedia {
    pub(super) fn new(bytes: u64) -> Result<MemoryMedia> {
        let refused = |why: std::io::Error| {
            let what = format!("reserve {bytes} bytes");
            Error::refused("soft:mem", what, why, "ask for a smaller 'mem=SIZE'")
        };
        let len = usize::try_from(bytes)
            .ok()
            .filter(|len| *len > 0)
            .ok_or_else(|| Error::invalid("soft:mem", format!("{bytes} bytes are no size")))?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon().map_err(refused)?;
        // Only a hint: without huge pages the media is slower, not wrong.
        let _ = map.advise(Advice::HugePage);
        Ok(MemoryMedia { map })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    #[inline]
    pub(super) fn slice(&self, offset: u64, len: usize) -> &[u8] {
        &self.map[offset as usize..][..len]
    }

    #[inline]
    pub(super) fn slice_mut(&mut self, offset: u64, len: usize) -> &mut [u8] {
        &mut self.map[offset as usize..][..len]
    }

    pub(super) fn compare(
        &self,
        offset: u64,
        dma: &Dma<'_>,
        with: Iova,
        len: usize,
    ) -> MediaResult {
        let mut theirs = [0; COMPARE_CHUNK];
        for (index, ours) in self.slice(offset, len).chunks(COMPARE_CHUNK).enumerate() {
            let at = with.0.wrapping_add((index * COMPARE_CHUNK) as u64);
            let theirs = &mut theirs[..ours.len()];
            dma.read(Iova(at), theirs)?;
            if ours != theirs {
                return Err(MediaError::Differ);
            }
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, from: u64, to: u64, len: u64) {
        let from = from as usize;
        self.map.copy_within(from..from + len as usize, to as usize);
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        sys::zero_mapping(&mut self.map, offset as usize, len as usize);
    }
}
