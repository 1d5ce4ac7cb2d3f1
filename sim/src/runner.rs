//! Many runs on many threads, and what a failed one says.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::bus::lock;
use crate::canary::Canary;
use crate::counts::Counts;
use crate::world::World;

/// Lines of the trace that a failure shows.
const LAST_LINES: usize = 40;

thread_local! {
    /// Where this thread last panicked.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A run that broke a law.
#[derive(Debug)]
pub struct Failure {
    /// The seed that repeats it.
    pub seed: u64,
    /// What was violated or panicked, and where.
    pub what: String,
    /// The kinds of faults it had.
    pub swarm: String,
    /// What happened, step by step.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { seed, what, swarm, trace } = self;
        let last = &trace[trace.len().saturating_sub(LAST_LINES)..];
        writeln!(f, "{}", last.join("\n"))?;
        writeln!(f, "faults switched on: {swarm}")?;
        writeln!(f, "{what}")?;
        write!(f, "repeat it: cargo xtask sim --seed {seed:#x}")
    }
}

/// How a run went.
#[derive(Debug)]
pub struct Report {
    /// Equal for runs in which the same happened.
    pub hash: u64,
    /// What it came across.
    pub counts: Counts,
    /// What happened, step by step, if it was to be kept.
    pub trace: Vec<String>,
}

/// Runs the schedule of one seed.
///
/// # Errors
/// The law that was broken.
pub fn run_seed(
    seed: u64,
    canary: Option<Canary>,
    keeps_trace: bool,
) -> Result<Report, Box<Failure>> {
    let mut world = World::new(seed, canary, keeps_trace);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(()) => {
            let counts = std::mem::take(&mut world.counts);
            Ok(Report { hash: world.trace.hash(), counts, trace: world.trace.take_lines() })
        }
        Err(panic) => {
            let swarm: Vec<_> =
                world.shape.swarm.kinds().map(|fault| format!("{fault:?}")).collect();
            let trace = world.trace.take_lines();
            // What is left of it may be in any state: dropping it could panic again.
            std::mem::forget(world);
            let what = said(&*panic);
            Err(Box::new(Failure { seed, what, swarm: swarm.join(" "), trace }))
        }
    }
}

/// What a panic said, and where it was if the hook is in place.
fn said(panic: &(dyn Any + Send)) -> String {
    let noted = PANIC.with_borrow_mut(std::mem::take);
    let plain = || {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    };
    if noted.is_empty() { plain() } else { noted }
}

/// Has panics noted for the report instead of printed: a violation is one.
pub fn note_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.set(info.to_string());
    }));
}

/// Which seeds are run.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The first seed; each schedule has the next one.
    pub first: u64,
    /// How many; `None` is until `time` is over.
    pub schedules: Option<u64>,
    /// How long at most.
    pub time: Option<Duration>,
    /// Threads that run them.
    pub threads: usize,
    /// The law that is broken on purpose.
    pub canary: Option<Canary>,
}

/// What all threads of a batch share.
struct Shared<'a> {
    batch: Batch,
    begun: Instant,
    next: AtomicU64,
    stops: &'a AtomicBool,
    totals: Mutex<Counts>,
    failure: Mutex<Option<Box<Failure>>>,
    tell: &'a (dyn Fn(&Counts, Duration) + Sync),
}

/// Runs a batch until it is done, a seed fails or `stops` is set. `tell` is called now and then
/// with what was done so far.
pub fn run_batch(
    batch: Batch,
    stops: &AtomicBool,
    tell: &(dyn Fn(&Counts, Duration) + Sync),
) -> (Counts, Option<Box<Failure>>) {
    let shared = Shared {
        batch,
        begun: Instant::now(),
        next: AtomicU64::new(0),
        stops,
        totals: Mutex::default(),
        failure: Mutex::default(),
        tell,
    };
    std::thread::scope(|scope| {
        (0..batch.threads).for_each(|_| drop(scope.spawn(|| shared.work())));
    });
    let Shared { totals, failure, .. } = shared;
    let into = "no thread of the batch is left";
    (totals.into_inner().expect(into), failure.into_inner().expect(into))
}

impl Shared<'_> {
    fn work(&self) {
        /// Schedules between two looks at what the others do.
        const ROUND: u64 = 64;
        while self.goes_on() {
            let from = self.next.fetch_add(ROUND, Ordering::Relaxed);
            let to = (from + ROUND).min(self.batch.schedules.unwrap_or(u64::MAX));
            let mut counts = Counts::default();
            for index in from..to {
                match run_seed(self.batch.first.wrapping_add(index), self.batch.canary, false) {
                    Ok(report) => counts.add(&report.counts),
                    Err(failure) => {
                        self.failed(*failure);
                        break;
                    }
                }
            }
            let mut totals = lock(&self.totals);
            totals.add(&counts);
            (self.tell)(&totals, self.begun.elapsed());
            if to < from + ROUND {
                return;
            }
        }
    }

    fn goes_on(&self) -> bool {
        let in_time = self.batch.time.is_none_or(|time| self.begun.elapsed() < time);
        in_time && !self.stops.load(Ordering::Relaxed) && lock(&self.failure).is_none()
    }

    /// Keeps the first failure, with a trace from a second run of the same seed.
    fn failed(&self, failure: Failure) {
        let mut first = lock(&self.failure);
        if first.is_some() {
            return;
        }
        *first = Some(match run_seed(failure.seed, self.batch.canary, true) {
            Err(again) => again,
            Ok(_) => Box::new(Failure {
                what: format!(
                    "{}\n(a second run of the same seed passed: it is not deterministic)",
                    failure.what
                ),
                ..failure
            }),
        });
    }
}
