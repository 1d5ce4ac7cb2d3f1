//! The data on a device, and what a power cut leaves of it.
//!
//! A read returns the last write. Until a flush covers a write, a power cut may restore earlier data, for each LBA
//! separately, so that writes are dropped, reordered and torn. A flush covers exactly the writes whose completions
//! had been seen when it was sent, as specified.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::random::Random;

/// Maximum versions of an LBA kept for a power cut: the durable one and the newest of the others.
const VERSIONS_MAX: usize = 4;
/// Unit within which a write is never torn.
const SECTOR_BYTES: usize = 512;
/// Data is kept in pages of this size: unwritten pages cost nothing, and copies share pages.
const PAGE_BYTES: usize = 16 << 10;
/// The write that made the initial contents.
const SAFE: WriteId = WriteId(0);

/// A write, by the order in which it reached the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WriteId(u32);

/// What a power cut does to data that no flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Nothing is lost: the capacitors held.
    None,
    /// All of it is lost.
    All,
    /// Each LBA keeps some version of its own.
    Mixed,
    /// As mixed, and LBAs mix versions inside.
    Torn,
    /// Everything after some write is lost.
    Tail,
}

impl Loss {
    const ALL: [Loss; 5] = [Loss::None, Loss::All, Loss::Mixed, Loss::Torn, Loss::Tail];

    pub(crate) fn draw(random: &mut Random) -> Loss {
        random.pick(&Loss::ALL)
    }
}

/// The contents of one LBA, within the data that some write replaced.
#[derive(Clone, Debug)]
struct Piece {
    bytes: Arc<[u8]>,
    at: usize,
}

/// The versions of an LBA that a power cut may restore.
#[derive(Clone, Debug)]
struct Dirty {
    /// Oldest first, each with the write that made it.
    older: Vec<(Piece, WriteId)>,
    /// The write that made the current contents.
    newest: WriteId,
}

/// Bytes in pages, which read as zeros until they are written.
#[derive(Clone, Debug)]
struct Image {
    len: usize,
    pages: Vec<Option<Arc<[u8; PAGE_BYTES]>>>,
}

impl Image {
    fn new(len: usize) -> Image {
        Image { len, pages: vec![None; len.div_ceil(PAGE_BYTES)] }
    }

    /// Splits `len` bytes at `at` into runs, each with its page and the range within.
    fn runs(at: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let end = at + len;
        (at / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
            let start = page * PAGE_BYTES;
            (page, at.max(start) - start..end.min(start + PAGE_BYTES) - start)
        })
    }

    /// Appends `len` bytes at `at` to `into`.
    fn read(&self, at: usize, len: usize, into: &mut Vec<u8>) {
        assert!(at + len <= self.len, "a device is read up to its end");
        for (page, within) in Image::runs(at, len) {
            match &self.pages[page] {
                Some(bytes) => into.extend_from_slice(&bytes[within]),
                None => into.resize(into.len() + within.len(), 0),
            }
        }
    }

    fn write(&mut self, at: usize, mut data: &[u8]) {
        assert!(at + data.len() <= self.len, "a device is written up to its end");
        for (page, within) in Image::runs(at, data.len()) {
            let (run, rest) = data.split_at(within.len());
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[within].copy_from_slice(run);
            data = rest;
        }
    }
}

/// The media of one device, behind its volatile cache. Copies share unchanged pages.
#[derive(Clone, Debug)]
pub(crate) struct Media {
    lba_bytes: usize,
    image: Image,
    dirty: BTreeMap<u64, Dirty>,
    /// The previous contents of LBAs, for stale reads.
    past: Option<BTreeMap<u64, Piece>>,
    /// When the completion of each write was seen; `u64::MAX` before that.
    seen: Vec<u64>,
    moment: u64,
    /// LBAs that are unreadable until they are written.
    unreadable: BTreeSet<u64>,
}

