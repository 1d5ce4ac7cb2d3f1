//! The options of `adit bench`: fio's names, meanings and units.

use std::path::PathBuf;
use std::time::Duration;

use adit_driver::Target;
use clap::{ArgAction, Args, ValueEnum};

use super::errors::Tolerance;
use super::generator::Pattern;
use crate::units::{self, Size};

const EXAMPLES: &str = "\
Examples:
  Random 4 KiB reads for ten seconds on a controller bound to vfio-pci:
    adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=10
  Write 64 MiB in random order, mixed with reads, then read back and check every block (overwrites data!):
    adit bench --filename=vfio:0000:01:00.0 --rw=randrw --bs=16k --iodepth=32 --size=64M --verify=crc32c
  An hour that goes on after failed I/Os and brings the controller back when it fails, each counted:
    adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=1h --io_timeout=2 --continue_on_error=io --recover
  Verified without any device, as JSON in fio's schema:
    adit bench --filename=soft:mem=64M --rw=randrw --bs=16k --iodepth=32 --verify=crc32c --output-format=json";

/// Retries of an I/O that was caught in a reset; one that is caught more often is its cause.
const RECOVERY_RETRIES: u8 = 5;

/// Reads or writes a namespace as fio would, and reports as fio does
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// The controller, as in vfio:0000:01:00.0, vfio-user:/run/x/cntrl or soft:mem=1G; ',ns=N' picks the namespace
    #[arg(long, value_name = "TARGET")]
    pub(crate) filename: Target,

    /// What to do; writing overwrites the namespace's data
    #[arg(long, alias = "readwrite", value_enum, value_name = "WAY", default_value_t = ReadWrite::Read)]
    pub(crate) rw: ReadWrite,

    /// Bytes of each I/O, a multiple of the LBA
    #[arg(long, alias = "blocksize", value_name = "SIZE", value_parser = units::block_bytes, default_value = "4k")]
    pub(crate) bs: u64,

    /// I/Os that each job keeps in flight
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65535), default_value_t = 1)]
    pub(crate) iodepth: u32,

    /// Bytes that each job covers, or a share as in 50% [default: the whole namespace]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,

    /// Where in the namespace the covered bytes start
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) offset: Size,

    /// When to end at the latest: seconds, or with a unit as in 500ms or 2m
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) runtime: Option<Duration>,

    /// Goes on for the whole --runtime, starting over as often as needed
    #[arg(
        long = "time_based", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        default_value = "0", hide_default_value = true, hide_possible_values = true, value_parser = switch,
        action = ArgAction::Set, value_name = "0|1"
    )]
    pub(crate) time_based: bool,

    /// Threads, each with a queue pair of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), default_value_t = 1)]
    pub(crate) numjobs: u32,

    /// Reports all jobs as one
    #[arg(
        long = "group_reporting", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        default_value = "0", hide_default_value = true, hide_possible_values = true, value_parser = switch,
        action = ArgAction::Set, value_name = "0|1"
    )]
    pub(crate) group_reporting: bool,

    /// Stamps written blocks and checks them when read back; the jobs then divide --size between them
    #[arg(long, value_enum, value_name = "CHECK")]
    pub(crate) verify: Option<Verify>,

    /// Share of reads in rw and randrw, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100), default_value_t = 50)]
    pub(crate) rwmixread: u8,

    /// Chooses the random order and the data
    #[arg(long, value_name = "N", default_value_t = 0x1234)]
    pub(crate) randseed: u64,

    /// How long an I/O may take before it is aborted, and as long again before its queue is created anew: seconds, or
    /// with a unit as in 500ms [default: 10, and 2 more]
    #[arg(long = "io_timeout", value_name = "TIME", value_parser = units::duration)]
    pub(crate) io_timeout: Option<Duration>,

    /// Which errors do not end a job; they are counted by name, and the first ones told
    #[arg(long = "continue_on_error", value_enum, value_name = "WHICH", default_value_t = Tolerance::None)]
    pub(crate) continue_on_error: Tolerance,

    /// How often an I/O that failed is sent again, if that may help [default: 0, or 5 with --recover]
    #[arg(long, value_name = "N")]
    pub(crate) retries: Option<u8>,

    /// Brings a controller that is out of service back and goes on
    #[arg(
        long, num_args = 0..=1, require_equals = true, default_missing_value = "1",
        default_value = "0", hide_default_value = true, hide_possible_values = true, value_parser = switch,
        action = ArgAction::Set, value_name = "0|1"
    )]
    pub(crate) recover: bool,

    /// Name of the job in the report
    #[arg(long, default_value = "adit")]
    pub(crate) name: String,

    /// When to show progress on standard error: on a terminal, or always
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Eta::Auto)]
    pub(crate) eta: Eta,

    /// How to report
    #[arg(long = "output-format", value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Normal)]
    pub(crate) output_format: OutputFormat,

    /// File to report into [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// fio's `--rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadWrite {
    /// In order, reads
    Read,
    /// In order, writes
    Write,
    /// In random order, reads
    Randread,
    /// In random order, writes
    Randwrite,
    /// In order, each block either read or written
    #[value(alias = "readwrite")]
    Rw,
    /// In random order, each block either read or written
    Randrw,
}

/// fio's `--verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verify {
    /// A header with a CRC-32C in each block
    Crc32c,
}

/// fio's `--eta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Eta {
    /// Where standard error is a terminal
    Auto,
    /// Elsewhere in lines of their own
    Always,
    /// Not at all
    Never,
}

/// fio's `--output-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Normal,
    /// For programs: fio's JSON
    Json,
}

