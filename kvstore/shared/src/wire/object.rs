//! Descriptions of objects: in an answer, or in a page of a scan with their keys.

use adit_kvstore::store::ObjectInfo;
use adit_kvstore::{KEY_BYTES_MAX, Key, Object, Version};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{layout_numbers, layout_of};

/// The longest description of an object with its key, in bytes.
pub const OBJECT_BYTES_MAX: usize = size_of::<ObjectHead>() + TENANT_BYTES_MAX + KEY_BYTES_MAX;

/// The most bytes of a tenant's name.
const TENANT_BYTES_MAX: usize = 64;

/// `ttl_s` of an object that does not expire.
const NEVER_S: u64 = u64::MAX;

/// The numbers of a description. The tenant's name and then the key follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ObjectHead {
    bytes: u64,
    version: u64,
    ttl_s: u64,
    /// The numbers of its layout; zeros without one.
    layout: [u64; 4],
    device: u16,
    tenant_bytes: u16,
    /// 0 in an answer, whose request names it.
    key_bytes: u32,
}

/// Encodes the description of an object, with its key if `has_key`.
pub fn object_bytes(info: &ObjectInfo, has_key: bool) -> Vec<u8> {
    let key = if has_key { info.key.as_bytes() } else { &[] };
    let tenant = &info.tenant.as_bytes()[..info.tenant.floor_char_boundary(TENANT_BYTES_MAX)];
    let head = ObjectHead {
        bytes: info.bytes,
        version: info.version.0,
        ttl_s: info.ttl_s.unwrap_or(NEVER_S),
        layout: info.layout.as_ref().map_or([0; 4], layout_numbers),
        device: info.device.into(),
        tenant_bytes: tenant.len() as u16,
        key_bytes: key.len() as u32,
    };
    [head.as_bytes(), tenant, key].concat()
}

/// Decodes a description, whose key is `key` if the description has none; returns also the bytes behind it. `None` if
/// the bytes are no description.
pub fn object_of<'a>(told: &'a [u8], key: Option<&Key>) -> Option<(ObjectInfo, &'a [u8])> {
    let (head, rest) = ObjectHead::read_from_prefix(told).ok()?;
    let (tenant, rest) = rest.split_at_checked(head.tenant_bytes.into())?;
    let (own, rest) = rest.split_at_checked(head.key_bytes as usize)?;
    if head.bytes >= Object::BYTES_END {
        return None;
    }
    let info = ObjectInfo {
        key: key.map_or_else(|| Key::new(own).ok(), |key| Some(key.clone()))?,
        bytes: head.bytes,
        tenant: std::str::from_utf8(tenant).ok()?.into(),
        layout: layout_of(head.layout),
        version: Version(head.version),
        ttl_s: (head.ttl_s != NEVER_S).then_some(head.ttl_s),
        device: u8::try_from(head.device).ok()?,
    };
    Some((info, rest))
}
