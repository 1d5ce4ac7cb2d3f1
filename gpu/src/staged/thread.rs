//! A thread of the staged engine: turns a lane for each device.

use std::any::Any;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_driver::runtime::{Round, Worker};

use super::copies::Copies;
use super::lane::Lane;
use super::stats::Stats;
use super::work::Work;

/// Longest time between turns, which look after the queues of idle lanes.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The lanes' counters as a thread last published them.
#[derive(Default)]
pub(super) struct Published(Mutex<Stats>);

impl Published {
    pub(super) fn stats(&self) -> Stats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Lanes<C: Copies> {
    pub(super) lanes: Vec<Lane<C>>,
    pub(super) work: Receiver<Work<C::Event>>,
    pub(super) published: Arc<Published>,
    /// Dropped after the lanes: the memory that their copies access.
    pub(super) keep: Arc<dyn Any + Send + Sync>,
}

impl<C: Copies> Worker for Lanes<C> {
    type End = ();

    fn round(&mut self) -> Round {
        let mut moved = self.take_work();
        for lane in &mut self.lanes {
            let now = lane.now();
            moved += lane.turn(now);
        }
        if moved > 0 {
            self.publish();
        }
        let naps = !self.lanes.iter().all(Lane::is_idle);
        Round { moved, due_in: LOOK_EVERY, naps }
    }

    /// Ends what is in flight. If a copy may still go on, leaks what it accesses.
    fn end(&mut self) -> Option<()> {
        // Work not begun also becomes a job, because ending jobs tells the GPU, whose streams may wait for it.
        self.take_work();
        self.lanes.iter_mut().for_each(Lane::close);
        self.publish();
        if self.lanes.iter().any(Lane::has_lost) {
            tracing::error!(
                "leaking the pool and the blocks' words, which the GPU may still write"
            );
            std::mem::forget(Arc::clone(&self.keep));
        }
        Some(())
    }
}

impl<C: Copies> Lanes<C> {
    /// Hands the work that arrived to the lanes; returns how much.
    fn take_work(&mut self) -> usize {
        let Lanes { lanes, work, .. } = self;
        work.try_iter().map(|work| lanes[work.device].add(work)).count()
    }

    fn publish(&self) {
        let mut sum = Stats::default();
        for lane in &self.lanes {
            sum += lane.stats();
        }
        *self.published.0.lock().unwrap_or_else(PoisonError::into_inner) = sum;
    }
}
