//! What fio has and we do not, each with what to use instead.

/// Options of jobs, of fio 3.33 and its engines libaio and io_uring: name and a sentence.
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
    ("cmdprio", "commands have no priorities; run two jobs with a rate each to tell classes apart"),
    (
        "cmdprio_bssplit",
        "commands have no priorities; run two jobs with a rate each to tell classes apart",
    ),
    (
        "cmdprio_class",
        "commands have no priorities; run two jobs with a rate each to tell classes apart",
    ),
    (
        "cmdprio_percentage",
        "commands have no priorities; run two jobs with a rate each to tell classes apart",
    ),
    ("cpumask", "list the cores in cpus_allowed, as in cpus_allowed=0-3"),
    (
        "create_on_open",
        "files are laid out before the clock starts, so that making them is not measured",
    ),
    ("create_only", "make the files with truncate or fallocate, or run a job of rw=write"),
    ("dedupe_global", "take buffer_compress_percentage or refill_buffers=0 for data that is alike"),
    ("dedupe_mode", "take buffer_compress_percentage or refill_buffers=0 for data that is alike"),
    (
        "dedupe_percentage",
        "take buffer_compress_percentage or refill_buffers=0 for data that is alike",
    ),
    (
        "dedupe_working_set_percentage",
        "take buffer_compress_percentage or refill_buffers=0 for data that is alike",
    ),
    ("exec_postrun", "run the command after adit bench, from a shell"),
    ("exec_prerun", "run the command before adit bench, from a shell"),
    (
        "exit_what",
        "exitall ends the jobs of its group; give the jobs a group of their own with new_group",
    ),
    ("exitall_on_error", "each job ends by itself when it fails; the exit code is 1"),
    ("experimental_verify", "take verify, which remembers what was written"),
    ("file_append", "give the file's length as offset"),
    ("flow", "give the jobs a rate_iops each, in the proportion that is wanted"),
    ("flow_id", "give the jobs a rate_iops each, in the proportion that is wanted"),
    ("flow_sleep", "give the jobs a rate_iops each, in the proportion that is wanted"),
    ("flow_watermark", "give the jobs a rate_iops each, in the proportion that is wanted"),
    ("force_async", "I/Os are submitted without a detour; there is nothing to choose"),
    ("fsync_on_close", "take end_fsync, a Flush at the end of the job"),
    ("gid", "start the whole run as that group, as with setpriv --regid"),
    (
        "gtod_cpu",
        "the time stamp counter is read without the kernel's help; no core is needed for it",
    ),
    ("hugepage_size", "the driver takes the pages that the system offers; leave it away"),
    ("ignore_error", "take continue_on_error, which counts errors by name"),
    ("ignore_zone_limits", "zoned devices are not driven"),
    (
        "ioscheduler",
        "write the scheduler's name to /sys/block/DEVICE/queue/scheduler before the run",
    ),
    ("job_max_open_zones", "zoned devices are not driven"),
    (
        "lockmem",
        "DMA memory is locked in any case; to leave less to the page cache take a memory cgroup",
    ),
    ("log_alternate_epoch", "take log_unix_epoch"),
    ("log_alternate_epoch_clock_id", "take log_unix_epoch"),
    ("log_compression", "compress the logs after the run, as with zstd"),
    ("log_compression_cpus", "compress the logs after the run, as with zstd"),
    ("log_prio", "commands have no priorities"),
    ("log_store_compressed", "compress the logs after the run, as with zstd"),
    ("max_open_zones", "zoned devices are not driven"),
    ("merge_blktrace_file", "traces are not replayed; take fio"),
    ("merge_blktrace_iters", "traces are not replayed; take fio"),
    ("merge_blktrace_scalars", "traces are not replayed; take fio"),
    ("nice", "start the whole run with nice"),
    ("nowait", "submission never waits for the device; there is nothing to choose"),
    ("offset_align", "give an offset that is a multiple of what is wanted"),
    ("opendir", "name the files in filename, divided by colons"),
    (
        "overwrite",
        "files are as the run finds them; write them once with a job before, and a stonewall",
    ),
    ("prio", "start the whole run with ionice"),
    ("prioclass", "start the whole run with ionice"),
    ("profile", "write the profile's job file out"),
    ("read_beyond_wp", "zoned devices are not driven"),
    ("read_iolog", "traces are not replayed; take fio"),
    ("read_iolog_chunked", "traces are not replayed; take fio"),
    ("replay_align", "traces are not replayed; take fio"),
    ("replay_no_stall", "traces are not replayed; take fio"),
    ("replay_redirect", "traces are not replayed; take fio"),
    ("replay_scale", "traces are not replayed; take fio"),
    ("replay_skip", "traces are not replayed; take fio"),
    ("replay_time_scale", "traces are not replayed; take fio"),
    ("rwmixcycle", "fio ignores it as well; leave it away"),
    ("softrandommap", "the order needs no map in memory; leave it away"),
    ("sqthread_poll", "take a vfio: target, where nobody but the job's thread touches the queue"),
    (
        "sqthread_poll_cpu",
        "take a vfio: target, where nobody but the job's thread touches the queue",
    ),
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
    ("wait_for", "put stonewall into the job that is to wait for those before it"),
    ("write_barrier", "take fsync, a Flush after so many writes"),
    ("write_hint", "commands carry no hints about lifetimes"),
    ("write_iolog", "take a log of each I/O with write_lat_log and log_offset=1"),
    ("zone_reset_frequency", "zoned devices are not driven"),
    ("zone_reset_threshold", "zoned devices are not driven"),
    ("zonecapacity", "zoned devices are not driven"),
    ("zonerange", "zoned devices are not driven; take offset, size and random_distribution=zoned"),
    ("zonesize", "zoned devices are not driven; take offset, size and random_distribution=zoned"),
    (
        "zoneskip",
        "zoned devices are not driven; take rw=read:N, which skips N bytes after each I/O",
    ),
];

