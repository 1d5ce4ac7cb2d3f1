//! Registers that report a controller's capabilities: CAP, VS and CRTO (Base 3.1.3.1, 3.1.3.2, 3.1.3.21).

use core::fmt;
use core::time::Duration;

use super::{bits, reg_value};

/// Controller Capabilities (CAP, Base 3.1.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Maximum Queue Entries Supported, zero-based.
    pub const fn mqes_z(self) -> u16 {
        bits(self.0, 15, 0) as u16
    }

    /// Contiguous Queues Required.
    pub const fn cqr(self) -> bool {
        bits(self.0, 16, 16) == 1
    }

    /// Arbitration Mechanism Supported: bit 0 weighted round robin with urgent class, bit 1 vendor specific.
    pub const fn ams(self) -> u8 {
        bits(self.0, 18, 17) as u8
    }

    /// Timeout: the longest wait for CSTS.RDY to change, in units of 500 ms.
    pub const fn to_500ms(self) -> u8 {
        bits(self.0, 31, 24) as u8
    }

    /// [`Cap::to_500ms`] as a duration.
    pub const fn to(self) -> Duration {
        Duration::from_millis(self.to_500ms() as u64 * 500)
    }

    /// Doorbell Stride: doorbells are `4 << dstrd` bytes apart.
    pub const fn dstrd(self) -> u8 {
        bits(self.0, 35, 32) as u8
    }

    /// NVM Subsystem Reset Supported.
    pub const fn nssrs(self) -> bool {
        bits(self.0, 36, 36) == 1
    }

    /// Command Sets Supported: bit 0 NVM, bit 6 one or more I/O command sets, bit 7 no I/O command set.
    pub const fn css(self) -> u8 {
        bits(self.0, 44, 37) as u8
    }

    /// Whether the NVM command set can be selected with [`super::CommandSetSelected::Nvm`].
    pub const fn css_nvm(self) -> bool {
        self.css() & 1 != 0
    }

    /// Memory Page Size Minimum: the page is `2^(12 + mpsmin)` bytes.
    pub const fn mpsmin(self) -> u8 {
        bits(self.0, 51, 48) as u8
    }

    /// Memory Page Size Maximum: the page is `2^(12 + mpsmax)` bytes.
    pub const fn mpsmax(self) -> u8 {
        bits(self.0, 55, 52) as u8
    }

    /// The smallest memory page in bytes: 4 KiB to 128 MiB.
    pub const fn page_size_min(self) -> u64 {
        4096 << self.mpsmin()
    }

    /// The largest memory page in bytes: 4 KiB to 128 MiB.
    pub const fn page_size_max(self) -> u64 {
        4096 << self.mpsmax()
    }

    /// Persistent Memory Region Supported.
    pub const fn pmrs(self) -> bool {
        bits(self.0, 56, 56) == 1
    }

    /// Controller Memory Buffer Supported.
    pub const fn cmbs(self) -> bool {
        bits(self.0, 57, 57) == 1
    }

    /// Controller Ready With Media Support (CRMS.CRWMS): CRTO.CRWMT is valid.
    pub const fn crms_crwms(self) -> bool {
        bits(self.0, 59, 59) == 1
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CAP {:#018x} (queues up to {} entries, timeout {} ms, doorbell stride {} bytes, pages {} to {} bytes, \
             command sets {:#04x}",
            self.0,
            u32::from(self.mqes_z()) + 1,
            self.to().as_millis(),
            4u32 << self.dstrd(),
            self.page_size_min(),
            self.page_size_max(),
            self.css(),
        )?;
        for (set, name) in [
            (self.cqr(), "CQR"),
            (self.nssrs(), "NSSRS"),
            (self.cmbs(), "CMBS"),
            (self.pmrs(), "PMRS"),
        ] {
            if set {
                write!(f, ", {name}")?;
            }
        }
        f.write_str(")")
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

    /// Controller Ready Independent of Media Timeout in units of 500 ms.
    pub const fn crimt_500ms(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// [`Crto::crwmt_500ms`] as a duration.
    pub const fn crwmt(self) -> Duration {
        Duration::from_millis(self.crwmt_500ms() as u64 * 500)
    }

    /// [`Crto::crimt_500ms`] as a duration.
    pub const fn crimt(self) -> Duration {
        Duration::from_millis(self.crimt_500ms() as u64 * 500)
    }
}

impl fmt::Display for Crto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (with, without) = (self.crwmt().as_millis(), self.crimt().as_millis());
        write!(
            f,
            "CRTO {:#010x} (ready with media in {with} ms, independent of media in {without} ms)",
            self.0
        )
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
    fn crto_has_two_timeouts() {
        let crto = Crto(0x0002_0014);
        assert_eq!(crto.crwmt(), Duration::from_secs(10));
        assert_eq!(crto.crimt(), Duration::from_secs(1));
    }
}
