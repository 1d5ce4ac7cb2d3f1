//! A thread of the staged engine: a lane per device, turned while there is something to do.
//!
//! After a while without work, the thread sleeps until it receives some.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::copies::Copies;
use super::lane::Lane;
use super::stats::Stats;
use super::work::Work;

/// Idle turns before the thread sleeps.
const IDLE_TURNS: u32 = 4096;
/// Turns without progress before the thread yields.
const PATIENT_TURNS: u32 = 64;
/// Longest sleep, which bounds the delay of a stop.
const SLEEP: Duration = Duration::from_millis(50);

/// State that a thread shares with its engine.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    stats: Mutex<Stats>,
}

impl Shared {
    /// Returns the lanes' counters as last published.
    pub(super) fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Worker<C: Copies> {
    pub(super) lanes: Vec<Lane<C>>,
    pub(super) work: Receiver<Work<C::Event>>,
    pub(super) shared: Arc<Shared>,
    /// Dropped after the lanes: the memory that their copies access.
    pub(super) keep: Arc<dyn Any + Send + Sync>,
}

impl<C: Copies> Worker<C> {
    /// Runs until stopped, or its engine is gone.
    pub(super) fn run(mut self) {
        let mut idle_turns = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            if self.turn() > 0 {
                idle_turns = 0;
                continue;
            }
            idle_turns += 1;
            let is_idle = self.lanes.iter().all(Lane::is_idle);
            if is_idle && idle_turns > IDLE_TURNS {
                if !self.sleep() {
                    break;
                }
                idle_turns = 0;
            } else if idle_turns > PATIENT_TURNS {
                std::thread::yield_now();
            }
        }
        // Work not begun also becomes a job, because ending jobs tells the GPU, whose streams may wait for it.
        while let Ok(work) = self.work.try_recv() {
            self.add(work);
        }
        self.end();
    }

    /// Ends what is in flight. If a copy may still go on, leaks what it accesses.
    fn end(&mut self) {
        self.lanes.iter_mut().for_each(Lane::close);
        self.publish();
        if self.lanes.iter().any(Lane::has_lost) {
            tracing::error!(
                "leaking the pool and the blocks' words, which the GPU may still write"
            );
            std::mem::forget(Arc::clone(&self.keep));
        }
    }

    /// Turns every lane once. Returns how much moved.
    fn turn(&mut self) -> usize {
        let mut moved = 0;
        while let Ok(work) = self.work.try_recv() {
            self.add(work);
            moved += 1;
        }
        for lane in &mut self.lanes {
            let now = lane.now();
            moved += lane.turn(now);
        }
        if moved > 0 {
            self.publish();
        }
        moved
    }

    fn add(&mut self, work: Work<C::Event>) {
        self.lanes[work.device].add(work);
    }

    fn publish(&self) {
        let mut sum = Stats::default();
        for lane in &self.lanes {
            sum += lane.stats();
        }
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = sum;
    }

    /// Sleeps until there is work or the sleep is over. Returns false once the engine is gone.
    fn sleep(&mut self) -> bool {
        match self.work.recv_timeout(SLEEP) {
            Ok(work) => self.add(work),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }
}
