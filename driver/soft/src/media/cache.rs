//! The volatile write cache: written LBAs that a power cut may lose.
//!
//! Rules, which the tests check as a property:
//!
//! 1. reads return the newest data (the store overlays the cache on the media);
//! 2. at a power cut each cached LBA reaches the media or does not, independently of earlier and later ones; an LBA
//!    stays whole (Identify AWUPF is zero: one LBA), together with its protection, unless the cut tears;
//! 3. everything not cached has reached the media.
//!
//! The size is bounded: before a command's data arrives, LBAs that the seed picks are written out to make room. The
//! seed also writes some out without need, as drives do, so that the media may hold any version since the last Flush.

use std::collections::BTreeMap;

use super::Media;
use super::error::MediaResult;
use crate::protection::TUPLE_BYTES;
use crate::rng::Rng;

/// Largest LBA: an LBA that covers an offset starts less than this before it.
const LBA_BYTES_MAX: u64 = 4096;
/// The unit that a tear inside an LBA leaves whole.
const SECTOR_BYTES: usize = 512;
/// One command in this many writes out an LBA without need.
const IDLE_WRITE_OUT: u64 = 4;

/// One LBA of the cache.
#[derive(Debug)]
struct CachedLba {
    offset: u64,
    data: Box<[u8]>,
    /// The command that wrote it, and its index among that command's LBAs.
    command: u64,
    index: u64,
    count: u64,
    /// Its protection tuple, and the tuple's place on the media.
    tuple: Option<(u64, [u8; TUPLE_BYTES])>,
}

impl CachedLba {
    /// Writes the LBA and its tuple to the media.
    fn store(&self, media: &mut Media) -> MediaResult {
        media.store(self.offset, &self.data)?;
        self.tuple.map_or(Ok(()), |(place, tuple)| media.store(place, &tuple))
    }

    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// The command whose data is arriving.
#[derive(Clone, Copy, Debug, Default)]
struct Current {
    number: u64,
    offset: u64,
    lba_bytes: u64,
    count: u64,
}

#[derive(Debug)]
pub(super) struct Cache {
    bytes_max: u64,
    bytes: u64,
    entries: Vec<CachedLba>,
    /// Indices into `entries` by offset.
    places: BTreeMap<u64, usize>,
    current: Current,
    rng: Rng,
}

impl Cache {
    pub(super) fn new(bytes_max: u64, seed: u64) -> Cache {
        Cache {
            bytes_max,
            bytes: 0,
            entries: Vec::new(),
            places: BTreeMap::new(),
            current: Current::default(),
            rng: Rng::stream(seed, 0xcac4e),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether a command of `len` bytes should bypass the cache.
    pub(super) fn is_too_small_for(&self, len: u64) -> bool {
        len > self.bytes_max / 2
    }

    /// Announces a command that writes `len` bytes at `offset`, and makes room for it.
    pub(super) fn start(
        &mut self,
        offset: u64,
        len: u64,
        lba_bytes: u64,
        media: &mut Media,
    ) -> MediaResult {
        let number = self.current.number + 1;
        self.current = Current { number, offset, lba_bytes, count: len / lba_bytes };
        while !self.is_empty() && self.bytes + len > self.bytes_max {
            self.write_out_one(media)?;
        }
        if !self.is_empty() && self.rng.chance(1, IDLE_WRITE_OUT) {
            self.write_out_one(media)?;
        }
        Ok(())
    }

    fn write_out_one(&mut self, media: &mut Media) -> MediaResult {
        let at = self.rng.below(self.entries.len() as u64) as usize;
        self.take(at).store(media)
    }

    /// Removes an entry; the last one takes its index.
    fn take(&mut self, at: usize) -> CachedLba {
        let entry = self.entries.swap_remove(at);
        self.places.remove(&entry.offset);
        if let Some(moved) = self.entries.get(at) {
            self.places.insert(moved.offset, at);
        }
        self.bytes -= entry.data.len() as u64;
        entry
    }

    /// Returns the entries that overlap `offset..offset + len`, in order of offset.
    fn overlapping(&self, offset: u64, len: u64) -> Vec<usize> {
        let start = offset.saturating_sub(LBA_BYTES_MAX - 1);
        let near = self.places.range(start..offset + len).map(|(_, at)| *at);
        near.filter(|at| self.entries[*at].end() > offset).collect()
    }

    /// Returns the cached pieces of `offset..offset + len`, in order of offset.
    pub(super) fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let end = offset + len;
        self.overlapping(offset, len).into_iter().map(move |at| {
            let entry = &self.entries[at];
            let (from, to) = (entry.offset.max(offset), entry.end().min(end));
            (from, &entry.data[(from - entry.offset) as usize..(to - entry.offset) as usize])
        })
    }

    /// Stores `data`, a part of the announced command; the rest of its LBAs comes from the media.
    pub(super) fn put(&mut self, offset: u64, data: &[u8], media: &mut Media) -> MediaResult {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let Current { offset: first, lba_bytes, .. } = self.current;
            let skip = (at - first) % lba_bytes;
            let now = rest.len().min((lba_bytes - skip) as usize);
            let (part, later) = rest.split_at(now);
            let entry = self.entry(at - skip, now as u64 == lba_bytes, media)?;
            entry.data[skip as usize..][..now].copy_from_slice(part);
            at += now as u64;
            rest = later;
        }
        Ok(())
    }

