//! Watches jobs: rates every half second for the report, progress on the terminal, steady states.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::plan::Thread;
use super::progress::Progress;
use super::steady::Steady;
use crate::human::{self, printable};
use crate::measure::Samples;
use crate::options::{Eta, RunOptions};
use crate::outcome::SteadyOutcome;
use crate::output;
use crate::way::{PerWay, Way};

/// Sampling interval, as in fio.
const INTERVAL: Duration = Duration::from_millis(500);
/// Samples per second, the unit of steady states.
const SAMPLES_A_SECOND: u32 = 2;

/// Watches the jobs' progress while they run.
pub(crate) struct Watch<'a> {
    threads: Vec<Watched<'a>>,
    /// A line of progress for each group of reports.
    bars: BTreeMap<u32, ProgressBar>,
    steady: Vec<SteadyThreads>,
    start: Instant,
    last: Instant,
    ticks: u32,
    last_look: Instant,
    shown: Shown,
    eta_interval: Duration,
    last_shown: Instant,
    eta_newline: Option<Duration>,
    last_newline: Instant,
}

/// One watched thread.
struct Watched<'a> {
    thread: &'a Thread<'a>,
    progress: &'a Progress,
    /// Bytes after which it ends, unless time ends it.
    bytes_max: Option<u64>,
    began: Option<Instant>,
    seen: PerWay<(u64, u64)>,
    restarts: u32,
    samples: PerWay<Samples>,
    /// I/Os and bytes of the last interval.
    moved: PerWay<(u64, u64)>,
}

/// Threads that are steady together: one, or those that are reported as one.
struct SteadyThreads {
    members: Vec<usize>,
    state: Steady,
    /// I/Os and bytes at the last look.
    seen: (u64, u64),
}

/// How progress is shown.
enum Shown {
    /// Not at all.
    No,
    /// On a terminal, one line per group, updated in place.
    InPlace(MultiProgress),
    /// As separate lines.
    InLines,
}

impl<'a> Watch<'a> {
    /// Starts watching; each thread comes with the bytes that end it.
    pub(crate) fn new(
        run: &RunOptions,
        threads: Vec<(&'a Thread<'a>, &'a Progress, Option<u64>)>,
    ) -> Watch<'a> {
        let now = Instant::now();
        let shown = shown(run.eta, io::stderr().is_terminal());
        let groups = threads.iter().map(|(thread, ..)| thread.group);
        let bars = groups.collect::<BTreeSet<_>>().into_iter().map(|group| (group, bar(&shown)));
        let watched = |(thread, progress, bytes_max)| Watched {
            thread,
            progress,
            bytes_max,
            began: None,
            seen: PerWay::all((0, 0)),
            restarts: 0,
            samples: PerWay::all(Samples::default()),
            moved: PerWay::all((0, 0)),
        };
        let threads: Vec<Watched<'_>> = threads.into_iter().map(watched).collect();
        Watch {
            bars: bars.collect(),
            steady: steady_threads(&threads),
            threads,
            start: now,
            last: now,
            ticks: 0,
            last_look: now,
            shown,
            eta_interval: run.eta_interval,
            last_shown: now,
            eta_newline: run.eta_newline,
            last_newline: now,
        }
    }

    /// Returns the time until the next sample.
    pub(crate) fn until_next(&self) -> Duration {
        INTERVAL.saturating_sub(self.last.elapsed())
    }

    /// Takes a sample if one is due.
    pub(crate) fn tick(&mut self) {
        let interval = self.last.elapsed();
        if interval < INTERVAL {
            return;
        }
        self.last = Instant::now();
        self.ticks += 1;
        let at_ms = self.start.elapsed().as_millis() as u64;
        for watched in &mut self.threads {
            watched.sample(at_ms, interval);
        }
        if self.ticks.is_multiple_of(SAMPLES_A_SECOND) {
            self.look_for_steady_states();
        }
        if self.last_shown.elapsed() + INTERVAL / 2 >= self.eta_interval {
            self.last_shown = Instant::now();
            self.show(interval);
        }
    }

