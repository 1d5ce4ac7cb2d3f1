//! The controller's life: enable, disable, resets, shutdown, power.
//!
//! What the host writes to CC is followed here, in its time or with what a
//! script or a plan makes of it. Resets keep the write cache; power loss does not.

use std::sync::Arc;
use std::time::Duration;

use super::cmb::Cmb;
use super::command::Command;
use super::controller::Controller;
use super::faults::{FaultKind, Injector, Moment};
use super::io;
use super::memory::{Dma, HostMemory};
use super::pending::Work;
use super::queue::{CompletionQueue, SubmissionQueue};
use super::registers::Registers;
use super::rng::Rng;
use super::run::Served;
use adit_shared::Time;
use adit_spec::Qid;
use adit_spec::register::{ShutdownNotification, ShutdownStatus};

/// Whether the device answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// It does.
    #[default]
    Here,
    /// It has no power.
    Unpowered,
    /// It was pulled out.
    Removed,
}

/// Where the controller stands between states, and what it refuses.
#[derive(Debug, Default)]
pub(super) struct Life {
    presence: Presence,
    hangs_enable: bool,
    refuses_disable: bool,
    refuses_reset: bool,
    refuses_subsystem_reset: bool,
    enable_delay: Duration,
    disable_delay: Duration,
    /// CC.EN was cleared since it was last followed.
    pub(super) must_disable: bool,
    /// When CSTS.RDY will be set, once that is decided.
    enable_at: Option<Time>,
    /// When CSTS.RDY will be cleared, once that is decided.
    disable_at: Option<Time>,
    /// For how long commands shall wait, from the next step on.
    pause_next: Option<Duration>,
    /// Until when commands wait (CSTS.PP).
    paused_until: Option<Time>,
}

impl Life {
    /// Whether it does not answer: no power, or pulled out.
    #[inline]
    pub(super) fn is_away(&self) -> bool {
        self.presence != Presence::Here
    }

    /// Makes commands wait from the next step on.
    pub(super) fn pause_next(&mut self, duration: Duration) {
        self.pause_next = Some(duration);
    }

    /// Whether commands wait for firmware.
    pub(super) fn is_pausing(&self) -> bool {
        self.paused_until.is_some()
    }

    pub(super) fn next_due(&self) -> Option<Time> {
        let disable_at = self.disable_at.filter(|_| !self.refuses_disable);
        let times = [self.enable_at, disable_at, self.paused_until];
        times.into_iter().flatten().filter(|time| *time != Time::NEVER).min()
    }
}

impl Controller {
    /// Makes CSTS.RDY stay set when the host clears CC.EN, until told otherwise or reset.
    pub fn refuse_disable(&mut self, refuses: bool) {
        self.life.refuses_disable = refuses;
    }

    /// Makes function resets fail, until told otherwise or without power.
    pub fn refuse_reset(&mut self, refuses: bool) {
        self.life.refuses_reset = refuses;
    }

    /// Makes subsystem resets do nothing, until told otherwise or without power.
    pub fn refuse_subsystem_reset(&mut self, refuses: bool) {
        self.life.refuses_subsystem_reset = refuses;
    }

    /// Makes CSTS.RDY stay clear when the host sets CC.EN, until told otherwise or reset.
    pub fn hang_enable(&mut self, hangs: bool) {
        self.life.hangs_enable = hangs;
        self.life.enable_at = None;
    }

    /// Sets how long CSTS.RDY takes to follow CC.EN, up and down.
    pub fn set_delays(&mut self, enable: Duration, disable: Duration) {
        (self.life.enable_delay, self.life.disable_delay) = (enable, disable);
    }

    /// Fails the controller as a broken one would: CSTS.CFS is set and no command runs.
    pub fn fail(&mut self) {
        self.registers.set_fatal();
    }

    /// Function level reset: as after power-on; data stays, in the write cache, too. False,
    /// and nothing happens, if it refuses.
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

    /// Parts with a host that is gone, as its loss of power would: a reset that no fault refuses. Data
    /// stays, in the write cache, too. Doorbells get fresh memory: who has the old mapped rings
    /// nothing any more.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] when the system has no memory; the old doorbells stay then.
    pub fn leave_host(&mut self) -> crate::error::Result<()> {
        self.start_over();
        self.doorbells.renew()
    }

