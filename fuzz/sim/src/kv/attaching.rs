//! Reattaching devices that the store has given up.
//!
//! A lost device comes back once every shard knows of its loss: its controller was reset, so nothing is still in
//! flight. A device that only failed to write a journal was never away.

use super::counts::Sum;
use super::machine::lock;
use super::world::StoreWorld;

impl StoreWorld {
    /// Returns a shard that gave up a device, and the device, if it can be reattached.
    fn to_attach(&self) -> Option<(usize, u8)> {
        let machine = lock(&self.machine);
        let devices = 0..self.shape.disks.len() as u8;
        let mut pairs = devices.flat_map(|device| (0..self.shards.len()).map(move |s| (s, device)));
        pairs.find(|(shard, device)| {
            let all_know = || self.shards.iter().all(|shard| shard.has_failed(*device));
            let is_lost = machine.is_lost(usize::from(*device));
            self.shards[*shard].has_failed(*device) && (!is_lost || all_know())
        })
    }

    /// Reattaches a device, if there is one to reattach.
    pub(crate) fn attach(&mut self) {
        let Some((shard, device)) = self.to_attach() else { return };
        lock(&self.machine).find(usize::from(device));
        let lane = self.lane(usize::from(device));
        match self.shards[shard].attach(device, lane) {
            Ok(old) => {
                self.counts.count(Sum::Attached, 1);
                self.note(&[50], format_args!("device {device} is attached to shard {shard}"));
                self.give_lanes(vec![old]);
            }
            Err(why) => self.note(&[51], format_args!("device {device} is not attached: {why}")),
        }
    }
}
