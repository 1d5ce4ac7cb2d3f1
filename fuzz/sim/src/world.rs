//! One run: a controller, its driver and the state of all checks.
//!
//! The schedule is in [`crate::schedule`]; this module carries out the actions and checks them. A violation is a
//! panic whose message begins with the law; [`crate::runner`] catches it and adds the seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::{Controller, Namespace, QueuePair, RejectReason, Time};

use crate::arena::{Arena, Memory, scatter};
use crate::bus::{Reach, Reached, SimBus, lock};
use crate::canary::Canary;
use crate::counts::Counts;
use crate::faults::{Fault, Plan};
use crate::model::Model;
use crate::random::Random;
use crate::requests::{Ask, Parcel, Pending, Run};
use crate::shape::Shape;
use crate::trace::Trace;

/// Maximum admin commands that one call of the driver may wait for.
const CALLS_MAX: u32 = 16;
/// Maximum time that one call may spend on disabling, resetting and shutting down.
const RESET_MAX: Duration = Duration::from_secs(60);
/// How long the driver waits for firmware once it sees the activation, if the controller does not say (its constant).
const ACTIVATION: Duration = Duration::from_secs(10);
/// How often a request that the device was not told of may exceed its timeout: each time its queue is created again.
pub(crate) const SPARED_MAX: u32 = 2;

/// A queue pair with its number.
pub(crate) struct Lane {
    pub(crate) id: u64,
    pub(crate) queue: QueuePair<Parcel>,
    /// Whether the controller was recovered since the last poll: the next poll recreates the queue.
    pub(crate) is_stale: bool,
}

/// The state of a run.
pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) shape: Shape,
    pub(crate) bus: Arc<SimBus>,
    pub(crate) plan: Arc<Mutex<Plan>>,
    pub(crate) canary: Option<Canary>,
    pub(crate) trace: Trace,
    pub(crate) counts: Counts,
    pub(crate) controller: Option<Controller>,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) model: Model,
    pub(crate) arena: Arena,
    /// The number of copies in flight that read each LBA.
    pins: Vec<u16>,
    next_tag: u64,
    pub(crate) next_lane: u64,
    /// Whether the controller failed and nothing could stop it: its memory does not come back.
    pub(crate) is_stuck: bool,
    /// Whether queues were dropped, or not created, in that state: they keep their memory.
    pub(crate) has_leaked: bool,
    /// Whether the last owner had to leave the device running: until it is stopped it may access addresses that are
    /// no longer mapped.
    pub(crate) was_left_running: bool,
    /// Whether the controller must not be recovered: the system requested it, or it was cut off.
    pub(crate) given_up: bool,
    /// Until when the driver may wait for firmware.
    pub(crate) firmware_until: Time,
    /// Current LBAs of the namespace.
    pub(crate) lbas_now: u64,
    /// Mappings that such a controller kept.
    pub(crate) kept: usize,
    pub(crate) scratch: Vec<u8>,
}

/// Ends the run, because `law` is broken.
#[track_caller]
pub(crate) fn violated(law: u8, what: impl std::fmt::Display) -> ! {
    panic!("law {law}: {what}")
}

