//! `adit bench`'s command line: fio's job options in the order given, job files, and options of the whole run.
//!
//! Depends on the option table for names and help. Opens no device.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use adit_driver::Target;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::answers::Asked;
use super::debug;
use super::draft::NAME;
use super::jobfile::{self, Surroundings, keywords};
use super::others::{self, Other, Treatment};
use super::table::{self, Kind};
use super::written::{self, Place, Written, WrittenSection, quoted};
use super::{Eta, OutputFormat, Request, RunOptions, Section, Sweep, check, targets};
use crate::failure::{Failure, Result};
use crate::units;

const EXAMPLES: &str = "\
Options before the first --name and the first job file are defaults of all jobs; each --name starts a job, and \
--name=global gives defaults to the jobs after it. Without --name and job files, the options are one job.

Examples:
  Random 4 KiB reads for ten seconds on a controller bound to vfio-pci:
    adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=10
  Write 64 MiB in random order, mixed with reads, then read back and check every block (overwrites data!):
    adit bench --filename=vfio:0000:01:00.0 --rw=randrw --bs=16k --iodepth=32 --size=64M --verify=crc32c --allow-destroy
  A job file of fio, and what it comes to:
    adit bench jobs.fio --showcmd
  The same jobs on three paths to equal drives, side by side, five times each:
    adit bench jobs.fio --targets vfio:0000:01:00.0,uring:/dev/nvme1n1,psync:/dev/nvme2n1 --rounds 5
  A sweep of queue depths:
    adit bench --filename=soft:mem=1G --rw=randread --runtime=2 --time_based --sweep iodepth=1,4,16,64
  An hour that goes on after failed I/Os and brings the controller back when it fails, each counted:
    adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=1h \
--io_timeout=2 --continue_on_error=io --recover
  Verified without any device, as JSON in fio's schema:
    adit bench --filename=soft:mem=64M --rw=randrw --bs=16k --iodepth=32 --verify=crc32c --output-format=json";

/// Help heading of options accepted only for fio's job files; `--help` shows it, `-h` does not.
const EFFECTLESS: &str = "Job: taken without effect";

/// Help heading of run options.
const RUN: &str = "Run";

/// Options of the whole run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = RUN)]
struct RunArgs {
    /// Report formats, separated by commas
    #[arg(
        long = "output-format",
        value_enum,
        value_name = "FORMAT",
        value_delimiter = ',',
        default_value = "normal"
    )]
    output_format: Vec<OutputFormat>,

    /// Reports as --output-format=terse does
    #[arg(long)]
    minimal: bool,

    /// The terse format's version; there is only 3
    #[arg(long = "terse-version", value_name = "N", hide = true)]
    terse_version: Option<String>,

    /// File to report into [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Interval between reports while the jobs run: seconds, or with a unit
    #[arg(long = "status-interval", value_name = "TIME", value_parser = units::duration)]
    status_interval: Option<Duration>,

    /// When to show progress on standard error: on a terminal, always or never
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Eta::Auto)]
    eta: Eta,

    /// Interval at which a line of progress stays on the terminal: seconds, or with a unit
    #[arg(long = "eta-newline", value_name = "TIME", value_parser = units::duration)]
    eta_newline: Option<Duration>,

    /// Interval between lines of progress
    #[arg(long = "eta-interval", value_name = "TIME", value_parser = units::duration, default_value = "500ms")]
    eta_interval: Duration,

    /// Refuses jobs that write or trim
    #[arg(long)]
    readonly: bool,

    /// Checks the options and opens nothing
    #[arg(long = "parse-only")]
    parse_only: bool,

    /// Prints the jobs as a command line and runs nothing
    #[arg(long)]
    showcmd: bool,

    /// Maximum number of threads of all jobs
    #[arg(long = "max-jobs", value_name = "N")]
    max_jobs: Option<u64>,

    /// Folder for the saved states of verified jobs
    #[arg(long = "aux-path", value_name = "DIR", default_value = ".", hide_default_value = true)]
    aux_path: PathBuf,

    /// Prints fio's traces of these names, by comma: random prints the jobs' seeds
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    debug: Vec<String>,

    /// Adds the terse format
    #[arg(long = "append-terse", hide = true)]
    append_terse: bool,

    /// Refuses options that would be taken with a warning
    #[arg(long = "warnings-fatal")]
    warnings_fatal: bool,

    /// Logs the bandwidth of all jobs together (ignored)
    #[arg(long = "bandwidth-log", hide = true)]
    bandwidth_log: bool,

    /// Measures how busy the cores are (ignored)
    #[arg(long = "idle-prof", value_name = "HOW", hide = true)]
    idle_prof: Option<String>,

    /// Memory for fio's bookkeeping (ignored)
    #[arg(long = "alloc-size", value_name = "KB", hide = true)]
    alloc_size: Option<u64>,

    /// Prints the version and runs nothing
    #[arg(long)]
    version: bool,

    /// Explains an option, or lists all, and runs nothing
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "all", value_name = "NAME")]
    cmdhelp: Option<String>,

    /// Says which path an ioengine stands for, or lists all, and runs nothing
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "", value_name = "ENGINE")]
    enghelp: Option<String>,

    /// Only the sections of this name; may be given several times
    #[arg(long, value_name = "NAME")]
    section: Vec<String>,

    /// Allows jobs to overwrite existing data: signatures, file systems, partitions
    #[arg(long = "allow-destroy")]
    allow_destroy: bool,

    /// Runs the jobs on each of these instead of their filenames, and compares
    #[arg(long, value_name = "TARGET,…", value_parser = target_list)]
    targets: Option<TargetList>,

    /// How many times each target runs each job, in turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 1)]
    rounds: u32,

    /// Runs the jobs with each value of an option; several sweeps multiply
    #[arg(long, value_name = "NAME=A,B,…", value_parser = sweep)]
    sweep: Vec<Sweep>,

    /// Measures the device's maximum in the same run
    #[arg(long)]
    ceiling: bool,

    /// Recovers a failed controller and continues; waits up to 30 s for one that does not answer
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "1", default_value = "0",
        hide_default_value = true, hide_possible_values = true, value_parser = super::grammar::switch,
        action = ArgAction::Set, value_name = "0|1")]
    recover: bool,
}

