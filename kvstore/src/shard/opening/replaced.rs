//! Reassigned numbers of tenants and layouts, found while a shard is opened.
//!
//! The objects of the former owner were removed before, but one may reappear where records are missing or its successor
//! is not whole. Versions distinguish them: only younger objects belong to the new owner.

use std::collections::BTreeMap;

use crate::catalog::index::Index;
use crate::model::object::{LayoutId, Object, ObjectId, TenantId, Version};

/// The replaced tenants and layouts, with the newest version at that time.
#[derive(Default)]
pub(super) struct Replaced {
    /// The newest version read so far in this attempt; an abandoned, damaged checkpoint may have had younger ones.
    newest: Version,
    tenants: BTreeMap<TenantId, Version>,
    layouts: BTreeMap<LayoutId, Version>,
}

impl Replaced {
    /// Records the version of a put.
    pub(super) fn put(&mut self, version: Version) {
        self.newest = self.newest.max(version);
    }

    /// Records that another tenant got this number.
    pub(super) fn tenant(&mut self, id: TenantId) {
        self.tenants.insert(id, self.newest);
    }

    /// Records that another layout got this number.
    pub(super) fn layout(&mut self, id: LayoutId) {
        self.layouts.insert(id, self.newest);
    }

    /// Returns the objects of former owners of their tenant's or layout's number.
    pub(super) fn strangers(&self, index: &Index) -> Vec<ObjectId> {
        if self.tenants.is_empty() && self.layouts.is_empty() {
            return Vec::new();
        }
        let strange = index.live().filter(|live| self.concerns(&live.object()));
        strange.map(|live| live.id).collect()
    }

    fn concerns(&self, object: &Object) -> bool {
        let is_old = |since: Option<&Version>| since.is_some_and(|since| object.version <= *since);
        is_old(self.tenants.get(&object.tenant)) || is_old(self.layouts.get(&object.layout))
    }
}
