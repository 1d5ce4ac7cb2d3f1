//! Objects of any length through a client: read in pieces, and put from what can be read.

use std::future::Future;
use std::io::Read;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use adit_kvstore::shard::Part;
use adit_kvstore::store::{Pieces, Reader, measured, step_bytes, unreadable};
use adit_kvstore::{Key, UNIT_BYTES, Version, piece_bytes};
use adit_shared::SharedBytes;

use super::pending::{Answer, Pending};
use super::shared::Shared;
use super::state::{Get, Memory, Wish, whole};
use super::{Client, PutWith, Value, meaning, plain, whole_seconds};
use crate::error::{Error, Result, Unfinished};
use crate::wire::{Ask, Code};

/// Bytes that a reader gives at once, into memory that no other process has; few enough for a cache.
const PASSED_BYTES: usize = 64 << 10;

/// How an object is read.
#[derive(Clone, Copy)]
pub(super) struct Outline {
    pub(super) bytes: u64,
    pub(super) version: Version,
    pub(super) piece_bytes: u64,
}

/// Room for an object on the server. Dropping it gives the room back.
pub(super) struct SharedWriter {
    shared: Arc<Shared>,
    number: u64,
    is_over: bool,
}

impl SharedWriter {
    pub(super) fn new(shared: &Arc<Shared>, number: u64) -> SharedWriter {
        SharedWriter { shared: Arc::clone(shared), number, is_over: false }
    }
}

impl Drop for SharedWriter {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.with(|state| {
                state.give_up(Ask::Abandon(self.number));
                state.turn();
            });
        }
    }
}

/// An object of a store that another process serves.
pub struct ClientPieces {
    client: Client,
    key: Key,
    outline: Outline,
}

/// The bytes of a range, in memory of the client's pool, which are read by copies.
pub struct Piece {
    value: Value,
    wanted: Range<usize>,
}

impl Piece {
    /// Returns the bytes, to be copied to any memory.
    pub fn bytes(&self) -> SharedBytes<'_> {
        // A server that gives less than its object has gives a piece that is too short.
        let end = self.wanted.end.min(self.value.len());
        self.value.bytes().slice(self.wanted.start.min(end)..end)
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }
}

/// A piece that was asked for, and which of its bytes are wanted.
pub struct Asked(Pending<Option<Value>>, Range<usize>);

impl Future for Asked {
    type Output = Answer<Option<Piece>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.0).poll(context));
        let wanted = mem::take(&mut self.1);
        Poll::Ready(answer.map(|value| value.map(|value| Piece { value, wanted })))
    }
}

impl Pieces for ClientPieces {
    type Piece = Piece;
    type Unfinished = Unfinished;
    type Error = Error;
    type Asked = Asked;

    fn ask(&mut self, range: Range<u64>) -> Asked {
        let Outline { bytes, version, piece_bytes } = self.outline;
        let start = range.start / piece_bytes * piece_bytes;
        let end = range.end.next_multiple_of(piece_bytes).min(bytes);
        let wanted = (range.start - start) as usize..(range.end - start) as usize;
        let (part, room) = (Part::Bytes(start..end), whole((end - start) as usize));
        let key = self.key.clone();
        let wish = Wish::Fetch { get: Get::new(key, part, Some(version)), room };
        Asked(self.client.submit(Ok((wish, Memory::None)), meaning::value), wanted)
    }

    fn wait(Asked(pending, wanted): Asked) -> Answer<Option<Piece>> {
        Ok(pending.wait()?.map(|value| Piece { value, wanted }))
    }

    fn bytes(piece: &Piece) -> SharedBytes<'_> {
        piece.bytes()
    }

    fn is_conflict(why: &Error) -> bool {
        why.code() == Some(Code::Conflict)
    }
}

impl Client {
    /// Returns a reader of an object, which reads it in pieces through the pool, whatever its length; `None` if there is
    /// no such object. Waits for the server. As a future, it needs [`Client::reap`].
    ///
    /// # Errors
    /// [`adit_kvstore::Error::Invalid`] if the pool has no room for a piece
    /// ([`adit_kvstore::Store::reader`]); as [`Client::allocate`].
    pub fn reader(&self, key: Key) -> Result<Option<Reader<ClientPieces>>> {
        self.make_pool()?;
        let asked = self.submit(plain(Ask::Outline(key.clone())), meaning::outline);
        let Some(outline) = asked.wait()? else { return Ok(None) };
        let (lengths, version) = ((outline.bytes, outline.piece_bytes), outline.version);
        let pool_bytes = self.shared.options().pool_bytes as u64;
        let pieces = ClientPieces { client: self.clone(), key, outline };
        Ok(Some(Reader::new(pieces, lengths, version, pool_bytes)?))
    }

    /// Stores the next `bytes` bytes of `from` as an object, or all that it gives if `bytes` is `None`, through some MiB of
    /// shared memory of its own; see [`adit_kvstore::Store::put_from`]. Returns false if admission or the write budget
    /// declines it. Waits for the server.
    ///
    /// # Errors
    /// [`adit_kvstore::Error::Source`] if `from` cannot be read or ends too soon; as [`Client::allocate`]; the store's.
    pub fn put_from(
        &self,
        key: Key,
        bytes: Option<u64>,
        mut from: impl Read,
        with: &PutWith,
    ) -> Result<bool> {
        let Some(bytes) = bytes else {
            let (bytes, mut from) = measured(from).map_err(unreadable)?;
            return self.put_from(key, Some(bytes), &mut from, with);
        };
        let layout = with.layout.as_ref().map(|layout| layout.layout());
        let piece = layout.map_or(piece_bytes(bytes), |layout| layout.run_units() * UNIT_BYTES);
        let step = step_bytes(bytes, piece, self.bytes_max)?;
        let (layout, ttl_s) = (self.layout_number(with)?, with.ttl.map_or(0, whole_seconds));
        let condition = with.condition;
        let ask = Ask::Reserve { key, bytes, layout, ttl_s, condition };
        let Some(mut writer) = self.submit(plain(ask), meaning::writer).wait()? else {
            return Ok(false);
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
            let wish = Wish::Fill { writer: writer.number, offset: at, bytes: len };
            let next = self.submit(Ok((wish, Memory::Lent(span))), meaning::filled);
            if let Some(before) = last.replace(next) {
                idle.push(before.wait()?);
            }
            at += len;
        }
        if let Some(last) = last {
            last.wait()?;
        }
        writer.is_over = true;
        let number = writer.number;
        Ok(self.submit(plain(Ask::Seal(number)), meaning::sealed).wait()?)
    }
}
