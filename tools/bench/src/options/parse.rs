//! Parses values that one option has.

use std::time::Duration;

use adit_load::Pattern;
use nix::errno::Errno;

use super::grammar::{
    Parsed, SECOND, US, choice, count, fraction, numbers, time, within, within_u32, word,
};
use super::targets;
use super::values::{FileService, VerifyKind};
use crate::units::KbBase;

pub(super) fn data_placement(text: &str) -> Parsed<bool> {
    if text == "streams" {
        return Err("streams are not supported; use fdp, or fio".to_owned());
    }
    word(text, &[("none", false), ("fdp", true)])
}

/// Parses the name of a single file or target.
pub(super) fn one_target(text: &str) -> Parsed<String> {
    match &targets::split(text)?[..] {
        [only] => Ok(only.clone()),
        several => Err(format!("'{text}' names {} targets; give one", several.len())),
    }
}

pub(super) fn replay_align(text: &str, base: KbBase) -> Parsed<u64> {
    match within(text, base, 1, 1 << 40)? {
        align if align.is_power_of_two() => Ok(align),
        _ => Err(format!("'{text}' is no power of two, as 4k is")),
    }
}

pub(super) fn job_name(text: &str) -> Parsed<String> {
    if text.eq_ignore_ascii_case("global") {
        return Err(
            "a job cannot be called global, which means defaults; choose another name".into()
        );
    }
    Ok(text.to_owned())
}

pub(super) fn file_service_type(text: &str, base: KbBase) -> Parsed<FileService> {
    let (name, ios) = text.split_once(':').unwrap_or((text, "1"));
    if ["zipf", "pareto", "normal", "gauss"].contains(&name) {
        return Err(format!(
            "'{name}' is not supported for files; use random, or jobs with shares"
        ));
    }
    Ok(FileService { order: choice(name)?, ios: within_u32(ios, base, 1, u32::MAX)? })
}

pub(super) fn filesize(text: &str, base: KbBase) -> Parsed<u64> {
    if text.contains(['-', ':']) && !text.starts_with('(') {
        return Err(format!("'{text}': all files of a job have the same length; give one size"));
    }
    count(text, base)?.ok_or_else(|| "a file has at least one byte".to_owned())
}

pub(super) fn fallocate(text: &str) -> Parsed<bool> {
    let words = [
        ("native", true),
        ("posix", true),
        ("keep", true),
        ("1", true),
        ("none", false),
        ("truncate", false),
        ("0", false),
    ];
    word(text, &words)
}

/// Parses the limit; fio accepts a value per way, here all must be equal.
pub(super) fn max_latency(text: &str) -> Parsed<Option<Duration>> {
    let limits = text.split(',').map(|part| time(part, US)).collect::<Parsed<Vec<_>>>()?;
    if limits.iter().any(|limit| *limit != limits[0]) {
        return Err(format!("'{text}': there is one limit for all ways; give the greatest"));
    }
    Ok(Some(limits[0]).filter(|limit| !limit.is_zero()))
}

pub(super) fn buffer_pattern(text: &str) -> Parsed<Pattern> {
    let pattern: Pattern = text.parse()?;
    match pattern.offsets_at.is_empty() {
        true => Ok(pattern),
        false => Err("%o is for verify_pattern".to_owned()),
    }
}

pub(super) fn verify_kind(text: &str) -> Parsed<Option<VerifyKind>> {
    const OTHERS: [&str; 12] = [
        "crc32", "crc16", "crc7", "sha1", "sha256", "sha512", "sha3-224", "sha3-256", "sha3-384",
        "sha3-512", "null", "1",
    ];
    if OTHERS.contains(&text) {
        return Err(format!(
            "'{text}' is not supported, as it finds no more; use crc32c, which is fastest, or xxhash or md5"
        ));
    }
    if text == "0" { Ok(None) } else { choice(text).map(Some) }
}

/// Parses names of checks separated by commas, in any case.
pub(super) fn pi_chk(text: &str) -> Parsed<[bool; 3]> {
    let mut checks = [false; 3];
    for name in text.split(',') {
        let words = [("guard", 0), ("reftag", 1), ("apptag", 2)];
        checks[word(&name.trim().to_ascii_lowercase(), &words)?] = true;
    }
    Ok(checks)
}

pub(super) fn ignore_error(text: &str) -> Parsed<[Vec<i32>; 3]> {
    let mut lists = [const { Vec::new() }; 3];
    for (index, part) in text.split(',').enumerate() {
        let list = lists.get_mut(index).ok_or("there are three lists: read,write,verify")?;
        let names = part.split(':').filter(|name| !name.is_empty());
        *list = names.map(errno).collect::<Parsed<_>>()?;
    }
    Ok(lists)
}

/// Parses an errno by number or name.
fn errno(text: &str) -> Parsed<i32> {
    const MAX: i32 = 133;
    let is_it = |number: &i32| {
        text.parse() == Ok(*number) || format!("{:?}", Errno::from_raw(*number)) == text
    };
    (1..=MAX)
        .find(is_it)
        .ok_or_else(|| format!("'{text}' is no error; write it as in ENOSPC or 28"))
}

pub(super) fn percentile_list(text: &str) -> Parsed<Vec<f64>> {
    const MAX: usize = 20;
    let parsed: Parsed<Vec<f64>> = text.split(':').map(|part| fraction(part, 0.0, 100.0)).collect();
    let mut list = parsed.map_err(|why| format!("{why}; write the list as in 50:99:99.9"))?;
    if list.len() > MAX {
        return Err(format!("there are {} percentiles, more than {MAX}", list.len()));
    }
    list.sort_by(f64::total_cmp);
    list.dedup();
    Ok(list)
}

pub(super) fn unified(text: &str) -> Parsed<bool> {
    if matches!(text, "both" | "2") {
        return Err("both cannot be reported at once; use mixed or none".to_owned());
    }
    word(text, &[("none", false), ("mixed", true), ("0", false), ("1", true)])
}

/// Parses `numa_cpu_nodes`; `None` for all.
pub(super) fn numa_nodes(text: &str) -> Parsed<Option<Vec<usize>>> {
    if text == "all" { Ok(None) } else { numbers(text, "nodes").map(Some) }
}

/// Parses an application tag, or a mask of its bits.
pub(super) fn tag(text: &str) -> Parsed<u16> {
    within(text, KbBase::Binary, 0, 0xffff).map(|tag| tag as u16)
}

/// Parses `io_timeout`.
pub(super) fn io_timeout(text: &str) -> Parsed<Duration> {
    match time(text, SECOND)? {
        time if time.is_zero() => Err("it must be at least a microsecond".to_owned()),
        time => Ok(time),
    }
}
