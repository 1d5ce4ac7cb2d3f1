//! A request in flight, as its sender holds it.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::outcome::{Data, End, Lost, Unfinished};
use crate::deadline;
use crate::queue_pair::Completion;
use crate::runtime::{Dropped, Receipt};

/// A request that a reactor has taken: a future for any runtime, or a blocking [`Pending::wait`].
///
/// Each attempt ends within the command's deadline plus the driver's reaction (abort, reset); the time in the
/// mailbox is extra.
///
/// Dropping it abandons the answer, not the request: the command is carried out, and the reactor drops its
/// buffer once the device is done with it.
#[must_use = "dropping it gives up the buffer with the answer"]
pub struct Pending<D: Data> {
    receipt: Receipt<End>,
    data: PhantomData<fn() -> D>,
}

impl<D: Data> Pending<D> {
    pub(super) fn new(receipt: Receipt<End>) -> Pending<D> {
        Pending { receipt, data: PhantomData }
    }

    /// Blocks until the request ends. Do not call it inside a waker, which runs on the thread that would end
    /// the request.
    ///
    /// # Errors
    /// [`Unfinished`] if the request was not sent, or its buffer is lost. The completion holds the device's
    /// result.
    pub fn wait(mut self) -> Result<Completion<D>, Unfinished<D>> {
        typed(self.receipt.wait_until(None).expect("without a deadline only an end ends the wait"))
    }

    /// Blocks for at most `at_most`; the inner result is [`Pending::wait`]'s.
    ///
    /// # Errors
    /// Returns itself if the request has not ended by then.
    pub fn wait_timeout(
        mut self,
        at_most: Duration,
    ) -> Result<Result<Completion<D>, Unfinished<D>>, Pending<D>> {
        self.receipt.wait_until(Some(deadline(at_most))).map(typed).ok_or(self)
    }

    /// Returns the answer without waiting.
    ///
    /// # Errors
    /// Returns itself if the request has not ended.
    pub fn try_wait(mut self) -> Result<Result<Completion<D>, Unfinished<D>>, Pending<D>> {
        self.receipt.take().map(typed).ok_or(self)
    }
}

fn typed<D: Data>(end: Result<End, Dropped>) -> Result<Completion<D>, Unfinished<D>> {
    end.unwrap_or(End::Lost(Lost::Stopped)).typed()
}

impl<D: Data> Future for Pending<D> {
    type Output = Result<Completion<D>, Unfinished<D>>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.receipt.poll(context.waker()).map(typed)
    }
}

impl<D: Data> fmt::Debug for Pending<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("taken", &self.receipt.is_taken()).finish_non_exhaustive()
    }
}
