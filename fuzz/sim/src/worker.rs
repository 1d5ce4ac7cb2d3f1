//! A worker process that shares a batch with others: runs seeds and writes the results.
//!
//! Processes rather than threads, because every run maps much memory, which contends for one lock within a process,
//! and because a run that kills its process can then be identified.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::task::{Task, Totals};

/// Seeds per line of output.
pub(crate) const ROUND: u64 = 64;

/// The seeds to run, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// The first seed; each schedule has the next one.
    pub(crate) first: u64,
    /// Number of schedules; `None` to run until the time is over.
    pub(crate) schedules: Option<u64>,
    pub(crate) minutes: Option<Duration>,
    pub(crate) task: Task,
}

impl Batch {
    /// Returns the schedules of a round, by number; empty after the last.
    pub(crate) fn round(&self, round: u64) -> std::ops::Range<u64> {
        let end = self.schedules.unwrap_or(u64::MAX);
        (round * ROUND).min(end)..((round + 1) * ROUND).min(end)
    }
}

/// The `index`th of `count` processes: written `index/count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) index: u64,
    pub(crate) count: u64,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let parts =
            text.split_once('/').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (index, count) = parts.ok_or("a share is written INDEX/COUNT")?;
        if index < count { Ok(Share { index, count }) } else { Err(format!("no share {text}")) }
    }
}

/// One line of a worker's output.
#[derive(Debug)]
pub(crate) enum Line {
    /// The worker finished its next round.
    Round(Totals),
    /// The schedule with this number broke a law.
    Failed(u64),
    /// The worker is done.
    End,
}

impl Line {
    pub(crate) fn parse(line: &str) -> Option<Line> {
        match line.split_once(' ') {
            Some(("round", counts)) => Some(Line::Round(Totals::from_line(counts)?)),
            Some(("failed", index)) => Some(Line::Failed(index.parse().ok()?)),
            None if line == "end" => Some(Line::End),
            _ => None,
        }
    }
}

/// Runs every `count`th round of the batch. Stops when its output is closed.
pub(crate) fn run(batch: &Batch, share: Share) -> ExitCode {
    match work(batch, share, &mut stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn work(batch: &Batch, share: Share, out: &mut dyn Write) -> std::io::Result<()> {
    let begun = Instant::now();
    for round in (share.index..).step_by(share.count as usize) {
        let in_time = batch.minutes.is_none_or(|time| begun.elapsed() < time);
        if batch.round(round).is_empty() || !in_time {
            break;
        }
        match batch.task.run_all(batch.first, batch.round(round)) {
            Ok(totals) => writeln!(out, "round {}", totals.to_line())?,
            Err(index) => return writeln!(out, "failed {index}"),
        }
        out.flush()?;
    }
    writeln!(out, "end")
}

#[cfg(test)]
mod tests {
    use adit_sim::Canary;

    use super::*;

    fn batch(task: Task) -> Batch {
        Batch { first: 5, schedules: Some(150), minutes: None, task }
    }

    #[test]
    fn shares_take_all_rounds_and_none_twice() {
        let batch = batch(Task::Driver(None));
        let rounds: Vec<_> = (0..4).map(|round| batch.round(round)).collect();
        assert_eq!(rounds, [0..64, 64..128, 128..150, 150..150]);
        assert_eq!("1/2".parse(), Ok(Share { index: 1, count: 2 }));
        assert!("2/2".parse::<Share>().is_err() && "x".parse::<Share>().is_err());
    }

    #[test]
    fn a_worker_reports_its_rounds_and_its_end() {
        for task in [Task::Driver(None), Task::Store(None)] {
            let mut out = Vec::new();
            work(&batch(task), Share { index: 1, count: 2 }, &mut out).expect("written");
            let text = String::from_utf8(out).expect("text");
            let lines: Vec<_> = text.lines().map(Line::parse).collect();
            assert!(
                matches!(&lines[..], [Some(Line::Round(totals)), Some(Line::End)] if totals.schedules() == 64),
                "{text}"
            );
        }
        assert!(Line::parse("round driver 1 2").is_none() && Line::parse("begin").is_none());
    }

    #[test]
    fn a_worker_stops_at_the_schedule_that_fails() {
        let mut out = Vec::new();
        let batch = batch(Task::Driver(Some(Canary::Scribble)));
        work(&batch, Share { index: 0, count: 1 }, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        let last = text.lines().last().and_then(Line::parse);
        assert!(matches!(last, Some(Line::Failed(_))), "{text}");
    }
}
