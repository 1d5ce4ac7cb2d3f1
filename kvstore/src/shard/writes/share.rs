//! Shares of a request that begin at one time, so that no request is too large to begin.

use crate::model::place::UNIT_BYTES;
use crate::shard::log::Log;
use crate::shard::objects::Objects;
use crate::shard::room::Room;

/// Units of a list of puts that begin together: devices write them while the next are summed.
const PUT_UNITS: u64 = (4 << 20) / UNIT_BYTES;

/// A part of a request that begins as a whole, and so needs all its room at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    items: u64,
    units: u64,
    record_bytes: u64,
}

impl Share {
    /// Returns the most that begins at one time.
    pub(super) fn most(objects: &Objects, log: &Log, room: &Room) -> Share {
        Share {
            items: u64::from(room.objects_max()),
            units: objects.spaces().capacity_units() / 2,
            record_bytes: log.share_bytes_max().min(room.record_bytes_max() / 2),
        }
    }

    /// Returns the most of a list of puts, whose data are summed first.
    pub(super) fn of_puts(self) -> Share {
        Share { units: self.units.min(PUT_UNITS), ..self }
    }

    /// Adds an item. Returns false if it does not fit; it is then the first of the next share.
    pub(super) fn add(&mut self, units: u64, record_bytes: u64, most: &Share) -> bool {
        let with = Share {
            items: self.items + 1,
            units: self.units + units,
            record_bytes: self.record_bytes + record_bytes,
        };
        let fits = with.items <= most.items
            && with.units <= most.units
            && with.record_bytes <= most.record_bytes;
        if fits || self.items == 0 {
            *self = with;
            return true;
        }
        *self = Share { items: 1, units, record_bytes };
        false
    }
}
