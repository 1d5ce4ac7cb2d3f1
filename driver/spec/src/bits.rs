//! Bit-field helpers over raw integers; bit numbers are the specification's.

/// Returns bits `hi..=lo` of `raw`, shifted down.
pub(super) const fn bits(raw: u64, hi: u32, lo: u32) -> u64 {
    (raw >> lo) & (u64::MAX >> (63 - (hi - lo)))
}

/// Replaces bits `hi..=lo` of `raw` by the low bits of `value`.
pub(super) const fn with_bits(raw: u64, hi: u32, lo: u32, value: u64) -> u64 {
    let mask = (u64::MAX >> (63 - (hi - lo))) << lo;
    (raw & !mask) | ((value << lo) & mask)
}

/// Makes a newtype over an integer whose bits are flags, each with a getter and, if named, a setter.
macro_rules! bit_flags {
    ($(#[$doc:meta])* $type:ident($raw:ty) { $($bit:literal $getter:ident $($setter:ident)?, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $type(pub $raw);

        impl $type {$(
            #[doc = concat!($text, " (bit ", stringify!($bit), ").")]
            pub const fn $getter(self) -> bool {
                self.0 & 1 << $bit != 0
            }

            $(
                #[doc = concat!("Sets or clears [`Self::", stringify!($getter), "`].")]
                pub const fn $setter(self, set: bool) -> $type {
                    $type(if set { self.0 | 1 << $bit } else { self.0 & !(1 << $bit) })
                }
            )?
        )*}
    };
}
pub(super) use bit_flags;

/// Makes a newtype over an integer of bit fields, `HIGH:LOW getter setter: type, "what it is"`; the setter is optional.
macro_rules! bit_fields {
    ($(#[$doc:meta])* $type:ident($raw:ty) {
        $($hi:literal:$lo:literal $getter:ident $($setter:ident)?: $value:ident, $text:literal;)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $type(pub $raw);

        impl $type {$(
            #[doc = concat!($text, " (bits ", stringify!($hi), ":", stringify!($lo), ").")]
            #[inline]
            pub const fn $getter(self) -> $value {
                bit_fields!(@ $value $crate::bits::bits(self.0 as u64, $hi, $lo))
            }

            $(
                #[doc = concat!("Sets [`Self::", stringify!($getter), "`].")]
                pub const fn $setter(self, value: $value) -> $type {
                    $type($crate::bits::with_bits(self.0 as u64, $hi, $lo, value as u64) as $raw)
                }
            )?
        )+}
    };
    (@ bool $bits:expr) => { $bits != 0 };
    (@ $value:ident $bits:expr) => { $bits as $value };
}
pub(super) use bit_fields;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_reach_both_ends() {
        assert_eq!(bits(u64::MAX, 63, 0), u64::MAX);
        assert_eq!(bits(0x8000_0000_0000_0000, 63, 63), 1);
        assert_eq!(with_bits(u64::MAX, 7, 4, 0), 0xffff_ffff_ffff_ff0f);
        assert_eq!(with_bits(0, 63, 12, u64::MAX), 0xffff_ffff_ffff_f000);
    }
}
