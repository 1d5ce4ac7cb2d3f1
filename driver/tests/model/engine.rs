//! Keeps the queues of a scenario busy and checks results against the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use adit_driver::bus::Bus;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::soft::Options;
use adit_driver::spec::{CopyRange, DsmRange, Lba, LbaCount, Nsid};
use adit_driver::transfer::SglSupport;
use adit_driver::{
    Buffer, Command, Completion, Controller, ControllerOptions, Namespace, QueuePair, RejectReason,
};

use crate::memory::{Arena, Carrier, Memory, Shape, gather, guards_hold, scatter};
use crate::operation::{Bad, Operation, Run};
use crate::random::Random;
use crate::scenario::Scenario;

/// Rounds after which a queue that does not drain is stuck.
const ROUNDS_MAX: u32 = 10_000;

/// A namespace and its model.
struct Space {
    namespace: Namespace,
    model: Vec<u8>,
}

/// A queue pair and the expected values of its counters.
struct Lane<B: Carrier> {
    queue: QueuePair<(B, u64)>,
    /// Commands other than transfers.
    raw: u64,
    /// Fewest commands that the transfers can have become.
    transfers_min: u64,
    /// Whether a transfer was posted that PRPs may not express.
    may_bounce: bool,
    /// Bounced commands when it was last `false`.
    bounced_before: u64,
    /// Requests of three kinds that fit at once, measured on the fresh queue.
    room: [usize; 3],
}

#[derive(Debug)]
struct Pending {
    space: usize,
    operation: Operation,
    /// Content of the buffer at post.
    data: Vec<u8>,
    /// The pieces of the buffer by address and length.
    layout: Vec<(u64, usize)>,
    guards: Vec<Buffer>,
}

struct Draft<'n, B> {
    command: Command<'n, (B, u64)>,
    pending: Pending,
    is_raw: bool,
    shape: Shape,
}

/// Coverage of a run, to check that runs are not idle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    pub(crate) sgl: u64,
    pub(crate) prebuilt: u64,
    pub(crate) built: u64,
    pub(crate) bounced: u64,
    /// Refusals because too much was in flight, and because the request was too large.
    pub(crate) full: u64,
    pub(crate) too_large: u64,
    /// Commands that failed as expected.
    pub(crate) failed: u64,
    pub(crate) in_flight_max: usize,
}

impl Reached {
    pub(crate) fn add(&mut self, other: Reached) {
        self.sgl += other.sgl;
        self.prebuilt += other.prebuilt;
        self.built += other.built;
        self.bounced += other.bounced;
        self.full += other.full;
        self.too_large += other.too_large;
        self.failed += other.failed;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
    }
}

/// One run: the scenario, its queues and the models of their namespaces.
pub(crate) struct Engine<B: Carrier> {
    scenario: Scenario,
    random: Random,
    bus: Arc<SoftBus>,
    lanes: Vec<Lane<B>>,
    spaces: Vec<Space>,
    pending: BTreeMap<u64, Pending>,
    next_tag: u64,
    arena: Arena,
    /// Memory of a different controller.
    foreign: Arena,
    sgl: SglSupport,
    reached: Reached,
}

fn open(soft: Options, options: &ControllerOptions, polls: bool) -> (Arc<SoftBus>, Controller) {
    let bus = SoftBus::new(soft, Drive::Manual).expect("bus");
    bus.with_controller(|controller| controller.poll_shadow(polls));
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), options).expect("controller");
    (bus, controller)
}

fn layout(pieces: &[Buffer]) -> Vec<(u64, usize)> {
    pieces.iter().map(|piece| (piece.iova().0, piece.len())).collect()
}

impl<B: Carrier> Engine<B> {
    pub(crate) fn new(scenario: Scenario, mut random: Random) -> Engine<B> {
        let (bus, controller) =
            open(scenario.soft.clone(), &scenario.controller, scenario.polls_shadow);
        let lanes = scenario.queues.iter().map(|shape| {
            let queue = controller.create_queue_pair(shape.options()).expect("queue pair");
            Lane {
                queue,
                raw: 0,
                transfers_min: 0,
                may_bounce: false,
                bounced_before: 0,
                room: [0; 3],
            }
        });
        let lanes = lanes.collect();
        let spaces = (1..=scenario.soft.namespace_count).map(|nsid| {
            let namespace = controller.namespace(Nsid(nsid)).expect("namespace");
            let model = vec![0; namespace.bytes() as usize];
            Space { namespace, model }
        });
        let spaces = spaces.collect();
        let (_, other) = open(Options::memory(1 << 20), &ControllerOptions::default(), true);
        Engine {
            arena: Arena::new(&mut random, &controller),
            foreign: Arena::new(&mut random, &other),
            sgl: controller.info().sgl,
            scenario,
            random,
            bus,
            lanes,
            spaces,
            pending: BTreeMap::new(),
            next_tag: 0,
            reached: Reached::default(),
        }
    }

