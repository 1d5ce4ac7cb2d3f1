//! Sets options: which field each option is, and how its value is read.
//!
//! Most options are rows of the tables by kind of value; the others have a setter of their own.

use std::time::Duration;

use adit_driver::paths::Durability;

use super::draft::Draft;
use super::grammar::{
    MS, Parsed, SECOND, US, choice, count, fraction, numbers, per_way, percent, size, switch, time,
    times, whole, within, within_u32, word,
};
use super::parse::*;
use super::values::Disabled;
use super::{iolog, table, targets, workload};
use crate::units::KbBase;
use crate::way::PerWay;

/// The longest queue NVMe allows, in entries.
const DEPTH_MAX: u32 = 65_535;
/// The greatest `flow`, as in fio.
const FLOW_MAX: u32 = 1000;

/// The place of an option's value.
type Field<T> = fn(&mut Draft) -> &mut T;

/// Options that are on or off.
const SWITCHES: &[(&str, Field<bool>)] = &[
    ("direct", |it| &mut it.job.files.direct),
    ("invalidate", |it| &mut it.job.files.invalidate),
    ("hipri", |it| &mut it.job.files.hipri),
    ("fixedbufs", |it| &mut it.job.files.fixedbufs),
    ("unlink", |it| &mut it.job.files.unlink),
    ("allow_file_create", |it| &mut it.job.files.allow_file_create),
    ("create_only", |it| &mut it.job.files.create_only),
    ("overwrite", |it| &mut it.job.files.overwrite),
    ("fdp", |it| &mut it.job.nvme.placement.is_on),
    ("norandommap", |it| &mut it.job.random.norandommap),
    ("randrepeat", |it| &mut it.job.random.randrepeat),
    ("replay_no_stall", |it| &mut it.job.replay.no_stall),
    ("fill_device", |it| &mut it.job.amount.fill_device),
    ("serialize_overlap", |it| &mut it.job.batch.serialize_overlap),
    ("group_reporting", |it| &mut it.job.order.group_reporting),
    ("new_group", |it| &mut it.job.order.new_group),
    ("stonewall", |it| &mut it.job.order.stonewall),
    ("exitall", |it| &mut it.job.order.exitall),
    ("exitall_on_error", |it| &mut it.job.order.exitall_on_error),
    ("time_based", |it| &mut it.job.time.time_based),
    ("latency_run", |it| &mut it.latency.run),
    ("refill_buffers", |it| &mut it.job.buffers.refill_buffers),
    ("scramble_buffers", |it| &mut it.job.buffers.scramble_buffers),
    ("zero_buffers", |it| &mut it.job.buffers.zero_buffers),
    ("end_fsync", |it| &mut it.job.flushes.end_fsync),
    ("do_verify", |it| &mut it.verify.do_verify),
    ("verify_only", |it| &mut it.verify.only),
    ("verify_fatal", |it| &mut it.verify.fatal),
    ("verify_state_load", |it| &mut it.verify.state_load),
    ("verify_dump", |it| &mut it.verify.dump),
    ("clat_percentiles", |it| &mut it.job.reports.clat_percentiles),
    ("slat_percentiles", |it| &mut it.job.reports.slat_percentiles),
    ("lat_percentiles", |it| &mut it.job.reports.lat_percentiles),
    ("disable_lat", |it| &mut it.job.reports.disable.lat),
    ("disable_clat", |it| &mut it.job.reports.disable.clat),
    ("disable_slat", |it| &mut it.job.reports.disable.slat),
    ("disable_bw_measurement", |it| &mut it.job.reports.disable.bw),
    ("disk_util", |it| &mut it.job.reports.disk_util),
    ("log_offset", |it| &mut it.job.logs.offset),
    ("log_prio", |it| &mut it.job.logs.prio),
    ("log_issue_time", |it| &mut it.job.logs.issue_time),
    ("log_unix_epoch", |it| &mut it.job.logs.unix_epoch),
];

/// Numbers with their bounds.
const NUMBERS: &[(&str, u32, u32, Field<u32>)] = &[
    ("nrfiles", 1, 65_536, |it| &mut it.job.files.nrfiles),
    ("replay_time_scale", 1, 1_000_000, |it| &mut it.job.replay.time_scale),
    ("loops", 1, u32::MAX, |it| &mut it.job.amount.loops),
    ("iodepth", 1, DEPTH_MAX, |it| &mut it.job.iodepth),
    ("iodepth_batch_complete_min", 0, DEPTH_MAX, |it| &mut it.job.batch.iodepth_batch_complete_min),
    ("numjobs", 1, 4096, |it| &mut it.job.order.numjobs),
    ("flow", 0, FLOW_MAX, |it| &mut it.job.time.flow.weight),
    ("flow_id", 0, u32::MAX, |it| &mut it.job.time.flow.id),
];

