//! Devices that the store has given up come back.
//!
//! A device that was lost is there again once every shard knows that it was: its controller was reset, so nothing that
//! was in flight is. One that failed to write a journal was never away.

use super::counts::Sum;
use super::machine::lock;
use super::world::StoreWorld;

impl StoreWorld {
    /// One of the shards that gave a device up, and the device, if it can be attached again.
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

    /// Attaches a device again, if there is one.
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
