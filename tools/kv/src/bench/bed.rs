//! The store that a load runs on: one of this process, one that is served, or a model of one in tests.

use std::time::Duration;

use adit_driver::{Buffer, Time};
use adit_kvstore::shard::{Done, Outcome, Request, Stats, Turn};
use adit_kvstore::{Error, Key};

use crate::failure::Result;
use adit_tools_common::session::{Session, one};

/// The longest wait for a request that ends none of those in flight, so that a run ends when it should.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(5);

/// The end of a request.
pub(super) struct EndedRequest {
    /// The number that the request carried.
    pub(super) reply: u64,
    /// How it ended.
    pub(super) result: std::result::Result<Outcome, Error>,
    /// The request's memory.
    pub(super) memory: Buffer,
}

/// The part of a store that a load needs.
pub(super) trait Bed {
    /// Returns the current time.
    fn now(&self) -> Time;

    /// Submits gets and puts that are planned together.
    fn submit(&mut self, now: Time, requests: impl Iterator<Item = Request>);

    /// Passes the end of each request to `ended`; returns how many there were. Without any, it may have waited briefly.
    fn poll(&mut self, now: Time, ended: &mut dyn FnMut(EndedRequest)) -> usize;

    /// Returns how many of `keys` exist before the first that is missing.
    ///
    /// # Errors
    /// Why the store failed.
    fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> Result<usize>;

    /// Allocates memory for requests.
    ///
    /// # Errors
    /// When there is not enough memory.
    fn allocate(&mut self, bytes: usize) -> Result<Buffer>;
}

/// A store whose counters and objects a run needs to know.
pub(super) trait Measured: Bed {
    /// Returns the store's counters.
    ///
    /// # Errors
    /// Why the store failed.
    fn stats(&self) -> Result<Stats>;

    /// Returns the most objects that it holds, as far as that is known.
    fn objects_max(&self) -> u64;

    /// Waits until all acknowledged data survives a power cut.
    ///
    /// # Errors
    /// Why the store failed.
    fn commit(&mut self) -> Result<()>;

    /// Passes the key of every object to `each`, in no particular order.
    ///
    /// # Errors
    /// Why the store failed.
    fn keys(&self, each: &mut dyn FnMut(&Key)) -> Result<()>;
}

impl Bed for Session {
    fn now(&self) -> Time {
        self.local().now()
    }

    fn submit(&mut self, now: Time, requests: impl Iterator<Item = Request>) {
        self.local_mut().submit_many(now, requests);
    }

    fn poll(&mut self, now: Time, ended: &mut dyn FnMut(EndedRequest)) -> usize {
        let local = self.local_mut();
        let Turn { moved, next, .. } = local.poll(now, &mut |done: Done| {
            let result = done.result.map_err(Error::from);
            ended(EndedRequest { reply: done.reply, result, memory: one(done.memory) });
        });
        // The software controller or the kernel may need this CPU.
        if moved == 0 && !local.wait(next.since(now).min(SLEEP_MAX)) {
            std::thread::yield_now();
        }
        moved
    }

    fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> Result<usize> {
        Ok(self.local_mut().lookup_prefix(now, keys))
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer> {
        Ok(self.local_mut().allocate(bytes)?)
    }
}

impl Measured for Session {
    fn stats(&self) -> Result<Stats> {
        Ok(self.local().stats())
    }

    fn objects_max(&self) -> u64 {
        let set = self.local().set();
        u64::from(set.objects_max()) * u64::from(set.shards())
    }

    fn commit(&mut self) -> Result<()> {
        Session::commit(self)
    }

    fn keys(&self, each: &mut dyn FnMut(&Key)) -> Result<()> {
        self.scan(&[], &mut |info| {
            each(&info.key);
            Ok(())
        })
    }
}