impl World {
    pub(crate) fn new(seed: u64, canary: Option<Canary>, keeps_trace: bool) -> World {
        let mut random = Random::new(seed);
        let shape = Shape::draw(&mut random);
        let bus = SimBus::new(shape.soft.clone());
        bus.allow_cut_off(shape.can_cut_off);
        let plan = Plan::new(shape.swarm, shape.lbas, random.fork(), canary, bus.share());
        let judge = Arc::clone(&plan);
        bus.soft.with_controller(|controller| {
            controller.poll_shadow(shape.polls_shadow);
            controller.set_hook(move |sqe, qid| lock(&judge).judge(sqe, qid));
        });
        World {
            random,
            model: Model::new(shape.lbas as usize, shape.soft.vwc_bytes > 0),
            pins: vec![0; shape.lbas as usize],
            lbas_now: shape.lbas,
            shape,
            bus,
            plan,
            canary,
            trace: Trace::new(keeps_trace),
            counts: Counts::default(),
            controller: None,
            namespace: None,
            lanes: Vec::new(),
            pending: BTreeMap::new(),
            arena: Arena::default(),
            next_tag: 0,
            next_lane: 0,
            is_stuck: false,
            has_leaked: false,
            was_left_running: false,
            given_up: false,
            firmware_until: Time::ZERO,
            kept: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns the time that the driver sees.
    pub(crate) fn now(&self) -> Time {
        match self.canary {
            Some(Canary::FrozenTime) => Time::from_ns(1),
            _ => self.bus.now(),
        }
    }

    pub(crate) fn note(&mut self, numbers: &[u64], text: std::fmt::Arguments<'_>) {
        self.trace.note(numbers, text);
    }

    /// Runs a call of the driver and checks that it takes bounded time (law 4).
    pub(crate) fn bounded<R>(&mut self, what: &str, call: impl FnOnce(&mut World) -> R) -> R {
        let (before, was_pausing) = (self.bus.now(), self.bus.is_pausing());
        let result = call(self);
        let took = self.bus.now().since(before);
        if was_pausing {
            self.firmware_until = self.firmware_until.max(self.bus.now() + ACTIVATION);
        }
        let limit = (self.shape.options.admin_timeout + ACTIVATION) * CALLS_MAX + RESET_MAX;
        self.counts.call_ns_max = self.counts.call_ns_max.max(took.as_nanos() as u64);
        if took > limit {
            violated(4, format_args!("{what} took {took:?}, which is more than {limit:?}"));
        }
        result
    }

    /// Checks what must hold after every step.
    pub(crate) fn check(&mut self) {
        // Memory is unmapped even from a device that nothing stops: then it cannot access it.
        if self.is_stuck() || self.bus.refuses_reset() {
            self.bus.forgive_strays();
        }
        let tainted = lock(&self.plan).is_tainted();
        if let Some(offence) = self.bus.offence()
            && !tainted
        {
            violated(3, offence);
        }
        for lane in &self.lanes {
            let requests = self.pending.values().filter(|pending| pending.lane == lane.id).count();
            let commands = lane.queue.in_flight();
            if commands < requests || (requests == 0 && commands > 0) {
                let id = lane.id;
                violated(
                    3,
                    format_args!("queue {id} has {commands} commands for {requests} requests"),
                );
            }
        }
    }

    /// Makes a request on a lane; returns `false` if it could not be made or was rejected.
    pub(crate) fn submit(&mut self, lane: usize, ask: Ask, rings: bool) -> bool {
        let tag = self.next_tag;
        self.next_tag += 1;
        let writes = ask.writes(tag);
        let (Some(namespace), Some(controller)) = (self.namespace.clone(), self.controller.clone())
        else {
            return false;
        };
        if writes.iter().any(|(lba, _)| self.pins[*lba as usize] > 0) {
            return false;
        }
        let lba_bytes = u64::from(namespace.lba_bytes());
        let Some(memory) = self.memory(&controller, &ask, tag, lba_bytes) else { return false };
        let fua = self.random.chance(25);
        let layout: Vec<_> = memory.pieces.iter().map(|one| (one.iova().0, one.len())).collect();
        let (command, guards) = ask.command(&namespace, fua, (memory, tag));
        let now = self.now();
        let Lane { id, queue, .. } = &mut self.lanes[lane];
        let (id, qid) = (*id, queue.qid().0);
        let idle = queue.in_flight() == 0;
        let posted = if rings { queue.submit(now, command) } else { queue.post(now, command) };
        self.note(&[tag, id], format_args!("queue {id}: request {tag} {ask:?}, fua {fua}"));
        if let Err(rejected) = posted {
            let (pieces, _) = &rejected.buffer;
            self.check_layout(tag, &layout, pieces);
            let reason = rejected.reason;
            drop(rejected);
            self.refused(&ask, reason, idle);
            if reason == RejectReason::Full {
                self.make_room(lane);
            }
            return false;
        }
        self.counts.requests += 1;
        self.pin(&ask, 1);
        if rings {
            self.rung(id);
        }
        let mut watch = self.bus.watch();
        for (iova, len) in &layout {
            let what = Reached::Data(tag);
            watch.reach(Reach { qid, iova: *iova, len: *len as u64, what });
        }
        drop(watch);
        let began = self.model.tick();
        writes.iter().for_each(|(lba, value)| self.model.begin(tag, *lba, *value));
        let pending = Pending {
            tag,
            ask,
            fua,
            lane: id,
            began,
            at: now,
            late: None,
            rung: rings,
            spared: 0,
            layout,
            guards,
        };
        self.pending.insert(tag, pending);
        true
    }

    /// Returns filled memory for a request; `None` if a controller out of service gives none.
    fn memory(
        &mut self,
        controller: &Controller,
        ask: &Ask,
        tag: u64,
        lba_bytes: u64,
    ) -> Option<Memory> {
        let (bytes, list_bytes) = (ask.bytes(lba_bytes), ask.list_bytes());
        let memory = match (bytes, list_bytes) {
            (0, 0) => Ok(Memory::none()),
            (0, _) => self.arena.take_list(controller, list_bytes),
            _ => self.arena.take(&mut self.random, controller, bytes),
        };
        let mut memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                if controller.check().is_ok() {
                    violated(2, format_args!("a controller in service gives no memory: {error}"));
                }
                return None;
            }
        };
        if bytes > 0 {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.resize(bytes as usize, 0);
            ask.fill(tag, lba_bytes as usize, &mut scratch);
            scatter(&mut memory.pieces, &scratch);
            self.scratch = scratch;
        }
        Some(memory)
    }

