//! Timestamp feature (FID 0Eh, Base 5.27.1.11): 8 bytes of data, not a dword.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Timestamp data structure (Base 5.27.1.11).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Timestamp {
    /// Milliseconds since 1970-01-01 00:00 UTC, or since the last reset.
    pub timestamp_ms: [u8; 6],
    /// Bit 0 Synch, bits 3:1 Timestamp Origin.
    pub attributes: u8,
    reserved7: u8,
}

const _: () = assert!(size_of::<Timestamp>() == 8);

impl Timestamp {
    /// Builds a value for Set Features from milliseconds since 1970; `None` if they need more than 48 bits.
    pub const fn new(ms: u64) -> Option<Timestamp> {
        let [m0, m1, m2, m3, m4, m5, 0, 0] = ms.to_le_bytes() else {
            return None;
        };
        Some(Timestamp { timestamp_ms: [m0, m1, m2, m3, m4, m5], attributes: 0, reserved7: 0 })
    }

    /// Milliseconds.
    pub const fn ms(&self) -> u64 {
        let [m0, m1, m2, m3, m4, m5] = self.timestamp_ms;
        u64::from_le_bytes([m0, m1, m2, m3, m4, m5, 0, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_48_bits_fit() {
        assert_eq!(Timestamp::new(1 << 48), None);
        let timestamp = Timestamp::new(0x0605_0403_0201).unwrap();
        assert_eq!(timestamp.as_bytes(), [1, 2, 3, 4, 5, 6, 0, 0]);
    }

    proptest! {
        #[test]
        fn milliseconds_round_trip(ms in 0u64..1 << 48) {
            prop_assert_eq!(Timestamp::new(ms).map(|timestamp| timestamp.ms()), Some(ms));
        }
    }
}
