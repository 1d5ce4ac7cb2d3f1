//! Checksums of written tokens, kept in memory.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::shape::TensorId;

/// Checksums by token, so that a read verifies all its bytes, however the tokens were grouped in writes.
#[derive(Debug)]
pub(crate) struct Checksums {
    unit_bytes: usize,
    /// Checksums of each tensor by token; `None` for tokens never written.
    tokens: HashMap<TensorId, Vec<Option<u32>>>,
}

impl Checksums {
    /// Creates an empty set for tokens of `unit_bytes` each in a tensor.
    pub(crate) fn new(unit_bytes: u64) -> Checksums {
        let unit_bytes = usize::try_from(unit_bytes).expect("a token fits into memory");
        Checksums { unit_bytes, tokens: HashMap::new() }
    }

    /// Keeps the checksums of the tokens written from byte `at` on.
    pub(crate) fn keep(&mut self, tensor: TensorId, at: u64, bytes: &[u8]) {
        let (unit, at) = (self.unit_bytes, at as usize);
        assert!(at.is_multiple_of(unit) && bytes.len().is_multiple_of(unit), "whole tokens");
        let (first, end) = (at / unit, (at + bytes.len()) / unit);
        let kept = self.tokens.entry(tensor).or_default();
        kept.resize(kept.len().max(end), None);
        for (slot, token) in kept[first..].iter_mut().zip(bytes.chunks_exact(unit)) {
            *slot = Some(crc_fast::crc32_iscsi(token));
        }
    }

    /// Verifies the tokens read from byte `at` on.
    pub(crate) fn verify(&self, tensor: TensorId, at: u64, bytes: &[u8]) -> Result<()> {
        let first = at as usize / self.unit_bytes;
        let kept = self.tokens.get(&tensor).and_then(|kept| kept.get(first..)).unwrap_or_default();
        let tokens = (first..).zip(bytes.chunks_exact(self.unit_bytes).zip(kept));
        for (index, (token, expected)) in tokens {
            if expected.is_some_and(|expected| crc_fast::crc32_iscsi(token) != expected) {
                let why = format!("the bytes of token {index} are not those that were written");
                let fix = "check the drive, and recompute the tensors";
                return Err(Error::failed(tensor, "verify it", why, fix));
            }
        }
        Ok(())
    }
}
