//! Workers: one per request in flight, each making one request after another.
//!
//! A worker is a thread if an engine's calls block, and a task if they are futures. Both run the same loop, read the
//! same clock, and check what they read the same way.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::runtime::Runtime;

use crate::chooser::{Chooser, Random};
use crate::engine::Engine;
use crate::measured::Tally;
use crate::options::Phase;

/// Puts per 100 requests of the mixed phase.
const PUTS_OF_100: u64 = 10;

/// A phase, and its progress.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) phase: Phase,
    pub(crate) objects: u64,
    pub(crate) chooser: Chooser,
    pub(crate) seed: u64,
    pub(crate) began: Instant,
    /// Duration; a fill ends by itself.
    pub(crate) lasts: Duration,
    /// The next object of a fill.
    next: AtomicU64,
    /// Set by the first error, so that other workers stop.
    has_failed: AtomicBool,
}

/// The next request of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Get(u64),
    Put(u64),
}

impl Work {
    pub(crate) fn new(phase: Phase, objects: u64, lasts: Duration, seed: u64) -> Work {
        let chooser = match phase {
            Phase::Zipf => Chooser::zipf(objects),
            _ => Chooser::Uniform(objects),
        };
        let (next, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
        Work { phase, objects, chooser, seed, began: Instant::now(), lasts, next, has_failed }
    }

    pub(crate) fn random(&self, worker: u32) -> Random {
        let phase = self.phase as u64;
        Random::new(self.seed << 32 ^ phase << 24 ^ u64::from(worker))
    }

    /// Returns a worker's next request at `now`, or `None` when the phase is over.
    pub(crate) fn step(&self, now: Instant, random: &mut Random) -> Option<Step> {
        if self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        if self.phase == Phase::Fill {
            let object = self.next.fetch_add(1, Ordering::Relaxed);
            return (object < self.objects).then_some(Step::Put(object));
        }
        if now.duration_since(self.began) >= self.lasts {
            return None;
        }
        let object = self.chooser.next(random);
        let is_put = self.phase == Phase::Mixed && random.below(100) < PUTS_OF_100;
        Some(if is_put { Step::Put(object) } else { Step::Get(object) })
    }

    /// Returns the progress, from 0 to 1.
    pub(crate) fn far(&self) -> f64 {
        let done = match self.phase {
            Phase::Fill => self.next.load(Ordering::Relaxed) as f64 / self.objects as f64,
            _ => self.began.elapsed().as_secs_f64() / self.lasts.as_secs_f64(),
        };
        done.min(1.0)
    }
}

/// Runs workers.
pub(crate) enum Runner {
    /// On a thread each.
    Threads,
    /// As tasks of this runtime.
    Tasks(Runtime),
}

impl Runner {
    /// Runs an engine's future to its end.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match self {
            Runner::Threads => ready(future),
            Runner::Tasks(runtime) => runtime.block_on(future),
        }
    }

    /// Runs `depth` workers until the phase is over.
    ///
    /// # Errors
    /// The first worker's.
    pub(crate) fn run<E: Engine>(
        &self,
        engine: &Arc<E>,
        work: &Arc<Work>,
        depth: u32,
    ) -> Result<Tally> {
        let worker = |number| {
            let (engine, work) = (Arc::clone(engine), Arc::clone(work));
            async move {
                let outcome = run_worker(&*engine, &work, number).await;
                work.has_failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                outcome
            }
        };
        let tallies: Vec<Result<Tally>> = match self {
            Runner::Threads => {
                let threads: Vec<_> = (0..depth).map(|number| on_thread(worker(number))).collect();
                let join = |thread: JoinHandle<_>| {
                    thread.join().map_err(|_| anyhow!("a worker panicked"))?
                };
                threads.into_iter().map(join).collect()
            }
            Runner::Tasks(runtime) => {
                let tasks: Vec<_> =
                    (0..depth).map(|number| runtime.spawn(worker(number))).collect();
                tasks.into_iter().map(|task| runtime.block_on(task)?).collect()
            }
        };
        let mut all = Tally::new();
        for tally in tallies {
            all.add(&tally?)?;
        }
        Ok(all)
    }
}

async fn run_worker<E: Engine>(engine: &E, work: &Work, number: u32) -> Result<Tally> {
    let (mut hands, mut random, mut tally) = (engine.hands()?, work.random(number), Tally::new());
    let is_fill = work.phase == Phase::Fill;
    let mut now = Instant::now();
    while let Some(step) = work.step(now, &mut random) {
        match step {
            Step::Put(object) => {
                engine.put(&mut hands, object).await?;
                let ended = Instant::now();
                tally.put(is_fill.then(|| ended - now));
                now = ended;
            }
            Step::Get(object) => {
                let found = engine.get(&mut hands, object).await?;
                let ended = Instant::now();
                tally.got(found, ended - now);
                now = ended;
            }
        }
    }
    Ok(tally)
}

fn on_thread<T: Send + 'static>(worker: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || ready(worker))
}

/// Returns the result of a future that blocks instead of waiting.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("an engine that runs on threads blocks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_puts_each_object_once_whatever_the_clock_says() {
        let work = Work::new(Phase::Fill, 3, Duration::ZERO, 1);
        let (mut random, late) = (work.random(0), work.began + Duration::from_secs(99));
        let steps: Vec<_> = std::iter::from_fn(|| work.step(late, &mut random)).collect();
        assert_eq!(steps, [0, 1, 2].map(Step::Put));
        assert!((work.far() - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_mixed_phase_puts_a_tenth_and_ends_by_the_clock() {
        let work = Work::new(Phase::Mixed, 100, Duration::from_secs(5), 1);
        let mut random = work.random(3);
        let steps = (0..10_000).filter_map(|_| work.step(work.began, &mut random));
        let puts = steps.filter(|step| matches!(step, Step::Put(_))).count();
        assert!((900..1100).contains(&puts), "{puts}");
        assert_eq!(work.step(work.began + Duration::from_secs(5), &mut random), None);
    }

    #[test]
    fn workers_and_rounds_choose_objects_of_their_own() {
        let draws = |seed, worker| {
            let work = Work::new(Phase::Uniform, 1 << 40, Duration::from_secs(1), seed);
            work.step(work.began, &mut work.random(worker))
        };
        assert_ne!(draws(1, 0), draws(1, 1));
        assert_ne!(draws(1, 0), draws(2, 0));
        assert_eq!(draws(1, 0), draws(1, 0));
    }
}
