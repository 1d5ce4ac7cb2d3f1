//! Self-identifying blocks, written by one run and checked by the same or a later one.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic |
//! | 8..24 | checksum of the rest of the block; padded with zeroes |
//! | 24..28 | kind of the checksum |
//! | 28..32 | length of the block in bytes |
//! | 32..40 | offset of the block on the device in bytes |
//! | 40..48 | seed of the run |
//! | 48..56 | generation: the step that wrote it |
//! | 56.. | data, which follows from offset, seed and generation |
//!
//! All numbers are little-endian. The offset reveals misdirected blocks, the generation stale ones, the
//! checksum everything else.

use adit_load::Pattern;
use clap::ValueEnum;
use crc_fast::{CrcAlgorithm, checksum};
use md5::{Digest, Md5};
use xxhash_rust::xxh64::xxh64;

use super::fio_header::{Header, word};
use super::mismatch::{Cause, Identity, Mismatch, Writer};
use crate::options::VerifyKind;

const MAGIC: u64 = u64::from_le_bytes(*b"ADITBLK2");
/// Length of a header; no block is shorter.
pub(crate) const HEADER_BYTES: usize = 56;
const CHECKSUM: std::ops::Range<usize> = 8..24;

/// Writes the header of `block` for `offset`; its data must be in place.
pub(super) fn stamp(block: &mut [u8], kind: VerifyKind, offset: u64, writer: Writer) {
    debug_assert!(block.len() >= HEADER_BYTES);
    put(block, 0, MAGIC);
    block[24..28].copy_from_slice(code(kind));
    let len = block.len() as u32;
    block[28..32].copy_from_slice(&len.to_le_bytes());
    put(block, 32, offset);
    put(block, 40, writer.seed);
    put(block, 48, writer.generation);
    let checksum = checksum_of(block, kind);
    block[CHECKSUM].copy_from_slice(&checksum);
}

/// Checks the header of `block` against `kind` and `expected`.
///
/// # Errors
/// The first difference.
pub(super) fn check(block: &[u8], kind: VerifyKind, expected: Identity) -> Result<(), Mismatch> {
    checked(block, kind, expected).map_err(|cause| Mismatch { offset: expected.offset, cause })
}

fn checked(block: &[u8], kind: VerifyKind, expected: Identity) -> Result<(), Cause> {
    if let Some(header) = Header::of(block) {
        // This run writes our header only.
        let may_be = kind == VerifyKind::Crc32c && expected.writer.is_none();
        return if may_be { header.check(block, expected.offset) } else { Err(Cause::Fio) };
    }
    if get(block, 0) != MAGIC {
        return Err(match get(block, 0) {
            _ if is_zero(block) => Cause::Zeroes,
            got => Cause::Magic { expected: MAGIC, got },
        });
    }
    match kind_of(block) {
        Some(got) if got != kind => return Err(Cause::Kind { expected: kind, got }),
        Some(_) => {}
        None => return Err(Cause::NoKind),
    }
    let len = word(block, 28);
    if len as usize != block.len() {
        return Err(Cause::Length { expected: block.len(), got: len });
    }
    let (stored, computed) =
        (std::array::from_fn(|i| block[CHECKSUM.start + i]), checksum_of(block, kind));
    if stored != computed {
        return Err(Cause::Checksum { kind, expected: stored, got: computed });
    }
    if get(block, 32) != expected.offset {
        return Err(Cause::Offset { got: get(block, 32) });
    }
    let got = Writer { seed: get(block, 40), generation: get(block, 48) };
    match expected.writer {
        Some(writer) if writer != got => Err(Cause::Writer { expected: writer, got }),
        _ => Ok(()),
    }
}

/// Checks that all of `block` is `pattern` with `offset` inserted.
///
/// # Errors
/// The first differing byte, or the kind of a header found instead.
pub(super) fn check_pattern(block: &[u8], pattern: &Pattern, offset: u64) -> Result<(), Mismatch> {
    let Some((at, expected)) = pattern.first_difference(block, offset) else { return Ok(()) };
    let has_header = block.len() >= HEADER_BYTES && get(block, 0) == MAGIC;
    let cause = match kind_of(block).filter(|_| has_header) {
        Some(got) => Cause::Kind { expected: VerifyKind::Pattern, got },
        None if is_zero(block) => Cause::Zeroes,
        None => Cause::Byte { at, expected, got: block[at] },
    };
    Err(Mismatch { offset, cause })
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Returns a header's code for its kind; codes differ in many bits.
fn code(kind: VerifyKind) -> &'static [u8; 4] {
    match kind {
        VerifyKind::Crc32c => b"crc\0",
        VerifyKind::Crc64 => b"c64\0",
        VerifyKind::Xxhash => b"xxh\0",
        VerifyKind::Md5 => b"md5\0",
        VerifyKind::Meta => b"meta",
        VerifyKind::Pattern => b"none",
    }
}

fn kind_of(block: &[u8]) -> Option<VerifyKind> {
    let found = block.get(24..28)?;
    VerifyKind::value_variants().iter().copied().find(|kind| found == code(*kind))
}

