//! Queue pairs and controllers: created, dropped, opened, recovered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::Controller;
use adit_driver::bus::Bus;
use adit_driver::spec::Nsid;

use crate::bus::{SimBus, lock};
use crate::faults::Fault;
use crate::outcome::Ending;
use crate::requests::{Ask, Pending};
use crate::world::{Lane, World, violated};

impl World {
    /// Creates a queue pair; returns `false` if faults or limits prevent it.
    pub(crate) fn create_lane(&mut self) -> bool {
        let Some(controller) = self.controller.clone() else { return false };
        let options = self.shape.queue(&mut self.random);
        let depth = options.depth;
        let made = self.bounded("create_queue_pair", |_| controller.create_queue_pair(options));
        match made {
            Ok(queue) => {
                let id = self.next_lane;
                self.next_lane += 1;
                let qid = u64::from(queue.qid().0);
                self.note(
                    &[id, qid],
                    format_args!("queue {id} of {depth} entries created as {qid}"),
                );
                self.lanes.push(Lane { id, queue, is_stale: false });
                true
            }
            Err(error) => {
                self.note(&[1], format_args!("no queue: {error}"));
                if lock(&self.plan).is_clean() && self.shape.soft.cmb_bytes == 0 {
                    violated(2, format_args!("no queue, and nothing was wrong: {error}"));
                }
                false
            }
        }
    }

    /// Drops a queue pair, with whatever is in flight on it.
    pub(crate) fn drop_lane(&mut self, lane: usize) {
        let Lane { id, queue, .. } = self.lanes.swap_remove(lane);
        let in_flight = queue.in_flight();
        self.note(&[id], format_args!("queue {id} dropped with {in_flight} commands in flight"));
        let qid = queue.qid().0;
        self.bounded("dropping a queue pair", |_| drop(queue));
        self.has_leaked |= self.bus.refuses_reset();
        lock(&self.plan).take_violations(qid);
        self.swallow(|pending| pending.lane == id);
    }

    /// Ends requests whose queue is gone, with unknown results.
    fn swallow(&mut self, is_gone: impl Fn(&Pending) -> bool) {
        self.model.tick();
        self.spread_damage();
        let (over, pending): (BTreeMap<u64, Pending>, _) =
            std::mem::take(&mut self.pending).into_iter().partition(|(_, one)| is_gone(one));
        self.pending = pending;
        for (tag, pending) in over {
            self.counts.swallowed += 1;
            self.bus.watch().forget_data(tag);
            self.pin(&pending.ask, -1);
            self.wrote(&pending, Ending::Failed, false);
        }
    }

    /// Drops everything the driver holds, in some order, and checks that nothing is left (law 3).
    pub(crate) fn drop_all(&mut self) {
        self.note(&[2], format_args!("everything is dropped"));
        let handles_first = self.random.one_in(2);
        let memory_first = self.random.one_in(2);
        if memory_first {
            self.arena.clear();
        }
        let may_keep = self.is_stuck() || self.bus.refuses_reset() || self.has_leaked;
        if handles_first {
            self.drop_handles();
        }
        while !self.lanes.is_empty() {
            let lane = self.random.index(self.lanes.len());
            self.drop_lane(lane);
        }
        self.drop_handles();
        self.arena.clear();
        self.bus.settle();
        self.bus.release_held();
        let mapped = self.bus.mapped();
        if may_keep {
            self.counts.stuck += u64::from(mapped > self.kept);
            self.kept = mapped;
            (self.is_stuck, self.has_leaked) = (false, false);
            self.was_left_running = true;
            self.bus.forgive_strays();
        } else if mapped != self.kept {
            violated(3, format_args!("{mapped} mappings are left of {} allowed", self.kept));
        }
        self.check();
    }

    fn drop_handles(&mut self) {
        let handles = (self.namespace.take(), self.controller.take());
        self.bounded("dropping a controller", |_| drop(handles));
    }

    /// Opens the controller, perhaps while faults strike; it is open afterwards.
    pub(crate) fn open(&mut self) {
        let amidst = self.shape.swarm.has(Fault::OpenAmidst) && self.random.one_in(2);
        if amidst {
            lock(&self.plan).set_calm(false);
            if self.try_open() {
                return;
            }
            lock(&self.plan).strike(Fault::OpenAmidst);
        }
        self.heal();
        if !self.try_open() {
            violated(2, "a healthy controller cannot be opened");
        }
        lock(&self.plan).set_calm(false);
    }

