//! Registers that report a controller's capabilities: CAP, VS and CRTO (Base 3.1.3.1, 3.1.3.2, 3.1.3.21).

use core::fmt;
use core::time::Duration;

use super::{bit_fields, reg_value};

bit_fields! {
    /// Controller Capabilities (CAP, Base 3.1.3.1).
    Cap(u64) {
        15:0 mqes_z: u16, "Maximum Queue Entries Supported, zero-based";
        16:16 cqr: bool, "Contiguous Queues Required";
        18:17 ams: u8, "Arbitration Mechanism Supported: bit 0 weighted round robin with urgent class, bit 1 vendor specific";
        31:24 to_500ms: u8, "Timeout: the longest wait for CSTS.RDY to change, in units of 500 ms";
        35:32 dstrd: u8, "Doorbell Stride: doorbells are `4 << dstrd` bytes apart";
        36:36 nssrs: bool, "NVM Subsystem Reset Supported";
        44:37 css: u8, "Command Sets Supported: bit 0 NVM, bit 6 one or more I/O command sets, bit 7 no I/O command set";
        51:48 mpsmin: u8, "Memory Page Size Minimum: the page is `2^(12 + mpsmin)` bytes";
        55:52 mpsmax: u8, "Memory Page Size Maximum: the page is `2^(12 + mpsmax)` bytes";
        56:56 pmrs: bool, "Persistent Memory Region Supported";
        57:57 cmbs: bool, "Controller Memory Buffer Supported";
        59:59 crms_crwms: bool, "Controller Ready With Media Support (CRMS.CRWMS): CRTO.CRWMT is valid";
    }
}

impl Cap {
    /// [`Cap::to_500ms`] as a duration.
    pub const fn to(self) -> Duration {
        Duration::from_millis(self.to_500ms() as u64 * 500)
    }

    /// Returns whether the NVM command set can be selected with [`super::Cc::css`].
    pub const fn css_nvm(self) -> bool {
        self.css() & 1 != 0
    }

    /// The smallest memory page in bytes: 4 KiB to 128 MiB.
    pub const fn page_size_min(self) -> u64 {
        4096 << self.mpsmin()
    }

    /// The largest memory page in bytes: 4 KiB to 128 MiB.
    pub const fn page_size_max(self) -> u64 {
        4096 << self.mpsmax()
    }
}

/// Version of the specification that a controller follows (VS, Base 3.1.3.2); also Identify's VER field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// Creates a version from its three numbers.
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Version {
        Version((major as u32) << 16 | (minor as u32) << 8 | tertiary as u32)
    }

    /// Major version number (MJR).
    pub const fn mjr(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Minor version number (MNR).
    pub const fn mnr(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Tertiary version number (TER).
    pub const fn ter(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.mjr(), self.mnr(), self.ter())
    }
}

/// Controller Ready Timeouts (CRTO, Base 3.1.3.21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crto(pub u32);

impl Crto {
    /// Controller Ready With Media Timeout in units of 500 ms.
    pub const fn crwmt_500ms(self) -> u16 {
        self.0 as u16
    }

    /// [`Crto::crwmt_500ms`] as a duration.
    pub const fn crwmt(self) -> Duration {
        Duration::from_millis(self.crwmt_500ms() as u64 * 500)
    }
}

reg_value!(Cap: u64, Version: u32, Crto: u32);

#[cfg(test)]
mod tests {
    use super::*;

    /// MQES 2047, CQR, TO 7.5 s, CSS NVM, MPSMAX 4, CMBS.
    const TYPICAL: Cap = Cap(0x0240_0020_0f01_07ff);

    #[test]
    fn cap_fields() {
        assert_eq!(TYPICAL.mqes_z(), 2047);
        assert!(TYPICAL.cqr());
        assert_eq!(TYPICAL.to(), Duration::from_millis(7500));
        assert_eq!(TYPICAL.dstrd(), 0);
        assert_eq!((TYPICAL.mpsmin(), TYPICAL.mpsmax()), (0, 4));
        assert_eq!(TYPICAL.page_size_max(), 65536);
        assert!(TYPICAL.cmbs() && !TYPICAL.pmrs() && TYPICAL.css_nvm());
    }

    #[test]
    fn cap_bits_are_where_the_specification_puts_them() {
        assert_eq!(Cap(0b11 << 17).ams(), 3);
        assert!(Cap(1 << 36).nssrs());
        assert_eq!(Cap(0xff << 37).css(), 0xff);
        assert!(Cap(1 << 56).pmrs() && Cap(1 << 59).crms_crwms());
    }

    #[test]
    fn versions_order_and_print() {
        assert_eq!(Version::new(1, 4, 0).0, 0x0001_0400);
        assert!(Version::new(2, 0, 0) > Version::new(1, 4, 0));
        assert_eq!(Version(0x0001_0301).to_string(), "1.3.1");
    }

    #[test]
    fn crto_begins_with_the_timeout_with_media() {
        assert_eq!(Crto(0x0002_0014).crwmt(), Duration::from_secs(10));
    }
}
