//! Parsing of values: sizes, durations, numbers, switches.

use std::str::FromStr;
use std::time::Duration;

/// A value, or one sentence on what is wrong with it.
pub type Parsed<T> = std::result::Result<T, String>;

/// Parses a number that fits its type; hexadecimal after `0x`.
pub(super) fn number<T: FromStr + TryFrom<u64>>(value: &str) -> Parsed<T> {
    let hex = value.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    let parsed = match hex {
        Some(parsed) => parsed.ok().and_then(|number| T::try_from(number).ok()),
        None => value.parse().ok(),
    };
    parsed.ok_or_else(|| format!("'{value}' is not a number in range"))
}

/// Parses a count of bytes; `k`, `M`, `G` and `T` are powers of 1024.
pub fn size(value: &str) -> Parsed<u64> {
    let shift = match value.bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        Some(b't' | b'T') => 40,
        _ => 0,
    };
    let digits = if shift == 0 { value } else { &value[..value.len() - 1] };
    let parsed = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift));
    parsed.ok_or_else(|| format!("'{value}' is not a size such as 4096, 64M or 1G"))
}

pub(super) fn switch(value: &str) -> Parsed<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is 'on' or 'off'".to_owned()),
    }
}

const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses a whole number of `ns`, `us`, `ms` or `s`, at most 2^64 ns.
pub(super) fn duration(value: &str) -> Parsed<Duration> {
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = UNITS.iter().find(|(name, _)| *name == &value[digits.len()..]);
    let ns = unit.and_then(|(_, ns)| digits.parse::<u64>().ok()?.checked_mul(*ns));
    ns.map(Duration::from_nanos)
        .ok_or_else(|| format!("'{value}' is not a duration such as 100ns, 50us, 5ms or 2s"))
}

/// Says that no `what` is called `word`, and suggests the nearest name.
pub(super) fn unknown(what: &str, word: &str, names: &[&str]) -> String {
    match nearest(word, names) {
        Some(name) => format!("there is no {what} '{word}'; did you mean '{name}'?"),
        None => format!("there is no {what} '{word}'"),
    }
}

/// Returns the name that `word` is a likely misspelling of, for suggestions in messages.
pub fn nearest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let slips = |name: &str| strsim::levenshtein(word, name);
    let nearest = names.iter().copied().min_by_key(|name| slips(name))?;
    (slips(nearest) <= nearest.len().div_ceil(2).min(3)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        let valid = [("0s", 0), ("1ns", 1), ("1500us", 1_500_000), ("5ms", 5_000_000)];
        for (text, ns) in valid {
            assert_eq!(duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "5", "ms", "1.5s", "-1s", "99999999999999999999s", "18446744074s", "5µs"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_may_be_hexadecimal() {
        assert_eq!((number::<u8>("0x1f"), number::<u64>("31")), (Ok(31), Ok(31)));
        assert!(number::<u8>("0x100").is_err() && number::<u8>("+-1").is_err());
    }
}
