//! The storage as commands see it: durable media, the write cache over them, and unreadable ranges.

use super::Media;
use super::cache::Cache;
use super::defects::Defects;
use super::error::{MediaError, MediaResult};
use crate::error::Result;
use crate::memory::Dma;
use crate::options::Options;
use crate::protection::TUPLE_BYTES;
use adit_spec::Iova;

/// Size of the cache that commands in flight pass through at a power cut.
const IN_FLIGHT_BYTES: u64 = 64 << 20;
/// The most bytes that are moved at once unless the media are memory.
const CHUNK_BYTES: usize = 128 << 10;

/// A run of whole LBAs of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LbaRun {
    /// First byte in the storage.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// LBA size in bytes.
    pub(crate) lba_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Store {
    media: Media,
    cache: Option<Box<Cache>>,
    defects: Defects,
    /// What passes between the host and media that are not memory, or a cache.
    chunk: Vec<u8>,
}

impl Store {
    pub(crate) fn open(options: &Options) -> Result<Store> {
        let cache =
            (options.vwc_bytes > 0).then(|| Box::new(Cache::new(options.vwc_bytes, options.seed)));
        let chunk = vec![0; CHUNK_BYTES];
        Ok(Store { media: Media::open(options)?, cache, defects: Defects::default(), chunk })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.media.bytes()
    }

