//! The controller's lifecycle: enable, disable, resets, shutdown, power.
//!
//! Applies the host's writes to CC, with the delays and faults of scripts and plans. Resets keep the write cache; power
//! loss does not.

use std::sync::Arc;
use std::time::Duration;

use super::cmb::Cmb;
use super::command::Command;
use super::controller::Controller;
use super::faults::{FaultKind, Injector, Moment};
use super::io;
use super::memory::{Dma, HostMemory, Served};
use super::pending::Work;
use super::queue::{CompletionQueue, SubmissionQueue};
use super::registers::Registers;
use super::rng::Rng;
use super::state::life::{Life, Presence};
use adit_shared::Time;
use adit_spec::Qid;
use adit_spec::register::{ShutdownNotification, ShutdownStatus};

impl Controller {
    /// Keeps CSTS.RDY set when the host clears CC.EN, until called again or reset.
    pub fn refuse_disable(&mut self, refuses: bool) {
        self.life.refuses_disable = refuses;
    }

    /// Makes function resets fail, until called again or powered off.
    pub fn refuse_reset(&mut self, refuses: bool) {
        self.life.refuses_reset = refuses;
    }

    /// Makes subsystem resets do nothing, until called again or powered off.
    pub fn refuse_subsystem_reset(&mut self, refuses: bool) {
        self.life.refuses_subsystem_reset = refuses;
    }

    /// Keeps CSTS.RDY clear when the host sets CC.EN, until called again or reset.
    pub fn hang_enable(&mut self, hangs: bool) {
        self.life.hangs_enable = hangs;
        self.life.enable_at = None;
    }

    /// Sets how long CSTS.RDY takes to follow CC.EN, in both directions.
    pub fn set_delays(&mut self, enable: Duration, disable: Duration) {
        (self.life.enable_delay, self.life.disable_delay) = (enable, disable);
    }

    /// Fails the controller: sets CSTS.CFS and runs no command.
    pub fn fail(&mut self) {
        self.registers.set_fatal();
    }

    /// Performs a function level reset: the state of power-on, with data and write cache kept. Returns false,
    /// unchanged, if the controller refuses.
    pub fn reset(&mut self) -> bool {
        let fault = self.moment(Moment::Reset);
        if self.life.refuses_reset || fault.is_some() {
            return false;
        }
        if !self.life.is_away() {
            self.start_over();
        }
        true
    }

    /// Detaches from a departed host by a reset that no fault refuses. Data and write cache stay. Doorbells move to
    /// fresh memory, so that holders of the old mapping can ring nothing.
    ///
    /// # Errors
    /// An error if the system has no memory; the old doorbells stay then.
    pub fn leave_host(&mut self) -> crate::error::Result<()> {
        self.start_over();
        self.doorbells.renew()
    }

    /// Performs the subsystem reset that the host requested (Base 2.0 section 3.7.1).
    pub(super) fn reset_subsystem(&mut self) {
        let fault = self.moment(Moment::SubsystemReset);
        if self.life.refuses_subsystem_reset || fault.is_some() {
            return;
        }
        self.start_over();
        self.registers.set_subsystem_reset_occurred();
    }

    /// Restores registers and queues to their power-on state.
    fn start_over(&mut self) {
        self.drop_queues();
        self.registers = Registers::new(&self.options);
        if let Some(cmb) = self.cmb() {
            cmb.place(None);
        }
        let Life {
            presence,
            refuses_reset,
            refuses_subsystem_reset,
            enable_delay,
            disable_delay,
            ..
        } = self.life;
        self.life = Life {
            presence,
            refuses_reset,
            refuses_subsystem_reset,
            enable_delay,
            disable_delay,
            ..Life::default()
        };
    }

    fn moment(&mut self, moment: Moment) -> Option<FaultKind> {
        self.watch.injector.as_mut()?.moment(moment, self.now)
    }

    #[inline]
    pub(super) fn is_running(&self) -> bool {
        let csts = self.registers.csts;
        csts.rdy() && !csts.cfs() && matches!(csts.shst(), ShutdownStatus::Normal)
    }

