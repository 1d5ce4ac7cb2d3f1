//! Watching the jobs: rates by the half second for the report, and a line on the terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::job::Progress;
use super::measure::Samples;
use super::options::{BenchArgs, Eta};
use crate::human;

/// Between two samples, as in fio.
const INTERVAL: Duration = Duration::from_millis(500);

/// Looks at the jobs' progress while they run.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    args: &'a BenchArgs,
    progress: &'a [Progress],
    /// I/Os until the end, where it is not time that ends the run.
    ios_total: Option<u64>,
    start: Instant,
    last: Instant,
    seen: Vec<[u64; 2]>,
    samples: Vec<[Samples; 2]>,
    shown: Option<Ends>,
}

/// What begins and ends a line of progress.
type Ends = (&'static str, &'static str);

/// Over and over in the same place.
const ON_TERMINAL: Ends = ("\r", "\x1b[K");
/// One after the other.
const IN_LINES: Ends = ("", "\n");

impl<'a> Watch<'a> {
    /// Starts watching; `blocks` is what all jobs together cover.
    pub(crate) fn new(args: &'a BenchArgs, progress: &'a [Progress], blocks: u64) -> Watch<'a> {
        let written = blocks * u64::from(100 - args.pattern().read_percent) / 100;
        let read_back = if args.checks_writes() { written } else { 0 };
        let now = Instant::now();
        Watch {
            args,
            progress,
            ios_total: (!args.time_based).then_some(blocks + read_back),
            start: now,
            last: now,
            seen: vec![[0; 2]; progress.len()],
            samples: vec![Default::default(); progress.len()],
            shown: shown(args.eta, io::stderr().is_terminal()),
        }
    }

    /// How long until there is something to do.
    pub(crate) fn until_next(&self) -> Duration {
        INTERVAL.saturating_sub(self.last.elapsed())
    }

    /// Takes a sample if it is time to, with `running` jobs left.
    pub(crate) fn tick(&mut self, running: usize) {
        let interval = self.last.elapsed();
        if interval < INTERVAL {
            return;
        }
        self.last = Instant::now();
        let mut moved = [0; 2];
        for (job, progress) in self.progress.iter().enumerate() {
            let ios = [
                progress.read_ios.load(Ordering::Relaxed),
                progress.write_ios.load(Ordering::Relaxed),
            ];
            for way in 0..2 {
                let delta = ios[way] - self.seen[job][way];
                moved[way] += delta;
                if delta > 0 {
                    self.samples[job][way].push(delta * self.args.bs, delta, interval);
                }
            }
            self.seen[job] = ios;
        }
        if let Some((begin, end)) = self.shown {
            let line = self.line(running, moved.map(|ios| ios as f64 / interval.as_secs_f64()));
            // A terminal that went away takes nothing with it.
            let _ = write!(io::stderr(), "{begin}{line}{end}");
        }
    }

    /// Clears the line and gives out the samples of each job, reads before writes.
    pub(crate) fn finish(self) -> Vec<[Samples; 2]> {
        if self.shown == Some(ON_TERMINAL) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        self.samples
    }

    fn line(&self, running: usize, iops: [f64; 2]) -> String {
        let done = self.fraction_done();
        let rates = |format: fn(f64) -> String, scale: f64| {
            let parts = ["r", "w"].iter().zip(iops).filter(|(_, iops)| *iops > 0.0);
            parts
                .map(|(way, iops)| format!("{way}={}", format(iops * scale)))
                .collect::<Vec<_>>()
                .join(",")
        };
        let left = self.left(done).map_or("--".to_owned(), clock);
        format!(
            "Jobs: {running}: [{}][{:.1}%][{}/s][{} IOPS][eta {left}]",
            self.args.rw,
            done * 100.0,
            rates(human::bytes, self.args.bs as f64),
            rates(|iops| human::si(iops, 4), 1.0),
        )
    }

    fn fraction_done(&self) -> f64 {
        let by_time = self
            .args
            .runtime
            .map_or(0.0, |runtime| self.start.elapsed().as_secs_f64() / runtime.as_secs_f64());
        let failed = |job: &Progress| job.failed_ios.load(Ordering::Relaxed);
        let failed: u64 = self.progress.iter().map(failed).sum();
        let ios = self.seen.iter().flatten().sum::<u64>() + failed;
        let by_count = self.ios_total.map_or(0.0, |total| ios as f64 / total as f64);
        by_time.max(by_count).min(1.0)
    }

    fn left(&self, done: f64) -> Option<Duration> {
        let left = self.start.elapsed().as_secs_f64() * (1.0 - done) / done;
        Duration::try_from_secs_f64(left).ok()
    }
}

/// How progress is shown, if at all.
fn shown(eta: Eta, on_terminal: bool) -> Option<Ends> {
    match (eta, on_terminal) {
        (Eta::Never, _) | (Eta::Auto, false) => None,
        (_, true) => Some(ON_TERMINAL),
        (Eta::Always, false) => Some(IN_LINES),
    }
}

/// Minutes and seconds, with hours where there are any.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds / 3600 {
        0 => format!("{:02}m:{:02}s", seconds / 60, seconds % 60),
        hours => format!("{hours}h:{:02}m:{:02}s", seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> BenchArgs {
        BenchArgs::new("soft:null".parse().expect("a target"))
    }

    #[test]
    fn the_line_says_how_far_and_how_fast() {
        let (args, progress) = (args(), [Progress::default()]);
        let mut watch = Watch::new(&args, &progress, 1000);
        watch.seen[0] = [250, 0];
        let line = watch.line(1, [10_234.0, 0.0]);
        assert!(
            line.starts_with("Jobs: 1: [read][25.0%][r=40.0MiB/s][r=10.2k IOPS][eta 00m:00s]"),
            "{line}"
        );
    }

    #[test]
    fn what_failed_is_done_as_well() {
        let (args, progress) = (args(), [Progress::default()]);
        progress[0].failed_ios.store(750, Ordering::Relaxed);
        let mut watch = Watch::new(&args, &progress, 1000);
        watch.seen[0] = [250, 0];
        assert_eq!(watch.fraction_done(), 1.0);
    }

    #[test]
    fn progress_is_shown_on_a_terminal_and_where_it_is_asked_for() {
        assert_eq!(shown(Eta::Auto, true), Some(ON_TERMINAL));
        assert_eq!(shown(Eta::Auto, false), None);
        assert_eq!(shown(Eta::Always, false), Some(IN_LINES));
        assert_eq!(shown(Eta::Never, true), None);
    }

    #[test]
    fn nothing_done_has_no_end_in_sight() {
        let (args, progress) = (args(), [Progress::default()]);
        assert!(Watch::new(&args, &progress, 1000).line(1, [0.0; 2]).contains("[eta --]"));
    }

    #[test]
    fn a_clock_has_hours_when_needed() {
        assert_eq!(clock(Duration::from_secs(75)), "01m:15s");
        assert_eq!(clock(Duration::from_secs(3675)), "1h:01m:15s");
    }
}