impl Media {
    pub(crate) fn new(bytes: usize, lba_bytes: usize, keeps_past: bool) -> Media {
        assert!(bytes.is_multiple_of(lba_bytes), "a device is whole LBAs");
        Media {
            lba_bytes,
            image: Image::new(bytes),
            dirty: BTreeMap::new(),
            past: keeps_past.then(BTreeMap::new),
            seen: vec![0],
            moment: 1,
            unreadable: BTreeSet::new(),
        }
    }

    pub(crate) fn lbas(&self) -> u64 {
        (self.image.len / self.lba_bytes) as u64
    }

    pub(crate) fn lba_bytes(&self) -> usize {
        self.lba_bytes
    }

    /// Returns the current moment, for a flush sent now.
    pub(crate) fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Records that the completion of this write is seen now.
    pub(crate) fn seen(&mut self, write: WriteId) {
        self.seen[write.0 as usize] = self.moment();
    }

    pub(crate) fn read(&self, lba: u64, bytes: usize) -> Vec<u8> {
        let mut found = Vec::with_capacity(bytes);
        self.image.read(lba as usize * self.lba_bytes, bytes, &mut found);
        found
    }

    /// Returns the contents of `lba` before its last write.
    pub(crate) fn past(&self, lba: u64) -> Option<&[u8]> {
        let piece = self.past.as_ref()?.get(&lba)?;
        Some(&piece.bytes[piece.at..piece.at + self.lba_bytes])
    }

    pub(crate) fn write(&mut self, lba: u64, data: &[u8]) -> WriteId {
        let write = WriteId(self.seen.len() as u32);
        self.seen.push(u64::MAX);
        let old: Arc<[u8]> = Arc::from(self.read(lba, data.len()));
        for (index, at) in (0..data.len()).step_by(self.lba_bytes).enumerate() {
            let piece = Piece { bytes: Arc::clone(&old), at };
            self.keep(lba + index as u64, piece, write);
        }
        self.image.write(lba as usize * self.lba_bytes, data);
        write
    }

    /// Keeps the contents that `write` replaces.
    fn keep(&mut self, lba: u64, piece: Piece, write: WriteId) {
        self.unreadable.remove(&lba);
        if let Some(past) = &mut self.past {
            past.insert(lba, piece.clone());
        }
        let Some(dirty) = self.dirty.get_mut(&lba) else {
            self.dirty.insert(lba, Dirty { older: vec![(piece, SAFE)], newest: write });
            return;
        };
        dirty.older.push((piece, dirty.newest));
        dirty.newest = write;
        if dirty.older.len() > VERSIONS_MAX {
            dirty.older.remove(1);
        }
    }

    /// Makes durable the writes seen to complete up to `moment`.
    pub(crate) fn flush(&mut self, moment: u64) {
        let seen = &self.seen;
        let is_safe = |write: WriteId| seen[write.0 as usize] <= moment;
        self.dirty.retain(|_, dirty| {
            if is_safe(dirty.newest) {
                return false;
            }
            let last = dirty.older.iter().rposition(|(_, write)| is_safe(*write));
            dirty.older.drain(..last.unwrap_or(0));
            true
        });
    }

    /// Cuts the power; `loss` decides what happens to data that no flush covers.
    pub(crate) fn cut(&mut self, loss: Loss, random: &mut Random) {
        let last = WriteId(random.below(self.seen.len() as u64) as u32);
        for (lba, dirty) in std::mem::take(&mut self.dirty) {
            let kept = match loss {
                Loss::None => continue,
                Loss::All => 0,
                Loss::Mixed => random.index(dirty.older.len() + 1),
                Loss::Tail if dirty.newest <= last => continue,
                Loss::Tail => {
                    let kept = dirty.older.iter().rposition(|(_, write)| *write <= last);
                    kept.unwrap_or(0)
                }
                Loss::Torn => {
                    self.tear(lba, &dirty, random);
                    continue;
                }
            };
            self.settle(lba, &dirty, kept);
        }
    }

    /// Flips a bit of stored data.
    pub(crate) fn flip(&mut self, lba: u64, bit: usize) {
        let mut bytes = self.read(lba, self.lba_bytes);
        bytes[bit / 8 % self.lba_bytes] ^= 1 << (bit % 8);
        self.image.write(lba as usize * self.lba_bytes, &bytes);
    }

