//! The requests of one call and their answers.
//!
//! Everything except the results runs detached from the interpreter. Finished views are kept, and released attached
//! when their job ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use adit_driver::deadline;
use adit_kvstore::Error;
use adit_kvstore::store::Value;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::answer::{Answered, Bytes};
use crate::bytes::{FEW, Unfilled};
use crate::flight::{AnyFlight, Look};
use crate::view::View;

/// Time to wait for one of several answers before the next is checked. A connection's answers hold pool memory for
/// which others may wait.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes read before their answers are taken, so that verifying them takes longer than a wake-up.
const STEP_BYTES: usize = 4 << 20;
/// The cost of a result in addition to its bytes, in bytes.
pub(crate) const RESULT: usize = 256;

/// A request of a job.
enum Slot {
    Flying(AnyFlight),
    Landed(Answered),
    /// A value being copied, and the bytes copied so far.
    Filling(Filling, usize),
}

/// A value and the destination of its copy.
enum Filling {
    Object(Box<dyn Bytes>, Unfilled),
    View(Value, View),
}

/// The time at which a connection's requests are abandoned. A store has its own deadlines.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) until: Instant,
    /// The time from the call to then.
    pub(crate) timeout: Duration,
}

/// The requests of one call, in the order of its keys.
pub(crate) struct Job {
    slots: Vec<Slot>,
    flying: usize,
    /// Number of the first requests whose results are complete.
    filled: usize,
    /// When its requests are given up.
    pub(crate) deadline: Option<Deadline>,
    /// Bytes of the buffers for reads.
    reads: usize,
    /// Views to release.
    spent: Vec<View>,
    copied: Arc<AtomicU64>,
}

impl Job {
    /// Creates the job of requests that are to be added, whose copied bytes are counted in `copied`.
    pub(crate) fn new(deadline: Option<Deadline>, copied: &Arc<AtomicU64>) -> Job {
        let (slots, spent) = (Vec::new(), Vec::new());
        Job { slots, flying: 0, filled: 0, deadline, reads: 0, spent, copied: Arc::clone(copied) }
    }

    /// Adds the length of a buffer for a read.
    pub(crate) fn reads(&mut self, bytes: usize) {
        self.reads += bytes;
    }

    /// Returns the number of answers to take at once before all have arrived.
    pub(crate) fn step(&self) -> usize {
        STEP_BYTES.saturating_mul(self.len()).checked_div(self.reads).unwrap_or(usize::MAX).max(1)
    }

    /// Adds requests behind the others.
    pub(crate) fn add(&mut self, flights: impl Iterator<Item = AnyFlight>) {
        self.slots.extend(flights.map(Slot::Flying));
        self.flying = self.slots.len();
    }

    /// Turns the job into one of answered requests.
    pub(crate) fn land(&mut self, answers: impl Iterator<Item = Answered>) {
        assert!(self.slots.is_empty(), "no request was made");
        self.slots.extend(answers.map(Slot::Landed));
    }

    /// Keeps a view until the job's end.
    pub(crate) fn keep(&mut self, view: View) {
        self.spent.push(view);
    }

    /// Returns the views of a job without requests.
    pub(crate) fn into_views(self) -> Vec<View> {
        assert!(self.slots.is_empty(), "no request was made");
        self.spent
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether every request is answered or abandoned.
    pub(crate) fn is_over(&self) -> bool {
        self.flying == 0
    }

    /// Blocks until every request is answered or abandoned, or `at_most` has passed. Returns whether they are.
    pub(crate) fn wait_for(&mut self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        while self.flying > 0 {
            for position in 0..self.slots.len() {
                let left = until.saturating_duration_since(Instant::now());
                let pause = match self.deadline {
                    Some(deadline) if self.flying > 1 => left.min(deadline.left()).min(LOOK),
                    Some(deadline) => left.min(deadline.left()),
                    None => left,
                };
                self.look(position, Look::Wait(pause));
            }
            self.give_up_if_late();
            if Instant::now() >= until {
                break;
            }
        }
        self.is_over()
    }

    /// Takes the answers that have arrived, and arranges `waker` for the others. Returns the number taken.
    pub(crate) fn poll(&mut self, waker: &Waker) -> usize {
        for position in 0..self.slots.len() {
            self.look(position, Look::Poll(waker));
        }
        self.flying
    }

    /// Takes the answer of one request if it has arrived, and otherwise arranges `waker`. Returns whether that was the
    /// job's last answer.
    pub(crate) fn poll_one(&mut self, position: usize, waker: &Waker) -> bool {
        self.look(position, Look::Poll(waker)) && self.flying == 0
    }

    /// Checks for one answer; returns whether it was taken now.
    fn look(&mut self, position: usize, how: Look<'_>) -> bool {
        let Slot::Flying(flight) = &mut self.slots[position] else { return false };
        let answered = flight.look(how, &self.copied, &mut self.spent);
        let Some(answered) = answered else { return false };
        self.slots[position] = Slot::Landed(answered);
        self.flying -= 1;
        true
    }

    /// Ends unanswered requests after the deadline. They may still be carried out, so memory lent to them is not lent
    /// again. Returns whether this ended the job.
    pub(crate) fn give_up_if_late(&mut self) -> bool {
        let late = self.deadline.filter(|deadline| deadline.left().is_zero() && self.flying > 0);
        let Some(Deadline { timeout: after, .. }) = late else { return false };
        for slot in &mut self.slots {
            if let Slot::Flying(flight) = slot {
                self.spent.extend(flight.take_view());
                let (waited_for, fix) =
                    ("the server's answer", "see its log for what its devices say");
                let why = Error::Timeout { waited_for, after, fix };
                *slot = Slot::Landed(Answered::Failed(why));
            }
        }
        self.flying = 0;
        true
    }

    /// Copies values to Python objects and buffers, detached, while `left` is positive, which it counts down in bytes.
    /// Returns whether all results are complete.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn fill(&mut self, py: Python<'_>, left: &mut usize) -> PyResult<bool> {
        let (mut end, mut bytes) = (self.filled, 0_usize);
        while end < self.slots.len() && bytes.saturating_add((end - self.filled) * RESULT) < *left {
            bytes = bytes.saturating_add(self.slots[end].prepare(py, &mut self.spent)?);
            end += 1;
        }
        let (slots, copied) = (&mut self.slots[self.filled..end], &self.copied);
        let mut copy = || {
            let filled = slots.iter_mut().map(|slot| slot.fill(left, &mut self.spent, copied));
            self.filled += filled.take_while(|is_done| *is_done).count();
        };
        if bytes > FEW {
            py.detach(copy)
        } else {
            copy()
        }
        Ok(self.filled == self.slots.len())
    }