    fn look_for_steady_states(&mut self) {
        // About a second; measured, so that a delayed watcher does not make a job look faster.
        let took = self.last_look.elapsed();
        self.last_look = Instant::now();
        for SteadyThreads { members, state, seen } in &mut self.steady {
            let members: Vec<_> = members.iter().map(|index| &self.threads[*index]).collect();
            let Some(began) = members.iter().filter_map(|member| member.began).min() else {
                continue;
            };
            let total = members.iter().flat_map(|member| member.seen.0).fold((0, 0), sum);
            let [ios, bytes] = [(total.0, seen.0), (total.1, seen.1)]
                .map(|(now, then)| in_a_second(now.saturating_sub(then), took));
            *seen = total;
            if members.iter().any(|member| member.progress.is_running())
                && state.push(began.elapsed(), ios, bytes)
            {
                members.iter().for_each(|member| member.progress.stop());
            }
        }
    }

    fn show(&mut self, interval: Duration) {
        let stays = self.eta_newline.is_some_and(|every| self.last_newline.elapsed() >= every);
        if stays {
            self.last_newline = Instant::now();
        }
        for (group, bar) in &self.bars {
            let is_shown =
                |it: &&Watched<'_>| it.thread.group == *group && it.progress.is_running();
            let members: Vec<_> = self.threads.iter().filter(is_shown).collect();
            if members.is_empty() {
                bar.finish_and_clear();
                continue;
            }
            let line = printable(&line(&members, interval));
            match &self.shown {
                Shown::No => {}
                Shown::InPlace(lines) => {
                    if stays {
                        drop(lines.println(&line));
                    }
                    bar.set_message(line);
                }
                Shown::InLines => output::remark(&line),
            }
        }
    }

    /// Clears the lines and returns the samples of each thread, in order.
    pub(crate) fn finish(self) -> Vec<(PerWay<Samples>, Option<SteadyOutcome>)> {
        self.bars.values().for_each(ProgressBar::finish_and_clear);
        let steady = |index| {
            let threads = self.steady.iter().find(|threads| threads.members.contains(&index));
            threads.map(|threads| threads.state.outcome())
        };
        (0..)
            .zip(self.threads)
            .map(|(index, watched)| {
                // A job that verifies does one kind of I/O after another.
                let has_phases = watched.thread.job().verify.is_some();
                let samples = PerWay(watched.samples.0.map(|samples| samples.settled(has_phases)));
                (samples, steady(index))
            })
            .collect()
    }
}

impl Watched<'_> {
    fn sample(&mut self, at_ms: u64, interval: Duration) {
        let (began, ended) = self.progress.times();
        let Some(began) = began else { return };
        self.began = Some(began);
        let restarts = self.progress.restarts();
        let now = self.progress.load();
        if restarts != self.restarts {
            // Samples so far belong to the ramp.
            (self.restarts, self.seen) = (restarts, PerWay::all((0, 0)));
            self.samples = PerWay::all(Samples::default());
        }
        // A job that began or ended within the interval was active for only a part of it.
        let idle = ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        let active = began.elapsed().min(interval).saturating_sub(idle);
        for way in Way::ALL {
            let moved = (
                now[way].0 - self.seen[way].0.min(now[way].0),
                now[way].1 - self.seen[way].1.min(now[way].1),
            );
            self.moved[way] = moved;
            // An interval without I/O is a stall, if the job does I/O of this kind: see `Samples::settled`.
            if active > interval / 4 {
                self.samples[way].push(at_ms, moved.1, moved.0, active);
            }
        }
        self.seen = now;
    }

    /// Returns how much of it is done, 0 to 1.
    fn done(&self) -> f64 {
        let job = self.thread.job();
        let time = job.time.runtime.map(|runtime| runtime + job.time.ramp_time);
        // A job that restarted its counts has passed its ramp.
        let ramp = if self.restarts > 0 { job.time.ramp_time } else { Duration::ZERO };
        let spent = self.began.map_or(Duration::ZERO, |began| began.elapsed() + ramp);
        let by_time = time.map_or(0.0, |time| spent.as_secs_f64() / time.as_secs_f64());
        let bytes = self.seen.0.iter().map(|(_, bytes)| *bytes).sum::<u64>() as f64;
        let by_bytes = self.bytes_max.map_or(0.0, |most| bytes / most.max(1) as f64);
        by_time.max(by_bytes).min(1.0)
    }
}

