//! An object that is written in parts, in any order, and stays invisible until it is committed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use adit_driver::memory::AnyBuffer;

use super::core::{Core, Registered};
use super::job::{FillReply, Item, Job, SealReply, Work};
use super::payload::Payload;
use super::pending::Pending;
use super::pool::PoolBuffer;
use crate::error::Result;
use crate::model::object::piece_bytes;
use crate::shard::{FillItem, Outcome, Part, WriterId};

/// Room for an object. Dropping it before [`Writer::commit`] gives the room back.
#[must_use = "dropping it gives the room back"]
pub struct Writer {
    core: Arc<Core>,
    shard: u16,
    id: WriterId,
    bytes: u64,
    device: OnceLock<Option<u8>>,
    is_over: bool,
}

impl Writer {
    pub(super) fn new(core: Arc<Core>, shard: u16, id: WriterId, bytes: u64) -> Writer {
        Writer { core, shard, id, bytes, device: OnceLock::new(), is_over: false }
    }

    /// Returns the object's length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of a piece. Parts begin at multiples of it, and end at one or at the object's end.
    pub fn piece_bytes(&self) -> u64 {
        piece_bytes(self.bytes)
    }

    /// Writes `data` at byte `offset`. Each part is written once. Lent memory comes back with the answer. Waits for
    /// registered memory if `data` is copied, and for room in the mailbox.
    pub fn fill<'a>(&self, offset: u64, data: impl Into<Payload<'a>>) -> Pending<AnyBuffer> {
        let data = data.into();
        let end = offset.saturating_add(data.bytes());
        self.fill_part(Part::Bytes(offset..end), data)
    }

    /// Writes one layer of a KV block: its tensors one after another, each padded to units of 4 KiB.
    pub fn fill_layer<'a>(&self, layer: u32, data: impl Into<Payload<'a>>) -> Pending<AnyBuffer> {
        self.fill_part(Part::Layer(layer), data.into())
    }

    /// Returns `len` bytes of the store's registered memory, to be filled and passed to [`Writer::fill`] without a
    /// copy. Blocks until some is free. In a store on several controllers use this instead of
    /// [`super::Store::buffer`], whose memory may belong to another controller.
    ///
    /// # Errors
    /// As [`super::Store::buffer`].
    pub fn buffer(&self, len: usize) -> Result<PoolBuffer> {
        self.core.buffer(len, self.device())
    }

    /// Returns the object's device, if memory depends on it.
    pub(super) fn device(&self) -> Option<u8> {
        if self.core.pools.count() == 1 {
            return None;
        }
        let id = self.id;
        let ask = || self.core.ask(self.shard, move |shard, _| Ok(shard.writer_device(id)));
        // Without an answer the store is closed; the next write reports that.
        *self.device.get_or_init(|| ask().wait().ok().flatten())
    }

    fn fill_part(&self, part: Part, data: Payload<'_>) -> Pending<AnyBuffer> {
        let (device, until) = (self.device(), self.core.until());
        let registered = match self.core.register(until, data, device) {
            Ok(registered) => registered,
            Err(error) => return self.core.refused(error),
        };
        let (item, pending) = self.fill_item(part, registered);
        self.core.send_by(until, self.shard, Work::One(item));
        pending
    }

    /// Builds the job that writes a part.
    pub(super) fn fill_item(
        &self,
        part: Part,
        registered: Registered,
    ) -> (Item, Pending<AnyBuffer>) {
        let Registered { memory, home, .. } = registered;
        let (reply, pending) = self.core.pair();
        let item = FillItem { writer: self.id, part, data: memory };
        (Item::Fill(item, FillReply { reply, home }), pending)
    }

    /// Returns the shard that owns its object.
    pub(super) fn shard(&self) -> u16 {
        self.shard
    }

    /// Turns the parts into an object, atomically. Fill every part and wait for the answers first. On failure the
    /// room is given back.
    pub fn commit(self) -> Pending<Outcome> {
        let (core, shard) = (Arc::clone(&self.core), self.shard);
        let (reply, pending) = core.pair();
        core.send(shard, Work::One(Item::Seal(SealReply { reply, writer: self })));
        pending
    }

    pub(super) fn id(&self) -> WriterId {
        self.id
    }

    /// Records that it is an object now.
    pub(super) fn sealed(mut self) {
        self.is_over = true;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_over {
            let (id, deadline) = (self.id, adit_driver::Time::NEVER);
            let work = Work::Ask(Box::new(move |there| {
                // An uncommitted object ends with its shard.
                if let Ok((shard, _)) = there {
                    shard.abandon(id);
                }
            }));
            let job = Job { shard: self.shard, deadline, work };
            // A writer has ended with a store that has stopped.
            let _ = self.core.mailbox(self.shard).send_urgent(job);
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({} bytes, {:?} of shard {})", self.bytes, self.id, self.shard)
    }
}
