//! The contents of objects, with which a get can check that it got the right one.
//!
//! Random, incompressible bytes, the same for all objects; each 4 KiB begins with the object's number and its own
//! offset. A check looks at each 4 KiB: cheap, the same for all engines, and sufficient to detect bytes of another
//! object, and shifted or missing ones. Detecting single bit flips is left to the engines; plain files do not.

/// Bytes between two stamps.
const STAMP_EVERY_BYTES: usize = 4096;
const STAMP_BYTES: usize = 16;

/// Returns `len` random bytes without stamps; `len` is a multiple of 4 KiB.
pub(crate) fn base(len: usize) -> Vec<u8> {
    let mut random = crate::chooser::Random::new(0x5eed);
    (0..len / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

fn stamp_of(object: u64, page: usize) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&object.to_le_bytes());
    stamp[8..].copy_from_slice(&(page as u64 ^ 0x6164_6974_7061_6765).to_le_bytes());
    stamp
}

/// Stamps `bytes`, which hold the base or another object, as those of `object`.
pub(crate) fn stamp(bytes: &mut [u8], object: u64) {
    for (page, bytes) in bytes.chunks_exact_mut(STAMP_EVERY_BYTES).enumerate() {
        bytes[..STAMP_BYTES].copy_from_slice(&stamp_of(object, page));
    }
}

/// Returns whether `bytes` are those of `object`, with length `len`.
pub(crate) fn is_right(bytes: &[u8], object: u64, len: usize) -> bool {
    let pages = || bytes.chunks_exact(STAMP_EVERY_BYTES).enumerate();
    bytes.len() == len
        && pages().all(|(page, bytes)| bytes[..STAMP_BYTES] == stamp_of(object, page))
}

/// Returns a hash-like key, spread over 128 bits.
pub(crate) fn key(object: u64) -> u128 {
    let high = (object + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u128::from(high) << 64 | u128::from(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_right_only_as_itself_and_whole() {
        let mut bytes = base(16384);
        stamp(&mut bytes, 7);
        assert!(is_right(&bytes, 7, 16384));
        assert!(!is_right(&bytes, 8, 16384), "another object");
        assert!(!is_right(&bytes[..12288], 7, 16384), "too short");
        bytes.rotate_left(4096);
        assert!(!is_right(&bytes, 7, 16384), "shifted");
    }

    #[test]
    fn a_page_of_zeros_is_found() {
        let mut bytes = base(16384);
        stamp(&mut bytes, 0);
        bytes[8192..12288].fill(0);
        assert!(!is_right(&bytes, 0, 16384));
    }
}
