//! Reads that the calling thread answers by itself, because their object is in memory.
//!
//! All special cases are left to the shard, which says what is wrong or waits for memory: a part that the object does
//! not have, another version, memory that no device knows or that is too short, values that would pin too much.

use std::ops::Range;

use adit_driver::memory::AnyBuffer;

use super::Core;
use crate::model::key::Key;
use crate::model::object::Version;
use crate::shard::{HotObject, Part};
use crate::store::answer::{Read, Value};
use crate::store::memory::segments;
use crate::store::request::FetchRange;

impl Core {
    /// Reads a byte range of an object, or all of it, if it is in memory, of this version if one is given. The value
    /// shares the bytes.
    pub(super) fn hot_value(
        &self,
        hash: u64,
        key: &Key,
        range: Option<&Range<u64>>,
        version: Option<Version>,
    ) -> Option<Value> {
        self.read_hot(hash, key, version, |object| {
            let (part, fetched) = FetchRange::of(object.found(), range).ok()?;
            let pinned = object.resident().pin()?;
            Some((fetched.len as u64, fetched.shared(&part, pinned, object.version())))
        })
    }

    /// Copies a part of an object to `into` if it is in memory, of this version if one is given.
    ///
    /// # Errors
    /// The memory, for the shard.
    pub(crate) fn hot_read(
        &self,
        hash: u64,
        key: &Key,
        (part, version): (&Part, Option<Version>),
        mut into: AnyBuffer,
    ) -> Result<Read, AnyBuffer> {
        let read = self.read_hot(hash, key, version, |object| {
            let range = range_of(object, part)?;
            let bytes = range.end - range.start;
            if !self.reach.knows(&into) || segments::bytes_of(&into) < bytes {
                return None;
            }
            segments::fill(&object.resident()[range.start as usize..range.end as usize], &mut into);
            Some((bytes, (bytes, object.version())))
        });
        match read {
            Some((bytes, version)) => {
                Ok(Read { bytes: Some(bytes), memory: into, version: Some(version) })
            }
            None => Err(into),
        }
    }

    /// Calls `read` with an object in memory, and counts the bytes that it read.
    fn read_hot<T>(
        &self,
        hash: u64,
        key: &Key,
        version: Option<Version>,
        read: impl FnOnce(&HotObject<'_>) -> Option<(u64, T)>,
    ) -> Option<T> {
        let shard = self.shard(hash);
        let hot = &self.hot[usize::from(shard)];
        if hot.is_empty() || self.mailbox(shard).is_stopping() {
            return None;
        }
        let since = self.clock.now();
        let object = hot.object(hash, key, || self.wall_s(since))?;
        if version.is_some_and(|version| version != object.version()) {
            return None;
        }
        let (bytes, found) = read(&object)?;
        object.count(bytes);
        self.figures(shard).found_in_memory((since, self.clock.now()));
        Some(found)
    }
}

/// Returns where a part lies in an object with its padding; `None` if the object does not have it.
fn range_of(object: &HotObject<'_>, part: &Part) -> Option<Range<u64>> {
    let (all, piece) = (object.found().bytes, object.found().piece_bytes);
    let range = match part {
        Part::All => 0..all,
        Part::Bytes(range) => range.start..range.end.min(all),
        Part::Layer(layer) if object.is_block() => {
            let start = u64::from(*layer).checked_mul(piece)?;
            start..start.checked_add(piece)?
        }
        Part::Layer(_) => return None,
    };
    let begins = range.start.is_multiple_of(piece) && range.start < range.end;
    let ends = range.end == all || (range.end < all && range.end.is_multiple_of(piece));
    (begins && ends).then_some(range)
}
