//! One run: a controller, its driver and everything that the checks know.
//!
//! The schedule is in [`crate::schedule`]; here is how each thing is done and what is checked when
//! it is done. A violation is a panic whose message begins with the law; [`crate::runner`]
//! catches it and knows the seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::spec::Nsid;
use adit_driver::{Completion, Controller, Namespace, QueuePair, RejectReason, Time};

use crate::arena::{Arena, Memory, gather, guards_hold, scatter};
use crate::bus::{Reach, Reached, SimBus, lock};
use crate::canary::Canary;
use crate::content::decode;
use crate::counts::Counts;
use crate::faults::{Fault, Plan};
use crate::model::{Model, Written};
use crate::outcome::{self, Ending};
use crate::random::Random;
use crate::requests::{Ask, Parcel, Pending, Run, differs, is_ordinary};
use crate::shape::Shape;
use crate::trace::Trace;

/// Admin commands that one call of the driver may wait for, at most.
const CALLS_MAX: u32 = 16;
/// What one call may spend on disabling, resetting and shutting down, at most.
const RESET_MAX: Duration = Duration::from_secs(60);
/// How often a request that the device was not told of may outlive its time: each time its queue is created anew.
const SPARED_MAX: u32 = 2;

/// A queue pair with its number.
pub(crate) struct Lane {
    pub(crate) id: u64,
    pub(crate) queue: QueuePair<Parcel>,
    /// Whether the controller was brought back since it was polled: the next poll creates it anew.
    is_stale: bool,
}

/// See the module.
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
    /// Copies in flight that take an LBA.
    pins: Vec<u16>,
    next_tag: u64,
    next_lane: u64,
    /// Whether the controller failed while nothing could stop it: what it has does not come back.
    is_stuck: bool,
    /// Whether queues were dropped, or not created, then: they keep what they have.
    has_leaked: bool,
    /// Whether the controller is not to be brought back: the system asked for it, or it was cut off.
    pub(crate) given_up: bool,
    /// Mappings that such a controller kept.
    kept: usize,
    scratch: Vec<u8>,
}

