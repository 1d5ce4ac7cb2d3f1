//! Writes the superblocks of a session: when the store is opened, and when it has stopped.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::{Set, Waiting};
use crate::error::Result;
use crate::io::lane::{Lane, Load};
use crate::media::device_set::Agreed;
use crate::media::superblock::{Stop, Superblock};
use crate::model::options::Durability;

/// Writes superblocks that begin a session: a sequence that no earlier opening had, and the epoch.
///
/// # Errors
/// [`Error::Driver`] if a device does not answer.
pub(crate) fn begin_session<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    set: &Set,
    durability: Durability,
    clock: &mut dyn FnMut() -> Time,
) -> Result<()> {
    let agreed = set.next_session(durability);
    let next = |superblock: &Superblock| Superblock {
        sequence: agreed.sequence,
        epoch: agreed.epoch,
        durability,
        stop: set.stop.clone().filter(|_| agreed.epoch == set.agreed.epoch),
        ..superblock.clone()
    };
    let superblocks: Vec<Superblock> = set.superblocks.iter().map(next).collect();
    let all = 0..superblocks.len();
    Waiting { lanes, clock }.write_superblocks(&superblocks, all, |device| set.lacks_copy_a(device))
}

/// Writes superblocks that end the session begun with `set`. The shards must have stopped, with all blocks below
/// `ends`, one end for each shard, flushed.
///
/// # Errors
/// [`Error::Media`] if a device does not answer.
///
/// # Panics
/// If a shard has no end.
pub fn end_session<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    set: &Set,
    durability: Durability,
    ends: &[u64],
    clock: &mut dyn FnMut() -> Time,
) -> Result<()> {
    assert_eq!(ends.len(), usize::from(set.shards()), "each shard has an end");
    let Agreed { epoch, sequence: session } = set.next_session(durability);
    let next = |superblock: &Superblock| Superblock {
        sequence: session + 1,
        epoch,
        durability,
        stop: Some(Stop { session, ends: ends.to_vec() }),
        ..superblock.clone()
    };
    let superblocks: Vec<Superblock> = set.superblocks.iter().map(next).collect();
    Waiting { lanes, clock }.write_superblocks(&superblocks, 0..superblocks.len(), |_| false)
}

impl Set {
    /// Returns whether a device's copy A is damaged, so that copy B is the only one.
    pub(crate) fn lacks_copy_a(&self, device: usize) -> bool {
        self.bad.iter().any(|(index, copy, _)| usize::from(*index) == device && *copy == 'A')
    }

    /// Returns the epoch and the sequence after the next opening.
    pub(crate) fn next_session(&self, durability: Durability) -> Agreed {
        let is_volatile = durability == Durability::Volatile;
        let Agreed { epoch, sequence } = self.agreed;
        Agreed { epoch: epoch + u64::from(is_volatile), sequence: sequence + 1 }
    }
}
