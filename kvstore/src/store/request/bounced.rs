//! Reads into the caller's memory that may pass through the store's.

use std::sync::Arc;

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;

use crate::error::{Error, Result};
use crate::model::object::Version;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Failure, Found, GetItem, Outcome, Part};
use crate::store::answer::{Read, ReadCheck, Reply};
use crate::store::memory::segments::{any, copy_at, joined, list, split};
use crate::store::memory::{
    CopyMode, CopyOut, DeviceReach, Pool, PoolBuffer, Pools, TimedTransfer, Unfinished,
};

const UNIT: usize = UNIT_BYTES as usize;

/// A read into the caller's memory that may pass through the store's.
pub(crate) struct BouncedRead {
    pub(super) reply: Reply<Read>,
    reach: Arc<DeviceReach>,
    /// The caller's memory, once the read has begun without the part that went along.
    into: Vec<Buffer>,
    /// Once the read has begun: the bytes of the caller's memory that went along, and the pool of the run behind them.
    taken: Option<(usize, Option<Arc<Pool>>)>,
    /// The time that the read takes, if its mode was chosen.
    timed: Option<TimedTransfer>,
    /// Memory that it waited for; the object may have changed since.
    granted: Option<PoolBuffer>,
    /// Whether all bytes pass through the store's memory and are verified there.
    is_checked: bool,
}

impl BouncedRead {
    pub(crate) fn new(
        reply: Reply<Read>,
        reach: &Arc<DeviceReach>,
        into: AnyBuffer,
    ) -> BouncedRead {
        let (reach, into) = (Arc::clone(reach), list(into));
        BouncedRead {
            reply,
            reach,
            into,
            taken: None,
            timed: None,
            granted: None,
            is_checked: false,
        }
    }

    /// Makes all bytes pass through the store's memory and be verified there.
    pub(crate) fn checked(self) -> BouncedRead {
        BouncedRead { is_checked: true, ..self }
    }

    /// Gives it the memory that it waited for.
    pub(super) fn grant(&mut self, buffer: PoolBuffer) {
        self.granted = Some(buffer);
    }

    /// Gives `item` memory for the part of the object that was found. Returns how many bytes it lacks if there are none
    /// now.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there never will be enough memory.
    pub(super) fn take(
        &mut self,
        found: Found,
        item: &mut GetItem,
        pools: &Pools,
    ) -> Result<Option<usize>> {
        let has: usize = self.into.iter().map(|buffer| buffer.len()).sum();
        let needs = needs(found, &item.part);
        self.is_checked &= pools.check_read(needs as u64, false).is_ok();
        let reaches =
            |buffer| !self.is_checked && self.reach.reaches(usize::from(found.device), buffer);
        let is_direct =
            self.into.iter().all(|buffer| reaches(buffer) && buffer.len().is_multiple_of(UNIT));
        let is_empty = found.bytes == 0;
        if !is_empty && (is_direct || needs == 0 || needs > has) {
            if is_direct && needs <= has {
                self.timed = self.reach.begin_read(found.device, &self.into, needs);
            }
            let is_copied = self.timed.as_ref().is_some_and(|one| one.mode == CopyMode::Copied);
            let pool = pools.of_device(found.device);
            match is_copied.then(|| pool.take(needs)).flatten() {
                Some(taken) => {
                    let (run, pool) = taken.into_parts();
                    self.taken = Some((0, Some(pool)));
                    item.into = AnyBuffer::One(run);
                }
                // If something is wrong, the shard says so.
                None => {
                    self.taken = Some((has, None));
                    item.into = any(std::mem::take(&mut self.into));
                }
            }
            return Ok(None);
        }
        let head =
            if self.into.len() == 1 && reaches(&self.into[0]) { needs / UNIT * UNIT } else { 0 };
        let through = needs - head;
        let mut run = None;
        if through > 0 || is_empty {
            pools.check_read(through as u64, matches!(item.part, Part::Bytes(_)))?;
            let pool = pools.of_device(found.device);
            let granted = self.granted.take().filter(|granted| granted.is_for(through, pool));
            let Some(taken) = granted.or_else(|| pool.take(through)) else {
                return Ok(Some(through));
            };
            run = Some(taken.into_parts());
        }
        let (along, rest) = split(std::mem::take(&mut self.into), head);
        self.into = rest;
        let (run, pool) = run.unzip();
        self.taken = Some((head, pool));
        item.into = any(along.into_iter().chain(run).collect());
        Ok(None)
    }

