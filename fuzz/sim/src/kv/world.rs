//! The state of a run: the machine, the store's shards, the pending requests and the model.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Arguments;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_driver::Time;
use adit_kvstore::internals::format::Set;
use adit_kvstore::shard::{
    Condition, Done, Lane, LeaseId, Ledger, Part, Removals, Shard, ShardOptions, Tag, WriterId,
};
use adit_kvstore::{
    Durability, Key, LayoutId, Quota, TenantId, UNIT_BYTES, Version as StoreVersion, Watermarks,
    units,
};

use super::account::Account;
use super::canary::StoreCanary;
use super::counts::StoreCounts;
use super::device::SimulatedQueue;
use super::frozen::Frozen;
use super::machine::{Machine, Shared, lock};
use super::media::Media;
use super::model::{Crash, Model, Moment, Version};
use super::pool::Pool;
use super::shape::Shape;
use super::tiers::{Meanwhile, Reader};
use super::waiting::Waiting;
use crate::random::Random;
use crate::trace::Trace;
use crate::world::violated;

pub(crate) type Queue = SimulatedQueue<Tag>;
/// Steps without progress after which the run counts as stuck. A lost command takes seconds, and free space ages every
/// `discard_after`, which is as short as 250 us here.
const IDLE_STEPS_MAX: u32 = 100_000;
/// Limit of clock readings while a store is opened.
const CLOCK_CALLS_MAX: u64 = 2_000_000;
/// Maximum virtual time of a request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);
/// Commands in turn that a record waits for, at most: those that fill the queue, and blocks before its own.
const COMMANDS_BEFORE: u64 = 8;
/// The wall clock when the machine started, in seconds.
const WALL_S: u64 = 1_700_000_000;

/// An unanswered item of a request.
#[derive(Debug)]
pub(crate) enum Item {
    Put {
        key: usize,
        begin: Moment,
        ttl_s: Option<u64>,
        bytes: usize,
        asked: u64,
        condition: Condition,
    },
    Get {
        key: usize,
        part: Part,
        bytes: usize,
        /// The version that it must have.
        version: Option<StoreVersion>,
    },
    Reserve {
        key: usize,
        version: Version,
        ttl_s: Option<u64>,
        condition: Condition,
    },
    Fill {
        writer: WriterId,
        bytes: usize,
    },
    Seal {
        key: usize,
        begin: Moment,
        ttl_s: Option<u64>,
        condition: Condition,
    },
    Delete {
        key: usize,
        begin: Moment,
        condition: Condition,
    },
    /// Another expiry, at this time at the earliest.
    Touch {
        key: usize,
        begin: Moment,
        ttl_s: Option<u64>,
        expires: Option<Time>,
    },
    /// The removal of these keys if they exist, or of those among them that are a tenant's.
    Sweep {
        keys: Vec<(usize, Moment)>,
        is_of_tenant: bool,
    },
    Commit,
}

impl Item {
    /// Returns the units of room that it asks for.
    pub(crate) fn asked_units(&self) -> u64 {
        match self {
            Item::Put { asked, .. } => *asked,
            Item::Reserve { version, .. } => units(version.bytes).max(1),
            _ => 0,
        }
    }
}

/// Units asked of a shard, and units evicted for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// Asked for by requests that are not answered.
    pub(crate) open: u64,
    /// What went beyond twice what was asked for, since it last was nothing.
    beyond: u64,
    /// What went since the shard was opened.
    gone: u64,
}

/// What a request to a shard carries: item `item` of what was submitted together as `tag`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTag {
    pub(crate) tag: u64,
    pub(crate) item: u32,
}

/// Requests submitted together that are not all answered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) shard: u16,
    pub(crate) begin: Moment,
    pub(crate) since: Time,
    pub(crate) has_deadline: bool,
    /// Units of room that its items ask for.
    pub(crate) asked: u64,
    pub(crate) items: Vec<Option<Item>>,
}

/// An object being written in parts.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) id: WriterId,
    pub(crate) shard: u16,
    pub(crate) key: usize,
    pub(crate) version: Version,
    pub(crate) ttl_s: Option<u64>,
    pub(crate) condition: Condition,
    /// Parts not submitted yet.
    pub(crate) parts: Vec<Part>,
    pub(crate) part_count: usize,
    pub(crate) unanswered: usize,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) shard: u16,
    pub(crate) keys: Vec<usize>,
    pub(crate) begin: Moment,
    pub(crate) until: Time,
}

