//! A tenant by what each shard calls it.

use std::sync::Arc;

use crate::object::TenantId;

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