/// Ends the run: `law` is broken.
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
            given_up: false,
            kept: 0,
            scratch: Vec::new(),
        }
    }

    /// The present, as the driver is told.
    pub(crate) fn now(&self) -> Time {
        match self.canary {
            Some(Canary::FrozenTime) => Time::from_ns(1),
            _ => self.bus.now(),
        }
    }

    pub(crate) fn note(&mut self, numbers: &[u64], text: std::fmt::Arguments<'_>) {
        self.trace.note(numbers, text);
    }

    /// Runs a call of the driver and checks that it takes a bounded time (law 4).
    pub(crate) fn bounded<R>(&mut self, what: &str, call: impl FnOnce(&mut World) -> R) -> R {
        let before = self.bus.now();
        let result = call(self);
        let took = self.bus.now().since(before);
        let limit = self.shape.options.admin_timeout * CALLS_MAX + RESET_MAX;
        self.counts.call_ns_max = self.counts.call_ns_max.max(took.as_nanos() as u64);
        if took > limit {
            violated(4, format_args!("{what} took {took:?}, which is more than {limit:?}"));
        }
        result
    }

    /// What must hold after every step.
    pub(crate) fn check(&mut self) {
        // From a device that nothing stops, memory is unmapped all the same: then it cannot reach it.
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

    /// Makes a request on a lane; `false` if it could not be made or was not taken.
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

    /// Memory for a request, filled; `None` when a controller out of service gives none.
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

    /// The device was told of all that a lane has.
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

    /// What a caller does whose queue is full.
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
                // A namespace that Identify fails for has no LBAs, either.
                let may_be_away = [Fault::Detach, Fault::FailAdmin];
                matches!(ask, Ask::Beyond)
                    || may_be_away.into_iter().any(|fault| plan.has_struck(fault))
            }
            _ => false,
        };
        if !fits {
            violated(2, format_args!("{ask:?} was refused: {reason}"));
        }
    }

    fn check_layout(&self, tag: u64, layout: &[(u64, usize)], pieces: &[adit_driver::Buffer]) {
        let same = pieces.len() == layout.len()
            && pieces.iter().zip(layout).all(|(one, was)| (one.iova().0, one.len()) == *was);
        if !same {
            violated(3, format_args!("request {tag} gave back another buffer: {pieces:?}"));
        }
    }

    fn pin(&mut self, ask: &Ask, change: i16) {
        for lba in ask.pins().into_iter().flat_map(Run::iter) {
            let pins = &mut self.pins[lba as usize];
            *pins = pins.checked_add_signed(change).expect("pins are given back once");
        }
    }

    /// Polls a lane and takes in what finished.
    pub(crate) fn poll(&mut self, lane: usize) -> usize {
        let now = self.now();
        let in_service = self.in_service();
        let mut done = Vec::new();
        let finished = self.bounded("QueuePair::poll", |world| {
            world.lanes[lane].queue.poll(now, |completion| done.push(completion))
        });
        if finished != done.len() {
            violated(3, format_args!("poll counted {finished} and handed over {}", done.len()));
        }
        let id = self.lanes[lane].id;
        self.note(
            &[id, finished as u64],
            format_args!("queue {id}: polled at {now}, {finished} finished"),
        );
        self.spread_damage();
        for completion in done {
            self.finish(completion);
        }
        self.check_deadlines(lane, now);
        self.check_violations(lane, in_service);
        finished
    }

    pub(crate) fn in_service(&self) -> bool {
        self.controller.as_ref().is_some_and(|controller| controller.check().is_ok())
    }

    /// What a copy takes from a damaged LBA may be wrong where it puts it.
    fn spread_damage(&mut self) {
        let mut plan = lock(&self.plan);
        if !plan.has_damage() {
            return;
        }
        for pending in self.pending.values() {
            if let Ask::Copy { to, source, .. } = pending.ask {
                let damaged = source.iter().filter(|lba| plan.is_damaged(*lba));
                let onto: Vec<u64> = damaged.map(|lba| lba - source.first + to).collect();
                onto.into_iter().for_each(|lba| plan.damage(lba));
            }
        }
    }

    /// Law 4: once it was aborted, a request ends with the poll after the abort's time.
    fn check_deadlines(&mut self, lane: usize, now: Time) {
        if self.is_stuck() {
            return;
        }
        if std::mem::take(&mut self.lanes[lane].is_stale) {
            return self.sent_anew(self.lanes[lane].id);
        }
        let Lane { id, queue, .. } = &self.lanes[lane];
        let Shape { timeout, abort_timeout, .. } = self.shape;
        for pending in self.pending.values_mut().filter(|pending| pending.lane == *id) {
            match pending.late {
                Some(late)
                    if now >= late + abort_timeout
                        && !pending.rung
                        && pending.spared < SPARED_MAX =>
                {
                    pending.spared += 1;
                    pending.late = Some(now);
                }
                Some(late) if now >= late + abort_timeout => {
                    let Pending { tag, ask, at, .. } = pending;
                    let took = now.since(*at);
                    let stats = queue.stats();
                    violated(
                        4,
                        format_args!(
                            "request {tag} {ask:?} is in flight after {took:?}: {stats:?}"
                        ),
                    );
                }
                None if now >= pending.at + timeout => pending.late = Some(now),
                _ => {}
            }
        }
    }

    /// What the device was not told of before it came back is sent to the new queue, and late from then on.
    fn sent_anew(&mut self, id: u64) {
        for pending in self.pending.values_mut().filter(|pending| pending.lane == id) {
            (pending.rung, pending.late) = (true, None);
        }
    }

    /// Law 2: what breaks the protocol is noticed, and nothing else is taken for it.
    fn check_violations(&mut self, lane: usize, was_in_service: bool) {
        let in_service = was_in_service && self.in_service() && !self.bus.is_away();
        let Lane { id, queue, .. } = &self.lanes[lane];
        let seen = queue.stats().violations();
        let mut plan = lock(&self.plan);
        let made = plan.take_violations(queue.qid().0);
        if made > 0 && in_service {
            violated(2, format_args!("queue {id} goes on after {made} broken completions"));
        }
        if seen > 0 && plan.is_clean() {
            violated(2, format_args!("queue {id} takes honest completions for violations"));
        }
    }

    /// Holds a completion against the model.
    fn finish(&mut self, completion: Completion<Parcel>) {
        let (pieces, tag) = completion.buffer;
        let Some(mut pending) = self.pending.remove(&tag) else {
            violated(3, format_args!("request {tag} came back twice"));
        };
        self.note(
            &[tag, outcome::code(&completion.result)],
            format_args!("request {tag} ended: {}", outcome::text(&completion.result)),
        );
        self.check_layout(tag, &pending.layout, &pieces);
        self.bus.watch().forget_data(tag);
        self.pin(&pending.ask, -1);
        if self.canary == Some(Canary::Scribble)
            && let Some(guard) = pending.guards.first_mut()
        {
            guard[0] ^= 1;
        }
        if !guards_hold(&pending.guards) {
            violated(2, format_args!("memory beside the buffer of request {tag} was written"));
        }
        let result = completion.result;
        let ending = Ending::of(&result);
        self.counts.ended(&ending);
        let (clean, tainted) = {
            let plan = lock(&self.plan);
            (plan.is_clean(), plan.is_tainted())
        };
        if clean && !is_ordinary(&pending.ask, &result) {
            let text = outcome::text(&result);
            violated(2, format_args!("request {tag} failed and nothing was wrong: {text}"));
        }
        self.model.tick();
        self.wrote(&pending, ending, tainted);
        if !tainted {
            self.learn(&pending, ending, differs(&result), &pieces);
        }
    }

    /// Tells the model how the writing of a request ended.
    fn wrote(&mut self, pending: &Pending, ending: Ending, tainted: bool) {
        let is_write = matches!(pending.ask, Ask::Write(_));
        let durable = self.shape.soft.vwc_bytes == 0 || (pending.fua && is_write);
        let forgets = self.canary == Some(Canary::ForgetWrite) && is_write;
        let written = match ending {
            _ if tainted => Written::Maybe,
            Ending::Done if forgets => Written::No,
            Ending::Done => Written::Yes { durable },
            Ending::Failed | Ending::Ended { may_have_written: true } => Written::Maybe,
            Ending::Ended { may_have_written: false } => Written::No,
        };
        let oldest = self.pending.values().map(|other| other.began).min().unwrap_or(u64::MAX);
        for (lba, _) in pending.ask.writes(pending.tag) {
            let of = (pending.tag, pending.began, oldest);
            if let Err(what) = self.model.end(of, lba, written) {
                violated(1, what);
            }
        }
    }

    /// Takes in what a request tells of the medium.
    fn learn(
        &mut self,
        pending: &Pending,
        ending: Ending,
        differs: bool,
        pieces: &[adit_driver::Buffer],
    ) {
        match (&pending.ask, ending) {
            (Ask::Read(run), Ending::Done) => self.check_read(pending, *run, pieces),
            (Ask::Flush, Ending::Done) => self.model.flushed(pending.began),
            (Ask::Compare(run, values), Ending::Done) => {
                for (lba, value) in run.iter().zip(values) {
                    self.observe(pending, lba, *value);
                }
            }
            (Ask::Compare(run, values), _) if differs => {
                let may_differ = |(lba, value): (u64, &u64)| {
                    self.model.possible(pending.began, lba).iter().any(|other| other != value)
                };
                if !run.iter().zip(values).any(may_differ) && !self.may_lie() {
                    violated(1, format_args!("request {} differs from what is there", pending.tag));
                }
            }
            _ => {}
        }
    }

    /// Whether a status may be made up.
    fn may_lie(&self) -> bool {
        let plan = lock(&self.plan);
        let made_up = [Fault::FailIo, Fault::BadStatus];
        made_up.into_iter().any(|fault| plan.has_struck(fault)) || plan.has_damage()
    }

    fn check_read(&mut self, pending: &Pending, run: Run, pieces: &[adit_driver::Buffer]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        gather(pieces, &mut scratch);
        let lba_bytes = scratch.len() / run.lbas as usize;
        for (lba, bytes) in run.iter().zip(scratch.chunks_exact(lba_bytes)) {
            if lock(&self.plan).is_damaged(lba) {
                continue;
            }
            let Some(value) = decode(bytes) else {
                let start = &bytes[..16];
                violated(
                    1,
                    format_args!(
                        "request {} read LBA {lba} as no value: {start:x?} ...",
                        pending.tag
                    ),
                );
            };
            self.observe(pending, lba, value);
        }
        self.counts.lbas_checked += run.lbas;
        self.scratch = scratch;
    }

    fn observe(&mut self, pending: &Pending, lba: u64, value: u64) {
        if lock(&self.plan).is_damaged(lba) {
            return;
        }
        if let Err(what) = self.model.observe(pending.began, lba, value) {
            violated(1, format_args!("request {}: {what}", pending.tag));
        }
    }

    /// Whether requests may never come back: the controller could not be stopped.
    pub(crate) fn is_stuck(&mut self) -> bool {
        let out_of_service = self.controller.as_ref().is_some_and(|one| one.check().is_err());
        self.is_stuck |= out_of_service && self.bus.refuses_reset();
        self.has_leaked |= self.is_stuck;
        self.is_stuck
    }

    /// Polls a lane until nothing is in flight on it (law 4).
    pub(crate) fn drain(&mut self, lane: usize) {
        let started = self.bus.now();
        let limit = (self.shape.timeout + self.shape.abort_timeout + RESET_MAX) * (SPARED_MAX + 1);
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

    /// Creates a queue pair; `false` where faults or limits forbid it.
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

    /// Requests whose queue is gone: nobody will say how they ended.
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

    /// Drops all that the driver has, in some order, and checks that nothing is left (law 3).
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

    /// Opens the controller, perhaps while faults strike; in the end it is open.
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

    fn try_open(&mut self) -> bool {
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

    /// Brings a controller back that is out of service; `false` if that did not work.
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

    /// Whether nothing excuses a controller that cannot be brought back.
    pub(crate) fn is_recoverable(&self) -> bool {
        !self.given_up && !self.bus.is_cut_off()
    }

    /// Takes the device's power, perhaps by pulling it out: so goes what no Flush covered.
    pub(crate) fn take_power(&mut self, pulls_out: bool) {
        self.note(&[7, u64::from(pulls_out)], format_args!("power is lost"));
        self.bus.take_away(pulls_out);
        self.model.lose_power();
    }

    /// Ends all faults: what is wrong with the device is put right.
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
    }
}
