//! Fills buffers with noise, zeroes, patterns, and mixes of a given compressibility.

use crate::pattern::Pattern;
use crate::random::{GOLDEN, mix};

/// Scrambling changes a word or two in each unit of this size, as deduplication uses no smaller units.
const SCRAMBLED_BYTES: usize = 512;

/// What fills blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Zeroes.
    Zeroes,
    /// A repeated pattern.
    Pattern(Pattern),
    /// Incompressible data.
    Noise,
    /// Noise followed by compressible data in each chunk.
    Mixed(Mixed),
}

/// The parameters of [`Payload::Mixed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixed {
    /// Bytes of a chunk; zero for the whole block.
    pub chunk: usize,
    /// Percentage of compressible data.
    pub percent: usize,
    /// The compressible data; zeroes if `None`.
    pub pattern: Option<Pattern>,
}

impl Payload {
    /// Fills `bytes` to be written at `offset`; `seed` determines the noise.
    pub fn fill(&self, bytes: &mut [u8], offset: u64, seed: u64) {
        match self {
            Payload::Zeroes => bytes.fill(0),
            Payload::Pattern(pattern) => pattern.fill(bytes, offset),
            Payload::Noise => noise(bytes, seed),
            Payload::Mixed(mixed) => mixed.fill(bytes, offset, seed),
        }
    }

    /// Returns whether there is noise.
    pub fn is_noisy(&self) -> bool {
        match self {
            Payload::Noise => true,
            Payload::Mixed(mixed) => mixed.percent < 100,
            Payload::Zeroes | Payload::Pattern(_) => false,
        }
    }

    /// Returns whether the contents depend on a block's offset.
    pub fn has_offsets(&self) -> bool {
        match self {
            Payload::Pattern(pattern) | Payload::Mixed(Mixed { pattern: Some(pattern), .. }) => {
                !pattern.offsets_at.is_empty()
            }
            _ => false,
        }
    }
}

impl Mixed {
    fn fill(&self, bytes: &mut [u8], offset: u64, seed: u64) {
        let chunk = if self.chunk == 0 { bytes.len() } else { self.chunk };
        for (index, bytes) in bytes.chunks_mut(chunk.max(1)).enumerate() {
            let noisy = bytes.len() - bytes.len() * self.percent / 100;
            let (random, rest) = bytes.split_at_mut(noisy);
            noise(random, mix(seed.wrapping_add(index as u64)));
            match &self.pattern {
                Some(pattern) => pattern.fill(rest, offset),
                None => rest.fill(0),
            }
        }
    }
}

/// Fills `bytes` with pseudo-random words. Each follows from its own index, so the processor can compute
/// several at once; filling must not limit the measurement.
pub fn noise(bytes: &mut [u8], seed: u64) {
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

/// Changes one word in each 512 bytes, at a varying place, which makes all blocks distinct.
pub fn scramble(bytes: &mut [u8], seed: u64) {
    let mut word = mix(seed);
    for part in bytes.chunks_exact_mut(SCRAMBLED_BYTES) {
        word = word.wrapping_mul(GOLDEN).rotate_left(29);
        let at = (word >> 58) as usize * 8;
        part[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrambling_changes_a_word_of_each_512_bytes() {
        let (mut buffer, original) = (vec![0; 65536], vec![0; 65536]);
        scramble(&mut buffer, 1);
        let first = buffer.clone();
        let changed =
            |a: &[u8], b: &[u8]| a.chunks(8).zip(b.chunks(8)).filter(|(a, b)| a != b).count();
        for (part, before) in buffer.chunks(512).zip(original.chunks(512)) {
            assert_eq!(changed(part, before), 1);
        }
        scramble(&mut buffer, 2);
        assert!(buffer.chunks(512).zip(first.chunks(512)).all(|(a, b)| a != b));
    }
}
