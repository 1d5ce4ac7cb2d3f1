//! End-to-end protection information (NVM Command Set 1.0 section 5.2), handled by the controller alone.
//!
//! A protected namespace keeps 8 bytes beside each LBA: a guard (a CRC of the data), an application tag and a
//! reference tag, which in types 1 and 2 is the LBA's number. Commands set PRACT = 1: the controller
//! generates the bytes on a write, and checks and strips them on a read. The host transfers and allocates
//! data only. A read that fails the check ends with Guard or Reference Tag Check Error.
//!
//! Application tags are 0 and unchecked, unless a queue sets [`ProtectionChecks`].
//!
//! Not supported: transferring the 8 bytes to or from the host, formats with more metadata, guards of 32 and
//! 64 bits, storage tags.

use std::fmt;

use crate::spec::identify::{IdentifyNamespace, IdentifyNvmNamespace};
use crate::spec::{CopyRange, Lba, Sqe};

/// Metadata bytes if they hold only protection information.
const PROTECTION_BYTES: u16 = 8;

/// CDW12 bit 29: the controller generates and strips the information.
const PRACT: u32 = 1 << 29;
/// CDW12 bit 28: check the guard.
const CHECK_GUARD: u32 = 1 << 28;
/// CDW12 bit 27: check the application tag.
const CHECK_APPLICATION: u32 = 1 << 27;
/// CDW12 bit 26: check the reference tag.
const CHECK_REFERENCE: u32 = 1 << 26;
/// Distance from the PRINFO bits of Copy's write down to those of its read (PRINFOR).
const COPY_READ_SHIFT: u32 = 14;

/// The controller's protection of a namespace's data (NVM Command Set 1.0 sections 4.1.5.1, DPS, and 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protection {
    /// Guard, and the reference tag is the low 32 bits of the LBA.
    Type1,
    /// Guard, and a reference tag that the host chooses; this driver uses the low 32 bits of the LBA.
    Type2,
    /// Guard only.
    Type3,
}

/// The checks a controller makes of protection information (PRCHK), and the application tag (NVM Command Set
/// 1.0 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionChecks {
    /// Check the guard.
    pub guard: bool,
    /// Check the reference tag; ignored for [`Protection::Type3`], whose tag is never checked.
    pub reference_tag: bool,
    /// Check the application tag, in the bits of `application_mask`.
    pub application_tag: bool,
    /// The tag that writes store and reads expect (LBAT, ELBAT).
    pub application: u16,
    /// The tag bits to compare (LBATM, ELBATM).
    pub application_mask: u16,
}

impl Protection {
    /// Returns the default checks: all but the application tag, which is 0.
    pub const fn usual_checks(self) -> ProtectionChecks {
        ProtectionChecks {
            guard: true,
            reference_tag: self.checks_place(),
            application_tag: false,
            application: 0,
            application_mask: 0,
        }
    }

    /// Returns the type's number, 1 to 3.
    pub const fn number(self) -> u8 {
        match self {
            Protection::Type1 => 1,
            Protection::Type2 => 2,
            Protection::Type3 => 3,
        }
    }

    /// Returns whether a read detects data of another LBA. Stale data of the same LBA are never detected.
    pub const fn checks_place(self) -> bool {
        !matches!(self, Protection::Type3)
    }

    /// Returns a format's protection, `None` for a format without metadata. `extended` is the namespace's CNS
    /// 05h, if the controller has extended formats.
    ///
    /// # Errors
    /// A description of the unsupported part of the format.
    pub(crate) fn of(
        identify: &IdentifyNamespace,
        extended: Option<&IdentifyNvmNamespace>,
    ) -> Result<Option<Protection>, String> {
        let metadata_bytes = identify.lba_format().map_or(0, |format| format.ms_bytes.get());
        let protection = match (metadata_bytes, identify.protection_type()) {
            (0, 0) => return Ok(None),
            (PROTECTION_BYTES, 1) => Protection::Type1,
            (PROTECTION_BYTES, 2) => Protection::Type2,
            (PROTECTION_BYTES, 3) => Protection::Type3,
            (bytes, 0) => return Err(unprotected(bytes)),
            (bytes, kind) => return Err(foreign(bytes, kind)),
        };
        extended.map_or(Ok(()), |extended| plain(extended, identify.format_index()))?;
        Ok(Some(protection))
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checked = if self.checks_place() { "guard and reference tag" } else { "guard" };
        write!(f, "type {}, the controller checks the {checked}", self.number())
    }
}

