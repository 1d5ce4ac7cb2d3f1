//! Deferred work: commands that take time, and repeated completions.
//!
//! Ordered by due time, then by arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::command::{Command, SqeBytes};
use super::hook::Verdict;
use adit_shared::Time;
use adit_spec::{Cqe, Qid};

/// A piece of deferred work.
#[derive(Debug)]
pub(super) enum Work {
    Execute { entry: SqeBytes, sqid: Qid, verdict: Verdict },
    Post { cqid: u16, cqe: Cqe },
}

#[derive(Debug)]
struct Job {
    due: Time,
    order: u64,
    work: Work,
}

impl Job {
    fn key(&self) -> (Time, u64) {
        (self.due, self.order)
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Job) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Job {}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Job) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Job {
    fn cmp(&self, other: &Job) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    jobs: BinaryHeap<Reverse<Job>>,
    order: u64,
}

impl Pending {
    pub(super) fn push(&mut self, due: Time, work: Work) {
        self.order += 1;
        self.jobs.push(Reverse(Job { due, order: self.order, work }));
    }

    /// Takes the earliest work that is due.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Work> {
        if self.jobs.peek()?.0.due > now {
            return None;
        }
        self.jobs.pop().map(|Reverse(job)| job.work)
    }

    pub(super) fn next_due(&self) -> Option<Time> {
        self.jobs.peek().map(|Reverse(job)| job.due)
    }

    pub(super) fn take(&mut self, is_meant: impl Fn(&Command) -> bool) -> Option<Command> {
        let mut taken = None;
        self.jobs.retain(|Reverse(job)| match &job.work {
            Work::Execute { entry, sqid, .. } if taken.is_none() => {
                let command = Command::parse(entry, *sqid);
                let is_meant = is_meant(&command);
                if is_meant {
                    taken = Some(command);
                }
                !is_meant
            }
            _ => true,
        });
        taken
    }

    /// Takes everything, in order of time.
    pub(super) fn take_all(&mut self) -> Vec<Work> {
        let jobs = std::mem::take(&mut self.jobs).into_sorted_vec();
        jobs.into_iter().rev().map(|Reverse(job)| job.work).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(cid: u16) -> Work {
        let mut entry = [0; 64];
        entry[2..4].copy_from_slice(&cid.to_le_bytes());
        Work::Execute { entry, sqid: Qid(1), verdict: Verdict::Run }
    }

    fn cid(work: &Work) -> u16 {
        match work {
            Work::Execute { entry, sqid, .. } => Command::parse(entry, *sqid).cid,
            Work::Post { cqe, .. } => cqe.cid.get(),
        }
    }

    #[test]
    fn work_comes_in_order_of_time_and_then_of_arrival() {
        let mut pending = Pending::default();
        for (due, cid) in [(30, 1), (10, 2), (30, 3), (20, 4)] {
            pending.push(Time::from_ns(due), entry(cid));
        }
        assert_eq!(pending.next_due(), Some(Time::from_ns(10)));
        assert!(pending.pop_due(Time::from_ns(9)).is_none());
        assert_eq!(pending.pop_due(Time::from_ns(10)).map(|work| cid(&work)), Some(2));
        assert_eq!(pending.take(|command| command.cid == 3).map(|command| command.cid), Some(3));
        assert!(pending.take(|command| command.cid == 3).is_none());
        assert_eq!(pending.take_all().iter().map(cid).collect::<Vec<_>>(), [4, 1]);
        assert_eq!(pending.next_due(), None);
    }
}
