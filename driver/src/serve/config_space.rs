//! PCI configuration space of the served function (PCI Local Bus 3.0 section 6, PCI Express Base section 7.5, NVMe over
//! PCIe Transport 1.0 section 3).
//!
//! Holds what drivers look for: identity, class, BAR sizes by the all-ones method, MSI-X, and PCI Express with function
//! level reset. The bits of the command register have no effect: a vfio-user client enables DMA by handing memory over.

use super::refusal::{Refusal, ServeResult};
use crate::soft::PCI_VENDOR;

/// Size in bytes; a PCI Express function has 4096.
pub(super) const LEN: usize = 4096;
/// The BAR that holds the MSI-X table.
pub(super) const MSIX_BAR: u8 = 4;

const DEVICE: u16 = 0x0001;
const NVM_EXPRESS: [u8; 3] = [0x02, 0x08, 0x01];

const COMMAND: usize = 0x04;
/// Memory space, bus master, parity, SERR, INTx disable.
const COMMAND_MASK: u16 = 0x0546;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const CLASS: usize = 0x09;
const BARS: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;

const MSIX: usize = 0x40;
const MSIX_ID: u8 = 0x11;
const EXPRESS: usize = 0x50;
const EXPRESS_ID: u8 = 0x10;
/// Version 2, an endpoint.
const EXPRESS_KIND: u16 = 0x0002;
/// Role-based error reporting, function level reset.
const DEVICE_CAPABILITIES: u32 = 1 << 15 | 1 << 28;
const DEVICE_CONTROL: usize = EXPRESS + 0x08;
const INITIATE_FLR: u16 = 1 << 15;
/// 16 GT/s, 4 lanes, as capability and as status.
const LINK: u16 = 0x44;

const BAR_IS_64: u32 = 0b100;

/// Layout of the MSI-X table in its BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MsixLayout {
    pub(super) table_bytes: u32,
    pub(super) pending_at: u32,
    pub(super) bar_bytes: u64,
}

impl MsixLayout {
    pub(super) fn new(vector_count: u16) -> MsixLayout {
        let table_bytes = u32::from(vector_count) * 16;
        let pending_at = table_bytes.next_multiple_of(4096);
        let pending_bytes = u32::from(vector_count).div_ceil(64) * 8;
        let bar_bytes = u64::from(pending_at + pending_bytes).next_power_of_two();
        MsixLayout { table_bytes, pending_at, bar_bytes }
    }
}

/// The registers, and which of their bits a client may change.
#[derive(Debug)]
pub(super) struct ConfigSpace {
    bytes: Box<[u8; LEN]>,
    writable: Box<[u8; LEN]>,
}

impl ConfigSpace {
    /// Creates the space with BAR0 and BAR2 of these sizes, powers of two or zero, and MSI-X in [`MSIX_BAR`].
    pub(super) fn new(bar0_bytes: u64, bar2_bytes: u64, vector_count: u16) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: Box::new([0; LEN]), writable: Box::new([0; LEN]) };
        space.put(0x00, &PCI_VENDOR.to_le_bytes());
        space.put(0x02, &DEVICE.to_le_bytes());
        space.allow(COMMAND, &COMMAND_MASK.to_le_bytes());
        space.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        space.put(CLASS, &NVM_EXPRESS);
        space.put(SUBSYSTEM, &PCI_VENDOR.to_le_bytes());
        space.put(SUBSYSTEM + 2, &DEVICE.to_le_bytes());
        space.put(CAPABILITIES, &[MSIX as u8]);
        space.allow(INTERRUPT_LINE, &[0xff]);
        space.put_bar(0, bar0_bytes);
        space.put_bar(2, bar2_bytes);
        let msix = MsixLayout::new(vector_count);
        space.put_bar(MSIX_BAR, msix.bar_bytes);
        space.put_msix(msix, vector_count);
        space.put_express();
        space
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Adds a 64-bit memory BAR, whose bits above its size are writable.
    fn put_bar(&mut self, bar: u8, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let at = BARS + 4 * usize::from(bar);
        self.put(at, &BAR_IS_64.to_le_bytes());
        self.allow(at, &(!(bytes - 1) & !0xf).to_le_bytes());
    }

    fn put_msix(&mut self, layout: MsixLayout, vector_count: u16) {
        self.put(MSIX, &[MSIX_ID, EXPRESS as u8]);
        self.put(MSIX + 2, &(vector_count - 1).to_le_bytes());
        // Function mask and enable.
        self.allow(MSIX + 2, &0xc000u16.to_le_bytes());
        self.put(MSIX + 4, &u32::from(MSIX_BAR).to_le_bytes());
        self.put(MSIX + 8, &(layout.pending_at | u32::from(MSIX_BAR)).to_le_bytes());
    }

    fn put_express(&mut self) {
        self.put(EXPRESS, &[EXPRESS_ID, 0]);
        self.put(EXPRESS + 0x02, &EXPRESS_KIND.to_le_bytes());
        self.put(EXPRESS + 0x04, &DEVICE_CAPABILITIES.to_le_bytes());
        self.allow(DEVICE_CONTROL, &0x7fffu16.to_le_bytes());
        self.put(EXPRESS + 0x0c, &LINK.to_le_bytes());
        self.put(EXPRESS + 0x12, &LINK.to_le_bytes());
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> ServeResult {
        let at = place(offset, into.len())?;
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
        Ok(())
    }

    /// Writes `data` at `offset`; returns true if that requests a function level reset.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> ServeResult<bool> {
        let at = place(offset, data.len())?;
        for (at, value) in (at..).zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | value & mask;
        }
        let high = (DEVICE_CONTROL + 1).checked_sub(at).and_then(|index| data.get(index));
        Ok(high.is_some_and(|high| u16::from(*high) << 8 & INITIATE_FLR != 0))
    }

    /// Resets to the state after a function level reset.
    pub(super) fn reset(&mut self) {
        for (byte, mask) in self.bytes.iter_mut().zip(self.writable.iter()) {
            *byte &= !mask;
        }
    }
}

