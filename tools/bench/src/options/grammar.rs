//! The syntax of values: numbers, times, lists, and values per way.

use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::expression::{evaluate, is_expression};
use crate::units::{self, KbBase, Size};
use crate::way::{PerWay, Way};

/// A value, or why it is refused: a sentence without the option's name.
pub(crate) type Parsed<T> = Result<T, String>;

/// Microseconds, the unit of short times.
pub(crate) const US: Duration = Duration::from_micros(1);
/// Milliseconds, the unit of windows.
pub(crate) const MS: Duration = Duration::from_millis(1);
/// Seconds, the unit of long times.
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Parses an integer with fio's suffixes.
pub(crate) fn whole(text: &str, base: KbBase) -> Parsed<u64> {
    if is_expression(text) {
        return evaluate(text, &|unit| units::byte_unit(unit, base).map(|bytes| bytes as f64));
    }
    units::bytes_in(without_zeroes(text), base)
        .map_err(|_| format!("'{text}' is not a number such as 8, 4k, 1m or 10g"))
}

/// Returns `text` without a fraction of zeroes, as in `33554432.0`, which scripts write. Before a unit it stays: fio
/// takes `4.0k` for 4 bytes, so both meanings are possible.
fn without_zeroes(text: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    match text.split_once('.') {
        Some((digits, zeroes)) if is_number(digits) && !zeroes.is_empty() => {
            if zeroes.bytes().all(|it| it == b'0') { digits } else { text }
        }
        _ => text,
    }
}

/// Parses an integer within bounds.
pub(crate) fn within(text: &str, base: KbBase, from: u64, to: u64) -> Parsed<u64> {
    let number = whole(text, base)?;
    if (from..=to).contains(&number) {
        Ok(number)
    } else {
        Err(format!("'{text}' is not a number from {from} to {to}"))
    }
}

/// Parses a 32-bit integer within bounds.
pub(crate) fn within_u32(text: &str, base: KbBase, from: u32, to: u32) -> Parsed<u32> {
    within(text, base, from.into(), to.into()).map(|number| number as u32)
}

/// Parses an integer; 0 means none.
pub(crate) fn count(text: &str, base: KbBase) -> Parsed<Option<u64>> {
    whole(text, base).map(|number| Some(number).filter(|number| *number > 0))
}

/// Parses a percentage, with or without the sign.
pub(crate) fn percent(text: &str) -> Parsed<u8> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let percent = whole(number, KbBase::Binary).ok().filter(|percent| *percent <= 100);
    percent
        .map(|percent| percent as u8)
        .ok_or_else(|| format!("'{text}' is not a share from 0 to 100"))
}

/// Parses a real number within bounds.
pub(crate) fn fraction(text: &str, from: f64, to: f64) -> Parsed<f64> {
    let number = text.parse::<f64>().ok().filter(|number| (from..=to).contains(number));
    number.ok_or_else(|| format!("'{text}' is not a number from {from} to {to}"))
}

/// Parses a size in bytes or percent.
pub(crate) fn size(text: &str, base: KbBase) -> Parsed<Size> {
    if let Some(count) = text.strip_suffix(['z', 'Z']) {
        let is_count = count.bytes().all(|digit| digit.is_ascii_digit()) && !count.is_empty();
        if is_count {
            return Err(format!(
                "'{text}' counts zones of a zoned device, which are not driven; give bytes"
            ));
        }
    }
    if let Some(share) = text.strip_suffix('%').filter(|_| !is_expression(text)) {
        let share = format!("{}%", without_zeroes(share));
        return share.parse::<Size>().map_err(|why| why.to_string());
    }
    whole(text, base).map(Size::Bytes)
}

/// Parses a time; a bare number counts `unit`s, and microseconds within parentheses.
pub(crate) fn time(text: &str, unit: Duration) -> Parsed<Duration> {
    if is_expression(text) {
        let in_us = |name: &str| match name {
            "" => Some(1.0),
            _ => units::time_unit(name).map(|unit| unit.as_micros() as f64),
        };
        return evaluate(text, &in_us).map(Duration::from_micros);
    }
    units::time(without_zeroes(text), unit).map_err(|why| why.to_string())
}

/// Parses a time or a range of times, swapping the ends if the first is longer.
pub(crate) fn times(text: &str, unit: Duration) -> Parsed<(Duration, Duration)> {
    let (from, to) = text.split_once(['-', ':']).unwrap_or((text, text));
    let (from, to) = (time(from, unit)?, time(to, unit)?);
    Ok((from.min(to), from.max(to)))
}

pub(crate) fn switch(text: &str) -> Parsed<bool> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("'{text}' is neither 0 nor 1")),
    }
}

/// Parses one of several words.
pub(crate) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Parsed<T> {
    let found = words.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        no_such(text, &names)
    })
}

/// Parses a variant of an enum by its name.
pub(crate) fn choice<T: ValueEnum>(text: &str) -> Parsed<T> {
    T::from_str(text, false).map_err(|_| {
        let values: Vec<_> = T::value_variants().iter().filter_map(T::to_possible_value).collect();
        no_such(
            text,
            &values.iter().flat_map(PossibleValue::get_name_and_aliases).collect::<Vec<_>>(),
        )
    })
}

/// Returns the name that [`choice`] parses to a variant.
pub(crate) fn name_of<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the message for a word that is not one of `names`.
pub(crate) fn no_such(text: &str, names: &[&str]) -> String {
    match nearest(text, names.iter().copied()) {
        Some(meant) => format!("there is no '{text}'; did you mean '{meant}'?"),
        None => format!("there is no '{text}'; it is one of {}", names.join(", ")),
    }
}

