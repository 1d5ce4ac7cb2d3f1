//! The memory tier of a store: how much memory it has, and where that comes from.
//!
//! Each shard has an equal share, in regions of its own. The calling thread allocates, pins and frees them, so that
//! the store's threads do not wait for it. While the tier may have memory, a thread of its own makes it smaller and
//! larger as the machine and the control groups have room ([`Elastic`](crate::memory::Elastic)). That thread reads
//! files and allocates memory, which the shards' threads must not. It is one of the store's threads: a store is
//! closed when it has ended, because it holds the store's devices.

mod size;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_driver::runtime::{caught, lock};

pub(crate) use self::size::{TierSize, make_way};
use super::answer::Pending;
use super::core::Core;
use super::devices::tier_share;
use super::thread::{Exit, ThreadExit};
use crate::error::Result;
use crate::memory::Strain;
use crate::shard::GivenUp;

/// How often memory is evaluated. The files of `/proc` and of control groups take less than 1 ms to read.
const EVALUATE_EVERY: Duration = Duration::from_millis(100);

/// The memory tier of a store.
pub(crate) struct Tier {
    core: Arc<Core>,
    exit: Arc<Exit>,
    /// Locked while the size changes.
    size: Mutex<TierSize>,
    /// Ends the thread that fits the tier to memory when it is dropped.
    thread: Mutex<Option<Sender<Infallible>>>,
}

impl Tier {
    /// Creates a tier without memory.
    pub(crate) fn new(core: &Arc<Core>, exit: &Arc<Exit>) -> Arc<Tier> {
        let (core, exit) = (Arc::clone(core), Arc::clone(exit));
        Arc::new(Tier { core, exit, size: Mutex::default(), thread: Mutex::default() })
    }

    /// Gives the tier at most `bytes`, as [`Store::set_tier`](super::Store::set_tier) says. Returns how many it has
    /// now.
    pub(crate) fn set(self: &Arc<Tier>, bytes: u64) -> Result<u64> {
        let mut size = lock(&self.size);
        size.limit(bytes, self.core.shards);
        let set = self.fill(&mut size);
        size.is_unknown |= set.is_err();
        set.map(|()| size.bytes)
    }

    /// Tells the thread to end, and does not wait for it.
    pub(crate) fn stop(&self) {
        drop(lock(&self.thread).take());
    }

    /// Gives the tier what it may have and memory has room for.
    fn fill(self: &Arc<Tier>, size: &mut TierSize) -> Result<()> {
        let bytes_max = size.elastic.bytes_max();
        self.shrink(size, bytes_max)?;
        if bytes_max == 0 {
            self.stop();
            return Ok(());
        }
        self.follow_memory()?;
        let filled = size.memory().map(|memory| size.elastic.filled(size.bytes, &memory));
        let wanted = filled.unwrap_or(bytes_max);
        if wanted > size.bytes {
            self.grow(size, wanted, &|| true)?;
        }
        Ok(())
    }

