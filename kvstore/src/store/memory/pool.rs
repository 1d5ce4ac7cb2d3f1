//! Reused registered memory, for copied data and for reads.
//!
//! A pool is one region, mapped for one device, or for all devices reached through the kernel. When it is exhausted,
//! requests wait in a queue until memory returns ([`super::fair_queue`]), or are refused. A [`PoolBuffer`] returns to
//! its pool when dropped, on any thread.
//!
//! A request that would wait for memory that only callers hold gets extra memory (`thread/memory_waits`), which is
//! freed instead of returned.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use adit_driver::runtime::{lock, wake};
use adit_driver::sys::PageKind;
use adit_driver::{Buffer, Device};

use super::fair_queue::FairQueue;
use crate::error::{Error, Result};
use crate::io::memory::FreeMemory;
use crate::model::place::UNIT_BYTES;
use crate::shard::Stats;

/// A region of registered memory, lent out in runs.
pub(crate) struct Pool {
    /// The region's addresses.
    region: Range<u64>,
    pages: PageKind,
    state: Mutex<PoolState>,
    /// Number of returns of memory.
    returns: AtomicU64,
    /// Bytes in requests being carried out, extra memory included.
    in_requests: AtomicUsize,
}

#[derive(Default)]
struct PoolState {
    runs: FreeMemory,
    queue: FairQueue<Buffer>,
}

impl Pool {
    pub(crate) fn new(region: Buffer) -> Pool {
        let at = region.iova().0;
        let (addresses, pages) = (at..at + region.len() as u64, region.pages());
        let mut state = PoolState::default();
        state.runs.give(region);
        let (returns, in_requests) = Default::default();
        Pool { region: addresses, pages, state: Mutex::new(state), returns, in_requests }
    }

    /// Returns the kind of the region's pages.
    pub(crate) fn pages(&self) -> PageKind {
        self.pages
    }

    /// Returns the pool's size in bytes, an upper bound for any buffer.
    pub(crate) fn bytes(&self) -> usize {
        (self.region.end - self.region.start) as usize
    }

    /// Returns the free bytes, contiguous or not. Visits every run.
    pub(crate) fn free_bytes(&self) -> usize {
        lock(&self.state).runs.free_bytes()
    }

    /// Takes whole units for `len` bytes, if a contiguous run is free and no request is queued.
    pub(crate) fn take(self: &Arc<Pool>, len: usize) -> Option<PoolBuffer> {
        let mut state = lock(&self.state);
        let run =
            if state.queue.is_empty() { state.runs.take_first(whole_units(len)) } else { None };
        drop(state);
        run.map(|run| PoolBuffer { run: Some(run), len, pool: Arc::clone(self) })
    }

    /// Queues for memory; `waker` is called once it is granted.
    pub(crate) fn enter(self: &Arc<Pool>, len: usize, waker: Waker) -> QueuedTake {
        let mut state = lock(&self.state);
        let number = state.queue.enter(whole_units(len), waker);
        serve(state);
        QueuedTake { pool: Arc::clone(self), number, len }
    }

    /// Allocates memory beyond the pool for one request on `device`.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub(crate) fn allocate(self: &Arc<Pool>, device: &Device, len: usize) -> Result<PoolBuffer> {
        let mut run = device.allocate(whole_units(len))?;
        drop(run.split_off(whole_units(len)));
        assert!(!self.owns(&run), "the pool's own memory is allocated once");
        Ok(PoolBuffer { run: Some(run), len, pool: Arc::clone(self) })
    }

    /// Returns how often memory returned to the pool.
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }

    /// Returns the bytes in requests being carried out, extra memory included.
    pub(crate) fn in_requests(&self) -> usize {
        self.in_requests.load(Ordering::Relaxed)
    }

    /// Returns whether a run belongs to this pool's region.
    fn owns(&self, run: &Buffer) -> bool {
        self.region.contains(&run.iova().0)
    }

    /// Takes back a run and grants queued requests. Frees extra memory.
    fn give(&self, run: Buffer) {
        if !self.owns(&run) {
            return;
        }
        self.returns.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.runs.give(run);
        serve(state);
    }
}

