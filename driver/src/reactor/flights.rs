//! A lane's notes on requests that the queue has, and on those that wait to be tried again.

use super::mailbox::{Note, Request};
use super::outcome::{End, Lost};
use crate::Time;

/// Requests that the queue has, by the number that goes with their buffer.
#[derive(Debug)]
pub(super) struct Flights {
    /// `None` is a free place or the place of a request that was given up as lost.
    notes: Vec<Option<Note>>,
    free: Vec<u32>,
    live: usize,
}

impl Flights {
    /// Room for `count` requests, all of it made now.
    pub(super) fn new(count: usize) -> Flights {
        let notes = (0..count).map(|_| None).collect();
        Flights { notes, free: (0..count as u32).rev().collect(), live: 0 }
    }

    /// Keeps a note and returns its number.
    ///
    /// # Panics
    /// If there are as many as the queue can have: our own bug, a lane asks the queue first.
    pub(super) fn insert(&mut self, note: Note) -> u32 {
        let index = self.free.pop().expect("a lane posts no more than the queue can have");
        self.notes[index as usize] = Some(note);
        self.live += 1;
        index
    }

    /// The note with this number, whose request the queue has no more; `None` if it was lost
    /// before.
    pub(super) fn remove(&mut self, index: u32) -> Option<Note> {
        self.free.push(index);
        let note = self.notes[index as usize].take();
        self.live -= usize::from(note.is_some());
        note
    }

    /// Requests that somebody may wait for.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Ends all of them as lost. Their numbers stay taken as long as the queue has their buffers.
    pub(super) fn lose(&mut self, why: &Lost) {
        for note in self.notes.iter_mut().filter_map(Option::take) {
            note.cell.end(End::Lost(why.clone()));
        }
        self.live = 0;
    }
}

/// Requests that wait to be tried again.
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

    /// When the first of them is due.
    pub(super) fn next_due(&self) -> Time {
        self.requests.iter().map(|(due, _)| *due).min().unwrap_or(Time::NEVER)
    }

    /// One that is due, the longest overdue first.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Request> {
        let (index, _) = self
            .requests
            .iter()
            .enumerate()
            .filter(|(_, (due, _))| *due <= now)
            .min_by_key(|(_, (due, _))| *due)?;
        Some(self.requests.remove(index).1)
    }

    /// All of them, due or not.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Request> {
        std::mem::take(&mut self.requests).into_iter().map(|(_, request)| request)
    }
}
