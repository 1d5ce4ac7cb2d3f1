//! A store on this thread, one call after another: what one-shot commands need.

use std::thread;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Target, Time};
use adit_kvstore::shard::{Action, Done, Outcome, Request};
use adit_kvstore::store::ObjectInfo;
use adit_kvstore::{Key, Local, OpenOptions, Store};

use super::store;
use crate::failure::{Failure, Result};

/// Objects that are listed at once.
const PAGE: usize = 1024;
/// Between two looks at whether an answer is there.
const LOOK: Duration = Duration::from_micros(20);
/// The tag of all requests: there is one at a time.
const TAG: u64 = 1;

/// A store that is open.
pub struct Session {
    local: Local,
}

impl Session {
    /// Opens the store on `targets`.
    ///
    /// # Errors
    /// As [`Store::open_local`].
    pub fn open(targets: Vec<Target>) -> Result<Session> {
        store::check_there(&targets, store::NO_STORE)?;
        Ok(Session::of(Store::open_local(&OpenOptions::new(targets))?))
    }

    /// One that is open.
    pub fn of(local: Local) -> Session {
        Session { local }
    }

    /// The store.
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// The store.
    pub fn local_mut(&mut self) -> &mut Local {
        &mut self.local
    }

    /// Does one thing and waits until it is done; what came of it, and the memory.
    ///
    /// # Errors
    /// Why the store could not.
    pub(crate) fn call(&mut self, action: Action) -> Result<(Outcome, AnyBuffer)> {
        let request = Request { tag: TAG, deadline: Time::NEVER, action };
        self.local.submit(self.local.now(), request);
        let mut answer: Option<Done> = None;
        loop {
            let turn = self.local.poll(self.local.now(), &mut |done| answer = Some(done));
            if let Some(done) = answer.take() {
                return Ok((done.result.map_err(Failure::failed)?, done.memory));
            }
            if turn.moved == 0 {
                thread::sleep(LOOK);
            }
        }
    }

    /// Does `count` things that are one request and waits until all are done; what came of each in order, and the
    /// memory.
    ///
    /// # Errors
    /// Why the store could not, by the first that it could not.
    pub(crate) fn batch(
        &mut self,
        action: Action,
        count: usize,
    ) -> Result<Vec<(Outcome, AnyBuffer)>> {
        let request = Request { tag: TAG, deadline: Time::NEVER, action };
        self.local.submit(self.local.now(), request);
        let mut answers: Vec<Done> = Vec::with_capacity(count);
        while answers.len() < count {
            let turn = self.local.poll(self.local.now(), &mut |done| answers.push(done));
            if turn.moved == 0 {
                thread::yield_now();
            }
        }
        answers.sort_unstable_by_key(|done| done.item);
        let each = answers.into_iter();
        each.map(|done| Ok((done.result.map_err(Failure::failed)?, done.memory))).collect()
    }

    /// Waits until all that was acknowledged survives a power cut.
    ///
    /// # Errors
    /// Why the store could not.
    pub fn commit(&mut self) -> Result<()> {
        self.call(Action::Commit).map(|_| ())
    }

    /// What is known of an object.
    pub(crate) fn info(&self, key: &Key) -> Option<ObjectInfo> {
        self.local.info(self.local.now(), key)
    }

    /// Shows all objects to `each`, in no particular order.
    ///
    /// # Errors
    /// As `each`.
    pub fn scan(&self, each: &mut dyn FnMut(ObjectInfo) -> Result<()>) -> Result<()> {
        let mut from = Some(0);
        while let Some(cursor) = from {
            let (page, next) = self.local.scan(self.local.now(), cursor, PAGE);
            page.into_iter().try_for_each(&mut *each)?;
            from = next;
        }
        Ok(())
    }

    /// Memory for data of `bytes` on one device, whole units.
    ///
    /// # Errors
    /// When there is no more.
    pub(crate) fn allocate(&self, device: u8, bytes: u64) -> Result<Buffer> {
        let whole = adit_kvstore::units(bytes.max(1)) * adit_kvstore::UNIT_BYTES;
        let whole = usize::try_from(whole).map_err(Failure::failed)?;
        let mut buffer = self.local.allocate_on(device, whole)?;
        drop(buffer.split_off(whole));
        Ok(buffer)
    }

    /// Makes everything durable and lets the devices go.
    ///
    /// # Errors
    /// Why the store could not.
    pub fn close(self) -> Result<()> {
        Ok(self.local.close(&mut drop)?)
    }
}

/// The buffer of an answer, where one was given.
///
/// # Panics
/// If it was not one.
pub(crate) fn one(memory: AnyBuffer) -> Buffer {
    match memory {
        AnyBuffer::One(buffer) => buffer,
        _ => panic!("an answer gives the memory back"),
    }
}