fn unprotected(bytes: u16) -> String {
    format!(
        "{bytes} bytes of metadata for each LBA without protection information, which this driver does not carry"
    )
}

fn foreign(bytes: u16, kind: u8) -> String {
    format!(
        "{bytes} bytes of metadata for each LBA and protection information of type {kind}; this driver takes types 1 \
         to 3 in exactly 8 bytes"
    )
}

/// Checks that the format has a 16-bit guard and no storage tag.
fn plain(extended: &IdentifyNvmNamespace, format: u8) -> Result<(), String> {
    match (extended.protection_format(format), extended.storage_tag_bits(format)) {
        (Some(0), Some(0)) => Ok(()),
        (Some(0), Some(bits)) => Err(format!(
            "a storage tag of {bits} bits in its protection information, which this driver does not carry"
        )),
        (format, _) => Err(format!(
            "protection information of format {} (PIF); this driver takes guards of 16 bits",
            format.map_or("none".to_owned(), |format| format.to_string())
        )),
    }
}

/// The protection fields of commands to a namespace: all zero without protection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prinfo {
    /// CDW12 bits of reads and writes.
    pub(crate) control: u32,
    /// The LBA bits that form the reference tag.
    reference_mask: u64,
    /// CDW15, in the upper half: the application tag, and its mask above it.
    application: u64,
}

impl Prinfo {
    pub(crate) fn of(protection: Option<Protection>) -> Prinfo {
        let Some(protection) = protection else { return Prinfo::default() };
        Prinfo::with(protection, protection.usual_checks())
    }

    /// Builds the fields for these checks.
    pub(crate) fn with(protection: Protection, checks: ProtectionChecks) -> Prinfo {
        let bit = |bit: u32, is_set: bool| if is_set { bit } else { 0 };
        let checks_place = protection.checks_place();
        Prinfo {
            control: PRACT
                | bit(CHECK_GUARD, checks.guard)
                | bit(CHECK_APPLICATION, checks.application_tag)
                | bit(CHECK_REFERENCE, checks.reference_tag && checks_place),
            reference_mask: if checks_place { u32::MAX.into() } else { 0 },
            application: u64::from(checks.application_mask) << 48
                | u64::from(checks.application) << 32,
        }
    }

    /// Returns CDW14 and 15: the reference tag of a command's first LBA (ILBRT, EILBRT), and the application
    /// tag.
    #[inline(always)]
    pub(crate) fn tags(self, lba: Lba) -> u64 {
        lba.0 & self.reference_mask | self.application
    }

    /// Read or write: the controller generates, checks and strips.
    #[inline]
    pub(crate) fn on_transfer(self, sqe: Sqe) -> Sqe {
        self.on(sqe, self.control)
    }

    /// Write Zeroes: the controller generates; there is nothing to check.
    pub(crate) fn on_zeroes(self, sqe: Sqe) -> Sqe {
        self.on(sqe, self.control & PRACT)
    }

    /// Verify, which takes no PRACT: the controller only checks.
    pub(crate) fn on_verify(self, sqe: Sqe) -> Sqe {
        self.on(sqe, self.control & !PRACT)
    }

    /// Copy: checked and stripped when read, generated when written.
    pub(crate) fn on_copy(self, sqe: Sqe) -> Sqe {
        self.on(sqe, self.control | self.control >> COPY_READ_SHIFT)
    }

    /// Adds the reference tag of one of Copy's source ranges.
    pub(crate) fn on_source(self, mut source: CopyRange) -> CopyRange {
        source.eilbrt = (self.tags(source.slba()) as u32).into();
        source
    }