/// Grants memory to the requests in the queue, and wakes them without the lock.
fn serve(mut state: MutexGuard<'_, PoolState>) {
    let PoolState { runs, queue } = &mut *state;
    let served = queue.serve(|bytes| runs.take_first(bytes));
    drop(state);
    served.into_iter().for_each(wake);
}

/// A place in the queue for a pool's memory. Dropping it leaves the queue.
pub(crate) struct QueuedTake {
    pool: Arc<Pool>,
    number: u64,
    len: usize,
}

impl QueuedTake {
    /// Returns the memory once it is granted.
    pub(crate) fn collect(&self) -> Option<PoolBuffer> {
        let run = lock(&self.pool.state).queue.collect(self.number)?;
        Some(PoolBuffer { run: Some(run), len: self.len, pool: Arc::clone(&self.pool) })
    }

    /// Returns the pool of the awaited memory.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the awaited bytes, in whole units.
    pub(crate) fn bytes(&self) -> usize {
        whole_units(self.len)
    }

    /// Returns the requested length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for QueuedTake {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.state);
        state.queue.leave(self.number).into_iter().for_each(|run| state.runs.give(run));
        serve(state);
    }
}

/// Rounds `len` up to whole units, in bytes.
pub(crate) fn whole_units(len: usize) -> usize {
    len.max(1).next_multiple_of(UNIT_BYTES as usize)
}

/// Registered memory of the store, returned when dropped. Fill it and put it to store an object without a copy.
pub struct PoolBuffer {
    run: Option<Buffer>,
    len: usize,
    pool: Arc<Pool>,
}

impl PoolBuffer {
    /// Rebuilds the buffer from a run that a request returned.
    pub(crate) fn of(run: Buffer, len: usize, pool: &Arc<Pool>) -> PoolBuffer {
        assert!(len <= run.len(), "a buffer lies in its run");
        let before = pool.in_requests.fetch_sub(run.len(), Ordering::Relaxed);
        assert!(before >= run.len(), "a request returns what it was given");
        PoolBuffer { run: Some(run), len, pool: Arc::clone(pool) }
    }

    /// Like [`PoolBuffer::into_parts`], but zeroes the memory behind the bytes: it may hold another caller's data.
    pub(crate) fn into_cleared_parts(self) -> (Buffer, Arc<Pool>) {
        let len = self.len;
        let (mut run, pool) = self.into_parts();
        run[len..].fill(0);
        (run, pool)
    }

    /// Splits the buffer into its run, for a request, and its pool.
    pub(crate) fn into_parts(mut self) -> (Buffer, Arc<Pool>) {
        let run = self.run.take().expect("it has its run until it is dropped");
        self.pool.in_requests.fetch_add(run.len(), Ordering::Relaxed);
        (run, Arc::clone(&self.pool))
    }

    /// Returns whether this buffer has `len` bytes and comes from `pool`.
    pub(crate) fn is_for(&self, len: usize, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool) && self.len == len
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.run.as_ref().expect("it has its run until it is dropped")[..self.len]
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.run.as_mut().expect("it has its run until it is dropped")[..self.len]
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.pool.give(run);
        }
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({} bytes)", self.len)
    }
}

/// The pools of a store's devices.
pub(crate) struct Pools {
    pools: Vec<Arc<Pool>>,
    /// The index of each device's pool.
    of_device: Vec<usize>,
    turn: AtomicUsize,
    pub(crate) counts: Arc<Counts>,
}

/// Counters of copies, and of memory beyond the pools.
#[derive(Default)]
pub(crate) struct Counts {
    /// Bytes copied between callers' slices, the heap and registered memory.
    pub(crate) copied_bytes: AtomicU64,
    /// Bytes that devices read from callers' memory, or wrote to it.
    in_place_bytes: AtomicU64,
    /// Requests given memory beyond the pools.
    pub(crate) spills: AtomicU64,
    /// Bytes of memory given beyond the pools.
    pub(crate) spilled_bytes: AtomicU64,
}

