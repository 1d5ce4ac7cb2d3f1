//! The run of one seed, and a power cut at each command of a long one.

use adit_kvstore::Durability;

use super::canary::StoreCanary;
use super::counts::StoreCounts;
use super::shape::Shape;
use super::world::StoreWorld;
use crate::random::Random;
use crate::runner::{Failure, Report, guard};
use crate::trace::Trace;

/// Operations of the run that is cut at each of its commands.
const SWEEP_OPERATIONS: u64 = 2_000;

/// Runs the schedule of one seed.
///
/// # Errors
/// The law that was broken.
pub fn run_seed(
    seed: u64,
    canary: Option<StoreCanary>,
    keeps_trace: bool,
) -> Result<Report<StoreCounts>, Box<Failure>> {
    let mut random = Random::new(seed);
    let shape = Shape::draw(&mut random);
    let with = canary.map_or(String::new(), |canary| format!(" --canary {}", canary.name()));
    let repeat = format!("--store --seed {seed:#x}{with}");
    let world = StoreWorld::new(shape, random, canary, Trace::new(keeps_trace));
    guard(seed, repeat, world, StoreWorld::run, report, excerpt)
}

/// The durability and the command of the `index`th run of a sweep over runs of `commands` commands, from 1 on.
fn place(index: u64, commands: [u64; 3]) -> Option<(Durability, u64)> {
    let mut left = index;
    for (durability, commands) in DURABILITIES.into_iter().zip(commands) {
        if left < commands {
            return Some((durability, left + 1));
        }
        left -= commands;
    }
    None
}

const DURABILITIES: [Durability; 3] =
    [Durability::Volatile, Durability::Restart, Durability::Durable];

fn sweep_world(seed: u64, durability: Durability, trace: Trace) -> StoreWorld {
    let mut random = Random::new(seed);
    let shape = Shape::for_sweep(durability, SWEEP_OPERATIONS, &mut random);
    StoreWorld::new(shape, random, None, trace)
}

/// How many commands the run of a sweep has in each durability, none of them cut.
///
/// # Errors
/// The law that was broken.
pub fn count_sweep(seed: u64) -> Result<[u64; 3], Box<Failure>> {
    let mut commands = [0; 3];
    for (durability, commands) in DURABILITIES.into_iter().zip(&mut commands) {
        let world = sweep_world(seed, durability, Trace::new(false));
        let repeat = format!("--store --sweep --seed {seed:#x}");
        let count = |world: &mut StoreWorld| *commands = world.run_to_cut(None);
        guard(seed, repeat, world, count, report, excerpt)?;
    }
    Ok(commands)
}

/// Runs the `index`th run of a sweep; nothing if there are not as many.
///
/// # Errors
/// The law that was broken.
pub fn run_cut(
    seed: u64,
    commands: [u64; 3],
    index: u64,
    keeps_trace: bool,
) -> Result<Option<Report<StoreCounts>>, Box<Failure>> {
    let Some((durability, cut)) = place(index, commands) else { return Ok(None) };
    let world = sweep_world(seed, durability, Trace::new(keeps_trace));
    let repeat = format!("--store --sweep --seed {seed:#x} --cut {index}");
    let run = |world: &mut StoreWorld| {
        world.run_to_cut(Some(cut));
    };
    guard(seed, repeat, world, run, report, excerpt).map(Some)
}

fn report(world: &mut StoreWorld) -> Report<StoreCounts> {
    let counts = std::mem::take(&mut world.counts);
    Report { hash: world.trace.hash(), counts, trace: world.trace.take_lines() }
}

fn excerpt(world: &mut StoreWorld) -> (String, Vec<String>) {
    let kinds: Vec<String> = world.shape.faults.kinds().map(|fault| format!("{fault:?}")).collect();
    let shape = &world.shape;
    let what =
        format!("{}; {} store of {} shards", kinds.join(" "), shape.durability, shape.shards);
    (what, world.trace.take_lines())
}