impl BenchArgs {
    /// The usual options on `target`.
    pub(crate) fn new(target: Target) -> BenchArgs {
        BenchArgs {
            filename: target,
            rw: ReadWrite::Read,
            bs: 4096,
            iodepth: 1,
            size: None,
            offset: Size::Bytes(0),
            runtime: None,
            time_based: false,
            numjobs: 1,
            group_reporting: false,
            verify: None,
            rwmixread: 50,
            randseed: 0x1234,
            io_timeout: None,
            continue_on_error: Tolerance::None,
            retries: None,
            recover: false,
            name: "adit".to_owned(),
            eta: Eta::Auto,
            output_format: OutputFormat::Normal,
            output: None,
        }
    }

    /// Order and mix of the steps.
    pub(crate) fn pattern(&self) -> Pattern {
        let (random, read_percent) = match self.rw {
            ReadWrite::Read => (false, 100),
            ReadWrite::Write => (false, 0),
            ReadWrite::Randread => (true, 100),
            ReadWrite::Randwrite => (true, 0),
            ReadWrite::Rw => (false, self.rwmixread),
            ReadWrite::Randrw => (true, self.rwmixread),
        };
        Pattern { random, read_percent }
    }

    /// How often an I/O that failed is sent again.
    pub(crate) fn retries(&self) -> u8 {
        self.retries.unwrap_or(if self.recover { RECOVERY_RETRIES } else { 0 })
    }

    /// Whether written blocks are read back and checked.
    pub(crate) fn checks_writes(&self) -> bool {
        self.verify.is_some() && self.pattern().read_percent < 100
    }

    /// The options as fio lists them in its JSON: those that were given, and what matters of the rest.
    pub(crate) fn listed(&self) -> Vec<(&'static str, String)> {
        let mut listed = vec![
            ("name", self.name.clone()),
            ("filename", self.filename.to_string()),
            ("rw", self.rw.to_string()),
            ("bs", self.bs.to_string()),
            ("iodepth", self.iodepth.to_string()),
            ("numjobs", self.numjobs.to_string()),
            ("randseed", self.randseed.to_string()),
        ];
        listed.extend(self.size.map(|size| ("size", size.to_string())));
        listed.extend((self.offset != Size::Bytes(0)).then(|| ("offset", self.offset.to_string())));
        listed.extend(self.runtime.map(|time| ("runtime", format!("{}us", time.as_micros()))));
        listed.extend(self.time_based.then(|| ("time_based", "1".to_owned())));
        listed
            .extend(self.io_timeout.map(|time| ("io_timeout", format!("{}us", time.as_micros()))));
        listed.extend((self.retries() > 0).then(|| ("retries", self.retries().to_string())));
        listed.extend(self.recover.then(|| ("recover", "1".to_owned())));
        let tolerance = self.continue_on_error.to_possible_value();
        let tolerance = tolerance.filter(|_| self.continue_on_error != Tolerance::None);
        listed.extend(tolerance.map(|value| ("continue_on_error", value.get_name().to_owned())));
        listed.extend(self.verify.map(|_| ("verify", "crc32c".to_owned())));
        let mixed = matches!(self.rw, ReadWrite::Rw | ReadWrite::Randrw);
        listed.extend(mixed.then(|| ("rwmixread", self.rwmixread.to_string())));
        listed
    }
}

impl std::fmt::Display for ReadWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReadWrite::Read => "read",
            ReadWrite::Write => "write",
            ReadWrite::Randread => "randread",
            ReadWrite::Randwrite => "randwrite",
            ReadWrite::Rw => "rw",
            ReadWrite::Randrw => "randrw",
        })
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("'{text}' is neither 0 nor 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parsed(words: &[&str]) -> Result<BenchArgs, String> {
        let line = ["bench", "--filename=soft:null"].iter().chain(words);
        Line::try_parse_from(line).map(|line| line.args).map_err(|error| error.to_string())
    }

    fn accepted(words: &[&str]) -> BenchArgs {
        parsed(words).expect("valid options")
    }

    #[test]
    fn a_fio_command_line_is_understood() {
        let args = accepted(&[
            "--rw=randrw",
            "--bs",
            "16k",
            "--iodepth=32",
            "--size=64M",
            "--verify=crc32c",
            "--rwmixread=30",
        ]);
        assert_eq!((args.bs, args.iodepth, args.size), (16384, 32, Some(Size::Bytes(64 << 20))));
        assert_eq!(args.pattern(), Pattern { random: true, read_percent: 30 });
        assert_eq!(args.verify, Some(Verify::Crc32c));
    }

    #[test]
    fn defaults_are_those_of_fio() {
        let args = accepted(&[]);
        assert_eq!((args.bs, args.iodepth, args.numjobs, args.rw), (4096, 1, 1, ReadWrite::Read));
        assert_eq!(args.pattern(), Pattern { random: false, read_percent: 100 });
        assert!(!args.time_based && args.size.is_none() && args.runtime.is_none());
    }

    #[test]
    fn a_switch_may_be_bare() {
        assert!(accepted(&["--time_based", "--runtime=2m"]).time_based);
        assert!(accepted(&["--time_based=1", "--rw=read"]).time_based);
        assert!(!accepted(&["--time_based=0"]).time_based);
    }

    #[test]
    fn aliases_of_fio_work() {
        assert_eq!(accepted(&["--readwrite=readwrite"]).rw, ReadWrite::Rw);
        assert_eq!(accepted(&["--blocksize=1m"]).bs, 1 << 20);
    }

    #[test]
    fn bad_values_are_refused() {
        for word in [
            "--rw=trim",
            "--bs=4x",
            "--bs=0",
            "--iodepth=0",
            "--size=0%",
            "--runtime=x",
            "--numjobs=0",
            "--rwmixread=101",
            "--verify=md5",
        ] {
            assert!(parsed(&[word]).is_err(), "{word}");
        }
    }
}
