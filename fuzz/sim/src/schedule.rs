//! The schedule of a run: the next action, and the end.

use std::time::Duration;

use adit_driver::bus::BusEvent;
use adit_driver::bus::soft::Script;
use adit_driver::controller::Event;
use adit_driver::spec::Nsid;

use crate::bus::{Lie, lock};
use crate::canary::Canary;
use crate::faults::Fault;
use crate::requests::{Ask, Run};
use crate::world::{World, violated};

/// Registers that may lie, with the bits that they show as set: CSTS.CFS, CSTS gone, CAP with a long doorbell stride,
/// and CAP with large pages only. A controller that falsely reports being disabled is indistinguishable from a
/// disabled one.
const LIES: [(u32, u64); 4] = [(0x1c, 2), (0x1c, u32::MAX as u64), (0, 2 << 32), (0, 1 << 48)];
/// A temperature above every threshold and one below, in kelvin.
const HOT: u16 = 400;
const COOL: u16 = 310;
/// LBAs per request of the final reading.
const SWEEP: u64 = 8;

/// Faults that strike the device rather than a command.
const DEVICE_KINDS: [Fault; 16] = [
    Fault::Fatal,
    Fault::HangEnable,
    Fault::Slow,
    Fault::RefuseDisable,
    Fault::RefuseSubsystem,
    Fault::RefuseReset,
    Fault::Unplug,
    Fault::PowerCut,
    Fault::BusEvent,
    Fault::Lie,
    Fault::Detach,
    Fault::Resize,
    Fault::Firmware,
    Fault::Heat,
    Fault::Warning,
    Fault::DropAll,
];

impl World {
    /// Makes the whole run.
    pub(crate) fn run(&mut self) {
        self.open();
        self.create_lane();
        for _ in 0..self.shape.actions {
            self.trace.step();
            self.act();
            self.check();
        }
        self.trace.step();
        self.finish_run();
        self.check();
        self.counts.schedules = 1;
        self.counts.actions = self.shape.actions;
        self.counts.struck = lock(&self.plan).struck().to_vec();
    }

    fn act(&mut self) {
        if self.controller.is_none() {
            return self.open();
        }
        if self.lanes.is_empty() && self.random.one_in(3) {
            self.create_lane();
        }
        match self.random.below(100) {
            0..36 => self.act_submit(),
            36..56 => {
                let taken = self.bus.step() as u64;
                self.note(&[10, taken], format_args!("the controller takes {taken} commands"));
            }
            56..76 => self.with_lane(|world, lane| {
                world.poll(lane);
            }),
            76..80 => self.act_time(),
            80..82 => drop(self.bus.release_held()),
            82..85 => self.act_events(),
            85..87 => self.act_lanes(),
            87..90 => self.act_recover(),
            90..91 => self.act_canary(),
            _ => self.act_fault(),
        }
    }

    fn with_lane(&mut self, act: impl FnOnce(&mut World, usize)) {
        if !self.lanes.is_empty() {
            let lane = self.random.index(self.lanes.len());
            act(self, lane);
        }
    }

    fn act_submit(&mut self) {
        self.with_lane(|world, lane| {
            for _ in 0..world.random.between(1, 3) {
                let most = world.shape.lbas_max;
                let plan = std::sync::Arc::clone(&world.plan);
                let is_damaged = |lba| lock(&plan).is_damaged(lba);
                let ask = Ask::draw(&mut world.random, &world.model, most, is_damaged);
                let rings = world.random.chance(80);
                world.submit(lane, ask, rings);
            }
        });
    }

    fn act_time(&mut self) {
        let long = self.shape.swarm.has(Fault::Overdue) && self.random.one_in(3);
        let duration = if long {
            lock(&self.plan).strike(Fault::Overdue);
            self.shape.timeout + Duration::from_millis(self.random.below(3000))
        } else {
            Duration::from_micros(self.random.below(1000))
        };
        self.note(&[11], format_args!("{duration:?} pass"));
        self.bus.advance(duration);
    }

    fn act_events(&mut self) {
        let Some(controller) = self.controller.clone() else { return };
        let now = self.now();
        let event = self.bounded("Controller::poll", |_| controller.poll(now));
        self.given_up |= event == Some(Event::Bus(BusEvent::RemovalRequested));
        if let Some(Event::FirmwareActivation { until }) = event {
            self.firmware_until = self.firmware_until.max(until);
        }
        self.note(&[12, u64::from(event.is_some())], format_args!("event: {event:?}"));
    }

    fn act_lanes(&mut self) {
        if self.lanes.len() < self.shape.lanes_max {
            self.create_lane();
        } else {
            self.act_drop_lane();
        }
    }

    fn act_drop_lane(&mut self) {
        let busy = self.shape.swarm.has(Fault::DropQueue);
        self.with_lane(|world, lane| {
            let in_flight = world.lanes[lane].queue.in_flight();
            if busy && in_flight > 0 {
                lock(&world.plan).strike(Fault::DropQueue);
            } else if in_flight > 0 {
                world.drain(lane);
            }
            world.drop_lane(lane);
        });
    }

    /// Acts as a caller with a controller out of service: sooner or later recovers it, or opens it again.
    fn act_recover(&mut self) {
        if self.in_service() {
            return;
        }
        self.counts.failures += 1;
        if self.random.one_in(2) {
            for lane in 0..self.lanes.len() {
                self.drain(lane);
            }
        }
        if self.random.one_in(2) {
            self.heal();
            let must = self.is_recoverable();
            if !self.recover() && must {
                violated(2, "a healthy controller cannot be recovered");
            }
            lock(&self.plan).set_calm(false);
        } else if self.random.chance(60) {
            self.recover();
        } else {
            self.drop_all();
            self.open();
            self.create_lane();
        }
    }

