//! Job options: amount of I/O.

use super::super::grammar::{size, switch, within, within_u32};

use super::Group::Amount;
use super::Kind::{Bool, Value};
use super::OptionSpec;

pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "size",
        aliases: &[],
        value: "SIZE",
        help: "Bytes of the region that the job works on, or a share as in 50% [default: the whole device]",
        kind: Value,
        group: Amount,
        set: |draft, text| size(text, draft.kb_base).map(|value| draft.job.size = Some(value)),
    },
    OptionSpec {
        name: "io_size",
        aliases: &["io_limit"],
        value: "SIZE",
        help: "Bytes after which the job ends [default: size]",
        kind: Value,
        group: Amount,
        set: |draft, text| size(text, draft.kb_base).map(|value| draft.job.io_size = Some(value)),
    },
    OptionSpec {
        name: "offset",
        aliases: &["fileoffset"],
        value: "SIZE",
        help: "Where the region starts",
        kind: Value,
        group: Amount,
        set: |draft, text| size(text, draft.kb_base).map(|value| draft.job.offset = value),
    },
    OptionSpec {
        name: "offset_increment",
        aliases: &[],
        value: "SIZE",
        help: "The region of thread N of the job starts N times this later",
        kind: Value,
        group: Amount,
        set: |draft, text| {
            size(text, draft.kb_base).map(|value| draft.job.offset_increment = value)
        },
    },
    OptionSpec {
        name: "number_ios",
        aliases: &[],
        value: "N",
        help: "I/Os after which the job ends",
        kind: Value,
        group: Amount,
        set: |draft, text| {
            within(text, draft.kb_base, 0, u64::MAX)
                .map(|n| draft.job.number_ios = Some(n).filter(|n| *n > 0))
        },
    },
    OptionSpec {
        name: "loops",
        aliases: &[],
        value: "N",
        help: "Passes over the region",
        kind: Value,
        group: Amount,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 1, u32::MAX).map(|value| draft.job.loops = value)
        },
    },
    OptionSpec {
        name: "fill_device",
        aliases: &["fill_fs"],
        value: "0|1",
        help: "Writes until there is no space left",
        kind: Bool,
        group: Amount,
        set: |draft, text| switch(text).map(|value| draft.job.fill_device = value),
    },
];