/// Returns the threads that end once they are steady.
fn steady_threads(threads: &[Watched<'_>]) -> Vec<SteadyThreads> {
    let is_one = |watched: &Watched<'_>| watched.thread.job().order.group_reporting;
    let mut all: Vec<SteadyThreads> = Vec::new();
    for (index, watched) in threads.iter().enumerate() {
        let Some(options) = watched.thread.job().time.steadystate else { continue };
        if is_one(watched) && all.iter().any(|it| it.members.contains(&index)) {
            continue;
        }
        let is_member = |(other, it): &(usize, &Watched<'_>)| {
            it.thread.group == watched.thread.group && (is_one(it) || *other == index)
        };
        let members = threads.iter().enumerate().filter(is_member).map(|(other, _)| other);
        let members = members.collect();
        all.push(SteadyThreads { members, state: Steady::new(options), seen: (0, 0) });
    }
    all
}

fn sum(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1 + b.1)
}

/// Converts a count over a time to a rate per second.
fn in_a_second(count: u64, took: Duration) -> u64 {
    (count as f64 / took.as_secs_f64()).round() as u64
}

/// Formats a group's line like fio's, with the 99th percentile of all latencies so far.
fn line(members: &[&Watched<'_>], interval: Duration) -> String {
    let done = members.iter().map(|member| member.done()).fold(1.0, f64::min);
    let moved = PerWay(
        Way::ALL.map(|way| members.iter().map(|member| member.moved[way]).fold((0, 0), sum)),
    );
    let per_second = |count: u64| count as f64 / interval.as_secs_f64();
    let rates = |format: &dyn Fn((u64, u64)) -> String| {
        let busy = moved.iter().filter(|(_, moved)| moved.0 > 0);
        busy.map(|(way, moved)| format!("{}={}", &way.name()[..1], format(*moved)))
            .collect::<Vec<_>>()
            .join(",")
    };
    let began = members.iter().filter_map(|member| member.began).min();
    let left = began.and_then(|began| left(began.elapsed(), done)).map_or("--".to_owned(), clock);
    let p99 = members.iter().map(|member| member.progress.p99_ns()).max().unwrap_or(0);
    format!(
        "Jobs: {} ({}): [{:.1}%][{}/s][{} IOPS][p99={}][eta {left}]",
        members.len(),
        members[0].thread.job().name,
        done * 100.0,
        rates(&|(_, bytes)| human::bytes(per_second(bytes))),
        rates(&|(ios, _)| human::si(per_second(ios), 4)),
        human::latency(p99),
    )
}

fn left(elapsed: Duration, done: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * (1.0 - done) / done).ok()
}

/// Returns how to show progress.
fn shown(eta: Eta, on_terminal: bool) -> Shown {
    match (eta.is_shown(on_terminal), on_terminal) {
        (false, _) => Shown::No,
        (_, true) => Shown::InPlace(MultiProgress::with_draw_target(ProgressDrawTarget::stderr())),
        (_, false) => Shown::InLines,
    }
}

fn bar(shown: &Shown) -> ProgressBar {
    let Shown::InPlace(bars) = shown else { return ProgressBar::hidden() };
    let bar = bars.add(ProgressBar::no_length());
    bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is valid"));
    bar
}