    /// Returns the answers as Python objects, with `None` for failed requests, and the first failure.
    pub(crate) fn results<'py>(
        mut self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyList>, Option<PyErr>)> {
        self.fill(py, &mut usize::MAX.clone())?;
        let (results, mut failure) = (PyList::empty(py), None);
        for (position, slot) in self.slots.into_iter().enumerate() {
            let Slot::Landed(answered) = slot else { unreachable!("every request was answered") };
            let result = match answered.into_object(py) {
                Ok(result) => result,
                Err(why) => {
                    if failure.is_none() && why.value(py).hasattr("index")? {
                        why.value(py).setattr("index", position)?;
                    }
                    failure = failure.or(Some(why));
                    py.None().into_bound(py)
                }
            };
            results.append(result)?;
        }
        Ok((results, failure))
    }

    /// Returns the answers as Python objects.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn all<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (results, failure) = self.results(py)?;
        failure.map_or(Ok(results), Err)
    }

    /// Returns the answer of a job with one request.
    ///
    /// # Errors
    /// Its failure.
    pub(crate) fn one<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        assert_eq!(self.slots.len(), 1, "the job has one request");
        self.all(py)?.get_item(0)
    }
}

impl Slot {
    /// Makes room for an answered value; returns the number of bytes to copy.
    fn prepare(&mut self, py: Python<'_>, spent: &mut Vec<View>) -> PyResult<usize> {
        let answered = match std::mem::replace(self, Slot::Landed(Answered::Done)) {
            Slot::Landed(answered) => answered,
            other => {
                *self = other;
                return Ok(self.left());
            }
        };
        *self = match answered {
            Answered::Value(Some(value)) => {
                let object = Unfilled::new(py, value.len())?;
                Slot::Filling(Filling::Object(value, object), 0)
            }
            Answered::Copy(value, view) => {
                let (needs, has) = (value.len(), view.len());
                if needs > has {
                    spent.push(view);
                    Slot::Landed(Answered::Short { needs, has })
                } else {
                    Slot::Filling(Filling::View(value, view), 0)
                }
            }
            other => Slot::Landed(other),
        };
        Ok(self.left())
    }

    /// Returns the number of bytes left to copy.
    fn left(&self) -> usize {
        match self {
            Slot::Filling(Filling::Object(value, _), at) => value.len() - at,
            Slot::Filling(Filling::View(value, _), at) => value.len() - at,
            Slot::Flying(_) | Slot::Landed(_) => 0,
        }
    }

    /// Copies at most `left` bytes, which it counts down. Returns whether the result is complete.
    fn fill(&mut self, left: &mut usize, spent: &mut Vec<View>, copied: &AtomicU64) -> bool {
        let bytes = self.left().min(*left);
        *left = left.saturating_sub(bytes.saturating_add(RESULT));
        match self {
            Slot::Filling(Filling::Object(value, object), at) => {
                object.write_at(*at, (&value[*at..*at + bytes]).into());
                *at += bytes;
            }
            Slot::Filling(Filling::View(value, view), at) => {
                view.write_at(*at, (&value[*at..*at + bytes]).into());
                copied.fetch_add(bytes as u64, Ordering::Relaxed);
                *at += bytes;
            }
            Slot::Flying(_) | Slot::Landed(_) => return true,
        }
        if self.left() > 0 {
            return false;
        }
        // The value's memory is returned here, detached.
        *self = match std::mem::replace(self, Slot::Landed(Answered::Done)) {
            Slot::Filling(Filling::Object(_, object), _) => {
                Slot::Landed(Answered::Object(object.into_object()))
            }
            Slot::Filling(Filling::View(value, view), _) => {
                spent.push(view);
                Slot::Landed(Answered::Length(Some(value.len() as u64)))
            }
            other => other,
        };
        true
    }
}

impl Deadline {
    /// Creates the deadline of a call that begins now.
    pub(crate) fn after(timeout: Duration) -> Deadline {
        Deadline { until: deadline(timeout), timeout }
    }

    fn left(self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}
