//! One run, and what a failed one says.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    /// The law that was broken on purpose.
    pub canary: Option<Canary>,
    /// What was violated or panicked, and where.
    pub what: String,
    /// The kinds of faults it had.
    pub swarm: String,
    /// What happened, step by step.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { seed, canary, what, swarm, trace } = self;
        let last = &trace[trace.len().saturating_sub(LAST_LINES)..];
        writeln!(f, "{}", last.join("\n"))?;
        writeln!(f, "faults switched on: {swarm}")?;
        writeln!(f, "{what}")?;
        write!(f, "repeat it: cargo xtask sim --seed {seed:#x}")?;
        canary.map_or(Ok(()), |canary| write!(f, " --canary {}", canary.name()))
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
            Err(Box::new(Failure { seed, canary, what, swarm: swarm.join(" "), trace }))
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
