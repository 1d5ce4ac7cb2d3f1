//! The served function: the controller, its PCI parts, and the client's memory.
//!
//! | region | is |
//! |---|---|
//! | 0 | BAR0: registers by message; doorbells mapped or by message |
//! | 2 | the controller memory buffer, mapped, if there is one |
//! | 4 | the MSI-X table and pending bits; stored without effect, since interrupts go by eventfd |
//! | 7 | configuration space |

use std::ops::Range;
use std::os::fd::OwnedFd;

use super::config_space::{self, ConfigSpace, MSIX_BAR, MsixLayout};
use super::interrupts::Interrupts;
use super::memory::ClientMemory;
use super::refusal::{Refusal, ServeResult};
use super::{DoorbellAccess, Options};
use crate::Time;
use crate::error::{Error, Result};
use crate::soft::{CMB_BAR, Controller, DOORBELLS_OFFSET};
use crate::spec::register::{self, Csts, ShutdownStatus};
use crate::sys::SharedPages;

/// BARs, ROM, configuration space and VGA, in vfio-pci's numbering.
pub(super) const REGIONS: u32 = 9;
const CONFIG_REGION: u32 = 7;
/// The smallest BAR0, as in real controllers.
const BAR0_BYTES_MIN: u64 = 0x4000;
/// CC.SHN: normal shutdown (NVMe Base 2.0 section 3.1.3.5).
const NORMAL_SHUTDOWN: u64 = 1 << 14;

/// The function and the memory it reaches.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) controller: Controller,
    pub(super) memory: ClientMemory,
    pub(super) interrupts: Interrupts,
    config: ConfigSpace,
    msix_table: Vec<u8>,
    msix: MsixLayout,
    doorbells: DoorbellAccess,
}

/// A region as reported to a client.
#[derive(Debug)]
pub(super) struct ServedRegion {
    pub(super) bytes: u64,
    /// The mappable range and its file, whose offsets are the region's.
    pub(super) mappable: Option<(Range<u64>, OwnedFd)>,
}

impl Device {
    pub(super) fn new(controller: Controller, options: &Options) -> Device {
        let vector_count = controller.vector_count();
        let bar0 = bar0_bytes(&controller);
        let cmb = controller.cmb().map_or(0, |cmb| cmb.bytes().next_power_of_two());
        let msix = MsixLayout::new(vector_count);
        Device {
            memory: ClientMemory::new(options.client_bytes_max, options.sealed_memory_only),
            interrupts: Interrupts::new(vector_count),
            config: ConfigSpace::new(bar0, cmb, vector_count),
            msix_table: vec![0; msix.table_bytes as usize],
            msix,
            doorbells: options.doorbells,
            controller,
        }
    }

    /// Steps the controller; returns the number of commands fetched.
    #[inline]
    pub(super) fn step(&mut self, now: Time) -> usize {
        let Device { controller, memory, .. } = self;
        memory.access(|table| controller.step(table, now))
    }

    pub(super) fn region(&self, index: u32) -> ServeResult<ServedRegion> {
        let plain = |bytes| Ok(ServedRegion { bytes, mappable: None });
        match index {
            0 => {
                let bytes = bar0_bytes(&self.controller);
                let doorbells = u64::from(DOORBELLS_OFFSET)..self.controller.bar0_bytes();
                match self.doorbells {
                    DoorbellAccess::Mapped => {
                        mappable(bytes, doorbells, self.controller.doorbells())
                    }
                    DoorbellAccess::Messages => plain(bytes),
                }
            }
            CONFIG_REGION => plain(config_space::LEN as u64),
            _ if index == u32::from(MSIX_BAR) => plain(self.msix.bar_bytes),
            _ if index == u32::from(CMB_BAR) => match self.controller.cmb() {
                Some(cmb) => mappable(cmb.bytes().next_power_of_two(), 0..cmb.bytes(), cmb.pages()),
                None => plain(0),
            },
            _ if index < REGIONS => plain(0),
            _ => Err(Refusal::invalid(format!("region {index}; there are {REGIONS}"))),
        }
    }

    pub(super) fn read(&self, region: u32, offset: u64, into: &mut [u8]) -> ServeResult {
        match region {
            0 => {
                let (offset, width) = self.register(offset, into.len())?;
                let value = self.controller.read_register(offset, width);
                into.copy_from_slice(&value.to_le_bytes()[..into.len()]);
                Ok(())
            }
            CONFIG_REGION => self.config.read(offset, into),
            _ if region == u32::from(MSIX_BAR) => {
                let at = self.msix_place(offset, into.len())?;
                for (at, byte) in (at..).zip(into) {
                    *byte = self.msix_table.get(at).copied().unwrap_or(0);
                }
                Ok(())
            }
            _ => Err(no_access(region)),
        }
    }