/// Formats a time as minutes and seconds, with hours if any.
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
    use crate::options::{JobOptions, Section};

    #[test]
    fn the_line_says_how_far_and_how_fast() {
        let section = Section {
            job: JobOptions { name: "a".to_owned(), ..JobOptions::usual() },
            given: Vec::new(),
        };
        let (thread, progress) =
            (Thread { section: &section, number: 0, group: 0, wave: 0 }, Progress::default());
        let mut watch =
            Watch::new(&RunOptions::default(), vec![(&thread, &progress, Some(40_960))]);
        progress.set_running(true);
        progress.store(Way::Read, 5, 20_480);
        progress.set_p99_ns(84_700);
        // The job must be active for the whole interval.
        std::thread::sleep(Duration::from_millis(20));
        watch.threads[0].sample(500, Duration::from_millis(20));
        let line = line(&[&watch.threads[0]], Duration::from_millis(500));
        assert!(
            line.starts_with(
                "Jobs: 1 (a): [50.0%][r=40.0KiB/s][r=10 IOPS][p99=84.7 us][eta 00m:00s]"
            ),
            "{line}"
        );
        let samples = &watch.finish()[0].0[Way::Read];
        assert_eq!((samples.points.len(), samples.points[0].iops), (1, 250.0));
    }

    #[test]
    fn an_interval_without_io_is_a_zero() {
        let section = Section { job: JobOptions::usual(), given: Vec::new() };
        let (thread, progress) =
            (Thread { section: &section, number: 0, group: 0, wave: 0 }, Progress::default());
        let mut watch = Watch::new(&RunOptions::default(), vec![(&thread, &progress, None)]);
        progress.set_running(true);
        std::thread::sleep(Duration::from_millis(20));
        for (at_ms, ios) in [(500, 0), (1000, 10), (1500, 10), (2000, 20), (2500, 20)] {
            progress.store(Way::Read, ios, ios * 4096);
            watch.threads[0].sample(at_ms, Duration::from_millis(20));
        }
        let samples = &watch.finish()[0].0;
        let iops: Vec<f64> = samples[Way::Read].points.iter().map(|point| point.iops).collect();
        assert_eq!(iops, [0.0, 500.0, 0.0, 500.0, 0.0]);
        assert_eq!((samples[Way::Read].iops.min, samples[Way::Read].iops.mean()), (0.0, 200.0));
        assert_eq!(samples[Way::Read].kib_per_second.min, 0.0);
        assert_eq!(samples[Way::Write].points, [], "the job writes nothing");
    }

    #[test]
    fn a_second_that_took_longer_counts_as_one() {
        assert_eq!(in_a_second(1500, Duration::from_millis(1500)), 1000);
        assert_eq!(in_a_second(7, Duration::from_secs(1)), 7);
    }

    #[test]
    fn what_warms_up_is_a_part_of_what_is_to_be_done() {
        let job = JobOptions {
            time: crate::options::TimeOptions {
                runtime: Some(Duration::from_secs(1000)),
                ramp_time: Duration::from_secs(1000),
                ..JobOptions::usual().time
            },
            ..JobOptions::usual()
        };
        let section = Section { job, given: Vec::new() };
        let (thread, progress) =
            (Thread { section: &section, number: 0, group: 0, wave: 0 }, Progress::default());
        let mut watch = Watch::new(&RunOptions::default(), vec![(&thread, &progress, None)]);
        progress.set_running(true);
        watch.threads[0].sample(500, Duration::from_millis(500));
        assert!(watch.threads[0].done() < 0.1, "it has just begun");
        progress.restart();
        watch.threads[0].sample(1000, Duration::from_millis(500));
        assert!((0.5..0.6).contains(&watch.threads[0].done()), "the ramp is over");
    }

    #[test]
    fn progress_is_shown_on_a_terminal_and_where_it_is_asked_for() {
        assert!(matches!(shown(Eta::Auto, true), Shown::InPlace(_)));
        assert!(matches!(shown(Eta::Auto, false), Shown::No));
        assert!(matches!(shown(Eta::Always, false), Shown::InLines));
        assert!(matches!(shown(Eta::Never, true), Shown::No));
    }

    #[test]
    fn a_clock_has_hours_when_needed() {
        assert_eq!(clock(Duration::from_secs(75)), "01m:15s");
        assert_eq!(clock(Duration::from_secs(3675)), "1h:01m:15s");
    }
}
