//! The results of store calls.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};

use adit_driver::memory::AnyBuffer;

use super::devices::DeviceShard;
use super::pool::PoolBuffer;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{Version, piece_bytes};
use crate::model::place::UNIT_BYTES;
use crate::shard::{Info, Outcome, Pinned, TenantStats};

/// An object's bytes, or a range of them, verified against their checksums. The memory is the store's and returns to
/// it when this is dropped: holding many values makes other readers wait, or keeps memory of the memory tier in use: at most half of
/// it, or 256 MiB of each shard. Beyond that, values are copies in memory of the pools.
pub struct Value {
    memory: Memory,
    range: Range<usize>,
    object_bytes: u64,
    version: Version,
}

/// Where the bytes of a value are.
enum Memory {
    /// In memory of a pool, which they were read into.
    Pooled(PoolBuffer),
    /// In the memory tier, which shares them.
    Shared(Pinned),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Pooled(buffer) => buffer,
            Memory::Shared(pinned) => pinned,
        }
    }
}

impl Value {
    pub(super) fn new(
        buffer: PoolBuffer,
        range: Range<usize>,
        object_bytes: u64,
        version: Version,
    ) -> Value {
        Value::of(Memory::Pooled(buffer), range, object_bytes, version)
    }

    /// Creates a value that shares the bytes of an object in memory.
    pub(super) fn shared(
        bytes: Pinned,
        range: Range<usize>,
        object_bytes: u64,
        version: Version,
    ) -> Value {
        Value::of(Memory::Shared(bytes), range, object_bytes, version)
    }

    fn of(memory: Memory, range: Range<usize>, object_bytes: u64, version: Version) -> Value {
        assert!(range.end <= memory.len() && range.start <= range.end, "a value was read");
        Value { memory, range, object_bytes, version }
    }

    /// Returns all that was read: the range, and what else of its pieces.
    pub(super) fn read_bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the object's version, for [`super::PutWith::condition`] and [`super::Store::get_range_if`].
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

/// The result of a put.
#[derive(Debug)]
pub struct Put {
    /// [`Outcome::Stored`] or [`Outcome::Declined`].
    pub outcome: Outcome,
    /// The memory that the caller lent; none if the data was copied.
    pub memory: AnyBuffer,
    /// The version that the object got, if it was stored.
    pub version: Option<Version>,
}

impl Put {
    /// Returns whether the object was stored.
    pub fn is_stored(&self) -> bool {
        self.outcome == Outcome::Stored
    }
}

/// The result of a read into the caller's memory.
#[derive(Debug)]
pub struct Read {
    /// Bytes of the part; `None` if there is no such object.
    pub bytes: Option<u64>,
    /// The caller's memory.
    pub memory: AnyBuffer,
    /// The object's version; `None` if there is no such object.
    pub version: Option<Version>,
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
    pub(super) fn of<R>(shard: &DeviceShard<R>, info: Info) -> ObjectInfo {
        let Info { key, bytes, layout, tenant, version, ttl_s, device } = info;
        let tenant = shard.tenants().name(tenant).unwrap_or_default().into();
        let layout = shard.layouts().get(layout).copied();
        ObjectInfo { key, bytes, tenant, layout, version, ttl_s, device }
    }

    /// Returns the bytes that a get of all of it returns: of a KV block with its padding.
    pub fn read_bytes(&self) -> u64 {
        self.layout.map_or(self.bytes, |layout| layout.block_units() * UNIT_BYTES)
    }

    /// Returns the bytes at whose multiples a range ([`Part::Bytes`](crate::shard::Part::Bytes)) of it begins and ends.
    pub fn piece_bytes(&self) -> u64 {
        self.layout.map_or(piece_bytes(self.bytes), |layout| layout.run_units() * UNIT_BYTES)
    }
}

/// Sums up what each tenant has in several shards, in the order of their names.
pub(super) fn merged(parts: impl IntoIterator<Item = TenantStats>) -> Vec<TenantStats> {
    let mut all: BTreeMap<Box<str>, TenantStats> = BTreeMap::new();
    for part in parts {
        match all.get_mut(&part.name) {
            Some(known) => known.add(&part),
            None => drop(all.insert(part.name.clone(), part)),
        }
    }
    all.into_values().collect()
}
