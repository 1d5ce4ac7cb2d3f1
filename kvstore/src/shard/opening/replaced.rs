//! Numbers of tenants and layouts that were given to others, as an opening reads it.
//!
//! The objects of the former were removed before, but one may come back where records are missing, or where its
//! successor is not whole. Versions tell: only younger objects are of the new one.

use std::collections::BTreeMap;

use crate::catalog::index::Index;
use crate::model::object::{LayoutId, Object, ObjectId, TenantId, Version};

/// The replaced tenants and layouts, with the newest version that there was then.
#[derive(Default)]
pub(super) struct Replaced {
    /// The newest version so far, of what is read now: a checkpoint that turned out damaged has younger ones.
    newest: Version,
    tenants: BTreeMap<TenantId, Version>,
    layouts: BTreeMap<LayoutId, Version>,
}

impl Replaced {
    /// Notes the version of an object that was put.
    pub(super) fn put(&mut self, version: Version) {
        self.newest = self.newest.max(version);
    }

    /// Notes that another tenant got this number.
    pub(super) fn tenant(&mut self, id: TenantId) {
        self.tenants.insert(id, self.newest);
    }

    /// Notes that another layout got this number.
    pub(super) fn layout(&mut self, id: LayoutId) {
        self.layouts.insert(id, self.newest);
    }

    /// Returns the objects that mean another tenant or layout than the one that has their number.
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
