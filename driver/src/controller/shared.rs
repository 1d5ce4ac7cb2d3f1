//! State shared by a controller's handles and queues, and its shutdown.
//!
//! The first thread to meet a failure takes the controller out of service with [`Shared::fail`]: it is then
//! quiesced (the device no longer accesses our memory, so buffers may be returned) or stuck (it may, so they
//! are withheld). `recovery` brings it back as its next incarnation; each queue then notices that it
//! belongs to the last one and recreates itself.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use super::admin::{Abort, Admin, AdminCommand, Waiting};
use super::claim::Claim;
use super::events::{Event, Pause, Sizes};
use super::info::{ControllerInfo, ControllerOptions};
use super::ladder::{Stopped, quiesce, shut_down};
use super::life::{Life, LifeState, SharedLife};
use super::registers::{GONE, describe, read};
use super::{cmb::Cmb, doorbells::Doorbells};
use crate::Time;
use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::runtime::lock;
use crate::spec::register::CSTS;
use crate::spec::{Cid, Qid, Sqe};

/// Unused I/O queue identifiers.
#[derive(Debug)]
pub(super) struct QueueIds {
    free: BTreeSet<u16>,
    count: u16,
}

impl QueueIds {
    /// Starts with identifiers 1 to `count`, the number granted.
    pub(super) fn new(count: u16) -> QueueIds {
        QueueIds { free: (1..=count).collect(), count }
    }

    /// Takes an unused identifier.
    ///
    /// # Errors
    /// [`Error::Device`] if there is none.
    pub(super) fn take(&mut self, device: &str) -> Result<Qid> {
        self.free.pop_first().map(Qid).ok_or_else(|| {
            let what = format!("all {} I/O queues the controller granted are in use", self.count);
            Error::device(device, what, "drop a queue pair first, or use fewer jobs")
        })
    }

    /// Returns an identifier whose queues the controller does not know any more.
    pub(super) fn give_back(&mut self, qid: Qid) {
        self.free.insert(qid.0);
    }
}

/// State shared by a controller's handles and queues.
pub(crate) struct Shared {
    pub(super) life: SharedLife,
    pub(super) reason: Mutex<String>,
    pub(super) admin: Mutex<Admin>,
    pub(super) ids: Mutex<QueueIds>,
    pub(super) info: ControllerInfo,
    pub(super) options: ControllerOptions,
    pub(super) doorbells: Doorbells,
    pub(super) cmb: Option<Mutex<Cmb>>,
    pub(super) vectors: Vec<std::os::fd::OwnedFd>,
    /// Events found but not yet returned by `poll`.
    pub(super) events: Mutex<VecDeque<Event>>,
    pub(super) sizes: Mutex<Sizes>,
    pub(super) pause: Pause,
    /// Why it must not be recovered.
    pub(super) given_up: OnceLock<&'static str>,
    pub(super) bus: Arc<dyn Bus>,
    /// Released last, when the controller is shut down.
    pub(super) _claim: Claim,
}

impl Shared {
    pub(crate) fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    pub(crate) fn life(&self) -> Life {
        self.life.get()
    }

    /// Returns whether nothing has gone wrong since `life` was read.
    #[inline(always)]
    pub(crate) fn is_in(&self, life: Life) -> bool {
        self.life.is(life)
    }

    /// Returns an error while the controller is out of service.
    pub(crate) fn check(&self) -> Result<()> {
        if self.life().is_running() { Ok(()) } else { Err(self.failed()) }
    }

    /// Returns the current life, in service.
    ///
    /// # Errors
    /// [`Error::Failed`] while it is out of service.
    pub(super) fn running_life(&self) -> Result<Life> {
        let life = self.life();
        if life.is_running() { Ok(life) } else { Err(self.failed()) }
    }

    fn failed(&self) -> Error {
        let reason = lock(&self.reason).clone();
        Error::Failed { device: self.bus.device().to_owned(), reason }
    }

