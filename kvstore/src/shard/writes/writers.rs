//! Writers of objects in parts, and which parts of each are written.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::Failure;
use crate::shard::batch::PartWrite;
use crate::shard::change::NewObject;
use crate::shard::request::WriterId;

/// An object being written in parts.
#[derive(Debug)]
pub(super) struct Writer {
    new: Box<NewObject>,
    /// Pieces whose data is on the device.
    filled: Vec<bool>,
    /// Pieces being filled, or filled.
    claimed: Vec<bool>,
    in_flight: u32,
    is_abandoned: bool,
}

impl Writer {
    pub(super) fn new(new: Box<NewObject>) -> Writer {
        let count = new.checksums.len();
        // An empty object has nothing to fill, and the checksum of nothing is 0.
        let filled = vec![new.object.bytes == 0; count];
        Writer { new, filled, claimed: vec![false; count], in_flight: 0, is_abandoned: false }
    }

    pub(super) fn object(&self) -> &NewObject {
        &self.new
    }

    /// Returns whether one of these pieces is being filled, or filled.
    pub(super) fn is_claimed(&self, pieces: &Range<usize>) -> bool {
        self.claimed[pieces.clone()].contains(&true)
    }

    /// Begins to fill these pieces.
    pub(super) fn claim(&mut self, pieces: Range<usize>) {
        self.claimed[pieces].fill(true);
        self.in_flight += 1;
    }

    /// Returns how many bytes are missing at most.
    pub(super) fn missing_bytes(&self) -> u64 {
        let missing = self.filled.iter().filter(|filled| !**filled).count() as u64;
        let each = self.new.object.bytes.div_ceil(self.filled.len() as u64);
        (missing * each).min(self.new.object.bytes)
    }

    /// Returns whether everything was filled.
    pub(super) fn is_filled(&self) -> bool {
        self.filled.iter().all(|filled| *filled)
    }
}

/// The writers of a shard. Their numbers are not used again.
#[derive(Debug, Default)]
pub(super) struct Writers {
    open: BTreeMap<WriterId, Writer>,
    made: u64,
}

impl Writers {
    pub(super) fn add(&mut self, new: Box<NewObject>) -> WriterId {
        self.made += 1;
        let id = WriterId(self.made);
        self.open.insert(id, Writer::new(new));
        id
    }

    /// Returns a writer that was not given up.
    pub(super) fn usable(&mut self, id: WriterId) -> Result<&mut Writer, Failure> {
        let writer = self.open.get_mut(&id).filter(|writer| !writer.is_abandoned);
        writer.ok_or(Failure::Writer)
    }

    /// Takes out a writer, whose object is complete.
    pub(super) fn take(&mut self, id: WriterId) -> Box<NewObject> {
        self.open.remove(&id).expect("it was checked").new
    }

    /// Handles the end of a part's writes, and returns the object if it was given up and this was the last part.
    pub(super) fn fill(&mut self, filling: &PartWrite, is_written: bool) -> Option<Box<NewObject>> {
        let writer = self.open.get_mut(&filling.writer).expect("a writer waits for its parts");
        writer.in_flight -= 1;
        let first = filling.extract.first_checksum as usize;
        let run = first..first + filling.checksums.len();
        writer.filled[run.clone()].fill(is_written);
        writer.claimed[run.clone()].fill(is_written);
        writer.new.checksums[run].copy_from_slice(&filling.checksums);
        if writer.is_abandoned { self.drop_idle(filling.writer) } else { None }
    }

    /// Gives up a writer, unless it is unknown. Returns the object if no part is being written.
    pub(super) fn abandon(&mut self, id: WriterId) -> Option<Box<NewObject>> {
        self.open.get_mut(&id)?.is_abandoned = true;
        self.drop_idle(id)
    }

    fn drop_idle(&mut self, id: WriterId) -> Option<Box<NewObject>> {
        if self.open[&id].in_flight > 0 {
            return None;
        }
        self.open.remove(&id).map(|writer| writer.new)
    }
}