    /// Returns whether commands are paused for firmware activation. Delivers the notice first.
    #[inline]
    pub(super) fn is_paused(&mut self, dma: &Dma<'_>) -> Served<bool> {
        if let Some(duration) = self.life.pause_next.take() {
            self.deliver_events(dma)?;
            self.life.paused_until = Some(self.now + duration);
            self.registers.set_paused(true);
        }
        match self.life.paused_until {
            None => Ok(false),
            Some(until) if self.now < until => Ok(true),
            Some(_) => {
                self.life.paused_until = None;
                self.registers.set_paused(false);
                Ok(false)
            }
        }
    }

    /// Applies the faults that wait for no command.
    #[inline]
    pub(super) fn follow_clock(&mut self, dma: &Dma<'_>) {
        let now = self.now;
        while let Some(kind) =
            self.watch.injector.as_mut().and_then(|injector| Injector::clock(injector, now))
        {
            match kind {
                FaultKind::Remove => self.pull_out(dma),
                _ => self.registers.set_fatal(),
            }
        }
    }

    /// Applies the host's writes to CC.
    pub(super) fn follow_cc(&mut self) {
        if self.life.must_disable {
            self.follow_disable();
        }
        let csts = self.registers.csts;
        // A pending disable completes first, even if the host has not waited for it.
        let is_reset = !self.life.must_disable;
        if self.registers.cc.en() && is_reset && !csts.rdy() && !csts.cfs() {
            self.follow_enable();
        }
        if self.registers.cc.shn() == ShutdownNotification::None {
            return;
        }
        if csts.shst() != ShutdownStatus::Complete {
            let flushed = self.media.flush().is_ok();
            let status = if flushed { ShutdownStatus::Complete } else { ShutdownStatus::Occurring };
            self.registers.set_shutdown(status);
        }
    }

    fn follow_disable(&mut self) {
        let at = match self.life.disable_at {
            Some(at) => at,
            None => {
                let delay = match self.moment(Moment::Disable) {
                    Some(FaultKind::SlowDisable(delay)) => delay,
                    Some(_) => {
                        self.life.refuses_disable = true;
                        Duration::ZERO
                    }
                    None => Duration::ZERO,
                };
                self.now + self.life.disable_delay + delay
            }
        };
        self.life.disable_at = Some(at);
        if self.now >= at && !self.life.refuses_disable {
            self.drop_queues();
            self.registers.controller_reset();
            self.life.must_disable = false;
            (self.life.disable_at, self.life.enable_at) = (None, None);
            (self.life.pause_next, self.life.paused_until) = (None, None);
        }
    }

    fn follow_enable(&mut self) {
        let at = match self.life.enable_at {
            Some(at) => at,
            None => match self.moment(Moment::Enable) {
                _ if self.life.hangs_enable => Time::NEVER,
                Some(FaultKind::SlowEnable(delay)) => self.now + self.life.enable_delay + delay,
                Some(_) => Time::NEVER,
                None => self.now + self.life.enable_delay,
            },
        };
        self.life.enable_at = Some(at);
        if self.now >= at {
            self.life.enable_at = None;
            self.enable();
        }
    }

    fn enable(&mut self) {
        if !self.registers.can_enable() {
            return self.registers.set_fatal();
        }
        let (asqs, acqs) = ((self.registers.aqa & 0xfff) + 1, (self.registers.aqa >> 16) + 1);
        let (asq, acq) = (self.registers.asq, self.registers.acq);
        self.add_completion_queue(CompletionQueue::new(0, acq, acqs, Some(0)));
        self.add_submission_queue(SubmissionQueue::new(0, 0, asq, asqs));
        self.registers.set_ready();
    }

    /// Removes the device, which also loses its power.
    pub fn remove(&mut self, memory: &dyn HostMemory) {
        let cmb = self.cmb().cloned();
        self.pull_out(&Dma { host: memory, cmb: cmb.as_deref() });
    }

