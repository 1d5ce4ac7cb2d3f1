//! An object that is read piece by piece, in bounded memory.
//!
//! A [`Reader`] has one piece out and asks for at most two ahead, so an object may be far longer than the pools. All
//! pieces are of the version that was there when the reader was made: once that is replaced or removed, the reader
//! fails with [`Error::Gone`] and never mixes two.
//!
//! It is generic over the source of the pieces ([`Pieces`]): a store of this process, or one that another serves.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use adit_driver::memory::AnyBuffer;
use adit_driver::sys::{SharedBytes, SharedBytesMut};

use super::Store;
use crate::error::{Error, Failure};
use crate::model::key::Key;
use crate::model::object::Version;
use crate::store::answer::{Answer, ObjectInfo, Pending, Value};
use crate::store::core::Core;

/// Minimum number of bytes that are read at once, if pieces are shorter.
const STEP_BYTES: u64 = 1 << 20;
/// Number of steps that are read ahead.
const AHEAD: u64 = 2;

/// A source of the pieces of an object of one version.
pub trait Pieces {
    /// The bytes of a range.
    type Piece;
    /// Memory of the store, of which none is lent.
    type Lent;
    /// A range that was asked for; `None` if there is no such object.
    type Asked: Future<Output = Answer<Option<Self::Piece>, Self::Lent>> + Unpin;

    /// Asks for a range of the object.
    fn ask(&mut self, range: Range<u64>) -> Self::Asked;

    /// Blocks until a range is there.
    ///
    /// # Errors
    /// Why it is not.
    fn wait(asked: Self::Asked) -> Answer<Option<Self::Piece>, Self::Lent>;

    /// Returns the bytes of a piece, which others may be able to write.
    fn bytes(piece: &Self::Piece) -> SharedBytes<'_>;
}

/// Reads an object, or a range of it, in pieces: as values ([`Reader::next`], [`Reader::next_async`]), by
/// [`std::io::Read`] and [`Seek`], or with the feature `tokio` by its `AsyncRead`. After an error it can go on from
/// where it was.
pub struct Reader<P: Pieces> {
    pieces: P,
    object_bytes: u64,
    version: Version,
    /// Ranges begin and end at multiples of it, unless the caller's do not.
    step: u64,
    /// How many steps may be read ahead.
    ahead_max: usize,
    /// The next byte of the caller's, and the end of the caller's range.
    at: u64,
    end: u64,
    /// Ranges behind `at` without gaps, in order, with their lengths.
    ahead: VecDeque<(u64, P::Asked)>,
    /// The piece before `ahead`, and how much of it was taken.
    current: Option<(P::Piece, usize)>,
    /// Whether the last answer was a failure. Only a second one is passed on, because the first may be as old as the
    /// request.
    has_failed: bool,
}

/// Returns how many bytes of an object pass through `memory_bytes` of memory at once.
///
/// # Errors
/// [`Error::Invalid`] if a piece does not fit in the memory.
pub fn step_bytes(object_bytes: u64, piece_bytes: u64, memory_bytes: u64) -> Result<u64, Error> {
    if piece_bytes.min(object_bytes) <= memory_bytes {
        return Ok((STEP_BYTES / piece_bytes * piece_bytes).max(piece_bytes));
    }
    let fix = format!(
        "each piece of the object passes through a pool of {memory_bytes} bytes: raise pool_bytes to three pieces"
    );
    Err(Error::invalid("the length in bytes of a piece", piece_bytes, fix))
}

impl<P: Pieces> Reader<P> {
    /// Creates a reader of an object of `object_bytes` whose ranges begin and end at multiples of `piece_bytes`, with
    /// memory for `memory_bytes` at a time.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a piece does not fit in the memory.
    pub fn new(
        pieces: P,
        (object_bytes, piece_bytes): (u64, u64),
        version: Version,
        memory_bytes: u64,
    ) -> Result<Reader<P>, Error> {
        let step = step_bytes(object_bytes, piece_bytes, memory_bytes)?;
        let ahead_max = (memory_bytes / step).saturating_sub(1).min(AHEAD) as usize;
        Ok(Reader {
            pieces,
            object_bytes,
            version,
            step,
            ahead_max,
            at: 0,
            end: object_bytes,
            ahead: VecDeque::new(),
            current: None,
            has_failed: false,
        })
    }

