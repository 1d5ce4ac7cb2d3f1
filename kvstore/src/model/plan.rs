//! Plans: the commands that a batch becomes, one per contiguous run on a device.
//!
//! A plan is what any executor gets: the store's own queues, or a ring in GPU memory. So it has no addresses and no
//! buffers, only *items* (whatever the batch counts: its position in the batch, a page of a paged cache) and offsets
//! in them. An executor turns each [`Slice`] into an address, and each [`Transfer`] into one command.
//!
//! Invariants: every byte of every part is in exactly one slice of one transfer; a transfer is one contiguous run of
//! whole units on one device, no longer than [`Limits::command_bytes_max`], that crosses no multiple of
//! [`Limits::boundary_bytes`]; its slices, in order, are its bytes from the first on, at most [`Limits::slices_max`]
//! of them. Where parts share no unit, neither do transfers, which are in order of their places; and with no limit on
//! slices no plan needs fewer commands.
//!
//! Two parts of a get may share units: the same object is asked for twice, and read twice. Those of a put never do,
//! since extents are disjoint.
//!
//! A plan is two flat lists: it can be made again in the same memory, and copied to a device as it is.

use crate::model::place::{Place, UNIT_BYTES};

/// A part of a batch: contiguous on a device and in an item's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Where it starts on a device.
    pub place: Place,
    /// The item's number in its batch.
    pub item: u32,
    /// Where it starts in the item's memory, in bytes.
    pub offset: u64,
    /// Its length in bytes, padding included: whole units, at least one.
    pub bytes: u64,
}

/// A piece of a transfer: contiguous in an item's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The item's number in its batch.
    pub item: u32,
    /// Where it starts in the item's memory, in bytes.
    pub offset: u64,
    /// Its length in bytes: whole units.
    pub bytes: u64,
}

/// One command: a contiguous run on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Where it starts; [`Place::lba`] has the LBA.
    pub place: Place,
    /// Its length in bytes: whole units.
    pub bytes: u64,
    /// Its first slice in the plan's list.
    pub slices_start: u32,
    /// How many slices it has.
    pub slice_count: u32,
}

impl Transfer {
    /// One past its last unit.
    pub fn end_unit(&self) -> u64 {
        self.place.unit + self.bytes / UNIT_BYTES
    }
}

/// What one command may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a command (MDTS): whole units, at least one.
    pub command_bytes_max: u64,
    /// A command must not cross a multiple of so many bytes on the device: whole units; 0 for no such boundary.
    pub boundary_bytes: u64,
    /// Most slices of a command, at least one.
    pub slices_max: u32,
}

impl Limits {
    fn check(&self) {
        let whole = |bytes: u64| bytes.is_multiple_of(UNIT_BYTES);
        assert!(self.command_bytes_max > 0 && self.slices_max > 0, "a command moves something");
        assert!(whole(self.command_bytes_max) && whole(self.boundary_bytes), "in whole units");
    }

    /// Bytes that a command may have that starts at `unit`.
    fn bytes_at(&self, unit: u64) -> u64 {
        if self.boundary_bytes == 0 {
            return self.command_bytes_max;
        }
        let past_bytes = unit % (self.boundary_bytes / UNIT_BYTES) * UNIT_BYTES;
        self.command_bytes_max.min(self.boundary_bytes - past_bytes)
    }
}

/// The commands of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    transfers: Vec<Transfer>,
    slices: Vec<Slice>,
}

impl Plan {
    /// The plan of `parts`, which are put in order.
    ///
    /// # Panics
    /// As [`Plan::remake`].
    pub fn of(parts: &mut [Part], limits: &Limits) -> Plan {
        let mut plan = Plan::default();
        plan.remake(parts, limits);
        plan
    }

    /// Makes the plan of `parts`, which are put in order, in the memory of this one.
    ///
    /// # Panics
    /// If a part or a limit is 0 or no whole number of units, or there are 2^32 slices: bugs of the caller's.
    pub fn remake(&mut self, parts: &mut [Part], limits: &Limits) {
        limits.check();
        self.transfers.clear();
        self.slices.clear();
        parts.sort_unstable();
        for part in parts {
            let whole = part.bytes > 0 && part.bytes.is_multiple_of(UNIT_BYTES);
            assert!(whole, "a part is whole units, not {} bytes", part.bytes);
            self.add(*part, limits);
        }
    }

    /// The commands.
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// The slices of all commands, one command after the other.
    pub fn all_slices(&self) -> &[Slice] {
        &self.slices
    }

    /// The slices of one of this plan's commands: its bytes in order.
    pub fn slices(&self, transfer: &Transfer) -> &[Slice] {
        let start = transfer.slices_start as usize;
        &self.slices[start..start + transfer.slice_count as usize]
    }

    /// Bytes that all commands move.
    pub fn bytes(&self) -> u64 {
        self.transfers.iter().map(|transfer| transfer.bytes).sum()
    }

    /// Adds a part: to the last command while it fits, then in commands of its own.
    fn add(&mut self, mut part: Part, limits: &Limits) {
        while part.bytes > 0 {
            let room = self.room(&part, limits);
            if room == 0 {
                self.open(part.place);
                continue;
            }
            let bytes = part.bytes.min(room);
            self.extend(Slice { item: part.item, offset: part.offset, bytes });
            part.place = part.place.plus(bytes / UNIT_BYTES);
            part.offset += bytes;
            part.bytes -= bytes;
        }
    }

    /// Bytes of the part that the last command has room for.
    fn room(&self, part: &Part, limits: &Limits) -> u64 {
        let Some(last) = self.transfers.last() else { return 0 };
        let behind = last.place.device == part.place.device && last.end_unit() == part.place.unit;
        let full = last.slice_count == limits.slices_max && !self.continues(part);
        if !behind || full {
            return 0;
        }
        limits.bytes_at(last.place.unit) - last.bytes
    }

    /// Whether the part goes on in memory where the last command's last slice ends.
    fn continues(&self, part: &Part) -> bool {
        let slice = self.slices.last();
        slice.is_some_and(|slice| {
            slice.item == part.item && slice.offset + slice.bytes == part.offset
        })
    }

    /// Begins a command, of nothing yet.
    fn open(&mut self, place: Place) {
        let slices_start = u32::try_from(self.slices.len()).expect("a batch has under 2^32 slices");
        self.transfers.push(Transfer { place, bytes: 0, slices_start, slice_count: 0 });
    }

    /// Adds a slice to the last command, joined with the slice before if they are one in memory.
    fn extend(&mut self, slice: Slice) {
        let transfer = self.transfers.last_mut().expect("a command is open");
        transfer.bytes += slice.bytes;
        let before = self.slices.last_mut().filter(|before| {
            let next = before.offset + before.bytes == slice.offset;
            transfer.slice_count > 0 && before.item == slice.item && next
        });
        match before {
            Some(before) => before.bytes += slice.bytes,
            None => {
                self.slices.push(slice);
                transfer.slice_count += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
