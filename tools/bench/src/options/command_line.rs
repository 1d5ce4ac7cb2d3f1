//! `adit bench`'s command line: fio's job options in the order given, job files, and options of the whole run.
//!
//! Depends on the option table for names and help. Opens no device.

use std::collections::BTreeSet;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::defaults::NAME;
use super::job::Section;
use super::jobfile::{self, Surroundings, keywords};
use super::others::{self, Other};
use super::request::Request;
use super::run::RunOptions;
use super::table::{self, ValueKind};
use super::written::{self, TextPlace, Written, WrittenSection};
use crate::failure::{Failure, Result};
use crate::human::shell_word;

const EXAMPLES: &str = "\
Options before the first --name and the first job file are defaults of all jobs; each --name starts a job, and \
--name=global gives defaults to the jobs after it. Without --name and job files, the options are one job.

Examples:
  Random 4 KiB reads for ten seconds on a controller bound to vfio-pci:
    adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=10
  Write 64 MiB in random order, mixed with reads, then read back and check every block (overwrites data!):
    adit bench --filename=vfio:0000:01:00.0 --rw=randrw --bs=16k --iodepth=32 --size=64M --verify=crc32c --allow-destroy
  A job file of fio as a command line:
    adit bench jobs.fio --showcmd
  The same jobs on three paths to equal drives, side by side, five times each:
    adit bench jobs.fio --targets vfio:0000:01:00.0,uring:/dev/nvme1n1,psync:/dev/nvme2n1 --rounds 5
  A sweep of queue depths:
    adit bench --filename=soft:mem=1G --rw=randread --runtime=2 --time_based --sweep iodepth=1,4,16,64
  An hour of reads that continues after failed I/Os and recovers a failed controller:
    adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=1h \
--io_timeout=2 --continue_on_error=io --recover
  Verified without a device, with a report in fio's JSON:
    adit bench --filename=soft:mem=64M --rw=randrw --bs=16k --iodepth=32 --verify=crc32c --output-format=json";

/// Help heading of options accepted only for fio's job files; `--help` shows it, `-h` does not.
const EFFECTLESS: &str = "Job: accepted without effect";

/// Runs fio's jobs over any path to a device, and reports as fio does
#[derive(Clone, Debug)]
pub struct BenchArgs {
    pub(crate) run: RunOptions,
    /// Job options, in the order given.
    options: Vec<Written>,
    /// Job files.
    files: Vec<String>,
}

/// The contents of a command line and its job files, before options are interpreted.
#[derive(Clone, Debug)]
struct Said {
    /// Options before the first job.
    defaults: Vec<Written>,
    /// The jobs of the command line, then those of each file.
    parts: Vec<Vec<WrittenSection>>,
}

impl Said {
    fn job_words(&self) -> impl Iterator<Item = Vec<String>> {
        self.parts.iter().flat_map(|part| written::words(&self.defaults, part))
    }
}

impl BenchArgs {
    /// Interprets the options, reads the job files and refuses contradictions. Opens no device.
    ///
    /// # Errors
    /// A sentence with the place of the mistake, and exit code 2.
    pub fn request(&self) -> Result<Request> {
        self.resolve(&self.read(&Surroundings::here())?)
    }

    fn resolve(&self, said: &Said) -> Result<Request> {
        let mut sections = Vec::new();
        for part in &said.parts {
            sections.extend(written::sections(&said.defaults, part)?);
        }
        awaited_before(&sections)?;
        let all: Vec<WrittenSection> = said.parts.concat();
        let global = written::global(&said.defaults, &all);
        let request = Request { run: self.run.clone(), global, sections };
        request.refuse_writes()?;
        self.check_limits(&request)?;
        Ok(request)
    }

