//! Parses and stores the value of each supported option.

use adit_driver::paths::Durability;
use adit_load::Pattern;
use nix::errno::Errno;

use super::draft::Draft;
use super::grammar::{
    MS, Parsed, SECOND, US, choice, count, fraction, numbers, per_way, percent, size, switch, time,
    times, whole, within, within_u32, word,
};
use super::{Disabled, FileService, VerifyKind, iolog, targets, workload};
use crate::units::KbBase;

/// The longest queue NVMe allows, in entries.
const DEPTH_MAX: u32 = 65_535;
/// The greatest `flow`, as in fio.
const FLOW_MAX: u32 = 1000;

/// Sets a supported option.
///
/// # Errors
/// A sentence without the option's name.
pub(crate) fn set(draft: &mut Draft, name: &str, text: &str) -> Parsed<()> {
    let groups =
        [place, work, replay, amount, depth, timing, data, verification, failures, reports];
    for group in groups {
        if group(draft, name, text)? {
            return Ok(());
        }
    }
    Err(super::table::unknown(name))
}

// Each of the following sets the options of its group and returns whether `name` is one of them.

fn place(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    match name {
        "name" => job.name = job_name(text)?,
        "description" => job.description = Some(text.to_owned()),
        "filename" => job.files.filename = targets::split(text)?,
        "directory" => job.files.directory = Some(text.replace("\\:", ":").into()),
        "filename_format" => job.files.filename_format = filename_format(text)?,
        "nrfiles" => job.files.nrfiles = within_u32(text, base, 1, 65536)?,
        "file_service_type" => job.files.file_service = file_service_type(text, base)?,
        "filesize" => draft.file_bytes = Some(filesize(text, base)?),
        "ioengine" => job.files.ioengine = workload::engine(text)?,
        "direct" => job.files.direct = switch(text)?,
        "buffered" => job.files.direct = !switch(text)?,
        "invalidate" => job.files.invalidate = switch(text)?,
        "hipri" => job.files.hipri = switch(text)?,
        "fixedbufs" => job.files.fixedbufs = switch(text)?,
        "unlink" => job.files.unlink = switch(text)?,
        "allow_file_create" => job.files.allow_file_create = switch(text)?,
        "fallocate" => job.files.fallocate = fallocate(text)?,
        "create_only" => job.files.create_only = switch(text)?,
        "overwrite" => job.files.overwrite = switch(text)?,
        "kb_base" => {
            draft.kb_base = word(text, &[("1024", KbBase::Binary), ("1000", KbBase::Decimal)])?;
        }
        "cpus_allowed" => job.cpus.cpus_allowed = Some(numbers(text, "cores")?),
        "cpus_allowed_policy" => {
            job.cpus.cpus_allowed_policy = choice(text)?;
        }
        "numa_cpu_nodes" if text == "all" => job.cpus.numa_cpu_nodes = None,
        "numa_cpu_nodes" => job.cpus.numa_cpu_nodes = Some(numbers(text, "nodes")?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn work(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    match name {
        "rw" => job.rw = workload::rw(text, base)?,
        "rw_sequencer" => job.rw_sequencer = choice(text)?,
        "rwmixread" => draft.mix_read = Some(percent(text)?),
        "rwmixwrite" => draft.mix_write = Some(percent(text)?),
        "bs" => per_way(text, &mut job.bs, |part| workload::block(part, base))?,
        // As in fio, `/` also separates the ways.
        "bsrange" => {
            let text = text.replace('/', ",");
            per_way(&text, &mut job.bs, |part| workload::block_range(part, base))?;
        }
        "bssplit" => per_way(text, &mut job.bs, |part| workload::block_split(part, base))?,
        "blockalign" => {
            let align = |part: &str| workload::block_bytes(part, base).map(Some);
            per_way(text, &mut job.random.blockalign, align)?;
        }
        "random_distribution" => {
            workload::distributions(text, &mut job.random.random_distribution, base)?;
        }
        "percentage_random" => per_way(text, &mut job.random.percentage_random, percent)?,
        "num_range" => job.nvme.num_range = within_u32(text, base, 1, 256)?,
        "fdp" => job.nvme.placement.is_on = switch(text)?,
        "dataplacement" => job.nvme.placement.is_on = data_placement(text)?,
        "plids" => job.nvme.placement.indices = Some(numbers(text, "handles")?),
        "plid_select" => {
            let words = [("roundrobin", false), ("random", true)];
            job.nvme.placement.is_random = word(text, &words)?;
        }
        "norandommap" => job.random.norandommap = switch(text)?,
        "random_generator" => {
            let words = [("tausworthe", false), ("tausworthe64", false), ("lfsr", true)];
            job.random.is_lfsr = word(text, &words)?;
        }
        "randseed" => job.random.randseed = Some(whole(text, KbBase::Binary)?),
        "randrepeat" => job.random.randrepeat = switch(text)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn replay(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (replay, base) = (&mut draft.job.replay, draft.kb_base);
    match name {
        "read_iolog" => replay.logs = iolog::names(text)?,
        "replay_no_stall" => replay.no_stall = switch(text)?,
        "replay_time_scale" => replay.time_scale = within_u32(text, base, 1, 1_000_000)?,
        "replay_redirect" => replay.redirect = Some(one_target(text)?),
        "replay_scale" => replay.scale = within(text, base, 1, u64::MAX)?,
        "replay_align" => replay.align = replay_align(text, base)?,
        "replay_skip" => replay.skip = iolog::skip(text)?,
        "write_iolog" => draft.job.logs.iolog = Some(text.into()),
        _ => return Ok(false),
    }
    Ok(true)
}

fn amount(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    match name {
        "size" => job.amount.size = Some(size(text, base)?),
        "io_size" => job.amount.io_size = Some(size(text, base)?),
        "offset" => job.amount.offset = size(text, base)?,
        "offset_increment" => job.amount.offset_increment = size(text, base)?,
        "number_ios" => job.amount.number_ios = count(text, base)?,
        "loops" => job.amount.loops = within_u32(text, base, 1, u32::MAX)?,
        "fill_device" => job.amount.fill_device = switch(text)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn depth(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    let up_to_max = |from| within_u32(text, base, from, DEPTH_MAX);
    let above_zero = |number: u32| Some(number).filter(|number| *number > 0);
    match name {
        "iodepth" => job.iodepth = up_to_max(1)?,
        "iodepth_batch" => {
            job.batch.iodepth_batch = Some(above_zero(up_to_max(0)?).unwrap_or(DEPTH_MAX));
        }
        "iodepth_batch_complete_min" => job.batch.iodepth_batch_complete_min = up_to_max(0)?,
        "iodepth_batch_complete_max" => {
            job.batch.iodepth_batch_complete_max = above_zero(up_to_max(0)?);
        }
        "iodepth_low" => job.batch.iodepth_low = above_zero(up_to_max(0)?),
        "serialize_overlap" => job.batch.serialize_overlap = switch(text)?,
        "numjobs" => job.order.numjobs = within_u32(text, base, 1, 4096)?,
        "group_reporting" => job.order.group_reporting = switch(text)?,
        "new_group" => job.order.new_group = switch(text)?,
        "stonewall" => job.order.stonewall = switch(text)?,
        "exitall" => job.order.exitall = switch(text)?,
        "exitall_on_error" => job.order.exitall_on_error = switch(text)?,
        "exit_what" => job.order.exit_what = choice(text)?,
        "wait_for" => job.order.wait_for = Some(text.to_owned()),
        _ => return Ok(false),
    }
    Ok(true)
}

fn timing(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    let (latency, steady) = (&mut draft.latency, &mut draft.steady);
    match name {
        "runtime" => job.time.runtime = Some(time(text, SECOND)?).filter(|time| !time.is_zero()),
        "time_based" => job.time.time_based = switch(text)?,
        "startdelay" => job.order.startdelay = times(text, SECOND)?,
        "ramp_time" => job.time.ramp_time = time(text, SECOND)?,
        "thinktime" => job.time.thinktime.time = time(text, US)?,
        "thinktime_spin" => job.time.thinktime.spin = time(text, US)?,
        "thinktime_blocks" => {
            job.time.thinktime.blocks = Some(within_u32(text, base, 1, u32::MAX)?);
        }
        "thinktime_blocks_type" => {
            job.time.thinktime.counts_issues = word(text, &[("complete", false), ("issue", true)])?;
        }
        "thinktime_iotime" => job.time.thinktime.iotime = time(text, SECOND)?,
        "flow" => job.time.flow.weight = within_u32(text, base, 0, FLOW_MAX)?,
        "flow_id" => job.time.flow.id = within_u32(text, base, 0, u32::MAX)?,
        "flow_sleep" => job.time.flow.sleep = time(text, US)?,
        "rate" => per_way(text, &mut job.rates.rate, |part| count(part, base))?,
        "rate_min" => per_way(text, &mut job.rates.rate_min, |part| count(part, base))?,
        "rate_iops" => per_way(text, &mut job.rates.rate_iops, |part| count(part, base))?,
        "rate_iops_min" => per_way(text, &mut job.rates.rate_iops_min, |part| count(part, base))?,
        "rate_process" => job.rates.rate_process = choice(text)?,
        "rate_cycle" => job.rates.rate_cycle = time(text, MS)?,
        "max_latency" => job.time.max_latency = max_latency(text)?,
        "latency_target" => latency.target = time(text, US)?,
        "latency_window" => latency.window = time(text, US)?,
        "latency_percentile" => latency.percentile = fraction(text, 0.0, 100.0)?,
        "latency_run" => latency.run = switch(text)?,
        "steadystate" => {
            workload::steady_state(text, steady)?;
            draft.is_steady = true;
        }
        "steadystate_duration" => steady.duration = time(text, SECOND)?,
        "steadystate_ramp_time" => steady.ramp = time(text, SECOND)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn data(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    match name {
        "buffer_pattern" => job.buffers.buffer_pattern = Some(buffer_pattern(text)?),
        "refill_buffers" => job.buffers.refill_buffers = switch(text)?,
        "scramble_buffers" => job.buffers.scramble_buffers = switch(text)?,
        "zero_buffers" => job.buffers.zero_buffers = switch(text)?,
        "buffer_compress_percentage" => job.buffers.buffer_compress_percentage = percent(text)?,
        "buffer_compress_chunk" => {
            job.buffers.buffer_compress_chunk = within(text, base, 0, 1 << 30)?
        }
        "sync" => {
            let words = [
                ("none", Durability::Cached),
                ("0", Durability::Cached),
                ("sync", Durability::All),
                ("1", Durability::All),
                ("dsync", Durability::Data),
            ];
            job.flushes.sync = word(text, &words)?;
        }
        "fsync" => {
            job.flushes.fsync = Some(within_u32(text, base, 0, u32::MAX)?).filter(|n| *n > 0)
        }
        "fdatasync" => {
            job.flushes.fdatasync = Some(within_u32(text, base, 0, u32::MAX)?).filter(|n| *n > 0);
        }
        "end_fsync" => job.flushes.end_fsync = switch(text)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn verification(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    let options = &mut draft.verify;
    match name {
        "verify" => {
            let kind = verify_kind(text)?;
            (draft.verifies, draft.is_verify_given) = (kind.is_some(), true);
            options.kind = kind.unwrap_or(options.kind);
        }
        "do_verify" => options.do_verify = switch(text)?,
        "verify_only" => options.only = switch(text)?,
        "verify_fatal" => options.fatal = switch(text)?,
        "verify_backlog" => options.backlog = count(text, base)?,
        "verify_backlog_batch" => options.backlog_batch = count(text, base)?,
        "verify_interval" => options.interval = Some(within(text, base, 80, 1 << 30)?),
        // As in fio, `verify_pattern` alone turns on verification, with headers.
        "verify_pattern" => {
            options.pattern = Some(text.parse()?);
            draft.verifies |= !draft.is_verify_given;
        }
        "verify_state_save" => options.state_save = Some(switch(text)?),
        "verify_state_load" => options.state_load = switch(text)?,
        "verify_dump" => options.dump = switch(text)?,
        "pi_chk" => job.nvme.protection.get_or_insert_default().checks = Some(pi_chk(text)?),
        "apptag" => {
            job.nvme.protection.get_or_insert_default().tag = within(text, base, 0, 0xffff)? as u16;
        }
        "apptag_mask" => {
            job.nvme.protection.get_or_insert_default().mask =
                within(text, base, 0, 0xffff)? as u16;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn failures(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    match name {
        "continue_on_error" => job.failures.continue_on_error = choice(text)?,
        "ignore_error" => job.failures.ignore_error = ignore_error(text)?,
        "retries" => job.failures.retries = Some(within(text, base, 0, 255)? as u8),
        "io_timeout" => match time(text, SECOND)? {
            time if time.is_zero() => return Err("it must be at least a microsecond".to_owned()),
            time => job.failures.io_timeout = Some(time),
        },
        _ => return Ok(false),
    }
    Ok(true)
}

fn reports(draft: &mut Draft, name: &str, text: &str) -> Parsed<bool> {
    let (job, base) = (&mut draft.job, draft.kb_base);
    let logs = &mut job.logs;
    match name {
        "percentile_list" => job.reports.percentile_list = percentile_list(text)?,
        "clat_percentiles" => job.reports.clat_percentiles = switch(text)?,
        "slat_percentiles" => job.reports.slat_percentiles = switch(text)?,
        "lat_percentiles" => job.reports.lat_percentiles = switch(text)?,
        "disable_lat" => job.reports.disable.lat = switch(text)?,
        "disable_clat" => job.reports.disable.clat = switch(text)?,
        "disable_slat" => job.reports.disable.slat = switch(text)?,
        "disable_bw_measurement" => job.reports.disable.bw = switch(text)?,
        "gtod_reduce" => {
            if switch(text)? {
                job.reports.disable = Disabled { lat: true, clat: true, slat: true, bw: true };
            }
        }
        "disk_util" => job.reports.disk_util = switch(text)?,
        "unified_rw_reporting" => job.reports.unified_rw_reporting = unified(text)?,
        "write_bw_log" => logs.bw = Some(text.into()),
        "write_iops_log" => logs.iops = Some(text.into()),
        "write_lat_log" => logs.lat = Some(text.into()),
        "write_hist_log" => logs.hist = Some(text.into()),
        "log_avg_msec" => logs.avg = time(text, MS)?,
        "log_hist_msec" => logs.hist_every = time(text, MS)?,
        "log_hist_coarseness" => logs.hist_coarseness = within(text, base, 0, 6)? as u8,
        "log_window_value" => logs.window = choice(text)?,
        "log_offset" => logs.offset = switch(text)?,
        "log_prio" => logs.prio = switch(text)?,
        "log_issue_time" => logs.issue_time = switch(text)?,
        "log_unix_epoch" => logs.unix_epoch = switch(text)?,
        "per_job_logs" => logs.shared = !switch(text)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn data_placement(text: &str) -> Parsed<bool> {
    if text == "streams" {
        return Err("streams are not supported; use fdp, or fio".to_owned());
    }
    word(text, &[("none", false), ("fdp", true)])
}

/// Parses the name of a single file or target.
fn one_target(text: &str) -> Parsed<String> {
    match &targets::split(text)?[..] {
        [only] => Ok(only.clone()),
        several => Err(format!("'{text}' names {} targets; give one", several.len())),
    }
}

fn replay_align(text: &str, base: KbBase) -> Parsed<u64> {
    match within(text, base, 1, 1 << 40)? {
        align if align.is_power_of_two() => Ok(align),
        _ => Err(format!("'{text}' is no power of two, as 4k is")),
    }
}

fn job_name(text: &str) -> Parsed<String> {
    if text.eq_ignore_ascii_case("global") {
        return Err(
            "a job cannot be called global, which means defaults; choose another name".into()
        );
    }
    Ok(text.to_owned())
}

fn filename_format(text: &str) -> Parsed<String> {
    if text.is_empty() {
        return Err("it names no file; write it as in $jobname.$jobnum.$filenum".to_owned());
    }
    Ok(text.to_owned())
}

fn file_service_type(text: &str, base: KbBase) -> Parsed<FileService> {
    let (name, ios) = text.split_once(':').unwrap_or((text, "1"));
    if ["zipf", "pareto", "normal", "gauss"].contains(&name) {
        return Err(format!(
            "'{name}' is not supported for files; use random, or jobs with shares"
        ));
    }
    Ok(FileService { order: choice(name)?, ios: within_u32(ios, base, 1, u32::MAX)? })
}

fn filesize(text: &str, base: KbBase) -> Parsed<u64> {
    if text.contains(['-', ':']) && !text.starts_with('(') {
        return Err(format!("'{text}': all files of a job have the same length; give one size"));
    }
    count(text, base)?.ok_or_else(|| "a file has at least one byte".to_owned())
}

fn fallocate(text: &str) -> Parsed<bool> {
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
fn max_latency(text: &str) -> Parsed<Option<std::time::Duration>> {
    let limits = text.split(',').map(|part| time(part, US)).collect::<Parsed<Vec<_>>>()?;
    if limits.iter().any(|limit| *limit != limits[0]) {
        return Err(format!("'{text}': there is one limit for all ways; give the greatest"));
    }
    Ok(Some(limits[0]).filter(|limit| !limit.is_zero()))
}

fn buffer_pattern(text: &str) -> Parsed<Pattern> {
    let pattern: Pattern = text.parse()?;
    match pattern.offsets_at.is_empty() {
        true => Ok(pattern),
        false => Err("%o is for verify_pattern".to_owned()),
    }
}

fn verify_kind(text: &str) -> Parsed<Option<VerifyKind>> {
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
fn pi_chk(text: &str) -> Parsed<[bool; 3]> {
    let mut checks = [false; 3];
    for name in text.split(',') {
        let words = [("guard", 0), ("reftag", 1), ("apptag", 2)];
        checks[word(&name.trim().to_ascii_lowercase(), &words)?] = true;
    }
    Ok(checks)
}

fn ignore_error(text: &str) -> Parsed<[Vec<i32>; 3]> {
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

fn percentile_list(text: &str) -> Parsed<Vec<f64>> {
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

fn unified(text: &str) -> Parsed<bool> {
    if matches!(text, "both" | "2") {
        return Err("both cannot be reported at once; use mixed or none".to_owned());
    }
    word(text, &[("none", false), ("mixed", true), ("0", false), ("1", true)])
}
