//! `adit kv top`: shows a running store, live.
//!
//! | file | holds |
//! |---|---|
//! | `source` | where metrics come from: a URL, a file or a socket |
//! | `report` | what happened between two samples |
//! | `screen` | a report as text, and the terminal |

mod report;
mod screen;
mod source;

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use self::screen::Screen;
use self::source::{Sampler, Source};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::metrics::Metrics;
use crate::output::{Output, remark};

const EXAMPLES: &str = "\
Examples:
  adit kv top http://localhost:8080/metrics
  adit kv top serve:kv.sock
  adit kv top http://localhost:8080 --interval 5 --json | jq .hit_share
  adit kv top /var/lib/node_exporter/adit.prom --once

Rates and latencies are those of the last interval. On a terminal the picture is redrawn until Ctrl-C; elsewhere \
each interval is printed. A server that restarts is waited for. 'adit kv serve' tells no latencies, and nothing of \
single devices and tenants.";

/// Time between looks at the flag that ends the program.
const LOOK: Duration = Duration::from_millis(50);

/// Shows a running store live, from its server's metrics
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// The server's metrics: a URL such as http://localhost:8080/metrics, a file that is rewritten, or serve:SOCKET of
    /// 'adit kv serve'
    #[arg(value_name = "URL|FILE|serve:SOCKET")]
    source: Source,

    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// Prints one interval and ends
    #[arg(long)]
    once: bool,

    /// Prints a line of JSON for each interval
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "use 0.1 to 3600 seconds".to_owned())
}

/// Runs the command until Ctrl-C.
///
/// # Errors
/// When the first sample cannot be had; with `--once`, the second one neither.
pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let mut sampler = Sampler::new(&args.source);
    let mut before = (Instant::now(), sampler.read()?);
    let mut screen = Screen::open(!args.json && !args.once)?;
    let mut due = before.0;
    loop {
        due = (due + args.interval).max(Instant::now());
        if !wait(due, &interrupt) {
            return Ok(());
        }
        match sampler.read() {
            Ok(metrics) => {
                let now = (Instant::now(), metrics);
                show(args, &mut screen, &before, &now)?;
                before = now;
            }
            Err(failure) if args.once => return Err(failure),
            Err(failure) => no_answer(&mut screen, &failure)?,
        }
        if args.once {
            return Ok(());
        }
    }
}

/// Waits until `due`; returns false if the user wants to end.
fn wait(due: Instant, interrupt: &Interrupt) -> bool {
    while !interrupt.requested() {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK));
    }
    false
}

fn show(
    args: &TopArgs,
    screen: &mut Screen,
    before: &(Instant, Metrics),
    now: &(Instant, Metrics),
) -> Result<()> {
    let report = report::between(&before.1, &now.1, now.0 - before.0);
    if args.json {
        return Output::Standard.write(&format!("{report}\n"));
    }
    screen.draw(&screen::lines(&args.source.to_string(), &report))
}

/// Says that the server does not answer now. It may be restarting.
fn no_answer(screen: &mut Screen, failure: &Failure) -> Result<()> {
    if screen.is_live() {
        return screen.draw(&[format!("{failure}; trying again")]);
    }
    remark(&format!("adit: {failure}; trying again"));
    Ok(())
}
