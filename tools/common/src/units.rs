//! Parses sizes and times in fio's syntax.
//!
//! Sizes: `k`, `m`, `g`, `t`, `p` in either case, with or without `b` or `ib`, are powers of 1024 (fio's
//! `kb_base=1024`); `0x` starts a hexadecimal number. Times are in seconds unless they end in `us`, `ms`, `s`,
//! `m`, `h` or `d`.
//!
//! One deviation: fio reads `4kib` as 4000 bytes; here it is 4096, as everywhere else.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes, or a percentage of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Percent of the namespace.
    Percent(u8),
}

impl Default for Size {
    fn default() -> Size {
        Size::Bytes(0)
    }
}

impl Size {
    /// Returns the number of bytes, out of `whole`.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => (u128::from(whole) * u128::from(percent) / 100) as u64,
        }
    }
}

/// An invalid size or time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Size, UnitError> {
        let Some(number) = text.strip_suffix('%') else {
            return bytes(text).map(Size::Bytes);
        };
        let percent = number.parse().ok().filter(|percent| (1..=100).contains(percent));
        percent
            .map(Size::Percent)
            .ok_or_else(|| UnitError(format!("'{text}' is not a share from 1% to 100%")))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(bytes) => write!(f, "{bytes}"),
            Size::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Parses a positive number of bytes, for clap.
pub fn block_bytes(text: &str) -> Result<u64, UnitError> {
    match bytes(text)? {
        0 => Err(UnitError("a block has at least one byte".to_owned())),
        bytes => Ok(bytes),
    }
}

/// Parses a number, for clap.
pub fn count(text: &str) -> Result<u64, UnitError> {
    text.parse().map_err(|_| UnitError(format!("'{text}' is not a number such as 512")))
}

/// The meaning of `k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KbBase {
    /// `k` and `ki` are 1024.
    #[default]
    Binary,
    /// `k` is 1000 and `ki` is 1024 (`kb_base=1000`).
    Decimal,
}

/// Parses a number of bytes.
pub fn bytes(text: &str) -> Result<u64, UnitError> {
    bytes_in(text, KbBase::Binary)
}

/// Parses a number of bytes, with `base` as the meaning of `k`.
pub fn bytes_in(text: &str, base: KbBase) -> Result<u64, UnitError> {
    let refused = || UnitError(format!("'{text}' is not a size such as 4096, 4k, 1m or 10g"));
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map_err(|_| refused());
    }
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = split_number(&lower);
    let unit = byte_unit(unit, base).ok_or_else(refused)?;
    digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(refused)
}

/// Returns the bytes of a lower-case unit; `None` for an unknown unit.
pub fn byte_unit(unit: &str, base: KbBase) -> Option<u64> {
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let prefix = unit.strip_suffix('b').unwrap_or(unit);
    let (prefix, is_binary) = match prefix.strip_suffix('i') {
        Some(prefix) => (prefix, true),
        None => (prefix, base == KbBase::Binary),
    };
    let power = ["k", "m", "g", "t", "p"].iter().position(|name| *name == prefix)? as u32 + 1;
    Some(if is_binary { 1024u64.pow(power) } else { 1000u64.pow(power) })
}

/// Parses a positive time.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    let time = time(text, Duration::from_secs(1))?;
    if time.is_zero() { Err(not_a_time(text)) } else { Ok(time) }
}

/// Parses a time, which may be zero; a bare number counts `unit`s.
pub fn time(text: &str, unit: Duration) -> Result<Duration, UnitError> {
    let lower = text.to_ascii_lowercase();
    let (digits, name) = split_number(&lower);
    let unit = if name.is_empty() { Some(unit) } else { time_unit(name) };
    let us = digits.parse::<u64>().ok().zip(unit);
    let us = us.and_then(|(count, unit)| count.checked_mul(unit.as_micros() as u64));
    us.map(Duration::from_micros).ok_or_else(|| not_a_time(text))
}

/// Returns the duration of a lower-case unit; `None` for an unknown unit.
pub fn time_unit(name: &str) -> Option<Duration> {
    Some(Duration::from_micros(match name {
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    }))
}

fn not_a_time(text: &str) -> UnitError {
    UnitError(format!("'{text}' is not a time such as 10, 10s, 500ms or 2m"))
}

fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_plain_numbers() {
        assert_eq!((count("0"), count("512")), (Ok(0), Ok(512)));
        for text in ["", "-1", "0x10", "4k", "99999999999999999999"] {
            assert!(count(text).expect_err(text).to_string().contains("not a number"), "{text}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for text in ["4096", "4k", "4K", "4kb", "4KiB", "4ki", "0x1000", "4096b"] {
            assert_eq!(bytes(text), Ok(4096), "{text}");
        }
        assert_eq!(bytes("1m"), Ok(1 << 20));
        assert_eq!(bytes("3g"), Ok(3 << 30));
        assert_eq!(bytes("2T"), Ok(2 << 40));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "k", "4x", "-1", "1.5m", "4 k", "99999999999999p", "0xg", "4ib", "4i"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert!(block_bytes("0").is_err());
    }

    #[test]
    fn with_a_decimal_base_only_ki_is_1024() {
        for (text, bytes) in
            [("4k", 4000), ("4kb", 4000), ("4ki", 4096), ("1MiB", 1 << 20), ("7", 7)]
        {
            assert_eq!(bytes_in(text, KbBase::Decimal), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_bare_time_has_the_unit_of_its_option() {
        let us = Duration::from_micros(1);
        assert_eq!(time("10", us), Ok(us * 10));
        assert_eq!(time("10ms", us), Ok(us * 10_000));
        assert_eq!(time("0", us), Ok(Duration::ZERO));
        assert!(time("99999999999999d", us).is_err());
    }

    #[test]
    fn a_share_is_of_the_whole() {
        assert_eq!("50%".parse::<Size>().map(|size| size.of(1000)), Ok(500));
        assert_eq!("1g".parse::<Size>().map(|size| size.of(1000)), Ok(1 << 30));
        assert!("0%".parse::<Size>().is_err());
        assert!("101%".parse::<Size>().is_err());
    }

    #[test]
    fn times_are_seconds_unless_they_say_so() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("0").is_err());
        assert!(duration("10x").is_err());
        assert!(duration("s").is_err());
    }
}