    /// Runs an admin command. A timeout, or a completion that breaks the protocol, takes the controller out
    /// of service.
    ///
    /// # Errors
    /// As [`Admin::call`]; [`Error::Failed`] while the controller is out of service.
    pub(crate) fn call(
        &self,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<(u32, Option<Buffer>)> {
        self.call_in(self.running_life()?, name, sqe, data)
    }

    /// Runs an admin command that is valid only while the controller is in `life`.
    pub(super) fn call_in(
        &self,
        life: Life,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<(u32, Option<Buffer>)> {
        let _span = tracing::debug_span!("admin", device = self.bus.device(), name).entered();
        let command = AdminCommand { name, sqe, data };
        let waiting = InLife { shared: self, life };
        let timeout = self.options.admin_timeout;
        let (result, violation) = {
            let mut admin = lock(&self.admin);
            (admin.call(&*self.bus, command, timeout, &waiting), admin.take_violation())
        };
        match (&result, violation) {
            (_, Some(violation)) => self.fail(life, &format!("on the admin queue, {violation}")),
            (Err(Error::Timeout { waited_for, after, .. }), None) => {
                self.fail(life, &format!("waited {} ms for {waited_for}", after.as_millis()));
            }
            (Err(Error::Failed { reason, .. }), None) => self.fail(life, reason),
            _ => {}
        }
        result
    }

    /// Gives access to the admin queue beyond calls.
    pub(super) fn with_admin<R>(&self, f: impl FnOnce(&mut Admin) -> R) -> R {
        f(&mut lock(&self.admin))
    }

    /// Gives access without waiting; `None` while another thread holds the queue.
    pub(super) fn try_with_admin<R>(&self, f: impl FnOnce(&mut Admin) -> R) -> Option<R> {
        match self.admin.try_lock() {
            Ok(mut admin) => Some(f(&mut admin)),
            Err(TryLockError::Poisoned(poisoned)) => Some(f(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Requests an abort without waiting; returns `false` if that is not possible now. A controller that left
    /// an earlier abort unanswered goes out of service.
    pub(crate) fn try_abort(&self, life: Life, now: Time, qid: Qid, cid: Cid) -> bool {
        let timeout = self.options.admin_timeout;
        // The thread that ends the life needs the same lock to end what is in flight.
        let abort = self
            .try_with_admin(|admin| self.is_in(life).then(|| admin.abort(now, timeout, qid, cid)));
        let abort = abort.flatten();
        if abort == Some(Abort::Unanswered) {
            self.fail(life, "an Abort command was not answered");
        }
        abort == Some(Abort::Sent)
    }

    /// Returns the reason if registers show that the controller will never answer again: aborting commands is
    /// then useless.
    pub(crate) fn cause_of_death(&self) -> Option<String> {
        let status = read(&*self.bus, CSTS);
        if status.is_all_ones() {
            Some(GONE.to_owned())
        } else if status.cfs() {
            Some("it reports a fatal status (CSTS.CFS)".to_owned())
        } else if !status.rdy() {
            Some("it is no longer ready (CSTS.RDY): another agent reset it".to_owned())
        } else {
            None
        }
    }

    /// Takes the controller out of service if it is still in `life`, by [`quiesce`]. The first caller does
    /// the work; others return at once.
    pub(crate) fn fail(&self, life: Life, reason: &str) {
        // Store the reason before any thread can see that it is needed.
        let mut written = lock(&self.reason);
        if !life.is_running() || !self.life.advance(life, life.with(LifeState::Failing)) {
            return;
        }
        *written = reason.to_owned();
        drop(written);
        probe::probe!(adit, fail, reason.as_ptr(), reason.len());
        let _span = tracing::info_span!("fail", device = self.bus.device()).entered();
        let registers = describe(&*self.bus);
        tracing::error!("{}: out of service: {reason}; {registers}", self.bus.device());
        self.finish(life, quiesce(&*self.bus, &self.info));
    }

    /// Waits until no thread is failing or recovering the controller. Returns `true` if the device cannot
    /// access what was in flight in `life`. Bounded by the other thread's work.
    pub(super) fn wait_settled(&self, life: Life) -> bool {
        loop {
            match self.life().state() {
                LifeState::Failing | LifeState::Recovering => {
                    self.bus.pause(Duration::from_micros(100))
                }
                LifeState::Stuck => return false,
                LifeState::Quiesced => return true,
                LifeState::Running => return !self.is_in(life),
            }
        }
    }

    /// Returns whether the device may still write memory in flight, which then stays with the queue.
    pub(super) fn may_still_write(&self) -> bool {
        self.life().state() == LifeState::Stuck
    }

    /// Decides whether a stopped controller's memory is safe to reuse, and stores the state.
    pub(super) fn finish(&self, life: Life, quiesced: Result<Stopped>) {
        let state = match quiesced {
            Ok(Stopped::Reset) => LifeState::Quiesced,
            Ok(Stopped::CutOff) => {
                self.give_up("it could not be reset and was cut off from all memory");
                LifeState::Quiesced
            }
            Err(error) => {
                tracing::error!(
                    "{}: it may still write to memory of this process, which is leaked: {error}",
                    self.bus.device()
                );
                LifeState::Stuck
            }
        };
        let mut admin = lock(&self.admin);
        match state {
            LifeState::Stuck => admin.leak_all(),
            _ => admin.end_all(),
        }
        self.life.set(life.with(state));
    }
}

/// Waits as long as the controller is in `life`: a failure seen by another thread ends the wait, and those in
/// line.
struct InLife<'a> {
    shared: &'a Shared,
    life: Life,
}

impl Waiting for InLife<'_> {
    fn check(&self) -> Result<()> {
        if self.shared.is_in(self.life) { Ok(()) } else { Err(self.shared.failed()) }
    }

    fn cause_of_death(&self) -> Option<String> {
        self.shared.cause_of_death()
    }

    fn pause(&self, now: Time) -> Duration {
        let pauses = self.shared.paused_until(now).is_some();
        if pauses { self.shared.activation() } else { Duration::ZERO }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("device", &self.info.device)
            .field("life", &self.life())
            .finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let life = self.life();
        if !life.is_running() {
            return;
        }
        let bus = Arc::clone(&self.bus);
        if let Err(error) = shut_down(&*bus, self.info.shutdown_timeout) {
            tracing::warn!("{error}");
        }
        // Only now may rings and buffers be unmapped (law 3).
        self.finish(life, quiesce(&*bus, &self.info));
    }
}
