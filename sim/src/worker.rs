//! One process of several that share a batch: it runs seeds and writes what came of them.
//!
//! Processes and not threads: mapping memory, which every run does a lot, is a queue at one lock
//! within a process; and a run that kills its process can be found and told.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use adit_sim::{Canary, Counts, run_seed};

/// Seeds between two lines of output.
pub(crate) const ROUND: u64 = 128;

/// Which seeds are run, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// The first seed; each schedule has the next one.
    pub(crate) first: u64,
    /// How many; `None` is until the time is over.
    pub(crate) schedules: Option<u64>,
    /// How long at most.
    pub(crate) minutes: Option<Duration>,
    /// The law that is broken on purpose.
    pub(crate) canary: Option<Canary>,
}

impl Batch {
    /// The schedules of a round, by number; empty after the last.
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

/// What a worker says in one line.
#[derive(Debug)]
pub(crate) enum Line {
    /// It finished its next round.
    Round(Box<Counts>),
    /// This seed broke a law.
    Failed(u64),
    /// It is done.
    End,
}

impl Line {
    pub(crate) fn parse(line: &str) -> Option<Line> {
        match line.split_once(' ') {
            Some(("round", counts)) => Some(Line::Round(Box::new(Counts::from_line(counts)?))),
            Some(("failed", seed)) => Some(Line::Failed(seed.parse().ok()?)),
            None if line == "end" => Some(Line::End),
            _ => None,
        }
    }
}

/// Runs every `count`th round of the batch. It stops when nobody listens any more.
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
        let mut counts = Counts::default();
        for index in batch.round(round) {
            match run_seed(batch.first.wrapping_add(index), batch.canary, false) {
                Ok(report) => counts.add(&report.counts),
                Err(failure) => return writeln!(out, "failed {}", failure.seed),
            }
        }
        writeln!(out, "round {}", counts.to_line())?;
        out.flush()?;
    }
    writeln!(out, "end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_take_all_rounds_and_none_twice() {
        let batch = Batch { first: 5, schedules: Some(300), minutes: None, canary: None };
        let rounds: Vec<_> = (0..4).map(|round| batch.round(round)).collect();
        assert_eq!(rounds, [0..128, 128..256, 256..300, 300..300]);
        assert_eq!("1/2".parse(), Ok(Share { index: 1, count: 2 }));
        assert!("2/2".parse::<Share>().is_err() && "x".parse::<Share>().is_err());
    }

    #[test]
    fn a_worker_reports_its_rounds_and_its_end() {
        let batch = Batch { first: 5, schedules: Some(300), minutes: None, canary: None };
        let mut out = Vec::new();
        work(&batch, Share { index: 1, count: 2 }, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<_> = text.lines().map(Line::parse).collect();
        assert!(
            matches!(&lines[..], [Some(Line::Round(counts)), Some(Line::End)] if counts.schedules == 128),
            "{text}"
        );
        assert!(Line::parse("round 1 2").is_none() && Line::parse("begin").is_none());
    }

    #[test]
    fn a_worker_stops_at_the_seed_that_fails() {
        let canary = Some(Canary::Scribble);
        let batch = Batch { first: 1, schedules: Some(300), minutes: None, canary };
        let mut out = Vec::new();
        work(&batch, Share { index: 0, count: 1 }, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        let last = text.lines().last().and_then(Line::parse);
        assert!(matches!(last, Some(Line::Failed(_))), "{text}");
    }
}
