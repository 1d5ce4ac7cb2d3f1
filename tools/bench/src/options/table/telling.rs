//! Job options: reporting.

use super::super::draft::Draft;
use super::super::grammar::{MS, Parsed, fraction, switch, time, within, word};
use super::super::{Disabled, WindowValue};

use super::Group::Telling;
use super::Kind::{Bool, Optional, Value};
use super::OptionSpec;

pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "percentile_list",
        aliases: &[],
        value: "LIST",
        help: "Percentiles to report, as in 50:99:99.9",
        kind: Value,
        group: Telling,
        set: percentile_list,
    },
    OptionSpec {
        name: "clat_percentiles",
        aliases: &[],
        value: "0|1",
        help: "Reports percentiles of completion latency",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.clat_percentiles = value),
    },
    OptionSpec {
        name: "slat_percentiles",
        aliases: &[],
        value: "0|1",
        help: "Reports percentiles of submission latency",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.slat_percentiles = value),
    },
    OptionSpec {
        name: "lat_percentiles",
        aliases: &[],
        value: "0|1",
        help: "Reports percentiles of total latency",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.lat_percentiles = value),
    },
    OptionSpec {
        name: "disable_lat",
        aliases: &[],
        value: "0|1",
        help: "Does not measure total latency",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.disable.lat = value),
    },
    OptionSpec {
        name: "disable_clat",
        aliases: &[],
        value: "0|1",
        help: "Does not measure completion latency",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.disable.clat = value),
    },
    OptionSpec {
        name: "disable_slat",
        aliases: &[],
        value: "0|1",
        help: "Does not measure submission latency",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.disable.slat = value),
    },
    OptionSpec {
        name: "disable_bw_measurement",
        aliases: &["disable_bw"],
        value: "0|1",
        help: "Does not measure bandwidth over time",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.disable.bw = value),
    },
    OptionSpec {
        name: "gtod_reduce",
        aliases: &[],
        value: "0|1",
        help: "Looks at the clock as little as possible: the four above",
        kind: Bool,
        group: Telling,
        set: gtod_reduce,
    },
    OptionSpec {
        name: "disk_util",
        aliases: &[],
        value: "0|1",
        help: "Reports what the kernel counted for the disks that files and block devices lie on",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.disk_util = value),
    },
    OptionSpec {
        name: "unified_rw_reporting",
        aliases: &[],
        value: "HOW",
        help: "none: each way by itself; mixed: all as one",
        kind: Value,
        group: Telling,
        set: unified,
    },
    OptionSpec {
        name: "write_bw_log",
        aliases: &[],
        value: "NAME",
        help: "Bandwidth over time into NAME_bw.N.log",
        kind: Optional,
        group: Telling,
        set: |draft, text| {
            draft.job.logs.bw = Some(text.into());
            Ok(())
        },
    },
    OptionSpec {
        name: "write_iops_log",
        aliases: &[],
        value: "NAME",
        help: "IOPS over time into NAME_iops.N.log",
        kind: Optional,
        group: Telling,
        set: |draft, text| {
            draft.job.logs.iops = Some(text.into());
            Ok(())
        },
    },
    OptionSpec {
        name: "write_lat_log",
        aliases: &[],
        value: "NAME",
        help: "Latencies into NAME_slat.N.log, NAME_clat.N.log and NAME_lat.N.log",
        kind: Optional,
        group: Telling,
        set: |draft, text| {
            draft.job.logs.lat = Some(text.into());
            Ok(())
        },
    },
    OptionSpec {
        name: "write_hist_log",
        aliases: &[],
        value: "NAME",
        help: "Histograms of completion latency into NAME_clat_hist.N.log",
        kind: Optional,
        group: Telling,
        set: |draft, text| {
            draft.job.logs.hist = Some(text.into());
            Ok(())
        },
    },
    OptionSpec {
        name: "log_avg_msec",
        aliases: &[],
        value: "TIME",
        help: "Logs averages over so long instead of each I/O; milliseconds",
        kind: Value,
        group: Telling,
        set: |draft, text| time(text, MS).map(|value| draft.job.logs.avg = value),
    },
    OptionSpec {
        name: "log_hist_msec",
        aliases: &[],
        value: "TIME",
        help: "Logs a histogram so often; milliseconds",
        kind: Value,
        group: Telling,
        set: |draft, text| time(text, MS).map(|value| draft.job.logs.hist_every = value),
    },
    OptionSpec {
        name: "log_hist_coarseness",
        aliases: &[],
        value: "N",
        help: "How coarse histograms are, 0 to 6",
        kind: Value,
        group: Telling,
        set: |draft, text| {
            within(text, draft.kb_base, 0, 6).map(|n| draft.job.logs.hist_coarseness = n as u8)
        },
    },
    OptionSpec {
        name: "log_window_value",
        aliases: &["log_max_value"],
        value: "WHICH",
        help: "What log_avg_msec logs of latencies: avg (0), max (1) or both, one after the other",
        kind: Value,
        group: Telling,
        set: |draft, text| {
            let words = [
                ("avg", WindowValue::Average),
                ("max", WindowValue::Maximum),
                ("both", WindowValue::Both),
                ("0", WindowValue::Average),
                ("1", WindowValue::Maximum),
            ];
            word(text, &words).map(|value| draft.job.logs.window = value)
        },
    },
    OptionSpec {
        name: "log_offset",
        aliases: &[],
        value: "0|1",
        help: "Logs each I/O's offset",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.logs.offset = value),
    },
    OptionSpec {
        name: "log_prio",
        aliases: &[],
        value: "0|1",
        help: "Logs priorities as hexadecimal numbers; there is only 0x0000",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.logs.prio = value),
    },
    OptionSpec {
        name: "log_issue_time",
        aliases: &[],
        value: "0|1",
        help: "Logs when each I/O was issued, in nanoseconds since the start, with slat and clat",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.logs.issue_time = value),
    },
    OptionSpec {
        name: "log_unix_epoch",
        aliases: &[],
        value: "0|1",
        help: "Logs times since 1970 instead of since the start",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.logs.unix_epoch = value),
    },
    OptionSpec {
        name: "per_job_logs",
        aliases: &[],
        value: "0|1",
        help: "A log for each thread, or one for all",
        kind: Bool,
        group: Telling,
        set: |draft, text| switch(text).map(|value| draft.job.logs.shared = !value),
    },
];

fn gtod_reduce(draft: &mut Draft, text: &str) -> Parsed<()> {
    if switch(text)? {
        draft.job.disable = Disabled { lat: true, clat: true, slat: true, bw: true };
    }
    Ok(())
}

fn percentile_list(draft: &mut Draft, text: &str) -> Parsed<()> {
    const MAX: usize = 20;
    let parsed: Parsed<Vec<f64>> = text.split(':').map(|part| fraction(part, 0.0, 100.0)).collect();
    let mut list = parsed.map_err(|why| format!("{why}; write the list as in 50:99:99.9"))?;
    if list.len() > MAX {
        return Err(format!("there are {} percentiles; there may be {MAX}", list.len()));
    }
    list.sort_by(f64::total_cmp);
    list.dedup();
    draft.job.percentile_list = list;
    Ok(())
}

fn unified(draft: &mut Draft, text: &str) -> Parsed<()> {
    if matches!(text, "both" | "2") {
        return Err(
            "both cannot be reported at once; take mixed or none, and sum up what is needed"
                .to_owned(),
        );
    }
    let words = [("none", false), ("mixed", true), ("0", false), ("1", true)];
    draft.job.unified_rw_reporting = word(text, &words)?;
    Ok(())
}
