//! Registers that configure a controller and report its state: CC, CSTS and AQA (Base 3.1.3.5, 3.1.3.6, 3.1.3.8).

use core::fmt;

use super::{bit_fields, bits, reg_value, with_bits};
use crate::ids::QueueEntries;

/// CC.SHN: the shutdown that the host requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownNotification {
    /// 00b: no notification.
    None,
    /// 01b: normal shutdown.
    Normal,
    /// 10b: abrupt shutdown.
    Abrupt,
    /// 11b.
    Reserved,
}

/// CSTS.SHST: the progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStatus {
    /// 00b: normal operation.
    Normal,
    /// 01b: shutdown processing is occurring.
    Occurring,
    /// 10b: shutdown processing is complete.
    Complete,
    /// 11b.
    Reserved,
}

bit_fields! {
    /// Controller Configuration (CC, Base 3.1.3.5). `Cc::default()` is a disabled controller.
    Cc(u32) {
        0:0 en with_en: bool, "Enable";
        6:4 css with_css: u8, "Command Set Selected: 0 NVM, 6 all that are supported, 7 admin only";
        10:7 mps: u8, "Memory Page Size: pages of `2^(12 + mps)` bytes";
        13:11 ams: u8, "Arbitration Mechanism Selected: 0 round robin, 1 weighted round robin, 7 vendor specific";
        19:16 iosqes with_iosqes: u8, "I/O Submission Queue Entry Size: entries of `2^iosqes` bytes";
        23:20 iocqes with_iocqes: u8, "I/O Completion Queue Entry Size: entries of `2^iocqes` bytes";
        24:24 crime: bool, "Controller Ready Independent of Media Enable";
    }
}

impl Cc {
    /// The value of [`Cc::css`] for all command sets that the controller supports.
    pub const ALL_COMMAND_SETS: u8 = 6;

    /// Sets Shutdown Notification.
    pub const fn with_shn(self, shn: ShutdownNotification) -> Cc {
        Cc(with_bits(self.0 as u64, 15, 14, shn as u64) as u32)
    }

    /// Memory page size in bytes: 4 KiB to 128 MiB.
    pub const fn page_size(self) -> u64 {
        4096 << self.mps()
    }

    /// Shutdown Notification.
    pub const fn shn(self) -> ShutdownNotification {
        match bits(self.0 as u64, 15, 14) {
            0 => ShutdownNotification::None,
            1 => ShutdownNotification::Normal,
            2 => ShutdownNotification::Abrupt,
            _ => ShutdownNotification::Reserved,
        }
    }
}

impl fmt::Display for Cc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.en() { "enabled" } else { "disabled" };
        write!(
            f,
            "CC {:#010x} ({state}, CSS {}, pages of {} bytes, AMS {}, SHN {:?}, IOSQES {}, IOCQES {}{})",
            self.0,
            self.css(),
            self.page_size(),
            self.ams(),
            self.shn(),
            self.iosqes(),
            self.iocqes(),
            if self.crime() { ", CRIME" } else { "" },
        )
    }
}

bit_fields! {
    /// Controller Status (CSTS, Base 3.1.3.6).
    Csts(u32) {
        0:0 rdy with_rdy: bool, "Ready";
        1:1 cfs with_cfs: bool, "Controller Fatal Status";
        4:4 nssro: bool, "NVM Subsystem Reset Occurred";
        5:5 pp: bool, "Processing Paused";
    }
}

impl Csts {
    /// Shutdown Status.
    pub const fn shst(self) -> ShutdownStatus {
        match bits(self.0 as u64, 3, 2) {
            0 => ShutdownStatus::Normal,
            1 => ShutdownStatus::Occurring,
            2 => ShutdownStatus::Complete,
            _ => ShutdownStatus::Reserved,
        }
    }

    /// Returns whether every bit is set, as in a read from a device that has left the bus.
    pub const fn is_all_ones(self) -> bool {
        self.0 == u32::MAX
    }

    /// Sets Shutdown Status.
    pub const fn with_shst(self, shst: ShutdownStatus) -> Csts {
        Csts(with_bits(self.0 as u64, 3, 2, shst as u64) as u32)
    }
}

