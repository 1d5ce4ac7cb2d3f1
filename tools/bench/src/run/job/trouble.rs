//! What failed, and a controller that may come back.

use std::time::Duration;

use adit_driver::device::CommandQueue;
use adit_driver::{CommandError, Error, Time};

use super::{EIO, Job, Owned, What, Work};
use crate::errors::{Kind, errno_of, name_of};
use crate::outcome::JobFailure;
use crate::way::Way;

/// How long a path that was given up on may take to give buffers back, beyond its own time to reset.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much longer where it is brought back: all admin commands of its bring-up may take their time.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(120);
/// The longest sleep: an interrupt is met within it.
const NAP: Duration = Duration::from_millis(10);
/// What a sleep may be late by; the rest of a pause is spent spinning.
const SLEEP_SLACK: Duration = Duration::from_micros(80);

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    #[cold]
    pub(super) fn io_failed(&mut self, work: Work, since: Time, error: CommandError) {
        self.is_down = self.set.recovery.is_in_sight() && self.queue.check().is_err();
        if self.is_end_of_space(&work, error) {
            self.is_full = true;
            return;
        }
        if self.send_again(work, since, error) {
            return;
        }
        let kind = match work.what {
            What::Step(step) if step.way == Way::Read => Kind::Read,
            _ => Kind::Write,
        };
        if let What::Step(step) = work.what
            && step.way == Way::Write
        {
            self.unwritten.insert((step.file, step.offset));
        }
        let why = self.reason_for(error);
        let is_tolerated = self.tolerates(kind, errno_of(error));
        let message = format!("{} failed: {why}", self.told(&work));
        self.error(kind, is_tolerated, name_of(error), message);
    }

    /// Whether it is what `fill_device` goes on until.
    fn is_end_of_space(&self, work: &Work, error: CommandError) -> bool {
        let is_write = matches!(work.what, What::Step(step) if step.way == Way::Write);
        self.options.fill_device && is_write && error.is_no_space()
    }

    /// Whether it is worth sending it again; then it will be.
    fn send_again(&mut self, work: Work, since: Time, error: CommandError) -> bool {
        let (times, first) = work.retried.unwrap_or((0, since));
        let retries = self.options.retries.unwrap_or(self.set.retries);
        let delay = self.set.files[work.what.file() as usize].device.retry_delay(&error);
        let Some(delay) = delay.filter(|_| times < retries && !self.is_stopped()) else {
            return false;
        };
        self.again.push(self.now + delay, Work { retried: Some((times + 1, first)), ..work });
        true
    }

    /// Counts an error, and ends the job or tells and goes on.
    pub(super) fn error(
        &mut self,
        kind: Kind,
        is_tolerated: bool,
        name: &'static str,
        message: String,
    ) {
        let is_told = self.outcome.errors.count(kind, name);
        // On a path that does not come back nothing will succeed any more.
        let goes_on = self.is_down || self.queue.check().is_ok();
        let looks_at_all = kind == Kind::Verify && !self.is_fatal();
        if !goes_on || !(is_tolerated || looks_at_all) {
            return self.fail(kind.errno(), message);
        }
        if is_told {
            tracing::warn!("{}: {message}", self.set.name());
        }
        if !is_tolerated {
            let failure = JobFailure { count: 0, first: message, errno: kind.errno() };
            self.mismatches.get_or_insert(failure).count += 1;
        }
    }

    /// Whether the job goes on after such an error, and does not fail for it. As in fio, a list of errors decides where
    /// there is one.
    pub(super) fn tolerates(&self, kind: Kind, errno: i32) -> bool {
        let ignored = &self.options.ignore_error[kind as usize];
        match ignored.is_empty() {
            true => self.options.continue_on_error.covers(kind),
            false => ignored.contains(&errno),
        }
    }

    /// Whether the first block that is not what was written ends the job, and not the last.
    fn is_fatal(&self) -> bool {
        self.options.verify.as_ref().is_some_and(|verify| verify.fatal)
    }

    #[cold]
    pub(super) fn fail(&mut self, errno: i32, message: String) {
        self.again.clear();
        let failure = JobFailure { count: 0, first: message, errno };
        self.outcome.failure.get_or_insert(failure).count += 1;
    }

    /// What a command's error comes from: of a reset, why it was necessary.
    #[cold]
    fn reason_for(&self, error: CommandError) -> String {
        match (error, self.queue.check()) {
            (CommandError::Reset { .. }, Err(Error::Failed { reason, .. })) => {
                format!("{error}: {reason}")
            }
            _ => error.to_string(),
        }
    }

    /// The path is out of service: its buffers come back once it is reset, or never, and it may come back
    /// itself. False once there is nothing to wait for. None of the wait counts.
    #[cold]
    pub(super) fn wait_for_lost(&mut self, error: &Error) -> bool {
        let waited = self.now.since(self.last_finish);
        let controllers = || self.set.files.iter().filter_map(|file| file.device.controller());
        let ready_timeouts = controllers().map(|controller| controller.info().ready_timeout);
        let ready_timeout = ready_timeouts.max().unwrap_or(Duration::ZERO);
        if self.set.recovery.is_in_sight() && waited < ready_timeout + RECOVERY_PATIENCE {
            self.is_down = true;
            return true;
        }
        let gives_back = controllers().all(|controller| !controller.may_still_write());
        if self.outcome.failure.is_none() {
            self.fail(EIO, self.reason_of_loss(error));
        }
        self.lost_at.get_or_insert(self.last_finish);
        gives_back && waited < ready_timeout + PATIENCE
    }

    fn reason_of_loss(&self, error: &Error) -> String {
        match (self.set.recovery.lost(), error) {
            (Some(why), _) => format!("the controller could not be brought back: {why}"),
            (None, Error::Failed { reason, .. }) => {
                format!("the device is out of service: {reason}")
            }
            (None, other) => other.to_string(),
        }
    }

    /// Nothing is in flight and nothing due: sleeps as far as that is exact enough, and spins the rest.
    pub(super) fn pause(&mut self) {
        let wait = self.until_due().min(NAP);
        if wait > SLEEP_SLACK + self.pace.spin() {
            std::thread::sleep(wait - SLEEP_SLACK - self.pace.spin());
        } else {
            std::hint::spin_loop();
        }
    }

    /// How long the queue may sleep at most with I/Os in flight: not into the time when the next is due, whose
    /// latency counts from then. With all in flight, only an end can bring the next.
    pub(super) fn wait_at_most(&self) -> Duration {
        if self.pool.is_empty() || !self.has_later() {
            return NAP;
        }
        NAP.min(self.until_due().saturating_sub(SLEEP_SLACK))
    }

    fn has_later(&self) -> bool {
        self.held.is_some() || !self.again.is_empty() || self.now < self.pace.paused_until()
    }

    /// How long until something is to be posted, if only waiting helps.
    fn until_due(&self) -> Duration {
        let due = match &self.held {
            Some(work) => match work.what {
                What::Step(step) => self.due(work, step).unwrap_or(self.now),
                What::Flush(_) => self.now,
            },
            None => self.now,
        };
        let again = self.again.next_due().unwrap_or(due);
        due.max(self.pace.paused_until()).max(again).since(self.now)
    }
}
