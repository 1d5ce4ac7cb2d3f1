//! The memory tier of a store: how much memory it has, and where that comes from.
//!
//! Each shard has an equal share, in regions of its own. The calling thread allocates, pins and frees them, so that the
//! store's threads do not wait for it. While the tier may have memory, a thread of its own ([`follow`]) makes it smaller and
//! larger as the machine and the control groups have room ([`Elastic`]).

mod follow;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::sync::mpsc::{self, Receiver};
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use adit_driver::{Buffer, Device};

pub(super) use self::follow::Follower;
use super::core::Core;
use super::devices::{DeviceShard, MEMORY_BYTES_MIN};
use super::handle::Store;
use super::pending::Pending;
use crate::error::{Error, Result};
use crate::memory::{Elastic, Memory, Probe, Strain};
use crate::model::place::UNIT_BYTES;
use crate::shard::GivenUp;

/// Bytes of a region, except the last of a share. Memory goes back to the system by regions.
const REGION_BYTES: u64 = 64 << 20;

impl Store {
    /// Gives the memory tier at most `bytes` of registered memory: 0 turns the tier off. That is divided among the
    /// shards, and less than 1 MiB for each is none. Returns how many bytes it has now.
    ///
    /// It has fewer while the machine or a control group of the process has no room for more, with a headroom of 64 MiB
    /// and 1/32 of what there is: a thread looks every 100 ms, takes memory from the tier at once, and gives it back step
    /// by step. Memory goes by regions of up to 64 MiB for each shard. `docs/operate/kv.md` says more.
    ///
    /// What exceeds `bytes` is freed before this returns, with the objects in it, which stay in the store; only what a
    /// [`Value`](super::Value) holds is freed with it. When the size changes, the tier forgets how often its objects were
    /// read. Blocks while memory is pinned.
    ///
    /// # Errors
    /// As [`Device::allocate`], with less memory in the tier than there is room for; the same if the system grants no
    /// thread; [`Failure::Closed`](crate::shard::Failure::Closed) if the store is closed.
    pub fn set_tier(&self, bytes: u64) -> Result<u64> {
        let mut size = self.core.tier();
        size.limit(bytes, self.core.shards);
        let set = self.fill_tier(&mut size);
        size.is_unknown |= set.is_err();
        set.map(|()| size.bytes)
    }

    /// Gives the tier what it may have and memory has room for.
    fn fill_tier(&self, size: &mut TierSize) -> Result<()> {
        let bytes_max = size.elastic.bytes_max();
        self.core.shrink_tier(size, bytes_max)?;
        if bytes_max == 0 {
            self.threads.leave_memory();
            return Ok(());
        }
        self.threads.follow_memory()?;
        let filled = size.memory().map(|memory| size.elastic.filled(size.bytes, &memory));
        let wanted = filled.unwrap_or(bytes_max);
        if wanted > size.bytes {
            self.core.grow_tier(size, wanted, &|| true)?;
        }
        Ok(())
    }
}

/// How large a memory tier is, and may be.
pub(super) struct TierSize {
    elastic: Elastic,
    /// What all shards have.
    bytes: u64,
    /// Whether a change failed midway: shards may have more or less than `bytes`.
    is_unknown: bool,
    /// Without it, memory does not limit the tier.
    probe: Option<Probe>,
    /// Whether the last change failed, which the log has.
    has_failed: bool,
}

impl Default for TierSize {
    fn default() -> TierSize {
        TierSize {
            elastic: Elastic::new(0, REGION_BYTES),
            bytes: 0,
            is_unknown: false,
            probe: None,
            has_failed: false,
        }
    }
}

impl TierSize {
    /// Lets the tier of a store of `shards` shards have at most `bytes`.
    pub(super) fn limit(&mut self, bytes: u64, shards: u16) {
        let each = u64::from(shards);
        self.elastic = Elastic::new(share(bytes, shards) * each, REGION_BYTES * each);
        if self.probe.is_none() && bytes > 0 {
            let probe = Probe::new();
            self.probe = probe
                .inspect_err(|error| tracing::warn!("the memory tier keeps its size: {error}"))
                .ok();
        }
    }

    /// Returns the present memory, if it can be read.
    fn memory(&self) -> Option<Memory> {
        self.probe.as_ref()?.memory().ok()
    }