/// Options of fio's command line that are no job's: name and a sentence.
pub(crate) const ABSENT_FOR_RUN: &[(&str, &str)] = &[
    ("alloc-size", "memory is allocated as it is needed; leave it away"),
    ("append-terse", "take --output-format=normal,terse"),
    ("aux-path", "start the run in the directory that its files are to lie in"),
    ("bandwidth-log", "take --write_bw_log"),
    ("client", "start adit bench on each machine, as with ssh"),
    ("cmdhelp", "see 'adit bench --help'"),
    ("cpuclock-test", "the clock is checked in each run, and a warning tells if it is off"),
    ("crctest", "take a benchmark of checksums"),
    ("daemonize", "take a service manager, as with systemd-run"),
    ("debug", "take --parse-only or --showcmd to see what a job file comes to"),
    ("enghelp", "see 'adit bench --help', which lists all options"),
    ("eta-newline", "take --eta=always, which tells line by line"),
    ("idle-prof", "each report says what share of the time its threads were busy"),
    ("inflate-log", "logs are not compressed"),
    ("max-jobs", "there is no limit to be raised"),
    ("merge-blktrace-only", "traces are not replayed; take fio"),
    ("remote-config", "start adit bench on each machine, as with ssh"),
    ("server", "start adit bench on each machine, as with ssh"),
    ("trigger", "end the run with Ctrl-C or SIGINT: it reports what was measured so far"),
    ("trigger-file", "end the run with Ctrl-C or SIGINT: it reports what was measured so far"),
    ("trigger-remote", "end the run with Ctrl-C or SIGINT: it reports what was measured so far"),
    ("trigger-timeout", "take --runtime"),
    ("warnings-fatal", "what is wrong with a job file always ends the run"),
];

/// Those of [`ABSENT`] that 0 switches off, which is how it is.
const OFF_WITH_ZERO: [&str; 27] = [
    "allow_mounted_write",
    "atomic",
    "block_error_percentiles",
    "bs_is_seq_rand",
    "bs_unaligned",
    "blocksize_unaligned",
    "cmdprio_percentage",
    "create_on_open",
    "create_only",
    "dedupe_global",
    "dedupe_percentage",
    "exitall_on_error",
    "experimental_verify",
    "file_append",
    "force_async",
    "fsync_on_close",
    "lockmem",
    "log_compression",
    "log_prio",
    "log_store_compressed",
    "nowait",
    "softrandommap",
    "sqthread_poll",
    "trim_percentage",
    "uncached",
    "unlink_each_loop",
    "write_barrier",
];

/// Whether an option of a job has a value that asks for nothing.
pub(crate) fn is_off(name: &str, value: Option<&str>) -> bool {
    value == Some("0") && OFF_WITH_ZERO.contains(&name)
}

/// What to use instead of an option of a job.
pub(crate) fn find(name: &str) -> Option<&'static str> {
    ABSENT.iter().find(|(absent, _)| *absent == name).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::super::{effectless, table};
    use super::*;

    /// Each option of fio 3.33 and of its engines libaio, io_uring and io_uring_cmd.
    const OF_FIO: &str = include_str!("fio-3.33-options.txt");

    #[test]
    fn each_option_of_fio_is_one_of_three() {
        for name in OF_FIO.split_whitespace().map(|name| name.replace('-', "_")) {
            let name = &*name;
            let places = [
                table::find(name).is_some(),
                effectless::find(name).is_some(),
                find(name).is_some(),
            ];
            let count = places.iter().filter(|is_there| **is_there).count();
            assert_eq!(count, 1, "{name}: supported, without effect, absent: {places:?}");
        }
        assert!(OF_FIO.split_whitespace().count() > 200);
    }

    #[test]
    fn what_is_switched_off_is_taken() {
        assert!(
            is_off("atomic", Some("0")) && !is_off("atomic", Some("1")) && !is_off("atomic", None)
        );
        assert!(!is_off("nice", Some("0")));
        assert!(OFF_WITH_ZERO.iter().all(|name| find(name).is_some()));
    }

    #[test]
    fn what_is_absent_says_what_to_do() {
        for (name, instead) in ABSENT.iter().chain(ABSENT_FOR_RUN) {
            assert!(instead.len() > 10 && !instead.ends_with('.'), "{name}: {instead}");
        }
    }
}
