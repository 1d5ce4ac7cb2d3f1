//! `cargo xtask sim` runs this.
#![forbid(unsafe_code)]

mod worker;
mod workers;

use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Write, stderr};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use adit_sim::{Canary, Counts, note_panics, run_seed};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

use worker::{Batch, Share};
use workers::End;

/// Schedules where nothing else is said.
const SCHEDULES: u64 = 100_000;

/// Run the driver over the software controller in virtual time, with faults, and check its laws.
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim", after_help = EXAMPLES)]
struct Cli {
    /// The seed of the only schedule, or of the first with --schedules or --minutes; decimal or 0x hexadecimal
    #[arg(long, value_parser = seed)]
    seed: Option<u64>,

    /// How many schedules to run [default: 100000, with --seed 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    schedules: Option<u64>,

    /// Stop after so many minutes
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<Duration>,

    /// Print what happens, step by step, with the driver's log (with --seed)
    #[arg(long, requires = "seed", conflicts_with_all = ["schedules", "minutes"])]
    trace: bool,

    /// Break a law on purpose and see that it is caught
    #[arg(long, value_name = "NAME")]
    canary: Option<Canary>,

    /// Processes that share the work [default: one for each core]
    #[arg(long, value_name = "J")]
    jobs: Option<NonZeroU64>,

    /// Which share of the work this process has
    #[arg(long, hide = true, requires = "seed")]
    worker: Option<Share>,
}

const EXAMPLES: &str = "Examples:
  cargo xtask sim                          100000 schedules with fresh seeds
  cargo xtask sim --minutes 30             as many as half an hour takes
  cargo xtask sim --seed 0x1f3a --trace    one schedule, step by step
  cargo xtask sim --canary lost-write      a broken law, and how it is reported";

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
    let one_seed = cli.schedules.is_none() && cli.minutes.is_none();
    match (cli.worker, cli.seed) {
        (Some(share), Some(seed)) => worker::run(&batch(&cli, seed), share),
        (None, Some(seed)) if one_seed => show(seed, &cli),
        _ => search(&cli),
    }
}

fn batch(cli: &Cli, first: u64) -> Batch {
    let endless = cli.minutes.is_some();
    let schedules = cli.schedules.or((!endless).then_some(SCHEDULES));
    Batch { first, schedules, minutes: cli.minutes, canary: cli.canary }
}

/// Runs many schedules.
fn search(cli: &Cli) -> ExitCode {
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        if let Err(why) = signal_hook::flag::register(signal, Arc::clone(&stops)) {
            eprintln!("sim: cannot catch signals: {why}");
        }
    }
    let first = cli.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    let batch = batch(cli, first);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = cli.jobs.map_or(cores, NonZeroU64::get);
    println!("sim: schedules from seed {first:#x} on, {jobs} processes");
    let begun = Instant::now();
    let (counts, end) =
        workers::run(&batch, jobs, &stops, |counts| progress(counts, &batch, begun.elapsed()));
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rate = counts.schedules as f64 / seconds.max(1e-9);
    println!("{counts}");
    println!("sim: {} schedules in {seconds:.1} s ({rate:.0} per second)", counts.schedules);
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

/// One line on a terminal, nothing in a pipe.
fn progress(counts: &Counts, batch: &Batch, elapsed: Duration) {
    if !stderr().is_terminal() {
        return;
    }
    let of = batch.schedules.map_or(String::new(), |of| format!(" of {of}"));
    let line = format!("\r{}{of} schedules, {} s\x1b[K", counts.schedules, elapsed.as_secs());
    let mut terminal = stderr().lock();
    // Nobody is left to tell when the terminal is gone.
    let _ = terminal.write_all(line.as_bytes()).and_then(|()| terminal.flush());
}

/// Runs one schedule and prints how it went, or all of it.
fn show(seed: u64, cli: &Cli) -> ExitCode {
    if cli.trace {
        tracing_subscriber::fmt().without_time().with_writer(stderr).init();
    }
    // Always kept: the end of it is what a failure shows.
    match run_seed(seed, cli.canary, true) {
        Ok(report) => {
            if cli.trace {
                println!("{}", report.trace.join("\n"));
            }
            println!("{}\nsim: no law was broken; hash {:#018x}", report.counts, report.hash);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            if cli.trace {
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
