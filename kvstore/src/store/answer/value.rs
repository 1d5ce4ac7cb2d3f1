//! The results of store calls.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::verify::ReadCheck;
use crate::error::Failure;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{Version, piece_bytes};
use crate::model::place::UNIT_BYTES;
use crate::shard::{Info, Outcome, Pinned, TenantStats};
use crate::store::devices::DeviceShard;
use crate::store::memory::{PoolBuffer, Unfinished};

/// An object's bytes, or a range of them, verified against their checksums. The memory is the store's and returns to
/// it when this is dropped: holding many values makes other readers wait, or keeps memory of the memory tier in use:
/// at most half of it, or 256 MiB of each shard. Beyond that, values are copies in memory of the pools.
pub struct Value {
    memory: ValueMemory,
    range: Range<usize>,
    object_bytes: u64,
    version: Version,
}

/// The memory of a value.
pub(crate) enum ValueMemory {
    /// In memory of a pool, which they were read into.
    Pooled(PoolBuffer),
    /// In the memory tier, which shares them.
    Shared(Pinned),
}

impl Deref for ValueMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            ValueMemory::Pooled(buffer) => buffer,
            ValueMemory::Shared(pinned) => pinned,
        }
    }
}

impl Value {
    /// Creates the value of a range of `memory`, of an object of `object_bytes`.
    pub(crate) fn new(
        memory: ValueMemory,
        range: Range<usize>,
        object_bytes: u64,
        version: Version,
    ) -> Value {
        assert!(range.end <= memory.len() && range.start <= range.end, "a value was read");
        Value { memory, range, object_bytes, version }
    }

    /// Returns all bytes that were read: the range, and the rest of its pieces.
    pub(crate) fn read_bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the object's version, for [`PutWith::condition`](crate::store::PutWith::condition) and
    /// [`Store::get_range_if`](crate::store::Store::get_range_if).
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the length of the whole object in bytes.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} bytes of {})", self.len(), self.object_bytes)
    }
}

/// The result of a put. `M` is the memory of the store.
#[derive(Debug)]
pub struct Put<M = AnyBuffer> {
    /// [`Outcome::Stored`] or [`Outcome::Declined`].
    pub outcome: Outcome,
    /// The memory that the caller lent; none if the data was copied.
    pub memory: M,
    /// The version that the object got, if it was stored.
    pub version: Option<Version>,
}

impl<M> Put<M> {
    /// Returns whether the object was stored.
    pub fn is_stored(&self) -> bool {
        self.outcome == Outcome::Stored
    }
}

/// The result of a read into the caller's memory. `M` is the memory of the store.
#[derive(Debug)]
pub struct Read<M = AnyBuffer> {
    /// Bytes of the part; `None` if there is no such object.
    pub bytes: Option<u64>,
    /// The caller's memory.
    pub memory: M,
    /// The object's version; `None` if there is no such object.
    pub version: Option<Version>,
}

impl Read {
    /// Makes the answer to a read of a shard's result.
    pub(crate) fn of(
        result: Result<Outcome, Failure>,
        memory: AnyBuffer,
        version: Option<Version>,
    ) -> Result<Read, Unfinished> {
        match result {
            Ok(Outcome::Hit { bytes }) => Ok(Read { bytes: Some(bytes), memory, version }),
            Ok(_) => Ok(Read { bytes: None, memory, version: None }),
            Err(failure) => Err(Unfinished::with(failure, memory)),
        }
    }

    /// Verifies the bytes: the read is a miss if they are not what was put.
    pub(crate) fn verified(self, check: ReadCheck) -> Read {
        let Read { bytes, memory, version } = self;
        let (memory, is_intact) = check.verify(memory);
        let (bytes, version) = if is_intact { (bytes, version) } else { (None, None) };
        Read { bytes, memory, version }
    }
}

/// Information about an object. Each shard numbers tenants and layouts by itself, so an object is described by its
/// tenant's name and its block's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// The name of its tenant; empty for the default tenant.
    pub tenant: Box<str>,
    /// Its layout, if it is a KV block.
    pub layout: Option<Layout>,
    /// Its version. [`Version::time`] says when it was stored.
    pub version: Version,
    /// Seconds until it expires, if it does.
    pub ttl_s: Option<u64>,
    /// The index of its device among the targets.
    pub device: u8,
}

impl ObjectInfo {
    /// Translates a shard's information about one of its objects.
    pub(crate) fn of<R>(shard: &DeviceShard<R>, info: Info) -> ObjectInfo {
        let Info { key, bytes, layout, tenant, version, ttl_s, device } = info;
        let tenant = shard.tenants().name(tenant).unwrap_or_default().into();
        let layout = shard.layouts().get(layout).copied();
        ObjectInfo { key, bytes, tenant, layout, version, ttl_s, device }
    }

    /// Returns the number of bytes that a get of the whole object returns: for a KV block with its padding.
    pub fn read_bytes(&self) -> u64 {
        self.layout.map_or(self.bytes, |layout| layout.block_units() * UNIT_BYTES)
    }

    /// Returns the bytes at whose multiples a range ([`Part::Bytes`](crate::shard::Part::Bytes)) of it begins and ends.
    pub fn piece_bytes(&self) -> u64 {
        self.layout.map_or(piece_bytes(self.bytes), |layout| layout.run_units() * UNIT_BYTES)
    }
}

/// The place where a scan goes on: a shard, and one of its objects.
#[derive(Clone, Copy)]
pub(crate) struct ScanCursor {
    pub(crate) shard: u16,
    shards: u16,
    from: u32,
}

impl ScanCursor {
    /// Reads a cursor of a store of `shards` shards; `None` at the end.
    pub(crate) fn of(cursor: u64, shards: u16) -> Option<ScanCursor> {
        let shard = u16::try_from(cursor >> 32).ok().filter(|shard| *shard < shards)?;
        Some(ScanCursor { shard, shards, from: cursor as u32 })
    }

    /// Returns at most `limit` objects of its shard whose keys begin with `prefix`, and the next cursor, if there is
    /// one.
    pub(crate) fn scan<R>(
        self,
        shard: &DeviceShard<R>,
        now: Time,
        prefix: &[u8],
        limit: usize,
    ) -> (Vec<ObjectInfo>, Option<u64>) {
        let (found, next) = shard.scan(now, prefix, self.from, limit);
        let at = |shard: u16, from: u32| u64::from(shard) << 32 | u64::from(from);
        let next_shard = (self.shard + 1 < self.shards).then(|| at(self.shard + 1, 0));
        let next = next.map(|next| at(self.shard, next)).or(next_shard);
        (found.into_iter().map(|info| ObjectInfo::of(shard, info)).collect(), next)
    }
}

/// Sums up what each tenant has in several shards, in the order of their names.
pub(crate) fn merged(parts: impl IntoIterator<Item = TenantStats>) -> Vec<TenantStats> {
    let mut all: BTreeMap<Box<str>, TenantStats> = BTreeMap::new();
    for part in parts {
        match all.get_mut(&part.name) {
            Some(known) => known.add(&part),
            None => drop(all.insert(part.name.clone(), part)),
        }
    }
    all.into_values().collect()
}
