//! The admin queue: one command at a time for callers, with asynchronous event requests and aborts beside
//! them.
//!
//! Not on any I/O path. A caller holds the lock for one command, which its deadline bounds.

use std::collections::VecDeque;
use std::time::Duration;

use super::events::ACTIVATION;
use crate::Time;
use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Mapping};
use crate::queue_pair::core::{Core, Violation};
use crate::queue_pair::ring::{Bell, CompletionRing, Shadow, SubmissionRing};
use crate::queue_pair::{Command, CommandError, Completion, RejectReason};
use crate::spec::feature::AsyncEvent;
use crate::spec::register::CSTS;
use crate::spec::{Cid, Iova, Qid, Sqe};
use crate::transfer::PAGE_BYTES;

/// Interval between two looks at the completion queue; commands slower than [`SOON`] get the longer one.
const LOOK_EVERY: Duration = Duration::from_micros(20);
const SOON: Duration = Duration::from_millis(20);
const LOOK_LATER: Duration = Duration::from_millis(1);
/// Offset of the completion ring from the submission ring.
pub(super) const ADMIN_CQ_OFFSET: u64 = PAGE_BYTES;
/// Looks at the completion queue for each look at the registers.
const LOOKS_AT_QUEUE: u32 = 50;
/// The most events kept for `take_event`; later ones are dropped and can be read from their log pages.
const EVENTS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A caller waits for it.
    Call(u64),
    /// An asynchronous event request.
    Event,
    /// An abort; its result shows in the aborted command.
    Abort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    Sent,
    /// The controller's limit is in flight, or the queue is full.
    Busy,
    /// An earlier one was never answered: the controller is broken.
    Unanswered,
}

pub(crate) struct AdminCommand {
    /// The command's name in the specification, for messages.
    pub(crate) name: &'static str,
    pub(crate) sqe: Sqe,
    pub(crate) data: Option<Buffer>,
}

/// The data an admin command owns.
pub(crate) type Owned = (Option<Buffer>, Purpose);

/// Conditions that a call checks while it waits.
pub(crate) trait Waiting {
    /// Returns an error once waiting is useless.
    fn check(&self) -> Result<()>;
    /// Returns the reason if registers show that the controller will never answer.
    fn cause_of_death(&self) -> Option<String>;
    /// Returns how much longer an overdue answer may take because the controller pauses.
    fn pause(&self, now: Time) -> Duration;
}

/// Waits for a controller that has no other users yet.
pub(crate) struct Alone<'a>(pub(crate) &'a dyn Bus);

impl Waiting for Alone<'_> {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn cause_of_death(&self) -> Option<String> {
        None
    }

    fn pause(&self, _now: Time) -> Duration {
        // Its limit (MTFA) is not known yet.
        let paused = super::registers::read(self.0, CSTS).pp();
        if paused { ACTIVATION } else { Duration::ZERO }
    }
}

/// Returns the admin queue's rings at the start of `host`.
pub(super) fn admin_rings(
    host: &Mapping,
    entries: u32,
    bells: (Bell, Bell),
) -> (SubmissionRing, CompletionRing) {
    let sq_bytes = ADMIN_CQ_OFFSET as usize;
    assert!(
        entries as usize * size_of::<Sqe>() <= sq_bytes,
        "the admin submission ring has its place"
    );
    let sq = SubmissionRing::new(host.atomics().slice(0, sq_bytes), entries, bells.0);
    let cq_memory = host.atomics().slice(sq_bytes, PAGE_BYTES as usize);
    (sq, CompletionRing::new(cq_memory, entries, bells.1))
}

/// The admin queue and its commands in flight.
pub(crate) struct Admin {
    core: Core<Owned>,
    calls: u64,
    /// The last call's result, once it has arrived.
    answered: Option<Completion<Owned>>,
    events: VecDeque<AsyncEvent>,
    /// Event requests that completed and are to be posted again.
    events_spent: usize,
    aborts_in_flight: usize,
    aborts_max: usize,
    violation: Option<Violation>,
    // Dropped last: it holds the core's rings and pages.
    host: Mapping,
}

impl Admin {
    /// Creates the admin queue over rings and pages in `host`.
    pub(crate) fn new(core: Core<Owned>, host: Mapping) -> Admin {
        Admin {
            core,
            calls: 0,
            answered: None,
            events: VecDeque::with_capacity(EVENTS_MAX),
            events_spent: 0,
            aborts_in_flight: 0,
            aborts_max: 1,
            violation: None,
            host,
        }
    }

    /// Empties the rings, for a disabled controller before it is enabled.
    pub(crate) fn restart(&mut self) {
        // Ends commands posted too late to be ended earlier.
        self.core.end_all(&mut |_| ());
        self.host.atomics().clear();
        self.core.restart(&[]);
        self.answered = None;
        (self.events_spent, self.aborts_in_flight) = (0, 0);
        self.violation = None;
    }

    /// Returns the device's addresses of the submission and the completion ring.
    pub(crate) fn rings(&self) -> (Iova, Iova) {
        let sq = self.host.iova();
        (sq, sq.checked_add(ADMIN_CQ_OFFSET).expect("inside the mapping"))
    }

    /// Takes the first protocol violation since the last call.
    pub(crate) fn take_violation(&mut self) -> Option<Violation> {
        self.violation.take()
    }

    /// Sets the most aborts the controller takes at a time (Identify Controller, ACL, converted).
    pub(crate) fn set_aborts_max(&mut self, aborts: usize) {
        self.aborts_max = aborts;
    }

    pub(crate) fn set_shadows(&mut self, submission: Shadow, completion: Shadow) {
        self.core.set_shadows(submission, completion);
    }