    /// Returns the length of the whole object in bytes.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Returns the object's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the object's byte that comes next.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns whether [`Reader::read_into`] has bytes without a wait.
    pub fn has_bytes(&self) -> bool {
        self.current.is_some()
    }

    /// Goes on with a range of the object, cut off at its end. Discards what was read ahead of it.
    pub fn set_range(&mut self, range: Range<u64>) {
        let end = range.end.min(self.object_bytes);
        if range.start != self.at || end < self.end {
            self.forget();
        }
        (self.at, self.end) = (range.start, end);
    }

    /// Returns the next bytes, or `None` at the end. Blocks until they are there.
    ///
    /// # Errors
    /// [`Error::Gone`] once the object is replaced or removed; otherwise as a get.
    #[allow(clippy::should_implement_trait, reason = "as that of a batch, it blocks")]
    pub fn next(&mut self) -> Result<Option<P::Piece>, Error> {
        self.give_back();
        loop {
            self.ask();
            let Some((bytes, asked)) = self.ahead.pop_front() else { return Ok(None) };
            if let Some(piece) = self.settled(bytes, P::wait(asked))? {
                return Ok(Some(piece));
            }
        }
    }

    /// Async form of [`Reader::next`].
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub async fn next_async(&mut self) -> Result<Option<P::Piece>, Error> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// [`Reader::next_async`] as a function to poll, for a stream of any crate.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<P::Piece>, Error>> {
        self.give_back();
        loop {
            self.ask();
            let Some((bytes, asked)) = self.ahead.front_mut() else { return Poll::Ready(Ok(None)) };
            let (bytes, answer) = (*bytes, ready!(Pin::new(asked).poll(context)));
            self.ahead.pop_front();
            if let Some(piece) = self.settled(bytes, answer)? {
                return Poll::Ready(Ok(Some(piece)));
            }
        }
    }

    /// Copies the next bytes to `into`, as many as it has room for, and returns how many; 0 at the end. Blocks until
    /// some are there.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn read_into(&mut self, into: SharedBytesMut<'_>) -> Result<usize, Error> {
        if !into.is_empty() && self.current.is_none() {
            match self.next()? {
                Some(piece) => self.keep(piece),
                None => return Ok(0),
            }
        }
        Ok(self.take(into))
    }

    /// Asks for the next range, and for some behind it.
    fn ask(&mut self) {
        while self.ahead.len() <= self.ahead_max {
            let from = self.at + self.ahead.iter().map(|(bytes, _)| bytes).sum::<u64>();
            if from >= self.end {
                break;
            }
            let to = ((from / self.step + 1) * self.step).min(self.end);
            self.ahead.push_back((to - from, self.pieces.ask(from..to)));
        }
    }

    /// Takes the answer to the request for the next bytes; returns `None` if that has to be repeated.
    fn settled(
        &mut self,
        bytes: u64,
        answer: Answer<Option<P::Piece>, P::Lent>,
    ) -> Result<Option<P::Piece>, Error> {
        let gone = Error::Gone { at: self.at, bytes: self.object_bytes };
        let why = match answer.map_err(Error::from) {
            Ok(Some(piece)) if P::bytes(&piece).len() as u64 == bytes => {
                self.at += bytes;
                self.has_failed = false;
                return Ok(Some(piece));
            }
            // A version has one length.
            Ok(_) | Err(Error::Failed(Failure::Conflict { .. })) => gone,
            Err(why) => {
                // A request that waited while its caller did something else may have come too late.
                self.ahead.clear();
                self.has_failed = !self.has_failed;
                if self.has_failed {
                    return Ok(None);
                }
                why
            }
        };
        self.forget();
        Err(why)
    }

    /// Discards the ranges that were read ahead.
    fn forget(&mut self) {
        self.ahead.clear();
        (self.current, self.has_failed) = (None, false);
    }

    /// Discards a piece that was begun by [`std::io::Read`].
    fn give_back(&mut self) {
        if self.current.is_some() {
            self.forget();
        }
    }

    /// Copies as many of the current piece's bytes as fit to `into`, and returns how many.
    fn take(&mut self, mut into: SharedBytesMut<'_>) -> usize {
        let Some((piece, taken)) = &mut self.current else { return 0 };
        let piece = P::bytes(piece);
        let bytes = into.len().min(piece.len() - *taken);
        into.slice(0..bytes).copy_from(piece.slice(*taken..*taken + bytes));
        *taken += bytes;
        self.at += bytes as u64;
        if *taken == piece.len() {
            // Its memory goes to the next.
            self.current = None;
        }
        bytes
    }

    /// Keeps a piece whose bytes are taken one after another.
    fn keep(&mut self, piece: P::Piece) {
        self.at -= P::bytes(&piece).len() as u64;
        self.current = Some((piece, 0));
    }
}

