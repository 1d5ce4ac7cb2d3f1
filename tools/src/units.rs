//! Sizes and times as fio writes them.
//!
//! Sizes: `k`, `m`, `g`, `t`, `p` in either case, with or without `b` or `ib`, are powers
//! of 1024 (fio's `kb_base=1024`); `0x` starts a hexadecimal number. Times are in seconds unless
//! they say `us`, `ms`, `s`, `m`, `h` or `d`.
//!
//! One deviation: fio takes `4kib` for 4000 bytes; here it is 4096, as everywhere else.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes, or a share of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the namespace.
    Percent(u8),
}

impl Size {
    /// The bytes that are meant where there are `whole`.
    pub(crate) fn of(self, whole: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => (u128::from(whole) * u128::from(percent) / 100) as u64,
        }
    }
}

/// A size or time that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnitError(String);

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

/// A number of bytes above zero, for clap.
pub(crate) fn block_bytes(text: &str) -> Result<u64, UnitError> {
    match bytes(text)? {
        0 => Err(UnitError("a block has at least one byte".to_owned())),
        bytes => Ok(bytes),
    }
}

/// A number of things, for clap.
pub(crate) fn count(text: &str) -> Result<u64, UnitError> {
    text.parse().map_err(|_| UnitError(format!("'{text}' is not a number such as 512")))
}

/// A number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, UnitError> {
    let refused = || UnitError(format!("'{text}' is not a size such as 4096, 4k, 1m or 10g"));
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map_err(|_| refused());
    }
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = split_number(&lower);
    let prefix = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(unit);
    let prefix =
        if unit.ends_with("ib") { prefix } else { prefix.strip_suffix('i').unwrap_or(prefix) };
    let shift = match prefix {
        "" if unit.is_empty() || unit == "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(refused()),
    };
    digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift)).ok_or_else(refused)
}

/// A time above zero.
pub(crate) fn duration(text: &str) -> Result<Duration, UnitError> {
    let refused = || UnitError(format!("'{text}' is not a time such as 10, 10s, 500ms or 2m"));
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = split_number(&lower);
    let unit_us: u64 = match unit {
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "" | "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(refused()),
    };
    let us = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit_us));
    us.filter(|us| *us > 0).map(Duration::from_micros).ok_or_else(refused)
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