    pub(crate) fn run(mut self, lies: bool) -> Reached {
        self.measure_room(|lane, room| {
            lane.room = room;
            lane.may_bounce = false;
            lane.bounced_before = lane.queue.stats().bounced_commands;
        });
        self.fill();
        self.reached = Reached::default();
        for _ in 0..self.scenario.operations {
            self.advance();
        }
        self.drain();
        let reached = self.check_counters();
        if lies {
            let space = &mut self.spaces[0].model;
            let at = self.random.below(space.len() as u64) as usize;
            space[at] ^= 0x10;
        }
        self.compare_media();
        self.measure_room(|lane, room| {
            assert_eq!(lane.room, room, "something is never given back")
        });
        self.close();
        reached
    }

    fn fill(&mut self) {
        self.sweep(|run| Operation::Write { run, fua: false });
    }

    /// Compares every namespace; if there is a media file, compares it too, without the driver.
    fn compare_media(&mut self) {
        if let Some(file) = &self.scenario.file {
            let media = std::fs::read(&file.0).expect("the media's file");
            let mut rest = &media[..];
            for (index, space) in self.spaces.iter().enumerate() {
                let (here, later) = rest.split_at(space.model.len());
                assert!(
                    here == space.model,
                    "file: namespace {} differs from the model",
                    index + 1
                );
                rest = later;
            }
        }
        self.sweep(Operation::Read);
    }

    /// Applies one operation to each run of LBAs, one after another.
    fn sweep(&mut self, operation: impl Fn(Run) -> Operation) {
        for index in 0..self.spaces.len() {
            let namespace = &self.spaces[index].namespace;
            let lbas = namespace.lba_count();
            let step = namespace.limits().max_bytes.min(64 << 10) / namespace.limits().lba_bytes();
            let mut first = 0;
            while first < lbas {
                // Stops at the boundary, so that one command suffices, which even the smallest queue takes.
                let room = lbas_to_boundary(&self.spaces[index].namespace, first);
                let run = Run { first, lbas: step.min(lbas - first).min(room) };
                let lane = self.random.below(self.lanes.len() as u64) as usize;
                self.post(lane, index, operation(run), Some(Shape::Page));
                self.drain();
                first = run.first + run.lbas;
            }
        }
    }

    /// Makes one move of the schedule.
    fn advance(&mut self) {
        let lane = self.random.below(self.lanes.len() as u64) as usize;
        for _ in 0..self.random.between(1, 6) {
            let space = self.random.below(self.spaces.len() as u64) as usize;
            let bytes_max = self.scenario.bytes_max;
            let namespace = &self.spaces[space].namespace;
            let operation = Operation::pick(&mut self.random, namespace, bytes_max);
            let in_flight = || self.pending.values().filter(|pending| pending.space == space);
            if !operation.is_ambiguous()
                && !in_flight().any(|pending| pending.operation.conflicts(&operation))
            {
                self.post(lane, space, operation, None);
            }
        }
        if self.random.chance(80) {
            self.lanes[lane].queue.ring();
        }
        for _ in 0..self.random.below(3) {
            self.bus.step();
        }
        if self.random.chance(70) {
            let lane = self.random.below(self.lanes.len() as u64) as usize;
            self.poll(lane);
        }
    }

    fn drain(&mut self) {
        for _ in 0..ROUNDS_MAX {
            for lane in 0..self.lanes.len() {
                self.lanes[lane].queue.ring();
                self.poll(lane);
            }
            if self.lanes.iter().all(|lane| lane.queue.in_flight() == 0) {
                assert!(self.pending.is_empty(), "lost: {:?}", self.pending);
                return;
            }
            self.bus.step();
        }
        panic!("in flight for ever: {:?}", self.pending);
    }

    fn poll(&mut self, lane: usize) {
        let mut done = Vec::new();
        let finished = self.lanes[lane].queue.poll(self.bus.now(), |over| done.push(over));
        assert_eq!(finished, done.len(), "poll counts what it hands over");
        for completion in done {
            self.finish(completion);
        }
    }