impl Counts {
    /// Counts copied bytes.
    pub(crate) fn count_copy(&self, bytes: usize) {
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes moved in place.
    pub(crate) fn count_in_place(&self, bytes: usize) {
        self.in_place_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the bytes moved in place.
    pub(crate) fn in_place_bytes(&self) -> u64 {
        self.in_place_bytes.load(Ordering::Relaxed)
    }

    /// Adds these counters to those of the shards.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        stats.copied_bytes += self.copied_bytes.load(Ordering::Relaxed);
        stats.spills += self.spills.load(Ordering::Relaxed);
        stats.spilled_bytes += self.spilled_bytes.load(Ordering::Relaxed);
    }
}

/// Allocates the memory of the pools: a region of `bytes` for each address space among `devices`.
///
/// # Errors
/// As [`Device::allocate`].
pub(crate) fn regions(devices: &[Device], bytes: usize) -> Result<Vec<Buffer>> {
    let mut regions: Vec<Buffer> = Vec::new();
    for device in devices {
        if !regions.iter().any(|region| device.accepts(region)) {
            let mut region = device.allocate(bytes)?;
            drop(region.split_off(bytes & !(UNIT_BYTES as usize - 1)));
            regions.push(region);
        }
    }
    Ok(regions)
}

impl Pools {
    pub(crate) fn new(devices: &[Device], regions: Vec<Buffer>) -> Pools {
        let of = |device: &Device| {
            let found = regions.iter().position(|region| device.accepts(region));
            found.expect("there is a region for each device")
        };
        let of_device = devices.iter().map(of).collect();
        let pools = regions.into_iter().map(|region| Arc::new(Pool::new(region))).collect();
        Pools { pools, of_device, turn: AtomicUsize::new(0), counts: Arc::default() }
    }

    /// Returns the pools, each with the index of one of its devices.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Arc<Pool>, usize)> {
        let device_of = |pool| self.of_device.iter().position(|of| *of == pool);
        self.pools.iter().enumerate().map(move |(number, pool)| {
            (pool, device_of(number).expect("each pool is for some device"))
        })
    }

    /// Returns the pool whose memory a device can use.
    pub(crate) fn of_device(&self, device: u8) -> &Arc<Pool> {
        &self.pools[self.of_device[usize::from(device)]]
    }

    /// Takes memory that `device` can use. Without a device, takes from the pools in turn: the store places data on a
    /// device that can use their memory.
    pub(crate) fn take(&self, len: usize, device: Option<u8>) -> Option<PoolBuffer> {
        if let Some(device) = device {
            return self.of_device(device).take(len);
        }
        let (count, first) = (self.pools.len(), self.turn.fetch_add(1, Ordering::Relaxed));
        (0..count).find_map(|next| self.pools[first.wrapping_add(next) % count].take(len))
    }

    /// Returns each pool's size and how much of it is lent, in bytes.
    pub(crate) fn usage(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.pools.iter().map(|pool| (pool.bytes(), pool.bytes() - pool.free_bytes()))
    }

    /// Queues for memory that `device` can use; without a device, for memory of one pool.
    pub(crate) fn enter(&self, len: usize, device: Option<u8>, waker: Waker) -> QueuedTake {
        let number = || self.turn.fetch_add(1, Ordering::Relaxed) % self.pools.len();
        let pool = device.map_or_else(|| &self.pools[number()], |device| self.of_device(device));
        pool.enter(len, waker)
    }

    /// Checks that `len` bytes can ever be available.
    ///
    /// # Errors
    /// [`Error::Invalid`] if not.
    pub(crate) fn check(&self, len: u64) -> Result<()> {
        let most = self.bytes_max();
        if len <= most as u64 {
            return Ok(());
        }
        let fix = format!(
            "it passes through the store's pool of {most} bytes: write it in pieces (Store::put_from, Store::reserve), \
             lend memory of your own (Store::allocate), or raise pool_bytes"
        );
        Err(Error::invalid("the length in bytes", len, fix))
    }

