//! Bytes to move: they differ from place to place, so that misplaced ones are found.

/// Returns `bytes` of them.
pub(crate) fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