    /// Checks a completion against the model and applies the command to the model.
    fn finish(&mut self, completion: Completion<(B, u64)>) {
        let (carrier, tag) = completion.buffer;
        let pieces = carrier.unwrap();
        let pending = self.pending.remove(&tag).expect("a completion for what is in flight");
        let Pending { space, operation, data, .. } = &pending;
        let outcome = completion.result.map(|_| ());
        assert_eq!(outcome.map_err(without_flags), operation.outcome(), "{operation:?}");
        assert_eq!(layout(&pieces), pending.layout, "{operation:?}: another buffer came back");
        assert!(guards_hold(&pending.guards), "{operation:?}: written beside the buffer");
        let space = &mut self.spaces[*space];
        let lba_bytes = u64::from(space.namespace.lba_bytes());
        let now = gather(&pieces);
        if let Operation::Read(run) = operation {
            let from = (run.first * lba_bytes) as usize;
            let medium = &space.model[from..from + now.len()];
            assert!(now == medium, "{operation:?} of {pieces:?} differs from the model");
        } else {
            assert!(now == *data, "{operation:?}: changed the host's data");
        }
        self.reached.failed += u64::from(outcome.is_err());
        if outcome.is_ok() {
            operation.apply(&mut space.model, lba_bytes, data);
        }
    }

    /// Posts a request; a refusal must have a valid reason and return the request whole.
    fn post(&mut self, lane: usize, space: usize, operation: Operation, shape: Option<Shape>) {
        let namespace = self.spaces[space].namespace.clone();
        let memory = self.memory_for(&operation, space, shape);
        let tag = self.next_tag;
        self.next_tag += 1;
        let draft = draft::<B>(&namespace, space, operation, memory, tag);
        let Draft { command, pending, is_raw, shape } = draft;
        let lane = &mut self.lanes[lane];
        let idle = lane.queue.in_flight() == 0;
        match lane.queue.post(self.bus.now(), command) {
            Ok(_) => {
                lane.raw += u64::from(is_raw);
                lane.transfers_min += pieces_min(&namespace, &pending.operation);
                lane.may_bounce |= !shape.suits_prp();
                self.pending.insert(tag, pending);
                let reached = &mut self.reached.in_flight_max;
                *reached = self.pending.len().max(*reached);
            }
            Err(rejected) => {
                let pieces = rejected.buffer.0.unwrap();
                self.reached.full += u64::from(rejected.reason == RejectReason::Full);
                self.reached.too_large +=
                    u64::from(matches!(rejected.reason, RejectReason::TooLarge { .. }));
                check_refusal(rejected.reason, &pending.operation, idle);
                assert_eq!(layout(&pieces), pending.layout, "another buffer was given back");
                assert!(gather(&pieces) == pending.data, "a refusal changed the data");
                assert!(guards_hold(&pending.guards), "a refusal wrote beside the buffer");
            }
        }
    }

    /// Returns the memory a request needs, filled.
    fn memory_for(&mut self, operation: &Operation, space: usize, shape: Option<Shape>) -> Memory {
        let lba_bytes = u64::from(self.spaces[space].namespace.lba_bytes());
        let Engine { random, arena, foreign, .. } = self;
        let any = shape.unwrap_or_else(|| Shape::pick(random, B::SCATTERS));
        let mut memory = match operation {
            Operation::Read(run)
            | Operation::Write { run, .. }
            | Operation::Compare { run, .. } => arena.take(random, any, run.lbas * lba_bytes),
            // Sometimes more than the ranges need: the controller's length counts.
            Operation::Deallocate(runs) => {
                let slack = random.pick(&[0, 16, 5000, 9000]);
                arena.take(random, Shape::Dword, runs.len() as u64 * 16 + slack)
            }
            Operation::Copy { sources, .. } => {
                let slack = random.pick(&[0, 32, 5000, 9000]);
                arena.take(random, Shape::Dword, sources.len() as u64 * 32 + slack)
            }
            Operation::Bad(Bad::PastEnd) => arena.take(random, any, lba_bytes * 3),
            Operation::Bad(Bad::PartialLba) => arena.take(random, any, lba_bytes + 4),
            Operation::Bad(Bad::Foreign) => foreign.take(random, any, lba_bytes),
            Operation::Bad(Bad::Scattered) => arena.take(random, Shape::Odd, 64),
            _ => Memory { pieces: Vec::new(), guards: Vec::new(), shape: any },
        };
        let data = self.data_for(operation, space, &memory);
        scatter(&mut memory.pieces, &data);
        memory
    }