    /// The host asked for a subsystem reset (Base 2.0 section 3.7.1).
    pub(super) fn reset_subsystem(&mut self) {
        let fault = self.moment(Moment::SubsystemReset);
        if self.life.refuses_subsystem_reset || fault.is_some() {
            return;
        }
        self.start_over();
        self.registers.set_subsystem_reset_occurred();
    }

    /// All registers and queues as after power-on.
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
        self.injector.as_mut()?.moment(moment, self.now)
    }

    #[inline]
    pub(super) fn is_running(&self) -> bool {
        let csts = self.registers.csts;
        csts.rdy() && !csts.cfs() && matches!(csts.shst(), ShutdownStatus::Normal)
    }

    /// Whether commands wait while firmware is activated. The notice goes out before.
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

    /// Lets the faults happen that wait for no command.
    #[inline]
    pub(super) fn follow_clock(&mut self, dma: &Dma<'_>) {
        let now = self.now;
        while let Some(kind) =
            self.injector.as_mut().and_then(|injector| Injector::clock(injector, now))
        {
            match kind {
                FaultKind::Remove => self.pull_out(dma),
                _ => self.registers.set_fatal(),
            }
        }
    }

    /// Follows what the host wrote to CC.
    pub(super) fn follow_cc(&mut self) {
        if self.life.must_disable {
            self.follow_disable();
        }
        let csts = self.registers.csts;
        // A reset that takes its time comes first, also when the host has not waited for it.
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

    /// Pulls the device out: it loses its power with it.
    pub fn remove(&mut self, memory: &dyn HostMemory) {
        let cmb = self.cmb().cloned();
        self.pull_out(&Dma { host: memory, cmb: cmb.as_deref() });
    }

    /// Whether it was pulled out, by hand or by a fault.
    pub fn is_removed(&self) -> bool {
        self.life.presence == Presence::Removed
    }

    pub(super) fn pull_out(&mut self, dma: &Dma<'_>) {
        let seed = self.cut_seed();
        self.lose_power(seed, dma);
        self.life.presence = Presence::Removed;
    }

    /// Cuts the power: registers read all ones until [`Controller::restore_power`]. Of what is in
    /// the write cache, and of commands in flight, `seed` decides which LBAs are there
    /// afterwards (`docs/faults.md` has the rules); what is durable is.
    pub fn cut_power(&mut self, memory: &dyn HostMemory, seed: u64) {
        let cmb: Option<Arc<Cmb>> = self.cmb().cloned();
        self.lose_power(seed, &Dma { host: memory, cmb: cmb.as_deref() });
    }

    /// A seed for a power cut that follows from the controller's and from how many there were.
    pub fn cut_seed(&self) -> u64 {
        Rng::stream(self.options.seed, self.statistics.power_cycles).next()
    }

    /// Gives the power back, or puts the device back in; it waits to be enabled.
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
        // A file that fails here has lost what a power cut may lose.
        let _ = self.media.cut(seed, tears, self.options.vwc_bytes > 0);
        self.start_over();
        self.features.forget_time();
        self.life = Life { presence: Presence::Unpowered, ..Life::default() };
    }

    /// Carries some of the commands in flight out, as far as the cache, from where the cut
    /// takes what it takes.
    fn write_in_flight(&mut self, seed: u64, dma: &Dma<'_>) {
        let mut rng = Rng::stream(seed, 0xf117);
        let mut left = self.take_in_flight(dma);
        self.is_losing_power = true;
        while !left.is_empty() {
            let command = left.swap_remove(rng.below(left.len() as u64) as usize);
            if rng.chance(1, 2) {
                // Nobody is there to be told how it ended.
                let _ = self.io(&command, dma);
            }
        }
        self.is_losing_power = false;
    }

    /// Takes the commands that would change data: those that wait, and those rung for.
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
        let qids = if self.is_running() { self.submission_ids.clone() } else { Vec::new() };
        for qid in qids.into_iter().filter(|qid| *qid != 0) {
            let mut entry = [0; 64];
            while let Ok(true) = self.fetch(qid, dma, &mut entry) {
                add(&entry, Qid(qid));
            }
        }
        found
    }

    /// Forgets queues, commands and what a controller reset puts back to its default.
    pub(super) fn drop_queues(&mut self) {
        self.submission.fill_with(|| None);
        self.completion.fill_with(|| None);
        self.submission_ids.clear();
        self.completion_ids.clear();
        self.doorbells.silence();
        self.shadow = None;
        self.held.clear();
        self.pending.take_all();
        self.events = Default::default();
        self.features.reset();
    }
}
