//! A read in progress.

use crate::model::object::{ObjectId, TenantId, Version};
use crate::model::place::Place;
use crate::shard::extract::Extract;
use crate::shard::memory::{Memory, Sums};

/// A read. The place belongs to its object until the read ends, so an `id` with this place is still that object.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) id: ObjectId,
    pub(crate) tenant: TenantId,
    pub(crate) place: Place,
    pub(crate) version: Version,
    pub(crate) extract: Extract,
    pub(crate) checksums: Sums,
}

impl Reading {
    /// Returns whether memory that it was read into holds what was put.
    pub(crate) fn is_intact(&self, memory: &Memory) -> bool {
        memory.is_intact(&self.extract.pieces, self.checksums.iter().copied())
    }
}
