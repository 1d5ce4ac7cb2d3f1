//! Registered memory that is used over and over: data that is copied passes through it, and gets read into it.
//!
//! A pool is one region, mapped for one device, or for all that are reached through the kernel. It never grows: where
//! it is used up, whoever wants more waits until some comes back, or is told. A [`PoolBuffer`] goes back when it is
//! dropped, on whatever thread.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use adit_driver::{Buffer, Device};

use super::runs::Runs;
use super::wait;
use crate::error::{Error, Result};
use crate::model::place::UNIT_BYTES;

/// See the module.
pub(super) struct Pool {
    bytes: usize,
    state: Mutex<State>,
    /// Somebody waits; read without the lock.
    is_wanted: AtomicBool,
}

#[derive(Default)]
struct State {
    runs: Runs,
    waiters: Vec<Waker>,
}

impl Pool {
    /// A pool of `region`.
    pub(super) fn new(region: Buffer) -> Pool {
        let bytes = region.len();
        let mut runs = Runs::default();
        runs.give(region);
        let state = Mutex::new(State { runs, waiters: Vec::new() });
        Pool { bytes, state, is_wanted: AtomicBool::new(false) }
    }

    /// Bytes of all of it: more than this is never to be had.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that are free, in one piece or not.
    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> usize {
        self.lock().runs.free_bytes()
    }

    /// Memory for `len` bytes, in whole units, if there is so much in one piece.
    pub(super) fn take(self: &Arc<Pool>, len: usize) -> Option<PoolBuffer> {
        let run = self.lock().runs.take(whole_units(len))?;
        Some(PoolBuffer { run: Some(run), len, pool: Arc::clone(self) })
    }

    /// Has `waker` called once some memory comes back. Try again after this: what came back before calls nobody.
    pub(super) fn want(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            state.waiters.push(waker.clone());
        }
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Takes back memory of its own.
    pub(super) fn give(&self, run: Buffer) {
        let mut state = self.lock();
        state.runs.give(run);
        // Under the lock, as it is set: whoever wants memory either finds this run or is called now.
        if self.is_wanted.load(Ordering::Relaxed) {
            self.is_wanted.store(false, Ordering::Relaxed);
            let waiters = std::mem::take(&mut state.waiters);
            drop(state);
            waiters.into_iter().for_each(wait::wake);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that `len` take, in whole units.
pub(super) fn whole_units(len: usize) -> usize {
    len.max(1).next_multiple_of(UNIT_BYTES as usize)
}

/// Registered memory of a store's, on loan: it goes back when it is dropped. Fill it and put it, and nothing is copied.
pub struct PoolBuffer {
    run: Option<Buffer>,
    len: usize,
    pool: Arc<Pool>,
}

impl PoolBuffer {
    /// What came back from a command as the buffer that it was.
    pub(super) fn of(run: Buffer, len: usize, pool: &Arc<Pool>) -> PoolBuffer {
        assert!(len <= run.len(), "a buffer lies in its run");
        PoolBuffer { run: Some(run), len, pool: Arc::clone(pool) }
    }

    /// The memory in whole units, and where it belongs.
    pub(super) fn into_parts(mut self) -> (Buffer, Arc<Pool>) {
        let run = self.run.take().expect("it has its run until it is dropped");
        (run, Arc::clone(&self.pool))
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
pub(super) struct Pools {
    pools: Vec<Arc<Pool>>,
    /// Which of them each device can use.
    of_device: Vec<usize>,
    turn: AtomicUsize,
}

/// Memory for the pools of `devices`: a region of `bytes` for each address space.
///
/// # Errors
/// As [`Device::allocate`].
pub(super) fn regions(devices: &[Device], bytes: usize) -> Result<Vec<Buffer>> {
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
    /// Pools of the `regions` that were made for `devices`.
    pub(super) fn new(devices: &[Device], regions: Vec<Buffer>) -> Pools {
        let of = |device: &Device| {
            let found = regions.iter().position(|region| device.accepts(region));
            found.expect("there is a region for each device")
        };
        let of_device = devices.iter().map(of).collect();
        let pools = regions.into_iter().map(|region| Arc::new(Pool::new(region))).collect();
        Pools { pools, of_device, turn: AtomicUsize::new(0) }
    }

    /// The pool whose memory a device can use.
    pub(super) fn of_device(&self, device: u8) -> &Arc<Pool> {
        &self.pools[self.number(device)]
    }

    /// Which one that is.
    pub(super) fn number(&self, device: u8) -> usize {
        self.of_device[usize::from(device)]
    }

    /// Memory for data that may go to any device, of each pool in turn, for the store puts them where their memory is;
    /// or memory that `device` can use.
    pub(super) fn take(&self, len: usize, device: Option<u8>) -> Option<PoolBuffer> {
        if let Some(device) = device {
            return self.of_device(device).take(len);
        }
        let (count, first) = (self.pools.len(), self.turn.fetch_add(1, Ordering::Relaxed));
        (0..count).find_map(|next| self.pools[first.wrapping_add(next) % count].take(len))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.pools.len()
    }

    /// Has `waker` called once some memory comes back, whichever pool's.
    pub(super) fn want(&self, waker: &Waker) {
        self.pools.iter().for_each(|pool| pool.want(waker));
    }

    /// Whether `len` bytes can ever be had.
    ///
    /// # Errors
    /// [`Error::Invalid`] where not.
    pub(super) fn check(&self, len: u64) -> Result<()> {
        let most = self.pools.iter().map(|pool| pool.bytes()).min().unwrap_or(0);
        if len <= most as u64 {
            return Ok(());
        }
        let fix = format!(
            "it passes through memory of {most} bytes: raise pool_bytes, or lend memory of your own (get_into, \
             Store::allocate)"
        );
        Err(Error::invalid("the length in bytes", len, fix))
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
    fn what_is_dropped_comes_back_and_calls_those_who_wait_once() {
        let pool = pool(16384);
        let (first, second) = (pool.take(5000).expect("room"), pool.take(8192).expect("room"));
        assert_eq!((first.len(), pool.free_bytes()), (5000, 0));
        assert!(pool.take(1).is_none(), "used up");
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        pool.want(&waker);
        pool.want(&waker);
        drop(first);
        drop(second);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(pool.take(16384).map(|all| all.len()), Some(16384));
    }

    #[test]
    fn memory_comes_back_and_all_are_called_though_a_waker_panics() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("in a waker");
            }
        }
        let pool = pool(8192);
        let (held, count) = (pool.take(8192).expect("room"), Arc::new(Count::default()));
        pool.want(&Waker::from(Arc::new(Panics)));
        pool.want(&Waker::from(Arc::clone(&count)));
        drop(held);
        assert_eq!((count.0.load(Ordering::Relaxed), pool.free_bytes()), (1, 8192));
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
