//! Job options: data, verification and failures.

use adit_driver::paths::Durability;

use super::super::draft::Draft;
use super::super::grammar::{
    Parsed, SECOND, percent, switch, time, whole, within, within_u32, word,
};
use super::super::{VerifyKind, pattern};
use crate::errors::Tolerance;
use nix::errno::Errno;

use super::Group::Data;
use super::Kind::{Bool, Switch, Value};
use super::OptionSpec;

pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "buffer_pattern",
        aliases: &[],
        value: "PATTERN",
        help: "What is written, as in 0xdeadbeef, 12 or \"text\"",
        kind: Value,
        group: Data,
        set: buffer_pattern,
    },
    OptionSpec {
        name: "refill_buffers",
        aliases: &[],
        value: "0|1",
        help: "New random data for each write",
        kind: Switch,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.job.refill_buffers = value),
    },
    OptionSpec {
        name: "scramble_buffers",
        aliases: &[],
        value: "0|1",
        help: "Changes some bytes for each write, so that no two are the same",
        kind: Bool,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.job.scramble_buffers = value),
    },
    OptionSpec {
        name: "zero_buffers",
        aliases: &[],
        value: "0|1",
        help: "Writes zeroes",
        kind: Switch,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.job.zero_buffers = value),
    },
    OptionSpec {
        name: "buffer_compress_percentage",
        aliases: &[],
        value: "PERCENT",
        help: "How much of what is written compresses away",
        kind: Value,
        group: Data,
        set: |draft, text| percent(text).map(|value| draft.job.buffer_compress_percentage = value),
    },
    OptionSpec {
        name: "buffer_compress_chunk",
        aliases: &[],
        value: "SIZE",
        help: "Of how many bytes at a time; 0 is the whole block",
        kind: Value,
        group: Data,
        set: |draft, text| {
            within(text, draft.kb_base, 0, 1 << 30)
                .map(|value| draft.job.buffer_compress_chunk = value)
        },
    },
    OptionSpec {
        name: "verify",
        aliases: &[],
        value: "CHECK",
        help: "Checks blocks that were written: crc32c, xxhash, md5, meta or pattern",
        kind: Value,
        group: Data,
        set: verify,
    },
    OptionSpec {
        name: "do_verify",
        aliases: &[],
        value: "0|1",
        help: "Whether what was written is read back",
        kind: Bool,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.verify.do_verify = value),
    },
    OptionSpec {
        name: "verify_only",
        aliases: &[],
        value: "0|1",
        help: "Only reads back what an earlier run with the same options wrote",
        kind: Switch,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.verify.only = value),
    },
    OptionSpec {
        name: "verify_fatal",
        aliases: &[],
        value: "0|1",
        help: "The first mismatch ends the job",
        kind: Bool,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.verify.fatal = value),
    },
    OptionSpec {
        name: "verify_backlog",
        aliases: &[],
        value: "N",
        help: "Reads back after so many writes instead of at the end",
        kind: Value,
        group: Data,
        set: |draft, text| {
            whole(text, draft.kb_base).map(|n| draft.verify.backlog = Some(n).filter(|n| *n > 0))
        },
    },
    OptionSpec {
        name: "verify_backlog_batch",
        aliases: &[],
        value: "N",
        help: "How many of them at a time",
        kind: Value,
        group: Data,
        set: |draft, text| {
            whole(text, draft.kb_base)
                .map(|n| draft.verify.backlog_batch = Some(n).filter(|n| *n > 0))
        },
    },
    OptionSpec {
        name: "verify_interval",
        aliases: &[],
        value: "SIZE",
        help: "Bytes that each header stands for [default: the block]",
        kind: Value,
        group: Data,
        set: |draft, text| {
            within(text, draft.kb_base, 80, 1 << 30)
                .map(|value| draft.verify.interval = Some(value))
        },
    },
    OptionSpec {
        name: "verify_pattern",
        aliases: &[],
        value: "PATTERN",
        help: "What verified blocks hold, as in 0xff%o\"abcd\"-12; %o is the offset; without verify behind headers",
        kind: Value,
        group: Data,
        set: verify_pattern,
    },
    OptionSpec {
        name: "verify_state_save",
        aliases: &[],
        value: "0|1",
        help: "Leaves in a file what the job has written [default: where it is interrupted]",
        kind: Bool,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.verify.state_save = Some(value)),
    },
    OptionSpec {
        name: "verify_state_load",
        aliases: &[],
        value: "0|1",
        help: "Reads that file",
        kind: Bool,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.verify.state_load = value),
    },
    OptionSpec {
        name: "verify_dump",
        aliases: &[],
        value: "0|1",
        help: "Writes blocks that are wrong into files",
        kind: Bool,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.verify.dump = value),
    },
    OptionSpec {
        name: "sync",
        aliases: &[],
        value: "HOW",
        help: "Writes survive a loss of power once they complete: dsync (O_DSYNC; Force Unit Access of a controller), \
               sync or 1 (O_SYNC), none or 0",
        kind: Value,
        group: Data,
        set: sync,
    },
    OptionSpec {
        name: "pi_chk",
        aliases: &[],
        value: "CHECKS",
        help: "What a controller checks of a namespace's protection information: GUARD, REFTAG and APPTAG, by comma \
               [default: GUARD, and REFTAG where its type has one]",
        kind: Value,
        group: Data,
        set: pi_chk,
    },
    OptionSpec {
        name: "apptag",
        aliases: &[],
        value: "TAG",
        help: "Application tag that writes leave and reads expect [default: 0x1234 with pi_chk, else 0]",
        kind: Value,
        group: Data,
        set: |draft, text| {
            within(text, draft.kb_base, 0, 0xffff)
                .map(|tag| draft.job.protection.get_or_insert_default().tag = tag as u16)
        },
    },
    OptionSpec {
        name: "apptag_mask",
        aliases: &[],
        value: "MASK",
        help: "Bits of the application tag that are compared [default: 0xffff]",
        kind: Value,
        group: Data,
        set: |draft, text| {
            within(text, draft.kb_base, 0, 0xffff)
                .map(|mask| draft.job.protection.get_or_insert_default().mask = mask as u16)
        },
    },
    OptionSpec {
        name: "fsync",
        aliases: &[],
        value: "N",
        help: "A Flush after so many writes",
        kind: Value,
        group: Data,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 0, u32::MAX)
                .map(|n| draft.job.fsync = Some(n).filter(|n| *n > 0))
        },
    },
    OptionSpec {
        name: "fdatasync",
        aliases: &[],
        value: "N",
        help: "The same, without metadata where the target is a file",
        kind: Value,
        group: Data,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 0, u32::MAX)
                .map(|n| draft.job.fdatasync = Some(n).filter(|n| *n > 0))
        },
    },
    OptionSpec {
        name: "end_fsync",
        aliases: &[],
        value: "0|1",
        help: "A Flush at the end of a job that writes",
        kind: Bool,
        group: Data,
        set: |draft, text| switch(text).map(|value| draft.job.end_fsync = value),
    },
    OptionSpec {
        name: "continue_on_error",
        aliases: &[],
        value: "WHICH",
        help: "Errors that do not end a job: none, read, write, io, verify or all; they are counted by name",
        kind: Value,
        group: Data,
        set: continue_on_error,
    },
    OptionSpec {
        name: "ignore_error",
        aliases: &[],
        value: "LISTS",
        help: "Of reads, writes and verification, the errors that do not end a job instead, as in EAGAIN,ENOSPC:122",
        kind: Value,
        group: Data,
        set: ignore_error,
    },
    OptionSpec {
        name: "retries",
        aliases: &[],
        value: "N",
        help: "How often an I/O that failed is sent again, if that may help [default: 0, or 5 with --recover]",
        kind: Value,
        group: Data,
        set: |draft, text| {
            within(text, draft.kb_base, 0, 255).map(|n| draft.job.retries = Some(n as u8))
        },
    },
    OptionSpec {
        name: "io_timeout",
        aliases: &[],
        value: "TIME",
        help: "How long an I/O may take before it is aborted, and as long again before its queue is created anew; \
               seconds [default: 10, and 2 more]",
        kind: Value,
        group: Data,
        set: io_timeout,
    },
];

