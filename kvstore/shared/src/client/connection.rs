//! What belongs to one connection: its messages, its memory and layouts, and its loss.

use std::fs::File;

use adit_kvstore::shard::Stats;
use zerocopy::FromBytes;

use super::state::Memory;
use super::{Client, PutWith};
use crate::error::{Error, Result, Unfinished};
use crate::memory::Span;
use crate::wire::{Matter, Message, Serving};

impl Client {
    /// Fails if the server is lost, before anything is made for it.
    pub(super) fn check_lost(&self) -> Result<()> {
        let why = self.shared.with(|state| state.why_lost().map(str::to_owned));
        why.map_or(Ok(()), |why| Err(Error::Lost { why }))
    }

    /// Sends a message and returns its answer. Without one the server is lost.
    pub(super) fn ask(&self, message: &Message, files: &[&File]) -> Result<Message> {
        self.check_lost()?;
        let answer = self.shared.control.ask(message, files);
        if let Err(Error::Lost { why }) = &answer {
            self.shared.lose(why);
        }
        answer
    }

    /// Returns the counters of the store and of the server, and waits for them.
    ///
    /// # Errors
    /// [`Error::Lost`] if the server is gone.
    pub fn stats(&self) -> Result<(Stats, Serving)> {
        let answer = self.ask(&Message::new(Matter::Stats, [0; 4]), &[])?;
        let read = <[u64; Stats::FIELDS]>::read_from_prefix(answer.body()).ok();
        let read =
            read.and_then(|(fields, rest)| Some((fields, Serving::read_from_bytes(rest).ok()?)));
        let lost = || Error::Lost { why: "it counts what this version does not".to_owned() };
        read.map(|(fields, serving)| (Stats::of_fields(fields), serving)).ok_or_else(lost)
    }

    /// Calls `then` once the server is lost, with the reason, on the thread that notices: one that makes a request, waits
    /// for an answer, or drops what its answer gave. A loss that was noticed before calls it at once. It takes the place
    /// of what an earlier call gave.
    pub fn when_lost(&self, then: impl FnOnce(&str) + Send + 'static) {
        self.shared.when_lost(Box::new(then));
    }

    /// Returns the number of a put's layout, or 0.
    pub(super) fn layout_number(&self, with: &PutWith) -> Result<u32> {
        match with.layout.map_or((self.shared.number, 0), |layout| layout.place) {
            (connection, number) if connection == self.shared.number => Ok(number),
            _ => {
                let what = "a layout of another connection".to_owned();
                Err(Error::Invalid { what, fix: "define it with Client::layout of this one" })
            }
        }
    }

    /// Takes the caller's memory for a request. The number of another connection's region would be that of other memory
    /// here.
    pub(super) fn lend(&self, span: Span) -> Result<Memory, Unfinished> {
        if span.connection() == self.shared.number {
            return Ok(Memory::Lent(span));
        }
        let what = "memory of another connection".to_owned();
        let fix = "use memory of Client::allocate of this one";
        let error = Error::Invalid { what, fix };
        Err(Unfinished { memory: Some(span), ..Unfinished::new(error) })
    }
}
