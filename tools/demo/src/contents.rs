//! Bytes that identify themselves: noise under a header of 24 bytes, with a checksum of the rest.

use adit_tools_common::failure::{Failure, Result};
use crc_fast::{CrcAlgorithm, checksum};

/// CRC-32C of the rest, then the block's number, then its round.
const HEADER_BYTES: usize = 24;

/// Fills a buffer with noise, which [`seal`] makes a block of.
pub(crate) fn fill(buffer: &mut [u8], seed: u64) {
    let mut state = seed;
    for chunk in buffer.chunks_mut(8) {
        chunk.copy_from_slice(&next(&mut state).to_le_bytes()[..chunk.len()]);
    }
}

/// Makes a filled buffer the block `number` of a round.
pub(crate) fn seal(block: &mut [u8], number: u64, round: u64) {
    block[8..16].copy_from_slice(&number.to_le_bytes());
    block[16..HEADER_BYTES].copy_from_slice(&round.to_le_bytes());
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &block[8..]);
    block[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Checks that a buffer holds the block `number` of a round.
///
/// # Errors
/// The first difference.
pub(crate) fn check(block: &[u8], number: u64, round: u64) -> Result<()> {
    let field = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &block[8..]);
    if field(0) != sum {
        let found = field(0);
        return Err(wrong(number, format!("its checksum is {found:#010x}, not {sum:#010x}")));
    }
    if (field(8), field(16)) != (number, round) {
        let (other, of) = (field(8), field(16));
        return Err(wrong(number, format!("it is block {other} of round {of}, not of {round}")));
    }
    Ok(())
}

/// Returns the numbers below `count` in an order that the seed determines.
pub(crate) fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut state = seed;
    for at in (1..order.len()).rev() {
        order.swap(at, (next(&mut state) % (at as u64 + 1)) as usize);
    }
    order
}

/// Returns the next number of SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn wrong(number: u64, why: String) -> Failure {
    Failure::failed(format!("block {number} is not what was written: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_only_what_it_was_sealed_as() {
        let mut block = vec![0; 4096];
        fill(&mut block, 1);
        seal(&mut block, 7, 3);
        check(&block, 7, 3).expect("it is that block");
        assert!(check(&block, 8, 3).expect_err("misplaced").to_string().contains("block 7 of"));
        assert!(check(&block, 7, 4).is_err(), "stale");
        for at in (0..block.len()).step_by(61) {
            block[at] ^= 0x10;
            assert!(check(&block, 7, 3).is_err(), "byte {at} differs");
            block[at] ^= 0x10;
        }
        check(&block, 7, 3).expect("it is whole again");
    }

    #[test]
    fn an_order_has_each_number_once_and_is_not_ascending() {
        let order = shuffled(1000, 1);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        assert_ne!(order, shuffled(1000, 2));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    }
}