impl<P: Pieces> io::Read for Reader<P> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_into(into.into()).map_err(io::Error::other)
    }
}

/// Positions are those of the object, also in a range of it. One beyond the end reads nothing.
impl<P: Pieces> Seek for Reader<P> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the object");
        self.set_range(at.ok_or_else(before)?..self.end);
        Ok(self.at)
    }
}

#[cfg(feature = "tokio")]
impl<P: Pieces + Unpin> tokio::io::AsyncRead for Reader<P>
where
    P::Piece: Unpin,
{
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let reader = self.get_mut();
        if into.remaining() > 0 && reader.current.is_none() {
            match ready!(reader.poll_next(context)).map_err(io::Error::other)? {
                Some(piece) => reader.keep(piece),
                None => return Poll::Ready(Ok(())),
            }
        }
        let left =
            reader.current.as_ref().map_or(0, |(piece, taken)| P::bytes(piece).len() - taken);
        let room = into.remaining().min(left);
        let read = reader.take(into.initialize_unfilled_to(room).into());
        into.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl<P: Pieces> fmt::Debug for Reader<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader(byte {} of {})", self.at, self.object_bytes)
    }
}

/// An object of a store of this process.
pub struct StorePieces {
    core: Arc<Core>,
    key: Key,
    version: Version,
}

impl Pieces for StorePieces {
    type Piece = Value;
    type Lent = AnyBuffer;
    type Asked = Pending<Option<Value>>;

    fn ask(&mut self, range: Range<u64>) -> Pending<Option<Value>> {
        let key = self.key.clone();
        self.core.send(self.core.fetch(key, Some(range), Some(self.version)))
    }

    fn wait(asked: Pending<Option<Value>>) -> Answer<Option<Value>> {
        asked.wait()
    }

    fn bytes(piece: &Value) -> SharedBytes<'_> {
        (&piece[..]).into()
    }
}

impl Store {
    /// Returns a reader of an object, which reads it in pieces and so in bounded memory, whatever its length; `None` if
    /// there is no such object. A KV block is read with its padding, by layers.
    ///
    /// Fails with [`Error::Invalid`] if the pool has no room for a piece: an object of up to 64 MiB has pieces of 128
    /// KiB, a longer one of at most a 256th of it.
    pub fn reader(&self, key: Key) -> Pending<Option<Reader<StorePieces>>> {
        let (hash, core) = (self.core.hash(&key), Arc::clone(&self.core));
        self.core.ask(self.core.shard(hash), move |shard, now| {
            let Some(id) = shard.lookup(now, hash, &key) else { return Ok(None) };
            let info = ObjectInfo::of(shard, shard.info_of(now, id));
            let memory = core.pools.bytes_max() as u64;
            let (version, lengths) = (info.version, (info.read_bytes(), info.piece_bytes()));
            Reader::new(StorePieces { core, key, version }, lengths, version, memory).map(Some)
        })
    }
}