    fn act_canary(&mut self) {
        match self.canary {
            Some(Canary::EarlyUnmap) => self.bus.unmap_early(),
            Some(Canary::Leak) => {
                if let Some(controller) = self.controller.clone()
                    && let Ok(memory) = self.arena.take(&mut self.random, &controller, 64)
                {
                    std::mem::forget(memory);
                }
            }
            _ => {}
        }
    }

    /// Causes one of the faults that strike the device.
    fn act_fault(&mut self) {
        let fault = self.random.pick(&DEVICE_KINDS);
        // Only a running controller activates firmware.
        let is_apt = fault != Fault::Firmware || self.bus.is_running();
        if !self.shape.swarm.has(fault) || !is_apt {
            return;
        }
        self.note(&[14, fault as u64], format_args!("fault: {fault:?}"));
        lock(&self.plan).strike(fault);
        match fault {
            Fault::Fatal => self.strike(|controller| controller.fail()),
            Fault::HangEnable => self.strike(|controller| controller.hang_enable(true)),
            Fault::Slow => {
                let [up, down] = [0; 2].map(|_| Duration::from_millis(self.random.below(2000)));
                self.strike(|controller| controller.set_delays(up, down));
            }
            Fault::RefuseDisable => self.strike(|controller| controller.refuse_disable(true)),
            Fault::RefuseSubsystem => {
                self.strike(|controller| controller.refuse_subsystem_reset(true));
            }
            Fault::RefuseReset => self.bus.refuse_reset(true),
            Fault::Unplug | Fault::PowerCut if self.bus.is_away() => self.bus.bring_back(),
            Fault::Unplug | Fault::PowerCut => self.take_power(fault == Fault::Unplug),
            Fault::BusEvent => {
                let events = [BusEvent::Error, BusEvent::RemovalRequested, BusEvent::Gone];
                self.bus.report(self.random.pick(&events));
            }
            Fault::Lie => {
                let (offset, sets) = self.random.pick(&LIES);
                let reads = self.random.between(1, 20) as u32;
                self.bus.lie(Some(Lie { offset, sets, reads }));
            }
            Fault::Detach => {
                let attached = self.random.one_in(2);
                self.strike(|controller| {
                    controller.attach_namespace(1, attached);
                });
            }
            Fault::Resize => {
                let lbas = self.random.between(1, self.shape.lbas);
                self.resize(lbas);
            }
            Fault::Firmware => {
                let duration = Duration::from_millis(1 << self.random.below(14));
                self.strike(|controller| controller.activate_firmware(duration));
                self.bus.step();
            }
            Fault::Warning => {
                let warnings = self.random.below(32) as u8;
                self.strike(|controller| controller.warn_critical(warnings));
            }
            Fault::Heat => {
                let kelvin = self.random.pick(&[HOT, COOL]);
                self.strike(|controller| controller.set_temperature(kelvin));
            }
            _ => self.drop_all(),
        }
    }

    fn strike(&mut self, fault: impl FnOnce(&mut Script<'_>)) {
        self.bus.soft.with_controller(fault);
    }

    /// Ends the run: drops everything, in order or not, and reads the medium once more.
    fn finish_run(&mut self) {
        let in_order = self.random.chance(60);
        if in_order {
            self.heal();
            for lane in 0..self.lanes.len() {
                self.drain(lane);
            }
            self.sweep();
        }
        let is_healthy = in_order && self.in_service();
        self.drop_all();
        // A controller that was shut down has flushed its cache.
        if is_healthy {
            let now = self.model.tick();
            self.model.flushed(now);
        }
        if self.random.one_in(if in_order { 4 } else { 2 }) {
            if self.random.one_in(2) {
                self.take_power(false);
            }
            self.sweep();
            self.drop_all();
        }
    }

    /// Reads every LBA from a healthy controller and checks it against the model (law 1).
    fn sweep(&mut self) {
        // An earlier fault may surface only now: then open the controller again, once.
        if self.try_sweep() {
            return;
        }
        self.drop_all();
        if !self.try_sweep() {
            violated(2, "a healthy controller does not read");
        }
    }

    fn try_sweep(&mut self) -> bool {
        self.heal();
        if self.controller.is_none() && !self.try_open() {
            return false;
        }
        let is_back = self.in_service() || (self.is_recoverable() && self.recover());
        if !is_back {
            return false;
        }
        // The namespace's data may date from a time when it was detached.
        self.namespace = self.controller.as_ref().and_then(|one| one.namespace(Nsid(1)).ok());
        if self.namespace.is_none() || (self.lanes.is_empty() && !self.create_lane()) {
            return false;
        }
        let failed = self.counts.failed + self.counts.ended[0];
        for first in (0..self.shape.lbas).step_by(SWEEP as usize) {
            let lbas = SWEEP.min(self.shape.lbas - first);
            if !self.submit(0, Ask::Read(Run { first, lbas }), true)
                && !self.read_singly(first, lbas)
            {
                return false;
            }
            self.drain(0);
        }
        // An unreadable LBA stays so until it is written.
        let unreadable = lock(&self.plan).has_struck(Fault::Media);
        unreadable || failed == self.counts.failed + self.counts.ended[0]
    }

    /// Reads one LBA at a time, for queues that are too small for more.
    fn read_singly(&mut self, first: u64, lbas: u64) -> bool {
        (first..first + lbas).all(|first| {
            let taken = self.submit(0, Ask::Read(Run { first, lbas: 1 }), true);
            self.drain(0);
            taken
        })
    }
}