/// A list parsed as one value.
#[derive(Clone, Debug)]
struct TargetList(Vec<Target>);

fn target_list(text: &str) -> std::result::Result<TargetList, String> {
    targets::list(text).map(TargetList)
}

fn sweep(text: &str) -> std::result::Result<Sweep, String> {
    const MAX: usize = 1000;
    let (name, values) = text
        .split_once('=')
        .ok_or_else(|| format!("'{text}' is not a sweep such as iodepth=1,4,16"))?;
    let option = written::canonical(name);
    if table::find(&option).is_none() {
        return Err(format!("{name}: {}", written::unknown(&option)));
    }
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if values.len() > MAX {
        return Err(format!("'{name}' has {} values; a sweep may have {MAX}", values.len()));
    }
    for value in &values {
        let mut draft = super::draft::Draft::default();
        super::set::set(&mut draft, &option, value).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(Sweep { option, values })
}

/// Runs fio's jobs over any path to a device, and reports as fio does
#[derive(Clone, Debug)]
pub struct BenchArgs {
    run: RunOptions,
    limits: Limits,
    asked: Asked,
    /// `--section`.
    selected: Vec<String>,
    /// Job options, in the order given.
    options: Vec<Written>,
    /// Job files.
    files: Vec<String>,
    /// The parsed command line and job files, cached because standard input can be read only once.
    said: OnceLock<Said>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    max_jobs: Option<u64>,
    warnings_fatal: bool,
}

/// The contents of a command line and its job files, before options are interpreted.
#[derive(Clone, Debug)]
struct Said {
    /// Options before the first job.
    defaults: Vec<Written>,
    /// The jobs of the command line, then those of each file.
    parts: Vec<Vec<WrittenSection>>,
    /// How many leading parts come from the command line.
    lines: usize,
}

impl BenchArgs {
    /// Interprets the options, reads the job files and refuses contradictions. Opens no device.
    ///
    /// # Errors
    /// A sentence with the place of the mistake, and exit code 2.
    pub fn request(&self) -> Result<Request> {
        let said = self.said()?;
        let mut sections = Vec::new();
        for (at, part) in said.parts.iter().enumerate() {
            let mut jobs = written::sections(&said.defaults, part)?;
            // As in fio, the jobs of a file start after those of the previous file.
            let starts_file = at > said.lines;
            if let Some(first) = jobs.first_mut().filter(|_| starts_file) {
                first.job.stonewall = true;
            }
            sections.extend(jobs);
        }
        self.permit(&sections)?;
        awaited_before(&sections)?;
        let all: Vec<WrittenSection> = said.parts.concat();
        let global = written::global(&said.defaults, &all);
        let request = Request { run: self.run.clone(), global, sections };
        self.limits.check(&request)?;
        Ok(request)
    }

    /// Returns the answer to a query such as the version or help.
    ///
    /// # Errors
    /// When there is no option or engine of that name.
    pub(crate) fn answer(&self) -> Result<Option<String>> {
        self.asked.answer()
    }

    /// Returns an equivalent command line for the jobs.
    ///
    /// # Errors
    /// As [`BenchArgs::request`].
    pub(crate) fn showcmd(&self) -> Result<String> {
        self.request()?;
        let jobs = self.job_words()?;
        let lines = jobs
            .iter()
            .map(|words| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
        Ok(format!("adit bench {}\n", lines.collect::<Vec<_>>().join(" \\\n  ")))
    }

    fn job_words(&self) -> Result<Vec<Vec<String>>> {
        let said = self.said()?;
        let mut jobs = Vec::new();
        for (at, part) in said.parts.iter().enumerate() {
            let mut words = written::words(&said.defaults, part);
            if let Some(first) = words.first_mut().filter(|_| at > said.lines) {
                first.push("--stonewall=1".to_owned());
            }
            jobs.extend(words);
        }
        Ok(jobs)
    }

    fn said(&self) -> Result<&Said> {
        match self.said.get() {
            Some(said) => Ok(said),
            None => {
                let fresh = self.read(&Surroundings::here())?;
                Ok(self.said.get_or_init(|| fresh))
            }
        }
    }

    fn read(&self, around: &Surroundings) -> Result<Said> {
        let (defaults, jobs) = self.line(around);
        let lines = usize::from(!jobs.is_empty());
        let mut parts = Vec::from_iter((!jobs.is_empty()).then_some(jobs));
        for file in &self.files {
            parts.push(jobfile::open(file, around)?);
        }
        let names = || parts.iter().flatten().filter_map(|section| section.name.clone());
        if names().next().is_none() {
            return Err(Failure::usage(
                "there are no jobs; give options such as --filename=soft:mem=1G, or a job file with a [section]",
            ));
        }
        for wanted in &self.selected {
            if !names().any(|name| name == *wanted) {
                let names = names().collect::<Vec<_>>().join(", ");
                return Err(Failure::usage(format!(
                    "--section: there is no section '{wanted}'; there are {names}"
                )));
            }
        }
        if !self.selected.is_empty() {
            let is_wanted = |section: &WrittenSection| {
                section.name.as_ref().is_none_or(|name| self.selected.contains(name))
            };
            parts.iter_mut().for_each(|part| part.retain(is_wanted));
        }
        Ok(Said { defaults, parts, lines })
    }

    /// Returns the defaults and the jobs of the command line itself.
    fn line(&self, around: &Surroundings) -> (Vec<Written>, Vec<WrittenSection>) {
        let (mut defaults, mut jobs) = (Vec::new(), Vec::<WrittenSection>::new());
        for option in &self.options {
            let value = option.value.as_ref().map(|value| keywords(around, value));
            let option = Written { value, ..option.clone() };
            if option.name == "name" {
                let name = option.value.unwrap_or_default();
                let name = (!name.eq_ignore_ascii_case("global")).then_some(name);
                jobs.push(WrittenSection { name, place: Place::CommandLine, options: Vec::new() });
            } else if let Some(job) = jobs.last_mut() {
                job.options.push(option);
            } else {
                defaults.push(option);
            }
        }
        let is_unnamed = jobs.is_empty() && self.files.is_empty() && !defaults.is_empty();
        if is_unnamed {
            let options = std::mem::take(&mut defaults);
            jobs.push(WrittenSection {
                name: Some(NAME.to_owned()),
                place: Place::CommandLine,
                options,
            });
        }
        (defaults, jobs)
    }

    /// Refuses jobs that the run's options forbid.
    fn permit(&self, sections: &[Section]) -> Result<()> {
        let writing = sections.iter().find(|section| check::writes(&section.job));
        match writing.filter(|_| self.run.readonly) {
            Some(section) => Err(Failure::usage(format!(
                "job '{}' writes or trims, which --readonly forbids; take rw=read or rw=randread, or \
                 leave --readonly away",
                section.job.name
            ))),
            None => Ok(()),
        }
    }
}

impl Limits {
    fn check(self, request: &Request) -> Result<()> {
        let threads: u64 =
            request.sections.iter().map(|section| u64::from(section.job.numjobs)).sum();
        if let Some(most) = self.max_jobs.filter(|most| threads > *most) {
            return Err(Failure::usage(format!(
                "--max-jobs={most}: the jobs have {threads} threads; give --max-jobs={threads}, or a smaller numjobs"
            )));
        }
        match request.unheeded().pop_first().filter(|_| self.warnings_fatal) {
            Some((name, because)) => {
                Err(Failure::usage(format!("--warnings-fatal: {name} is ignored: {because}")))
            }
            None => Ok(()),
        }
    }
}

/// Refuses jobs that wait for a job that is not listed before them.
fn awaited_before(sections: &[Section]) -> Result<()> {
    for (index, Section { job, .. }) in sections.iter().enumerate() {
        let Some(awaited) = &job.wait_for else { continue };
        if !sections[..index].iter().any(|before| before.job.name == *awaited) {
            return Err(Failure::usage(format!(
                "job '{}': wait_for={awaited}: no job of this name stands before it; put it there",
                job.name
            )));
        }
    }
    Ok(())
}

impl Args for BenchArgs {
    fn augment_args(command: Command) -> Command {
        let command = command
            .about("Runs fio's jobs over any path to a device, and reports as fio does")
            .after_help(EXAMPLES)
            .arg(
                Arg::new("FILE")
                    .help("Job files of fio; - is standard input")
                    .action(ArgAction::Append),
            );
        let mut command = RunArgs::augment_args(command);
        let mut seen: BTreeSet<String> = longs(&command);
        command = command.mut_args(|arg| match arg.get_long().map(str::to_owned) {
            Some(long) => with_spellings(arg, &long, &mut seen),
            None => arg,
        });
        for spec in table::options() {
            let arg =
                Arg::new(spec.name).long(spec.name).help(spec.help).help_heading(spec.heading);
            let mut arg = valued(arg, spec.kind).value_name(spec.value);
            for alias in &spec.aliases {
                seen.insert((*alias).to_owned());
                arg = with_spellings(arg.alias(*alias), alias, &mut seen);
            }
            seen.insert(spec.name.to_owned());
            command = command.arg(with_spellings(arg, spec.name, &mut seen));
        }
        others().fold(command, |command, (name, other)| {
            if !seen.insert(name.to_owned()) {
                return command;
            }
            let arg = valued(Arg::new(name).long(name), other.kind());
            let arg = match other.explained() {
                Some(help) => {
                    arg.help(help).help_heading(EFFECTLESS).hide_short_help(true).value_name("…")
                }
                None => arg.hide(true),
            };
            command.arg(with_spellings(arg, name, &mut seen))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        BenchArgs::augment_args(command)
    }
}

/// Returns the options that only fio supports, by name.
fn others() -> impl Iterator<Item = (&'static str, &'static Other)> {
    others::all().flat_map(|other| other.names.iter().map(move |name| (*name, other)))
}

/// Returns the message for an unknown command-line option, given with its dashes.
pub fn unknown_option(written: &str) -> String {
    let name = written.trim_start_matches('-').split('=').next().unwrap_or_default();
    if !written.starts_with("--") {
        return format!("{written}: options have two dashes, as in --rw=read");
    }
    let run = longs(&RunArgs::augment_args(Command::new("bench")));
    let why = written::unknown_beside(&written::canonical(name), run.iter().map(String::as_str));
    format!("--{name}: {why}")
}

fn longs(command: &Command) -> BTreeSet<String> {
    command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

fn valued(arg: Arg, kind: Kind) -> Arg {
    let arg = arg.action(ArgAction::Append);
    match kind {
        Kind::Value => arg.num_args(1).allow_hyphen_values(true),
        Kind::Bool => arg.num_args(0..=1).default_missing_value("1"),
        Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("1"),
        Kind::Optional => arg.num_args(0..=1).require_equals(true).default_missing_value(""),
    }
}

/// Accepts the option with dashes for underscores and the other way round.
fn with_spellings(mut arg: Arg, name: &str, seen: &mut BTreeSet<String>) -> Arg {
    for spelling in [name.replace('_', "-"), name.replace('-', "_")] {
        if seen.insert(spelling.clone()) {
            arg = arg.alias(spelling);
        }
    }
    arg
}

impl FromArgMatches for BenchArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<BenchArgs, clap::Error> {
        let run = RunArgs::from_arg_matches(matches)?;
        let refuse = |why| clap::Error::raw(clap::error::ErrorKind::InvalidValue, why);
        let mut ordered: Vec<(usize, Written)> = Vec::new();
        let names = table::options().map(|spec| spec.name).chain(others().map(|(name, _)| name));
        for name in names.collect::<BTreeSet<_>>() {
            let Ok(Some(values)) = matches.try_get_many::<String>(name) else { continue };
            let places = matches.indices_of(name).into_iter().flatten();
            ordered.extend(places.zip(values).map(|(at, value)| (at, given(name, value))));
        }
        ordered.sort_by_key(|(at, _)| *at);
        let options: Vec<Written> = ordered.into_iter().map(|(_, option)| option).collect();
        if let Some(why) = options.iter().find_map(refused_for_run).or_else(|| wrong_terse(&run)) {
            return Err(refuse(why));
        }
        let files = matches.get_many::<String>("FILE").map(|files| files.cloned().collect());
        Ok(BenchArgs {
            selected: run.section.clone(),
            limits: Limits { max_jobs: run.max_jobs, warnings_fatal: run.warnings_fatal },
            asked: Asked {
                version: run.version,
                option: run.cmdhelp.clone(),
                engine: run.enghelp.clone(),
            },
            run: run.into_options().map_err(refuse)?,
            options,
            files: files.unwrap_or_default(),
            said: OnceLock::new(),
        })
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        *self = BenchArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

fn given(name: &str, value: &str) -> Written {
    // clap's placeholder for a missing value is not shown.
    let is_optional = table::find(name).is_some_and(|spec| spec.kind == Kind::Optional);
    let value = (!(is_optional && value.is_empty())).then(|| value.to_owned());
    Written { name: name.to_owned(), value, place: Place::CommandLine }
}

fn refused_for_run(option: &Written) -> Option<String> {
    let other =
        others::find(&option.name).filter(|other| other.treatment == Treatment::AbsentForRun)?;
    Some(format!("--{}: {}", option.name, other.refusal()))
}

fn wrong_terse(run: &RunArgs) -> Option<String> {
    let version = run.terse_version.as_ref().filter(|version| *version != "3")?;
    Some(format!(
        "--terse-version={version}: there is only version 3; take --output-format=json for more"
    ))
}

/// Removes repeated formats, keeping the first of each.
fn each_once(formats: Vec<OutputFormat>) -> Vec<OutputFormat> {
    let mut once = Vec::new();
    formats.into_iter().for_each(|format| {
        if !once.contains(&format) {
            once.push(format);
        }
    });
    once
}

impl RunArgs {
    /// Returns the ignored options, with reasons.
    fn unheeded(&self) -> std::result::Result<Vec<(&'static str, &'static str)>, String> {
        let mut unheeded = debug::unheeded(&self.debug)?;
        if self.bandwidth_log {
            unheeded.push(("--bandwidth-log", "use --write_bw_log, a log for each job"));
        }
        if self.idle_prof.is_some() {
            unheeded.push(("--idle-prof", "each job reports its own share of busy time"));
        }
        Ok(unheeded)
    }

    fn formats(&self) -> Vec<OutputFormat> {
        let given = if self.minimal { &[OutputFormat::Terse][..] } else { &self.output_format };
        let more = self.append_terse.then_some(OutputFormat::Terse);
        each_once(given.iter().copied().chain(more).collect())
    }

    fn into_options(self) -> std::result::Result<RunOptions, String> {
        let args = self;
        Ok(RunOptions {
            unheeded: args.unheeded()?,
            shows_seeds: debug::shows_seeds(&args.debug),
            eta_newline: args.eta_newline,
            formats: args.formats(),
            output: args.output,
            status_interval: args.status_interval,
            eta: args.eta,
            eta_interval: args.eta_interval,
            readonly: args.readonly,
            parse_only: args.parse_only,
            showcmd: args.showcmd,
            allow_destroy: args.allow_destroy,
            targets: args.targets.map(|list| list.0).unwrap_or_default(),
            rounds: args.rounds,
            sweep: args.sweep,
            ceiling: args.ceiling,
            recover: args.recover,
            aux_path: args.aux_path,
        })
    }
}

#[cfg(test)]
mod tests;
