//! Job options: concurrency.

use super::super::ExitWhat;
use super::super::draft::Draft;
use super::super::grammar::{Parsed, switch, within_u32, word};

use super::Group::Depth;
use super::Kind::{Bool, Switch, Value};
use super::OptionSpec;

/// The longest queue NVMe allows, in entries.
const DEPTH_MAX: u32 = 65_535;

pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "iodepth",
        aliases: &[],
        value: "N",
        help: "I/Os that each thread keeps in flight",
        kind: Value,
        group: Depth,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 1, DEPTH_MAX).map(|value| draft.job.iodepth = value)
        },
    },
    OptionSpec {
        name: "iodepth_batch",
        aliases: &["iodepth_batch_submit"],
        value: "N",
        help: "At most so many are submitted at once; 0: as many as iodepth [default: 1 through the kernel, all \
               that are idle to a driver's own queue]",
        kind: Value,
        group: Depth,
        set: iodepth_batch,
    },
    OptionSpec {
        name: "iodepth_batch_complete_min",
        aliases: &["iodepth_batch_complete"],
        value: "N",
        help: "Waits for so many at once; 0: does not wait unless it must",
        kind: Value,
        group: Depth,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 0, DEPTH_MAX)
                .map(|value| draft.job.iodepth_batch_complete_min = value)
        },
    },
    OptionSpec {
        name: "iodepth_batch_complete_max",
        aliases: &[],
        value: "N",
        help: "Takes in at most so many at once [default: all that are done]",
        kind: Value,
        group: Depth,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 0, DEPTH_MAX)
                .map(|n| draft.job.iodepth_batch_complete_max = Some(n).filter(|n| *n > 0))
        },
    },
    OptionSpec {
        name: "iodepth_low",
        aliases: &[],
        value: "N",
        help: "Fills up only when so few are in flight [default: iodepth]",
        kind: Value,
        group: Depth,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 0, DEPTH_MAX)
                .map(|n| draft.job.iodepth_low = Some(n).filter(|n| *n > 0))
        },
    },
    OptionSpec {
        name: "serialize_overlap",
        aliases: &[],
        value: "0|1",
        help: "No I/O is submitted that touches the same bytes as one in flight, of a job that writes or trims",
        kind: Bool,
        group: Depth,
        set: |draft, text| switch(text).map(|value| draft.job.serialize_overlap = value),
    },
    OptionSpec {
        name: "numjobs",
        aliases: &[],
        value: "N",
        help: "Threads of the job, each with a queue of its own",
        kind: Value,
        group: Depth,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 1, 4096).map(|value| draft.job.numjobs = value)
        },
    },
    OptionSpec {
        name: "group_reporting",
        aliases: &[],
        value: "0|1",
        help: "Reports the threads of a group as one",
        kind: Switch,
        group: Depth,
        set: |draft, text| switch(text).map(|value| draft.job.group_reporting = value),
    },
    OptionSpec {
        name: "new_group",
        aliases: &[],
        value: "0|1",
        help: "A group of reports starts here",
        kind: Switch,
        group: Depth,
        set: |draft, text| switch(text).map(|value| draft.job.new_group = value),
    },
    OptionSpec {
        name: "stonewall",
        aliases: &["wait_for_previous"],
        value: "0|1",
        help: "Starts when all jobs before it are done",
        kind: Switch,
        group: Depth,
        set: |draft, text| switch(text).map(|value| draft.job.stonewall = value),
    },
    OptionSpec {
        name: "exitall",
        aliases: &[],
        value: "0|1",
        help: "All jobs of its group end when this one does",
        kind: Switch,
        group: Depth,
        set: |draft, text| switch(text).map(|value| draft.job.exitall = value),
    },
    OptionSpec {
        name: "exitall_on_error",
        aliases: &[],
        value: "0|1",
        help: "The same when this one fails",
        kind: Switch,
        group: Depth,
        set: |draft, text| switch(text).map(|value| draft.job.exitall_on_error = value),
    },
    OptionSpec {
        name: "exit_what",
        aliases: &[],
        value: "WHICH",
        help: "Which jobs end then: group, stonewall (those that run at the same time) or all",
        kind: Value,
        group: Depth,
        set: |draft, text| {
            let words = [
                ("group", ExitWhat::Group),
                ("stonewall", ExitWhat::Stonewall),
                ("all", ExitWhat::All),
            ];
            word(text, &words).map(|value| draft.job.exit_what = value)
        },
    },
    OptionSpec {
        name: "wait_for",
        aliases: &[],
        value: "NAME",
        help: "Starts when the job of this name, which stands before it, is done",
        kind: Value,
        group: Depth,
        set: |draft, text| {
            draft.job.wait_for = Some(text.to_owned());
            Ok(())
        },
    },
];

fn iodepth_batch(draft: &mut Draft, text: &str) -> Parsed<()> {
    let batch = within_u32(text, draft.kb_base, 0, DEPTH_MAX)?;
    draft.job.iodepth_batch = Some(if batch == 0 { DEPTH_MAX } else { batch });
    Ok(())
}
