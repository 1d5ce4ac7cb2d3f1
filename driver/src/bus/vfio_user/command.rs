//! The command register of the function's configuration space (PCI Local Bus 3.0 section 6.2.2).
//!
//! A server may use it although there is no bus: SPDK's target signals INTx on admin completions unless that
//! is disabled, and fails the controller if the interrupt has no file. A reset may clear it.

use zerocopy::IntoBytes;

use super::connection::{Answer, Connection, Failure};
use super::wire::{self, Command, RegionAccess};
use crate::bus::pci::command::{BUS_MASTER, INTX_DISABLE, OFFSET};

/// Index of configuration space in vfio-pci's numbering.
const CONFIG_REGION: u32 = 7;

/// Enables DMA and disables the INTx line, which has no handler. A server without this register is accepted.
pub(super) fn enable(connection: &mut Connection) -> Answer<()> {
    match set(connection, BUS_MASTER | INTX_DISABLE) {
        Err(Failure::Refused(errno)) => {
            tracing::debug!("the server keeps no PCI command register (errno {errno})");
            Ok(())
        }
        answer => answer,
    }
}

fn set(connection: &mut Connection, bits: u16) -> Answer<()> {
    let access = RegionAccess { offset: OFFSET, region: CONFIG_REGION, count: 2 };
    let body = connection.request(Command::RegionRead, &[access.as_bytes()])?;
    let now = body.get(size_of::<RegionAccess>()..).and_then(wire::first).map_or(0, u16::from_le);
    let value = (now | bits).to_le_bytes();
    connection.request(Command::RegionWrite, &[access.as_bytes(), &value]).map(drop)
}
