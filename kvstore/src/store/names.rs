//! Tenants and layouts by what each shard calls them.

use std::sync::Arc;

use crate::model::layout::Layout;
use crate::model::object::{LayoutId, TenantId};

/// Whose objects are, for [`super::PutWith`]. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(Arc<[TenantId]>);

impl Tenant {
    /// One that shard number n calls `ids[n]`.
    pub(super) fn new(ids: Vec<TenantId>) -> Tenant {
        Tenant(ids.into())
    }

    /// What a shard calls it.
    pub(super) fn in_shard(&self, shard: u16) -> TenantId {
        self.0[usize::from(shard)]
    }
}

/// How KV blocks of a model lie in a store, for [`super::PutWith`]. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct DefinedLayout {
    ids: Arc<[LayoutId]>,
    layout: Arc<Layout>,
}

impl DefinedLayout {
    /// One that shard number n calls `ids[n]`.
    pub(super) fn new(ids: Vec<LayoutId>, layout: Layout) -> DefinedLayout {
        DefinedLayout { ids: ids.into(), layout: Arc::new(layout) }
    }

    /// What it is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What a shard calls it.
    pub(super) fn in_shard(&self, shard: u16) -> LayoutId {
        self.ids[usize::from(shard)]
    }
}
