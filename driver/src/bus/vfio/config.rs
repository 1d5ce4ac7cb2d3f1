//! The parts of the function's configuration space that the driver needs.
//!
//! Command register bits and the location of the MSI-X table (PCI Local Bus 3.0, sections 6.2.2 and 6.8.2).
//! The bytes come from the device, so only a bounded number of capabilities is followed.

use super::region::VfioRegion;
use crate::bus::pci::command;

const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: usize = 0x34;
const CAPABILITY_MSIX: u8 = 0x11;
/// Most 4-byte aligned capabilities that fit behind the header.
const CAPABILITIES_MAX: usize = (256 - 64) / 4;
/// Bytes of conventional configuration space.
pub(super) const LEN: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MsixTable {
    pub(super) bar: u8,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Enables memory accesses and DMA, and disables the INTx line, which has no handler.
pub(super) fn enable(config: &VfioRegion) {
    let bits = command::MEMORY | command::BUS_MASTER | command::INTX_DISABLE;
    config.write16(command::OFFSET, config.read16(command::OFFSET) | bits);
}

pub(super) fn disable_bus_master(config: &VfioRegion) {
    let now = config.read16(command::OFFSET);
    // A removed function reads as all ones; there is nothing to disable.
    if now != u16::MAX {
        config.write16(command::OFFSET, now & !command::BUS_MASTER);
    }
}

pub(super) fn msix_table(config: &[u8; LEN]) -> Option<MsixTable> {
    let u16_at = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    if u16_at(STATUS)? & STATUS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = usize::from(config[CAPABILITIES] & !3);
    for _ in 0..CAPABILITIES_MAX {
        match config.get(at) {
            Some(&CAPABILITY_MSIX) if at != 0 => {
                let entries = u64::from(u16_at(at + 2)? & 0x7ff) + 1;
                let place = u32::from(u16_at(at + 4)?) | u32::from(u16_at(at + 6)?) << 16;
                let bar = (place & 7) as u8;
                return Some(MsixTable { bar, offset: (place & !7).into(), len: entries * 16 });
            }
            Some(_) if at != 0 => at = usize::from(config.get(at + 1)? & !3),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Like QEMU's controller: MSI-X at 40h, 65 vectors, table at 2000h of BAR0.
    fn qemu() -> [u8; LEN] {
        let mut config = [0; LEN];
        config[STATUS] = 0x10;
        config[CAPABILITIES] = 0x40;
        config[0x40..0x48].copy_from_slice(&[0x11, 0x80, 0x40, 0, 0, 0x20, 0, 0]);
        config[0x80..0x82].copy_from_slice(&[0x10, 0x60]);
        config[0x60..0x62].copy_from_slice(&[0x01, 0]);
        config
    }

    #[test]
    fn the_table_is_found() {
        let expected = MsixTable { bar: 0, offset: 0x2000, len: 65 * 16 };
        assert_eq!(msix_table(&qemu()), Some(expected));
        let mut later = qemu();
        later[CAPABILITIES] = 0x80;
        later[0x60..0x62].copy_from_slice(&[0x01, 0x40]);
        assert_eq!(msix_table(&later), Some(expected));
    }

    #[test]
    fn no_list_a_loop_and_a_list_that_leaves_are_none() {
        let mut config = qemu();
        config[STATUS] = 0;
        assert_eq!(msix_table(&config), None);
        let mut config = qemu();
        config[CAPABILITIES] = 0x80;
        config[0x60..0x62].copy_from_slice(&[0x01, 0x80]);
        assert_eq!(msix_table(&config), None);
        assert_eq!(msix_table(&[0xff; LEN]), None);
        let mut config = qemu();
        config[CAPABILITIES] = 0xfc;
        config[0xfc] = CAPABILITY_MSIX;
        assert_eq!(msix_table(&config), None);
    }
}