    pub(super) fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> ServeResult {
        match region {
            0 => {
                let (offset, width) = self.register(offset, data.len())?;
                let mut bytes = [0; 8];
                bytes[..data.len()].copy_from_slice(data);
                self.controller.write_register(offset, width, u64::from_le_bytes(bytes));
                Ok(())
            }
            CONFIG_REGION => {
                if self.config.write(offset, data)? {
                    self.reset()?;
                }
                Ok(())
            }
            _ if region == u32::from(MSIX_BAR) => {
                let at = self.msix_place(offset, data.len())?;
                for (at, byte) in (at..).zip(data) {
                    // Pending bits are read-only.
                    if let Some(place) = self.msix_table.get_mut(at) {
                        *place = *byte;
                    }
                }
                Ok(())
            }
            _ => Err(no_access(region)),
        }
    }

    /// Checks a register access to BAR0: 4 or 8 bytes, aligned to 4; doorbells take 4.
    fn register(&self, offset: u64, len: usize) -> ServeResult<(u32, u32)> {
        let end = offset.saturating_add(len as u64);
        let fits = end <= bar0_bytes(&self.controller) && offset.is_multiple_of(4);
        let is_doorbell = end > u64::from(DOORBELLS_OFFSET);
        if !fits || !matches!((len, is_doorbell), (4, _) | (8, false)) {
            return Err(Refusal::invalid(format!("{len} bytes at {offset:#x} of BAR0")));
        }
        Ok((offset as u32, len as u32))
    }

    fn msix_place(&self, offset: u64, len: usize) -> ServeResult<usize> {
        let end = offset.saturating_add(len as u64);
        if end > self.msix.bar_bytes {
            return Err(Refusal::invalid(format!("{len} bytes at {offset:#x} of BAR{MSIX_BAR}")));
        }
        Ok(offset as usize)
    }

    /// Performs a function level reset; memory and eventfds stay the client's.
    pub(super) fn reset(&mut self) -> ServeResult {
        if !self.controller.reset() {
            return Err(Refusal::new(libc::EIO, "the fault plan makes the controller refuse"));
        }
        self.forget_settings();
        Ok(())
    }

    fn forget_settings(&mut self) {
        self.config.reset();
        self.msix_table.fill(0);
    }

    /// Detaches a departed client: resets the controller before unmapping the client's memory. Whatever the client has
    /// kept (the mapped doorbells, its eventfds) no longer leads here.
    ///
    /// # Errors
    /// When there is no memory for new doorbells; the client is detached all the same.
    pub(super) fn forget_client(&mut self) -> Result<()> {
        let renewed = self.controller.leave_host();
        self.forget_settings();
        self.memory.unmap_all();
        self.interrupts.clear();
        self.interrupts.install(&mut self.controller);
        Ok(renewed?)
    }

    /// Shuts the controller down as a host would, which makes all writes durable.
    ///
    /// # Errors
    /// [`Error::Device`] when the media fails.
    pub(super) fn shut_down(&mut self, now: Time) -> Result<()> {
        if self.controller.is_removed() {
            // Removed by its fault plan, which accounts for the lost data.
            return Ok(());
        }
        let cc = register::CC.offset();
        self.controller.write_register(cc, 4, NORMAL_SHUTDOWN);
        self.step(now);
        let csts = Csts(self.controller.read_register(register::CSTS.offset(), 4) as u32);
        if csts.shst() == ShutdownStatus::Complete {
            return Ok(());
        }
        let device = format!("soft:{}", self.controller.options().storage);
        let what = "cannot make the last writes durable";
        Err(Error::device(device, what, "check the file system (df -h, dmesg)"))
    }
}

/// Returns the size of BAR0 on PCI, a power of two.
fn bar0_bytes(controller: &Controller) -> u64 {
    controller.bar0_bytes().next_power_of_two().max(BAR0_BYTES_MIN)
}

fn mappable(bytes: u64, area: Range<u64>, pages: &SharedPages) -> ServeResult<ServedRegion> {
    let file = pages.file().try_clone_to_owned();
    let file = file.map_err(|why| Refusal::system("no descriptor left for the client", &why))?;
    Ok(ServedRegion { bytes, mappable: Some((area, file)) })
}

fn no_access(region: u32) -> Refusal {
    Refusal::invalid(format!("region {region} cannot be accessed by messages"))
}