/// The state of a run.
pub(crate) struct StoreWorld {
    pub(crate) shape: Shape,
    pub(crate) random: Random,
    pub(crate) canary: Option<StoreCanary>,
    pub(crate) machine: Shared,
    pub(crate) now: Time,
    pub(crate) pool: Pool,
    pub(crate) model: Model,
    pub(crate) trace: Trace,
    pub(crate) counts: StoreCounts,
    pub(crate) shards: Vec<Shard<Queue, RequestTag>>,
    pub(crate) tenants: Vec<Vec<TenantId>>,
    /// What tenants use in all shards of this life.
    pub(crate) ledger: Ledger,
    /// What goes from all shards of this life, and who keeps an account of that.
    pub(crate) removals: Removals,
    pub(crate) account: Account,
    /// The quota of this life's tenant with a quota, and the bytes that it had when the store was opened.
    pub(crate) quota: Option<Quota>,
    pub(crate) quota_used_at_open: u64,
    /// For each shard, the ids of the run's layouts, if they could be defined.
    pub(crate) layouts: Vec<Vec<Option<LayoutId>>>,
    /// The durability of the last opening.
    pub(crate) durability: Durability,
    /// The superblocks as the last opening found them.
    pub(crate) set: Option<Set>,
    /// Blocks of journals damaged at rest.
    pub(crate) damaged_blocks: u64,
    /// Whether it is open and may have written.
    pub(crate) is_open: bool,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) writers: Vec<Writer>,
    pub(crate) leases: Vec<Lease>,
    /// What callers hold of objects in memory.
    pub(crate) readers: Vec<Reader>,
    /// What was read and its callers have yet to verify, by shard.
    pub(crate) unverified: Vec<(usize, Done<RequestTag>)>,
    /// Changes that have not reached their shards.
    pub(crate) waiting: Waiting,
    pub(crate) next_tag: u64,
    /// For each shard, what was asked for since it was opened.
    pub(crate) room: Vec<Room>,
    /// Units of the longest object of the run.
    pub(crate) longest: u64,
    /// Bytes put since the start.
    pub(crate) volume: u64,
    pub(crate) journal_bytes: u64,
    /// Whether reads establish the state that came back.
    pub(crate) is_settling: bool,
    /// How the current life ends.
    pub(crate) crash: Crash,
    /// How long the store was awake: time in which its turns came when they were due.
    awake: Duration,
    /// The moments of its turns, by that time.
    turns: VecDeque<(Duration, Moment)>,
    idle_steps: u32,
    /// States at which to try a cut.
    pub(crate) kept: Vec<KeptMoment>,
}

/// The complete state at a command.
#[derive(Debug)]
pub(crate) struct KeptMoment {
    pub(crate) frozen: Frozen,
    model: Model,
    now: Time,
}

impl StoreWorld {
    pub(crate) fn new(
        shape: Shape,
        mut random: Random,
        canary: Option<StoreCanary>,
        trace: Trace,
    ) -> StoreWorld {
        let keeps_past = shape.faults.kinds().next().is_some();
        let media = |disk: &super::shape::Disk| Media::new(disk.bytes, disk.lba_bytes, keeps_past);
        let media = shape.disks.iter().map(media).collect();
        let machine = Machine::new(media, shape.faults.clone(), shape.pace, random.fork());
        StoreWorld {
            machine: Arc::new(Mutex::new(machine)),
            canary,
            now: Time::from_ns(1_000_000_000),
            pool: Pool::default(),
            model: Model::new(random.next(), 0, Vec::new(), false),
            trace,
            counts: StoreCounts::default(),
            shards: Vec::new(),
            tenants: Vec::new(),
            ledger: Ledger::default(),
            removals: Removals::default(),
            account: Account::default(),
            quota: None,
            quota_used_at_open: 0,
            layouts: Vec::new(),
            durability: shape.durability,
            set: None,
            damaged_blocks: 0,
            is_open: false,
            pending: BTreeMap::new(),
            writers: Vec::new(),
            leases: Vec::new(),
            readers: Vec::new(),
            unverified: Vec::new(),
            waiting: Waiting::default(),
            next_tag: 0,
            room: Vec::new(),
            longest: 0,
            volume: 0,
            journal_bytes: 0,
            is_settling: false,
            crash: Crash::Cut,
            awake: Duration::ZERO,
            turns: VecDeque::new(),
            idle_steps: 0,
            kept: Vec::new(),
            shape,
            random,
        }
    }

    pub(crate) fn note(&mut self, numbers: &[u64], text: Arguments<'_>) {
        self.trace.note(numbers, text);
    }

    /// Opens lanes to all devices, for one owner.
    pub(crate) fn lanes(&mut self) -> Vec<Lane<Queue>> {
        (0..self.shape.disks.len()).map(|device| self.lane(device)).collect()
    }

