//! An object that is written in parts, in any order, and stays invisible until it is committed.

use std::fmt;
use std::sync::Arc;

use adit_driver::memory::AnyBuffer;

use crate::error::Failure;
use crate::model::object::piece_bytes;
use crate::shard::{Action, FillItem, Outcome, Part, WriterId};
use crate::store::answer::{Pending, Reply, ready};
use crate::store::core::{Core, Made};
use crate::store::memory::{Data, Payload, PoolBuffer, RegisteredData, Unfinished};
use crate::store::request::{Asked, Caller, Unequipped, WriterCaller};

/// Room for an object. Dropping it before [`Writer::commit`] gives the room back.
#[must_use = "dropping it gives the room back"]
pub struct Writer {
    core: Arc<Core>,
    shard: u16,
    /// The hash of its key.
    hash: u64,
    id: WriterId,
    bytes: u64,
    /// Where the object lies, and so which memory its parts need.
    device: u8,
    is_over: bool,
}

impl Writer {
    /// Returns the object's length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of a piece. Parts begin at multiples of it, and end at one or at the object's end.
    pub fn piece_bytes(&self) -> u64 {
        piece_bytes(self.bytes)
    }

    /// Writes `data` at byte `offset`. Each part is written once. Lent memory comes back with the answer. Plain bytes
    /// are copied, as by [`Store::put`](crate::store::Store::put).
    pub fn fill<'a>(&self, offset: u64, data: impl Into<Payload<'a>>) -> Pending<AnyBuffer> {
        let data = data.into();
        let end = offset.saturating_add(data.bytes());
        self.core.send(self.fill_request(Part::Bytes(offset..end), data))
    }

    /// Lends `len` bytes of the store's registered memory, to be filled and passed to [`Writer::fill`] without a
    /// copy. In a store on several controllers use this instead of [`Store::buffer`](crate::store::Store::buffer),
    /// whose memory may belong to another controller.
    ///
    /// Fails as [`Store::buffer`](crate::store::Store::buffer).
    pub fn buffer(&self, len: usize) -> Pending<PoolBuffer> {
        self.core.buffer(len, Some(self.device))
    }

    /// Makes the request that writes a part.
    pub(super) fn fill_request(&self, part: Part, data: Payload<'_>) -> Made<AnyBuffer> {
        let data = match self.core.reach.register(data, Some(self.device), &mut false) {
            Ok(data) => data,
            Err(unfinished) => return (None, ready(Err(unfinished))),
        };
        let (reply, pending) = self.core.pair();
        let item = |data| FillItem { writer: self.id, part, data };
        let asked = match data {
            Data::Registered(RegisteredData { memory, origin, .. }) => {
                let caller = Caller::Fill { reply, origin };
                Asked::Ready(self.core.request(0, Action::Fill(item(memory)), caller))
            }
            Data::Unregistered(waiting) => {
                let item = item(AnyBuffer::None);
                Asked::Unequipped(Unequipped::fill(self.core.times(), (reply, item), waiting))
            }
        };
        (Some((self.shard, asked)), pending)
    }

    /// Turns the parts into an object, atomically. Fill every part and wait for the answers first. On failure the
    /// room is given back.
    pub fn commit(self) -> Pending<Outcome> {
        let (core, hash, action) = (Arc::clone(&self.core), self.hash, Action::Seal(self.id));
        let (reply, pending) = core.pair();
        let caller = Caller::Writer(Box::new(Sealing { reply, writer: self }));
        core.send(core.made((hash, action), (caller, pending)))
    }
}

/// The caller of a reservation.
pub(super) struct Reserving {
    pub(super) reply: Reply<Writer>,
    pub(super) core: Arc<Core>,
    pub(super) shard: u16,
    pub(super) hash: u64,
    pub(super) bytes: u64,
}

impl WriterCaller for Reserving {
    fn is_wanted(&self) -> bool {
        self.reply.is_wanted()
    }

    fn answer(self: Box<Self>, result: Result<Outcome, Failure>) {
        let Reserving { reply, core, shard, hash, bytes } = *self;
        reply.send(match result {
            Ok(Outcome::Reserved { writer: id, device }) => {
                Ok(Writer { core, shard, hash, id, bytes, device, is_over: false })
            }
            Ok(Outcome::Declined(why)) => Err(Unfinished::new(Failure::Declined(why))),
            Ok(other) => unreachable!("a reservation ends with a writer, not {other:?}"),
            Err(failure) => Err(Unfinished::new(failure)),
        });
    }
}

/// The caller of a commit. If sealing fails, dropping the writer gives its room back.
struct Sealing {
    reply: Reply<Outcome>,
    writer: Writer,
}

impl WriterCaller for Sealing {
    fn is_wanted(&self) -> bool {
        self.reply.is_wanted()
    }

    fn answer(self: Box<Self>, result: Result<Outcome, Failure>) {
        let Sealing { reply, mut writer } = *self;
        writer.is_over = result.is_ok();
        drop(writer);
        reply.send(result.map_err(Unfinished::new));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_over {
            // An uncommitted object ends with its shard.
            let id = self.id;
            self.core.end(self.shard, move |shard| shard.abandon(id));
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({} bytes, {:?} of shard {})", self.bytes, self.id, self.shard)
    }
}
