//! Objects in memory, as readers on any thread see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::Resident;
use super::shelf::{Shelf, ShelfEntry};
use crate::model::key::Key;
#[cfg(feature = "internals")]
use crate::model::key::KeyHasher;
use crate::model::object::{LayoutId, Object, ObjectId, TenantId, Version};
use crate::shard::request::Found;

/// The table of a shard's objects in memory.
pub(crate) type Hot = Shelf<About, Resident>;
pub(crate) type HotEntry = ShelfEntry<About, Resident>;

/// Metadata of an object in memory.
pub(crate) struct About {
    pub(crate) id: ObjectId,
    pub(crate) tenant: TenantId,
    key: Key,
    version: Version,
    found: Found,
    /// Whether it is a KV block: its pieces are its layers.
    is_block: bool,
    /// Unix time in seconds; `u64::MAX` if it never expires.
    expires_s: AtomicU64,
}

impl About {
    pub(crate) fn new(
        id: ObjectId,
        key: Key,
        object: &Object,
        found: Found,
        expires_s: Option<u64>,
    ) -> About {
        let Object { tenant, version, layout, .. } = *object;
        let expires_s = AtomicU64::new(expires_s.unwrap_or(u64::MAX));
        About { id, tenant, key, version, found, is_block: layout != LayoutId::PLAIN, expires_s }
    }

    pub(super) fn set_expiry(&self, at_s: Option<u64>) {
        self.expires_s.store(at_s.unwrap_or(u64::MAX), Ordering::Release);
    }
}

/// An object in memory, found by a reader.
pub(crate) struct HotObject<'a> {
    hot: &'a Hot,
    entry: Arc<HotEntry>,
    resident: Resident,
}

impl Hot {
    /// Returns the object of a key, if it is in memory and has not expired at the Unix time `wall_s`, in seconds.
    pub(crate) fn object(
        &self,
        hash: u64,
        key: &Key,
        wall_s: impl FnOnce() -> u64,
    ) -> Option<HotObject<'_>> {
        let (entry, resident) = self.find(hash, |about| about.key == *key)?;
        let expires_s = entry.meta.expires_s.load(Ordering::Acquire);
        let is_live = expires_s == u64::MAX || expires_s > wall_s();
        is_live.then_some(HotObject { hot: self, entry, resident })
    }
}

impl HotObject<'_> {
    pub(crate) fn found(&self) -> Found {
        self.entry.meta.found
    }

    pub(crate) fn version(&self) -> Version {
        self.entry.meta.version
    }

    pub(crate) fn is_block(&self) -> bool {
        self.entry.meta.is_block
    }

    /// Returns the bytes, padding included.
    pub(crate) fn resident(&self) -> &Resident {
        &self.resident
    }

    /// Counts a read of `bytes` bytes.
    pub(crate) fn count(&self, bytes: u64) {
        self.hot.note(&self.entry, bytes);
    }
}

/// Reads objects in memory as a store's handles do: on any thread, even during the shard's turn.
#[cfg(feature = "internals")]
pub struct HotReader {
    hot: Arc<Hot>,
    hasher: KeyHasher,
}

#[cfg(feature = "internals")]
impl HotReader {
    pub(crate) fn new(hot: &Arc<Hot>, hasher: KeyHasher) -> HotReader {
        HotReader { hot: Arc::clone(hot), hasher }
    }

    /// Returns an object's bytes (padding included), length and version, if it is in memory and has not expired at
    /// the Unix time `wall_s`, in seconds.
    pub fn read(&self, key: &Key, wall_s: u64) -> Option<(Resident, u64, Version)> {
        let object = self.hot.object(self.hasher.hash(key.as_bytes()), key, || wall_s)?;
        object.count(object.found().bytes);
        Some((object.resident().clone(), object.found().bytes, object.version()))
    }
}
