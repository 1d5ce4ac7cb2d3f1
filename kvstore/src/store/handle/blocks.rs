//! KV blocks of a model: stored as sequences, read and written layer by layer.
//!
//! A call sends one request to each shard that owns some of the blocks, so that the same layer of neighbouring blocks
//! shares commands. The memory of a layer holds its tensors one after another, each padded to units of 4 KiB:
//! [`crate::model::layout::Layout::run_units`] in all.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use adit_driver::memory::AnyBuffer;

use super::Store;
use super::writer::Writer;
use crate::error::{Error, Result};
use crate::model::key::Key;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Outcome, Part};
use crate::store::answer::{Answer, Batch, Pending, Put, Read, Whole, ready};
use crate::store::core::{Core, Made};
use crate::store::memory::{Payload, PoolBuffer, Unfinished};
use crate::store::request::{DefinedLayout, PutWith};

impl Store {
    /// Stores the KV blocks of one sequence, in order. Within each shard they are placed one after another, the first
    /// behind [`PutWith::after`]. A block's data is all its tensors, each padded to units. `layout` overrides the
    /// layout in `with`.
    pub fn put_blocks<'a, D: Into<Payload<'a>>>(
        &self,
        layout: &DefinedLayout,
        blocks: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Batch<Put> {
        let mut sequence = Sequence::new(layout, with, self.core.shards);
        let mut is_short = false;
        self.core.send_all(blocks.into_iter().map(|(key, data)| {
            let data = match self.core.reach.register(data.into(), None, &mut is_short) {
                Ok(data) => data,
                Err(unfinished) => return (None, ready(Err(unfinished))),
            };
            let hash = self.core.hash(&key);
            // A block that waits for memory is placed apart from its list.
            let with = sequence.next(self.core.shard(hash), &key, is_short);
            self.registered_put(hash, key, data, &with)
        }))
    }

    /// Reads one layer of KV blocks into the caller's registered memory, such as the pages of a paged cache. The
    /// memory comes back with each answer.
    pub fn get_layer(
        &self,
        layer: u32,
        blocks: impl IntoIterator<Item = (Key, AnyBuffer)>,
    ) -> Batch<Read> {
        let part = |(key, into)| (key, Part::Layer(layer), into);
        self.get_many_into(blocks.into_iter().map(part))
    }

    /// Reserves room for the KV blocks of one sequence, to be written layer by layer. Blocks are placed as by
    /// [`Store::put_blocks`]. Fails with the error of the first block without room; then no room is kept for any block.
    pub fn reserve_blocks(
        &self,
        layout: &DefinedLayout,
        keys: impl IntoIterator<Item = Key>,
        with: &PutWith,
    ) -> ReservedBlocks {
        let mut sequence = Sequence::new(layout, with, self.core.shards);
        let bytes = layout.layout().block_units() * UNIT_BYTES;
        let writers = self.core.send_all(keys.into_iter().map(|key| {
            let with = sequence.next(self.core.route(&key), &key, false);
            self.reserve_request(key, bytes, &with)
        }));
        let layer_bytes = layout.layout().run_units() * UNIT_BYTES;
        ReservedBlocks { core: Arc::clone(&self.core), writers: writers.into_future(), layer_bytes }
    }
}

/// A future of a [`BlocksWriter`], or a blocking [`ReservedBlocks::wait`]. Dropping it gives the room back.
#[must_use = "dropping it gives the room back"]
pub struct ReservedBlocks {
    core: Arc<Core>,
    writers: Whole<Writer>,
    layer_bytes: u64,
}

impl ReservedBlocks {
    /// Blocks until there is room for all blocks.
    ///
    /// # Errors
    /// The error of the first block without room.
    pub fn wait(self) -> Result<BlocksWriter> {
        let ReservedBlocks { core, writers, layer_bytes } = self;
        BlocksWriter::new(core, writers.wait(), layer_bytes)
    }
}

impl Future for ReservedBlocks {
    type Output = Result<BlocksWriter>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<BlocksWriter>> {
        let writers = Pin::new(&mut self.writers).poll(context);
        let (core, layer_bytes) = (Arc::clone(&self.core), self.layer_bytes);
        writers.map(|writers| BlocksWriter::new(core, writers, layer_bytes))
    }
}

impl fmt::Debug for ReservedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservedBlocks({} bytes a layer)", self.layer_bytes)
    }
}

/// Produces the options for each block of a sequence.
struct Sequence {
    with: PutWith,
    /// For each shard, the block that the next one follows, and whether that is one of the sequence.
    last: Vec<(Option<Key>, bool)>,
}