    /// Returns the entry of the LBA at `offset`, filled from the media unless `is_whole` promises an overwrite.
    fn entry(
        &mut self,
        offset: u64,
        is_whole: bool,
        media: &mut Media,
    ) -> MediaResult<&mut CachedLba> {
        let Current { number, offset: first, lba_bytes, count } = self.current;
        let at = match self.places.get(&offset) {
            Some(at) => *at,
            None => {
                let mut data = vec![0; lba_bytes as usize].into_boxed_slice();
                if !is_whole {
                    media.load(offset, &mut data)?;
                }
                self.bytes += lba_bytes;
                self.entries.push(CachedLba {
                    offset,
                    data,
                    command: 0,
                    index: 0,
                    count: 0,
                    tuple: None,
                });
                self.places.insert(offset, self.entries.len() - 1);
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[at];
        (entry.command, entry.index, entry.count) = (number, (offset - first) / lba_bytes, count);
        Ok(entry)
    }

    /// Stores the tuple of the LBA at `offset`, whose place on the media is `place`; returns false if the LBA is not
    /// cached.
    pub(super) fn put_tuple(&mut self, offset: u64, place: u64, tuple: [u8; TUPLE_BYTES]) -> bool {
        let Some(at) = self.places.get(&offset) else { return false };
        self.entries[*at].tuple = Some((place, tuple));
        true
    }

    /// Returns the cached tuples of the LBAs in `offset..offset + len`, with their LBAs' offsets.
    pub(super) fn tuples(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = (u64, [u8; TUPLE_BYTES])> {
        let entries = self.overlapping(offset, len).into_iter().map(|at| &self.entries[at]);
        entries.filter_map(|entry| Some((entry.offset, entry.tuple?.1)))
    }

    /// Writes out the cached part of the range.
    pub(super) fn write_out(&mut self, offset: u64, len: u64, media: &mut Media) -> MediaResult {
        while let Some(at) = self.overlapping(offset, len).first() {
            self.take(*at).store(media)?;
        }
        Ok(())
    }

    /// Drops the cached part of the range.
    pub(super) fn forget(&mut self, offset: u64, len: u64) {
        while let Some(at) = self.overlapping(offset, len).first() {
            self.take(*at);
        }
    }

    pub(super) fn flush(&mut self, media: &mut Media) -> MediaResult {
        while let Some(entry) = self.entries.pop() {
            self.places.remove(&entry.offset);
            self.bytes -= entry.data.len() as u64;
            entry.store(media)?;
        }
        Ok(())
    }

    /// Returns the stored byte at `offset`, if its LBA is cached.
    pub(super) fn byte_mut(&mut self, offset: u64) -> Option<&mut u8> {
        let at = *self.overlapping(offset, 1).first()?;
        let entry = &mut self.entries[at];
        entry.data.get_mut((offset - entry.offset) as usize)
    }

    /// Cuts the power: by `seed`, each LBA reaches the media or is lost, in part if the drive `tears`. Empties the
    /// cache.
    pub(super) fn cut(&mut self, seed: u64, tears: bool, media: &mut Media) -> MediaResult {
        let mut rng = Rng::stream(seed, 0xc07);
        for entry in std::mem::take(&mut self.entries) {
            if survives(seed, &entry, &mut rng) {
                entry.store(media)?;
            } else if tears && rng.chance(1, 2) {
                let sectors = rng.below((entry.data.len() / SECTOR_BYTES) as u64) as usize;
                media.store(entry.offset, &entry.data[..sectors * SECTOR_BYTES])?;
            }
        }
        self.places.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// Returns whether an LBA had reached the media at the power cut. A command's LBAs share a fate: all, none, the first
/// few, or each its own.
fn survives(seed: u64, entry: &CachedLba, rng: &mut Rng) -> bool {
    let mut fate = Rng::stream(seed, entry.command);
    match fate.below(4) {
        0 => true,
        1 => false,
        2 => entry.index < fate.below(entry.count + 1),
        _ => rng.chance(1, 2),
    }
}
