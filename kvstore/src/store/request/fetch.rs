//! Reads into the store's own memory.

use std::ops::Range;
use std::sync::Arc;

use adit_driver::memory::AnyBuffer;

use crate::error::Result;
use crate::model::object::Version;
use crate::shard::{Failure, Found, GetItem, Outcome, Part, Pinned, Resident};
use crate::store::answer::{ReadCheck, Reply, Value, ValueMemory};
use crate::store::memory::{Pool, PoolBuffer, Pools, Unfinished};

/// A read into the store's own memory, which is taken once the object is found.
pub(crate) struct Fetch {
    pub(super) reply: Reply<Option<Value>>,
    /// The byte range; all bytes if `None`.
    range: Option<Range<u64>>,
    memory: FetchMemory,
}

/// The memory that a fetch has.
enum FetchMemory {
    Nothing,
    /// Memory that the fetch waited for; the object may have changed since.
    Granted(PoolBuffer),
    /// The range to read, and the pool of the memory to read into.
    Taken(FetchRange, Arc<Pool>),
    /// The wanted range within the whole object, whose bytes in memory the value shares.
    Shared(FetchRange, Pinned),
}

impl Fetch {
    pub(crate) fn new(reply: Reply<Option<Value>>, range: Option<Range<u64>>) -> Fetch {
        Fetch { reply, range, memory: FetchMemory::Nothing }
    }

    /// Chooses the part to read, and takes memory for it, unless the value may share the object in memory (`resident`).
    /// Returns how many bytes it lacks if there are none now.
    ///
    /// # Errors
    /// [`Failure::Part`] if the range begins beyond the object's end; [`Error::Invalid`] if there never will be enough
    /// memory.
    pub(super) fn take(
        &mut self,
        found: Found,
        item: &mut GetItem,
        pools: &Pools,
        resident: Option<&Resident>,
    ) -> Result<Option<usize>> {
        let (part, aim) = FetchRange::of(found, self.range.as_ref())?;
        if let Some(pinned) = resident.and_then(Resident::pin) {
            self.memory = FetchMemory::Shared(aim.within_object(&part), pinned);
            item.part = part;
            return Ok(None);
        }
        pools.check_read(aim.len as u64, self.range.is_some())?;
        let pool = pools.of_device(found.device);
        let taken = match std::mem::replace(&mut self.memory, FetchMemory::Nothing) {
            FetchMemory::Granted(buffer) if buffer.is_for(aim.len, pool) => Some(buffer),
            _ => pool.take(aim.len),
        };
        let Some(buffer) = taken else { return Ok(Some(aim.len)) };
        let (run, pool) = buffer.into_parts();
        self.memory = FetchMemory::Taken(aim, pool);
        (item.part, item.into) = (part, AnyBuffer::One(run));
        Ok(None)
    }

    /// Gives it the memory that it waited for.
    pub(super) fn grant(&mut self, buffer: PoolBuffer) {
        self.memory = FetchMemory::Granted(buffer);
    }

    /// Returns whether it shares the object in memory.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.memory, FetchMemory::Shared(..))
    }

    pub(super) fn answer_unverified(
        self,
        (memory, version): (AnyBuffer, Option<Version>),
        check: ReadCheck,
    ) {
        let FetchMemory::Taken(aim, pool) = self.memory else {
            unreachable!("it was read into memory")
        };
        let version = version.expect("what was read has a version");
        let buffer = pooled(memory, aim.len, &pool).expect("a run of the pool comes back as one");
        let value = aim.value(ValueMemory::Pooled(buffer), version);
        self.reply.send_unverified(Some(value), check, |value, check| {
            value.filter(|value| check.verify_bytes(value.read_bytes()))
        });
    }

    pub(super) fn answer(
        self,
        result: Result<Outcome, Failure>,
        memory: AnyBuffer,
        version: Option<Version>,
    ) {
        let version = version.unwrap_or_default();
        let hit = matches!(result, Ok(Outcome::Hit { .. }));
        let taken = match self.memory {
            FetchMemory::Taken(aim, pool) => pooled(memory, aim.len, &pool)
                .filter(|_| hit)
                .map(|buffer| (aim.len, aim.value(ValueMemory::Pooled(buffer), version))),
            FetchMemory::Shared(aim, pinned) => {
                Some((aim.len, aim.value(ValueMemory::Shared(pinned), version)))
            }
            FetchMemory::Nothing | FetchMemory::Granted(_) => None,
        };
        self.reply.send(match (result, taken) {
            (Ok(Outcome::Hit { bytes }), Some((len, value))) => {
                assert_eq!(bytes, len as u64, "what was aimed at is read");
                Ok(Some(value))
            }
            (Ok(Outcome::Miss), _) => Ok(None),
            (Ok(other), _) => unreachable!("a read ends with its memory or a miss, not {other:?}"),
            (Err(failure), _) => Err(Unfinished::new(failure)),
        });
    }
}

