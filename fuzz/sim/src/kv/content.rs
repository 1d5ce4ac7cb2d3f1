//! The contents of objects: bytes derived from the version, so that each can be checked and none needs storing.

const WORD: usize = 8;
/// Increment between words: odd, so that no two words of an object are equal.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fills `bytes` with the contents of a version at `offset`, a multiple of 8.
pub(crate) fn fill(bytes: &mut [u8], seed: u64, offset: u64) {
    let mut word = first(seed, offset);
    let mut words = bytes.chunks_exact_mut(WORD);
    for into in &mut words {
        into.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
}

/// Returns the first of `bytes` that differs from the version's contents at `offset`.
pub(crate) fn difference(bytes: &[u8], seed: u64, offset: u64) -> Option<usize> {
    let mut word = first(seed, offset);
    let words = bytes.chunks_exact(WORD);
    let rest = words.remainder();
    for (index, found) in words.enumerate() {
        let found = found.try_into().map(u64::from_le_bytes).expect("a word has 8 bytes");
        if found != word {
            // The least significant byte comes first.
            return Some(index * WORD + (found ^ word).trailing_zeros() as usize / 8);
        }
        word = word.wrapping_add(STEP);
    }
    let at = rest.iter().zip(word.to_le_bytes()).position(|(found, expected)| *found != expected);
    at.map(|at| bytes.len() - rest.len() + at)
}

fn first(seed: u64, offset: u64) -> u64 {
    assert!(offset.is_multiple_of(WORD as u64), "parts begin at whole words");
    let mut mixed = seed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed.wrapping_add(STEP.wrapping_mul(offset / WORD as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_the_same_in_parts_and_unlike_any_other() {
        let mut bytes = vec![0; 1003];
        fill(&mut bytes, 7, 0);
        assert_eq!(difference(&bytes, 7, 0), None);
        assert_eq!(difference(&bytes[128..777], 7, 128), None);
        assert!(difference(&bytes, 8, 0).is_some_and(|at| at < 8));
        assert!(difference(&bytes[8..], 7, 0).is_some());
        bytes[1002] ^= 1;
        assert_eq!(difference(&bytes, 7, 0), Some(1002));
    }
}
