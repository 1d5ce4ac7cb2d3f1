//! A reactor's thread: turns its lanes in rounds.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::Lane;
use crate::runtime::{Mailbox, Round, Worker};

/// The lanes of one thread.
pub(super) struct Lanes {
    /// New lanes.
    inbox: Arc<Mailbox<Lane>>,
    lanes: Vec<Lane>,
    drain_timeout: Duration,
    /// Limit for unfinished requests; set once the thread must stop.
    drain_until: Option<Instant>,
}

impl Lanes {
    pub(super) fn new(inbox: Arc<Mailbox<Lane>>, drain_timeout: Duration) -> Lanes {
        Lanes { inbox, lanes: Vec::new(), drain_timeout, drain_until: None }
    }
}

impl Worker for Lanes {
    type End = ();

    fn round(&mut self) -> Round {
        self.lanes.extend(std::iter::from_fn(|| self.inbox.take()));
        let mut round = Round { moved: 0, due_in: Duration::MAX, naps: false };
        for lane in &mut self.lanes {
            let now = lane.now();
            let turn = lane.turn(now);
            round.moved += turn.moved;
            round.due_in = round.due_in.min(turn.next.since(now));
            round.naps |= turn.in_flight > 0 && lane.interrupt().is_none();
        }
        if round.moved == 0 {
            self.lanes.retain(|lane| !lane.is_over());
        }
        round
    }

    fn end(&mut self) -> Option<()> {
        let now = Instant::now();
        self.lanes.iter().for_each(Lane::stop);
        let until = *self.drain_until.get_or_insert(now + self.drain_timeout);
        if now >= until && !self.lanes.is_empty() {
            tracing::warn!("the reactor stops with requests unfinished; drain_timeout has passed");
        }
        (self.lanes.is_empty() || now >= until).then_some(())
    }

    fn interrupts(&self) -> Vec<BorrowedFd<'_>> {
        self.lanes.iter().filter_map(Lane::interrupt).collect()
    }
}

impl Drop for Lanes {
    /// Drops the lanes that come too late, then its own.
    fn drop(&mut self) {
        self.inbox.close();
    }
}
