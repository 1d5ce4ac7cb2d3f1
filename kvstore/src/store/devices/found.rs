//! A store that was found on its devices, from which threads open its shards.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use adit_driver::Buffer;

use super::options::OpenOptions;
use super::{DeviceShard, Devices, MEMORY_BYTES_MIN, endurance, tier_share};
use crate::error::{Error, Result};
use crate::media::format::{self, Set};
use crate::shard::{Ledger, Recovery, Removals, Shard, ShardOptions};

/// A store found on its devices. Each thread opens the shards that it will drive, because a queue may belong to the
/// first thread that uses it.
pub(crate) struct FoundStore {
    pub(crate) devices: Devices,
    pub(crate) set: Set,
    pub(crate) options: OpenOptions,
    pub(crate) shard_options: ShardOptions,
}

impl FoundStore {
    /// Reads the devices' superblocks.
    pub(crate) fn look(options: &OpenOptions) -> Result<FoundStore> {
        options.check()?;
        let devices = Devices::open(&options.targets, &options.devices, None)?;
        let mut lanes = devices.lanes(options, &[])?;
        let set = format::read_set(&mut lanes, &mut devices.clock())?;
        drop(lanes);
        devices.close_to_others();
        devices.check_shards(set.shards())?;
        check_tier(options.tier_bytes, set.shards())?;
        let wall = super::wall_at_zero(devices.now());
        let budget = options.budget(&devices)?;
        let shard_options = options.shard(set.shards(), wall, budget)?;
        Ok(FoundStore { devices, set, options: options.clone(), shard_options })
    }

    /// Opens a shard, whose requests will use `memory`. Open shard 0 first.
    pub(crate) fn open<R>(
        &self,
        shard: u16,
        memory: &[Buffer],
        callers_verify: bool,
    ) -> Result<(DeviceShard<R>, Recovery)> {
        let lanes = self.devices.lanes(&self.options, memory)?;
        let clock = &mut self.devices.clock();
        let options = ShardOptions { callers_verify, ..self.shard_options.clone() };
        Shard::open(shard, lanes, &self.set, options, clock)
    }
}

impl OpenOptions {
    /// Returns the bytes per day that objects may write: the smaller of the configured limit and what the drives
    /// endure.
    ///
    /// # Errors
    /// As [`endurance::bytes_per_day`].
    fn budget(&self, devices: &Devices) -> Result<Option<u64>> {
        let endured =
            self.lifetime.map(|lifetime| endurance::bytes_per_day(devices.as_slice(), lifetime));
        Ok([self.write_bytes_per_day, endured.transpose()?].into_iter().flatten().min())
    }

    /// Returns the options of each of `shards` shards, which share the write budget equally.
    fn shard(
        &self,
        shards: u16,
        wall_at_zero: Duration,
        write_bytes_per_day: Option<u64>,
    ) -> Result<ShardOptions> {
        let of = |total: u64| total / u64::from(shards);
        let objects = self.capacity_objects.map(|all| all.div_ceil(u64::from(shards)));
        let objects = objects.map(|objects| {
            u32::try_from(objects).map_err(|_| {
                Error::invalid("capacity_objects", objects, "format the store with more shards")
            })
        });
        Ok(ShardOptions {
            durability: self.durability,
            policy: self.policy,
            custom_policy: self.custom_policy.clone(),
            capacity_bytes: self.capacity_bytes.map(of),
            capacity_objects: objects.transpose()?,
            watermarks: self.watermarks,
            write_bytes_per_day: write_bytes_per_day.map(of),
            seal_interval: self.seal_interval,
            flush_interval: self.flush_interval,
            discard_after: self.discard_after,
            wall_at_zero,
            keep_outdated: self.keep_outdated,
            ledger: Ledger::default(),
            removals: Removals::new(any_number()),
            callers_verify: false,
        })
    }
}

/// Checks that a store of `shards` shards has a use for a memory tier of `bytes`.
///
/// # Errors
/// [`Error::Invalid`] if not.
fn check_tier(bytes: u64, shards: u16) -> Result<()> {
    if bytes == 0 || tier_share(bytes, shards) > 0 {
        return Ok(());
    }
    let least = MEMORY_BYTES_MIN as u64 * u64::from(shards);
    Err(Error::invalid("tier_bytes", bytes, format!("give at least {least} bytes, or 0 for none")))
}

/// Returns a number that differs between calls and processes, and need not be a secret.
fn any_number() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn shards_have_equal_shares_and_no_share_is_too_small_to_be_of_use() {
        let shares = [0, MIB - 1, MIB, MIB + 4097].map(|bytes| tier_share(bytes, 1));
        assert_eq!(shares, [0, 0, MIB, MIB + 4096]);
        assert_eq!([3 * MIB - 1, 3 * MIB].map(|bytes| tier_share(bytes, 3)), [0, MIB]);
        assert!(check_tier(0, 3).is_ok() && check_tier(3 * MIB, 3).is_ok());
        let why = check_tier(MIB, 3).expect_err("too little").to_string();
        assert!(why.contains("tier_bytes") && why.contains("3145728"), "{why}");
    }
}