fn place(offset: u64, len: usize) -> ServeResult<usize> {
    let at = usize::try_from(offset).ok().filter(|at| at.saturating_add(len) <= LEN);
    at.ok_or_else(|| {
        Refusal::invalid(format!("{len} bytes at {offset:#x} exceed configuration space"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(0x4000, 0, 65)
    }

    fn read<const N: usize>(space: &ConfigSpace, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        space.read(offset, &mut bytes).expect("inside");
        bytes
    }

    #[test]
    fn it_is_an_nvme_function() {
        let space = space();
        assert_ne!(u32::from_le_bytes(read(&space, 0)), 0);
        assert_eq!(u32::from_le_bytes(read(&space, 8)) >> 8, 0x01_0802);
        assert_eq!(read::<1>(&space, 0x0e), [0], "header type");
    }

    #[test]
    fn bars_are_sized_by_writing_ones() {
        let mut space = ConfigSpace::new(0x4000, 1 << 33, 65);
        for (bar, bytes) in [(0, 0x4000), (2, 1 << 33), (4, 0x2000)] {
            let at = 0x10 + 4 * bar;
            assert!(!space.write(at, &[0xff; 8]).expect("inside"));
            let found = u64::from_le_bytes(read(&space, at));
            assert_eq!((found & 0xf, (!(found & !0xf)).wrapping_add(1)), (4, bytes), "BAR{bar}");
            space.write(at, &0xfd00_0000u64.to_le_bytes()).expect("inside");
        }
        let mut without = self::space();
        without.write(0x18, &[0xff; 4]).expect("inside");
        assert_eq!(read::<4>(&without, 0x18), [0; 4]);
    }

    #[test]
    fn the_command_register_keeps_what_it_has() {
        let mut space = space();
        let command = u16::from_le_bytes(read(&space, 4)) | 0x404;
        space.write(4, &command.to_le_bytes()).expect("inside");
        assert_eq!(u16::from_le_bytes(read(&space, 4)), 0x404);
        space.write(0, &[0xff; 4]).expect("inside");
        assert_eq!(u16::from_le_bytes(read(&space, 0)), PCI_VENDOR, "read-only");
        space.reset();
        assert_eq!(u16::from_le_bytes(read(&space, 4)), 0);
    }

    #[test]
    fn the_capability_list_has_msix_and_express_and_ends() {
        let space = space();
        assert_ne!(u16::from_le_bytes(read(&space, 6)) & 1 << 4, 0);
        let (mut at, mut found) = (u64::from(read::<1>(&space, 0x34)[0]), Vec::new());
        while at != 0 && found.len() < 48 {
            let [id, next] = read(&space, at);
            found.push(id);
            at = next.into();
        }
        assert_eq!(found, [MSIX_ID, EXPRESS_ID]);
        assert_eq!(u16::from_le_bytes(read(&space, 0x42)), 64, "65 vectors, zero-based");
        assert_eq!(u32::from_le_bytes(read(&space, 0x44)), 4, "table at 0 of BAR4");
        assert_eq!(u32::from_le_bytes(read(&space, 0x48)), 0x1004, "pending bits after it");
    }

    #[test]
    fn a_function_level_reset_is_noticed_however_it_is_written() {
        let mut space = space();
        assert!(space.write(0x58, &0x8000u16.to_le_bytes()).expect("inside"));
        assert!(space.write(0x59, &[0x80]).expect("inside"));
        assert!(space.write(0x56, &[0, 0, 0, 0x80]).expect("inside"));
        assert!(!space.write(0x58, &0x7fffu16.to_le_bytes()).expect("inside"));
        assert_eq!(u16::from_le_bytes(read(&space, 0x58)), 0x7fff, "the bit does not stay");
    }

    #[test]
    fn accesses_stay_inside() {
        let mut space = space();
        for (offset, len) in [(4095, 2), (4096, 1), (u64::MAX, 1), (0, 4097)] {
            assert!(space.read(offset, &mut vec![0; len]).is_err(), "{offset:#x}");
            assert!(space.write(offset, &vec![0; len]).is_err(), "{offset:#x}");
        }
        space.read(4096, &mut []).expect("nothing is inside");
    }
}