    /// Runs one command to its end and returns DW0 and the buffer.
    ///
    /// # Errors
    /// [`Error::Status`] if the command fails. [`Error::Timeout`] after `timeout`, the error of `waiting`,
    /// [`Error::Device`] for a protocol violation, and [`Error::Failed`] if registers show that no answer
    /// will come: the command is then still in flight and keeps its buffer, and the controller must be reset.
    pub(crate) fn call(
        &mut self,
        bus: &dyn Bus,
        admin_command: AdminCommand,
        timeout: Duration,
        waiting: &dyn Waiting,
    ) -> Result<(u32, Option<Buffer>)> {
        let AdminCommand { name, sqe, data } = admin_command;
        waiting.check()?;
        // Completions make room.
        self.reap();
        let started = bus.now();
        self.calls += 1;
        let purpose = Purpose::Call(self.calls);
        let command = Command::whole(sqe, (data, purpose));
        self.core.post(started, command).map_err(|rejected| refusal(bus, name, rejected.reason))?;
        self.core.ring();
        let mut looks = 0u32;
        let Completion { buffer, result } = loop {
            self.reap();
            if let Some(answer) = self.answered.take_if(|answer| answer.buffer.1 == purpose) {
                break answer;
            }
            waiting.check()?;
            if let Some(violation) = self.violation {
                return Err(broken(bus, violation));
            }
            let now = bus.now();
            if now >= started + timeout && now >= started + timeout + waiting.pause(now) {
                return Err(overdue(bus, name, timeout));
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_AT_QUEUE)
                && let Some(reason) = waiting.cause_of_death()
            {
                return Err(Error::Failed { device: bus.device().to_owned(), reason });
            }
            bus.pause(if now < started + SOON { LOOK_EVERY } else { LOOK_LATER });
        };
        match result {
            Ok(dw0) => Ok((dw0, buffer.0)),
            Err(CommandError::Status(status)) => {
                Err(Error::Status { device: bus.device().to_owned(), command: name, status })
            }
            Err(CommandError::System(_) | CommandError::Short { .. }) => {
                unreachable!("the controller is asked, not the system")
            }
            Err(CommandError::Reset { .. } | CommandError::TimedOut { .. }) => {
                unreachable!("calls are never aborted, and a reset ends commands only after them")
            }
        }
    }

    /// Processes completions: the caller's answer, events, aborts.
    pub(crate) fn reap(&mut self) {
        let Admin { core, answered, events, events_spent, aborts_in_flight, .. } = self;
        core.reap(Time::ZERO, &mut |completion| match completion.buffer.1 {
            Purpose::Call(_) => *answered = Some(completion),
            Purpose::Abort => *aborts_in_flight -= 1,
            Purpose::Event => {
                if let Ok(dw0) = completion.result {
                    *events_spent += 1;
                    if events.len() < EVENTS_MAX {
                        events.push_back(AsyncEvent::from_dword(dw0));
                    }
                }
            }
        });
        if let Some(violation) = core.take_violation() {
            self.violation.get_or_insert(violation);
        }
    }

    /// Posts `count` asynchronous event requests, which have no deadline.
    pub(crate) fn request_events(&mut self, count: usize) {
        for _ in 0..count {
            // A full admin queue only means fewer events at a time.
            let _ = self.core.post_raw(
                Time::NEVER,
                Sqe::async_event_request(),
                None,
                (None, Purpose::Event),
            );
        }
        self.core.ring();
    }

    /// Takes the oldest event, and posts completed requests again.
    pub(crate) fn take_event(&mut self) -> Option<AsyncEvent> {
        self.reap();
        let spent = std::mem::take(&mut self.events_spent);
        self.request_events(spent);
        self.events.pop_front()
    }

    /// Sends an Abort without waiting. Its answer is due after `timeout`, which the next call checks.
    pub(crate) fn abort(&mut self, now: Time, timeout: Duration, qid: Qid, cid: Cid) -> Abort {
        self.reap();
        if self.has_overdue(now) {
            return Abort::Unanswered;
        }
        if self.aborts_in_flight >= self.aborts_max {
            return Abort::Busy;
        }
        let (sqe, owned) = (Sqe::abort(qid, cid), (None, Purpose::Abort));
        if self.core.post_raw(now + timeout, sqe, None, owned).is_err() {
            return Abort::Busy;
        }
        self.core.ring();
        self.aborts_in_flight += 1;
        Abort::Sent
    }

    /// Returns whether an abort was never answered; calls and events have no deadline here.
    fn has_overdue(&mut self, now: Time) -> bool {
        let mut overdue = Vec::new();
        if self.core.may_be_overdue(now) {
            self.core.take_overdue(now, &mut overdue);
        }
        !overdue.is_empty()
    }

    /// Ends everything in flight, after the controller was disabled.
    pub(crate) fn end_all(&mut self) {
        self.core.end_all(&mut |_| ());
    }

    /// Leaks everything in flight, because the device may still write it.
    pub(crate) fn leak_all(&mut self) {
        self.core.leak_all();
    }

    pub(crate) fn violations(&self) -> u64 {
        self.core.stats().violations()
    }
}

fn refusal(bus: &dyn Bus, name: &str, reason: RejectReason) -> Error {
    Error::invalid(format!("{}: admin command {name}", bus.device()), reason)
}

fn broken(bus: &dyn Bus, violation: Violation) -> Error {
    let what = format!("it breaks the protocol on its admin queue: {violation}");
    Error::device(
        bus.device(),
        what,
        "recover it or open it again; update its firmware if it stays",
    )
}

fn overdue(bus: &dyn Bus, name: &str, timeout: Duration) -> Error {
    Error::Timeout {
        device: bus.device().to_owned(),
        waited_for: format!("admin command {name}"),
        after: timeout,
        registers: super::registers::describe(bus),
    }
}
