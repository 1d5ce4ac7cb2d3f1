//! Runs guests concurrently in lanes, one per core, each of which boots one guest after the other.
//!
//! Only the calling thread prints, and it prints each guest's output at once, so that outputs do not mix.
//! Ctrl-C ends the guests of all lanes. A guest whose figures are reported runs alone. What guests do is up to
//! [`Case`].

use super::case::{Case, indent};
use crate::failure::Result;
use crate::guest;
use crate::interrupt;
use crate::progress::StatusLine;
use crate::tally::Tally;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Cases that report ratios of timings, by name only: they cannot fail for them, and next to another guest the ratios
/// would be meaningless.
pub(super) const ALONE: [&str; 1] = ["bench-fio"];

/// Maximum host memory of a guest, including QEMU's own.
const GUEST_KIB: u64 = 2560 << 10;

/// Interval between updates of the terminal's line.
const TICK: Duration = Duration::from_secs(1);

/// Runs the cases in `jobs` lanes, if given, and reports how each ends.
///
/// # Errors
/// Only Ctrl-C; failed guests are counted.
pub(crate) fn run(cases: &[&'static Case], jobs: Option<usize>) -> Result<Tally> {
    let (alone, beside): (Vec<_>, Vec<_>) =
        cases.iter().copied().partition(|case| ALONE.contains(&case.name));
    let lanes = jobs.unwrap_or_else(lanes_of_host).min(beside.len()).max(1);
    println!("== the driver in {} guests, {lanes} side by side", cases.len());
    prepare(cases)?;
    let mut board = Board::new(cases.len());
    board.run(&beside, lanes)?;
    board.run(&alone, 1)?;
    println!();
    Ok(board.tally)
}

/// Builds what the guests run before any starts, because builds use all cores.
fn prepare(cases: &[&Case]) -> Result<()> {
    for case in cases {
        // A guest whose program cannot be built fails by itself and says why.
        let _ = case.arguments().and_then(|arguments| guest::prepare(&arguments));
        interrupt::check()?;
    }
    Ok(())
}

/// Returns one lane per core, as far as memory permits.
fn lanes_of_host() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_kib(&text));
    let guests = memory.map_or(1, |kib| usize::try_from(kib / GUEST_KIB).unwrap_or(usize::MAX));
    cores.min(guests).max(1)
}

/// Parses the memory available without swapping from `/proc/meminfo`, in KiB.
fn available_kib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A message from a lane.
enum News {
    /// A guest boots.
    Began(&'static str),
    /// A text to print.
    Said(String),
    /// A guest has ended, with everything to print about it.
    Ended { name: &'static str, passed: bool, text: String },
}

/// Runs the next case until none is left or the user wants to stop.
fn work<'a>(cases: &Mutex<impl Iterator<Item = &'a &'static Case>>, news: &Sender<News>) {
    // The receiver outlives the lanes, so sending does not fail.
    let tell = |news_of: News| drop(news.send(news_of));
    loop {
        let next = cases.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(case) = next.filter(|_| !interrupt::requested()) else { return };
        let begun = Instant::now();
        tell(News::Began(case.name));
        let (problem, told) = case.run(|text| tell(News::Said(text)));
        // A guest killed by Ctrl-C has not failed.
        if interrupt::requested() {
            return;
        }
        let passed = problem.is_none();
        let text = report(case, problem.as_deref(), &told, begun.elapsed());
        tell(News::Ended { name: case.name, passed, text });
    }
}

/// Returns everything to print about a guest that ended.
fn report(case: &Case, problem: Option<&str>, told: &[String], took: Duration) -> String {
    let verdict = if problem.is_none() { "PASS" } else { "FAIL" };
    let mut text = format!("{verdict} {} ({:.1} s)", case.name, took.as_secs_f64());
    told.iter().for_each(|line| text += &format!("\n  {line}"));
    if let Some(problem) = problem {
        text += &format!("\n{}\n  again: {}", indent(problem), case.command_line());
    }
    text
}

/// The state of all guests, and the terminal's line that shows it.
struct Board {
    tally: Tally,
    total: usize,
    running: Vec<(&'static str, Instant)>,
    line: StatusLine,
}

impl Board {
    fn new(total: usize) -> Self {
        Self { tally: Tally::default(), total, running: Vec::new(), line: StatusLine::new() }
    }

    /// Runs `cases` in `lanes` lanes to their end.
    fn run(&mut self, cases: &[&'static Case], lanes: usize) -> Result<()> {
        let left = Mutex::new(cases.iter());
        let (sender, news) = channel();
        std::thread::scope(|scope| {
            for _ in 0..lanes {
                let sender = sender.clone();
                scope.spawn(|| {
                    let sender = sender;
                    work(&left, &sender);
                });
            }
            drop(sender);
            self.listen(&news);
        });
        interrupt::check()
    }

    /// Prints the lanes' messages until all lanes are done.
    fn listen(&mut self, news: &Receiver<News>) {
        loop {
            let told = news.recv_timeout(TICK);
            self.line.clear();
            match told {
                Ok(told) => self.take(told),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.line.show(&self.state(Instant::now()));
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Began(name) => self.running.push((name, Instant::now())),
            News::Said(text) => println!("{text}"),
            News::Ended { name, passed, text } => {
                self.running.retain(|(other, _)| *other != name);
                self.tally.count(passed);
                println!("{text}");
            }
        }
    }

    /// Describes in one line how many are done and what runs now.
    fn state(&self, now: Instant) -> String {
        let ended = self.tally.passed + self.tally.failed;
        let running: Vec<String> = self
            .running
            .iter()
            .map(|(name, begun)| format!("{name} {} s", now.duration_since(*begun).as_secs()))
            .collect();
        format!("{ended} of {} guests … {}", self.total, running.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CASES, text::parse};
    use super::*;

    #[test]
    fn what_runs_alone_is_there() {
        for name in ALONE {
            assert!(CASES.iter().any(|case| case.name == name), "no case is called {name}");
        }
    }

    #[test]
    fn a_guest_is_printed_whole_with_what_failed_and_how_to_repeat_it() {
        let case = &parse("== sample\n$ true\n")[0];
        let told = ["ratio 1.02".to_owned()];
        let good = report(case, None, &told, Duration::from_millis(2500));
        assert_eq!(good, "PASS sample (2.5 s)\n  ratio 1.02");
        let bad = report(case, Some("one\ntwo"), &[], Duration::ZERO);
        assert!(bad.starts_with("FAIL sample (0.0 s)\n  one\n  two\n  again: cargo xtask test"));
    }

    #[test]
    fn the_line_shows_what_runs_and_forgets_what_ended() {
        let mut board = Board::new(3);
        board.take(News::Began("one"));
        board.take(News::Began("two"));
        board.take(News::Ended { name: "one", passed: true, text: "PASS one".to_owned() });
        let state = board.state(Instant::now());
        assert_eq!(state, "1 of 3 guests … two 0 s");
        assert_eq!((board.tally.passed, board.tally.failed), (1, 0));
    }

    #[test]
    fn memory_is_read_from_what_the_kernel_says() {
        let text = "MemTotal:       24 kB\nMemAvailable:   23456789 kB\n";
        assert_eq!(available_kib(text), Some(23_456_789));
        assert_eq!(available_kib("MemTotal: 1 kB\n"), None);
        assert!(lanes_of_host() >= 1);
    }
}
