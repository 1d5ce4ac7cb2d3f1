//! Handles failures, and controllers that may recover.

use std::time::Duration;

use adit_driver::paths::CommandQueue;
use adit_driver::{CommandError, Error, Time};

use super::Job;
use super::work::{Owned, What, Work};
use crate::errors::{EIO, ErrorKind, errno_of, name_of};
use crate::outcome::JobFailure;
use crate::way::Way;

/// How long a failed path may take to return buffers, beyond its own reset time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Additional time if it is recovered: all admin commands of its bring-up may be slow.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(120);
/// The longest sleep, which bounds the response to an interrupt.
const NAP: Duration = Duration::from_millis(10);
/// How late a sleep may end; the rest of a pause is spent spinning.
const SLEEP_SLACK: Duration = Duration::from_micros(80);

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    #[cold]
    pub(super) fn io_failed(&mut self, work: Work, since: Time, error: CommandError) {
        self.is_down = self.set.recovery.is_in_sight() && self.queue.check().is_err();
        let is_write = matches!(work.what, What::Step(step) if step.way == Way::Write);
        if self.options.amount.fill_device && is_write && error.is_no_space() {
            self.is_full = true;
            return;
        }
        if self.send_again(work, since, error) {
            return;
        }
        let kind = match work.what {
            What::Step(step) if step.way == Way::Read => ErrorKind::Read,
            _ => ErrorKind::Write,
        };
        if let What::Step(step) = work.what
            && step.way == Way::Write
        {
            self.checks.unwritten.insert((step.file, step.offset));
        }
        let why = self.reason_for(error);
        let is_tolerated = self.tolerates(kind, errno_of(error));
        let message = format!("{} failed: {why}", self.told(&work));
        self.error(kind, is_tolerated, name_of(error), message);
    }

    /// Schedules a retry if it is worthwhile; returns whether it did.
    fn send_again(&mut self, work: Work, since: Time, error: CommandError) -> bool {
        let (times, first) = work.retried.unwrap_or((0, since));
        let retries = self.options.failures.retries.unwrap_or(self.set.retries);
        let delay = self.set.files[work.what.file() as usize].device.retry_delay(&error);
        let Some(delay) = delay.filter(|_| times < retries && !self.is_stopped()) else {
            return false;
        };
        self.inflight
            .again
            .push(self.times.now + delay, Work { retried: Some((times + 1, first)), ..work });
        true
    }

    /// Counts an error, and either ends the job or reports the error and continues.
    pub(super) fn error(
        &mut self,
        kind: ErrorKind,
        is_tolerated: bool,
        name: &'static str,
        message: String,
    ) {
        let is_told = self.outcome.errors.count(kind, name);
        // On a path that does not recover, nothing more will succeed.
        let goes_on = self.is_down || self.queue.check().is_ok();
        let is_fatal = self.options.verify.as_ref().is_some_and(|verify| verify.fatal);
        let looks_at_all = kind == ErrorKind::Verify && !is_fatal;
        if !goes_on || !(is_tolerated || looks_at_all) {
            return self.fail(kind.errno(), message);
        }
        if is_told {
            tracing::warn!("{}: {message}", self.set.name());
        }
        if !is_tolerated {
            let failure = JobFailure { count: 0, first: message, errno: kind.errno() };
            self.checks.mismatches.get_or_insert(failure).count += 1;
        }
    }

    /// Returns whether the job tolerates such an error. As in fio, `ignore_error` decides if it is given.
    pub(super) fn tolerates(&self, kind: ErrorKind, errno: i32) -> bool {
        let ignored = &self.options.failures.ignore_error[kind as usize];
        match ignored.is_empty() {
            true => self.options.failures.continue_on_error.covers(kind),
            false => ignored.contains(&errno),
        }
    }

    #[cold]
    pub(super) fn fail(&mut self, errno: i32, message: String) {
        self.inflight.again.clear();
        let failure = JobFailure { count: 0, first: message, errno };
        self.outcome.failure.get_or_insert(failure).count += 1;
    }

    /// Returns a command error's cause; for a reset, the reason for it.
    #[cold]
    fn reason_for(&self, error: CommandError) -> String {
        match (error, self.queue.check()) {
            (CommandError::Reset { .. }, Err(Error::Failed { reason, .. })) => {
                format!("{error}: {reason}")
            }
            _ => error.to_string(),
        }
    }

    /// Waits while the path is out of service. A reset returns its buffers, if it succeeds, and the path may
    /// recover. Returns false once there is nothing to wait for. The wait does not count as run time.
    #[cold]
    pub(super) fn wait_for_lost(&mut self, error: &Error) -> bool {
        let waited = self.times.now.since(self.load.last_finish);
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
        self.times.lost_at.get_or_insert(self.load.last_finish);
        gives_back && waited < ready_timeout + PATIENCE
    }

    fn reason_of_loss(&self, error: &Error) -> String {
        match (self.set.recovery.lost(), error) {
            (Some(why), _) => format!("the controller could not be recovered: {why}"),
            (None, Error::Failed { reason, .. }) => {
                format!("the device is out of service: {reason}")
            }
            (None, other) => other.to_string(),
        }
    }

    /// Waits while nothing is in flight or due: sleeps as far as that is accurate enough, then spins.
    pub(super) fn pause(&mut self) {
        let flow = if self.is_ahead { self.options.time.flow.sleep } else { Duration::ZERO };
        let wait = self.until_due().max(flow).min(NAP);
        if wait > SLEEP_SLACK + self.pace.spin() {
            std::thread::sleep(wait - SLEEP_SLACK - self.pace.spin());
        } else if self.is_ahead {
            // Those it waits for may need this core.
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Returns how long the queue may sleep with I/Os in flight: at most until the next I/O is due, because its
    /// latency counts from then. With all buffers in flight, only a completion can allow the next I/O.
    pub(super) fn wait_at_most(&self) -> Duration {
        if self.pool.is_empty() || !self.has_later() {
            return NAP;
        }
        NAP.min(self.until_due().saturating_sub(SLEEP_SLACK))
    }

    fn has_later(&self) -> bool {
        self.inflight.held.is_some()
            || !self.inflight.again.is_empty()
            || self.is_ahead
            || self.times.now < self.pace.paused_until()
    }

    /// Returns the time until the next I/O must be posted, if only waiting helps.
    fn until_due(&self) -> Duration {
        let due = match &self.inflight.held {
            Some(work) => {
                let by_rate = match work.what {
                    What::Step(step) => self.due(work, step),
                    What::Flush(_) => None,
                };
                by_rate.max(self.due_by_log(work)).unwrap_or(self.times.now)
            }
            None => self.times.now,
        };
        let again = self.inflight.again.next_due().unwrap_or(due);
        due.max(self.pace.paused_until()).max(again).since(self.times.now)
    }
}