/// Numbers of which 0 means none.
const COUNTS: &[(&str, u32, Field<Option<u32>>)] = &[
    ("iodepth_batch_complete_max", DEPTH_MAX, |it| &mut it.job.batch.iodepth_batch_complete_max),
    ("iodepth_low", DEPTH_MAX, |it| &mut it.job.batch.iodepth_low),
    ("fsync", u32::MAX, |it| &mut it.job.flushes.fsync),
    ("fdatasync", u32::MAX, |it| &mut it.job.flushes.fdatasync),
];

/// Times with the unit of a bare number.
const TIMES: &[(&str, Duration, Field<Duration>)] = &[
    ("ramp_time", SECOND, |it| &mut it.job.time.ramp_time),
    ("thinktime", US, |it| &mut it.job.time.thinktime.time),
    ("thinktime_spin", US, |it| &mut it.job.time.thinktime.spin),
    ("thinktime_iotime", SECOND, |it| &mut it.job.time.thinktime.iotime),
    ("flow_sleep", US, |it| &mut it.job.time.flow.sleep),
    ("rate_cycle", MS, |it| &mut it.job.rates.rate_cycle),
    ("latency_target", US, |it| &mut it.latency.target),
    ("latency_window", US, |it| &mut it.latency.window),
    ("steadystate_duration", SECOND, |it| &mut it.steady.duration),
    ("steadystate_ramp_time", SECOND, |it| &mut it.steady.ramp),
    ("log_avg_msec", MS, |it| &mut it.job.logs.avg),
    ("log_hist_msec", MS, |it| &mut it.job.logs.hist_every),
];

/// Rates by way.
const RATES: &[(&str, Field<PerWay<Option<u64>>>)] = &[
    ("rate", |it| &mut it.job.rates.rate),
    ("rate_min", |it| &mut it.job.rates.rate_min),
    ("rate_iops", |it| &mut it.job.rates.rate_iops),
    ("rate_iops_min", |it| &mut it.job.rates.rate_iops_min),
];

/// Sets an option to a text.
type Setter = fn(&mut Draft, &str) -> Parsed<()>;

