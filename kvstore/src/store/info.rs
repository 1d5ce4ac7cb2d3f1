//! What is known of an object, in words that are the same in all shards.
//!
//! Shards number their tenants and layouts each for itself, in the order in which they heard of them; those numbers mean
//! nothing outside of a shard and never leave the store. An object is told by its tenant's name and by what its block holds.

use crate::model::key::Key;
use crate::model::layout::BlockShape;
use crate::shard::Info;

use super::devices::DeviceShard;

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// The name of the tenant that it counts for; empty where that is nobody in particular.
    pub tenant: Box<str>,
    /// What it holds, where it is a KV block.
    pub block: Option<BlockShape>,
    /// Seconds that it has left, if it expires.
    pub ttl_s: Option<u64>,
    /// The device it is on, by its position among the targets.
    pub device: u8,
}

impl ObjectInfo {
    /// What `shard` knows of one of its objects.
    pub(super) fn of(shard: &DeviceShard, info: Info) -> ObjectInfo {
        let Info { key, bytes, layout, tenant, ttl_s, device } = info;
        let tenant = shard.tenant_of(tenant).map(|tenant| tenant.name.clone()).unwrap_or_default();
        let block = shard.layout_of(layout).map(|layout| *layout.block());
        ObjectInfo { key, bytes, tenant, block, ttl_s, device }
    }
}
