//! A client's requests and their replies (vfio-user specification 0.9, "Commands").
//!
//! Every length, count and flag is checked before use. A body may be longer than its structure (SPDK's initiator sends
//! region queries as long as the expected reply), never shorter.

use std::fs::File;
use std::mem::size_of;

use zerocopy::IntoBytes;

use super::device::{Device, REGIONS};
use super::interrupts::KINDS;
use super::memory::PIECES_MAX;
use super::peer::{Message, Reply};
use super::refusal::{Refusal, ServeResult};
use super::system::FILES_MAX;
use crate::bus::vfio_user::wire::{
    self, CAP_SPARSE_MMAP, Command, DEVICE_CAN_RESET, DEVICE_IS_PCI, DeviceInfo, DmaMap, DmaUnmap,
    FLAG_TYPE_MASK, IrqInfo, REGION_CAN_MMAP, REGION_CAN_READ_WRITE, REGION_HAS_CAPS,
    REGION_INFO_LEN, RegionAccess, RegionInfo, SetIrqs, VERSION_MAJOR, VERSION_MINOR, Version,
};

/// Region bytes that one message may read or write (`max_data_xfer_size`).
const TRANSFER_MAX: usize = 4096;
const IRQ_HAS_EVENTFD: u32 = 1;
/// Number of refusals logged individually, so that a client cannot fill the disk.
const LOGGED_MAX: u32 = 32;

#[derive(Debug, Default)]
pub(super) struct Session {
    is_negotiated: bool,
    refusals: u32,
}

impl Session {
    pub(super) fn is_negotiated(&self) -> bool {
        self.is_negotiated
    }

    pub(super) fn handle(&mut self, device: &mut Device, message: Message) -> ServeResult<Reply> {
        let name = name(message.header.command);
        let outcome = self.carry_out(device, message);
        if let Err(refusal) = &outcome {
            self.log(&name, refusal);
        }
        outcome
    }

    fn log(&mut self, name: &str, refusal: &Refusal) {
        self.refusals += 1;
        if self.refusals <= LOGGED_MAX {
            tracing::warn!("refused {name}: {}", refusal.why);
        }
        if self.refusals == LOGGED_MAX {
            tracing::warn!("further refusals of this client are not logged");
        }
    }

    fn carry_out(&mut self, device: &mut Device, message: Message) -> ServeResult<Reply> {
        let Message { header, body, files, strange_files } = message;
        if header.flags & FLAG_TYPE_MASK != 0 {
            return Err(Refusal::invalid(format!(
                "flags {:#x} do not mark a request",
                header.flags
            )));
        }
        let Some(command) = Command::from_wire(header.command) else {
            return Err(Refusal::unsupported("the request is unknown or unsupported"));
        };
        let takes_files =
            matches!(command, Command::DmaMap | Command::DmaUnmap | Command::DeviceSetIrqs);
        if !takes_files && !files.is_empty() {
            return Err(Refusal::invalid(format!("{} files came with it", files.len())));
        }
        if strange_files > 0 {
            let why = "a file came with it that is neither memory (memfd, /dev/shm, hugetlbfs) nor an eventfd";
            return Err(Refusal::invalid(why));
        }
        match command {
            Command::Version => self.negotiate(&body),
            _ if !self.is_negotiated => {
                Err(Refusal::invalid("the first request must be the version"))
            }
            Command::DmaMap => dma_map(device, &body, files),
            Command::DmaUnmap => dma_unmap(device, &body),
            Command::DeviceGetInfo => device_info(&body),
            Command::DeviceGetRegionInfo => region_info(device, &body),
            Command::DeviceGetIrqInfo => irq_info(device, &body),
            Command::DeviceSetIrqs => set_irqs(device, &body, files),
            Command::RegionRead => region_read(device, &body),
            Command::RegionWrite => region_write(device, &body),
            Command::DeviceReset => {
                device.reset()?;
                Ok(Reply::default())
            }
        }
    }

    fn negotiate(&mut self, body: &[u8]) -> ServeResult<Reply> {
        let theirs: Version = structure(body)?;
        if self.is_negotiated {
            return Err(Refusal::invalid("the version is already agreed on"));
        }
        if theirs.major != VERSION_MAJOR {
            let why = format!("it speaks version {}, not {VERSION_MAJOR}", theirs.major);
            return Err(Refusal::unsupported(why));
        }
        check_capabilities(&body[size_of::<Version>()..])?;
        let version = Version { major: VERSION_MAJOR, minor: VERSION_MINOR.min(theirs.minor) };
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{FILES_MAX},\"max_data_xfer_size\":{TRANSFER_MAX},\
             \"max_dma_maps\":{PIECES_MAX},\"pgsizes\":4096}}}}\0"
        );
        self.is_negotiated = true;
        Ok(reply([version.as_bytes(), capabilities.as_bytes()].concat()))
    }
}

/// Capabilities are optional; if present, they must be zero-terminated JSON.
fn check_capabilities(data: &[u8]) -> ServeResult {
    let Some((&last, text)) = data.split_last() else { return Ok(()) };
    if last != 0 {
        return Err(Refusal::invalid("its capabilities do not end with a zero byte"));
    }
    if text.is_empty() {
        return Ok(());
    }
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(text);
    match parsed {
        Ok(value) if value.is_object() => Ok(()),
        Ok(_) => Err(Refusal::invalid("its capabilities are not a JSON object")),
        Err(why) => Err(Refusal::invalid(format!("its capabilities are not JSON: {why}"))),
    }
}

