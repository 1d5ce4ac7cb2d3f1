//! Keys on a command line.
//!
//! Text stands for itself; `0x0123ab` and `hex:0123ab` are bytes. The prefix `text:` makes the rest text in any
//! case.

use std::fmt;
use std::str::FromStr;

use adit_kvstore::Key;

/// A key from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyArg(pub(crate) Key);

/// An invalid key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct KeyError(String);

impl FromStr for KeyArg {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<KeyArg, KeyError> {
        key(&bytes(text)?).map(KeyArg)
    }
}

impl fmt::Display for KeyArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A prefix of keys, which may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixArg(pub(crate) Vec<u8>);

impl FromStr for PrefixArg {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PrefixArg, KeyError> {
        bytes(text).map(PrefixArg)
    }
}

fn key(bytes: &[u8]) -> Result<Key, KeyError> {
    Key::new(bytes).map_err(|why| KeyError(why.to_string()))
}

/// Parses `text` as bytes.
fn bytes(text: &str) -> Result<Vec<u8>, KeyError> {
    if let Some(text) = text.strip_prefix("text:") {
        return Ok(text.as_bytes().to_vec());
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("hex:")) {
        Some(digits) => hexadecimal(digits).ok_or_else(|| {
            KeyError(format!(
                "'{text}' is not a key in hexadecimal: give two digits for each byte, or write \
                 'text:{text}' if it is text"
            ))
        }),
        None => Ok(text.as_bytes().to_vec()),
    }
}

fn hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => Some(nibble(high)? << 4 | nibble(low)?),
            _ => None,
        })
        .collect()
}

/// Returns all bytes of a key in hexadecimal.
pub(crate) fn hex(key: &Key) -> String {
    key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<u8> {
        text.parse::<KeyArg>().expect(text).0.as_bytes().to_vec()
    }

    #[test]
    fn text_is_itself_and_hexadecimal_is_bytes() {
        assert_eq!(parsed("a/b"), b"a/b");
        assert_eq!(parsed("0x00ffA1"), [0, 0xff, 0xa1]);
        assert_eq!(parsed("hex:0a"), [0x0a]);
        assert_eq!(parsed("text:0x00"), b"0x00");
        assert_eq!(parsed("text:hex:"), b"hex:");
    }

    #[test]
    fn what_prints_in_hexadecimal_parses_to_the_same() {
        let key = Key::new(&[0, 1, 0xfe]).expect("a key");
        assert_eq!(hex(&key), "0001fe");
        assert_eq!(format!("0x{}", hex(&key)).parse(), Ok(KeyArg(key)));
    }

    #[test]
    fn what_is_no_key_is_refused_with_what_to_do() {
        for (text, part) in [
            ("", "0 bytes"),
            ("0x", "0 bytes"),
            ("0x1", "two digits"),
            ("0xgg", "text:0xgg"),
            ("hex:é", "two digits"),
        ] {
            let why = text.parse::<KeyArg>().expect_err(text).to_string();
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!("k".repeat(513).parse::<KeyArg>().is_err());
        assert_eq!("".parse(), Ok(PrefixArg(Vec::new())));
    }
}
