//! fio options that `adit bench` does not support, each with an alternative.

/// Job options of fio 3.33, of its engines libaio and io_uring, and of some later versions: name and
/// alternative.
pub(crate) const ABSENT: &[(&str, &str)] = &[
    (
        "allow_mounted_write",
        "mounted devices are never written to without --allow-destroy, which says it for the whole run",
    ),
    (
        "atomic",
        "atomic writes are not issued; NVMe writes of up to AWUPF blocks are atomic as they are",
    ),
    ("block_error_percentiles", "errors are counted by name in each report"),
    ("bs_is_seq_rand", "give two jobs, one sequential and one random, each with its bs"),
    (
        "bs_unaligned",
        "an NVMe device moves whole LBAs, so bs is a multiple of the LBA; for I/O by the byte take fio",
    ),
    (
        "blocksize_unaligned",
        "an NVMe device moves whole LBAs, so bs is a multiple of the LBA; for I/O by the byte take fio",
    ),
    ("cgroup", "start the whole run in the group, as with systemd-run or cgexec"),
    ("cgroup_nodelete", "start the whole run in the group, as with systemd-run or cgexec"),
    ("cgroup_weight", "start the whole run in the group, as with systemd-run or cgexec"),
    ("cpumask", "list the cores in cpus_allowed, as in cpus_allowed=0-3"),
    (
        "dedupe_global",
        "data is not made for deduplication; take buffer_compress_percentage or refill_buffers=0",
    ),
    (
        "dedupe_mode",
        "data is not made for deduplication; take buffer_compress_percentage or refill_buffers=0",
    ),
    (
        "dedupe_percentage",
        "data is not made for deduplication; take buffer_compress_percentage or refill_buffers=0",
    ),
    (
        "dedupe_working_set_percentage",
        "data is not made for deduplication; take buffer_compress_percentage or refill_buffers=0",
    ),
    ("exec_postrun", "run the command after adit bench, from a shell"),
    ("exec_prerun", "run the command before adit bench, from a shell"),
    ("file_append", "give the file's length as offset"),
    ("flow", "jobs do not share tokens; give each a rate_iops, in the proportion that is wanted"),
    (
        "flow_id",
        "jobs do not share tokens; give each a rate_iops, in the proportion that is wanted",
    ),
    (
        "flow_sleep",
        "jobs do not share tokens; give each a rate_iops, in the proportion that is wanted",
    ),
    (
        "flow_watermark",
        "jobs do not share tokens; give each a rate_iops, in the proportion that is wanted",
    ),
    ("fsync_on_close", "take end_fsync, a Flush at the end of the job"),
    ("gid", "start the whole run as that group, as with setpriv --regid"),
    ("ignore_zone_limits", "zoned devices (ZNS) are not driven"),
    (
        "ioscheduler",
        "write the scheduler's name to /sys/block/DEVICE/queue/scheduler before the run",
    ),
    ("job_max_open_zones", "zoned devices (ZNS) are not driven"),
    (
        "lockmem",
        "DMA memory is locked in any case; to leave less to the page cache take a memory cgroup",
    ),
    ("log_alternate_epoch", "take log_unix_epoch"),
    ("log_alternate_epoch_clock_id", "take log_unix_epoch"),
    ("log_store_compressed", "compress the logs after the run, as with zstd"),
    ("max_open_zones", "zoned devices (ZNS) are not driven"),
    ("merge_blktrace_file", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("merge_blktrace_iters", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("merge_blktrace_scalars", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("offset_align", "give an offset that is a multiple of what is wanted"),
    ("opendir", "name the files in filename, divided by colons"),
    ("profile", "write the profile's job file out"),
    ("read_beyond_wp", "zoned devices (ZNS) are not driven"),
    ("read_iolog", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("read_iolog_chunked", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("replay_align", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("replay_no_stall", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("replay_redirect", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("replay_scale", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("replay_skip", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("replay_time_scale", "I/O logs and traces of blktrace are not replayed; take fio"),
    ("sync_file_range", "take fdatasync, a Flush after so many writes"),
    ("trim_backlog", "take rw=trimwrite or rw=randtrim"),
    ("trim_backlog_batch", "take rw=trimwrite or rw=randtrim"),
    ("trim_percentage", "take rw=trimwrite or rw=randtrim"),
    (
        "trim_verify_zero",
        "trim with rw=trim, then read back with verify=pattern and verify_pattern=0",
    ),
    ("uid", "start the whole run as that user, as with setpriv --reuid"),
    ("uncached", "take direct=1"),
    ("unlink_each_loop", "take unlink, which removes the files after the job"),
    ("use_os_rand", "all random numbers come from randseed"),
    ("write_barrier", "take fsync, a Flush after so many writes"),
    ("write_iolog", "take a log of each I/O with write_lat_log and log_offset=1"),
    ("zone_reset_frequency", "zoned devices (ZNS) are not driven"),
    ("zone_reset_threshold", "zoned devices (ZNS) are not driven"),
    ("zonecapacity", "zoned devices (ZNS) are not driven"),
    (
        "zonerange",
        "zoned devices (ZNS) are not driven; take offset, size and random_distribution=zoned",
    ),
    (
        "zonesize",
        "zoned devices (ZNS) are not driven; take offset, size and random_distribution=zoned",
    ),
    (
        "zoneskip",
        "zoned devices (ZNS) are not driven; take rw=read:N, which skips N bytes after each I/O",
    ),
    // Newer than 3.33.
    ("deac", "Write Zeroes is not issued; take rw=trim"),
    ("fdp", "data is not placed by directives; take fio"),
    ("fdp_pli", "data is not placed by directives; take fio"),
    ("fdp_pli_select", "data is not placed by directives; take fio"),
    ("dataplacement", "data is not placed by directives; take fio"),
    ("dp_scheme", "data is not placed by directives; take fio"),
    ("plids", "data is not placed by directives; take fio"),
    ("plid_select", "data is not placed by directives; take fio"),
    ("num_range", "each trim has one range; take a larger bs"),
    ("readfua", "take fio; reads are sent without FUA"),
    ("writefua", "take fsync=1, a Flush after each write"),
    (
        "sprandom",
        "write the drive twice in random order, as with two jobs of rw=randwrite and a stonewall",
    ),
    ("spr_op", "write the drive twice in random order"),
    ("spr_num_regions", "write the drive twice in random order"),
    ("verify_mode", "reads are compared by the host"),
    ("write_mode", "writes are plain ones; take rw=trim for what shall be zeroes"),
    ("verify_header_seed", "headers hold what tells writers apart in any case"),
    ("verify_write_sequence", "headers hold what tells writers apart in any case"),
];

/// Options of fio's command line that are not job options: name and alternative.
pub(crate) const ABSENT_FOR_RUN: &[(&str, &str)] = &[
    ("client", "there is no client and server; start adit bench on each machine, as with ssh"),
    ("cpuclock-test", "the clock is checked in each run, and a warning tells if it is off"),
    ("crctest", "take a benchmark of checksums"),
    ("daemonize", "take a service manager, as with systemd-run"),
    ("inflate-log", "logs are not compressed"),
    ("merge-blktrace-only", "I/O logs and traces of blktrace are not replayed; take fio"),
    (
        "remote-config",
        "there is no client and server; start adit bench on each machine, as with ssh",
    ),
    ("server", "there is no client and server; start adit bench on each machine, as with ssh"),
    ("trigger", "end the run with Ctrl-C or SIGINT: it reports what was measured so far"),
    ("trigger-file", "end the run with Ctrl-C or SIGINT: it reports what was measured so far"),
    ("trigger-remote", "end the run with Ctrl-C or SIGINT: it reports what was measured so far"),
    ("trigger-timeout", "take --runtime"),
];

/// Options of [`ABSENT`] for which 0 means off, which Adit accepts.
const OFF_WITH_ZERO: [&str; 16] = [
    "allow_mounted_write",
    "atomic",
    "block_error_percentiles",
    "bs_is_seq_rand",
    "bs_unaligned",
    "blocksize_unaligned",
    "dedupe_global",
    "dedupe_percentage",
    "file_append",
    "fsync_on_close",
    "lockmem",
    "log_store_compressed",
    "trim_percentage",
    "uncached",
    "unlink_each_loop",
    "write_barrier",
];

/// Returns whether the value switches the option off.
pub(crate) fn is_off(name: &str, value: Option<&str>) -> bool {
    value == Some("0") && OFF_WITH_ZERO.contains(&name)
}

/// Returns what to use instead of a job option.
pub(crate) fn find(name: &str) -> Option<&'static str> {
    ABSENT.iter().find(|(absent, _)| *absent == name).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::super::{effectless, table, unheeded};
    use super::*;

    /// All options of fio 3.33 and of its engines libaio, io_uring and io_uring_cmd.
    const OF_FIO: &str = include_str!("fio-3.33-options.txt");

    #[test]
    fn each_option_of_fio_is_one_of_four() {
        for name in OF_FIO.split_whitespace().map(|name| name.replace('-', "_")) {
            let name = &*name;
            let places = [
                table::find(name).is_some(),
                effectless::find(name).is_some(),
                unheeded::find(name).is_some(),
                find(name).is_some(),
            ];
            let count = places.iter().filter(|is_there| **is_there).count();
            assert_eq!(
                count, 1,
                "{name}: supported, without effect, with a warning, absent: {places:?}"
            );
        }
        assert!(OF_FIO.split_whitespace().count() > 200);
    }

    #[test]
    fn what_is_switched_off_is_taken() {
        assert!(
            is_off("atomic", Some("0")) && !is_off("atomic", Some("1")) && !is_off("atomic", None)
        );
        assert!(!is_off("uid", Some("0")));
        assert!(OFF_WITH_ZERO.iter().all(|name| find(name).is_some()));
    }

    #[test]
    fn what_is_absent_says_what_to_do() {
        for (name, instead) in ABSENT.iter().chain(ABSENT_FOR_RUN) {
            assert!(instead.len() > 10 && !instead.ends_with('.'), "{name}: {instead}");
        }
    }
}
