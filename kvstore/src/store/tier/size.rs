//! How much memory a memory tier has, and regions for it.

use adit_driver::{Buffer, Device};

use crate::error::Result;
use crate::memory::{Elastic, Memory, Probe};
use crate::shard::GivenUp;
use crate::store::devices::{DeviceShard, tier_share};

/// Bytes of a region, except the last of a share. Memory goes back to the system by regions.
const REGION_BYTES: u64 = 64 << 20;

/// The size of a memory tier, and its limits.
pub(crate) struct TierSize {
    pub(super) elastic: Elastic,
    /// The bytes of all shards.
    pub(super) bytes: u64,
    /// Whether a change failed midway: shards may have more or less than `bytes`.
    pub(super) is_unknown: bool,
    /// Reads the machine's memory. Without a probe, that does not limit the tier.
    pub(super) probe: Option<Probe>,
    /// Whether the last change failed, which the log says.
    pub(super) has_failed: bool,
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
    pub(crate) fn limit(&mut self, bytes: u64, shards: u16) {
        let each = u64::from(shards);
        self.elastic = Elastic::new(tier_share(bytes, shards) * each, REGION_BYTES * each);
        if self.probe.is_none() && bytes > 0 {
            let probe = Probe::new();
            self.probe = probe
                .inspect_err(|error| tracing::warn!("the memory tier keeps its size: {error}"))
                .ok();
        }
    }

    /// Returns the present memory, if it can be read.
    pub(super) fn memory(&self) -> Option<Memory> {
        self.probe.as_ref()?.memory().ok()
    }

    /// Allocates regions for shards that have `left` bytes and lends them, those of a shard at once, until each has
    /// `share` bytes, memory has no room for another, or `goes_on` returns false. Returns how many bytes they have.
    pub(crate) fn lend(
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

/// Takes from a shard's tier what it has beyond `share`. If it is to grow, takes a last region that is shorter than
/// the others as well, so that regions have their full length again: an object lies in one. Returns the bytes that
/// are left.
pub(crate) fn make_way<R>(shard: &mut DeviceShard<R>, share: u64) -> (u64, GivenUp) {
    let has = shard.stats().tier_bytes;
    shard.shrink_tier(if has < share { has / REGION_BYTES * REGION_BYTES } else { share })
}

/// Allocates `len` bytes for the tier.
fn region(device: &Device, len: u64) -> Result<Buffer> {
    let mut region = device.allocate(len as usize)?;
    // Memory comes in whole pages, possibly more than requested.
    drop(region.split_off(len as usize));
    Ok(region)
}
