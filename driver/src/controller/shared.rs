//! What a controller's handle and all its queues share, and its end.
//!
//! The state only moves forward: running, then failing while one thread resets
//! the device, then either quiesced (the device touches no memory of ours any
//! more, so buffers may be handed back) or stuck (it may, so they are leaked).
//! Coming back from there is to open the controller anew.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::admin::{Abort, Admin, AdminCommand};
use super::claim::Claim;
use super::queues::QueueIds;
use super::registers::{describe, read, wait_for, write};
use super::{ControllerInfo, cmb::Cmb, doorbells::Doorbells};
use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::spec::register::{CC, CSTS, ShutdownNotification, ShutdownStatus};
use crate::spec::{Cid, Qid, Sqe};
use crate::time::Time;

/// Where a controller is on its way; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Running = 0,
    Failing = 1,
    Quiesced = 2,
    Stuck = 3,
}

/// See the module.
pub(crate) struct Shared {
    state: AtomicU8,
    reason: Mutex<String>,
    admin: Mutex<Admin>,
    pub(super) ids: Mutex<QueueIds>,
    pub(super) info: ControllerInfo,
    pub(super) doorbells: Doorbells,
    pub(super) cmb: Option<Mutex<Cmb>>,
    pub(super) vectors: Vec<std::os::fd::OwnedFd>,
    admin_timeout: Duration,
    bus: Arc<dyn Bus>,
    /// Given back last of all, when the controller is shut down.
    _claim: Claim,
}

/// What bring-up hands over.
pub(super) struct Parts {
    pub(super) admin: Admin,
    pub(super) ids: QueueIds,
    pub(super) info: ControllerInfo,
    pub(super) doorbells: Doorbells,
    pub(super) cmb: Option<Cmb>,
    pub(super) vectors: Vec<std::os::fd::OwnedFd>,
    pub(super) admin_timeout: Duration,
    pub(super) bus: Arc<dyn Bus>,
    pub(super) claim: Claim,
}

