//! The objects and records that a shard may hold, and those that it holds or has promised room to.

use super::batch::NewObject;

/// Counts and limits of objects and of their records, which must fit in a checkpoint.
#[derive(Debug)]
pub(super) struct Capacity {
    pub(super) objects_max: u32,
    /// Eviction begins above this number of live units.
    pub(super) live_units_max: u64,
    /// Whether eviction goes on until the low watermark is reached.
    pub(super) is_draining: bool,
    /// Bytes of the records of all objects.
    pub(super) record_bytes: u64,
    pub(super) record_bytes_max: u64,
    /// Objects on their way into the index: their data is being written, or their records are not durable. Each has
    /// an entry set aside.
    pub(super) coming: u64,
    pub(super) coming_record_bytes: u64,
}

impl Capacity {
    /// Returns whether there is room for `fresh` objects and `record_bytes` beside `objects` in the index and those
    /// on their way.
    pub(super) fn fits(&self, objects: u32, fresh: usize, record_bytes: u64) -> bool {
        u64::from(objects) + self.coming + fresh as u64 <= u64::from(self.objects_max)
            && self.record_bytes + self.coming_record_bytes + record_bytes <= self.record_bytes_max
    }

    /// Counts an object that is on its way into the index.
    pub(super) fn promise(&mut self, new: &NewObject) {
        self.coming += 1;
        self.coming_record_bytes += new.record_bytes();
    }

    /// Ends a promise: the object is in the index now, or was given up.
    pub(super) fn settle(&mut self, new: &NewObject) {
        self.coming -= 1;
        self.coming_record_bytes -= new.record_bytes();
    }
}
