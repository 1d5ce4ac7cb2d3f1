//! The names of objects.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

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

/// Hashes the keys of one store: SipHash-1-3 keyed by the store's id. One hash routes a key to its shard and finds it in
/// the shard's index.
///
/// The id is random and only on the store's devices, so an attacker who chooses keys but cannot read the devices cannot
/// make them collide.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    store_id: [u8; 16],
}

impl KeyHasher {
    /// Creates the hasher of the store with this id.
    pub fn new(store_id: [u8; 16]) -> KeyHasher {
        KeyHasher { store_id }
    }

    /// Returns the hash of a key. Its low half selects the shard, so its high half, by which an index places an object,
    /// is spread evenly over the keys of each shard.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.store_id);
        hasher.write(key);
        hasher.finish().rotate_left(32)
    }

    /// Returns which of `shards` shards owns the key with this hash. This must never change, because it decides where
    /// the objects of existing stores lie.
    #[inline]
    pub fn shard(hash: u64, shards: u16) -> u16 {
        ((u128::from(hash.rotate_right(32)) * u128::from(shards)) >> 64) as u16
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
    /// Writes a key of printable ASCII as it is, any other as `hex:` with two digits for each byte, as `adit kv` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.as_bytes();
        match str::from_utf8(bytes) {
            Ok(text) if bytes.iter().all(|byte| matches!(byte, 0x20..0x7f)) => {
                write!(f, "Key({text})")
            }
            _ => {
                f.write_str("Key(hex:")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str(")")
            }
        }
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
    fn a_hash_routes_as_on_existing_media_and_spreads_the_keys_of_each_shard() {
        const SHARDS: u16 = 4;
        let hasher = KeyHasher::new([7; 16]);
        let mut counts = [[0u32; 8]; SHARDS as usize];
        for number in 0..32_000u64 {
            let key = Key::from(number);
            let mut media = SipHasher13::new_with_key(&[7; 16]);
            media.write(key.as_bytes());
            let shard = (u128::from(media.finish()) * u128::from(SHARDS)) >> 64;
            let hash = hasher.hash(key.as_bytes());
            assert_eq!(u128::from(KeyHasher::shard(hash, SHARDS)), shard);
            counts[shard as usize][(hash >> 61) as usize] += 1;
        }
        assert!(
            counts.as_flattened().iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn keys_print_so_that_each_byte_can_be_told() {
        let key = Key::new(b"a\\b\x00\xff").expect("a key");
        assert_eq!(key.to_string(), "a\\\\b\\x00\\xff");
        assert_ne!(Key::new(b"a").expect("a key"), Key::new(b"a\0").expect("a key"));
    }

    #[test]
    fn a_key_is_debugged_as_text_or_in_hexadecimal() {
        assert_eq!(
            format!("{:?}", Key::new(b"model/block 17").expect("a key")),
            "Key(model/block 17)"
        );
        assert_eq!(format!("{:?}", Key::new(b"a\xff\x00").expect("a key")), "Key(hex:61ff00)");
        assert_eq!(format!("{:?}", Key::from(17u64)), "Key(hex:0000000000000011)");
    }
}