    /// Returns whether the device was removed, by a call or by a fault.
    pub fn is_removed(&self) -> bool {
        self.life.presence == Presence::Removed
    }

    pub(super) fn pull_out(&mut self, dma: &Dma<'_>) {
        let seed = self.cut_seed();
        self.lose_power(seed, dma);
        self.life.presence = Presence::Removed;
    }

    /// Cuts the power: registers read all ones until [`Controller::restore_power`]. `seed` decides which LBAs of the
    /// write cache and of commands in flight survive (rules in `docs/use/faults.md`); durable data survives.
    pub fn cut_power(&mut self, memory: &dyn HostMemory, seed: u64) {
        let cmb: Option<Arc<Cmb>> = self.cmb().cloned();
        self.lose_power(seed, &Dma { host: memory, cmb: cmb.as_deref() });
    }

    /// Returns a seed for a power cut, derived from the controller's seed and the number of power cycles.
    pub fn cut_seed(&self) -> u64 {
        Rng::stream(self.options.seed, self.statistics.power_cycles).next()
    }

    /// Restores the power, or reinserts the device; the controller is then disabled.
    pub fn restore_power(&mut self) {
        if self.life.is_away() {
            self.life.presence = Presence::Here;
            self.statistics.power_cycles += 1;
        }
    }

    fn lose_power(&mut self, seed: u64, dma: &Dma<'_>) {
        if self.life.is_away() {
            return;
        }
        self.statistics.unsafe_shutdowns +=
            u64::from(self.registers.csts.shst() != ShutdownStatus::Complete);
        let tears = self.moment(Moment::PowerCut) == Some(FaultKind::Tear);
        self.media.prepare_cut(seed);
        self.write_in_flight(seed, dma);
        // If the file fails here, it lost only data that a power cut may lose.
        let _ = self.media.cut(seed, tears, self.options.vwc_bytes > 0);
        self.start_over();
        self.features.forget_time();
        self.life = Life { presence: Presence::Unpowered, ..Life::default() };
    }

    /// Executes some of the commands in flight as far as the cache, where the cut then decides.
    fn write_in_flight(&mut self, seed: u64, dma: &Dma<'_>) {
        let mut rng = Rng::stream(seed, 0xf117);
        let mut left = self.take_in_flight(dma);
        self.is_losing_power = true;
        while !left.is_empty() {
            let command = left.swap_remove(rng.below(left.len() as u64) as usize);
            if rng.chance(1, 2) {
                // The host is gone, so the result is dropped.
                let _ = self.io(&command, dma);
            }
        }
        self.is_losing_power = false;
    }

    /// Takes the commands in flight that would change data: waiting ones and those rung for.
    fn take_in_flight(&mut self, dma: &Dma<'_>) -> Vec<Command> {
        let mut found = Vec::new();
        let mut add = |entry: &[u8; 64], sqid: Qid| {
            let command = Command::parse(entry, sqid);
            if !sqid.is_admin() && io::changes_data(command.opcode) {
                found.push(command);
            }
        };
        for held in std::mem::take(&mut self.held) {
            add(&held.entry, held.sqid);
        }
        for work in self.pending.take_all() {
            if let Work::Execute { entry, sqid, .. } = work {
                add(&entry, sqid);
            }
        }
        let qids = if self.is_running() { self.queues.submission_ids.clone() } else { Vec::new() };
        for qid in qids.into_iter().filter(|qid| *qid != 0) {
            let mut entry = [0; 64];
            while let Ok(true) = self.fetch(qid, dma, &mut entry) {
                add(&entry, Qid(qid));
            }
        }
        found
    }

    /// Drops queues and commands, and restores the defaults of a controller reset.
    pub(super) fn drop_queues(&mut self) {
        self.queues.clear();
        self.doorbells.silence();
        self.shadow = None;
        self.held.clear();
        self.pending.take_all();
        self.events = Default::default();
        self.features.reset();
    }
}
