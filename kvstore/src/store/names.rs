//! Tenants and layouts, with their ids in each shard.

use std::sync::Arc;

use crate::model::layout::Layout;
use crate::model::object::{LayoutId, TenantId};

/// The owner of objects, for [`super::PutWith`]. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(Arc<[TenantId]>);

impl Tenant {
    /// Creates a tenant with id `ids[n]` in shard n.
    pub(super) fn new(ids: Vec<TenantId>) -> Tenant {
        Tenant(ids.into())
    }

    pub(super) fn in_shard(&self, shard: u16) -> TenantId {
        self.0[usize::from(shard)]
    }
}

/// A layout of KV blocks defined in a store, for [`super::PutWith`]. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct DefinedLayout {
    ids: Arc<[LayoutId]>,
    layout: Arc<Layout>,
}

impl DefinedLayout {
    /// Creates a layout with id `ids[n]` in shard n.
    pub(super) fn new(ids: Vec<LayoutId>, layout: Layout) -> DefinedLayout {
        DefinedLayout { ids: ids.into(), layout: Arc::new(layout) }
    }

    /// Returns the layout itself.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn in_shard(&self, shard: u16) -> LayoutId {
        self.ids[usize::from(shard)]
    }
}
