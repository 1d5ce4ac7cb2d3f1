//! Messages of the vfio-user protocol.
//!
//! Version 0.1 of the specification (`docs/vfio-user.rst` of libvfio-user).
//! Integers are in the host's byte order, as both ends share a host. Structures
//! here are bodies: what follows the [`Header`]. Nothing from the peer is used
//! before its length was checked.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Commands of section "Commands".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceGetInfo = 4,
    DeviceGetRegionInfo = 5,
    DeviceGetIrqInfo = 7,
    DeviceSetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    DeviceReset = 13,
}

/// The start of each message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub(super) message_id: u16,
    pub(super) command: u16,
    /// Bytes of the whole message, this header included.
    pub(super) message_size: u32,
    pub(super) flags: u32,
    /// An errno where the flags have [`FLAG_ERROR`].
    pub(super) error: u32,
}

pub(super) const HEADER_LEN: usize = size_of::<Header>();
/// Bits 3:0 of the flags: 0 command, 1 reply.
pub(super) const FLAG_TYPE_MASK: u32 = 0xf;
pub(super) const FLAG_TYPE_REPLY: u32 = 1;
pub(super) const FLAG_ERROR: u32 = 1 << 5;

/// Version this end speaks. The minor version negotiates down.
pub(super) const VERSION_MAJOR: u16 = 0;
pub(super) const VERSION_MINOR: u16 = 1;

/// Followed by capabilities in JSON, ended by a zero byte.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Version {
    pub(super) major: u16,
    pub(super) minor: u16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DmaMap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    /// Offset in the file that comes with the message.
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) size: u64,
}

pub(super) const DMA_READ_WRITE: u32 = 0b11;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DmaUnmap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) address: u64,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) region_count: u32,
    pub(super) irq_count: u32,
}

pub(super) const DEVICE_CAN_RESET: u32 = 1 << 0;
pub(super) const DEVICE_IS_PCI: u32 = 1 << 1;

/// Followed by capabilities where `argsz` says so.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RegionInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    /// Offset of the first capability in this structure; 0 for none.
    pub(super) cap_offset: u32,
    pub(super) size: u64,
    /// Where the region starts in the file that comes with the message.
    pub(super) offset: u64,
}

pub(super) const REGION_INFO_LEN: usize = size_of::<RegionInfo>();
pub(super) const REGION_CAN_MMAP: u32 = 1 << 2;
pub(super) const REGION_HAS_CAPS: u32 = 1 << 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RegionAccess {
    pub(super) offset: u64,
    pub(super) region: u32,
    pub(super) count: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IrqInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) count: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SetIrqs {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) start: u32,
    pub(super) count: u32,
}

pub(super) const IRQ_DATA_EVENTFD: u32 = 1 << 2;
pub(super) const IRQ_DATA_NONE: u32 = 1 << 0;
pub(super) const IRQ_ACTION_TRIGGER: u32 = 1 << 5;

const _: () = assert!(HEADER_LEN == 16 && REGION_INFO_LEN == 32);
const _: () = assert!(size_of::<DmaMap>() == 32 && size_of::<DmaUnmap>() == 24);
const _: () = assert!(size_of::<RegionAccess>() == 16 && size_of::<SetIrqs>() == 20);

/// The first structure of a body, or `None` if it is too short.
pub(super) fn first<T: FromBytes>(body: &[u8]) -> Option<T> {
    Some(T::read_from_prefix(body).ok()?.0)
}

const CAP_SPARSE_MMAP: u16 = 1;

/// The areas that a region's sparse-mmap capability lists; `None` without one
/// or where the list does not fit the body. Offsets must grow, so a loop ends.
pub(super) fn sparse_areas(body: &[u8], info: &RegionInfo) -> Option<Vec<Range<u64>>> {
    let (mut at, mut previous) = (info.cap_offset as usize, 0);
    while info.flags & REGION_HAS_CAPS != 0 && at >= REGION_INFO_LEN && at > previous {
        let [id_and_version, next, count, _reserved] = first::<[u32; 4]>(body.get(at..)?)?;
        if id_and_version as u16 == CAP_SPARSE_MMAP {
            let areas = body.get(at + 16..)?;
            let (areas, _) =
                <[[u64; 2]]>::ref_from_prefix_with_elems(areas, count as usize).ok()?;
            return Some(
                areas.iter().map(|&[start, len]| start..start.saturating_add(len)).collect(),
            );
        }
        previous = at;
        at = next as usize;
    }
    None
}