/// The bytes that a fetch reads of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FetchRange {
    /// The length in bytes of the part that is read.
    pub(crate) len: usize,
    /// The wanted bytes within the part.
    wanted: Range<usize>,
    object_bytes: u64,
}

impl FetchRange {
    /// Selects the whole pieces around `range`; for a KV block the whole layers, padding included.
    ///
    /// # Errors
    /// [`Failure::Part`] if the range begins beyond the object's end.
    pub(crate) fn of(
        found: Found,
        range: Option<&Range<u64>>,
    ) -> Result<(Part, FetchRange), Failure> {
        let Found { bytes: object_bytes, piece_bytes: piece, .. } = found;
        let range = range.cloned().unwrap_or(0..object_bytes);
        let reads_nothing = object_bytes == 0 && range.start == 0;
        if (range.start >= object_bytes || range.is_empty()) && !reads_nothing {
            return Err(Failure::Part(
                "the range is empty, or begins behind the object's end".into(),
            ));
        }
        let wanted = range.start..range.end.min(object_bytes);
        let read =
            wanted.start / piece * piece..wanted.end.next_multiple_of(piece).min(object_bytes);
        let part = if read == (0..object_bytes) { Part::All } else { Part::Bytes(read.clone()) };
        let at = |byte: u64| (byte - read.start) as usize;
        let (len, wanted) = (at(read.end), at(wanted.start)..at(wanted.end));
        Ok((part, FetchRange { len, wanted, object_bytes }))
    }

    /// Returns the value of `part` that shares the bytes of the whole object.
    pub(crate) fn shared(self, part: &Part, object: Pinned, version: Version) -> Value {
        self.within_object(part).value(ValueMemory::Shared(object), version)
    }

    fn value(self, memory: ValueMemory, version: Version) -> Value {
        Value::new(memory, self.wanted, self.object_bytes, version)
    }

    /// Returns the same range, relative to the object instead of `part`.
    fn within_object(self, part: &Part) -> FetchRange {
        let from = if let Part::Bytes(range) = part { range.start as usize } else { 0 };
        let wanted = from + self.wanted.start..from + self.wanted.end;
        FetchRange { wanted, ..self }
    }
}

/// Rebuilds the pool buffer from memory lent to a command.
fn pooled(memory: AnyBuffer, len: usize, pool: &Arc<Pool>) -> Option<PoolBuffer> {
    match memory {
        AnyBuffer::One(run) => Some(PoolBuffer::of(run, len, pool)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::object::piece_bytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_aim_is_whole_pieces_with_the_wanted_bytes_inside(
            bytes in 1u64..(200 << 20),
            start in 0u64..(210 << 20),
            len in 0u64..(1 << 21),
        ) {
            let range = start..start + len;
            let piece = piece_bytes(bytes);
            match FetchRange::of(Found { device: 0, bytes, piece_bytes: piece }, Some(&range)) {
                Err(_) => prop_assert!(start >= bytes || len == 0),
                Ok((part, aim)) => {
                    let read = match &part {
                        Part::Bytes(read) => read.clone(),
                        _ => 0..bytes,
                    };
                    prop_assert_eq!(aim.len as u64, read.end - read.start);
                    prop_assert!(read.start.is_multiple_of(piece));
                    prop_assert!(read.end == bytes || read.end.is_multiple_of(piece));
                    prop_assert_eq!(read.start + aim.wanted.start as u64, start);
                    prop_assert_eq!(read.start + aim.wanted.end as u64, range.end.min(bytes));
                    prop_assert!(aim.wanted.end <= aim.len);
                    let within = aim.within_object(&part).wanted;
                    prop_assert_eq!(within, start as usize..range.end.min(bytes) as usize);
                }
            }
        }
    }

    #[test]
    fn a_block_is_read_by_layers_with_their_padding() {
        let (bytes, piece_bytes) = (60 << 12, 20 << 12);
        let block = Found { device: 0, bytes, piece_bytes };
        let aim = |range| FetchRange::of(block, Some(&range)).expect("inside");
        let (part, FetchRange { len, wanted, .. }) = aim(piece_bytes + 5..piece_bytes + 6);
        assert_eq!((part, len, wanted), (Part::Bytes(20 << 12..40 << 12), 20 << 12, 5..6));
        let (part, FetchRange { len, wanted, .. }) = aim(5..bytes);
        assert_eq!((part, len, wanted), (Part::All, 60 << 12, 5..60 << 12));
    }
}
