//! Patterns of bytes that fill blocks, in fio's syntax: numbers, strings, files and `%o`.

use std::fs;
use std::io::Read;
use std::str::FromStr;

/// Maximum length of a pattern, as in fio.
const BYTES_MAX: usize = 1 << 20;

/// Bytes of an offset (`%o`).
const OFFSET_BYTES: usize = 8;

/// A pattern, or why it is refused.
type Parsed<T> = Result<T, String>;

/// Repeated bytes, some of them filled in for each block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// The bytes; at least one.
    pub bytes: Vec<u8>,
    /// Positions of the block's offset (`%o`): 8 bytes, little-endian.
    pub offsets_at: Vec<usize>,
}

impl FromStr for Pattern {
    type Err = String;

    /// Parses a pattern: elements one after the other, without blanks. An element is `0x` and hexadecimal digits,
    /// of even or odd number; a decimal number, which takes as many bytes as it needs, lowest first, or four if
    /// negative; a `"string"`; a `'file'`, which stands for its content; or `%o`.
    ///
    /// # Errors
    /// A sentence, also if a file cannot be read.
    fn from_str(text: &str) -> Parsed<Pattern> {
        let (mut pattern, mut rest) = (Pattern::default(), text);
        while !rest.is_empty() {
            rest = element(rest, &mut pattern).map_err(|why| format!("{why} in '{text}'"))?;
            if pattern.bytes.len() > BYTES_MAX {
                return Err(format!("a pattern has at most {BYTES_MAX} bytes; shorten it"));
            }
        }
        if pattern.bytes.is_empty() {
            return Err(format!(
                "'{text}' is no pattern; write it as in 0xdeadbeef, \"abcd\" or 12"
            ));
        }
        Ok(pattern)
    }
}

impl Pattern {
    /// Fills `bytes` with repetitions, inserting `offset`.
    pub fn fill(&self, bytes: &mut [u8], offset: u64) {
        let offset = offset.to_le_bytes();
        for part in bytes.chunks_mut(self.bytes.len()) {
            part.copy_from_slice(&self.bytes[..part.len()]);
            for at in &self.offsets_at {
                // The last repetition may be truncated.
                let end = part.len().min(at + OFFSET_BYTES);
                if let Some(place) = part.get_mut(*at..end) {
                    place.copy_from_slice(&offset[..end - at]);
                }
            }
        }
    }

    /// Returns the index of the first byte that differs from what [`fill`](Pattern::fill) writes, and the expected
    /// byte.
    pub fn first_difference(&self, bytes: &[u8], offset: u64) -> Option<(usize, u8)> {
        let offset = offset.to_le_bytes();
        let expected = |i: usize| {
            let covers = |at: &&usize| (**at..**at + OFFSET_BYTES).contains(&i);
            self.offsets_at.iter().rfind(covers).map_or(self.bytes[i], |at| offset[i - at])
        };
        let len = self.bytes.len();
        let differs = |part: &[u8]| match self.offsets_at[..] {
            [] => *part != self.bytes[..part.len()],
            _ => part.iter().enumerate().any(|(i, byte)| *byte != expected(i)),
        };
        let start = bytes.chunks(len).position(differs)? * len;
        let within =
            bytes[start..].iter().enumerate().position(|(i, byte)| *byte != expected(i))?;
        Some((start + within, expected(within)))
    }
}

/// Parses one element from the front of `text` and returns the rest.
fn element<'a>(text: &'a str, pattern: &mut Pattern) -> Parsed<&'a str> {
    if let Some(rest) = text.strip_prefix("%o") {
        pattern.offsets_at.push(pattern.bytes.len());
        pattern.bytes.extend([0; OFFSET_BYTES]);
        return Ok(rest);
    }
    if let Some(rest) = text.strip_prefix('"') {
        let (string, rest) = rest.split_once('"').ok_or("a '\"' is not closed")?;
        pattern.bytes.extend(string.bytes());
        return Ok(rest);
    }
    if let Some(rest) = text.strip_prefix('\'') {
        let (file, rest) = rest.split_once('\'').ok_or("a \"'\" is not closed")?;
        pattern.bytes.extend(content(file)?);
        return Ok(rest);
    }
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => hexadecimal(digits, pattern),
        None => decimal(text, pattern),
    }
}

