//! A store on this thread with blocking calls, for one-shot commands.

use std::thread;

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Time};
use adit_kvstore::shard::{self, Action, Done, Outcome, Request};
use adit_kvstore::store::ObjectInfo;
use adit_kvstore::{Local, Quota, TenantId};

use crate::failure::{Failure, Result};

/// Objects listed at once.
const PAGE: usize = 1024;

/// An open store.
pub struct Session {
    local: Local,
}

impl Session {
    /// Wraps an open store.
    pub fn of(local: Local) -> Session {
        Session { local }
    }

    /// Returns the store.
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// Returns the store.
    pub fn local_mut(&mut self) -> &mut Local {
        &mut self.local
    }

    /// Executes an action; returns its outcome and its memory.
    ///
    /// # Errors
    /// Why the store failed.
    pub fn call(&mut self, action: Action) -> Result<(Outcome, AnyBuffer)> {
        Ok(self.batch(vec![action])?.pop().expect("one answer for one action"))
    }

    /// Executes actions together; returns each one's outcome and memory, in order.
    ///
    /// # Errors
    /// The store's first failure.
    pub fn batch(&mut self, actions: Vec<Action>) -> Result<Vec<(Outcome, AnyBuffer)>> {
        let count = actions.len();
        let request = |(reply, action)| Request { reply, deadline: Time::NEVER, action };
        self.local.submit_many(self.local.now(), (0..).zip(actions).map(request));
        let mut answers: Vec<Done> = Vec::with_capacity(count);
        while answers.len() < count {
            let turn = self.local.poll(self.local.now(), &mut |done| answers.push(done));
            if turn.moved == 0 {
                thread::yield_now();
            }
        }
        answers.sort_unstable_by_key(|done| done.reply);
        let each = answers.into_iter();
        each.map(|done| Ok((done.result.map_err(Failure::failed)?, done.memory))).collect()
    }

    /// Returns the tenant of this name, creating it if it is new.
    ///
    /// # Errors
    /// When there cannot be a tenant of this name, or the store failed.
    pub fn tenant(&mut self, name: &str) -> Result<TenantId> {
        self.definition(|local, now| local.tenant(now, name))
    }

    /// Sets or lifts a tenant's quota.
    ///
    /// # Errors
    /// As [`Local::set_quota`].
    pub fn set_quota(&mut self, tenant: TenantId, quota: Option<Quota>) -> Result<()> {
        self.definition(|local, now| local.set_quota(now, tenant, quota))
    }

    /// Makes a definition, once the journal has room for it.
    fn definition<T>(
        &mut self,
        mut define: impl FnMut(&mut Local, Time) -> std::result::Result<T, shard::Failure>,
    ) -> Result<T> {
        loop {
            let now = self.local.now();
            match define(&mut self.local, now) {
                Err(shard::Failure::Full) => self.commit()?,
                other => return other.map_err(Failure::failed),
            }
        }
    }

    /// Waits until all acknowledged data survives a power cut.
    ///
    /// # Errors
    /// Why the store failed.
    pub fn commit(&mut self) -> Result<()> {
        self.call(Action::Commit).map(|_| ())
    }

    /// Passes all objects whose keys begin with `prefix` to `each`, in no particular order.
    ///
    /// # Errors
    /// As `each`.
    pub fn scan(
        &self,
        prefix: &[u8],
        each: &mut dyn FnMut(ObjectInfo) -> Result<()>,
    ) -> Result<()> {
        let mut from = Some(0);
        while let Some(cursor) = from {
            let (page, next) = self.local.scan(self.local.now(), prefix, cursor, PAGE);
            page.into_iter().try_for_each(&mut *each)?;
            from = next;
        }
        Ok(())
    }

    /// Allocates memory for `bytes` of data on one device, in whole units.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn allocate(&self, device: u8, bytes: u64) -> Result<Buffer> {
        let whole = adit_kvstore::units(bytes.max(1)) * adit_kvstore::UNIT_BYTES;
        let whole = usize::try_from(whole).map_err(Failure::failed)?;
        let mut buffer = self.local.allocate_on(device, whole)?;
        drop(buffer.split_off(whole));
        Ok(buffer)
    }

    /// Makes everything durable and releases the devices.
    ///
    /// # Errors
    /// Why the store failed.
    pub fn close(self) -> Result<()> {
        Ok(self.local.close(&mut drop)?)
    }
}

/// Returns an answer's single buffer.
///
/// # Panics
/// If the request had none.
pub fn one(memory: AnyBuffer) -> Buffer {
    match memory {
        AnyBuffer::One(buffer) => buffer,
        _ => panic!("an answer gives the memory back"),
    }
}
