//! One run, and the report of a failed one.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::canary::Canary;
use crate::counts::Counts;
use crate::world::World;

/// Lines of the trace that a failure shows.
const LAST_LINES: usize = 40;

thread_local! {
    /// The location of this thread's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A run that broke a law.
#[derive(Debug)]
pub struct Failure {
    /// The seed that repeats it.
    pub seed: u64,
    /// Arguments that repeat it.
    pub repeat: String,
    /// The violation or panic, and where.
    pub what: String,
    /// The kinds of faults in the run.
    pub swarm: String,
    /// The trace, step by step.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { repeat, what, swarm, trace, .. } = self;
        let last = &trace[trace.len().saturating_sub(LAST_LINES)..];
        writeln!(f, "{}", last.join("\n"))?;
        writeln!(f, "faults switched on: {swarm}")?;
        writeln!(f, "{what}")?;
        write!(f, "repeat it: cargo xtask sim {repeat}")
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Report<C = Counts> {
    /// Equal for identical runs.
    pub hash: u64,
    /// The counters.
    pub counts: C,
    /// The trace, step by step, if kept.
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
    let with = canary.map_or(String::new(), |canary| format!(" --canary {}", canary.name()));
    let repeat = format!("--seed {seed:#x}{with}");
    let world = World::new(seed, canary, keeps_trace);
    let report = |world: &mut World| {
        let counts = std::mem::take(&mut world.counts);
        Report { hash: world.trace.hash(), counts, trace: world.trace.take_lines() }
    };
    let excerpt = |world: &mut World| {
        let swarm: Vec<_> = world.shape.swarm.kinds().map(|fault| format!("{fault:?}")).collect();
        (swarm.join(" "), world.trace.take_lines())
    };
    guard(seed, repeat, world, World::run, report, excerpt)
}

/// Runs a world and reports the result, panics included.
pub(crate) fn guard<W, C>(
    seed: u64,
    repeat: String,
    mut world: W,
    run: impl FnOnce(&mut W),
    report: impl FnOnce(&mut W) -> Report<C>,
    excerpt: impl FnOnce(&mut W) -> (String, Vec<String>),
) -> Result<Report<C>, Box<Failure>> {
    match catch_unwind(AssertUnwindSafe(|| run(&mut world))) {
        Ok(()) => Ok(report(&mut world)),
        Err(panic) => {
            let (swarm, trace) = excerpt(&mut world);
            // Its state may be inconsistent: dropping it could panic again.
            std::mem::forget(world);
            let what = said(&*panic);
            Err(Box::new(Failure { seed, repeat, what, swarm, trace }))
        }
    }
}

/// Returns a panic's message, with its location if the hook is installed.
fn said(panic: &(dyn Any + Send)) -> String {
    let noted = PANIC.with_borrow_mut(std::mem::take);
    let plain = || {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    };
    if noted.is_empty() { plain() } else { noted }
}

/// Records panics for the report instead of printing them, because a violation is a panic.
pub fn note_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.set(info.to_string());
    }));
}