fn buffer_pattern(draft: &mut Draft, text: &str) -> Parsed<()> {
    let pattern = pattern::parse(text)?;
    if !pattern.offsets_at.is_empty() {
        return Err("%o is for verify_pattern".to_owned());
    }
    draft.job.buffer_pattern = Some(pattern);
    Ok(())
}

fn verify(draft: &mut Draft, text: &str) -> Parsed<()> {
    const OTHERS: [&str; 13] = [
        "crc64", "crc32", "crc16", "crc7", "sha1", "sha256", "sha512", "sha3-224", "sha3-256",
        "sha3-384", "sha3-512", "null", "1",
    ];
    if OTHERS.contains(&text) {
        return Err(format!(
            "'{text}' is left out, since it finds no more; take crc32c, which is fastest, or xxhash or md5"
        ));
    }
    let kinds = [
        ("0", None),
        ("crc32c", Some(VerifyKind::Crc32c)),
        ("crc32c-intel", Some(VerifyKind::Crc32c)),
        ("xxhash", Some(VerifyKind::Xxhash)),
        ("md5", Some(VerifyKind::Md5)),
        ("meta", Some(VerifyKind::Meta)),
        ("pattern", Some(VerifyKind::Pattern)),
    ];
    let kind = word(text, &kinds)?;
    (draft.verifies, draft.is_verify_given) = (kind.is_some(), true);
    draft.verify.kind = kind.unwrap_or(draft.verify.kind);
    Ok(())
}