/// All other options.
const OTHERS: &[(&str, Setter)] = &[
    ("name", |it, text| put(&mut it.job.name, job_name(text))),
    ("description", |it, text| some(&mut it.job.description, Ok(text.to_owned()))),
    ("filename", |it, text| put(&mut it.job.files.filename, targets::split(text))),
    ("directory", |it, text| {
        some(&mut it.job.files.directory, Ok(text.replace("\\:", ":").into()))
    }),
    ("filename_format", |it, text| put(&mut it.job.files.filename_format, Ok(text.to_owned()))),
    ("file_service_type", |it, text| {
        put(&mut it.job.files.file_service, file_service_type(text, it.kb_base))
    }),
    ("filesize", |it, text| some(&mut it.file_bytes, filesize(text, it.kb_base))),
    ("ioengine", |it, text| put(&mut it.job.files.ioengine, workload::engine(text))),
    ("buffered", |it, text| put(&mut it.job.files.direct, switch(text).map(|is_on| !is_on))),
    ("fallocate", |it, text| put(&mut it.job.files.fallocate, fallocate(text))),
    ("kb_base", |it, text| {
        let words = [("1024", KbBase::Binary), ("1000", KbBase::Decimal)];
        put(&mut it.kb_base, word(text, &words))
    }),
    ("cpus_allowed", |it, text| some(&mut it.job.cpus.cpus_allowed, numbers(text, "cores"))),
    ("cpus_allowed_policy", |it, text| put(&mut it.job.cpus.cpus_allowed_policy, choice(text))),
    ("numa_cpu_nodes", |it, text| put(&mut it.job.cpus.numa_cpu_nodes, numa_nodes(text))),
    ("rw", |it, text| put(&mut it.job.rw, workload::rw(text, it.kb_base))),
    ("rwmixread", |it, text| some(&mut it.mix_read, percent(text))),
    ("rwmixwrite", |it, text| some(&mut it.mix_write, percent(text))),
    ("bs", |it, text| per_way(text, &mut it.job.bs, |part| workload::block(part, it.kb_base))),
    // As in fio, `/` also separates the ways.
    ("bsrange", |it, text| {
        let range = |part: &str| workload::block_range(part, it.kb_base);
        per_way(&text.replace('/', ","), &mut it.job.bs, range)
    }),
    ("bssplit", |it, text| {
        per_way(text, &mut it.job.bs, |part| workload::block_split(part, it.kb_base))
    }),
    ("blockalign", |it, text| {
        let align = |part: &str| workload::block_bytes(part, it.kb_base).map(Some);
        per_way(text, &mut it.job.random.blockalign, align)
    }),
    ("random_distribution", |it, text| {
        workload::distributions(text, &mut it.job.random.random_distribution, it.kb_base)
    }),
    ("percentage_random", |it, text| per_way(text, &mut it.job.random.percentage_random, percent)),
    ("dataplacement", |it, text| put(&mut it.job.nvme.placement.is_on, data_placement(text))),
    ("plids", |it, text| some(&mut it.job.nvme.placement.indices, numbers(text, "handles"))),
    ("plid_select", |it, text| {
        let words = [("roundrobin", false), ("random", true)];
        put(&mut it.job.nvme.placement.is_random, word(text, &words))
    }),
    ("random_generator", |it, text| {
        let words = [("tausworthe", false), ("tausworthe64", false), ("lfsr", true)];
        put(&mut it.job.random.is_lfsr, word(text, &words))
    }),
    ("randseed", |it, text| some(&mut it.job.random.randseed, whole(text, KbBase::Binary))),
    ("read_iolog", |it, text| put(&mut it.job.replay.logs, iolog::names(text))),
    ("replay_redirect", |it, text| some(&mut it.job.replay.redirect, one_target(text))),
    ("replay_scale", |it, text| {
        put(&mut it.job.replay.scale, within(text, it.kb_base, 1, u64::MAX))
    }),
    ("replay_align", |it, text| put(&mut it.job.replay.align, replay_align(text, it.kb_base))),
    ("replay_skip", |it, text| put(&mut it.job.replay.skip, iolog::skip(text))),
    ("size", |it, text| some(&mut it.job.amount.size, size(text, it.kb_base))),
    ("io_size", |it, text| some(&mut it.job.amount.io_size, size(text, it.kb_base))),
    ("offset", |it, text| put(&mut it.job.amount.offset, size(text, it.kb_base))),
    ("offset_increment", |it, text| {
        put(&mut it.job.amount.offset_increment, size(text, it.kb_base))
    }),
    ("number_ios", |it, text| put(&mut it.job.amount.number_ios, count(text, it.kb_base))),
    ("iodepth_batch", |it, text| {
        let batch = within_u32(text, it.kb_base, 0, DEPTH_MAX);
        let batch = batch.map(|most| Some(if most == 0 { DEPTH_MAX } else { most }));
        put(&mut it.job.batch.iodepth_batch, batch)
    }),
    ("exit_what", |it, text| put(&mut it.job.order.exit_what, choice(text))),
    ("wait_for", |it, text| some(&mut it.job.order.wait_for, Ok(text.to_owned()))),
    ("runtime", |it, text| {
        let runtime = time(text, SECOND).map(|time| Some(time).filter(|time| !time.is_zero()));
        put(&mut it.job.time.runtime, runtime)
    }),
    ("startdelay", |it, text| put(&mut it.job.order.startdelay, times(text, SECOND))),
    ("thinktime_blocks", |it, text| {
        let blocks = within_u32(text, it.kb_base, 1, u32::MAX);
        some(&mut it.job.time.thinktime.blocks, blocks)
    }),
    ("thinktime_blocks_type", |it, text| {
        let words = [("complete", false), ("issue", true)];
        put(&mut it.job.time.thinktime.counts_issues, word(text, &words))
    }),
    ("rate_process", |it, text| put(&mut it.job.rates.rate_process, choice(text))),
    ("max_latency", |it, text| put(&mut it.job.time.max_latency, max_latency(text))),
    ("latency_percentile", |it, text| put(&mut it.latency.percentile, fraction(text, 0.0, 100.0))),
    ("steadystate", |it, text| {
        it.is_steady = true;
        workload::steady_state(text, &mut it.steady)
    }),
    ("buffer_pattern", |it, text| some(&mut it.job.buffers.buffer_pattern, buffer_pattern(text))),
    ("buffer_compress_percentage", |it, text| {
        put(&mut it.job.buffers.buffer_compress_percentage, percent(text))
    }),
    ("buffer_compress_chunk", |it, text| {
        put(&mut it.job.buffers.buffer_compress_chunk, within(text, it.kb_base, 0, 1 << 30))
    }),
    ("sync", |it, text| {
        let words = [
            ("none", Durability::Cached),
            ("0", Durability::Cached),
            ("sync", Durability::All),
            ("1", Durability::All),
            ("dsync", Durability::Data),
        ];
        put(&mut it.job.flushes.sync, word(text, &words))
    }),
    ("verify", |it, text| {
        let kind = verify_kind(text)?;
        (it.verifies, it.is_verify_given) = (kind.is_some(), true);
        it.verify.kind = kind.unwrap_or(it.verify.kind);
        Ok(())
    }),
    ("verify_backlog", |it, text| put(&mut it.verify.backlog, count(text, it.kb_base))),
    ("verify_interval", |it, text| {
        some(&mut it.verify.interval, within(text, it.kb_base, 80, 1 << 30))
    }),
    // As in fio, `verify_pattern` alone turns on verification, with headers.
    ("verify_pattern", |it, text| {
        some(&mut it.verify.pattern, text.parse())?;
        it.verifies |= !it.is_verify_given;
        Ok(())
    }),
    ("verify_state_save", |it, text| some(&mut it.verify.state_save, switch(text))),
    ("pi_chk", |it, text| {
        some(&mut it.job.nvme.protection.get_or_insert_default().checks, pi_chk(text))
    }),
    ("apptag", |it, text| put(&mut it.job.nvme.protection.get_or_insert_default().tag, tag(text))),
    ("apptag_mask", |it, text| {
        put(&mut it.job.nvme.protection.get_or_insert_default().mask, tag(text))
    }),
    ("continue_on_error", |it, text| put(&mut it.job.failures.continue_on_error, choice(text))),
    ("ignore_error", |it, text| put(&mut it.job.failures.ignore_error, ignore_error(text))),
    ("retries", |it, text| {
        let retries = within(text, it.kb_base, 0, 255).map(|retries| Some(retries as u8));
        put(&mut it.job.failures.retries, retries)
    }),
    ("io_timeout", |it, text| some(&mut it.job.failures.io_timeout, io_timeout(text))),
    ("percentile_list", |it, text| put(&mut it.job.reports.percentile_list, percentile_list(text))),
    ("gtod_reduce", |it, text| {
        let all = Disabled { lat: true, clat: true, slat: true, bw: true };
        let disabled = if switch(text)? { all } else { it.job.reports.disable };
        put(&mut it.job.reports.disable, Ok(disabled))
    }),
    ("unified_rw_reporting", |it, text| {
        put(&mut it.job.reports.unified_rw_reporting, unified(text))
    }),
    ("write_bw_log", |it, text| some(&mut it.job.logs.bw, Ok(text.into()))),
    ("write_iops_log", |it, text| some(&mut it.job.logs.iops, Ok(text.into()))),
    ("write_lat_log", |it, text| some(&mut it.job.logs.lat, Ok(text.into()))),
    ("write_hist_log", |it, text| some(&mut it.job.logs.hist, Ok(text.into()))),
    ("write_iolog", |it, text| some(&mut it.job.logs.iolog, Ok(text.into()))),
    ("log_hist_coarseness", |it, text| {
        put(&mut it.job.logs.hist_coarseness, within(text, it.kb_base, 0, 6).map(|it| it as u8))
    }),
    ("log_window_value", |it, text| put(&mut it.job.logs.window, choice(text))),
    ("per_job_logs", |it, text| put(&mut it.job.logs.shared, switch(text).map(|is_on| !is_on))),
];

