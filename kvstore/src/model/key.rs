//! The names of objects.

use std::fmt;

use crate::error::{Error, Result};

/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longer keys are on the heap.
const SHORT: usize = 32;

/// The name of an object: any 1 to 512 bytes. The full key is an object's identity; it is never reduced to a hash.
///
/// Keys of up to 32 bytes, such as hashes, are stored inline.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Form);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

impl Key {
    /// Creates a key of these bytes.
    ///
    /// # Errors
    /// [`Error::Key`] if there are none, or more than 512.
    pub fn new(bytes: &[u8]) -> Result<Key> {
        if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
            return Err(Error::Key { bytes: bytes.len() });
        }
        if bytes.len() > SHORT {
            return Ok(Key(Form::Long(bytes.into())));
        }
        let mut short = [0; SHORT];
        short[..bytes.len()].copy_from_slice(bytes);
        Ok(Key(Form::Short { len: bytes.len() as u8, bytes: short }))
    }

    /// Returns its bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Short { len, bytes } => &bytes[..usize::from(*len)],
            Form::Long(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl TryFrom<&[u8]> for Key {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Key> {
        Key::new(bytes)
    }
}

impl TryFrom<&str> for Key {
    type Error = Error;

    fn try_from(text: &str) -> Result<Key> {
        Key::new(text.as_bytes())
    }
}

/// Creates a key from an 8-byte hash, such as a block hash.
impl From<u64> for Key {
    fn from(hash: u64) -> Key {
        Key::new(&hash.to_be_bytes()).expect("eight bytes are a key")
    }
}

/// Creates a key from a 16-byte hash.
impl From<u128> for Key {
    fn from(hash: u128) -> Key {
        Key::new(&hash.to_be_bytes()).expect("sixteen bytes are a key")
    }
}

impl fmt::Display for Key {
    /// Writes printable ASCII as it is, any other byte as `\x1f`, and a backslash as `\\`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_bytes() {
            match byte {
                b'\\' => f.write_str("\\\\")?,
                0x20..0x7f => write!(f, "{}", char::from(*byte))?,
                other => write!(f, "\\x{other:02x}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_keep_their_bytes() {
        for len in 1..=KEY_BYTES_MAX {
            let bytes = vec![0xa5; len];
            assert_eq!(Key::new(&bytes).expect("a key").as_bytes(), bytes);
        }
    }

    #[test]
    fn no_bytes_and_too_many_are_no_key() {
        for len in [0, KEY_BYTES_MAX + 1] {
            let refused = Key::new(&vec![1; len]).expect_err("no key");
            assert!(matches!(refused, Error::Key { bytes } if bytes == len), "{refused}");
            assert!(
                refused.to_string().contains(&format!("use 1 to {KEY_BYTES_MAX}")),
                "{refused}"
            );
        }
    }

    #[test]
    fn keys_print_so_that_each_byte_can_be_told() {
        let key = Key::new(b"a\\b\x00\xff").expect("a key");
        assert_eq!(key.to_string(), "a\\\\b\\x00\\xff");
        assert_ne!(Key::new(b"a").expect("a key"), Key::new(b"a\0").expect("a key"));
    }
}
