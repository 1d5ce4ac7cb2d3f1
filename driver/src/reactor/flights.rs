//! A lane's records of requests in the queue, and of requests waiting for a retry.

use super::outcome::{End, Lost};
use super::port::{Note, Request};
use crate::Time;

/// Requests in the queue, by the number attached to their buffer.
#[derive(Debug)]
pub(super) struct Flights {
    /// `None` is a free entry or that of a lost request.
    notes: Vec<Option<Note>>,
    free: Vec<u32>,
    live: usize,
}

impl Flights {
    /// Allocates room for `count` requests.
    pub(super) fn new(count: usize) -> Flights {
        let notes = (0..count).map(|_| None).collect();
        Flights { notes, free: (0..count as u32).rev().collect(), live: 0 }
    }

    /// Stores a note and returns its number.
    ///
    /// # Panics
    /// If there are as many as the queue can hold: a bug of this crate, lanes check the queue first.
    pub(super) fn insert(&mut self, note: Note) -> u32 {
        let index = self.free.pop().expect("a lane posts no more than the queue can have");
        self.notes[index as usize] = Some(note);
        self.live += 1;
        index
    }

    /// Removes the note of a request that left the queue; `None` if the request was lost before.
    pub(super) fn remove(&mut self, index: u32) -> Option<Note> {
        self.free.push(index);
        let note = self.notes[index as usize].take();
        self.live -= usize::from(note.is_some());
        note
    }

    /// Returns the number of requests not lost.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Ends all requests as lost. Their numbers stay taken while the queue holds their buffers.
    pub(super) fn lose(&mut self, why: &Lost) {
        for note in self.notes.iter_mut().filter_map(Option::take) {
            note.reply.send(End::Lost(why.clone()));
        }
        self.live = 0;
    }
}

/// Requests waiting for a retry.
#[derive(Debug, Default)]
pub(super) struct Later {
    requests: Vec<(Time, Request)>,
}

impl Later {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn push(&mut self, due: Time, request: Request) {
        self.requests.push((due, request));
    }

    pub(super) fn next_due(&self) -> Time {
        self.requests.iter().map(|(due, _)| *due).min().unwrap_or(Time::NEVER)
    }

    /// Takes a due request, the longest overdue first.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Request> {
        let (index, _) = self
            .requests
            .iter()
            .enumerate()
            .filter(|(_, (due, _))| *due <= now)
            .min_by_key(|(_, (due, _))| *due)?;
        Some(self.requests.remove(index).1)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Request> {
        std::mem::take(&mut self.requests).into_iter().map(|(_, request)| request)
    }
}