    pub(crate) fn lane(&mut self, device: usize) -> Lane<Queue> {
        let queue = Queue::new(&self.machine, device, self.shape.disks[device].rules);
        let info = queue.info();
        Lane::new(queue, info, self.pool.allocate(self.shape.lane_bytes))
    }

    /// Takes back unneeded lanes.
    pub(crate) fn give_lanes(&mut self, lanes: Vec<Lane<Queue>>) {
        let memory = lanes.into_iter().filter_map(Lane::into_memory);
        memory.for_each(|memory| self.pool.give_whole(memory));
    }

    /// Makes a call that waits for devices, with a clock that advances meanwhile.
    pub(crate) fn while_time_passes<T>(
        &mut self,
        call: impl FnOnce(&mut StoreWorld, &mut dyn FnMut() -> Time) -> T,
    ) -> T {
        let machine = self.machine.clone();
        let (mut now, mut calls) = (self.now, 0u64);
        let mut clock = || {
            calls += 1;
            if calls > CLOCK_CALLS_MAX {
                violated(4, "a call waits for ever");
            }
            let next = lock(&machine).next().unwrap_or(now + Duration::from_micros(10));
            now = next.max(now + Duration::from_nanos(1));
            now
        };
        let result = call(self, &mut clock);
        self.now = now;
        result
    }

    pub(crate) fn options(&self) -> ShardOptions {
        let shape = &self.shape;
        ShardOptions {
            durability: self.durability,
            policy: shape.policy,
            custom_policy: None,
            capacity_bytes: shape.capacity_bytes,
            capacity_objects: None,
            watermarks: match self.canary {
                Some(StoreCanary::GreedyEviction) => Watermarks { high: 600, low: 100 },
                _ => shape.watermarks,
            },
            write_bytes_per_day: shape.write_bytes_per_day,
            seal_interval: shape.seal_interval,
            flush_interval: shape.flush_interval,
            discard_after: shape.flush_interval / 4,
            wall_at_zero: Duration::from_secs(WALL_S),
            keep_outdated: shape.keep_outdated || self.canary == Some(StoreCanary::KeptOutdated),
            ledger: self.ledger.clone(),
            removals: self.removals.clone(),
            callers_verify: shape.callers_verify,
        }
    }

    /// Returns the keys of the run with their shards: mostly hashes, some long.
    pub(crate) fn keys(&self, set: &Set) -> Vec<(Key, u16)> {
        let lengths = [8, 16, 16, 32, 33, 200, 512, 1];
        let key = |index: usize| {
            let len = lengths[index % lengths.len()];
            let mut bytes = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            bytes[0] = index as u8;
            let bytes: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
            let key = Key::new(&bytes).expect("a length that keys have");
            let shard = set.route(&key);
            (key, shard)
        };
        (0..self.shape.keys).map(key).collect()
    }

    /// Takes one turn of every shard; time advances if nothing moved.
    pub(crate) fn step(&mut self) {
        let (mut done, mut moved) = (Vec::new(), self.go_on_waiting(false));
        let mut next = self.next_late();
        for shard in 0..self.shards.len() {
            let mut meanwhile = self.meanwhile(shard);
            let turn = self.shards[shard].poll(self.now, &mut |answer| {
                done.push((answer, meanwhile.as_mut().and_then(Meanwhile::read)));
            });
            moved += turn.moved + done.len();
            next = next.min(turn.next);
            self.keep_moments(true);
            for (answer, read) in done.drain(..) {
                self.receive(shard, answer);
                read.into_iter().for_each(|read| self.check_read(read));
            }
            self.check_evictions(shard, 0);
            self.keep_moments(false);
        }
        self.keep_account();
        self.excuse_if_struck();
        self.note_turn();
        moved += self.verify_some(moved == 0);
        if moved == 0 {
            moved += self.go_on_waiting(true);
        }
        if moved > 0 || lock(&self.machine).is_off() {
            self.idle_steps = 0;
            return;
        }
        self.idle(next);
    }

    /// Checks how much went for what was asked for, now that requests for `answered` units were answered: over any
    /// span of time twice as much at most, and once a slab of each layout and the longest object. Watermarks may free
    /// more, but only down to the low one.
    pub(crate) fn check_evictions(&mut self, shard: usize, answered: u64) {
        let stats = self.shards[shard].stats();
        let ids = self.layouts.get(shard).into_iter().flatten().flatten();
        let slabs = ids.filter_map(|id| self.shards[shard].layouts().get(*id)?.slab());
        let Watermarks { high, low } = self.shape.watermarks;
        let spared =
            if high < 1000 { stats.capacity_units * u64::from(1000 - low) / 1000 } else { 0 };
        let slack = self.longest + slabs.map(|slab| slab.units()).sum::<u64>() + spared;
        let gone = (stats.evictions.space.bytes + stats.evictions.fragmentation.bytes) / UNIT_BYTES;
        let room = &mut self.room[shard];
        room.beyond += gone - std::mem::replace(&mut room.gone, gone);
        if room.beyond > slack + 2 * room.open && !self.model.is_excused() {
            violated(
                5,
                format_args!("{room:?} in shard {shard}: more went than twice that and {slack}"),
            );
        }
        room.open -= answered;
        room.beyond = room.beyond.saturating_sub(2 * answered);
    }

