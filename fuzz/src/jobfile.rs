//! Job files of `adit bench`.
//!
//! A quarter of the inputs are raw bytes, a quarter words of job files in any order, and half a few such words, one
//! per line, so that many of them parse. What parses is shown as a command line, which must describe the same jobs.

use std::io;

use clap::Parser;

use adit_bench::language::{self, BenchArgs, Surroundings, parse};

/// Words of job files.
const WORDS: [&str; 128] = [
    "\n",
    "\n",
    "\n",
    "\n",
    "\n",
    "\n",
    "=",
    "=",
    "=",
    "=",
    "[global]\n",
    "[a]\n",
    "[b]\n",
    "[c d]\n",
    ";",
    "#",
    "rw",
    "rw=randrw",
    "rw=randread:8",
    "rw=read:-4k",
    "rw=trimwrite",
    "bs",
    "bs=4k,8k",
    "bs=,16k,",
    "bsrange=1k-4k",
    "bssplit=4k/10:8k/:1k/",
    "blockalign=",
    "iodepth=",
    "iodepth=32",
    "iodepth_low=4",
    "iodepth_batch=",
    "iodepth_batch_complete_min=0",
    "iodepth_batch_complete_max=8",
    "size=",
    "size=50%",
    "size=8*$pagesize",
    "size=(1+2)*4k",
    "io_size=1g",
    "offset=10%",
    "offset_increment=1m",
    "number_ios=",
    "loops=",
    "filename=",
    "filename=soft:mem=1G",
    "filename=uring:/a:uring:/b",
    "filename=/a\\:b:c",
    "filename=null:",
    "directory=/x",
    "filename_format=$jobname.$filenum",
    "nrfiles=2",
    "filesize=1m",
    "ioengine=io_uring",
    "ioengine=psync",
    "ioengine=null",
    "direct=1",
    "buffered=0",
    "hipri",
    "fixedbufs",
    "unlink=1",
    "rwmixread=60",
    "rwmixwrite=40",
    "random_distribution=zipf:1.2:0.5",
    "random_distribution=zoned:60/10:40/90,50/50:50/50",
    "pareto:0.3",
    "normal:5",
    "percentage_random=50",
    "norandommap",
    "random_generator=lfsr",
    "randseed=",
    "randrepeat=0",
    "runtime=10",
    "runtime=",
    "time_based",
    "startdelay=5-10",
    "ramp_time=1s",
    "thinktime=10",
    "thinktime_spin=5",
    "rate=1m,500k",
    "rate_iops=100",
    "rate_min=",
    "rate_process=poisson",
    "max_latency=10ms",
    "latency_target=10ms",
    "latency_window=1s",
    "latency_percentile=99.9",
    "steadystate=iops_slope:0.1%",
    "ss_dur=10",
    "verify=crc32c",
    "verify=pattern",
    "verify_pattern=0xff%o\"ab\"-12",
    "buffer_pattern=",
    "verify_interval=512",
    "verify_backlog=8",
    "verify_only",
    "fsync=",
    "end_fsync=1",
    "zero_buffers",
    "refill_buffers",
    "cpus_allowed=0-2,5",
    "numa_cpu_nodes=0",
    "numjobs=4",
    "group_reporting",
    "stonewall",
    "new_group",
    "thread",
    "sync=none",
    "continue_on_error=io",
    "percentile_list=50:99.9",
    "gtod_reduce=1",
    "write_bw_log",
    "write_bw_log=x",
    "log_avg_msec=500",
    "unified_rw_reporting=1",
    "kb_base=1000",
    "name=",
    "name=x",
    "description=a b 'c' \"d\"",
    "${A}",
    "${B",
    "$ncpus",
    "include x\n",
    "*",
    "(",
    ")",
    "-",
    "1",
    ":",
    ",",
];

/// More lines than this rarely agree with each other.
const LINES_MAX: usize = 16;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Runs one input.
///
/// # Panics
/// If a law is broken.
pub fn target(data: &[u8]) {
    let [kind, bytes @ ..] = data else { return };
    let word = |byte: &u8| WORDS[usize::from(*byte) % WORDS.len()];
    match kind & 3 {
        0 => check(bytes),
        1 => check(
            format!("[a]\n{}", bytes.iter().take(200).map(word).collect::<String>()).as_bytes(),
        ),
        _ => {
            let lines: Vec<&str> =
                bytes.iter().take(usize::from(kind >> 2) % LINES_MAX).map(word).collect();
            check(format!("[a]\n{}", lines.join("\n")).as_bytes());
        }
    }
}

fn check(text: &[u8]) {
    let around = Surroundings {
        variable: &|name| (name == "A").then(|| "1".to_owned()),
        page_bytes: 4096,
        memory_mib: 1024,
        cores: 4,
    };
    let nothing = |_: &std::path::Path| Err(io::ErrorKind::NotFound.into());
    let jobs = parse(text, "input", &around, &nothing);
    let jobs = jobs.and_then(|sections| Ok((language::sections(&[], &sections)?, sections)));
    match jobs {
        Ok((jobs, sections)) if !jobs.is_empty() => {
            let words = language::words(&[], &sections).concat();
            let line = ["bench"].into_iter().chain(words.iter().map(String::as_str));
            let line = Line::try_parse_from(line);
            let line = line.unwrap_or_else(|why| panic!("{words:?}: {why}"));
            let again = line.bench.request().unwrap_or_else(|why| panic!("{words:?}: {why}"));
            let shown: Vec<_> = again.sections.into_iter().map(|section| section.job).collect();
            let read: Vec<_> = jobs.into_iter().map(|section| section.job).collect();
            assert_eq!(shown, read, "{words:?}");
        }
        Ok(_) => {}
        Err(why) => {
            let why = why.to_string();
            assert!(why.starts_with("input:"), "{why} says where");
        }
    }
}