    fn has_cached(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| !cache.is_empty())
    }

    /// Fails if a part of the run is unreadable.
    #[inline]
    pub(crate) fn check_readable(&self, offset: u64, len: u64) -> MediaResult {
        if !self.defects.is_empty() && self.defects.overlap(offset, len).is_some() {
            return Err(MediaError::Media);
        }
        Ok(())
    }

    /// Announces that a command will write `run`; the data follows through [`Store::write`].
    #[inline]
    pub(crate) fn start_write(&mut self, run: LbaRun) -> MediaResult {
        if !self.defects.is_empty() {
            self.defects.remove(run.offset, run.len);
        }
        match &mut self.cache {
            None => Ok(()),
            Some(cache) => cache.start(run.offset, run.len, run.lba_bytes, &mut self.media),
        }
    }

    /// Copies from `offset` to the host.
    #[inline]
    pub(crate) fn read(&mut self, offset: u64, dma: &Dma<'_>, to: Iova, len: usize) -> MediaResult {
        if !self.has_cached() {
            if let Some(bytes) = self.media.slice_mut(offset, len) {
                return Ok(dma.write(to, bytes)?);
            }
            if self.media.is_null() {
                return Ok(());
            }
        }
        self.in_chunks(len as u64, |store, done, chunk| {
            store.load(offset + done, chunk)?;
            Ok(dma.write(Iova(to.0.wrapping_add(done)), chunk)?)
        })
    }

    /// Copies from the host to `offset`, a part of the announced run.
    #[inline]
    pub(crate) fn write(
        &mut self,
        offset: u64,
        dma: &Dma<'_>,
        from: Iova,
        len: usize,
    ) -> MediaResult {
        if self.cache.is_none() {
            if let Some(bytes) = self.media.slice_mut(offset, len) {
                return Ok(dma.read(from, bytes)?);
            }
            if self.media.is_null() {
                return Ok(());
            }
        }
        self.in_chunks(len as u64, |store, done, chunk| {
            dma.read(Iova(from.0.wrapping_add(done)), chunk)?;
            store.put(offset + done, chunk)
        })
    }

    pub(crate) fn compare(
        &mut self,
        offset: u64,
        dma: &Dma<'_>,
        with: Iova,
        len: usize,
    ) -> MediaResult {
        if self.media.is_null() && !self.has_cached() {
            return Ok(());
        }
        self.in_chunks(len as u64, |store, done, ours| {
            store.load(offset + done, ours)?;
            let mut theirs = vec![0; ours.len()];
            dma.read(Iova(with.0.wrapping_add(done)), &mut theirs)?;
            if *ours == *theirs { Ok(()) } else { Err(MediaError::Differ) }
        })
    }

    /// Copies inside the storage to a part of the announced run. The result for overlapping ranges is undefined, as in
    /// the specification.
    pub(crate) fn copy(&mut self, from: u64, to: u64, len: u64) -> MediaResult {
        self.in_chunks(len, |store, done, chunk| {
            store.load(from + done, chunk)?;
            store.put(to + done, chunk)
        })
    }

    pub(crate) fn zero(&mut self, run: LbaRun) -> MediaResult {
        let is_cached = self.cache.as_ref().is_some_and(|cache| !cache.is_too_small_for(run.len));
        if !is_cached {
            return self.erase(run.offset, run.len);
        }
        self.start_write(run)?;
        self.in_chunks(run.len, |store, done, chunk| {
            chunk.fill(0);
            store.put(run.offset + done, chunk)
        })
    }

    /// Makes an unused range read as zeros, permanently.
    pub(crate) fn erase(&mut self, offset: u64, len: u64) -> MediaResult {
        self.defects.remove(offset, len);
        if let Some(cache) = &mut self.cache {
            cache.forget(offset, len);
        }
        self.media.zero(offset, len)
    }

    /// Reads the tuples of a run, as they lie on the media from `place` on.
    pub(crate) fn tuples(&mut self, run: LbaRun, place: u64, into: &mut [u8]) -> MediaResult {
        self.media.load(place, into)?;
        let Some(cache) = &self.cache else { return Ok(()) };
        for (offset, tuple) in cache.tuples(run.offset, run.len) {
            let index = ((offset - run.offset) / run.lba_bytes) as usize;
            into[index * TUPLE_BYTES..][..TUPLE_BYTES].copy_from_slice(&tuple);
        }
        Ok(())
    }

    /// Writes the tuples of a run, to lie on the media from `place` on, with its LBAs or after them.
    pub(crate) fn put_tuples(&mut self, run: LbaRun, place: u64, from: &[u8]) -> MediaResult {
        let Some(cache) = &mut self.cache else { return self.media.store(place, from) };
        for (index, tuple) in (0..).zip(from.as_chunks::<TUPLE_BYTES>().0) {
            let place = place + index * TUPLE_BYTES as u64;
            if !cache.put_tuple(run.offset + index * run.lba_bytes, place, *tuple) {
                self.media.store(place, tuple)?;
            }
        }
        Ok(())
    }

    /// Sets the tuples of a run, stored on the media from `place` on, to "do not check".
    pub(crate) fn clear_tuples(&mut self, run: LbaRun, place: u64) -> MediaResult {
        let count = run.len / run.lba_bytes;
        let cached =
            self.cache.as_ref().map_or(0, |cache| cache.pieces(run.offset, run.len).count());
        if cached == 0 {
            return self.media.zero(place, count * TUPLE_BYTES as u64);
        }
        self.put_tuples(run, place, &vec![0; count as usize * TUPLE_BYTES])
    }

    /// Reads the range and discards it (Verify).
    pub(crate) fn verify(&mut self, offset: u64, len: u64) -> MediaResult {
        self.in_chunks(len, |store, done, chunk| store.load(offset + done, chunk))
    }

    /// Makes the range durable.
    #[inline]
    pub(crate) fn commit(&mut self, offset: u64, len: u64) -> MediaResult {
        if let Some(cache) = &mut self.cache {
            cache.write_out(offset, len, &mut self.media)?;
        }
        self.media.flush()
    }

    pub(crate) fn flush(&mut self) -> MediaResult {
        if let Some(cache) = &mut self.cache {
            cache.flush(&mut self.media)?;
        }
        self.media.flush()
    }

    /// Makes the range unreadable until rewritten.
    pub(crate) fn spoil(&mut self, offset: u64, len: u64) {
        self.defects.add(offset, len);
    }

    /// Flips one stored bit.
    pub(crate) fn flip(&mut self, offset: u64, bit: u8) -> MediaResult {
        let mask = 1 << (bit & 7);
        if let Some(byte) = self.cache.as_mut().and_then(|cache| cache.byte_mut(offset)) {
            *byte ^= mask;
            return Ok(());
        }
        let mut byte = [0];
        self.media.load(offset, &mut byte)?;
        self.media.store(offset, &[byte[0] ^ mask])
    }

    /// Sees to it that nothing written from now on is durable before [`Store::cut`]: commands
    /// in flight as the power goes.
    pub(crate) fn prepare_cut(&mut self, seed: u64) {
        self.cache.get_or_insert_with(|| Box::new(Cache::new(IN_FLIGHT_BYTES, seed)));
    }

    /// Cuts the power; see [`Cache::cut`]. `keeps_cache` says whether there is a cache afterwards.
    pub(crate) fn cut(&mut self, seed: u64, tears: bool, keeps_cache: bool) -> MediaResult {
        let Some(mut cache) = self.cache.take() else { return Ok(()) };
        let result = cache.cut(seed, tears, &mut self.media);
        self.cache = Some(cache).filter(|_| keeps_cache);
        result
    }

    /// Reads through the cache.
    pub(crate) fn load(&mut self, offset: u64, into: &mut [u8]) -> MediaResult {
        self.media.load(offset, into)?;
        let Some(cache) = &self.cache else { return Ok(()) };
        for (at, piece) in cache.pieces(offset, into.len() as u64) {
            into[(at - offset) as usize..][..piece.len()].copy_from_slice(piece);
        }
        Ok(())
    }

    fn put(&mut self, offset: u64, data: &[u8]) -> MediaResult {
        match &mut self.cache {
            Some(cache) => cache.put(offset, data, &mut self.media),
            None => self.media.store(offset, data),
        }
    }

    /// Calls `step(store, bytes done, chunk)` until `len` bytes have passed through the chunk.
    fn in_chunks(
        &mut self,
        len: u64,
        mut step: impl FnMut(&mut Store, u64, &mut [u8]) -> MediaResult,
    ) -> MediaResult {
        let mut chunk = std::mem::take(&mut self.chunk);
        let (mut done, mut result) = (0, Ok(()));
        while done < len && result.is_ok() {
            let now = (len - done).min(CHUNK_BYTES as u64);
            result = step(self, done, &mut chunk[..now as usize]);
            done += now;
        }
        self.chunk = chunk;
        result
    }
}
