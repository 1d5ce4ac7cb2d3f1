//! Protection information: 8 bytes per LBA (NVM Command Set 1.0 section 5.2).
//!
//! A tuple is a guard (T10-DIF CRC-16 of the data), an application tag and a reference tag, all big-endian. The media
//! store it inverted, so that unwritten and deallocated LBAs read as all ones, which means "do not check". This
//! controller generates and drops tuples (PRACT = 1); it does not transfer them.

use super::command::Command;
use super::status::{
    APPLICATION_TAG_CHECK, GUARD_CHECK, INVALID_FIELD, INVALID_PROTECTION, REFERENCE_TAG_CHECK,
};
use adit_spec::Status;

/// Metadata bytes of an LBA.
pub(super) const TUPLE_BYTES: usize = 8;

/// x^16 + x^15 + x^11 + x^9 + x^8 + x^7 + x^5 + x^4 + x^2 + x + 1, without the x^16.
const POLYNOMIAL: u16 = 0x8bb7;

/// Protection settings of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protection {
    /// Type, 1 to 3.
    pub(super) kind: u8,
    /// Storage offset of the tuple of the first LBA.
    pub(super) tuples: u64,
}

/// Protection options of a command (PRINFO and its tags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    kind: u8,
    /// The controller generates and drops the tuples (PRACT).
    pub(super) acts: bool,
    checks_guard: bool,
    checks_application: bool,
    checks_reference: bool,
    /// Reference tag of the first LBA.
    reference: u32,
    application: u16,
    application_mask: u16,
}

impl Asked {
    /// Parses the four bits of `prinfo` for LBAs whose first reference tag is `reference`. The tag must match `lba`,
    /// the first LBA that the host named.
    pub(super) fn new(kind: u8, prinfo: u32, reference: u32, lba: u64) -> Result<Asked, Status> {
        let checks_reference = prinfo & 1 != 0;
        let is_refused = match kind {
            1 => reference != lba as u32,
            2 => false,
            _ => true,
        };
        if checks_reference && is_refused {
            return Err(INVALID_PROTECTION);
        }
        Ok(Asked {
            kind,
            acts: prinfo & 1 << 3 != 0,
            checks_guard: prinfo & 1 << 2 != 0,
            checks_application: prinfo & 1 << 1 != 0,
            checks_reference,
            reference,
            application: 0,
            application_mask: 0,
        })
    }

    /// Parses the options of a single-range command (CDW12 bits 29:26, CDW14, CDW15).
    pub(super) fn of(kind: u8, command: &Command) -> Result<Asked, Status> {
        let prinfo = command.cdw(12) >> 26 & 0xf;
        let asked = Asked::new(kind, prinfo, command.cdw(14), command.named_lba)?;
        Ok(Asked { application: command.low(15), application_mask: command.high(15), ..asked })
    }

    /// Refuses commands that would transfer tuples, which this controller does not support.
    pub(super) fn acting(self) -> Result<Asked, Status> {
        if self.acts { Ok(self) } else { Err(INVALID_FIELD) }
    }

    /// Refuses PRACT for a command that only checks and transfers nothing.
    pub(super) fn only_checking(self) -> Result<Asked, Status> {
        if self.acts { Err(INVALID_PROTECTION) } else { Ok(self) }
    }

    fn reference_of(&self, index: u32) -> u32 {
        if self.kind == 3 { self.reference } else { self.reference.wrapping_add(index) }
    }

    /// Generates the tuple of LBA `index` of the command, in its stored form.
    pub(super) fn make(&self, index: u32, data: &[u8]) -> [u8; TUPLE_BYTES] {
        let guard = guard(data).to_be_bytes();
        let application = self.application.to_be_bytes();
        let reference = self.reference_of(index).to_be_bytes();
        let mut tuple = [0; TUPLE_BYTES];
        tuple[..2].copy_from_slice(&guard);
        tuple[2..4].copy_from_slice(&application);
        tuple[4..].copy_from_slice(&reference);
        tuple.map(|byte| !byte)
    }