fn name(command: u16) -> String {
    match Command::from_wire(command) {
        Some(command) => format!("{command:?}"),
        None => format!("command {command}"),
    }
}

fn reply(body: Vec<u8>) -> Reply {
    Reply { body, file: None }
}

/// Returns the structure at the start of a body.
fn structure<T: zerocopy::FromBytes>(body: &[u8]) -> ServeResult<T> {
    wire::first(body).ok_or_else(|| {
        Refusal::invalid(format!("{} bytes; it has at least {}", body.len(), size_of::<T>()))
    })
}

/// Checks the reply size that the client accepts.
fn check_argsz<T>(argsz: u32) -> ServeResult {
    if (argsz as usize) < size_of::<T>() {
        let why = format!("argsz {argsz}; the answer has {} bytes", size_of::<T>());
        return Err(Refusal::invalid(why));
    }
    Ok(())
}

fn dma_map(device: &mut Device, body: &[u8], mut files: Vec<File>) -> ServeResult<Reply> {
    let ask: DmaMap = structure(body)?;
    if files.len() > 1 {
        return Err(Refusal::invalid(format!("{} files for one mapping", files.len())));
    }
    device.memory.map(&ask, files.pop())?;
    Ok(Reply::default())
}

/// An attached file, as SPDK's initiator sends, is closed.
fn dma_unmap(device: &mut Device, body: &[u8]) -> ServeResult<Reply> {
    let ask: DmaUnmap = structure(body)?;
    device.memory.unmap(&ask)?;
    Ok(reply(ask.as_bytes().to_vec()))
}

fn device_info(body: &[u8]) -> ServeResult<Reply> {
    let ask: DeviceInfo = structure(body)?;
    check_argsz::<DeviceInfo>(ask.argsz)?;
    let info = DeviceInfo {
        argsz: size_of::<DeviceInfo>() as u32,
        flags: DEVICE_CAN_RESET | DEVICE_IS_PCI,
        region_count: REGIONS,
        irq_count: KINDS,
    };
    Ok(reply(info.as_bytes().to_vec()))
}

fn region_info(device: &Device, body: &[u8]) -> ServeResult<Reply> {
    let ask: RegionInfo = structure(body)?;
    check_argsz::<RegionInfo>(ask.argsz)?;
    let region = device.region(ask.index)?;
    let mut info = RegionInfo {
        argsz: REGION_INFO_LEN as u32,
        flags: if region.bytes > 0 { REGION_CAN_READ_WRITE } else { 0 },
        index: ask.index,
        cap_offset: 0,
        size: region.bytes,
        offset: 0,
    };
    let Some((area, file)) = region.mappable else { return Ok(reply(info.as_bytes().to_vec())) };
    let capability = [u32::from(CAP_SPARSE_MMAP) | 1 << 16, 0, 1, 0];
    let area = [area.start, area.end - area.start];
    info.argsz += (capability.as_bytes().len() + area.as_bytes().len()) as u32;
    info.flags |= REGION_CAN_MMAP | REGION_HAS_CAPS;
    if ask.argsz < info.argsz {
        // The client asks again with the room reported here.
        return Ok(reply(info.as_bytes().to_vec()));
    }
    info.cap_offset = REGION_INFO_LEN as u32;
    let body = [info.as_bytes(), capability.as_bytes(), area.as_bytes()].concat();
    Ok(Reply { body, file: Some(file) })
}

fn irq_info(device: &Device, body: &[u8]) -> ServeResult<Reply> {
    let ask: IrqInfo = structure(body)?;
    check_argsz::<IrqInfo>(ask.argsz)?;
    if ask.index >= KINDS {
        return Err(Refusal::invalid(format!("interrupt kind {}; there are {KINDS}", ask.index)));
    }
    let count = device.interrupts.count(ask.index);
    let flags = if count > 0 { IRQ_HAS_EVENTFD } else { 0 };
    let info = IrqInfo { argsz: size_of::<IrqInfo>() as u32, flags, index: ask.index, count };
    Ok(reply(info.as_bytes().to_vec()))
}

fn set_irqs(device: &mut Device, body: &[u8], files: Vec<File>) -> ServeResult<Reply> {
    let ask: SetIrqs = structure(body)?;
    if ask.index >= KINDS {
        return Err(Refusal::invalid(format!("interrupt kind {}; there are {KINDS}", ask.index)));
    }
    device.interrupts.set(&ask, files)?;
    device.interrupts.install(&mut device.controller);
    Ok(Reply::default())
}

fn check_count(access: &RegionAccess) -> ServeResult<usize> {
    let count = access.count as usize;
    if !(1..=TRANSFER_MAX).contains(&count) {
        return Err(Refusal::invalid(format!("{count} bytes; 1 to {TRANSFER_MAX} are allowed")));
    }
    Ok(count)
}

fn region_read(device: &Device, body: &[u8]) -> ServeResult<Reply> {
    let access: RegionAccess = structure(body)?;
    let count = check_count(&access)?;
    let mut body = access.as_bytes().to_vec();
    let data_at = body.len();
    body.resize(data_at + count, 0);
    device.read(access.region, access.offset, &mut body[data_at..])?;
    Ok(reply(body))
}

fn region_write(device: &mut Device, body: &[u8]) -> ServeResult<Reply> {
    let access: RegionAccess = structure(body)?;
    let count = check_count(&access)?;
    let data = &body[size_of::<RegionAccess>()..];
    if data.len() != count {
        return Err(Refusal::invalid(format!("{} bytes of data for {count}", data.len())));
    }
    device.write(access.region, access.offset, data)?;
    Ok(reply(access.as_bytes().to_vec()))
}