/// A lock's content, also after another thread panicked with it: every holder leaves it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Shared {
        let Parts { admin, ids, info, doorbells, cmb, vectors, admin_timeout, bus, claim } = parts;
        Shared {
            state: AtomicU8::new(State::Running as u8),
            reason: Mutex::new(String::new()),
            admin: Mutex::new(admin),
            ids: Mutex::new(ids),
            info,
            doorbells,
            cmb: cmb.map(Mutex::new),
            vectors,
            admin_timeout,
            bus,
            _claim: claim,
        }
    }

    pub(crate) fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// Whether nothing has gone wrong yet.
    #[inline(always)]
    pub(crate) fn is_running(&self) -> bool {
        self.state.load(Ordering::Relaxed) == State::Running as u8
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Running,
            1 => State::Failing,
            2 => State::Quiesced,
            _ => State::Stuck,
        }
    }

    /// An error once the controller was given up on.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let reason = lock(&self.reason).clone();
        Err(Error::Failed { device: self.bus.device().to_owned(), reason })
    }

    /// Runs an admin command. One that times out takes the controller out of service.
    ///
    /// # Errors
    /// As [`Admin::call`]; [`Error::Failed`] once the controller was given up on.
    pub(crate) fn call(
        &self,
        name: &'static str,
        sqe: Sqe,
        data: Option<Buffer>,
    ) -> Result<(u32, Option<Buffer>)> {
        let command = AdminCommand { name, sqe, data };
        // Also while waiting: a failure that another thread met ends the wait, and those in line.
        let check = || self.check();
        let result = lock(&self.admin).call(&*self.bus, command, self.admin_timeout, &check);
        if let Err(error @ Error::Timeout { .. }) = &result {
            self.fail(&error.to_string());
        }
        result
    }

    /// Access to the admin queue beyond calls.
    pub(super) fn with_admin<R>(&self, f: impl FnOnce(&mut Admin) -> R) -> R {
        f(&mut lock(&self.admin))
    }

    /// The same without waiting; `None` while another thread has it.
    pub(super) fn try_with_admin<R>(&self, f: impl FnOnce(&mut Admin) -> R) -> Option<R> {
        match self.admin.try_lock() {
            Ok(mut admin) => Some(f(&mut admin)),
            Err(TryLockError::Poisoned(poisoned)) => Some(f(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Asks the controller to abort a command, without waiting; `false` if that is not
    /// possible right now. A controller that left an earlier abort unanswered goes out of service.
    pub(crate) fn try_abort(&self, now: Time, qid: Qid, cid: Cid) -> bool {
        let abort = self.try_with_admin(|admin| admin.abort(now, self.admin_timeout, qid, cid));
        if abort == Some(Abort::Unanswered) {
            self.fail("an Abort command was never answered");
        }
        abort == Some(Abort::Sent)
    }

    /// Why the controller will never answer again, if its registers say so: then there is no
    /// use in aborting commands.
    pub(crate) fn cause_of_death(&self) -> Option<String> {
        let status = read(&*self.bus, CSTS);
        if status.is_all_ones() {
            Some("its registers read as all ones: removed, or its link is down".to_owned())
        } else if status.cfs() {
            Some("it reports a fatal status (CSTS.CFS)".to_owned())
        } else if !status.rdy() {
            Some("it is no longer ready (CSTS.RDY): something else reset it".to_owned())
        } else {
            None
        }
    }

    /// Takes the controller out of service: disables it, or resets the function where
    /// that does not work. The first caller does it, others return at once.
    pub(crate) fn fail(&self, reason: &str) {
        let (running, failing) = (State::Running as u8, State::Failing as u8);
        // The reason is there before anybody can see that it is needed.
        let mut written = lock(&self.reason);
        if self
            .state
            .compare_exchange(running, failing, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            return;
        }
        *written = reason.to_owned();
        drop(written);
        tracing::error!(
            "{}: taking the controller out of service: {reason}; {}",
            self.bus.device(),
            describe(&*self.bus)
        );
        self.finish(quiesce(&*self.bus, &self.info));
    }

    /// Waits until a failing controller is quiesced (`true`) or stuck (`false`). Bounded by
    /// the reset that another thread is at.
    pub(super) fn wait_settled(&self) -> bool {
        while self.state() == State::Failing {
            self.bus.pause(Duration::from_micros(100));
        }
        self.state() == State::Quiesced
    }

    /// Settles what a failed or closed controller's memory is worth.
    fn finish(&self, quiesced: Result<()>) {
        let state = match quiesced {
            Ok(()) => State::Quiesced,
            Err(error) => {
                tracing::error!(
                    "{}: it may still write our memory, which is leaked: {error}",
                    self.bus.device()
                );
                State::Stuck
            }
        };
        let mut admin = lock(&self.admin);
        match state {
            State::Stuck => admin.leak_all(),
            _ => admin.end_all(),
        }
        self.state.store(state as u8, Ordering::Release);
    }
}

/// Stops all DMA: CC.EN = 0, or failing that a function reset.
pub(super) fn quiesce(bus: &dyn Bus, info: &ControllerInfo) -> Result<()> {
    let disabled = disable(bus, info.ready_timeout);
    if disabled.is_ok() {
        // Disabling leaves the memory buffer where it is, over addresses that the next user may
        // give to its own memory.
        super::cmb::switch_off(bus, info.cap);
        return Ok(());
    }
    tracing::warn!("{}: resetting the function, because it cannot be disabled", bus.device());
    bus.reset()
}

/// Clears CC.EN and waits until the controller is no longer ready.
pub(super) fn disable(bus: &dyn Bus, timeout: Duration) -> Result<()> {
    write(bus, CC, read(bus, CC).with_en(false).with_shn(ShutdownNotification::None));
    wait_for(bus, "CSTS.RDY to become 0 after CC.EN = 0", timeout, |status| !status.rdy()).map(drop)
}

/// Normal shutdown (NVMe Base 2.0 section 3.6.1): the controller writes its caches out.
fn shut_down(bus: &dyn Bus, timeout: Duration) -> Result<()> {
    write(bus, CC, read(bus, CC).with_shn(ShutdownNotification::Normal));
    let complete = |status: crate::spec::register::Csts| status.shst() == ShutdownStatus::Complete;
    wait_for(bus, "CSTS.SHST to report a complete shutdown", timeout, complete).map(drop)
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.state() != State::Running {
            return;
        }
        let bus = Arc::clone(&self.bus);
        if let Err(error) = shut_down(&*bus, self.info.shutdown_timeout) {
            tracing::warn!("{error}");
        }
        // Only now may rings and buffers be unmapped: the order of law 3.
        self.finish(quiesce(&*bus, &self.info));
    }
}
