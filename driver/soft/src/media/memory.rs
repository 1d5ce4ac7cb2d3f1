//! Media in memory of this process.
//!
//! One anonymous mapping: unwritten pages cost nothing and deallocated ones are returned to the system. The data lives
//! as long as the controller.
//!
//! Pages are 4 KiB unless `prefault` populates them all up front: the first write to a huge page waits up to
//! milliseconds while 2 MiB are zeroed, and a drive's first writes should cost no more than later ones.

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct MemoryMedia {
    map: MmapMut,
}

impl MemoryMedia {
    pub(super) fn new(bytes: u64, prefault: bool) -> Result<MemoryMedia> {
        let verb = if prefault { "populate" } else { "reserve" };
        let refused = |why: std::io::Error| {
            let what = format!("{verb} {bytes} bytes");
            Error::refused("soft:mem", what, why, "ask for a smaller 'mem=SIZE'")
        };
        let len = usize::try_from(bytes).ok().filter(|len| *len > 0).ok_or_else(|| {
            Error::invalid("soft:mem", format!("{bytes} bytes is not a valid size"))
        })?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon().map_err(refused)?;
        // Only hints: kernels without huge pages support neither.
        let _ = map.advise(if prefault { Advice::HugePage } else { Advice::NoHugePage });
        if prefault {
            map.advise(Advice::PopulateWrite).map_err(refused)?;
        }
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

    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        adit_shared::zero_mapping(&mut self.map, offset as usize, len as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the resident bytes of the mapping, as the system counts them.
    fn resident_bytes(media: &MemoryMedia) -> u64 {
        let start = format!("{:x}-", media.map.as_ptr() as usize);
        let maps = fs::read_to_string("/proc/self/smaps").expect("smaps");
        let ours = maps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = ours.skip(1).find_map(|line| line.strip_prefix("Rss:")).expect("its Rss");
        rss.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    #[test]
    fn a_first_write_takes_a_page_of_4_kib_and_prefault_takes_all_before() {
        let bytes = 8 << 20;
        let mut media = MemoryMedia::new(bytes, false).expect("memory");
        assert_eq!(resident_bytes(&media), 0);
        media.slice_mut(4 << 20, 4096).fill(1);
        assert_eq!(resident_bytes(&media), 4096);
        let media = MemoryMedia::new(bytes, true).expect("memory");
        assert_eq!(resident_bytes(&media), bytes);
    }
}
