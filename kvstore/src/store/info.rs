//! Information about an object in terms that hold across shards.
//!
//! Each shard numbers tenants and layouts separately, in the order in which it first saw them, so those numbers never
//! leave the store. An object is described by its tenant's name and its block's shape instead.

use crate::model::key::Key;
use crate::model::layout::BlockShape;
use crate::shard::Info;

use super::devices::DeviceShard;

/// Information about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// The name of its tenant; empty for the default tenant.
    pub tenant: Box<str>,
    /// Its shape, if it is a KV block.
    pub block: Option<BlockShape>,
    /// Seconds until it expires, if it does.
    pub ttl_s: Option<u64>,
    /// The index of its device among the targets.
    pub device: u8,
}

impl ObjectInfo {
    /// Translates a shard's information about one of its objects.
    pub(super) fn of(shard: &DeviceShard, info: Info) -> ObjectInfo {
        let Info { key, bytes, layout, tenant, ttl_s, device } = info;
        let tenant = shard.tenant_of(tenant).map(|tenant| tenant.name.clone()).unwrap_or_default();
        let block = shard.layout_of(layout).map(|layout| *layout.block());
        ObjectInfo { key, bytes, tenant, block, ttl_s, device }
    }
}
