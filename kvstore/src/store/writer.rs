//! An object that is written in parts, in any order, and stays invisible until it is committed.

use std::fmt;
use std::sync::Arc;

use adit_driver::memory::AnyBuffer;

use super::core::{Core, Registered};
use super::payload::Payload;
use super::pending::{Answer, Pending, Reply, Unfinished};
use super::pool::PoolBuffer;
use super::request::{Caller, Waiter, WriterCaller};
use crate::model::object::piece_bytes;
use crate::shard::{Action, Failure, FillItem, Hashed, Outcome, Part, WriterId};

/// Room for an object. Dropping it before [`Writer::commit`] gives the room back.
#[must_use = "dropping it gives the room back"]
pub struct Writer {
    core: Arc<Core>,
    shard: u16,
    /// Of its key.
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
    /// are copied, as by [`super::Store::put`].
    pub fn fill<'a>(&self, offset: u64, data: impl Into<Payload<'a>>) -> Pending<AnyBuffer> {
        let data = data.into();
        let end = offset.saturating_add(data.bytes());
        self.fill_part(Part::Bytes(offset..end), data)
    }

    /// Writes one layer of a KV block: its tensors one after another, each padded to units of 4 KiB.
    pub fn fill_layer<'a>(&self, layer: u32, data: impl Into<Payload<'a>>) -> Pending<AnyBuffer> {
        self.fill_part(Part::Layer(layer), data.into())
    }

    /// Lends `len` bytes of the store's registered memory, to be filled and passed to [`Writer::fill`] without a copy.
    /// In a store on several controllers use this instead of [`super::Store::buffer`], whose memory may belong to
    /// another controller.
    ///
    /// Fails as [`super::Store::buffer`].
    pub fn buffer(&self, len: usize) -> Pending<PoolBuffer> {
        self.core.buffer(len, Some(self.device))
    }

    fn fill_part(&self, part: Part, data: Payload<'_>) -> Pending<AnyBuffer> {
        match self.register(data) {
            Ok(registered) => {
                let (request, pending) = self.fill_request(part, registered);
                self.core.send_to(self.shard, request);
                pending
            }
            Err(unfinished) => self.core.failed(unfinished),
        }
    }

    /// Returns a part's data in registered memory, or on the heap until there is some.
    pub(super) fn register(&self, data: Payload<'_>) -> Answer<Registered> {
        self.core.register(data, Some(self.device))
    }

    /// Makes the request that writes a part.
    pub(super) fn fill_request(
        &self,
        part: Part,
        registered: Registered,
    ) -> (Hashed<Waiter>, Pending<AnyBuffer>) {
        let Registered { memory, source, .. } = registered;
        let (reply, pending) = self.core.pair();
        let item = FillItem { writer: self.id, part, data: memory };
        (self.core.request(0, Action::Fill(item), Caller::Fill { reply, source }), pending)
    }

    /// Returns the shard that owns its object.
    pub(super) fn shard(&self) -> u16 {
        self.shard
    }

    /// Turns the parts into an object, atomically. Fill every part and wait for the answers first. On failure the
    /// room is given back.
    pub fn commit(self) -> Pending<Outcome> {
        let (core, shard, hash) = (Arc::clone(&self.core), self.shard, self.hash);
        let (reply, pending) = core.pair();
        let action = Action::Seal(self.id);
        let waiter = Caller::Writer(Box::new(Sealing { reply, writer: self }));
        let request = core.request(hash, action, waiter);
        core.send_to(shard, request);
        pending
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
