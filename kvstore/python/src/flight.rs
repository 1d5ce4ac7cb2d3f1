//! One request in progress, to a store of this process or over a connection.
//!
//! This module touches Python objects only through the address and length of their buffers.

use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_kvshare::{Client, KvStore, PendingAnswer, Span, StoredBytes};
use adit_kvstore::store::{Answer, Put, PutWith, Read, Removed, Unfinished, Value};
use adit_kvstore::{Key, Store};

use crate::answer::Answered;
use crate::lending::Loan;
use crate::view::View;

/// The way to check for an answer.
#[derive(Clone, Copy)]
pub(crate) enum Look<'a> {
    /// Blocks until the answer arrives, at most this long.
    Wait(Duration),
    /// Returns at once, and calls the waker when the answer arrives.
    Poll(&'a Waker),
}

/// The differences between stores beyond their calls: how memory returns, and whether values may hold it.
pub(crate) trait Backend: KvStore {
    /// Whether the store leaves counting the copies of put data to the wheel.
    const COPIES_UNCOUNTED: bool;

    /// Returns the lent run, if it was returned.
    fn run(lent: Self::Lent) -> Option<Self::Memory>;

    /// Returns a value that may be held until its Python object is created, or a copy if others wait for its memory.
    fn answered(value: Option<Self::Value>) -> Answered;

    /// Returns a value that may be held until it is copied to a buffer, or an error if others wait for its memory.
    fn kept(value: Self::Value) -> Result<Value, Self::Value>;

    /// Wraps a request as one of either kind.
    fn flying(flight: Flight<Self>) -> AnyFlight;

    /// Stores objects; in a store of this process as a sequence of KV blocks if there is a layout.
    fn put_all<'a>(
        &self,
        items: Vec<(Key, Self::Data<'a>)>,
        with: &PutWith,
    ) -> Self::Batch<Put<Self::Lent>>;
}

impl Backend for Store {
    const COPIES_UNCOUNTED: bool = false;

    fn run(lent: AnyBuffer) -> Option<Buffer> {
        match lent {
            AnyBuffer::One(run) => Some(run),
            AnyBuffer::None => None,
            AnyBuffer::Many(_) => unreachable!("one run was lent, and comes back in one piece"),
        }
    }

    fn answered(value: Option<Value>) -> Answered {
        Answered::Value(value.map(|value| Box::new(value) as _))
    }

    fn kept(value: Value) -> Result<Value, Value> {
        Ok(value)
    }

    fn flying(flight: Flight<Store>) -> AnyFlight {
        AnyFlight::Store(flight)
    }

    fn put_all<'a>(&self, items: Vec<(Key, Self::Data<'a>)>, with: &PutWith) -> Self::Batch<Put> {
        match &with.layout {
            Some(layout) => self.put_blocks(layout, items, with),
            None => self.put_many(items, with),
        }
    }
}

impl Backend for Client {
    const COPIES_UNCOUNTED: bool = true;

    fn run(lent: Option<Span>) -> Option<Span> {
        lent
    }

    fn answered(value: Option<Self::Value>) -> Answered {
        Answered::Value(value.map(|value| Box::new(value.to_vec()) as _))
    }

    fn kept(value: Self::Value) -> Result<Value, Self::Value> {
        Err(value)
    }

    fn flying(flight: Flight<Client>) -> AnyFlight {
        AnyFlight::Client(flight)
    }

    fn put_all<'a>(
        &self,
        items: Vec<(Key, Self::Data<'a>)>,
        with: &PutWith,
    ) -> Self::Batch<Put<Option<Span>>> {
        self.put_many(items, with)
    }
}

/// One request, with everything that its answer needs. Options become `None` once it is answered.
pub(crate) enum Flight<S: Backend> {
    Put(Option<S::Pending<Put<S::Lent>>>, Option<Loan<S::Memory>>),
    Get(Option<S::Pending<Option<S::Value>>>),
    /// Reads into pool memory, from which the view is filled.
    Copy(Option<S::Pending<Option<S::Value>>>, Option<View>),
    /// Reads into lent memory.
    Read(Option<S::Pending<Read<S::Lent>>>, Option<Loan<S::Memory>>),
    Flag(Option<S::Pending<bool>>),
    Count(Option<S::Pending<usize>>),
    Removals(Option<S::Pending<Removed>>),
    Commit(Option<S::Pending<()>>),
}

/// A request of either kind.
pub(crate) enum AnyFlight {
    Store(Flight<Store>),
    Client(Flight<Client>),
}

