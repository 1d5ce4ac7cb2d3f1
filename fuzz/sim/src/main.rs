//! The program behind `cargo xtask sim`.
#![forbid(unsafe_code)]

mod task;
mod worker;
mod workers;

use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Write, stderr};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use adit_sim::kv::count_sweep;
use adit_sim::note_panics;
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

use task::{Task, Totals};
use worker::{Batch, Share};
use workers::End;

const SCHEDULES: u64 = 100_000;

/// Run the driver over the software controller, or the store over simulated devices, in virtual time and with faults,
/// and check their laws.
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim", after_help = EXAMPLES)]
struct Cli {
    /// The seed of the only schedule, or of the first with --schedules or --minutes; decimal or 0x hexadecimal
    #[arg(long, value_parser = seed)]
    seed: Option<u64>,

    /// How many schedules to run [default: 100000, with --seed 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    schedules: Option<u64>,

    /// Stop after this many minutes
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<Duration>,

    /// Print what happens, step by step, with the driver's log (with --seed)
    #[arg(long, requires = "seed", conflicts_with_all = ["schedules", "minutes"])]
    trace: bool,

    /// Break a law on purpose and see that it is caught
    #[arg(long, value_name = "NAME")]
    canary: Option<String>,

    /// The store instead of the driver
    #[arg(long)]
    store: bool,

    /// Cut the power at every command of a workload of 2000 operations in each durability (with --store)
    #[arg(long, requires = "store", conflicts_with = "canary")]
    sweep: bool,

    /// Only at every K-th command (with --sweep)
    #[arg(long, value_name = "K", default_value_t = 1, requires = "sweep", value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,

    /// Only the N-th cut (with --sweep and --seed)
    #[arg(long, value_name = "N", requires_all = ["sweep", "seed"])]
    cut: Option<u64>,

    /// Processes that share the work [default: one for each core]
    #[arg(long, value_name = "J")]
    jobs: Option<NonZeroU64>,

    /// This process's share of the work
    #[arg(long, hide = true, requires = "seed")]
    worker: Option<Share>,
}

const EXAMPLES: &str = "Examples:
  cargo xtask sim                          100000 schedules with fresh seeds
  cargo xtask sim --minutes 30             as many as half an hour takes
  cargo xtask sim --seed 0x1f3a --trace    one schedule, step by step
  cargo xtask sim --canary lost-write      a broken law, and how it is reported
  cargo xtask sim --store                  100000 schedules of the store
  cargo xtask sim --store --sweep          a power cut at each command of a long workload";

fn seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a seed is a number below 2^64, such as 42 or 0x1f3a".to_owned())
}

fn minutes(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().filter(|minutes: &f64| *minutes > 0.0);
    let time = parsed.and_then(|minutes| Duration::try_from_secs_f64(minutes * 60.0).ok());
    time.ok_or_else(|| "minutes are a number above 0, such as 5 or 0.5".to_owned())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    note_panics();
    let first = cli.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    let task = match task(&cli, first) {
        Ok(task) => task,
        Err(why) => {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let is_many = cli.schedules.is_some() || cli.minutes.is_some() || cli.sweep;
    let batch = batch(&cli, task, first);
    match (cli.worker, cli.cut) {
        (Some(share), _) => worker::run(&batch, share),
        (None, Some(cut)) => show(&batch, cut, cli.trace),
        (None, None) if cli.seed.is_some() && !is_many => show(&batch, 0, cli.trace),
        _ => search(&batch, cli.jobs),
    }
}

/// Determines the task.
///
/// # Errors
/// The message for the user.
fn task(cli: &Cli, first: u64) -> Result<Task, String> {
    let canary = cli.canary.as_deref();
    if cli.sweep {
        let commands = count_sweep(first).map_err(|failure| failure.to_string())?;
        return Ok(Task::Sweep { commands, every: cli.every });
    }
    if cli.store {
        return Ok(Task::Store(canary.map(str::parse).transpose()?));
    }
    Ok(Task::Driver(canary.map(str::parse).transpose()?))
}

fn batch(cli: &Cli, task: Task, first: u64) -> Batch {
    let endless = cli.minutes.is_some();
    let own = task.schedules().or((!endless).then_some(SCHEDULES));
    Batch { first, schedules: cli.schedules.or(own), minutes: cli.minutes, task }
}

/// Runs many schedules.
fn search(batch: &Batch, jobs: Option<NonZeroU64>) -> ExitCode {
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        if let Err(why) = signal_hook::flag::register(signal, Arc::clone(&stops)) {
            eprintln!("sim: cannot catch signals: {why}");
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = jobs.map_or(cores, NonZeroU64::get);
    println!("sim: schedules from seed {:#x} on, {jobs} processes", batch.first);
    let begun = Instant::now();
    let (totals, end) =
        workers::run(batch, jobs, &stops, |totals| progress(totals, batch, begun.elapsed()));
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let schedules = totals.schedules();
    let rate = schedules as f64 / seconds.max(1e-9);
    println!("{totals}");
    println!("sim: {schedules} schedules in {seconds:.1} s ({rate:.0} per second)");
    match end {
        End::Done => {
            println!("sim: no law was broken");
            ExitCode::SUCCESS
        }
        End::Stopped => {
            println!("sim: interrupted; no law was broken so far");
            ExitCode::from(130)
        }
        End::Failed(report) => {
            println!("{report}");
            ExitCode::FAILURE
        }
    }
}

/// Prints one line on a terminal, nothing in a pipe.
fn progress(totals: &Totals, batch: &Batch, elapsed: Duration) {
    if !stderr().is_terminal() {
        return;
    }
    let of = batch.schedules.map_or(String::new(), |of| format!(" of {of}"));
    let line = format!("\r{}{of} schedules, {} s\x1b[K", totals.schedules(), elapsed.as_secs());
    let mut terminal = stderr().lock();
    // The terminal may be gone.
    let _ = terminal.write_all(line.as_bytes()).and_then(|()| terminal.flush());
}

/// Runs one schedule and prints its result, or its whole trace.
fn show(batch: &Batch, index: u64, traces: bool) -> ExitCode {
    if traces {
        tracing_subscriber::fmt().without_time().with_writer(stderr).init();
    }
    let task = match batch.task {
        Task::Sweep { commands, .. } => Task::Sweep { commands, every: 1 },
        other => other,
    };
    // Always keep the trace: a failure shows the end of it.
    match task.run(batch.first, index, true) {
        Ok(told) => {
            if traces {
                println!("{}", told.trace.join("\n"));
            }
            println!("{}\nsim: no law was broken; hash {:#018x}", told.totals, told.hash);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            if traces {
                println!("{}\n", failure.trace.join("\n"));
            }
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn seeds_are_decimal_or_hexadecimal_and_others_are_refused() {
        assert_eq!((seed("42"), seed("0x2a")), (Ok(42), Ok(42)));
        for wrong in ["", "0x", "-1", "seven", "0x1ffffffffffffffff"] {
            assert!(seed(wrong).expect_err(wrong).contains("such as 42 or 0x1f3a"));
        }
    }

    #[test]
    fn minutes_are_positive() {
        assert_eq!(minutes("0.5"), Ok(Duration::from_secs(30)));
        for wrong in ["0", "-1", "NaN", "1e300", "soon"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
