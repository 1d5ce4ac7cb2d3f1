//! Options of the whole run.

use std::path::PathBuf;
use std::time::Duration;

use adit_driver::Target;
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, Command, FromArgMatches};

use super::written;
use super::{Eta, OutputFormat, Sweep, table, targets};
use crate::units;

/// Help heading of run options.
pub(super) const RUN: &str = "Run";

/// Names of fio's traces.
const TRACES: &str = "process file io mem blktrace verify random parse diskutil job mutex profile time net rate compress \
                      steadystate helperthread zbd sprandom all";
/// The only trace that is printed.
const RANDOM: &str = "random";
const ALL: &str = "all";

/// Options of the whole run: fio's options that job files may not contain, and our own.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_help_heading = RUN)]
pub struct RunOptions {
    /// Report formats, separated by commas
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        value_delimiter = ',',
        default_value = "normal"
    )]
    pub(crate) output_format: Vec<OutputFormat>,

    /// Reports in the terse format
    #[arg(long)]
    pub(crate) minimal: bool,

    /// The terse format's version; there is only 3
    #[arg(long, value_name = "N", hide = true, value_parser = ["3"])]
    pub(crate) terse_version: Option<String>,

    /// File for the report [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Time between reports while the jobs run: seconds, or with a unit
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) status_interval: Option<Duration>,

    /// When to show progress on standard error: on a terminal, always or never
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Eta::Auto)]
    pub(crate) eta: Eta,

    /// Time between lines of progress that stay on the terminal: seconds, or with a unit
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) eta_newline: Option<Duration>,

    /// Time between lines of progress
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "500ms")]
    pub(crate) eta_interval: Duration,

    /// Refuses jobs that write or trim
    #[arg(long)]
    pub(crate) readonly: bool,

    /// Checks the options and opens nothing
    #[arg(long)]
    pub(crate) parse_only: bool,

    /// Prints the jobs as a command line and runs nothing
    #[arg(long)]
    pub(crate) showcmd: bool,

    /// Maximum number of threads of all jobs
    #[arg(long, value_name = "N")]
    pub(crate) max_jobs: Option<u64>,

    /// Folder for the saved states of verified jobs
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(crate) aux_path: PathBuf,

    /// Prints fio's traces, separated by commas: random prints the jobs' seeds, others are ignored
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = PossibleValuesParser::new(TRACES.split(' ')), hide_possible_values = true)]
    pub(crate) debug: Vec<String>,

    /// Adds the terse format
    #[arg(long, hide = true)]
    pub(crate) append_terse: bool,

    /// Refuses options that would be ignored with a warning
    #[arg(long)]
    pub(crate) warnings_fatal: bool,

    #[command(flatten)]
    pub(crate) ignored: IgnoredOptions,

    /// Prints the version and runs nothing
    #[arg(long)]
    pub(crate) version: bool,

    /// Runs only the sections of this name; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) section: Vec<String>,

    /// Allows jobs to overwrite existing data: signatures, file systems, partitions
    #[arg(long)]
    pub(crate) allow_destroy: bool,

    #[command(flatten)]
    pub(crate) side: SideOptions,

    /// Recovers a failed controller and continues; waits up to 30 s for one that does not answer
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "1", default_value = "0",
        hide_default_value = true, hide_possible_values = true, value_parser = super::grammar::switch,
        action = ArgAction::Set, value_name = "0|1")]
    pub(crate) recover: bool,
}

/// Jobs on several targets and with several values.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct SideOptions {
    /// Runs the jobs on each of these instead of their filenames, and compares
    // The full path makes clap take the list as one value.
    #[arg(long, value_name = "TARGET,…", value_parser = target_list, default_value = "", hide_default_value = true)]
    pub(crate) targets: std::vec::Vec<Target>,

    /// How many times each target runs each job, in turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 1)]
    pub(crate) rounds: u32,

    /// Runs the jobs with each value of an option; several sweeps multiply
    #[arg(long, value_name = "NAME=A,B,…", value_parser = sweep)]
    pub(crate) sweep: Vec<Sweep>,

    /// Measures the device's maximum in the same run
    #[arg(long)]
    pub(crate) ceiling: bool,
}

/// Options of fio that change nothing here.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct IgnoredOptions {
    /// Logs the bandwidth of all jobs together (ignored)
    #[arg(long, hide = true)]
    bandwidth_log: bool,

    /// Measures how busy the cores are (ignored)
    #[arg(long, value_name = "HOW", hide = true)]
    idle_prof: Option<String>,

    /// Memory for fio's bookkeeping (ignored)
    #[arg(long, value_name = "KB", hide = true)]
    alloc_size: Option<u64>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        let matches = RunOptions::augment_args(Command::new("bench")).get_matches_from(["bench"]);
        RunOptions::from_arg_matches(&matches).expect("each option has a default")
    }
}

impl RunOptions {
    /// Returns the formats of the report, each once.
    pub(crate) fn formats(&self) -> Vec<OutputFormat> {
        let given = if self.minimal { &[OutputFormat::Terse][..] } else { &self.output_format };
        let more = self.append_terse.then_some(OutputFormat::Terse);
        let mut once = Vec::new();
        for format in given.iter().copied().chain(more) {
            if !once.contains(&format) {
                once.push(format);
            }
        }
        once
    }

    /// Returns whether to print the jobs' seeds.
    pub(crate) fn shows_seeds(&self) -> bool {
        self.debug.iter().any(|name| name == RANDOM || name == ALL)
    }

    /// Returns the ignored options, with reasons.
    pub(super) fn unheeded(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let traces = "only random is printed; --showcmd shows a job file as a command line";
        let ignored = [
            (self.debug.iter().any(|name| name != RANDOM), "--debug", traces),
            (
                self.ignored.bandwidth_log,
                "--bandwidth-log",
                "use --write_bw_log, a log for each job",
            ),
            (
                self.ignored.idle_prof.is_some(),
                "--idle-prof",
                "each job reports its own share of busy time",
            ),
        ];
        ignored.into_iter().filter(|(is_given, ..)| *is_given).map(|(_, name, why)| (name, why))
    }
}

fn target_list(text: &str) -> Result<Vec<Target>, String> {
    if text.is_empty() { Ok(Vec::new()) } else { targets::list(text) }
}

fn sweep(text: &str) -> Result<Sweep, String> {
    const MAX: usize = 1000;
    let (name, values) = text
        .split_once('=')
        .ok_or_else(|| format!("'{text}' is not a sweep such as iodepth=1,4,16"))?;
    let option = written::canonical(name);
    if table::find(&option).is_none() {
        return Err(format!("{name}: {}", table::unknown(&option)));
    }
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if values.len() > MAX {
        return Err(format!("'{name}' has {} values; a sweep may have {MAX}", values.len()));
    }
    for value in &values {
        let mut draft = super::draft::Draft::new();
        super::set::set(&mut draft, &option, value).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(Sweep { option, values })
}