/// Returns the name closest to a misspelt `text`.
pub(crate) fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let close = names.map(|name| (strsim::jaro_winkler(text, name), name));
    let best = close.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    Some(best.1).filter(|_| best.0 > 0.84)
}

/// Parses one value for all ways, or `reads,writes,trims`. The last value also covers the ways after it; an
/// empty one keeps the way's previous value.
pub(crate) fn per_way<T: Clone>(
    text: &str,
    ways: &mut PerWay<T>,
    parse: impl Fn(&str) -> Parsed<T>,
) -> Parsed<()> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > 3 {
        return Err(format!(
            "'{text}' has {} values; there are at most three: reads,writes,trims",
            parts.len()
        ));
    }
    let mut values = ways.clone();
    for way in Way::ALL {
        let part = parts.get(way as usize).or(parts.last()).copied().unwrap_or_default();
        if !part.is_empty() {
            values[way] = parse(part)?;
        }
    }
    *ways = values;
    Ok(())
}

/// Parses numbers and ranges separated by commas, as in `0-2,5`; returns them ascending, without duplicates.
pub(crate) fn numbers(text: &str, what: &str) -> Parsed<Vec<usize>> {
    const MAX: usize = 1 << 16;
    let refused = || format!("'{text}' is not a list of {what} such as 0-2,5");
    let number = |word: &str| word.trim().parse::<usize>().ok().filter(|number| *number < MAX);
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = number(from).zip(number(to)).ok_or_else(refused)?;
        if from > to {
            return Err(refused());
        }
        all.extend(from..=to);
        // Numbers may repeat, but the list stays bounded.
        if all.len() > 4 * MAX {
            return Err(refused());
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_ways(text: &str) -> Parsed<[u64; 3]> {
        let mut ways = PerWay::all(7);
        per_way(text, &mut ways, |part| whole(part, KbBase::Binary))?;
        Ok(ways.0)
    }

    #[test]
    fn the_last_value_stands_for_the_ways_that_are_left() {
        for (text, expected) in [
            ("256k", [256 << 10; 3]),
            ("8k,32k", [8192, 32768, 32768]),
            ("8k,32k,", [8192, 32768, 7]),
            (",8k", [7, 8192, 8192]),
            (",8k,", [7, 8192, 7]),
            ("1,2,3", [1, 2, 3]),
        ] {
            assert_eq!(of_ways(text), Ok(expected), "{text}");
        }
        assert!(of_ways("1,2,3,4").is_err());
        assert!(of_ways("1,x").is_err());
    }

    #[test]
    fn numbers_may_be_expressions() {
        assert_eq!(whole("(1+2)*3k", KbBase::Binary), Ok(9216));
        assert_eq!(whole("4k", KbBase::Decimal), Ok(4000));
        assert_eq!(time("(2*500ms)", SECOND), Ok(SECOND));
        assert_eq!(time("(1000)", SECOND), Ok(MS));
    }

    #[test]
    fn a_fraction_of_zeroes_changes_no_number() {
        assert_eq!(size("33554432.0", KbBase::Binary), Ok(Size::Bytes(32 << 20)));
        assert_eq!(size("60.00%", KbBase::Binary), Ok(Size::Percent(60)));
        assert_eq!(within_u32("16.0", KbBase::Binary, 1, 64), Ok(16));
        assert_eq!((percent("50.0"), percent("50.0%")), (Ok(50), Ok(50)));
        assert_eq!(time("10.0", SECOND), Ok(SECOND * 10));
        assert_eq!(times("5.0-10.0", SECOND), Ok((SECOND * 5, SECOND * 10)));
        for text in ["1.5", "4.0k", "1.5m", "4.", ".0", "-4.0", "1.0.0", "."] {
            assert!(whole(text, KbBase::Binary).is_err(), "{text}");
            assert!(time(text, SECOND).is_err(), "{text}");
        }
        assert!(size("60.5%", KbBase::Binary).is_err() && percent("60.5").is_err());
    }

    #[test]
    fn sizes_are_bytes_or_shares_but_no_zones() {
        assert_eq!(size("50%", KbBase::Binary), Ok(Size::Percent(50)));
        assert_eq!(size("10g", KbBase::Binary), Ok(Size::Bytes(10 << 30)));
        assert!(size("100z", KbBase::Binary).expect_err("zones").contains("zoned"));
        assert!(size("0%", KbBase::Binary).is_err());
    }

    #[test]
    fn a_range_of_times_is_put_in_order() {
        assert_eq!(times("10-5", SECOND), Ok((SECOND * 5, SECOND * 10)));
        assert_eq!(times("5:500ms", SECOND), Ok((MS * 500, SECOND * 5)));
        assert_eq!(times("3", SECOND), Ok((SECOND * 3, SECOND * 3)));
    }

    #[test]
    fn lists_of_numbers_are_in_order_and_bounded() {
        assert_eq!(numbers("0-2,5,1", "cores"), Ok(vec![0, 1, 2, 5]));
        for text in ["", "1-", "3-1", "x", "0-99999999", "1,,2"] {
            assert!(numbers(text, "cores").expect_err(text).contains("0-2,5"), "{text}");
        }
    }

    #[test]
    fn a_slip_gets_the_nearest_word() {
        let words = [("linear", 1), ("poisson", 2)];
        assert_eq!(word("poisson", &words), Ok(2));
        assert!(word("poison", &words).expect_err("slip").contains("did you mean 'poisson'?"));
        assert!(word("quux", &words).expect_err("none").contains("one of linear, poisson"));
    }
}
