//! Checksums: CRC-32C (Castagnoli, as in RFC 3720), with the CPU's instructions where available.
//!
//! A checksum detects bit flips, and torn and misplaced data. It does not protect against an attacker who writes to
//! the device.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Computes the checksum of `bytes`.
#[inline]
pub fn of(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A checksum computed in parts.
#[derive(Clone, Copy, Debug)]
pub struct Running(Digest);

impl Default for Running {
    fn default() -> Running {
        Running(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Running {
    /// Creates the checksum of no bytes.
    pub fn new() -> Running {
        Running::default()
    }

    /// Adds the next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes added.
    #[inline]
    pub fn finish(&self) -> u32 {
        u32::try_from(self.0.finalize()).expect("a CRC-32C has 32 bits")
    }
}

/// Computes the CRC-64 of the NVM Express specifications, which seals blocks.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// Computes one checksum of checksums, the same CRC-64. It detects any difference in two adjacent ones.
pub fn of_sums(sums: &[u32]) -> u64 {
    let mut running = Digest::new(CrcAlgorithm::Crc64Nvme);
    sums.iter().for_each(|sum| running.update(&sum.to_le_bytes()));
    running.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the checksum bit by bit from the polynomial.
    fn slowly(bytes: &[u8]) -> u32 {
        let divide = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| divide(crc));
        !bytes.iter().fold(!0, byte)
    }

    #[test]
    fn the_vectors_of_rfc_3720_hold() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(of(&up), 0x46dd_794e);
        assert_eq!(of(&down), 0x113f_db5c);
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(of(&[]), 0);
    }

    #[test]
    fn the_seal_is_the_published_checksum() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
    }

    proptest! {
        #[test]
        fn parts_make_the_checksum_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..3000), at in any::<prop::sample::Index>()
        ) {
            let (first, second) = bytes.split_at(at.index(bytes.len() + 1));
            let mut running = Running::new();
            running.update(first);
            running.update(second);
            prop_assert_eq!(of(&bytes), slowly(&bytes));
            prop_assert_eq!(running.finish(), of(&bytes));
        }
    }
}