    pub(crate) fn try_open(&mut self) -> bool {
        lock(&self.plan).forget_violations();
        self.bus.allow_cut_off(self.shape.can_cut_off);
        self.given_up = false;
        let bus: Arc<dyn Bus> = Arc::<SimBus>::clone(&self.bus);
        let options = self.shape.options.clone();
        let opened = self.bounded("opening the controller", |_| {
            let controller = Controller::attach(bus, &options)?;
            let namespace = controller.namespace(Nsid(1))?;
            Ok::<_, adit_driver::Error>((controller, namespace))
        });
        if std::mem::take(&mut self.was_left_running) {
            // It kept running until it was opened.
            self.bus.forgive_strays();
        }
        match opened {
            Ok((controller, namespace)) => {
                self.counts.opened += 1;
                self.note(&[3], format_args!("opened"));
                (self.controller, self.namespace) = (Some(controller), Some(namespace));
                true
            }
            Err(error) => {
                self.note(&[4], format_args!("not opened: {error}"));
                self.drop_all();
                false
            }
        }
    }

    /// Recovers a controller that is out of service; returns `false` if that failed.
    pub(crate) fn recover(&mut self) -> bool {
        let Some(controller) = self.controller.clone() else { return false };
        lock(&self.plan).forget_violations();
        let recovered = self.bounded("recover", |_| controller.recover());
        self.note(
            &[6, u64::from(recovered.is_ok())],
            format_args!(
                "recover: {}",
                recovered.as_ref().map_or_else(|why| why.to_string(), |()| "done".to_owned())
            ),
        );
        match recovered {
            Ok(()) => {
                self.counts.recovered += 1;
                self.is_stuck = false;
                self.lanes.iter_mut().for_each(|lane| lane.is_stale = true);
                true
            }
            Err(_) => false,
        }
    }

    /// Returns whether a controller must be recoverable.
    pub(crate) fn is_recoverable(&self) -> bool {
        // If CAP lied when it was opened, it now looks like another device.
        let lied = lock(&self.plan).has_struck(Fault::Lie);
        !self.given_up && !self.bus.is_cut_off() && !lied
    }

    /// Cuts the device's power, perhaps by unplugging it: data that no Flush covered is lost.
    pub(crate) fn take_power(&mut self, pulls_out: bool) {
        self.note(&[7, u64::from(pulls_out)], format_args!("power is lost"));
        self.bus.take_away(pulls_out);
        self.model.lose_power();
        // A copy that was never rung is sent later, and copies what the power loss left.
        let mut plan = lock(&self.plan);
        for (lba, _) in self.copies().flat_map(|pending| pending.ask.writes(pending.tag)) {
            plan.damage(lba);
        }
    }

    fn copies(&self) -> impl Iterator<Item = &Pending> {
        self.pending.values().filter(|pending| matches!(pending.ask, Ask::Copy { .. }))
    }

    /// Resizes the namespace: removed LBAs are gone, new ones read as zeros.
    pub(crate) fn resize(&mut self, lbas: u64) {
        let resized =
            self.bus.soft.with_controller(|controller| controller.resize_namespace(1, lbas));
        self.note(&[8, lbas], format_args!("the namespace has {lbas} LBAs: {resized:?}"));
        if let Err(error) = resized {
            violated(2, format_args!("the namespace cannot be resized: {error}"));
        }
        self.model.tick();
        let (from, to) = (lbas.min(self.lbas_now), lbas.max(self.lbas_now));
        (from..to).for_each(|lba| self.model.erase(lba));
        self.lbas_now = lbas;
        let mut plan = lock(&self.plan);
        plan.set_lbas(lbas);
        for (lba, _) in self.copies().flat_map(|pending| pending.ask.writes(pending.tag)) {
            plan.damage(lba);
        }
    }

    /// Ends all faults and repairs the device.
    pub(crate) fn heal(&mut self) {
        self.note(&[5], format_args!("all faults end"));
        lock(&self.plan).set_calm(true);
        self.bus.refuse_reset(false);
        self.bus.lie(None);
        if self.bus.is_away() {
            self.bus.bring_back();
        }
        self.bus.soft.with_controller(|controller| {
            controller.refuse_disable(false);
            controller.refuse_subsystem_reset(false);
            controller.hang_enable(false);
            controller.set_delays(Duration::ZERO, Duration::ZERO);
            controller.attach_namespace(1, true);
        });
        if self.lbas_now < self.shape.lbas {
            self.resize(self.shape.lbas);
        }
        self.bus.step();
        // A controller that failed meanwhile pauses forever; opening it resets it.
        while self.bus.is_pausing() && self.bus.is_running() {
            self.bus.advance(Duration::from_secs(1));
            self.bus.step();
        }
    }
}