    /// Ends without having begun, and returns the caller's memory.
    pub(super) fn refuse(self, error: impl Into<Error>) {
        self.reply.send(Err(Unfinished::with(error, any(self.into))));
    }

    /// Delivers `bytes` that were read. The caller's thread verifies them by `check`, and copies those that passed
    /// through the pool. A [checked](Self::checked) read is verified here.
    pub(super) fn answer_unverified(
        self,
        bytes: u64,
        (memory, version): (AnyBuffer, Option<Version>),
        check: ReadCheck,
    ) {
        if self.is_checked {
            let AnyBuffer::One(run) = &memory else { unreachable!("it was read into one run") };
            let outcome = match check.verify_bytes(&run[..bytes as usize]) {
                true => Outcome::Hit { bytes },
                false => Outcome::Miss,
            };
            return self.answer(Ok(outcome), memory, version);
        }
        let BouncedRead { reply, reach, into, taken, mut timed, .. } = self;
        timed.iter_mut().for_each(TimedTransfer::done);
        let mut parts = list(memory);
        let (head, pool) = taken.expect("what was read had memory");
        let run = pool.map(|pool| {
            let run = parts.pop().expect("the run comes back behind the caller's memory");
            PoolBuffer::of(run, bytes as usize - head, &pool)
        });
        let (in_place, counts) = (head.min(bytes as usize), Arc::clone(reach.counts()));
        let copy_out = CopyOut { run, into, in_place, timed, counts };
        let read = Read { bytes: Some(bytes), memory: any(parts), version };
        reply.send_unverified(read, check.through(copy_out), Read::verified);
    }

    /// Returns the reply and the caller's memory, into which `bytes` that were read are copied.
    fn restored(mut self, bytes: Option<u64>, memory: AnyBuffer) -> (Reply<Read>, AnyBuffer) {
        let mut parts = list(memory);
        self.timed.iter_mut().filter(|_| bytes.is_some()).for_each(TimedTransfer::done);
        let (head, pool) = self.taken.take().unwrap_or_default();
        if let Some(pool) = pool {
            let run = parts.pop().expect("the run comes back behind the caller's memory");
            if let Some(bytes) = bytes {
                let through = bytes as usize - head;
                copy_at(0, &run[..through], &mut self.into);
                self.reach.counts().count_copy(through);
            }
            drop(PoolBuffer::of(run, 0, &pool));
        }
        let in_place = bytes.map_or(0, |bytes| head.min(bytes as usize));
        self.reach.counts().count_in_place(in_place);
        (self.reply, any(joined(parts, self.into)))
    }

    /// Delivers the answer, and copies the bytes that passed through the pool.
    pub(super) fn answer(
        self,
        result: Result<Outcome, Failure>,
        memory: AnyBuffer,
        version: Option<Version>,
    ) {
        let bytes = match result {
            Ok(Outcome::Hit { bytes }) => Some(bytes),
            _ => None,
        };
        let (reply, memory) = self.restored(bytes, memory);
        reply.send(Read::of(result, memory, version));
    }
}

/// Returns the bytes that a part of an object takes.
fn needs(found: Found, part: &Part) -> usize {
    let all = found.bytes as usize;
    match part {
        Part::All => all,
        Part::Layer(_) => found.piece_bytes as usize,
        Part::Bytes(range) => (range.end.min(found.bytes).saturating_sub(range.start)) as usize,
    }
}
