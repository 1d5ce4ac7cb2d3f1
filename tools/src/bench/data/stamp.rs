//! Blocks that can be told from any other: written by one run, checked by the same or a later one.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic |
//! | 8..12 | CRC-32C of the rest of the block |
//! | 12..16 | length of the block in bytes |
//! | 16..24 | offset of the block in the namespace in bytes |
//! | 24..32 | seed of the run |
//! | 32..40 | generation: the pass that wrote it |
//! | 40.. | pseudo-random words that follow from offset, seed and generation |
//!
//! All numbers are little-endian. The offset finds misdirected blocks, the generation
//! stale ones, the checksum everything else.

use std::fmt;

use crc_fast::{CrcAlgorithm, checksum};

use super::super::workload::random::{GOLDEN, mix};

const MAGIC: u64 = u64::from_le_bytes(*b"ADITBLK1");
const HEADER_BYTES: usize = 40;
const CHECKED_FROM: usize = 12;
/// The shortest block that has room for a header.
pub(crate) const BLOCK_BYTES_MIN: u64 = 512;

/// What a block was, or should have been, written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Offset in the namespace in bytes.
    pub(crate) offset: u64,
    /// Who wrote it and when; not known where an earlier run did.
    pub(crate) writer: Option<Writer>,
}

/// The run and pass that wrote a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Seed of the run.
    pub(crate) seed: u64,
    /// The pass, counted from zero.
    pub(crate) generation: u64,
}

/// Fills `block`, a multiple of 8 bytes and at least [`BLOCK_BYTES_MIN`], for `offset`.
pub(crate) fn stamp(block: &mut [u8], offset: u64, writer: Writer) {
    debug_assert!(block.len() as u64 >= BLOCK_BYTES_MIN && block.len().is_multiple_of(8));
    put(block, 0, MAGIC);
    let len = block.len() as u32;
    block[12..16].copy_from_slice(&len.to_le_bytes());
    put(block, 16, offset);
    put(block, 24, writer.seed);
    put(block, 32, writer.generation);
    fill(&mut block[HEADER_BYTES..], mix(offset ^ mix(writer.seed ^ mix(writer.generation))));
    let crc = crc_of(block);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// Fills `bytes` with pseudo-random words. Each follows from its own index, so that the
/// processor works on several at a time: stamping must not be what is measured.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    let word = |index: u64| mix(seed.wrapping_add(index.wrapping_mul(GOLDEN))).to_le_bytes();
    let mut index = 0;
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word(index));
        index += 1;
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&word(index)[..rest.len()]);
}

/// Checks that `block` is what `expected` says.
///
/// # Errors
/// The first thing about it that is not.
pub(crate) fn check(block: &[u8], expected: Identity) -> Result<(), Mismatch> {
    let mismatch = |cause| Err(Mismatch { offset: expected.offset, cause });
    if get(block, 0) != MAGIC {
        return mismatch(Cause::Magic {
            got: get(block, 0),
            all_zero: block.iter().all(|b| *b == 0),
        });
    }
    let len = u32_at(block, 12);
    if len as usize != block.len() {
        return mismatch(Cause::Length { expected: block.len(), got: len });
    }
    let (stored, computed) = (u32_at(block, 8), crc_of(block));
    if stored != computed {
        return mismatch(Cause::Crc { expected: stored, got: computed });
    }
    if get(block, 16) != expected.offset {
        return mismatch(Cause::Offset { got: get(block, 16) });
    }
    let got = Writer { seed: get(block, 24), generation: get(block, 32) };
    match expected.writer {
        Some(writer) if writer != got => mismatch(Cause::Writer { expected: writer, got }),
        _ => Ok(()),
    }
}

fn crc_of(block: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, &block[CHECKED_FROM..]) as u32
}

fn put(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| block[at + i]))
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| block[at + i]))
}

/// A block that is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("verify: the block at offset {offset} {cause}")]
pub(crate) struct Mismatch {
    offset: u64,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Magic { got: u64, all_zero: bool },
    Length { expected: usize, got: u32 },
    Crc { expected: u32, got: u32 },
    Offset { got: u64 },
    Writer { expected: Writer, got: Writer },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Magic { all_zero: true, .. } => {
                write!(
                    f,
                    "is all zeroes: it was never written with --verify, or the write was lost"
                )
            }
            Cause::Magic { got, .. } => {
                write!(
                    f,
                    "has no verify header: expected magic {MAGIC:#018x}, got {got:#018x}; was it written with --verify?"
                )
            }
            Cause::Length { expected, got } => {
                write!(
                    f,
                    "was written with another block size: expected {expected} bytes, got {got}; use --bs={got}"
                )
            }
            Cause::Crc { expected, got } => {
                write!(f, "is corrupt: crc32c expected {expected:#010x}, got {got:#010x}")
            }
            Cause::Offset { got } => write!(f, "is another one: it was written for offset {got}"),
            Cause::Writer { expected, got } => write!(
                f,
                "is stale: expected generation {} of seed {:#x}, got generation {} of seed {:#x}",
                expected.generation, expected.seed, got.generation, got.seed
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WRITER: Writer = Writer { seed: 7, generation: 3 };
    const HERE: Identity = Identity { offset: 8192, writer: Some(WRITER) };

    fn stamped() -> Vec<u8> {
        let mut block = vec![0; 4096];
        stamp(&mut block, HERE.offset, WRITER);
        block
    }

    #[test]
    fn a_stamped_block_is_what_it_is() {
        assert_eq!(check(&stamped(), HERE), Ok(()));
        assert_eq!(check(&stamped(), Identity { offset: 8192, writer: None }), Ok(()));
    }

    #[test]
    fn misdirected_and_stale_blocks_are_found() {
        let elsewhere = check(&stamped(), Identity { offset: 4096, writer: None });
        assert!(
            elsewhere.expect_err("misdirected").to_string().contains("offset 4096 is another one")
        );
        let later = Identity { writer: Some(Writer { generation: 4, ..WRITER }), ..HERE };
        assert!(check(&stamped(), later).expect_err("stale").to_string().contains("generation 4"));
    }

    #[test]
    fn the_message_says_what_was_expected() {
        let zeroes = check(&[0; 512], HERE).expect_err("zeroes").to_string();
        assert!(zeroes.contains("offset 8192 is all zeroes"), "{zeroes}");
        let other_size = check(&stamped()[..512], HERE).expect_err("length").to_string();
        assert!(other_size.contains("use --bs=4096"), "{other_size}");
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_found(byte in 0usize..4096, bit in 0u32..8) {
            let mut block = stamped();
            block[byte] ^= 1 << bit;
            prop_assert!(check(&block, HERE).is_err());
        }
    }

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(checksum(CrcAlgorithm::Crc32Iscsi, b"123456789"), 0xe306_9283);
    }
}