fn hexadecimal<'a>(text: &'a str, pattern: &mut Pattern) -> Parsed<&'a str> {
    let (digits, rest) = text.split_at(number_len(text, |digit| digit.is_ascii_hexdigit()));
    if digits.is_empty() {
        return Err("there are no digits after 0x".to_owned());
    }
    let even = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits.to_owned() };
    let pairs = (0..even.len()).step_by(2).map(|at| u8::from_str_radix(&even[at..at + 2], 16));
    pattern.bytes.extend(pairs.map(|pair| pair.expect("two hexadecimal digits")));
    Ok(rest)
}

fn decimal<'a>(text: &'a str, pattern: &mut Pattern) -> Parsed<&'a str> {
    let text = text.trim_ascii_start();
    let digits_at = usize::from(text.starts_with(['-', '+']));
    let len = number_len(&text[digits_at..], |digit| digit.is_ascii_digit());
    let (number, rest) = text.split_at(digits_at + len);
    let value: i32 = number.parse().map_err(|_| {
        format!("'{text}' is neither a number of 32 bits nor 0x…, \"…\", '…' or %o")
    })?;
    let bytes = value.to_le_bytes();
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
    pattern.bytes.extend(&bytes[..used]);
    Ok(rest)
}

/// How many digits begin `text`, without a last `0` that belongs to the `0x` of the next number.
fn number_len(text: &str, is_digit: impl Fn(char) -> bool) -> usize {
    let len = text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let (digits, rest) = text.split_at(len);
    len - usize::from(digits.ends_with('0') && rest.starts_with(['x', 'X']))
}

