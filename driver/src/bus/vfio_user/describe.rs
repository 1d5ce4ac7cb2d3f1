//! Queries the server and its device, once.
//!
//! Sections "Version negotiation", "Device info", "Region info" and "IRQ info" of the protocol. Each answer
//! is checked for its length and for what the driver relies on; optional parts fall back to the protocol's
//! defaults.

use std::fs::File;
use std::ops::Range;

use zerocopy::IntoBytes;

use super::connection::{Answer, Connection, Failure};
use super::wire::{self, Command, DeviceInfo, IrqInfo, RegionInfo, Version};

/// Our capabilities: at most one file per reply.
const CAPABILITIES: &[u8] =
    b"{\"capabilities\":{\"max_msg_fds\":1,\"max_data_xfer_size\":1048576}}\0";
/// The protocol's default for servers that state none.
const DMA_MAPS_DEFAULT: u64 = 65535;
/// The most files in one message of the kernel's.
const FILES_MAX: u64 = 253;
/// Longest region info requested: a thousand sparse areas.
const REGION_ARGSZ_MAX: u32 = 16 << 10;

/// The server's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The most files in one message.
    pub(super) files: usize,
    /// The most mappings at a time.
    pub(super) dma_maps: u64,
}

pub(super) fn negotiate(connection: &mut Connection) -> Answer<Limits> {
    let ours = Version { major: wire::VERSION_MAJOR, minor: wire::VERSION_MINOR };
    let body = connection.request(Command::Version, &[ours.as_bytes(), CAPABILITIES])?;
    let checked = wire::first::<Version>(body)
        .ok_or_else(|| "no version in the reply".to_owned())
        .and_then(|theirs| match theirs.major {
            wire::VERSION_MAJOR => parse_limits(&body[size_of::<Version>()..]),
            major => Err(format!("the server speaks version {major}, not {}", ours.major)),
        });
    checked.map_err(|reason| Failure::Broken(connection.give_up(reason)))
}

fn parse_limits(json: &[u8]) -> Result<Limits, String> {
    let text = json.strip_suffix(&[0]).unwrap_or(json);
    let value: serde_json::Value = match text {
        [] => serde_json::Value::Null,
        text => serde_json::from_slice(text)
            .map_err(|why| format!("the server's capabilities are not JSON: {why}"))?,
    };
    let limit = |name: &str| value["capabilities"][name].as_u64();
    let files = limit("max_msg_fds").unwrap_or(1).clamp(1, FILES_MAX) as usize;
    let dma_maps = limit("max_dma_maps").unwrap_or(DMA_MAPS_DEFAULT);
    Ok(Limits { files, dma_maps })
}

pub(super) fn device_info(connection: &mut Connection) -> Answer<DeviceInfo> {
    let argsz = size_of::<DeviceInfo>() as u32;
    let ask = DeviceInfo { argsz, flags: 0, region_count: 0, irq_count: 0 };
    let body = connection.request(Command::DeviceGetInfo, &[ask.as_bytes()])?;
    let info = wire::first::<DeviceInfo>(body);
    let pci = info.filter(|info| info.flags & wire::DEVICE_IS_PCI != 0);
    pci.ok_or_else(|| Failure::Broken(connection.give_up("not a PCI device".to_owned())))
}

/// A region of the device and its file.
#[derive(Debug)]
pub(super) struct ServerRegion {
    pub(super) len: u64,
    pub(super) areas: Vec<Range<u64>>,
    /// The file to map, and the region's offset in it.
    pub(super) file: Option<(File, u64)>,
}

