//! Messages of the vfio-user protocol.
//!
//! Version 0.1 of the specification (`docs/vfio-user.rst` of libvfio-user). Integers are in the host's byte
//! order, as both ends share a host. Structures here are message bodies, after the [`Header`]. Nothing from
//! the peer is used before its length is checked.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Commands of section "Commands".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
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

#[cfg(feature = "serve")]
impl Command {
    /// Returns the command of a message, if this crate knows it and clients send it.
    pub(crate) fn from_wire(command: u16) -> Option<Command> {
        use Command::*;
        let known = [
            Version,
            DmaMap,
            DmaUnmap,
            DeviceGetInfo,
            DeviceGetRegionInfo,
            DeviceGetIrqInfo,
            DeviceSetIrqs,
            RegionRead,
            RegionWrite,
            DeviceReset,
        ];
        known.into_iter().find(|known| *known as u16 == command)
    }
}

/// Bit 4 of the flags: the client wants no reply.
#[cfg(feature = "serve")]
pub(crate) const FLAG_NO_REPLY: u32 = 1 << 4;

/// The start of each message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) message_id: u16,
    pub(crate) command: u16,
    /// Bytes of the whole message, this header included.
    pub(crate) message_size: u32,
    pub(crate) flags: u32,
    /// An errno if the flags have [`FLAG_ERROR`].
    pub(crate) error: u32,
}

pub(crate) const HEADER_LEN: usize = size_of::<Header>();
/// Bits 3:0 of the flags: 0 command, 1 reply.
pub(crate) const FLAG_TYPE_MASK: u32 = 0xf;
pub(crate) const FLAG_TYPE_REPLY: u32 = 1;
pub(crate) const FLAG_ERROR: u32 = 1 << 5;

/// The version this end speaks. The minor version negotiates down.
pub(crate) const VERSION_MAJOR: u16 = 0;
pub(crate) const VERSION_MINOR: u16 = 1;

/// Followed by capabilities in JSON, ended by a zero byte.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: u16,
    pub(crate) minor: u16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DmaMap {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    /// Offset in the file that comes with the message.
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

pub(crate) const DMA_READ_WRITE: u32 = 0b11;
/// Flag of [`DmaMap`]: the device may only read it.
pub(crate) const DMA_READ: u32 = 0b01;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DmaUnmap {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// Flag of an unmapping: everything.
#[cfg(feature = "serve")]
pub(crate) const UNMAP_ALL: u32 = 1 << 1;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) region_count: u32,
    pub(crate) irq_count: u32,
}

pub(crate) const DEVICE_CAN_RESET: u32 = 1 << 0;
pub(crate) const DEVICE_IS_PCI: u32 = 1 << 1;

/// Followed by capabilities if `argsz` says so.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RegionInfo {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) index: u32,
    /// Offset of the first capability in this structure; 0 for none.
    pub(crate) cap_offset: u32,
    pub(crate) size: u64,
    /// The region's offset in the file that comes with the message.
    pub(crate) offset: u64,
}

pub(crate) const REGION_INFO_LEN: usize = size_of::<RegionInfo>();
#[cfg(feature = "serve")]
pub(crate) const REGION_CAN_READ_WRITE: u32 = 0b11;
pub(crate) const REGION_CAN_MMAP: u32 = 1 << 2;
pub(crate) const REGION_HAS_CAPS: u32 = 1 << 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RegionAccess {
    pub(crate) offset: u64,
    pub(crate) region: u32,
    pub(crate) count: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IrqInfo {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) count: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SetIrqs {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) start: u32,
    pub(crate) count: u32,
}

pub(crate) const IRQ_DATA_EVENTFD: u32 = 1 << 2;
pub(crate) const IRQ_DATA_NONE: u32 = 1 << 0;
pub(crate) const IRQ_ACTION_TRIGGER: u32 = 1 << 5;

const _: () = assert!(HEADER_LEN == 16 && REGION_INFO_LEN == 32);
const _: () = assert!(size_of::<DmaMap>() == 32 && size_of::<DmaUnmap>() == 24);
const _: () = assert!(size_of::<RegionAccess>() == 16 && size_of::<SetIrqs>() == 20);

/// Returns the first structure of a body, or `None` if it is too short.
pub(crate) fn first<T: FromBytes>(body: &[u8]) -> Option<T> {
    Some(T::read_from_prefix(body).ok()?.0)
}

pub(crate) const CAP_SPARSE_MMAP: u16 = 1;

/// Returns the areas in a region's sparse-mmap capability; `None` without one or if the list does not fit the
/// body. Offsets must grow, so a loop ends.
pub(crate) fn sparse_areas(body: &[u8], info: &RegionInfo) -> Option<Vec<Range<u64>>> {
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