fn checksum_of(block: &[u8], kind: VerifyKind) -> [u8; 16] {
    let rest = &block[CHECKSUM.end..];
    let mut sum = [0; 16];
    match kind {
        VerifyKind::Crc32c => {
            let crc = checksum(CrcAlgorithm::Crc32Iscsi, rest) as u32;
            sum[..4].copy_from_slice(&crc.to_le_bytes());
        }
        // Jones' polynomial, which fio has.
        VerifyKind::Crc64 => {
            sum[..8].copy_from_slice(&checksum(CrcAlgorithm::Crc64Redis, rest).to_le_bytes());
        }
        VerifyKind::Xxhash => sum[..8].copy_from_slice(&xxh64(rest, 0).to_le_bytes()),
        VerifyKind::Md5 => sum = Md5::digest(rest).into(),
        VerifyKind::Meta | VerifyKind::Pattern => {}
    }
    sum
}

fn put(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| block[at + i]))
}

#[cfg(test)]
mod tests {
    use super::super::mismatch::Hex;
    use super::*;
    use proptest::prelude::*;

    const WRITER: Writer = Writer { seed: 7, generation: 3 };
    const HERE: Identity = Identity { offset: 8192, writer: Some(WRITER) };
    const CHECKING: [VerifyKind; 4] =
        [VerifyKind::Crc32c, VerifyKind::Crc64, VerifyKind::Xxhash, VerifyKind::Md5];

    fn stamped(kind: VerifyKind) -> Vec<u8> {
        let mut block: Vec<u8> = (0..4096).map(|i| i as u8).collect();
        stamp(&mut block, kind, HERE.offset, WRITER);
        block
    }

    #[test]
    fn a_stamped_block_is_what_it_is() {
        for kind in CHECKING.into_iter().chain([VerifyKind::Meta]) {
            assert_eq!(check(&stamped(kind), kind, HERE), Ok(()));
            assert_eq!(check(&stamped(kind), kind, Identity { writer: None, ..HERE }), Ok(()));
        }
    }

    #[test]
    fn misdirected_and_stale_blocks_are_found_by_all_kinds() {
        for kind in CHECKING.into_iter().chain([VerifyKind::Meta]) {
            let found =
                |expected| check(&stamped(kind), kind, expected).expect_err("found").to_string();
            let elsewhere = found(Identity { offset: 4096, writer: None });
            assert!(elsewhere.contains("offset 4096 is another one"), "{elsewhere}");
            let later =
                found(Identity { writer: Some(Writer { generation: 4, ..WRITER }), ..HERE });
            assert!(
                later.contains("expected generation 4 of seed 0x7, got generation 3"),
                "{later}"
            );
        }
    }

    #[test]
    fn the_message_says_what_was_expected() {
        let message =
            |block: &[u8]| check(block, VerifyKind::Crc32c, HERE).expect_err("found").to_string();
        assert!(message(&[0; 512]).contains("offset 8192 is all zeroes"));
        assert!(message(&[1; 512]).contains("no verify header"));
        assert!(message(&stamped(VerifyKind::Crc32c)[..512]).contains("use --bs=4096"));
        assert!(message(&stamped(VerifyKind::Md5)).ends_with("use --verify=md5"));
        let mut corrupt = stamped(VerifyKind::Crc32c);
        corrupt[4000] ^= 1;
        assert!(message(&corrupt).contains("crc32c expected 0x"));
    }

    #[test]
    fn a_pattern_says_which_byte_differs_or_whose_header_it_is() {
        let pattern = Pattern { bytes: vec![7], offsets_at: Vec::new() };
        let message =
            |block: &[u8]| check_pattern(block, &pattern, 0).expect_err("found").to_string();
        let mut block = [7; 4096];
        assert_eq!(check_pattern(&block, &pattern, 0), Ok(()));
        block[100] = 8;
        assert!(message(&block).contains("byte 100 expected 0x07, got 0x08"));
        assert!(message(&[0; 4096]).contains("all zeroes"));
        assert!(message(&stamped(VerifyKind::Xxhash)).ends_with("use --verify=xxhash"));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_found(byte in 0usize..4096, bit in 0u32..8, kind in prop::sample::select(&CHECKING)) {
            let mut block = stamped(kind);
            block[byte] ^= 1 << bit;
            prop_assert!(check(&block, kind, HERE).is_err());
        }
    }

    #[test]
    fn the_checksums_are_what_they_are_called() {
        let of = |kind| {
            let block = [&[0; 24], &b"123456789"[..]].concat();
            Hex(kind, &checksum_of(&block, kind)).to_string()
        };
        // The check values of CRC-32C and of CRC-64 with Jones' polynomial; xxhsum -H64; md5sum.
        assert_eq!(of(VerifyKind::Crc32c), "0xe3069283");
        assert_eq!(of(VerifyKind::Crc64), "0xe9c6d914c4b8d9ca");
        assert_eq!(of(VerifyKind::Xxhash), "0x8cb841db40e6ae83");
        assert_eq!(of(VerifyKind::Md5), "25f9e794323b453885f5181f1b624d0b");
    }
}
