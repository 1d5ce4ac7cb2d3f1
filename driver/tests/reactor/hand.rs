//! A lane driven by hand, with its client and the software controller behind it.

use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::reactor::{Client, Data, Lane, Pending, ReactorOptions, Turn, Unfinished};
use adit_driver::{Completion, Time};

use crate::rig::Rig;

/// How long a request may take in virtual time, whatever goes wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request's result, as its sender sees it.
pub(crate) type Ended<D> = Result<Completion<D>, Unfinished<D>>;

pub(crate) struct Hand {
    pub(crate) rig: Rig,
    pub(crate) lane: Lane,
    pub(crate) client: Client,
}

impl Hand {
    pub(crate) fn new(tail: &str, options: &ReactorOptions) -> Hand {
        Hand::over(Rig::new(tail), options)
    }

    pub(crate) fn over(rig: Rig, options: &ReactorOptions) -> Hand {
        let (lane, client) =
            Lane::attach(&rig.controller, &rig.namespace, options).expect("a lane");
        Hand { rig, lane, client }
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Buffer {
        self.rig.controller.allocate(bytes).expect("memory")
    }

    pub(crate) fn now(&self) -> Time {
        self.rig.now()
    }

    pub(crate) fn turn(&mut self) -> Turn {
        let now = self.lane.now();
        self.lane.turn(now)
    }

    pub(crate) fn exchange(&mut self) {
        self.turn();
        self.rig.settle();
        self.turn();
    }

    /// Turns and steps until the request has ended, a millisecond each.
    pub(crate) fn finish<D: Data>(&mut self, mut pending: Pending<D>) -> Ended<D> {
        let started = self.now();
        loop {
            self.exchange();
            match pending.try_wait() {
                Ok(ended) => return ended,
                Err(not_yet) => pending = not_yet,
            }
            let waited = self.now().since(started);
            assert!(waited < PATIENCE, "no end after {waited:?}: {:?}", self.lane);
            self.rig.bus.soft.advance(Duration::from_millis(1));
        }
    }

    /// Closes everything and checks that nothing is left.
    pub(crate) fn close(self) {
        let Hand { rig, mut lane, client } = self;
        drop(client);
        lane.turn(lane.now());
        assert!(lane.is_over(), "its clients are gone and nothing is on its way: {lane:?}");
        drop(lane);
        rig.finish();
    }
}

/// Returns the completion of a request that the device completed or failed.
pub(crate) fn completion<D: Data>(ended: Ended<D>) -> Completion<D> {
    match ended {
        Ok(completion) => completion,
        Err(unfinished) => panic!("it did not complete: {unfinished}"),
    }
}
