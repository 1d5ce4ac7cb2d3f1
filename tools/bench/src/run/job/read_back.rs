//! Reads written data back and checks it.

use std::fs;
use std::path::PathBuf;

use adit_driver::paths::CommandQueue;

use super::Job;
use super::work::{Owned, What, Work};
use crate::data::Identity;
use crate::data::state::VerifyState;
use crate::errors::{EIO, ErrorKind, Unwritten};
use crate::outcome::JobFailure;
use crate::way::Way;
use crate::workload::{JobRegion, Step};

/// Verification of what was written.
#[derive(Default)]
pub(super) struct Checks {
    /// The remaining reads of a verify phase.
    pub(super) to_verify: Option<ToVerify>,
    pub(super) unwritten: Unwritten,
    /// Whether the writer of each block is known; false after an earlier run that left no state.
    pub(super) knows_writer: bool,
    /// Mismatches so far, if the job checks all blocks before it fails.
    pub(super) mismatches: Option<JobFailure>,
    /// Unchecked writes, with `verify_backlog`.
    pub(super) backlog: Vec<Step>,
    /// How many of them are checked together; 0 to check a whole pass.
    pub(super) backlog_max: usize,
}

/// The remaining reads of a verify phase.
pub(super) type ToVerify = Box<dyn Iterator<Item = Step> + Send>;

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    /// Returns whether written data is read back and checked.
    pub(super) fn reads_back(&self) -> bool {
        self.options.rw.writes
            && self.options.verify.as_ref().is_some_and(|verify| verify.do_verify)
    }

    /// Returns whether the backlog must be checked before anything else.
    #[inline]
    pub(super) fn checks_backlog(&self) -> bool {
        self.checks.backlog_max > 0 && self.checks.backlog.len() >= self.checks.backlog_max
    }

    /// Starts reading back the pass, or its unchecked part.
    pub(super) fn read_back_pass(&mut self) {
        let steps: ToVerify = if self.checks.backlog_max > 0 {
            let mut steps: Vec<Step> = self.checks.backlog.drain(..).collect();
            steps.retain(|step| self.set.steps.is_intact(step));
            Box::new(steps.into_iter())
        } else {
            Box::new(self.set.steps.written())
        };
        self.read_back(steps);
    }

    /// Returns whether the job only checks what an earlier run wrote.
    pub(super) fn reads_back_earlier(&self) -> bool {
        self.set.earlier.is_some() || self.options.verify.as_ref().is_some_and(|verify| verify.only)
    }

    /// Checks an earlier run's data: up to where that run ended, or everything this job would write.
    pub(super) fn read_back_earlier(&mut self) {
        let unknown = match self.set.earlier.take() {
            Some(state) => {
                self.set.steps.skip_to(state.pass, state.position);
                state.in_flight
            }
            None => {
                self.take_all_steps();
                self.checks.knows_writer = false;
                Vec::new()
            }
        };
        // An interrupted run may have written what it had in flight, or not.
        let written = self.set.steps.written();
        self.read_back(Box::new(written.filter(move |step| !unknown.contains(&step.number))));
    }

    /// Takes all steps to the end of the job without I/O; if only time ends the job, those of the first pass.
    /// As in fio, they count as done, in no time.
    fn take_all_steps(&mut self) {
        let most =
            (self.set.bytes_max.unwrap_or(u64::MAX), self.issued.ios_max.unwrap_or(u64::MAX));
        let (mut bytes, mut ios) = (0, 0);
        let steps = &mut self.set.steps;
        while bytes < most.0 && ios < most.1 {
            let mut step = steps.next_step();
            if step.is_none() && self.set.bytes_max.is_some() {
                steps.next_pass();
                step = steps.next_step();
            }
            let Some(step) = step else { return };
            bytes += step.bytes;
            ios += 1;
            let counted = &mut self.outcome.ways[step.way];
            counted.bytes += step.bytes;
            counted.ios += 1;
        }
    }

    pub(super) fn read_back(&mut self, steps: ToVerify) {
        self.checks.to_verify = Some(steps);
        let start = self.clock.now();
        self.phase();
        self.checks.to_verify = None;
        // The schedule continues where it was.
        self.pace.delay(self.times.now.since(start));
    }

    /// Returns the next block to check.
    pub(super) fn next_check(&mut self) -> Option<Work> {
        if self.is_stopped() {
            return None;
        }
        let unwritten = &self.checks.unwritten;
        let written = self.checks.to_verify.as_mut()?;
        let step = written.find(|step| !unwritten.contains(&(step.file, step.offset)))?;
        let writer = self.checks.knows_writer.then(|| self.writer(step));
        let expected = Some(Identity { offset: step.offset, writer });
        Some(Work { what: What::Step(Step { way: Way::Read, ..step }), expected, retried: None })
    }

    /// Compares a read block with its expected content.
    #[inline(never)]
    pub(super) fn check(&mut self, block: &[u8], work: &Work) {
        let Some(expected) = work.expected else { return };
        if let Err(mismatch) = self.set.data.check(block, expected) {
            let file = work.what.file();
            let place = self.set.place(file);
            let message = format!("{mismatch}{place}{}", self.dump(block, expected, file));
            let is_tolerated = self.tolerates(ErrorKind::Verify, ErrorKind::Verify.errno());
            self.error(ErrorKind::Verify, is_tolerated, "Verify", message);
        }
        // The next I/O's latency must not include the check.
        self.times.now = self.clock.now();
    }

    /// With `verify_dump`, writes the block and its expected content to files; returns where, or why not.
    fn dump(&self, block: &[u8], expected: Identity, file: u32) -> String {
        if !self.options.verify.as_ref().is_some_and(|verify| verify.dump) {
            return String::new();
        }
        let is_one = self.set.files.len() == 1;
        let write = |(path, bytes): (PathBuf, Vec<u8>)| {
            // Each file has a block at that offset.
            let path = if is_one { path } else { format!("{file}.{}", path.display()).into() };
            match fs::write(&path, bytes) {
                Ok(()) => path.display().to_string(),
                Err(error) => format!("{}: {error}", path.display()),
            }
        };
        let written: Vec<String> =
            self.set.data.dump(block, expected).into_iter().map(write).collect();
        format!(" (dumped: {})", written.join(", "))
    }

    /// Saves a verifying job's progress on request or if it was interrupted, so that its data can still be
    /// checked.
    pub(super) fn save_state(&mut self) {
        let is_interrupted = self.set.interrupt.requested();
        // A run that only checks keeps the writer's state.
        let wants = self.options.verify.as_ref().is_some_and(|verify| {
            verify.state_save.unwrap_or(is_interrupted) && !verify.state_load && !verify.only
        });
        if !wants || !self.options.rw.writes {
            return;
        }
        let regions: Vec<JobRegion> = self.set.files.iter().map(|file| file.region).collect();
        let mut state = VerifyState::new(self.options, self.set.thread, &regions, self.set.seed);
        state.stamp = self.set.stamp;
        (state.pass, state.position) = (self.set.steps.pass(), self.set.steps.position());
        state.in_flight = self.unknown();
        match state.save(self.set.state_folder) {
            Ok(path) if is_interrupted => {
                let job = &self.options.name;
                tracing::warn!(
                    "{job}: what it wrote can be checked with verify_state_load=1 ({})",
                    path.display()
                );
            }
            Ok(_) => {}
            Err(why) => self.fail(EIO, why),
        }
    }

    /// Returns the numbers of steps of this pass that were taken but perhaps not written.
    fn unknown(&mut self) -> Vec<u64> {
        let held = self.inflight.held.take();
        let waiting = self.inflight.again.drain().chain(held).filter_map(|work| match work.what {
            What::Step(step) => Some(step.number),
            What::Flush(_) => None,
        });
        let mut numbers: Vec<u64> = waiting.collect();
        let unwritten = &self.checks.unwritten;
        let failed =
            self.set.steps.written().filter(|step| unwritten.contains(&(step.file, step.offset)));
        numbers.extend(failed.map(|step| step.number));
        numbers
    }
}
