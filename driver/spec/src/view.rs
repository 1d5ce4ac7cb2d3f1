//! Views of wire structures over bytes, and their text fields.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Structures that can be read in place from any bytes.
pub trait View: FromBytes + Immutable + KnownLayout + Unaligned {
    /// Views the structure at the start of `bytes`; `None` if there are too few. Ignores further bytes.
    fn view(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(view, _)| view)
    }
}

impl<T: FromBytes + Immutable + KnownLayout + Unaligned> View for T {}

/// Fixed-length ASCII field, padded with spaces or NULs (Base 1.4.2).
///
/// The bytes come from the device. `Display` trims padding and replaces all but printable ASCII, so that the text is
/// safe for terminals and logs.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct Ascii<const N: usize>(pub [u8; N]);

impl<const N: usize> Ascii<N> {
    /// Pads `text` with spaces; cuts text that is too long.
    pub fn padded(text: &str) -> Ascii<N> {
        Ascii::filled(text, b' ')
    }

    fn filled(text: &str, padding: u8) -> Ascii<N> {
        let mut bytes = [padding; N];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = printable(from);
        }
        Ascii(bytes)
    }

    fn trimmed(&self) -> &[u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        self.0[..end].trim_ascii()
    }
}

const fn printable(byte: u8) -> u8 {
    match byte {
        b' '..=b'~' => byte,
        _ => b'?',
    }
}

impl<const N: usize> fmt::Display for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.trimmed().iter().map(|&byte| char::from(printable(byte))).collect();
        f.pad(&text)
    }
}

impl<const N: usize> fmt::Debug for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn padding_is_trimmed() {
        assert_eq!(Ascii::<20>::padded("S123").to_string(), "S123");
        assert_eq!(Ascii::<4>::padded("abcdef").to_string(), "abcd");
        assert_eq!(Ascii(*b"  ab\0xyz").to_string(), "ab");
        assert_eq!(format!("{:6}|", Ascii(*b"ab  ")), "ab    |");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(Ascii(*b"a\x1b[2J\xff").to_string(), "a?[2J?");
    }

    #[test]
    fn views_need_enough_bytes() {
        assert!(<[u8; 4]>::view(&[0; 3]).is_none());
        assert_eq!(<[u8; 4]>::view(&[1, 2, 3, 4, 5]), Some(&[1, 2, 3, 4]));
    }

    proptest! {
        #[test]
        fn any_bytes_print_printably(bytes: [u8; 20]) {
            prop_assert!(Ascii(bytes).to_string().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        }
    }
}