    /// Returns an equivalent command line for the jobs.
    ///
    /// # Errors
    /// As [`BenchArgs::request`].
    pub(crate) fn showcmd(&self) -> Result<String> {
        let said = self.read(&Surroundings::here())?;
        self.resolve(&said)?;
        let jobs = said.job_words();
        let lines = jobs
            .map(|words| words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" "));
        Ok(format!("adit bench {}\n", lines.collect::<Vec<_>>().join(" \\\n  ")))
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
        for wanted in &self.run.section {
            if !names().any(|name| name == *wanted) {
                let names = names().collect::<Vec<_>>().join(", ");
                return Err(Failure::usage(format!(
                    "--section: there is no section '{wanted}'; there are {names}"
                )));
            }
        }
        if !self.run.section.is_empty() {
            let is_wanted = |section: &WrittenSection| {
                section.name.as_ref().is_none_or(|name| self.run.section.contains(name))
            };
            parts.iter_mut().for_each(|part| part.retain(is_wanted));
        }
        // As in fio, the jobs of a file start after those of the previous file.
        for part in parts.iter_mut().skip(lines + 1) {
            if let Some(first) = part.iter_mut().find(|section| section.name.is_some()) {
                let (name, value) = ("stonewall".to_owned(), Some("1".to_owned()));
                first.options.push(Written { name, value, place: first.place.clone() });
            }
        }
        Ok(Said { defaults, parts })
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
                jobs.push(WrittenSection {
                    name,
                    place: TextPlace::CommandLine,
                    options: Vec::new(),
                });
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
                place: TextPlace::CommandLine,
                options,
            });
        }
        (defaults, jobs)
    }

    /// Refuses too many threads, and warnings if they are fatal.
    fn check_limits(&self, request: &Request) -> Result<()> {
        let threads: u64 =
            request.sections.iter().map(|section| u64::from(section.job.order.numjobs)).sum();
        if let Some(most) = self.run.max_jobs.filter(|most| threads > *most) {
            return Err(Failure::usage(format!(
                "--max-jobs={most}: the jobs have {threads} threads; give --max-jobs={threads}, or a smaller numjobs"
            )));
        }
        match request.unheeded().pop_first().filter(|_| self.run.warnings_fatal) {
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
        let Some(awaited) = &job.order.wait_for else { continue };
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
        let mut command = RunOptions::augment_args(command);
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
    let run = longs(&RunOptions::augment_args(Command::new("bench")));
    let why = table::unknown_beside(&written::canonical(name), run.iter().map(String::as_str));
    format!("--{name}: {why}")
}

fn longs(command: &Command) -> BTreeSet<String> {
    command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

fn valued(arg: Arg, kind: ValueKind) -> Arg {
    let arg = arg.action(ArgAction::Append);
    match kind {
        ValueKind::Value => arg.num_args(1).allow_hyphen_values(true),
        ValueKind::Bool => arg.num_args(0..=1).default_missing_value("1"),
        ValueKind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("1"),
        ValueKind::Optional => arg.num_args(0..=1).require_equals(true).default_missing_value(""),
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
        let mut ordered: Vec<(usize, Written)> = Vec::new();
        let names = table::options().map(|spec| spec.name).chain(others().map(|(name, _)| name));
        for name in names.collect::<BTreeSet<_>>() {
            let Ok(Some(values)) = matches.try_get_many::<String>(name) else { continue };
            let places = matches.indices_of(name).into_iter().flatten();
            ordered.extend(places.zip(values).map(|(at, value)| (at, given(name, value))));
        }
        ordered.sort_by_key(|(at, _)| *at);
        let options: Vec<Written> = ordered.into_iter().map(|(_, option)| option).collect();
        let files = matches.get_many::<String>("FILE").map(|files| files.cloned().collect());
        Ok(BenchArgs {
            run: RunOptions::from_arg_matches(matches)?,
            options,
            files: files.unwrap_or_default(),
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
    let is_optional = table::find(name).is_some_and(|spec| spec.kind == ValueKind::Optional);
    let value = (!(is_optional && value.is_empty())).then(|| value.to_owned());
    Written { name: name.to_owned(), value, place: TextPlace::CommandLine }
}

#[cfg(test)]
mod tests;