    /// Pairs frozen devices with the model: with that before the shard's answers those that were frozen before it took
    /// completions, and with that after its answers all others.
    pub(crate) fn keep_moments(&mut self, before_answers: bool) {
        let all = std::mem::take(&mut lock(&self.machine).freezer.frozen);
        for frozen in all {
            if before_answers && !frozen.is_before_reaping {
                lock(&self.machine).freezer.frozen.push(frozen);
                continue;
            }
            let (now, model) = (self.now, self.model.clone());
            self.kept.push(KeptMoment { frozen, model, now });
        }
    }

    /// Returns the world after a power cut at that moment, before the power comes back.
    pub(crate) fn fork(&self, kept: KeptMoment, mut random: Random, trace: Trace) -> StoreWorld {
        let KeptMoment { frozen, model, now } = kept;
        let machine = frozen.thaw(&lock(&self.machine), random.fork());
        let world = StoreWorld::new(self.shape.clone(), random, None, trace);
        let machine = Arc::new(Mutex::new(machine));
        StoreWorld {
            machine,
            model,
            now,
            next_tag: self.next_tag,
            volume: self.volume,
            is_open: true,
            ..world
        }
    }

    /// Advances time to the next event.
    fn idle(&mut self, next: Time) {
        self.idle_steps += 1;
        let device = lock(&self.machine).next();
        let overdue = self.pending.values().any(|one| self.now.since(one.since) > PATIENCE);
        let is_stuck = device.is_none() && next == Time::NEVER && !self.pending.is_empty();
        if is_stuck || overdue || self.idle_steps > IDLE_STEPS_MAX {
            let waits: Vec<String> =
                self.pending.values().map(|pending| format!("{pending:?}")).collect();
            let now = self.now;
            violated(4, format_args!("nothing moves at {now} until {next}: {}", waits.join("; ")));
        }
        // Work due now but not done waits for a device.
        let clock = (next != Time::NEVER && (next > self.now || device.is_none())).then_some(next);
        if let Some(next) = device.into_iter().chain(clock).min() {
            let next = next.max(self.now + Duration::from_micros(1));
            self.awake += next.since(self.now);
            self.now = next;
        }
    }

    /// Records a turn, and forgets those before the last whose records are written.
    fn note_turn(&mut self) {
        let moment = self.model.tick();
        self.turns.push_back((self.awake, moment));
        let old = self.awake.saturating_sub(self.record_bound());
        while self.turns.get(1).is_some_and(|(awake, _)| *awake <= old) {
            self.turns.pop_front();
        }
    }

    /// Returns the longest time from an acknowledgement until the record is on its device: it is sent within the
    /// interval, once the commands before it have left a place in the queue.
    fn record_bound(&self) -> Duration {
        let command_ns = 2 * self.shape.pace.most_ns;
        self.shape.seal_interval + Duration::from_nanos(COMMANDS_BEFORE * command_ns)
    }

    /// Returns the last moment whose acknowledgements have their records on the devices.
    pub(crate) fn recorded(&self) -> Moment {
        let is_old = |(awake, _): &&(Duration, Moment)| self.awake >= *awake + self.record_bound();
        self.turns.front().filter(is_old).map_or(0, |(_, moment)| *moment)
    }

    /// Forgets the turns of a life that is over.
    pub(crate) fn forget_turns(&mut self) {
        self.turns.clear();
    }

    /// Excuses misses once a fault struck.
    pub(crate) fn excuse_if_struck(&mut self) {
        if !self.model.is_excused() && lock(&self.machine).faults.has_harmed() {
            self.model.excuse();
        }
    }

    /// Runs until every request is answered.
    pub(crate) fn drain(&mut self) {
        while !self.pending.is_empty() && !lock(&self.machine).is_off() {
            self.step();
        }
    }

    /// Returns the wall clock in seconds, as the store computes it.
    pub(crate) fn wall_s(&self) -> u64 {
        WALL_S + self.now.as_ns() / 1_000_000_000
    }

    /// Returns when a second of the wall clock begins, in virtual time.
    pub(crate) fn at_wall(&self, second: u64) -> Time {
        Time::from_ns((second - WALL_S) * 1_000_000_000)
    }
}
