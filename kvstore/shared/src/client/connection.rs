//! What belongs to one connection: its messages, its memory and layouts, and its loss.

use std::fs::File;
use std::sync::Arc;

use super::shared::Registration;
use super::state::Memory;
use super::{Client, PutWith};
use crate::error::{Error, Result, Unfinished};
use crate::memory::Span;
use crate::wire::{Matter, Message};

impl Client {
    /// Shares memory of another connection, such as one whose server is lost, with this one's server, and returns the
    /// same spans for requests of this one. Waits for that. Their bytes stay as they are. Name all spans of a region at
    /// once: the server counts its whole length for each call.
    ///
    /// # Errors
    /// As [`Client::allocate`]; [`Error::Invalid`] if the spans are of several regions. The spans come back.
    pub fn adopt(&self, spans: Vec<Span>) -> Result<Vec<Span>, (Box<Error>, Vec<Span>)> {
        let Some(region) = spans.first().map(|span| Arc::clone(span.region())) else {
            return Ok(spans);
        };
        if spans.iter().any(|span| !Arc::ptr_eq(span.region(), &region)) {
            let what = "memory of several regions".to_owned();
            let why = Error::Invalid { what, fix: "adopt each region by itself" };
            return Err((Box::new(why), spans));
        }
        let (file, bytes) = region.file();
        match self.share(file, bytes) {
            Ok((place, registration)) => {
                let again = region.again(place, Box::new(registration));
                Ok(spans.into_iter().map(|span| span.moved(&again)).collect())
            }
            Err(why) => Err((Box::new(why), spans)),
        }
    }

    /// Has the server register a memory file; returns its place there, and what takes it back.
    pub(super) fn share(&self, file: &File, bytes: u64) -> Result<((u64, u32), Registration)> {
        let answer = self.ask(&Message::new(Matter::Share, [bytes, 0, 0, 0]), &[file])?;
        let (control, number) = (Arc::clone(&self.shared.control), answer.numbers[0]);
        Ok(((self.shared.number, number as u32), Registration { control, number }))
    }

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
        let fix = "use Client::allocate of this one, or have it share that memory (Client::adopt)";
        let error = Error::Invalid { what, fix };
        Err(Unfinished { memory: Some(span), ..Unfinished::new(error) })
    }
}
