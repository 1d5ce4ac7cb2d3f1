//! Sizes in text: `128k`, `2G`, `65536`. Letters are powers of 1024, as everywhere in the project.

use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

const LETTERS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("'{text}' is no size: write a number of bytes, or 128k, 512M, 2G");
        let lower = text.to_ascii_lowercase();
        let letter = LETTERS.iter().find(|(letter, _)| lower.ends_with(*letter));
        let (digits, shift) = match letter {
            Some((letter, shift)) => (lower.strip_suffix(*letter).unwrap_or_default(), *shift),
            None => (lower.as_str(), 0),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).map(Size).ok_or_else(wrong)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |shift: &u32| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match LETTERS.iter().rev().find(|(_, shift)| whole(shift)) {
            Some((letter, shift)) => {
                write!(f, "{} {}iB", self.0 >> shift, letter.to_ascii_uppercase())
            }
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_powers_of_1024_in_either_case() {
        for (text, bytes) in [("4096", 4096), ("128k", 131_072), ("2G", 2 << 30), ("1t", 1 << 40)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_and_the_message_says_what_is() {
        for text in ["", "k", "0", "1.5G", "99999999999999999999", "99999999t", "2kk"] {
            let why = text.parse::<Size>().expect_err(text);
            assert!(why.contains("128k"), "{why}");
        }
    }

    #[test]
    fn a_size_is_told_in_the_largest_unit_that_is_exact() {
        let told: Vec<String> =
            [131_072, 2 << 30, 1000, 3 << 20].map(|bytes| Size(bytes).to_string()).to_vec();
        assert_eq!(told, ["128 KiB", "2 GiB", "1000 bytes", "3 MiB"]);
    }
}
