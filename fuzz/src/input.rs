//! The fuzzer's bytes as two streams of choices.
//!
//! One stream is read from the front and one from the back, so that changing the user's actions leaves the device's
//! unchanged, and vice versa. Once they meet, both return zeros forever. Zero is always the honest or the smallest
//! choice, so that a run ends.

/// An input, read from both ends.
#[derive(Clone, Debug)]
pub struct Input {
    bytes: Vec<u8>,
    front: usize,
    back: usize,
}

impl Input {
    /// Creates both streams of `data`.
    pub fn new(data: &[u8]) -> Input {
        Input { bytes: data.to_vec(), front: 0, back: data.len() }
    }

    /// Returns whether all bytes are used.
    pub fn is_spent(&self) -> bool {
        self.front >= self.back
    }

    /// Returns the next byte from the front.
    pub fn byte(&mut self) -> u8 {
        if self.is_spent() {
            return 0;
        }
        self.front += 1;
        self.bytes[self.front - 1]
    }

    /// Returns the next byte from the back.
    pub fn back_byte(&mut self) -> u8 {
        if self.is_spent() {
            return 0;
        }
        self.back -= 1;
        self.bytes[self.back]
    }

    /// Returns a number from the front of up to `bytes` bytes, little-endian.
    pub fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, at| number | u64::from(self.byte()) << (8 * at))
    }

    /// Returns a number from the back of up to `bytes` bytes, little-endian.
    pub fn back_number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, at| number | u64::from(self.back_byte()) << (8 * at))
    }

    /// Returns one of `choices`, chosen from the front.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Returns one of `choices`, chosen from the back.
    pub fn back_pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.back_byte()) % choices.len()]
    }

    /// Returns a number from the front that is often an edge case.
    pub fn edgy(&mut self) -> u64 {
        edgy(|bytes| self.number(bytes))
    }

    /// Returns a number from the back that is often an edge case.
    pub fn back_edgy(&mut self) -> u64 {
        edgy(|bytes| self.back_number(bytes))
    }
}

fn edgy(mut number: impl FnMut(usize) -> u64) -> u64 {
    match number(1) {
        kind @ 0..64 => kind,
        kind @ 64..128 => 1 << (kind % 64),
        kind @ 128..192 => (1u64 << (kind % 64)).wrapping_sub(1),
        kind @ 192..208 => !(kind - 192),
        kind => number((kind % 8) as usize + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_meet_and_then_give_zeros() {
        let mut input = Input::new(&[1, 2, 3, 4]);
        assert_eq!((input.byte(), input.back_byte()), (1, 4));
        assert_eq!(input.number(4), 0x0302);
        assert!(input.is_spent());
        assert_eq!((input.byte(), input.back_byte(), input.edgy()), (0, 0, 0));
    }

    #[test]
    fn edges_are_reached() {
        let edge = |bytes: &[u8]| Input::new(bytes).edgy();
        assert_eq!(edge(&[127]), 1 << 63);
        assert_eq!(edge(&[192]), u64::MAX);
        assert_eq!(edge(&[128 + 16]), 0xffff);
        assert_eq!(edge(&[209, 0x34, 0x12]), 0x1234);
    }
}
