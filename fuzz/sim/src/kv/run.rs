//! The run of one seed, and a power cut at each command of a long run: that run is made once for many cuts, and each
//! cut continues from the state kept at its command.

use adit_kvstore::Durability;

use super::canary::StoreCanary;
use super::counts::StoreCounts;
use super::shape::Shape;
use super::world::{KeptMoment, StoreWorld};
use crate::random::Random;
use crate::runner::{Failure, Report, guard};
use crate::trace::Trace;

/// Operations of the run that is cut at each of its commands.
const SWEEP_OPERATIONS: u64 = 2_000;
/// Increment between the seeds of cuts: odd, so that each has choices of its own.
const CUT_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

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

/// Maps cut numbers to commands, from 1, of the run of each durability. The runs have `commands` commands each, and
/// cuts are numbered through all three.
fn places(
    numbers: &[u64],
    commands: [u64; 3],
) -> impl Iterator<Item = (Durability, u64, Vec<u64>)> {
    let mut first = 0;
    DURABILITIES.into_iter().zip(commands).map(move |(durability, commands)| {
        let range = first..first + commands;
        let inside = numbers.iter().filter(|number| range.contains(number));
        let cuts = inside.map(|number| number - range.start + 1).collect();
        first = range.end;
        (durability, range.start, cuts)
    })
}

const DURABILITIES: [Durability; 3] =
    [Durability::Volatile, Durability::Restart, Durability::Durable];

fn sweep_world(seed: u64, durability: Durability, trace: Trace) -> StoreWorld {
    let mut random = Random::new(seed);
    let shape = Shape::for_sweep(durability, SWEEP_OPERATIONS, &mut random);
    StoreWorld::new(shape, random, None, trace)
}

/// Returns the number of commands in the sweep's run of each durability, without a cut.
///
/// # Errors
/// The law that was broken.
pub fn count_sweep(seed: u64) -> Result<[u64; 3], Box<Failure>> {
    let mut commands = [0; 3];
    for (durability, commands) in DURABILITIES.into_iter().zip(&mut commands) {
        let world = sweep_world(seed, durability, Trace::new(false));
        let repeat = format!("--store --sweep --seed {seed:#x}");
        let count = |world: &mut StoreWorld| *commands = world.run_long_life();
        guard(seed, repeat, world, count, report, excerpt)?;
    }
    Ok(commands)
}

/// Tries the cuts with these numbers, each with its aftermath.
///
/// # Errors
/// The number of the first that broke a law, and the law.
pub fn run_cuts(
    seed: u64,
    commands: [u64; 3],
    numbers: &[u64],
    keeps_trace: bool,
) -> Result<Report<StoreCounts>, (u64, Box<Failure>)> {
    let mut all = Report { hash: 0, counts: StoreCounts::default(), trace: Vec::new() };
    for (durability, first, cuts) in places(numbers, commands) {
        let Some(last) = cuts.last() else { continue };
        let number = |cut: u64| first + cut - 1;
        let repeat = |cut| format!("--store --sweep --seed {seed:#x} --cut {}", number(cut));
        let world = sweep_world(seed, durability, Trace::new(keeps_trace));
        let life = |world: &mut StoreWorld| world.run_to_cuts(&cuts);
        let forks = |world: &mut StoreWorld| forks(world, seed, keeps_trace);
        let before = guard(seed, repeat(*last), world, life, forks, excerpt)
            .map_err(|failure| (number(*last), failure))?;
        for (cut, fork) in cuts.iter().zip(before.counts) {
            let tried = guard(seed, repeat(*cut), fork, StoreWorld::run_from_cut, report, excerpt);
            let tried = tried.map_err(|mut failure| {
                failure.trace.splice(..0, before.trace.iter().cloned());
                (number(*cut), failure)
            })?;
            all.hash = all.hash.rotate_left(1) ^ tried.hash;
            all.counts.add(&tried.counts);
            all.trace = before.trace.iter().cloned().chain(tried.trace).collect();
        }
    }
    Ok(all)
}

/// Creates a world for each cut to try.
fn forks(world: &mut StoreWorld, seed: u64, keeps_trace: bool) -> Report<Vec<StoreWorld>> {
    let kept = std::mem::take(&mut world.kept);
    let fork = |kept: KeptMoment| {
        let random = Random::new(seed ^ kept.frozen.command.wrapping_mul(CUT_STEP));
        world.fork(kept, random, Trace::new(keeps_trace))
    };
    let counts = kept.into_iter().map(fork).collect();
    Report { hash: world.trace.hash(), counts, trace: world.trace.take_lines() }
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
