//! Verifying a read in a process that does not have the store: what its bytes have to match, in a few words.
//!
//! An object has a checksum for each piece, up to [`CHECKSUMS_MAX`]. A [`Digest`] has one checksum of these checksums:
//! pieces that differ from what was put make other checksums as they do in the store, and whichever of those differ,
//! alone or two neighbours, make another digest; of more, one in 2^64 does not.

use adit_driver::sys::SharedBytes;

use super::reading::Reading;
use crate::media::checksum;
use crate::model::object::CHECKSUMS_MAX;
use crate::shard::extract::Pieces;
use crate::shard::memory::{Sums, sum_shared};

/// The checksums that the bytes of a read have to match, and the run of bytes that each covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The number of runs.
    pub pieces: u32,
    /// Bytes from the start of one run to the start of the next.
    pub stride_bytes: u64,
    /// Bytes of each run except the last.
    pub piece_bytes: u64,
    /// Bytes of the last run.
    pub last_bytes: u64,
    /// CRC-64 (NVM Express) of the runs' CRC-32C, each as four bytes, the lowest first.
    pub sum: u64,
}

impl Digest {
    pub(super) fn of(reading: &Reading) -> Digest {
        let Pieces { count, stride_bytes, piece_bytes, last_bytes } = reading.extract.pieces;
        let sum = checksum::of_sums(&reading.checksums);
        Digest { pieces: count, stride_bytes, piece_bytes, last_bytes, sum }
    }

    /// Returns whether `bytes`, which others may be able to write, are what was put. The digest itself may be anything.
    pub fn is_of(&self, bytes: SharedBytes<'_>) -> bool {
        // Pieces that lie on others would be summed again and again.
        let is_apart = self.pieces <= 1 || self.piece_bytes <= self.stride_bytes;
        if !(1..=CHECKSUMS_MAX as u32).contains(&self.pieces) || !is_apart {
            return false;
        }
        let mut sums = Sums::new();
        for index in 0..self.pieces {
            let is_last = index + 1 == self.pieces;
            let len = if is_last { self.last_bytes } else { self.piece_bytes };
            let start = u64::from(index).checked_mul(self.stride_bytes);
            let end = start.and_then(|start| start.checked_add(len));
            let (Some(start), Some(end)) = (start, end) else { return false };
            if end > bytes.len() as u64 {
                return false;
            }
            let mut running = checksum::Running::new();
            sum_shared(bytes.slice(start as usize..end as usize), &mut running);
            sums.push(running.finish());
        }
        checksum::of_sums(&sums) == self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(bytes: &[u8], (piece, stride): (usize, usize)) -> Digest {
        let pieces = bytes.len().div_ceil(stride);
        let run = |index: usize| &bytes[index * stride..bytes.len().min(index * stride + piece)];
        let sums: Vec<u32> = (0..pieces).map(|index| checksum::of(run(index))).collect();
        let last_bytes = run(pieces - 1).len() as u64;
        let (stride_bytes, piece_bytes) = (stride as u64, piece as u64);
        let sum = checksum::of_sums(&sums);
        Digest { pieces: pieces as u32, stride_bytes, piece_bytes, last_bytes, sum }
    }

    #[test]
    fn a_byte_of_any_piece_makes_another_digest_and_one_between_pieces_none() {
        let mut bytes: Vec<u8> = (0..40_000u32).map(|at| (at / 7) as u8).collect();
        let digest = digest(&bytes, (9000, 12_288));
        assert!(digest.is_of((&bytes[..]).into()));
        for (at, is_summed) in [
            (0, true),
            (8999, true),
            (9000, false),
            (12_287, false),
            (12_288, true),
            (39_999, true),
        ] {
            bytes[at] ^= 1;
            assert_eq!(digest.is_of((&bytes[..]).into()), !is_summed, "at {at}");
            bytes[at] ^= 1;
        }
        let mut swapped = bytes.clone();
        let (first, second) = swapped.split_at_mut(12_288);
        first[..9000].swap_with_slice(&mut second[..9000]);
        assert!(!digest.is_of((&swapped[..]).into()), "each piece has its place");
        assert!(!digest.is_of((&bytes[..39_999]).into()), "there are too few bytes");
    }

    proptest! {
        #[test]
        fn any_digest_is_of_any_bytes_or_not(
            pieces: u32, few in 0u32..600, [stride_bytes, piece_bytes, last_bytes, sum]: [u64; 4],
            short in 0u64..300,
        ) {
            let bytes = [7; 256];
            for pieces in [pieces, few] {
                for stride_bytes in [stride_bytes, short, 0] {
                    let any = Digest { pieces, stride_bytes, piece_bytes, last_bytes, sum };
                    prop_assert!(!any.is_of((&bytes[..]).into()));
                    let any = Digest { piece_bytes: short, last_bytes: short, ..any };
                    prop_assert!(!any.is_of((&bytes[..]).into()));
                }
            }
        }
    }
}