    /// Allocates regions for shards that have `left` bytes and lends them, those of a shard at once, until each has `share`
    /// bytes, memory has no room for another, or `goes_on` returns false. Returns how many bytes they have.
    pub(super) fn lend(
        &mut self,
        device: &Device,
        (mut left, share): (Vec<u64>, u64),
        goes_on: &dyn Fn() -> bool,
        mut lend: impl FnMut(u16, Vec<Buffer>) -> Result<()>,
    ) -> Result<u64> {
        self.bytes = left.iter().sum();
        let mut regions: Vec<Vec<Buffer>> = left.iter().map(|_| Vec::new()).collect();
        let mut end = Ok(());
        // The shard that has least comes next, so that all have about as much if there is no room for all.
        while let Some((has, number)) = left.iter_mut().zip(0u16..).min()
            && let len = share.saturating_sub(*has).min(REGION_BYTES)
            && len > 0
            && goes_on()
            && self.memory().is_none_or(|memory| Elastic::has_room(self.bytes, len, &memory))
        {
            match region(device, len) {
                Ok(memory) => regions[usize::from(number)].push(memory),
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
            *has += len;
            self.bytes += len;
        }
        for (number, memory) in (0u16..).zip(regions).filter(|(_, memory)| !memory.is_empty()) {
            lend(number, memory)?;
        }
        end.map(|()| self.bytes)
    }
}

impl Core {
    fn tier(&self) -> MutexGuard<'_, TierSize> {
        self.tier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fits the tier to the present memory. Stops growing once `goes_on` returns false.
    fn fit_tier(&self, goes_on: &dyn Fn() -> bool) {
        let mut size = self.tier();
        let Some(memory) = size.memory() else { return };
        if size.is_unknown {
            // If the shards do not answer this time either, the next look asks again.
            let bytes_max = size.elastic.bytes_max();
            size.is_unknown = self.shrink_tier(&mut size, bytes_max).is_err();
        }
        let (before, TierSize { elastic, bytes, probe, .. }) = (size.bytes, &mut *size);
        let strain =
            probe.as_mut().map_or(Strain::None, |probe| probe.strain(&memory, Instant::now()));
        let wanted = elastic.evaluate(*bytes, &memory, strain);
        let changed = match wanted.cmp(bytes) {
            Ordering::Less => self.shrink_tier(&mut size, wanted).map(drop),
            Ordering::Equal => return,
            Ordering::Greater => self.grow_tier(&mut size, wanted, goes_on),
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
    fn shrink_tier(&self, size: &mut TierSize, bytes: u64) -> Result<Vec<u64>> {
        let share = share(bytes, self.shards);
        let (sender, given_up) = mpsc::channel::<GivenUp>();
        let shrink = |number| {
            let sender = sender.clone();
            self.ask(number, move |shard, _| {
                let (left, given_up) = make_way(shard, share);
                // It is freed here if nothing waits for it any more.
                drop(sender.send(given_up));
                Ok(left)
            })
        };
        let asked: Vec<Pending<u64>> = (0..self.shards).map(shrink).collect();
        drop(sender);
        free(&given_up, &asked);
        let left = asked.into_iter().map(Pending::wait).collect::<Result<Vec<u64>, _>>()?;
        size.bytes = left.iter().sum();
        assert!(size.bytes <= bytes, "{} bytes are left of {bytes}", size.bytes);
        Ok(left)
    }

    /// Gives the tier memory until it has `bytes`, while there is room.
    fn grow_tier(&self, size: &mut TierSize, bytes: u64, goes_on: &dyn Fn() -> bool) -> Result<()> {
        // A share that grows may be in other regions than one that is set.
        let left = self.shrink_tier(size, bytes)?;
        let device = &self.devices.as_slice()[0];
        let lend = |number, memory| {
            let lent = self.ask(number, move |shard, _| {
                shard.lend_to_tier(memory);
                Ok(())
            });
            Ok(lent.wait()?)
        };
        size.lend(device, (left, share(bytes, self.shards)), goes_on, lend).map(drop)
    }
}

/// Frees what shards give up as it comes, since one of them may be busy for long. Returns once all have answered, or are
/// late.
fn free<T>(given_up: &Receiver<T>, asked: &[Pending<u64>]) {
    let patience = || asked.iter().map(Pending::patience).max().unwrap_or_default();
    while let Ok(given_up) = given_up.recv_timeout(patience()) {
        drop(given_up);
    }
}

/// Takes from a shard's tier what it has beyond `share`. If it is to grow, takes a last region that is shorter than the
/// others as well, so that regions have their full length again: an object lies in one. Returns the bytes that are left.
pub(super) fn make_way<R>(shard: &mut DeviceShard<R>, share: u64) -> (u64, GivenUp) {
    let has = shard.stats().tier_bytes;
    shard.shrink_tier(if has < share { has / REGION_BYTES * REGION_BYTES } else { share })
}

/// Checks that a store of `shards` shards has a use for a tier of `bytes`.
///
/// # Errors
/// [`Error::Invalid`] if not.
pub(super) fn check(bytes: u64, shards: u16) -> Result<()> {
    if bytes == 0 || share(bytes, shards) > 0 {
        return Ok(());
    }
    let least = MEMORY_BYTES_MIN as u64 * u64::from(shards);
    Err(Error::invalid("tier_bytes", bytes, format!("give at least {least} bytes, or 0 for none")))
}

/// Returns the bytes of one shard, in whole units.
pub(super) fn share(bytes: u64, shards: u16) -> u64 {
    let share = bytes / u64::from(shards) / UNIT_BYTES * UNIT_BYTES;
    if share < MEMORY_BYTES_MIN as u64 { 0 } else { share }
}

/// Allocates `len` bytes for the tier.
fn region(device: &Device, len: u64) -> Result<Buffer> {
    let mut region = device.allocate(len as usize)?;
    // Memory comes in whole pages, possibly more than requested.
    drop(region.split_off(len as usize));
    Ok(region)
}