impl AnyFlight {
    /// Returns the answer if it has arrived.
    pub(crate) fn look(
        &mut self,
        how: Look<'_>,
        copied: &AtomicU64,
        spent: &mut Vec<View>,
    ) -> Option<Answered> {
        match self {
            AnyFlight::Store(flight) => flight.look(how, copied, spent),
            AnyFlight::Client(flight) => flight.look(how, copied, spent),
        }
    }

    /// Takes the view of an abandoned request, to be released.
    pub(crate) fn take_view(&mut self) -> Option<View> {
        match self {
            AnyFlight::Store(Flight::Copy(_, view)) | AnyFlight::Client(Flight::Copy(_, view)) => {
                view.take()
            }
            _ => None,
        }
    }
}

impl<S: Backend> Flight<S> {
    fn look(
        &mut self,
        how: Look<'_>,
        copied: &AtomicU64,
        spent: &mut Vec<View>,
    ) -> Option<Answered> {
        match self {
            Flight::Put(pending, loan) => land(pending, how, |answer| {
                let stored = |put: Put<S::Lent>| (Answered::Flag(put.is_stored()), put.memory);
                returned::<S>(answer.map(stored), loan.take())
            }),
            Flight::Read(pending, loan) => land(pending, how, |answer| {
                let read = |read: Read<S::Lent>| (Answered::Length(read.bytes), read.memory);
                returned::<S>(answer.map(read), loan.take())
            }),
            Flight::Copy(pending, view) => land(pending, how, |answer| {
                let view = view.take().expect("the view is there until the answer");
                let value = match answer {
                    // A polling caller has a loop to serve, so copy in turns.
                    Ok(Some(value)) if matches!(how, Look::Poll(_)) => match S::kept(value) {
                        Ok(value) => return Answered::Copy(value, view),
                        Err(value) => Ok(Some(value)),
                    },
                    other => other,
                };
                let copy = |value: Option<S::Value>| {
                    Answered::copied(&view, value.as_ref().map(S::Value::bytes), copied)
                };
                let answered = plain(copy)(value);
                spent.push(view);
                answered
            }),
            Flight::Get(pending) => land(pending, how, plain(S::answered)),
            Flight::Flag(pending) => land(pending, how, plain(Answered::Flag)),
            Flight::Count(pending) => land(pending, how, plain(Answered::Count)),
            Flight::Removals(pending) => land(pending, how, plain(Answered::Removals)),
            Flight::Commit(pending) => land(pending, how, plain(|()| Answered::Done)),
        }
    }
}

/// Waits for at most `at_most`, and at most the request's own time limit.
///
/// # Errors
/// The request, if it is not answered in time.
pub(crate) fn wait_for<P: PendingAnswer>(pending: P, at_most: Duration) -> Result<P::Output, P> {
    match pending.patience() {
        // The request's own deadline has passed, so `wait` returns at once.
        Duration::ZERO => Ok(pending.wait()),
        patience => pending.wait_timeout(at_most.min(patience)),
    }
}

/// Checks for the answer of one request, and settles it.
fn land<P: PendingAnswer>(
    place: &mut Option<P>,
    how: Look<'_>,
    settle: impl FnOnce(P::Output) -> Answered,
) -> Option<Answered> {
    const ONCE: &str = "a request is answered once";
    let answer = match how {
        Look::Wait(at_most) => match wait_for(place.take().expect(ONCE), at_most) {
            Ok(answer) => answer,
            Err(pending) => {
                *place = Some(pending);
                return None;
            }
        },
        Look::Poll(waker) => {
            let pending = Pin::new(place.as_mut().expect(ONCE));
            let Poll::Ready(answer) = pending.poll(&mut Context::from_waker(waker)) else {
                return None;
            };
            *place = None;
            answer
        }
    };
    Some(settle(answer))
}

/// Settles an answer that returns lent memory.
pub(crate) fn returned<S: Backend>(
    answer: Answer<(Answered, S::Lent), S::Lent>,
    loan: Option<Loan<S::Memory>>,
) -> Answered {
    let failed = |Unfinished { error, memory }| (Answered::Failed(*error), memory);
    let (answered, lent) = answer.unwrap_or_else(failed);
    if let Some(loan) = loan {
        loan.give(S::run(lent));
    }
    answered
}

/// Returns what settles an answer without memory.
pub(crate) fn plain<T, M>(
    then: impl FnOnce(T) -> Answered,
) -> impl FnOnce(Answer<T, M>) -> Answered {
    |answer| answer.map_or_else(|why| Answered::Failed(*why.error), then)
}
