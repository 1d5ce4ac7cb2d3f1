//! The controller's properties (NVMe Base 2.0 section 3.1.3), by dword.
//!
//! Values and masks only; [`super::Controller::step`] applies the consequences of writes, with a delay as in a real
//! controller.

use super::cmb::{CMB_BAR, Cmb};
use super::options::Options;
use adit_spec::register as reg;
use adit_spec::register::{Cc, Csts, ShutdownStatus};

// Offsets; the upper half of a 64-bit property is a separate dword.
const CAP: u32 = reg::CAP.offset();
const CAP_HIGH: u32 = CAP + 4;
const VS: u32 = reg::VS.offset();
const INTMS: u32 = reg::INTMS.offset();
const INTMC: u32 = reg::INTMC.offset();
const CC: u32 = reg::CC.offset();
const CSTS: u32 = reg::CSTS.offset();
const AQA: u32 = reg::AQA.offset();
const ASQ: u32 = reg::ASQ.offset();
const ASQ_HIGH: u32 = ASQ + 4;
const ACQ: u32 = reg::ACQ.offset();
const ACQ_HIGH: u32 = ACQ + 4;
const CMBLOC: u32 = reg::CMBLOC.offset();
const CMBSZ: u32 = reg::CMBSZ.offset();
const CMBMSC: u32 = reg::CMBMSC.offset();
const CMBMSC_HIGH: u32 = CMBMSC + 4;
const CMBSTS: u32 = reg::CMBSTS.offset();
const CRTO: u32 = reg::CRTO.offset();

/// CSTS: a subsystem reset occurred; writing a one clears it.
const NSSRO: u32 = 1 << 4;
/// CSTS: command processing is paused.
const PP: u32 = 1 << 5;
/// Largest supported CC.MPS: pages of 64 KiB.
const MPS_MAX: u64 = 4;
const VERSION: u32 = 0x0002_0000;
/// CAP.TO and CRTO.CRWMT, in units of 500 ms.
const TIMEOUT_500MS: u64 = 10;
const CAP_CQR: u64 = 1 << 16;
const CAP_NSSRS: u64 = 1 << 36;
const CAP_CSS_NVM: u64 = 1 << 37;
const CAP_CMBS: u64 = 1 << 57;
const CAP_CRWMS: u64 = 1 << 59;
/// Bits of CC that the host may set.
const CC_MASK: u32 = 0x00ff_fff1;
/// CMBMSC: capabilities visible, memory space enabled, base address.
const CRE: u64 = 1;
const CMSE: u64 = 1 << 1;
/// CMBLOC: queues, lists and data may be mixed freely.
const CMB_LOCATION: u32 = CMB_BAR as u32 | 0x1f8;
/// CMBSZ: submission and completion queues, lists, read and write data.
const CMB_ALL_USES: u32 = 0x1f;

#[derive(Debug)]
pub(super) struct Registers {
    cap: u64,
    cmb_bytes: u64,
    pub(super) cc: Cc,
    pub(super) csts: Csts,
    pub(super) aqa: u32,
    pub(super) asq: u64,
    pub(super) acq: u64,
    pub(super) interrupt_mask: u32,
    cmbmsc: u64,
    cba_is_invalid: bool,
}

impl Registers {
    pub(super) fn new(options: &Options) -> Registers {
        let mut cap = u64::from(options.queue_entries_max - 1)
            | CAP_CQR
            | TIMEOUT_500MS << 24
            | u64::from(options.dstrd) << 32
            | CAP_CSS_NVM
            | MPS_MAX << 52
            | CAP_CRWMS;
        if options.nssr {
            cap |= CAP_NSSRS;
        }
        if options.cmb_bytes > 0 {
            cap |= CAP_CMBS;
        }
        Registers {
            cap,
            cmb_bytes: options.cmb_bytes,
            cc: Cc(0),
            csts: Csts(0),
            aqa: 0,
            asq: 0,
            acq: 0,
            interrupt_mask: 0,
            cmbmsc: 0,
            cba_is_invalid: false,
        }
    }