    /// Like [`Pools::check`], for a read of `len` bytes at once: a whole object, or a range.
    ///
    /// # Errors
    /// [`Error::Invalid`], which suggests a streaming reader.
    pub(crate) fn check_read(&self, len: u64, is_range: bool) -> Result<()> {
        self.check(len).map_err(|_| {
            let what = if is_range {
                "the length in bytes of the range, with the pieces around it,"
            } else {
                "the length in bytes of the object"
            };
            let fix = format!(
                "it is more than the store's pool of {} bytes: read it in pieces (Store::reader), into memory of your \
                 own (get_into, Store::allocate), or raise pool_bytes",
                self.bytes_max()
            );
            Error::invalid(what, len, fix)
        })
    }

    /// Returns the maximum bytes of any buffer.
    pub(crate) fn bytes_max(&self) -> usize {
        self.pools.iter().map(|pool| pool.bytes()).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::DeviceOptions;
    use std::task::Wake;

    fn open(target: &str) -> Device {
        let target = target.parse().expect("a target");
        Device::open(&target, &DeviceOptions::default()).expect("a device")
    }

    fn pool(bytes: usize) -> Arc<Pool> {
        let regions = regions(&[open("null:")], bytes).expect("memory");
        Arc::new(Pool::new(regions.into_iter().next().expect("one")))
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_dropped_goes_to_those_who_wait_in_order() {
        let pool = pool(16384);
        let (first, second) = (pool.take(5000).expect("room"), pool.take(8192).expect("room"));
        assert_eq!((first.len(), pool.free_bytes()), (5000, 0));
        assert!(pool.take(1).is_none(), "used up");
        let count = Arc::new(Count::default());
        let turns = [8000, 100].map(|len| pool.enter(len, Waker::from(Arc::clone(&count))));
        drop(first);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        let third = turns[0].collect().expect("granted");
        assert!(third.len() == 8000 && turns[1].collect().is_none() && pool.take(1).is_none());
        drop((second, third));
        assert_eq!(pool.free_bytes(), 12288, "granted, not collected");
        drop(turns);
        assert_eq!(pool.take(16384).map(|all| all.len()), Some(16384));
    }

    #[test]
    fn extra_memory_is_freed_and_never_becomes_the_pools() {
        let device = open("null:");
        let pool = pool(8192);
        let extra = pool.allocate(&device, 5000).expect("memory");
        assert!(extra.is_for(5000, &pool) && extra.len() == 5000);
        let (run, home) = extra.into_parts();
        assert_eq!((run.len(), pool.in_requests()), (8192, 8192));
        drop(PoolBuffer::of(run, 5000, &home));
        assert_eq!((pool.in_requests(), pool.returns(), pool.free_bytes()), (0, 0, 8192));
        drop(pool.take(1));
        assert_eq!(pool.returns(), 1);
    }

    #[test]
    fn each_controller_has_a_region_and_kernel_paths_share_one() {
        let devices = [open("null:"), open("soft:mem=16M"), open("null:")];
        let regions = regions(&devices, 1 << 20).expect("memory");
        assert_eq!(regions.len(), 2);
        let pools = Pools::new(&devices, regions);
        assert_eq!(pools.of_device, [0, 1, 0]);
        let held = pools.of_device(0).take(4096).expect("room");
        let turns = [0, 1].map(|_| pools.take(4096, None).expect("room"));
        assert!(!Arc::ptr_eq(&turns[0].pool, &turns[1].pool), "each in turn");
        drop(turns);
        let (run, home) = held.into_parts();
        assert!(devices[0].accepts(&run) && !devices[1].accepts(&run));
        drop(PoolBuffer::of(run, 100, &home));
        assert_eq!(home.free_bytes(), home.bytes());
        assert!(pools.check(1 << 20).is_ok());
        let message = pools.check(2 << 20).expect_err("too long").to_string();
        assert!(message.contains("raise pool_bytes"), "{message}");
    }
}
