//! Who wrote a block, and how a block that is read differs from what was written.

use std::fmt;

use adit_load::mix;

use crate::options::{VerifyKind, name_of};

/// What a block was, or should have been, written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Offset on the device in bytes.
    pub(crate) offset: u64,
    /// Its writer; `None` if an earlier run wrote it.
    pub(crate) writer: Option<Writer>,
}

/// The run and step that wrote a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) seed: u64,
    /// The step's number.
    pub(crate) generation: u64,
}

impl Writer {
    /// Returns the seed of the data it writes at `offset`.
    pub(super) fn data_seed(self, offset: u64) -> u64 {
        mix(offset ^ mix(self.seed ^ mix(self.generation)))
    }
}

/// A block with unexpected contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("verify: the block at offset {offset} {cause}")]
pub(crate) struct Mismatch {
    pub(super) offset: u64,
    pub(super) cause: Cause,
}

/// The first difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cause {
    #[error("is all zeroes: it was never written with --verify, or the write was lost")]
    Zeroes,
    #[error(
        "is not this run's: fio wrote it; if it was with --verify=crc32c, read it with that and --rw=read"
    )]
    Fio,
    #[error(
        "is fio's, with a checksum of kind {kind}; of fio's only crc32c is checked here: verify it with fio"
    )]
    FioKind { kind: u16 },
    #[error(
        "is fio's, with version {version:#04x} of its header; known are 0x81 (since fio 3.41) and the one before: \
         verify it with the fio that wrote it"
    )]
    FioVersion { version: u8 },
    #[error(
        "has no verify header: expected magic {expected:#018x}, got {got:#018x}; was it written with --verify?"
    )]
    Magic { expected: u64, got: u64 },
    #[error("was written with --verify={0}, not with --verify={1}; use --verify={0}", name_of(*got), name_of(*expected))]
    Kind { expected: VerifyKind, got: VerifyKind },
    #[error("is corrupt: its header has no kind of checksum")]
    NoKind,
    #[error(
        "was written with another block size: expected {expected} bytes, got {got}; use --bs={got}, or \
         --verify_interval={got} where blocks were longer"
    )]
    Length { expected: usize, got: u32 },
    #[error("is corrupt: {} expected {}, got {}", name_of(*kind), Hex(*kind, expected), Hex(*kind, got))]
    Checksum { kind: VerifyKind, expected: [u8; 16], got: [u8; 16] },
    #[error("is another one: it was written for offset {got}")]
    Offset { got: u64 },
    #[error(
        "is stale: expected generation {} of seed {:#x}, got generation {} of seed {:#x}",
        expected.generation, expected.seed, got.generation, got.seed
    )]
    Writer { expected: Writer, got: Writer },
    #[error("is not the pattern: byte {at} expected {expected:#04x}, got {got:#04x}")]
    Byte { at: usize, expected: u8, got: u8 },
}

/// Formats a checksum as usual for its kind.
pub(super) struct Hex<'a>(pub(super) VerifyKind, pub(super) &'a [u8; 16]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hex(kind, sum) = self;
        let number = u64::from_le_bytes(std::array::from_fn(|i| sum[i]));
        match kind {
            VerifyKind::Crc32c => write!(f, "{number:#010x}"),
            VerifyKind::Md5 => sum.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            _ => write!(f, "{number:#018x}"),
        }
    }
}