    /// Makes an LBA unreadable until it is written.
    pub(crate) fn spoil(&mut self, lba: u64) {
        self.unreadable.insert(lba);
    }

    pub(crate) fn is_unreadable(&self, lba: u64, lbas: u64) -> bool {
        self.unreadable.range(lba..lba + lbas).next().is_some()
    }

    /// Restores version `index` of an LBA; the one past the last is the current one.
    fn settle(&mut self, lba: u64, dirty: &Dirty, index: usize) {
        if let Some((piece, _)) = dirty.older.get(index) {
            let bytes = &piece.bytes[piece.at..piece.at + self.lba_bytes];
            self.image.write(lba as usize * self.lba_bytes, bytes);
        }
    }

    /// Gives each sector of an LBA some version of its own.
    fn tear(&mut self, lba: u64, dirty: &Dirty, random: &mut Random) {
        let from = lba as usize * self.lba_bytes;
        for at in (0..self.lba_bytes).step_by(SECTOR_BYTES) {
            if let Some((piece, _)) = dirty.older.get(random.index(dirty.older.len() + 1)) {
                let bytes = &piece.bytes[piece.at + at..piece.at + at + SECTOR_BYTES];
                self.image.write(from + at, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns three LBAs of 4096 bytes: the first written twice, the second once and seen.
    fn written() -> Media {
        let mut media = Media::new(3 * 4096, 4096, true);
        media.write(0, &[1; 4096]);
        media.write(0, &[2; 4096]);
        let write = media.write(1, &[3; 4096]);
        media.seen(write);
        media
    }

    fn firsts(media: &Media) -> [u8; 3] {
        [0, 1, 2].map(|lba| media.read(lba, 4096)[0])
    }

    #[test]
    fn a_cut_may_take_all_that_was_not_flushed_or_none() {
        let mut random = Random::new(1);
        let (mut all, mut none) = (written(), written());
        all.cut(Loss::All, &mut random);
        none.cut(Loss::None, &mut random);
        assert_eq!((firsts(&all), firsts(&none)), ([0, 0, 0], [2, 3, 0]));
    }

    #[test]
    fn a_flush_covers_what_was_seen_before_it_was_sent() {
        let mut media = written();
        let sent = media.moment();
        let late = media.write(2, &[4; 4096]);
        media.seen(late);
        media.flush(sent);
        media.cut(Loss::All, &mut Random::new(1));
        assert_eq!(firsts(&media), [0, 3, 0], "neither the unseen one nor the later one");
    }

    #[test]
    fn mixed_cuts_bring_every_combination_and_torn_ones_tear() {
        let mut found = BTreeSet::new();
        let mut torn = 0;
        for seed in 0..200 {
            let mut media = written();
            media.cut(Loss::Mixed, &mut Random::new(seed));
            found.insert(firsts(&media));
            let mut media = written();
            media.cut(Loss::Torn, &mut Random::new(seed));
            torn += usize::from({
                let bytes = media.read(1, 4096);
                bytes.iter().any(|byte| *byte != bytes[0])
            });
        }
        assert_eq!(found.len(), 6, "three versions of one, two of the other");
        assert!(torn > 100);
    }

    #[test]
    fn a_cut_tail_keeps_what_came_before() {
        for seed in 0..50 {
            let mut media = written();
            media.cut(Loss::Tail, &mut Random::new(seed));
            assert!([[0, 0, 0], [1, 0, 0], [2, 0, 0], [2, 3, 0]].contains(&firsts(&media)));
        }
    }

    #[test]
    fn the_past_and_what_is_unreadable_last_until_the_next_write() {
        let mut media = written();
        assert_eq!(media.past(0).map(|bytes| bytes[0]), Some(1));
        media.spoil(2);
        assert!(media.is_unreadable(1, 2) && !media.is_unreadable(0, 2));
        media.write(2, &[0; 4096]);
        assert!(!media.is_unreadable(0, 3));
        media.flip(2, 9);
        assert_eq!(media.read(2, 4096)[1], 2);
    }
}
