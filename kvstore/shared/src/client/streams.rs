//! Objects of any length through a client: read in pieces, and put from a source.

use std::io::Read;
use std::ops::Range;

use adit_kvstore::shard::{Outcome, Part};
use adit_kvstore::store::{ObjectInfo, Pieces, PutWith, Reader, measured, step_bytes, unreadable};
use adit_kvstore::{Key, KvStore, PendingAnswer, Result, StoredBytes, UNIT_BYTES, piece_bytes};
use adit_shared::SharedBytes;

use super::Answer;
use super::calls::{get, plain, whole_seconds};
use super::handle::Client;
use super::kept::Value;
use super::meaning;
use super::pending::Pending;
use super::requests::{Memory, Needs, Wish, whole};
use crate::memory::Span;
use crate::wire::{Ask, MemoryRun};

/// Bytes that a reader gives at once, into memory that no other process has; few enough for a cache.
const PASSED_BYTES: usize = 64 << 10;

/// An object of a store that another process serves.
pub struct ClientPieces {
    client: Client,
    info: ObjectInfo,
}

impl Pieces for ClientPieces {
    type Piece = Value;
    type Lent = Option<Span>;
    type Asked = Pending<Option<Value>>;

    fn ask(&mut self, range: Range<u64>) -> Pending<Option<Value>> {
        let ObjectInfo { key, version, .. } = &self.info;
        let piece = self.info.piece_bytes();
        let start = range.start / piece * piece;
        let end = range.end.next_multiple_of(piece).min(self.info.read_bytes());
        let wanted = (range.start - start) as usize..(range.end - start) as usize;
        let ask = get(key.clone(), Part::Bytes(start..end), Some(*version));
        let needs = Needs::Room { bytes: whole((end - start) as usize), wanted };
        let wish = Wish { ask, needs };
        self.client.submit(Ok((wish, Memory::None)), meaning::value)
    }

    fn wait(asked: Pending<Option<Value>>) -> Answer<Option<Value>> {
        asked.wait()
    }

    fn bytes(piece: &Value) -> SharedBytes<'_> {
        piece.bytes()
    }
}

impl Client {
    /// Returns a reader of an object, which reads it in pieces through the pool, whatever its length; `None` if there
    /// is no such object. Waits for the server. As a future, it needs [`Client::reap`].
    ///
    /// # Errors
    /// [`Error::Invalid`](adit_kvstore::Error::Invalid) if the pool has no room for a piece
    /// ([`adit_kvstore::Store::reader`]); as [`Client::make_pool`].
    pub fn reader(&self, key: Key) -> Result<Option<Reader<ClientPieces>>> {
        self.make_pool()?;
        let Some(info) = self.info(key).wait()? else { return Ok(None) };
        let (lengths, version) = ((info.read_bytes(), info.piece_bytes()), info.version);
        let pool_bytes = self.shared.options.pool_bytes as u64;
        let pieces = ClientPieces { client: self.clone(), info };
        Ok(Some(Reader::new(pieces, lengths, version, pool_bytes)?))
    }

    /// Stores bytes from a source; see [`KvStore::put_from`].
    pub(super) fn supply(
        &self,
        key: Key,
        bytes: Option<u64>,
        mut from: impl Read,
        with: &PutWith,
    ) -> Result<Outcome> {
        let Some(bytes) = bytes else {
            let (bytes, mut from) = measured(from).map_err(unreadable)?;
            return self.supply(key, Some(bytes), &mut from, with);
        };
        let layout = with.layout.as_ref().map(|layout| layout.layout());
        let piece = layout.map_or(piece_bytes(bytes), |layout| layout.run_units() * UNIT_BYTES);
        let step = step_bytes(bytes, piece, self.bytes_max)?;
        let (layout, ttl_s) = (self.check_with(with)?, with.ttl.map_or(0, whole_seconds));
        let condition = with.condition;
        let ask = Ask::Reserve { key, bytes, layout, ttl_s, condition };
        let writer = match self.submit(plain(ask), meaning::writer).wait()? {
            Ok(writer) => writer,
            Err(declined) => return Ok(Outcome::Declined(declined)),
        };
        // One part is read while another is written.
        let mut memory = self.allocate(2 * whole(step.min(bytes.max(1)) as usize))?;
        let other = memory.split_off(memory.len() / 2 / UNIT_BYTES as usize * UNIT_BYTES as usize);
        let (mut idle, mut last) = (vec![memory, other], None);
        let mut passed = vec![0; PASSED_BYTES];
        let mut at = 0;
        while at < bytes {
            let len = step.min(bytes - at);
            let mut span = idle.pop().expect("one of two is idle");
            for place in (0..len as usize).step_by(PASSED_BYTES) {
                let now = &mut passed[..PASSED_BYTES.min(len as usize - place)];
                from.read_exact(now).map_err(unreadable)?;
                span.write(place, now);
            }
            let (writer, memory) = (writer.number(), MemoryRun::NONE);
            let ask = Ask::Fill { writer, offset: at, bytes: len, memory };
            let made = Ok((Wish::new(ask), Memory::Lent(span)));
            let next = self.submit(made, meaning::filled);
            if let Some(before) = last.replace(next) {
                idle.push(before.wait()?);
            }
            at += len;
        }
        if let Some(last) = last {
            last.wait()?;
        }
        Ok(self.submit(plain(Ask::Seal(writer.finish())), meaning::outcome).wait()?)
    }
}
