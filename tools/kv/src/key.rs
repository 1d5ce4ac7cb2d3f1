//! Keys on a command line.
//!
//! Text stands for itself; `0x0123ab` and `hex:0123ab` are bytes. The prefix `text:` makes the rest text in any
//! case.

use adit_kvstore::Key;

/// Parses a key.
///
/// # Errors
/// A sentence, if it is not a key.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::new(&bytes(text)?).map_err(|why| why.to_string())
}

/// Parses the bytes of a key or of a prefix of keys.
///
/// # Errors
/// A sentence, if hexadecimal digits are malformed.
pub(crate) fn bytes(text: &str) -> Result<Vec<u8>, String> {
    if let Some(text) = text.strip_prefix("text:") {
        return Ok(text.as_bytes().to_vec());
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("hex:")) {
        Some(digits) => hexadecimal(digits).ok_or_else(|| {
            format!(
                "'{text}' is not a key in hexadecimal: give two digits for each byte, or write \
                 'text:{text}' if it is text"
            )
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
        key(text).expect(text).as_bytes().to_vec()
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
        assert_eq!(super::key(&format!("0x{}", hex(&key))), Ok(key));
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
            let why = key(text).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(key(&"k".repeat(513)).is_err());
        assert_eq!(bytes(""), Ok(Vec::new()));
    }
}
