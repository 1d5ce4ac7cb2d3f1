//! Events that wait until a block of the journal is durable, in the order of the blocks.

use std::collections::VecDeque;

use crate::shard::answer::Done;
use crate::shard::change::NewObject;

/// An event that is due when a sequence is durable.
#[derive(Debug)]
pub(crate) struct Due<R> {
    pub(crate) sequence: u64,
    pub(crate) event: Event<R>,
}

/// The effect that follows.
#[derive(Debug)]
pub(crate) enum Event<R> {
    /// An object becomes visible and its put is answered, unless it has already been answered with a failure.
    Put(Box<NewObject>, Option<Done<R>>),
    /// Give an answer.
    Answer(Done<R>),
}

/// An object whose record waits.
#[derive(Debug)]
pub(crate) struct Held<R> {
    /// The flush that must end first: one that began after the data was written.
    pub(crate) flush: u64,
    pub(crate) new: Box<NewObject>,
    pub(crate) answer: Done<R>,
}

/// The events that wait, in the order of their sequences.
#[derive(Debug)]
pub(crate) struct DueEvents<R>(VecDeque<Due<R>>);

impl<R> Default for DueEvents<R> {
    fn default() -> DueEvents<R> {
        DueEvents(VecDeque::new())
    }
}

impl<R> DueEvents<R> {
    /// Returns the sequence of the first.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.front().map(|due| due.sequence)
    }

    /// Runs `event` when block `sequence` is durable.
    pub(crate) fn wait(&mut self, sequence: u64, event: Event<R>) {
        let later = self.0.iter().rev().take_while(|due| due.sequence > sequence).count();
        self.0.insert(self.0.len() - later, Due { sequence, event });
    }

    /// Takes the next event of a block before `durable_end`.
    pub(crate) fn next(&mut self, durable_end: u64) -> Option<Due<R>> {
        self.0.pop_front_if(|due| due.sequence < durable_end)
    }

    /// Takes the answers whose events will not become durable for now. Their puts still become visible if that
    /// happens later.
    pub(crate) fn take_answers(
        &mut self,
        is_in_vain: impl Fn(&Event<R>) -> bool,
        mut each: impl FnMut(Done<R>),
    ) {
        for Due { sequence, event } in std::mem::take(&mut self.0) {
            let event = match event {
                event if !is_in_vain(&event) => event,
                Event::Put(new, answer) => {
                    answer.into_iter().for_each(&mut each);
                    Event::Put(new, None)
                }
                Event::Answer(answer) => {
                    each(answer);
                    continue;
                }
            };
            self.0.push_back(Due { sequence, event });
        }
    }
}
