//! The contents of an LBA as one number.
//!
//! Each LBA ever written is filled with words derived from a stamp that names the request which wrote it. The checker
//! therefore keeps eight bytes per LBA instead of all its data, and recognises a torn, shifted or mixed LBA as having
//! no value.

/// The contents of an LBA: 0 for all zeros, else the stamp of the write.
pub(crate) type Value = u64;

const WORD: usize = 8;
/// Increment between words: odd, so that no two words of an LBA are equal.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the value that request `tag` writes to `lba`.
pub(crate) fn stamp(tag: u64, lba: u64) -> Value {
    assert!(lba < 1 << 24, "stamps have 24 bits for the LBA");
    (tag + 1) << 24 | lba
}

pub(crate) fn fill(lba: &mut [u8], value: Value) {
    if value == 0 {
        return lba.fill(0);
    }
    let mut word = value;
    for bytes in lba.as_chunks_mut::<WORD>().0 {
        *bytes = word.to_le_bytes();
        word = word.wrapping_add(STEP);
    }
}

/// Returns the value of an LBA, or `None` if it was never written whole.
pub(crate) fn decode(lba: &[u8]) -> Option<Value> {
    let words = lba.as_chunks::<WORD>().0;
    let value = u64::from_le_bytes(*words.first()?);
    let step = if value == 0 { 0 } else { STEP };
    let mut word = value;
    for bytes in words {
        if u64::from_le_bytes(*bytes) != word {
            return None;
        }
        word = word.wrapping_add(step);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_decoded() {
        for (len, value) in [(512, 0), (512, stamp(0, 0)), (4096, stamp(77, 63))] {
            let mut lba = vec![0x5a; len];
            fill(&mut lba, value);
            assert_eq!(decode(&lba), Some(value));
        }
    }

    #[test]
    fn a_torn_or_flipped_lba_has_no_value() {
        let (mut new, mut old) = ([0; 512], [0; 512]);
        fill(&mut new, stamp(2, 5));
        fill(&mut old, stamp(1, 5));
        let mut torn = new;
        torn[256..].copy_from_slice(&old[256..]);
        assert_eq!(decode(&torn), None);
        new[511] ^= 1;
        assert_eq!(decode(&new), None);
        let mut zeros = [0; 512];
        zeros[8] = 1;
        assert_eq!(decode(&zeros), None);
    }

    #[test]
    fn stamps_differ_by_request_and_lba() {
        assert_ne!(stamp(1, 2), stamp(2, 1));
        assert_ne!(stamp(0, 0), 0);
    }
}
