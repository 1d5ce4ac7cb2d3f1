//! Checks blocks written by fio with `verify=crc32c`, in the layouts of fio 3.33 and 3.41.
//!
//! | bytes before 3.41 | since 3.41 | field |
//! |---|---|---|
//! | 0..2 | 0..2 | magic |
//! | | 2 | version; its highest bit is set, as in no kind |
//! | 2..4 | 3 | kind of the checksum |
//! | 4..8 | 4..8 | length of the block in bytes |
//! | 8..16 | 8..16 | seed of the data |
//! | 16..24 | 16..24 | offset of the block in the file in bytes |
//! | 24..36 | 24..44 | time, number of the write, thread |
//! | 36..40 | 44..48 | checksum of the bytes before |
//! | 40..44 | 48..52 | checksum of the bytes after |
//!
//! All numbers are little-endian. The checksums are CRC-32C without its final inversion. The write a block is
//! from cannot be checked, because fio's random numbers are not known here.

use crc_fast::{CrcAlgorithm, checksum};

use super::mismatch::Cause;
use crate::options::VerifyKind;

const MAGIC: u16 = 0xacca;
/// The highest bit of byte 2 where it is a version.
const HAS_VERSION: u8 = 0x80;
/// The version of fio 3.41 and 3.42.
const VERSION: u8 = 0x81;
/// `crc32c`, and `crc32c-intel`, the same checksum.
const KINDS: [u16; 2] = [5, 6];
/// Where the header's checksum lies without and with a version; the data's checksum follows it.
const CRC_AT: [usize; 2] = [36, 44];
/// Length of the longer header.
const HEADER_BYTES: usize = 52;

/// A header of fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Of a CRC-32C; holds where the header's own checksum lies.
    Crc32c(usize),
    /// Of another checksum, by fio's number.
    Other(u16),
    /// Of an unknown version.
    Version(u8),
}

impl Header {
    /// Returns the header that `block` begins with, if it is one of fio's.
    pub(super) fn of(block: &[u8]) -> Option<Header> {
        let [first, second, version, kind] = *block.first_chunk()?;
        if block.len() <= HEADER_BYTES || u16::from_le_bytes([first, second]) != MAGIC {
            return None;
        }
        let has_version = version & HAS_VERSION != 0;
        let kind = match has_version {
            true if version != VERSION => return Some(Header::Version(version)),
            true => u16::from(kind),
            false => u16::from_le_bytes([version, kind]),
        };
        Some(match KINDS.contains(&kind) {
            true => Header::Crc32c(CRC_AT[usize::from(has_version)]),
            false => Header::Other(kind),
        })
    }

    /// Checks the block with this header, read at `offset`.
    ///
    /// # Errors
    /// The first difference from what fio wrote there, or that this program cannot check it.
    pub(super) fn check(self, block: &[u8], offset: u64) -> Result<(), Cause> {
        let crc_at = match self {
            Header::Crc32c(at) => at,
            Header::Other(kind) => return Err(Cause::FioKind { kind }),
            Header::Version(version) => return Err(Cause::FioVersion { version }),
        };
        compare(&block[..crc_at], word(block, crc_at))?;
        let got = word(block, 4);
        if got as usize != block.len() {
            return Err(Cause::Length { expected: block.len(), got });
        }
        let got = u64::from_le_bytes(std::array::from_fn(|i| block[16 + i]));
        if got != offset {
            return Err(Cause::Offset { got });
        }
        compare(&block[crc_at + 8..], word(block, crc_at + 4))
    }
}

fn compare(bytes: &[u8], stored: u32) -> Result<(), Cause> {
    let computed = !(checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32);
    let padded = |crc: u32| std::array::from_fn(|i| crc.to_le_bytes().get(i).copied().unwrap_or(0));
    match stored == computed {
        true => Ok(()),
        false => Err(Cause::Checksum {
            kind: VerifyKind::Crc32c,
            expected: padded(stored),
            got: padded(computed),
        }),
    }
}

/// Returns the 32-bit number at a place.
pub(super) fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| block[at + i]))
}

#[cfg(test)]
mod tests {
    use super::super::stamp;
    use super::super::{Identity, Writer};
    use super::*;

    const OFFSET: u64 = 0x2000;

    /// Headers that fio 3.33 and fio 3.41 wrote at offset 8192, without their checksum and for a block of 64
    /// bytes.
    const HEADERS: [&str; 2] = [
        "caac0500 40000000 2e56dbf68c0abb88 0020000000000000 00000000c9482008 01000100",
        "caac8105 40000000 d09204acf3149841 0020000000000000 0000000097c4d206 0200000000000000 0100c618",
    ];

    /// Returns a block with such a header, and the checksums for its length and data.
    fn block(header: &str) -> Vec<u8> {
        let digits: Vec<u8> = header.bytes().filter(|digit| *digit != b' ').collect();
        let pair = |pair: &[u8]| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("a byte")
        };
        let mut block: Vec<u8> = digits.chunks(2).map(pair).collect();
        // Computed independently of the code above, bit by bit.
        block.extend(bitwise(&block.clone()).to_le_bytes());
        let data: Vec<u8> = (0..60 - block.len() as u8).collect();
        block.extend(bitwise(&data).to_le_bytes());
        block.extend(data);
        block
    }

    fn bitwise(bytes: &[u8]) -> u32 {
        bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
        })
    }

    fn there(block: &[u8], writer: Option<Writer>, kind: VerifyKind) -> Result<(), String> {
        let identity = Identity { offset: OFFSET, writer };
        stamp::check(block, kind, identity).map_err(|mismatch| mismatch.to_string())
    }

    #[test]
    fn a_block_of_fios_is_what_it_is_and_any_flipped_bit_is_found() {
        for header in HEADERS {
            let block = block(header);
            let check = |offset| Header::of(&block).expect("a header").check(&block, offset);
            assert_eq!(check(OFFSET), Ok(()));
            assert_eq!(check(0), Err(Cause::Offset { got: OFFSET }));
            for bit in 0..block.len() * 8 {
                let mut other = block.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                // Kinds 5 and 6 are the same checksum, but the header's own one differs.
                assert!(there(&other, None, VerifyKind::Crc32c).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn it_is_taken_where_it_is_not_known_who_wrote_it() {
        for header in HEADERS {
            let block = block(header);
            assert_eq!(there(&block, None, VerifyKind::Crc32c), Ok(()));
            let ours = Writer { seed: 1, generation: 2 };
            for (writer, kind) in [(Some(ours), VerifyKind::Crc32c), (None, VerifyKind::Md5)] {
                let said = there(&block, writer, kind).expect_err("not ours");
                assert!(said.contains("fio wrote it"), "{said}");
            }
        }
    }

    #[test]
    fn a_header_that_cannot_be_checked_is_told_as_that() {
        let changed = |header: &str, at: usize, value: u8| {
            let mut block = block(header);
            block[at] = value;
            there(&block, None, VerifyKind::Crc32c).expect_err("refused")
        };
        let said = changed(HEADERS[1], 2, 0x82);
        assert!(said.contains("version 0x82 of its header") && said.contains("0x81"), "{said}");
        // md5 and crc64 by fio's numbers.
        for (header, at, kind) in [(HEADERS[0], 2, 2), (HEADERS[1], 3, 3)] {
            let said = changed(header, at, kind);
            assert!(said.contains(&format!("kind {kind}")) && said.contains("crc32c"), "{said}");
        }
    }
}
