//! The memory tier of a store: how much memory it has, and where that comes from.
//!
//! Each shard has an equal share, in regions of its own. The calling thread allocates, pins and frees them, so that the
//! store's threads do not wait for it.

use std::iter;
use std::sync::PoisonError;

use adit_driver::{Buffer, Device};

use super::devices::{DeviceShard, MEMORY_BYTES_MIN};
use super::handle::Store;
use crate::error::{Error, Result};
use crate::model::place::UNIT_BYTES;
use crate::shard::GivenUp;

/// Bytes of a region, except the last of a share. Memory goes back to the system by regions.
const REGION_BYTES: u64 = 64 << 20;

impl Store {
    /// Gives the memory tier `bytes` of registered memory, or takes it away: 0 turns the tier off. What it then has is
    /// divided among the shards, and less than 1 MiB for each is none. Returns how many bytes it has.
    ///
    /// Memory is freed before this returns, with the objects in it, which stay in the store; only what a
    /// [`Value`](super::Value) holds is freed with it. Memory goes by regions of up to 64 MiB. When the size changes, the
    /// tier forgets how often its objects were read. Blocks while memory is pinned.
    ///
    /// # Errors
    /// As [`Device::allocate`], with less memory in the tier than was asked for;
    /// [`Failure::Closed`](crate::shard::Failure::Closed) if the store is closed.
    pub fn set_tier(&self, bytes: u64) -> Result<u64> {
        let _one_at_a_time = self.core.tier.lock().unwrap_or_else(PoisonError::into_inner);
        let (shards, device) = (self.core.set.shards(), &self.core.devices.as_slice()[0]);
        let share = share(bytes, shards);
        // First all shrink, so that they never have more together than before or after.
        let shrink = |number| -> Result<u64> {
            let ask = self.core.ask(number, move |shard, _| Ok(make_way(shard, share)));
            let (left, given_up) = ask.wait()?;
            drop(given_up);
            Ok(left)
        };
        let left: Vec<u64> = (0..shards).map(shrink).collect::<Result<_>>()?;
        for (number, left) in (0..shards).zip(left) {
            let (memory, end) = allocated(device, share - left);
            let lent = self.core.ask(number, move |shard, _| {
                shard.lend_to_tier(memory);
                Ok(())
            });
            lent.wait()?;
            end?;
        }
        Ok(share * u64::from(shards))
    }
}

/// Takes from a shard's tier what it has beyond `share`. If it is to grow, takes a last region that is shorter than the
/// others as well, so that regions have their full length again: an object lies in one. Returns the bytes that are left.
pub(super) fn make_way<R>(shard: &mut DeviceShard<R>, share: u64) -> (u64, GivenUp) {
    let has = shard.stats().tier_bytes;
    shard.shrink_tier(if has < share { has / REGION_BYTES * REGION_BYTES } else { share })
}

/// Allocates `bytes` in regions. Returns those before the first error as well.
pub(super) fn allocated(device: &Device, bytes: u64) -> (Vec<Buffer>, Result<()>) {
    let mut end = Ok(());
    let until_error = |region: Result<Buffer>| region.map_err(|why| end = Err(why)).ok();
    let memory = regions(device, bytes).map_while(until_error).collect();
    (memory, end)
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

/// Allocates `bytes` in regions.
fn regions(device: &Device, bytes: u64) -> impl Iterator<Item = Result<Buffer>> + '_ {
    let mut left = bytes;
    iter::from_fn(move || {
        let len = left.min(REGION_BYTES);
        left -= len;
        (len > 0).then(|| {
            let mut region = device.allocate(len as usize)?;
            // Memory comes in whole pages, possibly more than requested.
            drop(region.split_off(len as usize));
            Ok(region)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_equal_shares_and_no_share_is_too_small_to_be_of_use() {
        const MIB: u64 = 1 << 20;
        assert_eq!(
            [0, MIB - 1, MIB, MIB + 4097].map(|bytes| share(bytes, 1)),
            [0, 0, MIB, MIB + 4096]
        );
        assert_eq!([3 * MIB - 1, 3 * MIB].map(|bytes| share(bytes, 3)), [0, MIB]);
        assert!(check(0, 3).is_ok() && check(3 * MIB, 3).is_ok());
        let why = check(MIB, 3).expect_err("too little").to_string();
        assert!(why.contains("tier_bytes") && why.contains("3145728"), "{why}");
    }

    #[test]
    fn a_share_is_regions_of_which_the_last_is_shorter() {
        let target = "null:".parse().expect("a target");
        let device = Device::open(&target, &Default::default()).expect("a device");
        let lens: Vec<usize> = regions(&device, (64 << 20) + 12_288)
            .map(|region| region.expect("memory").len())
            .collect();
        assert_eq!(lens, [64 << 20, 12_288]);
        assert_eq!(regions(&device, 0).count(), 0);
    }
}
