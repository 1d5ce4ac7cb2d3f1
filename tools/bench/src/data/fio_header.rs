//! Checks blocks written by fio with `verify=crc32c`, in fio 3.33's layout.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | magic |
//! | 2..4 | kind of the checksum |
//! | 4..8 | length of the block in bytes |
//! | 8..16 | seed of the data |
//! | 16..24 | offset of the block in the file in bytes |
//! | 24..34 | time, thread |
//! | 34..36 | number of the write |
//! | 36..40 | checksum of the bytes before |
//! | 40..44 | checksum of the bytes after |
//!
//! All numbers are little-endian. The checksums are CRC-32C without its final inversion. The write a block is
//! from cannot be checked, because fio's random numbers are not known here.

use crc_fast::{CrcAlgorithm, checksum};

use super::stamp::Cause;
use crate::options::VerifyKind;

const MAGIC: u16 = 0xacca;
/// `crc32c`, and `crc32c-intel`, the same checksum.
const KINDS: [u16; 2] = [5, 6];
const HEADER_CRC: usize = 36;
const DATA_CRC: usize = 40;
const DATA: usize = 44;

/// Returns whether `block` begins with fio's header for a CRC-32C.
pub(super) fn is_one(block: &[u8]) -> bool {
    block.len() > DATA
        && u16::from_le_bytes([block[0], block[1]]) == MAGIC
        && KINDS.contains(&u16::from_le_bytes([block[2], block[3]]))
}

/// Checks such a block read at `offset`.
///
/// # Errors
/// The first difference from what fio wrote there.
pub(super) fn check(block: &[u8], offset: u64) -> Result<(), Cause> {
    compare(&block[..HEADER_CRC], word(block, HEADER_CRC))?;
    let got = word(block, 4);
    if got as usize != block.len() {
        return Err(Cause::Length { expected: block.len(), got });
    }
    let got = u64::from_le_bytes(std::array::from_fn(|i| block[16 + i]));
    if got != offset {
        return Err(Cause::Offset { got });
    }
    compare(&block[DATA..], word(block, DATA_CRC))
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

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| block[at + i]))
}

#[cfg(test)]
mod tests {
    use super::super::stamp;
    use super::super::{Identity, Writer};
    use super::*;

    const OFFSET: u64 = 0x1000;

    /// A block of 64 bytes with a header that fio 3.33 wrote at offset 4096, and the checksums for its length
    /// and data.
    fn block() -> Vec<u8> {
        let header =
            "caac05004000 0000 2e56dbf68c0abb88 0010000000000000 00000000c9482008 01000100";
        let digits: Vec<u8> = header.bytes().filter(|digit| *digit != b' ').collect();
        let pair = |pair: &[u8]| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("a byte")
        };
        let mut block: Vec<u8> = digits.chunks(2).map(pair).collect();
        // Computed independently of the code above, bit by bit.
        block.extend(bitwise(&block.clone()).to_le_bytes());
        let data: Vec<u8> = (0..20).collect();
        block.extend(bitwise(&data).to_le_bytes());
        block.extend(data);
        block
    }

    fn bitwise(bytes: &[u8]) -> u32 {
        bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
        })
    }

    #[test]
    fn a_block_of_fios_is_what_it_is_and_any_flipped_bit_is_found() {
        let block = block();
        assert!(is_one(&block));
        assert_eq!(check(&block, OFFSET), Ok(()));
        assert_eq!(check(&block, 0), Err(Cause::Offset { got: OFFSET }));
        for bit in 32..block.len() * 8 {
            let mut other = block.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&other, OFFSET).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn it_is_taken_where_it_is_not_known_who_wrote_it() {
        let there =
            |writer, kind| stamp::check(&block(), kind, Identity { offset: OFFSET, writer });
        assert_eq!(there(None, VerifyKind::Crc32c), Ok(()));
        let ours = Writer { seed: 1, generation: 2 };
        for (writer, kind) in [(Some(ours), VerifyKind::Crc32c), (None, VerifyKind::Md5)] {
            let said = there(writer, kind).expect_err("not ours").to_string();
            assert!(said.contains("fio wrote it"), "{said}");
        }
    }
}
