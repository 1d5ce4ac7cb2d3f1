//! What a seed decides before the first request: the store, its devices, how it is used.

use std::time::Duration;

use adit_kvstore::layout::Layout;
use adit_kvstore::shard::{LANE_MEMORY_BYTES, LANE_MEMORY_MIN_BYTES};
use adit_kvstore::{Durability, PolicyKind, Watermarks, WhenReached};

use super::device::Rules;
use super::faults::Faults;
use super::machine::Pace;
use super::tensors;
use crate::random::Random;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    pub(crate) bytes: usize,
    pub(crate) lba_bytes: usize,
    pub(crate) rules: Rules,
}

/// Units of memory of a run in which puts wait for it: not many more than its longest object and its padding have.
const MEMORY_UNITS: u64 = 1024;

/// The store of a run and how it is used.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) durability: Durability,
    pub(crate) shards: u16,
    pub(crate) disks: Vec<Disk>,
    pub(crate) lane_bytes: usize,
    pub(crate) objects_max: u32,
    pub(crate) journal_bytes: Option<u64>,
    pub(crate) policy: PolicyKind,
    pub(crate) capacity_bytes: Option<u64>,
    pub(crate) watermarks: Watermarks,
    pub(crate) write_bytes_per_day: Option<u64>,
    pub(crate) seal_interval: Duration,
    pub(crate) flush_interval: Duration,
    pub(crate) faults: Faults,
    pub(crate) pace: Pace,
    pub(crate) keys: usize,
    /// How often the store is opened.
    pub(crate) lives: u64,
    /// Actions per life.
    pub(crate) actions: u64,
    /// Whether only requests count as actions.
    pub(crate) counts_requests: bool,
    /// Maximum unanswered requests.
    pub(crate) pending_max: usize,
    /// The usual maximum length of an object.
    pub(crate) bytes_usual: u64,
    /// The absolute maximum length of an object.
    pub(crate) bytes_max: u64,
    /// Whether the store never needs to evict.
    pub(crate) is_roomy: bool,
    /// The layouts of KV blocks, if the run has any.
    pub(crate) layouts: Vec<Layout>,
    /// One in this many openings draws another durability; 0 for none.
    pub(crate) changes_durability: u64,
    /// Whether a tenant has a quota, and what happens when it is reached.
    pub(crate) quota: Option<WhenReached>,
    /// Units of a region of a shard's memory tier; 0 for no tier.
    pub(crate) tier_units: u64,
    /// Whether reads end unverified, for their callers to verify.
    pub(crate) callers_verify: bool,
    /// Units of memory for puts, at least as many as the longest object has; 0 if none waits for memory.
    pub(crate) memory_units: u64,
    /// Whether openings keep what damage to the journal made outdated.
    pub(crate) keep_outdated: bool,
}

impl Shape {
    pub(crate) fn draw(random: &mut Random) -> Shape {
        if random.one_in(8) {
            return Shape::of_mixed_sizes(random);
        }
        Shape::of_any_kind(random)
    }

    /// Draws a full store of objects of many lengths and layouts, on healthy devices.
    fn of_mixed_sizes(random: &mut Random) -> Shape {
        let mut disks = vec![disk(random, false); random.pick(&[1, 1, 2])];
        disks.iter_mut().for_each(|disk| disk.bytes = random.pick(&[6 << 20, 8 << 20]));
        Shape {
            disks,
            objects_max: 500,
            capacity_bytes: None,
            watermarks: Watermarks { high: 1000, low: 1000 },
            write_bytes_per_day: None,
            faults: Faults::none(),
            keys: 150,
            lives: random.between(1, 2),
            actions: random.between(200, 500),
            bytes_usual: random.pick(&[16 << 10, 64 << 10, 200 << 10]),
            bytes_max: random.pick(&[400 << 10, 1 << 20]),
            is_roomy: false,
            layouts: (0..random.between(0, 2)).map(|_| tensors::draw(random)).collect(),
            quota: None,
            ..Shape::of_any_kind(random)
        }
    }