    fn on(self, sqe: Sqe, control: u32) -> Sqe {
        let tags = self.tags(sqe.slba());
        Sqe {
            cdw12: (sqe.cdw12.get() | control).into(),
            cdw14: (tags as u32).into(),
            cdw15: ((tags >> 32) as u32).into(),
            ..sqe
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::identify::LbaFormat;
    use crate::spec::{LbaCount, Nsid, RangeCount};
    use zerocopy::FromZeros;

    fn namespace(ms_bytes: u16, dps: u8) -> IdentifyNamespace {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.lbaf[0] = LbaFormat::new(12, ms_bytes);
        identify.dps = dps;
        identify
    }

    #[test]
    fn eight_bytes_of_protection_information_are_taken_and_nothing_else() {
        let of = |ms_bytes, dps| Protection::of(&namespace(ms_bytes, dps), None);
        assert_eq!(of(0, 0), Ok(None));
        assert_eq!(of(8, 1), Ok(Some(Protection::Type1)));
        assert_eq!(
            of(8, 2 | 1 << 3),
            Ok(Some(Protection::Type2)),
            "first or last, it is all there is"
        );
        assert_eq!(of(8, 3), Ok(Some(Protection::Type3)));
        assert!(of(8, 0).expect_err("data of the host's").contains("without protection"));
        assert!(of(64, 0).expect_err("too much").contains("64 bytes of metadata"));
        assert!(of(64, 1).expect_err("too much").contains("exactly 8 bytes"));
        assert!(of(0, 1).expect_err("nowhere to keep it").contains("exactly 8 bytes"));
        assert!(of(8, 5).expect_err("reserved").contains("type 5"));
    }

    #[test]
    fn wider_guards_and_storage_tags_are_refused() {
        let of = |elbaf: u32| {
            let mut extended = IdentifyNvmNamespace::new_zeroed();
            extended.elbaf[0] = elbaf.into();
            Protection::of(&namespace(8, 1), Some(&extended))
        };
        assert_eq!(of(0), Ok(Some(Protection::Type1)));
        assert!(of(16).expect_err("a storage tag").contains("storage tag of 16 bits"));
        assert!(of(2 << 7).expect_err("64 bits").contains("format 2 (PIF)"));
    }

    #[test]
    fn commands_say_what_the_controller_is_to_do() {
        let lba = Lba(0x7_1234_5678);
        let blocks = LbaCount::new(8).expect("eight");
        let dwords = |sqe: Sqe| (sqe.cdw12.get(), sqe.cdw14.get(), sqe.cdw15.get());
        for (protection, checks, tag) in [
            (Protection::Type1, 0b101, 0x1234_5678),
            (Protection::Type2, 0b101, 0x1234_5678),
            (Protection::Type3, 0b100, 0),
        ] {
            let prinfo = Prinfo::of(Some(protection));
            let read = prinfo.on_transfer(Sqe::read(Nsid(1), lba, blocks));
            assert_eq!(dwords(read), (1 << 29 | checks << 26 | 7, tag, 0), "{protection}");
            let zeroes = prinfo.on_zeroes(Sqe::write_zeroes(Nsid(1), lba, blocks));
            assert_eq!(dwords(zeroes), (1 << 29 | 7, tag, 0), "{protection}");
            let verify = prinfo.on_verify(Sqe::verify(Nsid(1), lba, blocks));
            assert_eq!(dwords(verify), (checks << 26 | 7, tag, 0), "{protection}");
            let copy = prinfo.on_copy(Sqe::copy(Nsid(1), lba, RangeCount::new(1).expect("one")));
            let both = (1 << 3 | checks) << 26 | (1 << 3 | checks) << 12;
            assert_eq!(dwords(copy), (both, tag, 0), "{protection}");
            assert_eq!(prinfo.on_source(CopyRange::new(lba, blocks)).eilbrt.get(), tag);
        }
        let plain = Sqe::read(Nsid(1), lba, blocks);
        assert_eq!(Prinfo::of(None).on_transfer(plain), plain);
    }
}