    /// Starts the thread unless there is one, or the store is being closed.
    ///
    /// # Errors
    /// [`adit_driver::Error::Refused`] if the system grants no thread.
    fn follow_memory(self: &Arc<Tier>) -> Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_some() {
            return Ok(());
        }
        let Some(exit) = self.exit.join() else { return Ok(()) };
        let (sender, ended) = mpsc::channel();
        let tier = Arc::clone(self);
        let builder = thread::Builder::new().name("adit-kv-tier".to_owned());
        builder.spawn(move || follow(tier, exit, ended)).map_err(|why| {
            let fix = "raise the limit on processes (ulimit -u)";
            adit_driver::Error::refused("the memory tier's thread", "start", why, fix)
        })?;
        *thread = Some(sender);
        Ok(())
    }

    /// Fits the tier to the present memory. Stops growing once `goes_on` returns false.
    fn fit(&self, goes_on: &dyn Fn() -> bool) {
        let mut size = lock(&self.size);
        let Some(memory) = size.memory() else { return };
        if size.is_unknown {
            // If the shards do not answer this time either, the next look asks again.
            let bytes_max = size.elastic.bytes_max();
            size.is_unknown = self.shrink(&mut size, bytes_max).is_err();
        }
        let (before, TierSize { elastic, bytes, probe, .. }) = (size.bytes, &mut *size);
        let strain =
            probe.as_mut().map_or(Strain::None, |probe| probe.strain(&memory, Instant::now()));
        let wanted = elastic.evaluate(*bytes, &memory, strain);
        let changed = match wanted.cmp(bytes) {
            Ordering::Less => self.shrink(&mut size, wanted).map(drop),
            Ordering::Equal => return,
            Ordering::Greater => self.grow(&mut size, wanted, goes_on),
        };
        size.is_unknown |= changed.is_err();
        let has_failed = changed.is_err() && goes_on();
        match changed {
            Ok(()) => tracing::info!(
                "the memory tier has {} of {} bytes, after {before}, as memory has room",
                size.bytes,
                size.elastic.bytes_max()
            ),
            Err(error) if has_failed && !size.has_failed => {
                tracing::warn!("the memory tier has {} bytes, not {wanted}: {error}", size.bytes);
            }
            Err(_) => {}
        }
        size.has_failed = has_failed;
    }

    /// Takes memory from the tier until it has `bytes` at most. Returns what each shard has left.
    fn shrink(&self, size: &mut TierSize, bytes: u64) -> Result<Vec<u64>> {
        let share = tier_share(bytes, self.core.shards);
        let (sender, given_up) = mpsc::channel::<GivenUp>();
        let shrink = |number| {
            let sender = sender.clone();
            self.core.ask(number, move |shard, _| {
                let (left, given_up) = make_way(shard, share);
                // It is freed here if nothing waits for it any more.
                drop(sender.send(given_up));
                Ok(left)
            })
        };
        let asked: Vec<Pending<u64>> = (0..self.core.shards).map(shrink).collect();
        drop(sender);
        free(&given_up, &asked);
        let left = asked.into_iter().map(Pending::wait).collect::<Result<Vec<u64>, _>>()?;
        size.bytes = left.iter().sum();
        assert!(size.bytes <= bytes, "{} bytes are left of {bytes}", size.bytes);
        Ok(left)
    }

    /// Gives the tier memory until it has `bytes`, while there is room.
    fn grow(&self, size: &mut TierSize, bytes: u64, goes_on: &dyn Fn() -> bool) -> Result<()> {
        // A share that grows may be in other regions than one that is set.
        let left = self.shrink(size, bytes)?;
        let device = &self.core.devices.as_slice()[0];
        let lend = |number, memory| {
            let lent = self.core.ask(number, move |shard, _| {
                shard.lend_to_tier(memory);
                Ok(())
            });
            Ok(lent.wait()?)
        };
        size.lend(device, (left, tier_share(bytes, self.core.shards)), goes_on, lend).map(drop)
    }
}

/// Evaluates memory until `ended` says so. `exit` is dropped last, when the devices are released.
fn follow(tier: Arc<Tier>, mut exit: ThreadExit, ended: Receiver<Infallible>) {
    let followed = caught("it fitted the memory tier to memory, which is a bug", || {
        while ended.recv_timeout(EVALUATE_EVERY) == Err(RecvTimeoutError::Timeout) {
            tier.fit(&|| ended.try_recv() == Err(TryRecvError::Empty));
        }
    });
    if let Err(why) = followed {
        // A tier that takes no notice of memory may use up the machine's.
        exit.died(&why);
    }
    drop(tier);
    drop(exit);
}

/// Frees what shards give up as it comes, since one of them may be busy for long. Returns once all have answered, or
/// are late.
fn free<T>(given_up: &Receiver<T>, asked: &[Pending<u64>]) {
    let patience = || asked.iter().map(Pending::patience).max().unwrap_or_default();
    while let Ok(given_up) = given_up.recv_timeout(patience()) {
        drop(given_up);
    }
}
