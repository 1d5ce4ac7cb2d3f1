//! Job options: timing and rate.

use super::super::RateProcess;
use super::super::draft::Draft;
use super::super::grammar::{
    MS, Parsed, SECOND, US, fraction, per_way, switch, time, times, whole, within_u32, word,
};
use super::super::workload;
use crate::units::KbBase;

use super::Group::Timing;
use super::Kind::{Bool, Switch, Value};
use super::OptionSpec;

pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "runtime",
        aliases: &["timeout"],
        value: "TIME",
        help: "When to end at the latest: seconds, or with a unit as in 500ms or 2m",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            time(text, SECOND)
                .map(|time| draft.job.runtime = Some(time).filter(|time| !time.is_zero()))
        },
    },
    OptionSpec {
        name: "time_based",
        aliases: &[],
        value: "0|1",
        help: "Goes on for the whole runtime, starting over as often as needed",
        kind: Switch,
        group: Timing,
        set: |draft, text| switch(text).map(|value| draft.job.time_based = value),
    },
    OptionSpec {
        name: "startdelay",
        aliases: &["start_delay"],
        value: "TIME",
        help: "Starts so much later, or by chance within a range as in 5-10; seconds",
        kind: Value,
        group: Timing,
        set: |draft, text| times(text, SECOND).map(|value| draft.job.startdelay = value),
    },
    OptionSpec {
        name: "ramp_time",
        aliases: &[],
        value: "TIME",
        help: "Runs so long before anything counts; seconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, SECOND).map(|value| draft.job.ramp_time = value),
    },
    OptionSpec {
        name: "thinktime",
        aliases: &[],
        value: "TIME",
        help: "Pauses so long after I/Os; microseconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, US).map(|value| draft.job.thinktime.time = value),
    },
    OptionSpec {
        name: "thinktime_spin",
        aliases: &[],
        value: "TIME",
        help: "How much of a pause is spent busy; microseconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, US).map(|value| draft.job.thinktime.spin = value),
    },
    OptionSpec {
        name: "thinktime_blocks",
        aliases: &[],
        value: "N",
        help: "I/Os between two pauses [default: 1]",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            within_u32(text, draft.kb_base, 1, u32::MAX)
                .map(|value| draft.job.thinktime.blocks = Some(value))
        },
    },
    OptionSpec {
        name: "thinktime_blocks_type",
        aliases: &[],
        value: "WHICH",
        help: "Whether I/Os are counted when done (complete) or when issued (issue) [default: complete]",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            word(text, &[("complete", false), ("issue", true)])
                .map(|value| draft.job.thinktime.counts_issues = value)
        },
    },
    OptionSpec {
        name: "thinktime_iotime",
        aliases: &[],
        value: "TIME",
        help: "Time of I/O between two pauses, if thinktime_blocks does not come first; seconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, SECOND).map(|value| draft.job.thinktime.iotime = value),
    },
    OptionSpec {
        name: "rate",
        aliases: &[],
        value: "RATES",
        help: "Bytes per second, as in 1m or, by way, 1m,500k; open loop: what is late is due all the same",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            let base = draft.kb_base;
            per_way(text, &mut draft.job.rate, |part| rate(part, base))
        },
    },
    OptionSpec {
        name: "rate_min",
        aliases: &["ratemin"],
        value: "RATES",
        help: "The job fails when it moves fewer bytes per second",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            let base = draft.kb_base;
            per_way(text, &mut draft.job.rate_min, |part| rate(part, base))
        },
    },
    OptionSpec {
        name: "rate_iops",
        aliases: &[],
        value: "N",
        help: "I/Os per second, for all ways or reads,writes,trims",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            let base = draft.kb_base;
            per_way(text, &mut draft.job.rate_iops, |part| rate(part, base))
        },
    },
    OptionSpec {
        name: "rate_iops_min",
        aliases: &[],
        value: "N",
        help: "The job fails when it does fewer I/Os per second",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            let base = draft.kb_base;
            per_way(text, &mut draft.job.rate_iops_min, |part| rate(part, base))
        },
    },
    OptionSpec {
        name: "rate_process",
        aliases: &[],
        value: "HOW",
        help: "When I/Os are due: linear (evenly) or poisson (independently of each other)",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            word(text, &[("linear", RateProcess::Linear), ("poisson", RateProcess::Poisson)])
                .map(|value| draft.job.rate_process = value)
        },
    },
    OptionSpec {
        name: "rate_cycle",
        aliases: &["ratecycle"],
        value: "TIME",
        help: "Over what time the minimum rates are measured; milliseconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, MS).map(|value| draft.job.rate_cycle = value),
    },
    OptionSpec {
        name: "max_latency",
        aliases: &[],
        value: "TIME",
        help: "The job fails when an I/O takes longer; microseconds",
        kind: Value,
        group: Timing,
        set: max_latency,
    },
    OptionSpec {
        name: "latency_target",
        aliases: &[],
        value: "TIME",
        help: "Looks for the greatest depth that keeps it; microseconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, US).map(|value| draft.latency.target = value),
    },
    OptionSpec {
        name: "latency_window",
        aliases: &[],
        value: "TIME",
        help: "How long each depth is tried; microseconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, US).map(|value| draft.latency.window = value),
    },
    OptionSpec {
        name: "latency_percentile",
        aliases: &[],
        value: "PERCENT",
        help: "By how many of the I/Os it is to be kept [default: 100]",
        kind: Value,
        group: Timing,
        set: |draft, text| fraction(text, 0.0, 100.0).map(|value| draft.latency.percentile = value),
    },
    OptionSpec {
        name: "latency_run",
        aliases: &[],
        value: "0|1",
        help: "Goes on at that depth instead of ending",
        kind: Bool,
        group: Timing,
        set: |draft, text| switch(text).map(|value| draft.latency.run = value),
    },
    OptionSpec {
        name: "steadystate",
        aliases: &["ss"],
        value: "WHAT:LIMIT",
        help: "Ends when iops, bw, iops_slope or bw_slope stays within a limit, as in iops_slope:0.1%",
        kind: Value,
        group: Timing,
        set: |draft, text| {
            draft.is_steady = true;
            workload::steady_state(text, &mut draft.steady)
        },
    },
    OptionSpec {
        name: "steadystate_duration",
        aliases: &["ss_dur"],
        value: "TIME",
        help: "For how long it has to; seconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, SECOND).map(|value| draft.steady.duration = value),
    },
    OptionSpec {
        name: "steadystate_ramp_time",
        aliases: &["ss_ramp"],
        value: "TIME",
        help: "After how long it is first looked at; seconds",
        kind: Value,
        group: Timing,
        set: |draft, text| time(text, SECOND).map(|value| draft.steady.ramp = value),
    },
];

/// Parses a rate; 0 means unlimited.
fn rate(text: &str, base: KbBase) -> Parsed<Option<u64>> {
    whole(text, base).map(|rate| Some(rate).filter(|rate| *rate > 0))
}

/// fio accepts a value per way; here all must be equal.
fn max_latency(draft: &mut Draft, text: &str) -> Parsed<()> {
    let mut parts = text.split(',');
    let first = time(parts.next().unwrap_or_default(), US)?;
    for part in parts {
        if time(part, US)? != first {
            return Err(format!("'{text}': there is one limit for all ways; give the greatest"));
        }
    }
    draft.job.max_latency = Some(first).filter(|time| !time.is_zero());
    Ok(())
}
