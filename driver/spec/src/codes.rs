//! One-byte codes that the specification names: opcodes, features, log pages.

/// Makes a newtype over a byte with a constant for each code, `name()` and `Display` from one table; `$kind` is what
/// an unnamed code is called.
macro_rules! named_codes {
    ($(#[$doc:meta])* $type:ident, $kind:literal { $($constant:ident = $value:literal, $name:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(pub u8);

        impl $type {
            $(
                #[doc = concat!($name, " (", stringify!($value), ").")]
                pub const $constant: $type = $type($value);
            )+

            /// Returns the specification's name, or `None` for an undefined code.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($name),)+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($kind, " {:02X}h"), self.0),
                }
            }
        }
    };
}
pub(super) use named_codes;