/// As in fio, `verify_pattern` alone turns on verification, with headers.
fn verify_pattern(draft: &mut Draft, text: &str) -> Parsed<()> {
    draft.verify.pattern = Some(pattern::parse(text)?);
    draft.verifies |= !draft.is_verify_given;
    Ok(())
}

/// Parses names of checks separated by commas, in any case.
fn pi_chk(draft: &mut Draft, text: &str) -> Parsed<()> {
    let mut checks = [false; 3];
    for name in text.split(',') {
        let words = [("guard", 0), ("reftag", 1), ("apptag", 2)];
        checks[word(&name.trim().to_ascii_lowercase(), &words)?] = true;
    }
    draft.job.protection.get_or_insert_default().checks = Some(checks);
    Ok(())
}

fn sync(draft: &mut Draft, text: &str) -> Parsed<()> {
    let words = [
        ("none", Durability::Cached),
        ("0", Durability::Cached),
        ("sync", Durability::All),
        ("1", Durability::All),
        ("dsync", Durability::Data),
    ];
    draft.job.sync = word(text, &words)?;
    Ok(())
}

fn continue_on_error(draft: &mut Draft, text: &str) -> Parsed<()> {
    let words = [
        ("none", Tolerance::None),
        ("read", Tolerance::Read),
        ("write", Tolerance::Write),
        ("io", Tolerance::Io),
        ("verify", Tolerance::Verify),
        ("all", Tolerance::All),
        ("0", Tolerance::None),
        ("1", Tolerance::All),
    ];
    draft.job.continue_on_error = word(text, &words)?;
    Ok(())
}

fn ignore_error(draft: &mut Draft, text: &str) -> Parsed<()> {
    let mut lists = [const { Vec::new() }; 3];
    for (index, part) in text.split(',').enumerate() {
        let list = lists.get_mut(index).ok_or("there are three lists: read,write,verify")?;
        let names = part.split(':').filter(|name| !name.is_empty());
        *list = names.map(errno).collect::<Parsed<_>>()?;
    }
    draft.job.ignore_error = lists;
    Ok(())
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

fn io_timeout(draft: &mut Draft, text: &str) -> Parsed<()> {
    let time = time(text, SECOND)?;
    if time.is_zero() {
        return Err("an I/O takes some time; give it at least a microsecond".to_owned());
    }
    draft.job.io_timeout = Some(time);
    Ok(())
}