/// Puts a parsed value in its place.
fn put<T>(place: &mut T, value: Parsed<T>) -> Parsed<()> {
    *place = value?;
    Ok(())
}

/// Puts a parsed value in its place, which may have none.
fn some<T>(place: &mut Option<T>, value: Parsed<T>) -> Parsed<()> {
    put(place, value.map(Some))
}

/// Returns the row of an option.
fn row<T>(rows: &'static [T], is_it: impl Fn(&T) -> bool) -> Option<&'static T> {
    rows.iter().find(|row| is_it(row))
}

/// Sets a supported option.
///
/// # Errors
/// A sentence without the option's name.
pub(crate) fn set(draft: &mut Draft, name: &str, text: &str) -> Parsed<()> {
    let base = draft.kb_base;
    if let Some((_, field)) = row(SWITCHES, |row| row.0 == name) {
        put(field(draft), switch(text))
    } else if let Some((_, from, to, field)) = row(NUMBERS, |row| row.0 == name) {
        put(field(draft), within_u32(text, base, *from, *to))
    } else if let Some((_, most, field)) = row(COUNTS, |row| row.0 == name) {
        let number = within_u32(text, base, 0, *most);
        put(field(draft), number.map(|number| Some(number).filter(|number| *number > 0)))
    } else if let Some((_, unit, field)) = row(TIMES, |row| row.0 == name) {
        put(field(draft), time(text, *unit))
    } else if let Some((_, field)) = row(RATES, |row| row.0 == name) {
        per_way(text, field(draft), |part| count(part, base))
    } else if let Some((_, setter)) = row(OTHERS, |row| row.0 == name) {
        setter(draft, text)
    } else {
        Err(table::unknown(name))
    }
}
