//! KV blocks of a model: put as sequences, restored layer by layer.
//!
//! A sequence is a prompt's prefix: its blocks are put in order, and one request reads a layer of all of them,
//! like a server that computes one layer while it loads the next. Every byte of each tensor is compared with
//! what was put.

use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::layout::Layout;
use adit_kvstore::shard::{Action, GetItem, Outcome, Part, PutItem, PutOptions};
use adit_kvstore::{Key, LayoutId, UNIT_BYTES};

use adit_load::{Contents, Expected, mix};

use crate::failure::{Failure, Result};
use crate::session::{Session, one};

/// Tokens of a KV block, as in vLLM.
const TOKENS: u32 = 16;
/// Blocks per put request.
const PUT_BLOCKS: u64 = 8;
/// Bits of a block's index in its sequence; the sequence's number is above them.
const SEQUENCE_BITS: u32 = 20;

/// A model's blocks in a store.
#[derive(Debug)]
pub struct Blocks {
    layout: Layout,
    id: LayoutId,
    contents: Contents,
    /// Memory not used by a request.
    memory: Vec<Buffer>,
}

/// A transfer.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// KV blocks.
    pub blocks: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Time from the request to the last answer.
    pub took: Duration,
}

impl Blocks {
    /// Returns the layout of a named model.
    ///
    /// # Errors
    /// A usage failure that lists the names.
    pub fn layout(model: &str) -> Result<Layout> {
        Ok(Layout::named(model, TOKENS)?)
    }

    /// Returns the key of a sequence's block.
    pub fn key(sequence: u64, block: u64) -> Key {
        key(number(sequence, block))
    }

    /// Creates blocks of a layout, registering it with the store if necessary.
    ///
    /// # Errors
    /// When the store has too many layouts.
    pub fn define(session: &mut Session, layout: Layout) -> Result<Blocks> {
        let local = session.local_mut();
        let id = local.layout(local.now(), &layout).map_err(Failure::failed)?;
        let contents = Contents::new(layout.tensor_bytes() as usize, true);
        Ok(Blocks { layout, id, contents, memory: Vec::new() })
    }

    /// Returns the number of layers of a block.
    pub fn layers(&self) -> u32 {
        self.layout.block().layers
    }

    fn tensor_room(&self) -> usize {
        (self.layout.tensor_units() * UNIT_BYTES) as usize
    }

    fn block_room(&self) -> usize {
        (self.layout.block_units() * UNIT_BYTES) as usize
    }

    fn run_room(&self) -> usize {
        (self.layout.run_units() * UNIT_BYTES) as usize
    }

    /// Puts the blocks of a sequence, a few at a time; calls `each` for each group, which may stop with an
    /// error.
    ///
    /// # Errors
    /// When a block could not be put, and as `each`.
    pub fn put(
        &mut self,
        session: &mut Session,
        sequence: u64,
        count: u64,
        each: &mut dyn FnMut(Moved) -> Result<()>,
    ) -> Result<()> {
        self.take_memory(session, PUT_BLOCKS as usize, self.block_room())?;
        for from in (0..count).step_by(PUT_BLOCKS as usize) {
            let puts: Vec<Action> = (from..count.min(from + PUT_BLOCKS))
                .map(|block| Action::Put(self.put_item(number(sequence, block), block)))
                .collect();
            let (count, begun) = (puts.len() as u64, session.local().now());
            let answers = session.batch(puts)?;
            let took = session.local().now().since(begun);
            for (outcome, memory) in answers {
                self.memory.push(one(memory));
                if outcome != Outcome::Stored {
                    let why = "the store has no room for a KV block without another that is worth more; use fewer \
                               --objects or a larger store";
                    return Err(Failure::failed(why));
                }
            }
            each(Moved { blocks: count, bytes: count * self.layout.block_bytes(), took })?;
        }
        Ok(())
    }

