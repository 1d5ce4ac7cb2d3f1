//! `cargo xtask sim` runs this.
#![forbid(unsafe_code)]

use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Write, stderr};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_sim::{Batch, Canary, Counts, note_panics, run_batch, run_seed};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Schedules where nothing else is said.
const SCHEDULES: u64 = 100_000;
/// How often the progress line changes.
const TELL_EVERY: Duration = Duration::from_millis(500);

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

    /// Threads [default: one for each core]
    #[arg(long, value_name = "T")]
    threads: Option<NonZeroUsize>,
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
    if let (true, Some(seed)) = (cli.trace, cli.seed) {
        return trace(seed, cli.canary);
    }
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        if let Err(why) = signal_hook::flag::register(signal, Arc::clone(&stops)) {
            eprintln!("sim: cannot catch signals: {why}");
        }
    }
    search(&cli, &stops)
}

/// Runs many schedules.
fn search(cli: &Cli, stops: &AtomicBool) -> ExitCode {
    let first = cli.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    let schedules = match (cli.schedules, cli.minutes, cli.seed) {
        (Some(schedules), ..) => Some(schedules),
        (None, Some(_), _) => None,
        (None, None, Some(_)) => Some(1),
        (None, None, None) => Some(SCHEDULES),
    };
    let threads = cli.threads.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get);
    let batch = Batch { first, schedules, time: cli.minutes, threads, canary: cli.canary };
    println!("sim: schedules from seed {first:#x} on, {threads} threads");
    let told = Mutex::new(Instant::now());
    let begun = Instant::now();
    let (counts, failure) = run_batch(batch, stops, &|counts, elapsed| {
        progress(&told, counts, schedules, elapsed);
    });
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{counts}");
    let rate = counts.schedules as f64 / seconds.max(1e-9);
    println!("sim: {} schedules in {seconds:.1} s ({rate:.0} per second)", counts.schedules);
    match failure {
        Some(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
        None if stops.load(Ordering::Relaxed) => {
            println!("sim: interrupted; no law was broken so far");
            ExitCode::from(130)
        }
        None => {
            println!("sim: no law was broken");
            ExitCode::SUCCESS
        }
    }
}

/// One line on a terminal, nothing in a pipe.
fn progress(told: &Mutex<Instant>, counts: &Counts, of: Option<u64>, elapsed: Duration) {
    let Ok(mut told) = told.try_lock() else { return };
    if told.elapsed() < TELL_EVERY || !stderr().is_terminal() {
        return;
    }
    *told = Instant::now();
    let of = of.map_or(String::new(), |of| format!(" of {of}"));
    let line = format!("\r{}{of} schedules, {} s\x1b[K", counts.schedules, elapsed.as_secs());
    let mut terminal = stderr().lock();
    // Nobody is left to tell when the terminal is gone.
    let _ = terminal.write_all(line.as_bytes()).and_then(|()| terminal.flush());
}

/// Runs one schedule and prints all of it.
fn trace(seed: u64, canary: Option<Canary>) -> ExitCode {
    tracing_subscriber::fmt().without_time().with_writer(stderr).init();
    match run_seed(seed, canary, true) {
        Ok(report) => {
            println!("{}\n{}", report.trace.join("\n"), report.counts);
            println!("sim: no law was broken; hash {:#018x}", report.hash);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{}\n{failure}", failure.trace.join("\n"));
            ExitCode::FAILURE
        }
    }
}