pub(super) fn region(connection: &mut Connection, index: u32) -> Answer<ServerRegion> {
    let (mut info, mut file, mut body) =
        ask_region(connection, index, wire::REGION_INFO_LEN as u32)?;
    if info.argsz as usize > wire::REGION_INFO_LEN && info.argsz <= REGION_ARGSZ_MAX {
        let first_file = file;
        (info, file, body) = ask_region(connection, index, info.argsz)?;
        file = file.or(first_file);
    }
    let mappable = info.flags & wire::REGION_CAN_MMAP != 0;
    let areas = match wire::sparse_areas(&body, &info) {
        _ if !mappable => Vec::new(),
        Some(areas) => areas,
        None => std::iter::once(0..info.size).collect(),
    };
    Ok(ServerRegion { len: info.size, areas, file: file.map(|file| (file, info.offset)) })
}

fn ask_region(
    connection: &mut Connection,
    index: u32,
    argsz: u32,
) -> Answer<(RegionInfo, Option<File>, Vec<u8>)> {
    let ask = RegionInfo { argsz, flags: 0, index, cap_offset: 0, size: 0, offset: 0 };
    let command = Command::DeviceGetRegionInfo;
    let (body, file) = connection.request_with_files(command, &[ask.as_bytes()], &[])?;
    let body = body.to_vec();
    match wire::first::<RegionInfo>(&body).filter(|info| info.index == index) {
        Some(info) => Ok((info, file, body)),
        None => Err(Failure::Broken(
            connection.give_up(format!("the reply does not describe region {index}")),
        )),
    }
}

/// Returns the device's interrupts of a kind; 0 if it does not know the kind.
pub(super) fn irq_count(connection: &mut Connection, index: u32) -> Answer<u32> {
    let argsz = size_of::<IrqInfo>() as u32;
    let ask = IrqInfo { argsz, flags: 0, index, count: 0 };
    match connection.request(Command::DeviceGetIrqInfo, &[ask.as_bytes()]) {
        Ok(body) => Ok(wire::first::<IrqInfo>(body).map_or(0, |info| info.count)),
        Err(Failure::Refused(_)) => Ok(0),
        Err(broken) => Err(broken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_from_json_or_defaults() {
        let default = Limits { files: 1, dma_maps: DMA_MAPS_DEFAULT };
        assert_eq!(parse_limits(b""), Ok(default));
        assert_eq!(parse_limits(b"{}\0"), Ok(default));
        let full = b"{\"capabilities\":{\"max_msg_fds\":8,\"max_dma_maps\":3,\"x\":[]}}\0";
        assert_eq!(parse_limits(full), Ok(Limits { files: 8, dma_maps: 3 }));
        let odd = b"{\"capabilities\":{\"max_msg_fds\":-1,\"max_dma_maps\":\"many\"}}";
        assert_eq!(parse_limits(odd), Ok(default));
        let zero = b"{\"capabilities\":{\"max_msg_fds\":0}}";
        assert_eq!(parse_limits(zero), Ok(default));
        assert!(parse_limits(b"{").is_err());
    }

    #[test]
    fn sparse_areas_are_read_only_where_they_fit() {
        let info = RegionInfo {
            argsz: 64,
            flags: wire::REGION_CAN_MMAP | wire::REGION_HAS_CAPS,
            index: 0,
            cap_offset: 32,
            size: 0x4000,
            offset: 0,
        };
        let mut body = info.as_bytes().to_vec();
        body.extend([1u32 | 1 << 16, 0, 1, 0].into_iter().flat_map(u32::to_ne_bytes));
        body.extend([0x1000u64, 0x1000].into_iter().flat_map(u64::to_ne_bytes));
        let one_page = 0x1000..0x2000u64;
        assert_eq!(wire::sparse_areas(&body, &info), Some([one_page].to_vec()));
        for len in 0..body.len() {
            assert_eq!(wire::sparse_areas(&body[..len], &info), None, "{len} bytes");
        }
        let none = RegionInfo { flags: wire::REGION_CAN_MMAP, ..info };
        assert_eq!(wire::sparse_areas(&body, &none), None);
        body[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(wire::sparse_areas(&body, &info), None);
        body[32] = 9;
        body[36..40].copy_from_slice(&32u32.to_ne_bytes());
        assert_eq!(wire::sparse_areas(&body, &info), None, "a capability that points at itself");
    }
}