impl Sequence {
    fn new(layout: &DefinedLayout, with: &PutWith, shards: u16) -> Sequence {
        let last = vec![(with.after.clone(), false); usize::from(shards)];
        Sequence { with: PutWith { layout: Some(layout.clone()), ..with.clone() }, last }
    }

    /// Returns the options of the next block. The shard places the blocks of one list one after another, so only the
    /// first, and those that are placed apart, name a predecessor: a later predecessor's key may still refer to an
    /// object elsewhere that the list will replace.
    fn next(&mut self, shard: u16, key: &Key, is_apart: bool) -> PutWith {
        let last = &mut self.last[usize::from(shard)];
        let (before, is_listed) = std::mem::replace(last, (Some(key.clone()), true));
        PutWith { after: before.filter(|_| !is_listed || is_apart), ..self.with.clone() }
    }
}

/// Room for KV blocks that are written layer by layer, in any order. A block is invisible until it is committed.
/// Dropping this before [`BlocksWriter::commit`] gives the room back.
#[must_use = "dropping it gives the room back"]
pub struct BlocksWriter {
    core: Arc<Core>,
    /// Indexed by position in the list of keys.
    writers: Vec<Writer>,
    layer_bytes: u64,
}

impl BlocksWriter {
    /// Combines the writers; on an error, dropping the others gives their room back.
    fn new(core: Arc<Core>, writers: Vec<Answer<Writer>>, layer_bytes: u64) -> Result<Self> {
        let writers = writers.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(BlocksWriter { core, writers, layer_bytes })
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> usize {
        self.writers.len()
    }

    /// Returns the bytes of one layer of one block: its tensors, each padded to units.
    pub fn layer_bytes(&self) -> u64 {
        self.layer_bytes
    }

    /// Lends the store's registered memory for one layer of block `block`, to be filled and passed to
    /// [`BlocksWriter::put_layer`] without a copy.
    ///
    /// Fails as [`Store::buffer`], and with [`Error::Invalid`] if there is no such block.
    pub fn buffer(&self, block: usize) -> Pending<PoolBuffer> {
        let Some(writer) = self.writers.get(block) else {
            let fix = format!("there are {} blocks, counted from 0", self.writers.len());
            return self.core.refused(Error::invalid("the block's number", block, fix));
        };
        writer.buffer(self.layer_bytes as usize)
    }

    /// Writes one layer of all blocks, with the data in the order of the keys. Each layer is written once. Lent
    /// memory comes back with the answers. Plain bytes are copied, as by [`Store::put`].
    ///
    /// Refuses data that is not [`BlocksWriter::layer_bytes`] long (lent memory may be longer). Refuses everything if
    /// the numbers of data and blocks differ; there are then as many answers as the larger number.
    pub fn put_layer<'a, D: Into<Payload<'a>>>(
        &self,
        layer: u32,
        data: impl IntoIterator<Item = D>,
    ) -> Batch<AnyBuffer> {
        let data: Vec<Payload<'a>> = data.into_iter().map(Into::into).collect();
        let (count, blocks) = (data.len(), self.writers.len());
        if count != blocks {
            let why = || {
                let fix = format!("give data of each of the {blocks} blocks, in order");
                Error::invalid("the number of data for a layer", count, fix)
            };
            let lacking = (count..blocks).map(|_| self.core.refused(why()));
            let refused = data.into_iter().map(|data| refused(data, why()));
            return Batch::new(refused.chain(lacking).collect());
        }
        let fill = |(writer, data)| self.fill(writer, layer, data);
        self.core.send_all(self.writers.iter().zip(data).map(fill))
    }

    /// Makes the request that writes a layer of one block.
    fn fill(&self, writer: &Writer, layer: u32, data: Payload<'_>) -> Made<AnyBuffer> {
        let bytes = data.bytes();
        if bytes < self.layer_bytes || (bytes > self.layer_bytes && !data.is_lent()) {
            let fix = format!("a layer has {}, its padding included", self.layer_bytes);
            return (None, refused(data, Error::invalid("the length of a layer", bytes, fix)));
        }
        writer.fill_request(Part::Layer(layer), data)
    }

    /// Turns each block into an object, atomically, and answers for each in the order of the keys. Put every layer
    /// and wait for its answers first; a block that lacks a layer is given up.
    pub fn commit(self) -> Batch<Outcome> {
        Batch::new(self.writers.into_iter().map(Writer::commit).collect())
    }
}

impl fmt::Debug for BlocksWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlocksWriter({} blocks)", self.writers.len())
    }
}

/// Returns the answer to data that are not taken, with the memory that the caller lent.
fn refused<T>(data: Payload<'_>, why: Error) -> Pending<T> {
    ready(Err(Unfinished::with(why, data.into_lent())))
}