    pub(super) fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
    }

    /// Clears what a controller reset (CC.EN to 0) clears. Keeps CC and the registers of the admin queue and the CMB.
    pub(super) fn controller_reset(&mut self) {
        self.csts = self.kept_status();
        self.interrupt_mask = 0;
    }

    /// Returns the bits of CSTS that only the host clears.
    fn kept_status(&self) -> Csts {
        Csts(self.csts.0 & NSSRO)
    }

    pub(super) fn set_subsystem_reset_occurred(&mut self) {
        self.csts = Csts(self.csts.0 | NSSRO);
    }

    /// Reads the dword at `offset`; zero for undefined ones.
    pub(super) fn read(&self, offset: u32) -> u32 {
        let shows_cmb = self.cmbmsc & CRE != 0 && self.cmb_bytes > 0;
        match offset {
            CAP | CAP_HIGH => half(offset, self.cap),
            VS => VERSION,
            INTMS | INTMC => self.interrupt_mask,
            CC => self.cc.0,
            CSTS => self.csts.0,
            AQA => self.aqa,
            ASQ | ASQ_HIGH => half(offset, self.asq),
            ACQ | ACQ_HIGH => half(offset, self.acq),
            CMBLOC if shows_cmb => CMB_LOCATION,
            CMBSZ if shows_cmb => CMB_ALL_USES | ((self.cmb_bytes >> 12) as u32) << 12,
            CMBMSC | CMBMSC_HIGH => half(offset, self.cmbmsc),
            CMBSTS => u32::from(self.cba_is_invalid),
            CRTO => TIMEOUT_500MS as u32,
            _ => 0,
        }
    }

    /// Writes the dword at `offset`; ignores writes to read-only properties.
    pub(super) fn write(&mut self, offset: u32, value: u32, cmb: Option<&Cmb>) {
        let set = |register: &mut u64, mask: u64| {
            let shift = (offset & 4) * 8;
            let kept = *register & !(0xffff_ffff << shift);
            *register = (kept | u64::from(value) << shift) & mask;
        };
        match offset {
            INTMS => self.interrupt_mask |= value,
            INTMC => self.interrupt_mask &= !value,
            CC => self.cc = Cc(value & CC_MASK),
            CSTS => self.csts = Csts(self.csts.0 & !(value & NSSRO)),
            AQA => self.aqa = value & 0x0fff_0fff,
            ASQ | ASQ_HIGH => set(&mut self.asq, !0xfff),
            ACQ | ACQ_HIGH => set(&mut self.acq, !0xfff),
            CMBMSC | CMBMSC_HIGH => {
                set(&mut self.cmbmsc, !0xffc);
                self.place_cmb(cmb);
            }
            _ => {}
        }
    }

    fn place_cmb(&mut self, cmb: Option<&Cmb>) {
        let Some(cmb) = cmb else { return };
        let is_enabled = self.cmbmsc & (CRE | CMSE) == CRE | CMSE;
        let fits = cmb.place(is_enabled.then_some(self.cmbmsc & !0xfff));
        self.cba_is_invalid = !fits;
    }

    /// Returns whether CC and the admin queue's registers are valid for an enable.
    pub(super) fn can_enable(&self) -> bool {
        let cc = self.cc;
        let sizes_fit = matches!(cc.iosqes(), 0 | 6) && matches!(cc.iocqes(), 0 | 4);
        let (asqs_z, acqs_z) = (self.aqa & 0xfff, self.aqa >> 16);
        let is_nvm = cc.0 >> 4 & 7 == 0;
        let is_round_robin = cc.0 >> 11 & 7 == 0;
        is_nvm
            && is_round_robin
            && sizes_fit
            && u64::from(cc.mps()) <= MPS_MAX
            && asqs_z > 0
            && acqs_z > 0
    }

    /// Returns whether CC has the entry sizes that I/O queues need.
    pub(super) fn can_have_io_queues(&self) -> bool {
        self.cc.iosqes() == 6 && self.cc.iocqes() == 4
    }

    pub(super) fn set_ready(&mut self) {
        self.csts = self.kept_status().with_rdy(true);
    }

    pub(super) fn set_paused(&mut self, is_paused: bool) {
        self.csts = Csts(self.csts.0 & !PP | if is_paused { PP } else { 0 });
    }

    pub(super) fn set_fatal(&mut self) {
        self.csts = self.csts.with_cfs(true);
    }

    pub(super) fn set_shutdown(&mut self, status: ShutdownStatus) {
        self.csts = self.csts.with_shst(status);
    }
}

fn half(offset: u32, value: u64) -> u32 {
    (value >> ((offset & 4) * 8)) as u32
}