    fn put_item(&mut self, object: u64, block: u64) -> PutItem {
        let mut data = self.memory.pop().expect("memory was taken");
        let tensors = u64::from(self.layout.tensors());
        for (tensor, room) in (0..tensors).zip(data.chunks_mut(self.tensor_room())) {
            self.contents.stamp(room, object * tensors + tensor, 0);
        }
        let after = (block > 0).then(|| key(object - 1));
        let options = PutOptions { layout: self.id, after, ..PutOptions::default() };
        PutItem {
            key: key(object),
            bytes: self.layout.block_bytes(),
            data: AnyBuffer::One(data),
            options,
        }
    }

    /// Reads one layer of the first `count` blocks of a sequence and verifies every byte.
    ///
    /// # Errors
    /// When a block is missing or differs from what was put.
    pub fn restore(
        &mut self,
        session: &mut Session,
        sequence: u64,
        count: u64,
        layer: u32,
    ) -> Result<Moved> {
        self.take_memory(session, count as usize, self.run_room())?;
        let get = |(block, into)| {
            let (key, part) = (Blocks::key(sequence, block), Part::Layer(layer));
            Action::Get(GetItem { key, part, into: AnyBuffer::One(into), version: None })
        };
        let room = self.memory.drain(..);
        let gets: Vec<Action> = (0..count).zip(room).map(get).collect();
        let begun = session.local().now();
        let answers = session.batch(gets)?;
        let took = session.local().now().since(begun);
        for (block, (outcome, memory)) in (0..).zip(answers) {
            let memory = one(memory);
            if !matches!(outcome, Outcome::Hit { .. }) {
                return Err(Failure::failed(format!(
                    "block {block} of sequence {sequence} is missing; use fewer --objects or a larger store"
                )));
            }
            self.verify(number(sequence, block), layer, &memory)?;
            self.memory.push(memory);
        }
        let tensors = u64::from(self.layout.block().tensors_per_layer);
        Ok(Moved { blocks: count, bytes: count * tensors * self.layout.tensor_bytes(), took })
    }

    fn verify(&self, object: u64, layer: u32, run: &[u8]) -> Result<()> {
        let per_layer = u64::from(self.layout.block().tensors_per_layer);
        let first = object * u64::from(self.layout.tensors()) + u64::from(layer) * per_layer;
        for (tensor, data) in (first..first + per_layer).zip(run.chunks(self.tensor_room())) {
            let expected = Expected { object: tensor, generations: (0, 0) };
            self.contents.check(data, expected).map_err(Failure::failed)?;
        }
        Ok(())
    }

    /// Ensures `count` buffers of `bytes`, filled like tensors.
    fn take_memory(&mut self, session: &Session, count: usize, bytes: usize) -> Result<()> {
        if self.memory.len() == count && self.memory.iter().all(|buffer| buffer.len() == bytes) {
            return Ok(());
        }
        self.memory.clear();
        for _ in 0..count {
            let mut buffer = session.allocate(0, bytes as u64)?;
            buffer.chunks_mut(self.tensor_room()).for_each(|room| self.contents.initial(room));
            self.memory.push(buffer);
        }
        Ok(())
    }
}

/// Returns an object's key: 16 bytes, like block hashes.
pub fn key(object: u64) -> Key {
    Key::from(u128::from(mix(object)) << 64 | u128::from(object))
}

/// Returns the object of a key; `None` if it is not one of ours.
pub fn object(key: &Key) -> Option<u64> {
    let bits = u128::from_be_bytes(key.as_bytes().try_into().ok()?);
    let object = bits as u64;
    (mix(object) == (bits >> 64) as u64).then_some(object)
}

fn number(sequence: u64, block: u64) -> u64 {
    assert!(block < 1 << SEQUENCE_BITS, "a sequence has fewer blocks");
    sequence << SEQUENCE_BITS | block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_objects_are_one_to_one() {
        for number in [0, 1, u64::MAX, 1 << 40] {
            assert_eq!(object(&key(number)), Some(number));
        }
        assert_eq!(object(&Key::from(7u64)), None);
        assert_eq!(object(&Key::from(7u128)), None);
    }
}