impl fmt::Display for Csts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_all_ones() {
            return write!(f, "CSTS {:#010x} (all ones: the device does not answer)", self.0);
        }
        let ready = if self.rdy() { "ready" } else { "not ready" };
        write!(f, "CSTS {:#010x} ({ready}, SHST {:?}", self.0, self.shst())?;
        for (set, name) in [(self.cfs(), "FATAL"), (self.nssro(), "NSSRO"), (self.pp(), "paused")] {
            if set {
                write!(f, ", {name}")?;
            }
        }
        f.write_str(")")
    }
}

bit_fields! {
    /// Admin Queue Attributes (AQA, Base 3.1.3.8).
    Aqa(u32) {
        11:0 asqs_z: u16, "Admin Submission Queue Size, zero-based";
        27:16 acqs_z: u16, "Admin Completion Queue Size, zero-based";
    }
}

impl Aqa {
    /// The most entries an admin queue can have.
    pub const ENTRIES_MAX: u32 = 4096;

    /// Creates a value from the sizes of the admin queues; `None` above [`Aqa::ENTRIES_MAX`].
    pub const fn new(submission: QueueEntries, completion: QueueEntries) -> Option<Aqa> {
        if submission.get() > Aqa::ENTRIES_MAX || completion.get() > Aqa::ENTRIES_MAX {
            return None;
        }
        Some(Aqa((completion.z() as u32) << 16 | submission.z() as u32))
    }
}

reg_value!(Cc: u32, Csts: u32, Aqa: u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_cc_has_the_usual_bits() {
        let cc = Cc::default().with_en(true).with_iosqes(6).with_iocqes(4);
        assert_eq!(cc.0, 0x0046_0001);
        assert_eq!((cc.en(), cc.iosqes(), cc.iocqes(), cc.page_size()), (true, 6, 4, 4096));
        assert_eq!((cc.css(), cc.ams()), (0, 0));
    }

    #[test]
    fn cc_setters_replace_only_their_field() {
        let all = Cc(u32::MAX);
        assert_eq!(all.with_en(false).0, 0xffff_fffe);
        assert_eq!(all.with_css(0).0, 0xffff_ff8f);
        assert_eq!(all.with_shn(ShutdownNotification::None).0, 0xffff_3fff);
        assert_eq!(all.with_iosqes(0).0, 0xfff0_ffff);
        assert_eq!(all.with_iocqes(0).0, 0xff0f_ffff);
        assert_eq!(Cc(0xf << 7).mps(), 0xf);
    }

    #[test]
    fn cc_enumerations_round_trip() {
        assert_eq!(Cc::default().with_css(Cc::ALL_COMMAND_SETS).css(), 6);
        use ShutdownNotification::{Abrupt, None, Normal};
        for shn in [None, Normal, Abrupt, ShutdownNotification::Reserved] {
            assert_eq!(Cc::default().with_shn(shn).shn(), shn);
        }
    }

    #[test]
    fn csts_bits() {
        assert!(Csts(1).rdy() && Csts(2).cfs() && Csts(0x10).nssro() && Csts(0x20).pp());
        assert_eq!(Csts(8).shst(), ShutdownStatus::Complete);
        assert_eq!(
            Csts::default().with_rdy(true).with_cfs(true).with_shst(ShutdownStatus::Occurring).0,
            7
        );
        assert!(Csts(u32::MAX).is_all_ones());
        assert!(Csts(u32::MAX).to_string().contains("does not answer"));
        assert_eq!(Csts(3).to_string(), "CSTS 0x00000003 (ready, SHST Normal, FATAL)");
    }

    #[test]
    fn aqa_is_zero_based_and_bounded() {
        let entries = |n| QueueEntries::new(n).unwrap();
        assert_eq!(Aqa::new(entries(32), entries(64)), Some(Aqa(0x003f_001f)));
        assert_eq!(Aqa::new(entries(4096), entries(4096)), Some(Aqa(0x0fff_0fff)));
        assert_eq!(Aqa::new(entries(4097), entries(2)), None);
        assert_eq!((Aqa(0x003f_001f).asqs_z(), Aqa(0x003f_001f).acqs_z()), (31, 63));
    }
}