fn content(file: &str) -> Parsed<Vec<u8>> {
    let mut bytes = Vec::new();
    let opened = fs::File::open(file);
    let read = opened.and_then(|opened| opened.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|why| format!("{file}: {why}"))?;
    if bytes.is_empty() { Err(format!("{file} is empty")) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> Vec<u8> {
        text.parse::<Pattern>().expect(text).bytes
    }

    /// Expected values come from fio 3.33.
    #[test]
    fn patterns_are_those_of_fio() {
        assert_eq!(bytes("0xdeadbeef"), [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(bytes("0xabc"), [0x0a, 0xbc]);
        assert_eq!(bytes("\"abcd\"-12"), *b"abcd\xf4\xff\xff\xff");
        assert_eq!(bytes("12"), [12]);
        assert_eq!(bytes("256"), [0, 1]);
        assert_eq!(bytes("65536"), [0, 0, 1]);
        assert_eq!(bytes("0xff\"ab\"7"), *b"\xffab\x07");
        assert_eq!(bytes("010"), [10]);
        assert_eq!(bytes("0"), [0]);
        assert_eq!(bytes("\"abcd\"-120xdeadface"), *b"abcd\xf4\xff\xff\xff\xde\xad\xfa\xce");
        assert_eq!(bytes("-100xab\"1\"\"2\""), *b"\xf6\xff\xff\xff\xab12");
        assert_eq!(bytes("0xFF0X1"), [0xff, 1]);
        assert_eq!(bytes("0xff00x14"), [0x0f, 0xf0, 0x14]);
        assert_eq!(bytes("00x12"), [0, 0x12]);
        assert_eq!(bytes("-00x12"), [0, 0x12]);
        assert_eq!(bytes("\"a\\n\""), *b"a\\n");
        assert_eq!(bytes("\"a\" +12-1"), *b"a\x0c\xff\xff\xff\xff");
        assert_eq!(bytes("-2147483648"), [0, 0, 0, 0x80]);
    }

    #[test]
    fn an_offset_is_left_open() {
        let pattern: Pattern = "0xff%o\"ab\"%o".parse().expect("a pattern");
        assert_eq!((pattern.bytes.len(), pattern.offsets_at), (19, vec![1, 11]));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let texts = [
            "",
            "abc",
            "0x",
            "0x0x14",
            "-0x12",
            "0xffz",
            "4294967295",
            "-2147483649",
            "\"ab",
            "\"a\"b\"",
            "\"a\" 0x12",
            "\"a\" \"b\"",
            "12 ",
            "'ab",
            "%p",
            "''",
            "\"\"",
            "-",
        ];
        for text in texts {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        assert!(
            "'/nonexistent/file'"
                .parse::<Pattern>()
                .expect_err("no file")
                .contains("/nonexistent/file")
        );
    }

    #[test]
    fn the_first_byte_that_is_not_the_pattern_is_found() {
        for (bytes, offsets_at) in [(&b"x01234567y"[..], &[1][..]), (b"abc", &[])] {
            let pattern = Pattern { bytes: bytes.to_vec(), offsets_at: offsets_at.to_vec() };
            let mut bytes = vec![0; 23];
            pattern.fill(&mut bytes, 0x1122);
            assert_eq!(pattern.first_difference(&bytes, 0x1122), None);
            for at in (0..23).rev() {
                let expected = bytes[at];
                bytes[at] ^= 1;
                assert_eq!(pattern.first_difference(&bytes, 0x1122), Some((at, expected)));
            }
        }
    }

    #[test]
    fn a_file_stands_for_its_content() {
        let file = std::env::temp_dir().join(format!("adit-pattern-{}", std::process::id()));
        fs::write(&file, b"hello").expect("writable");
        let parsed = format!("'{}'1", file.display()).parse::<Pattern>();
        let _ = fs::remove_file(&file);
        assert_eq!(parsed.expect("a pattern").bytes, *b"hello\x01");
    }

    /// One element: how it is written, its bytes and whether they are an offset's.
    type Element = (String, Vec<u8>, bool);

    fn elements() -> impl Strategy<Value = Element> {
        let hexadecimal = (prop::collection::vec(any::<u8>(), 1..24), any::<bool>());
        let hexadecimal = hexadecimal.prop_map(|(bytes, is_upper)| {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let text = if is_upper {
                format!("0X{}", digits.to_uppercase())
            } else {
                format!("0x{digits}")
            };
            (text, bytes, false)
        });
        let decimal = any::<i32>().prop_map(|value| {
            // All four bytes, but for those on top that are zero: a zero itself has one.
            let used = (4 - value.leading_zeros() as usize / 8).max(1);
            (format!("{value:+}"), value.to_le_bytes()[..used].to_vec(), false)
        });
        let string = r#"[^"]{1,12}"#;
        let string = string.prop_map(|text| (format!("\"{text}\""), text.into_bytes(), false));
        let offset = Just(("%o".to_owned(), vec![0; OFFSET_BYTES], true));
        prop_oneof![hexadecimal, decimal, string, offset]
    }

    proptest! {
        /// Whatever stands beside it, an element means the same.
        #[test]
        fn a_pattern_is_its_elements_in_a_row(elements in prop::collection::vec(elements(), 1..8)) {
            let text: String = elements.iter().map(|(text, ..)| &**text).collect();
            let (mut bytes, mut offsets_at) = (Vec::new(), Vec::new());
            for (_, its, is_offset) in &elements {
                offsets_at.extend(is_offset.then_some(bytes.len()));
                bytes.extend(its);
            }
            let parsed = text.parse::<Pattern>();
            prop_assert_eq!(parsed, Ok(Pattern { bytes, offsets_at }), "{}", text);
        }

        #[test]
        fn no_text_panics(text in "([0-9a-fxX\"%o +-]|é){0,20}") {
            let _ = text.parse::<Pattern>();
        }
    }
}
