//! Contents of objects: of each key and version its own, in every 4 KiB.

use super::ledger::Version;

/// Bytes that all contents are cut from.
const NOISE_BYTES: usize = 8 << 20;
/// Each run of this length begins with the stamp.
const STAMP_EVERY: usize = 4096;
const STAMP_BYTES: usize = 16;

/// A deterministic source of numbers (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from 0 to 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Makes and recognizes contents.
pub(super) struct Bodies(Vec<u8>);

impl Bodies {
    pub(super) fn new() -> Bodies {
        let mut random = Random::new(1);
        Bodies((0..NOISE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect())
    }

    /// Returns the contents of a version of a key.
    pub(super) fn of(&self, key: u64, version: u32, bytes: usize) -> Vec<u8> {
        let stamp = [key.to_le_bytes(), u64::from(version).to_le_bytes()].concat();
        let start = Random::new(key ^ u64::from(version) << 40).below((NOISE_BYTES - bytes) as u64)
            as usize;
        let mut body = self.0[start..start + bytes].to_vec();
        for run in body.chunks_mut(STAMP_EVERY) {
            let count = run.len().min(STAMP_BYTES);
            run[..count].copy_from_slice(&stamp[..count]);
        }
        body
    }

    /// Returns which version of `key` these contents are.
    ///
    /// # Errors
    /// A description of the fault.
    pub(super) fn version(&self, key: u64, bytes: usize, got: &[u8]) -> Result<Version, String> {
        if got.len() != bytes {
            return Err(format!("{} bytes instead of {bytes}", got.len()));
        }
        let word = |at: usize| u64::from_le_bytes(got[at..at + 8].try_into().expect("8 bytes"));
        let version = u32::try_from(word(8)).unwrap_or(0);
        let expected = self.of(key, version, bytes);
        if got == expected {
            return Ok(Some(version));
        }
        let at = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
        Err(format!("wrong bytes from {at} on: the stamp is key {}, version {}", word(0), word(8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_recognized_and_a_flipped_bit_is_found() {
        let bodies = Bodies::new();
        for bytes in [16, 5000, 2 << 20] {
            let mut body = bodies.of(7, 3, bytes);
            assert_eq!(bodies.version(7, bytes, &body), Ok(Some(3)));
            assert!(bodies.version(8, bytes, &body).is_err(), "another key's");
            assert!(bodies.version(7, bytes, &body[1..]).is_err(), "too short");
            body[bytes - 1] ^= 4;
            assert!(bodies.version(7, bytes, &body).is_err());
        }
        assert_ne!(bodies.of(7, 3, 5000), bodies.of(7, 4, 5000));
    }
}