    fn data_for(&mut self, operation: &Operation, space: usize, memory: &Memory) -> Vec<u8> {
        let Space { namespace, model } = &self.spaces[space];
        let mut data = vec![0x5a; memory.pieces.iter().map(|piece| piece.len()).sum()];
        match operation {
            Operation::Compare { run, differs } => {
                let from = (run.first * u64::from(namespace.lba_bytes())) as usize;
                let len = data.len();
                data.copy_from_slice(&model[from..from + len]);
                if *differs {
                    let at = self.random.below(data.len() as u64) as usize;
                    data[at] ^= 1 << self.random.below(8);
                }
            }
            Operation::Read(_) => {}
            _ => self.random.fill(&mut data),
        }
        data
    }

    /// Measures how many requests of each kind every queue takes at once: plain, with lists, bounced.
    fn measure_room(&mut self, mut report: impl FnMut(&mut Lane<B>, [usize; 3])) {
        for lane in 0..self.lanes.len() {
            let room = [Shape::Page, Shape::Pages, Shape::Odd].map(|shape| {
                let mut count = 0;
                while self.fits_one_more(lane, shape) {
                    count += 1;
                }
                self.drain();
                count
            });
            let capacity = self.lanes[lane].queue.capacity();
            assert_eq!(room[0], capacity, "as many as the queue has room for");
            report(&mut self.lanes[lane], room);
        }
    }

    /// Posts a read of at most 16 KiB (one command) in `shape`, always cut in the same way.
    fn fits_one_more(&mut self, lane: usize, shape: Shape) -> bool {
        let namespace = &self.spaces[0].namespace;
        let lba_bytes = namespace.limits().lba_bytes();
        let room = lbas_to_boundary(namespace, 0);
        let lbas = (namespace.limits().max_bytes.min(16 << 10) / lba_bytes).min(room);
        let shape = if shape == Shape::Pages && !B::SCATTERS { Shape::Page } else { shape };
        let before = self.pending.len();
        let saved = std::mem::replace(&mut self.random, Random::new(1));
        self.post(lane, 0, Operation::Read(Run { first: 0, lbas }), Some(shape));
        self.random = saved;
        self.pending.len() > before
    }

    /// Checks the counters against the requests, and returns them.
    fn check_counters(&self) -> Reached {
        let mut reached = self.reached;
        assert_eq!(self.bus.dma_faults(), 0, "the controller was sent to unmapped memory");
        for lane in &self.lanes {
            let stats = lane.queue.stats();
            let transfers = stats.submitted - lane.raw;
            assert_eq!(stats.violations(), 0, "{stats:?}");
            assert_eq!((stats.aborts, stats.bounced_commands > stats.submitted), (0, false));
            assert!(transfers >= lane.transfers_min, "{stats:?}, not {}", lane.transfers_min);
            match self.sgl {
                SglSupport::None => assert_eq!(stats.sgl_commands, 0, "{stats:?}"),
                SglSupport::Byte => assert_eq!(stats.sgl_commands, transfers, "{stats:?}"),
                SglSupport::Dword => assert!(stats.sgl_commands <= transfers, "{stats:?}"),
            }
            if !lane.may_bounce || self.sgl == SglSupport::Byte {
                assert_eq!(stats.bounced_commands, lane.bounced_before, "{stats:?}");
            }
            assert!(stats.submission_rings <= stats.submitted, "{stats:?}");
            reached.sgl += stats.sgl_commands;
            reached.prebuilt += stats.prebuilt_lists;
            reached.built += stats.built_lists;
            reached.bounced += stats.bounced_commands - lane.bounced_before;
        }
        reached
    }

    /// Closes everything and checks that the device has nothing left mapped.
    fn close(self) {
        let bus = Arc::clone(&self.bus);
        drop(self);
        assert_eq!(bus.mapped_bytes(), 0, "all memory was unmapped");
    }
}

/// Returns the LBAs from `first` to the next boundary.
fn lbas_to_boundary(namespace: &Namespace, first: u64) -> u64 {
    namespace.limits().to_boundary_bytes(first) / namespace.limits().lba_bytes()
}

/// Returns the fewest commands for a transfer: none crosses a boundary or exceeds the limit.
fn pieces_min(namespace: &Namespace, operation: &Operation) -> u64 {
    let (Operation::Read(run) | Operation::Write { run, .. } | Operation::Compare { run, .. }) =
        operation
    else {
        return 0;
    };
    let limits = namespace.limits();
    let lbas_max = limits.max_bytes / limits.lba_bytes();
    let (mut first, end, mut pieces) = (run.first, run.first + run.lbas, 0);
    while first < end {
        let boundary = u64::from(limits.boundary_lbas);
        let next = first.checked_div(boundary).map_or(end, |interval| (interval + 1) * boundary);
        pieces += (next.min(end) - first).div_ceil(lbas_max);
        first = next;
    }
    pieces
}