    /// Records that the device was told of all requests of a lane.
    fn rung(&mut self, id: u64) {
        let here = self.pending.values_mut().filter(|pending| pending.lane == id);
        here.for_each(|pending| pending.rung = true);
    }

    pub(crate) fn ring(&mut self, lane: usize) {
        self.lanes[lane].queue.ring();
        // A queue that the controller does not know is not rung.
        if self.controller.as_ref().is_some_and(|controller| controller.check().is_ok()) {
            self.rung(self.lanes[lane].id);
        }
    }

    /// Acts as a caller with a full queue.
    fn make_room(&mut self, lane: usize) {
        self.ring(lane);
        self.bus.step();
        self.poll(lane);
    }

    fn refused(&mut self, ask: &Ask, reason: RejectReason, idle: bool) {
        self.counts.refused += 1;
        let fits = match reason {
            RejectReason::Full => !idle,
            RejectReason::TooLarge { .. } => true,
            RejectReason::OutOfRange { .. } => {
                let plan = lock(&self.plan);
                // A namespace whose Identify fails has no LBAs, either.
                let may_be_away = [Fault::Detach, Fault::Resize, Fault::FailAdmin];
                matches!(ask, Ask::Beyond)
                    || may_be_away.into_iter().any(|fault| plan.has_struck(fault))
            }
            _ => false,
        };
        if !fits {
            violated(2, format_args!("{ask:?} was refused: {reason}"));
        }
    }

    pub(crate) fn check_layout(
        &self,
        tag: u64,
        layout: &[(u64, usize)],
        pieces: &[adit_driver::Buffer],
    ) {
        let same = pieces.len() == layout.len()
            && pieces.iter().zip(layout).all(|(one, was)| (one.iova().0, one.len()) == *was);
        if !same {
            violated(3, format_args!("request {tag} gave back another buffer: {pieces:?}"));
        }
    }

    pub(crate) fn pin(&mut self, ask: &Ask, change: i16) {
        for lba in ask.pins().into_iter().flat_map(Run::iter) {
            let pins = &mut self.pins[lba as usize];
            *pins = pins.checked_add_signed(change).expect("pins are given back once");
        }
    }

    /// Returns whether requests may never come back, because the controller could not be stopped.
    pub(crate) fn is_stuck(&mut self) -> bool {
        let out_of_service = self.controller.as_ref().is_some_and(|one| one.check().is_err());
        self.is_stuck |= out_of_service && self.bus.refuses_reset();
        self.has_leaked |= self.is_stuck;
        self.is_stuck
    }

    /// Polls a lane until nothing is in flight on it (law 4).
    pub(crate) fn drain(&mut self, lane: usize) {
        let started = self.bus.now();
        let limit = (self.shape.timeout + self.shape.abort_timeout + RESET_MAX) * (SPARED_MAX + 1)
            + ACTIVATION;
        let id = self.lanes[lane].id;
        while self.pending.values().any(|pending| pending.lane == id) && !self.is_stuck() {
            self.ring(lane);
            self.poll(lane);
            let took = self.bus.now().since(started);
            if took > limit {
                violated(4, format_args!("queue {id} is not idle after {took:?}"));
            }
            self.bus.pause(Duration::from_millis(1));
        }
    }
}