    /// Checks LBA `index` of the command against its stored tuple.
    pub(super) fn check(
        &self,
        index: u32,
        data: &[u8],
        stored: [u8; TUPLE_BYTES],
    ) -> Result<(), Status> {
        let [g0, g1, a0, a1, r0, r1, r2, r3] = stored.map(|byte| !byte);
        let application = u16::from_be_bytes([a0, a1]);
        let reference = u32::from_be_bytes([r0, r1, r2, r3]);
        if application == u16::MAX && (self.kind != 3 || reference == u32::MAX) {
            return Ok(());
        }
        if self.checks_guard && u16::from_be_bytes([g0, g1]) != guard(data) {
            return Err(GUARD_CHECK);
        }
        let differs = (application ^ self.application) & self.application_mask != 0;
        if self.checks_application && differs {
            return Err(APPLICATION_TAG_CHECK);
        }
        if self.checks_reference && reference != self.reference_of(index) {
            return Err(REFERENCE_TAG_CHECK);
        }
        Ok(())
    }
}

/// Computes the CRC-16 of T10-DIF: most significant bit first, from zero, not inverted.
fn guard(data: &[u8]) -> u16 {
    data.iter().fold(0, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut crc, mut bit) = ((index as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 1 << 15 != 0 { crc << 1 ^ POLYNOMIAL } else { crc << 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_CHECKS: u32 = 0b1111;

    fn asked(kind: u8, prinfo: u32) -> Asked {
        Asked::new(kind, prinfo, 7, 7).expect("a tag that fits")
    }

    #[test]
    fn the_guard_is_t10_difs() {
        assert_eq!(guard(b"123456789"), 0xd0db, "the catalogues' check value");
        assert_eq!(guard(&[0; 512]), 0);
        assert_ne!(guard(&[1; 512]), guard(&[1; 511]));
    }

    #[test]
    fn a_tuple_has_its_fields_where_the_specification_puts_them() {
        let made = Asked { application: 0x1234, ..asked(1, 1 << 3) }.make(2, b"123456789");
        assert_eq!(made.map(|byte| !byte), [0xd0, 0xdb, 0x12, 0x34, 0, 0, 0, 9]);
        assert_eq!(asked(3, 1 << 3).make(2, b"").map(|byte| !byte)[4..], [0, 0, 0, 7]);
    }

    #[test]
    fn each_check_finds_its_own_and_only_when_asked() {
        let data = [5; 512];
        let stored = asked(1, 1 << 3).make(3, &data);
        let check = |prinfo, index, data: &[u8]| asked(1, prinfo).check(index, data, stored);
        assert_eq!(check(ALL_CHECKS, 3, &data), Ok(()));
        assert_eq!(check(0b100, 3, &[6; 512]), Err(GUARD_CHECK));
        assert_eq!(check(0b001, 4, &data), Err(REFERENCE_TAG_CHECK));
        assert_eq!(check(0b011, 3, &[6; 512]), Ok(()), "the guard is not checked");
        assert_eq!(check(0b110, 4, &data), Ok(()), "nor for the place");
        let tagged = Asked { application: 1, application_mask: 1, ..asked(1, 0b010) };
        assert_eq!(tagged.check(3, &data, stored), Err(APPLICATION_TAG_CHECK));
    }

    #[test]
    fn what_was_never_written_is_not_checked() {
        for kind in 1..=3 {
            let asked = asked(kind, if kind == 3 { 0b100 } else { 0b101 });
            assert_eq!(asked.check(0, &[9; 512], [0; TUPLE_BYTES]), Ok(()), "type {kind}");
        }
        // Type 3 skips the check only if both tags are all ones.
        let half = [0xaa, 0xaa, 0, 0, 1, 0, 0, 0];
        assert_eq!(asked(3, 0b100).check(0, &[9; 512], half), Err(GUARD_CHECK));
        assert_eq!(asked(2, 0b100).check(0, &[9; 512], half), Ok(()));
    }

    #[test]
    fn tags_that_cannot_be_checked_are_refused() {
        assert_eq!(Asked::new(1, 1, 8, 7), Err(INVALID_PROTECTION));
        assert_eq!(Asked::new(3, 1, 7, 7), Err(INVALID_PROTECTION));
        assert!(Asked::new(2, 1, 8, 7).is_ok() && Asked::new(1, 0b1100, 8, 7).is_ok());
        assert!(Asked::new(1, 1, 7, 7 | 1 << 32).is_ok(), "the low half of the LBA");
    }
}
