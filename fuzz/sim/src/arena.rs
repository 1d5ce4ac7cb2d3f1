//! Buffers of every shape, with guards between their pieces.

use adit_driver::{Buffer, Controller};

use crate::random::Random;

/// Bytes taken from the driver at a time.
const REGION_BYTES: usize = 32 << 10;
const GUARD: u8 = 0xa5;
const PAGE: u64 = 4096;
/// Maximum bytes left unused before a piece.
const GAP_MAX: u64 = 64;

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) pieces: Vec<Buffer>,
    /// The gaps between them, filled with a pattern.
    pub(crate) guards: Vec<Buffer>,
}

/// Cuts buffers from the memory of one controller at a time.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    rest: Option<Buffer>,
}

impl Arena {
    /// Releases its memory.
    pub(crate) fn clear(&mut self) {
        self.rest = None;
    }

    /// Cuts `bytes` into a buffer of one or several pieces.
    ///
    /// # Errors
    /// The driver's, if it gives no memory.
    pub(crate) fn take(
        &mut self,
        random: &mut Random,
        controller: &Controller,
        bytes: u64,
    ) -> adit_driver::Result<Memory> {
        let lens = lengths(random, bytes);
        let step = random.pick(&[1, 4, 4, 64]);
        let mut memory = Memory { pieces: Vec::with_capacity(lens.len()), guards: Vec::new() };
        for len in lens {
            self.refill(controller, len + GAP_MAX + PAGE)?;
            let rest = self.rest.as_mut().expect("refilled");
            let to_page = (PAGE - rest.iova().0 % PAGE) % PAGE;
            let lead = match random.below(3) {
                0 => to_page,
                _ => random.below(GAP_MAX / step) * step,
            };
            cut(rest, lead, len, &mut memory);
        }
        Ok(memory)
    }

    /// Returns one piece aligned to four bytes, for commands whose data is a list.
    ///
    /// # Errors
    /// As [`Arena::take`].
    pub(crate) fn take_list(
        &mut self,
        controller: &Controller,
        bytes: u64,
    ) -> adit_driver::Result<Memory> {
        self.refill(controller, bytes + PAGE)?;
        let rest = self.rest.as_mut().expect("refilled");
        let lead = (4 - rest.iova().0 % 4) % 4;
        let mut memory = Memory { pieces: Vec::new(), guards: Vec::new() };
        cut(rest, lead, bytes, &mut memory);
        Ok(memory)
    }

    fn refill(&mut self, controller: &Controller, bytes: u64) -> adit_driver::Result<()> {
        if self.rest.as_ref().is_none_or(|rest| (rest.len() as u64) < bytes) {
            self.rest = Some(controller.allocate(REGION_BYTES.max(bytes as usize))?);
        }
        Ok(())
    }
}

/// Splits off `len` bytes after a gap of `lead`, which becomes a guard.
fn cut(rest: &mut Buffer, lead: u64, len: u64, memory: &mut Memory) {
    let mut piece = rest.split_off(lead as usize);
    let after = piece.split_off(len as usize);
    let mut gap = std::mem::replace(rest, after);
    // Of a long gap, the end suffices.
    let mut guard = gap.split_off(gap.len().saturating_sub(GAP_MAX as usize));
    if !guard.is_empty() {
        guard.fill(GUARD);
        memory.guards.push(guard);
    }
    memory.pieces.push(piece);
}

/// Returns the lengths of the pieces: one, or several cut anywhere.
fn lengths(random: &mut Random, bytes: u64) -> Vec<u64> {
    let count = random.pick(&[1, 1, 1, 2, 3, 5]).min(bytes);
    let (mut lens, mut left) = (Vec::with_capacity(count as usize), bytes);
    for after in (1..count).rev() {
        let len = random.between(1, left - after);
        let len = if random.one_in(2) { len } else { len.next_multiple_of(512).min(left - after) };
        lens.push(len);
        left -= len;
    }
    lens.push(left);
    lens
}

impl Memory {
    /// Returns no memory, for requests without data.
    pub(crate) fn none() -> Memory {
        Memory { pieces: Vec::new(), guards: Vec::new() }
    }
}

pub(crate) fn guards_hold(guards: &[Buffer]) -> bool {
    guards.iter().all(|guard| guard.iter().all(|byte| *byte == GUARD))
}

/// Copies `bytes` into the pieces, in order.
pub(crate) fn scatter(pieces: &mut [Buffer], mut bytes: &[u8]) {
    for piece in pieces {
        let (now, later) = bytes.split_at(piece.len());
        piece.copy_from_slice(now);
        bytes = later;
    }
    assert!(bytes.is_empty(), "the pieces hold all of it");
}

/// Copies the pieces into `bytes`, in order.
pub(crate) fn gather(pieces: &[Buffer], bytes: &mut Vec<u8>) {
    bytes.clear();
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
}
