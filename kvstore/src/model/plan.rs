//! Plans: the commands of a batch, one per contiguous run on a device.
//!
//! Any executor can carry out a plan: the store's own queues, or a ring in GPU memory. It therefore has no addresses
//! and no buffers: a [`Slice`]'s region is an *item*, numbered by the batch. [`Plan::transfers`] gives each command as a
//! [`Transfer`]; an executor turns its slices into addresses.
//!
//! Invariants:
//!
//! - Every byte of every part is in exactly one slice of one [`Run`].
//! - A run is one contiguous run of whole units on one device, no longer than [`Limits::command_bytes_max`], and
//!   crosses no multiple of [`Limits::boundary_bytes`].
//! - Its slices, at most [`Limits::slices_max`], are its bytes in order.
//! - If parts share no unit, neither do runs, which are in order of their places. Without a limit on slices, no
//!   plan needs fewer commands.
//!
//! Two parts of a get may share units: an object requested twice is read twice. Parts of a put never do, because
//! extents are disjoint.
//!
//! A plan is two flat lists, so it can be rebuilt in the same memory and copied to a device unchanged.

use std::ops::Range;

use adit_driver::paths::Split;
use adit_driver::transfer::{Direction, Slice, Transfer};

use crate::model::place::{Place, UNIT_BYTES};

/// A part of a batch: contiguous on a device and in an item's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Where it starts on a device.
    pub place: Place,
    /// The item's number in its batch.
    pub item: u32,
    /// Its offset in the item's memory in bytes.
    pub offset: u64,
    /// Its length in bytes, padding included: whole units, at least one.
    pub bytes: u64,
}

/// One command: a contiguous run of units on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it starts.
    pub place: Place,
    /// Its length in bytes: whole units.
    pub bytes: u64,
    /// Its first slice in the plan's list.
    slices_start: u32,
    /// Its number of slices.
    slice_count: u32,
}

impl Run {
    /// Returns the end of its units.
    pub fn end_unit(&self) -> u64 {
        self.place.unit + self.bytes / UNIT_BYTES
    }

    /// Returns the positions of its slices in [`Plan::slices`].
    pub fn slices(&self) -> Range<usize> {
        let start = self.slices_start as usize;
        start..start + self.slice_count as usize
    }
}

/// The limits of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of a command (MDTS): whole units, at least one.
    pub command_bytes_max: u64,
    /// A command must not cross a multiple of this many bytes on the device: whole units; 0 for no boundary.
    pub boundary_bytes: u64,
    /// Maximum slices of a command, at least one.
    pub slices_max: u32,
}

impl Limits {
    fn check(&self) {
        let whole = |bytes: u64| bytes.is_multiple_of(UNIT_BYTES);
        assert!(self.command_bytes_max > 0 && self.slices_max > 0, "a command moves something");
        assert!(whole(self.command_bytes_max) && whole(self.boundary_bytes), "in whole units");
    }

    /// Returns the most bytes of a command that starts at `unit`.
    fn bytes_at(&self, unit: u64) -> u64 {
        let Limits { command_bytes_max, boundary_bytes, .. } = *self;
        let split = Split { command_bytes_max, boundary_bytes, commands: 1 };
        split.first(unit * UNIT_BYTES, command_bytes_max)
    }
}

/// The commands of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    runs: Vec<Run>,
    slices: Vec<Slice>,
}

impl Plan {
    /// Builds the plan of `parts`, and sorts them.
    ///
    /// # Panics
    /// As [`Plan::remake`].
    pub fn of(parts: &mut [Part], limits: &Limits) -> Plan {
        let mut plan = Plan::default();
        plan.remake(parts, limits);
        plan
    }

    /// Rebuilds this plan from `parts`, reusing its memory, and sorts them.
    ///
    /// # Panics
    /// If a part or a limit is 0 or not whole units, or there are 2^32 slices: bugs of the caller.
    pub fn remake(&mut self, parts: &mut [Part], limits: &Limits) {
        limits.check();
        self.runs.clear();
        self.slices.clear();
        parts.sort_unstable();
        for part in parts {
            let whole = part.bytes > 0 && part.bytes.is_multiple_of(UNIT_BYTES);
            assert!(whole, "a part is whole units, not {} bytes", part.bytes);
            self.add(*part, limits);
        }
    }

    /// Returns the commands.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the slices of all commands, in order.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Returns the commands as transfers; `lba_bytes` has the LBA size of each device.
    pub fn transfers(
        &self,
        direction: Direction,
        lba_bytes: &[u32],
    ) -> impl ExactSizeIterator<Item = Transfer<&[Slice]>> {
        self.runs.iter().map(move |run| Transfer {
            device: u16::from(run.place.device),
            direction,
            lba: run.place.lba(lba_bytes[usize::from(run.place.device)]),
            slices: &self.slices[run.slices()],
        })
    }

    /// Renumbers the items: `numbers` has the new number of each.
    pub(crate) fn renumber(&mut self, numbers: &[u32]) {
        for slice in &mut self.slices {
            slice.region = numbers[slice.region as usize];
        }
    }

    /// Returns the bytes that all commands move.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
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
            self.extend(Slice { region: part.item, offset: part.offset, bytes });
            part.place = part.place.plus(bytes / UNIT_BYTES);
            part.offset += bytes;
            part.bytes -= bytes;
        }
    }

    /// Returns how many bytes of the part fit in the last command.
    fn room(&self, part: &Part, limits: &Limits) -> u64 {
        let Some(last) = self.runs.last() else { return 0 };
        let behind = last.place.device == part.place.device && last.end_unit() == part.place.unit;
        let full = last.slice_count == limits.slices_max && !self.continues(part);
        if !behind || full {
            return 0;
        }
        limits.bytes_at(last.place.unit) - last.bytes
    }

    /// Returns whether the part continues, in memory, where the last slice ends.
    fn continues(&self, part: &Part) -> bool {
        let slice = self.slices.last();
        slice.is_some_and(|slice| {
            slice.region == part.item && slice.offset + slice.bytes == part.offset
        })
    }

    /// Begins an empty command.
    fn open(&mut self, place: Place) {
        let slices_start = u32::try_from(self.slices.len()).expect("a batch has under 2^32 slices");
        self.runs.push(Run { place, bytes: 0, slices_start, slice_count: 0 });
    }

    /// Adds a slice to the last command, merging it with the previous slice if they are contiguous in memory.
    fn extend(&mut self, slice: Slice) {
        let run = self.runs.last_mut().expect("a command is open");
        run.bytes += slice.bytes;
        let before = self.slices.last_mut().filter(|before| {
            let next = before.offset + before.bytes == slice.offset;
            run.slice_count > 0 && before.region == slice.region && next
        });
        match before {
            Some(before) => before.bytes += slice.bytes,
            None => {
                self.slices.push(slice);
                run.slice_count += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