    fn of_any_kind(random: &mut Random) -> Shape {
        let durability =
            random.pick(&[Durability::Volatile, Durability::Restart, Durability::Durable]);
        let is_roomy = random.one_in(2);
        let shards = random.pick(&[1, 1, 2]);
        let mut devices = random.fork();
        let disks = (0..random.pick(&[1, 1, 2])).map(|_| disk(&mut devices, is_roomy)).collect();
        let bytes_usual = random.pick(&[64, 8 << 10, 16 << 10, 64 << 10]);
        let bytes_max = if is_roomy { 3 << 20 } else { 400 << 10 };
        let (most_ns, ms) = (random.pick(&[1_000, 100_000, 2_000_000]), Duration::from_millis);
        Shape {
            durability,
            shards,
            disks,
            lane_bytes: lane_bytes(random),
            objects_max: if is_roomy { 4096 } else { random.pick(&[16, 64, 500]) },
            journal_bytes: random.pick(&[Some(64 << 10), Some(64 << 10), Some(256 << 10), None]),
            policy: random.pick(&[PolicyKind::Auto, PolicyKind::Lru, PolicyKind::S3Fifo]),
            capacity_bytes: (!is_roomy && random.one_in(3)).then_some(1 << 20),
            watermarks: if is_roomy { Watermarks::default() } else { watermarks(random) },
            write_bytes_per_day: (!is_roomy && random.one_in(8)).then_some(1 << 26),
            seal_interval: random.pick(&[Duration::ZERO, ms(1), ms(10)]),
            flush_interval: random.pick(&[ms(1), ms(20), ms(1000)]),
            faults: Faults::draw(random),
            pace: Pace { least_ns: most_ns / 20, most_ns },
            keys: random.pick(&[4, 12, 40]),
            lives: random.between(2, 4),
            actions: random.between(20, 120),
            counts_requests: false,
            pending_max: random.pick(&[1, 4, 16, 32]),
            bytes_usual,
            bytes_max,
            is_roomy,
            layouts: random.one_in(2).then(|| tensors::draw(random)).into_iter().collect(),
            changes_durability: random.pick(&[0, 0, 2]),
            quota: (!is_roomy && random.one_in(3))
                .then(|| random.pick(&[WhenReached::Refuse, WhenReached::EvictOwn])),
            tier_units: random.pick(&[0, 0, 0, 8, 16, 32, 64, 256]),
            callers_verify: random.one_in(2),
            memory_units: if random.one_in(2) { 0 } else { MEMORY_UNITS },
            keep_outdated: random.one_in(4),
        }
    }

    /// Draws a long run of one durability on healthy devices, for a cut at each of its commands.
    pub(crate) fn for_sweep(durability: Durability, operations: u64, random: &mut Random) -> Shape {
        let mut disks = [disk(random, true); 2];
        for (disk, lba_bytes) in disks.iter_mut().zip([4096, 512]) {
            disk.lba_bytes = lba_bytes;
            disk.rules.depth = 32;
        }
        Shape {
            durability,
            shards: 2,
            disks: disks.to_vec(),
            lane_bytes: LANE_MEMORY_MIN_BYTES,
            objects_max: 1024,
            journal_bytes: Some(64 << 10),
            watermarks: Watermarks::default(),
            write_bytes_per_day: None,
            capacity_bytes: None,
            faults: Faults::none(),
            keys: 64,
            lives: 1,
            actions: operations,
            counts_requests: true,
            pending_max: 16,
            bytes_usual: 8 << 10,
            bytes_max: 300 << 10,
            is_roomy: true,
            changes_durability: 0,
            quota: None,
            seal_interval: Duration::from_millis(1),
            flush_interval: Duration::from_millis(20),
            ..Shape::of_any_kind(random)
        }
    }
}

fn disk(random: &mut Random, is_roomy: bool) -> Disk {
    let rules = Rules {
        command_bytes_max: random.pick(&[64 << 10, 128 << 10, 1 << 20]),
        boundary_bytes: random.pick(&[0, 0, 128 << 10, 1 << 20]),
        depth: random.pick(&[2, 8, 32]),
        deallocates: random.one_in(2),
    };
    let bytes = if is_roomy { 128 << 20 } else { random.pick(&[6 << 20, 8 << 20, 12 << 20]) };
    Disk { bytes, lba_bytes: random.pick(&[512, 4096, 4096]), rules }
}

/// Draws the memory of a lane: large memory is slow, so few lanes have as much as in production.
fn lane_bytes(random: &mut Random) -> usize {
    if random.one_in(16) { LANE_MEMORY_BYTES } else { LANE_MEMORY_MIN_BYTES }
}

fn watermarks(random: &mut Random) -> Watermarks {
    let high = random.between(500, 1000) as u16;
    Watermarks { high, low: random.between(200, u64::from(high)) as u16 }
}