/// Drops the retry flags of a failure.
fn without_flags(error: adit_driver::CommandError) -> adit_driver::CommandError {
    match error {
        adit_driver::CommandError::Status(status) => {
            adit_driver::CommandError::Status(status.code())
        }
        reset => reset,
    }
}

/// Checks that a refusal has a fitting reason.
fn check_refusal(reason: RejectReason, operation: &Operation, idle: bool) {
    match reason {
        RejectReason::Full => assert!(!idle, "{operation:?}: an idle queue is not full"),
        RejectReason::TooLarge { needs, has, .. } => {
            assert!(needs > has, "{operation:?}: {reason}")
        }
        _ => match operation {
            Operation::Bad(bad) => assert!(bad.explains(reason), "{bad:?}: {reason}"),
            _ => panic!("{operation:?} was refused: {reason}"),
        },
    }
}

/// Builds the command for an operation, and what to remember of it.
fn draft<B: Carrier>(
    namespace: &Namespace,
    space: usize,
    operation: Operation,
    memory: Memory,
    tag: u64,
) -> Draft<'_, B> {
    let Memory { pieces, guards, shape } = memory;
    let layout = layout(&pieces);
    let mut data = Vec::new();
    let mut carry = |pieces: Vec<Buffer>| {
        data = gather(&pieces);
        (B::wrap(pieces), tag)
    };
    let end = Lba(namespace.lba_count() - 1);
    let (command, is_raw) = match &operation {
        Operation::Read(run) => (namespace.read(Lba(run.first), carry(pieces)), false),
        Operation::Write { run, fua } => {
            let write = namespace.write(Lba(run.first), carry(pieces));
            (if *fua { write.fua() } else { write }, false)
        }
        Operation::Compare { run, .. } => (namespace.compare(Lba(run.first), carry(pieces)), false),
        Operation::Bad(Bad::PastEnd) => (namespace.write(end, carry(pieces)), false),
        Operation::Bad(Bad::Empty) => (namespace.read(Lba(0), carry(pieces)), false),
        Operation::Bad(Bad::PartialLba | Bad::Foreign) => {
            (namespace.write(Lba(0), carry(pieces)), false)
        }
        Operation::Deallocate(_) | Operation::Copy { .. } | Operation::Bad(Bad::Scattered) => {
            (of_ranges(namespace, &operation, pieces).map_buffer(|b| carry(vec![b])), true)
        }
        _ => (without_data(namespace, &operation).map_buffer(|()| carry(pieces)), true),
    };
    let pending = Pending { space, operation, data, layout, guards };
    Draft { command, pending, is_raw, shape }
}

/// Builds the command for an operation whose data is its ranges.
fn of_ranges(
    namespace: &Namespace,
    operation: &Operation,
    mut pieces: Vec<Buffer>,
) -> Command<'static, Buffer> {
    let buffer = pieces.pop().expect("ranges lie in one buffer");
    let made = match operation {
        Operation::Deallocate(runs) => {
            let ranges: Vec<DsmRange> =
                runs.iter().map(|run| DsmRange::new(Lba(run.first), run.lbas as u32)).collect();
            namespace.deallocate(&ranges, buffer)
        }
        Operation::Copy { to, sources } => {
            let ranges: Vec<CopyRange> =
                sources.iter().map(|run| CopyRange::new(Lba(run.first), count(*run))).collect();
            namespace.copy(Lba(*to), &ranges, buffer)
        }
        Operation::Bad(_) => namespace.deallocate(&[DsmRange::new(Lba(0), 1)], buffer),
        other => unreachable!("{other:?} has no ranges"),
    };
    made.expect("the ranges fit the buffer")
}

/// Builds the command for an operation without a transfer.
fn without_data(namespace: &Namespace, operation: &Operation) -> Command<'static, ()> {
    match operation {
        Operation::WriteZeroes { run, deallocate } => {
            namespace.write_zeroes(Lba(run.first), count(*run), *deallocate)
        }
        Operation::Verify(run) => namespace.verify(Lba(run.first), count(*run)),
        Operation::Bad(Bad::ZeroesPastEnd) => {
            let eight = LbaCount::new(8).expect("not too many");
            namespace.write_zeroes(Lba(namespace.lba_count() - 1), eight, false)
        }
        _ => namespace.flush(),
    }
}

fn count(run: Run) -> LbaCount {
    LbaCount::new(run.lbas as u32).expect("few LBAs")
}
