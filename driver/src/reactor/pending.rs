//! A request in flight, as its sender holds it.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::cell::{Cell, Pool};
use super::outcome::{Data, End, Unfinished};
use crate::queue_pair::Completion;

/// A request that a reactor has taken: a future for any runtime, or a blocking [`Pending::wait`].
///
/// Each attempt ends within the command's deadline plus the driver's reaction (abort, reset); the time in the
/// mailbox is extra.
///
/// Dropping it abandons the answer, not the request: the command is carried out, and the reactor drops its
/// buffer once the device is done with it.
#[must_use = "dropping it gives up the buffer with the answer"]
pub struct Pending<D: Data> {
    /// `None` once the answer was taken.
    cell: Option<Arc<Cell>>,
    pool: Arc<Pool>,
    data: PhantomData<fn() -> D>,
}

impl<D: Data> Pending<D> {
    pub(super) fn new(cell: Arc<Cell>, pool: Arc<Pool>) -> Pending<D> {
        Pending { cell: Some(cell), pool, data: PhantomData }
    }

    /// Blocks until the request ends. Do not call it inside a waker, which runs on the thread that would end
    /// the request.
    ///
    /// # Errors
    /// [`Unfinished`] if the request was not sent, or its buffer is lost. The completion holds the device's
    /// result.
    pub fn wait(mut self) -> Result<Completion<D>, Unfinished<D>> {
        let end = self.cell().wait(None).expect("without a deadline only an end ends the wait");
        self.ended(end)
    }

    /// Blocks for at most `at_most`; the inner result is [`Pending::wait`]'s.
    ///
    /// # Errors
    /// Returns itself if the request has not ended by then.
    pub fn wait_timeout(
        mut self,
        at_most: Duration,
    ) -> Result<Result<Completion<D>, Unfinished<D>>, Pending<D>> {
        match self.cell().wait(Instant::now().checked_add(at_most)) {
            Some(end) => Ok(self.ended(end)),
            None => Err(self),
        }
    }

    /// Returns the answer without waiting.
    ///
    /// # Errors
    /// Returns itself if the request has not ended.
    pub fn try_wait(mut self) -> Result<Result<Completion<D>, Unfinished<D>>, Pending<D>> {
        match self.cell().take() {
            Some(end) => Ok(self.ended(end)),
            None => Err(self),
        }
    }

    fn cell(&self) -> &Cell {
        self.cell.as_ref().expect("an answer is taken once")
    }

    fn ended(&mut self, end: End) -> Result<Completion<D>, Unfinished<D>> {
        if let Some(cell) = self.cell.take() {
            self.pool.give_back(cell);
        }
        end.typed()
    }
}

impl<D: Data> Future for Pending<D> {
    type Output = Result<Completion<D>, Unfinished<D>>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell().poll(context.waker()).map(|end| self.ended(end))
    }
}

impl<D: Data> Drop for Pending<D> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take()
            && cell.forget()
        {
            self.pool.give_back(cell);
        }
    }
}

impl<D: Data> fmt::Debug for Pending<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("taken", &self.cell.is_none()).finish_non_exhaustive()
    }
}
