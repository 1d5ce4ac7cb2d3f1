//! Gates: streams that wait for users' events and record our own after them.
//!
//! A user may record an event again at any time; an event of ours, recorded behind a wait for it, stays unaffected.
//! Streams are serial, so each wait takes an idle one: a slow event delays no other. There are as many gates as events
//! were under way at once. A gate that waited for an event of a captured stream would join the capture, and nothing
//! behind it would begin: such events are refused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::{Event, Gpu, Priority, Stream};
use crate::error::{Error, Result};

/// Streams that turn users' events into our own.
#[derive(Debug)]
pub(crate) struct Gates {
    gpu: Arc<Gpu>,
    /// At least one.
    streams: Mutex<Vec<Stream>>,
}

impl Gates {
    /// # Errors
    /// [`Error::Cuda`].
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Gates> {
        let first = Stream::new(gpu, Priority::High)?;
        Ok(Gates { gpu: Arc::clone(gpu), streams: Mutex::new(vec![first]) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an event of ours that completes with the user's, as last recorded.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an event that was recorded in a captured stream; [`Error::Cuda`].
    pub(crate) fn own(&self, event: &Event) -> Result<Arc<Event>> {
        if event.is_captured()? {
            let why = "it is a part of a CUDA graph, which has not run; record it in a stream that is not captured";
            return Err(Error::invalid("an event recorded in a captured stream", why));
        }
        // The lock keeps other threads from taking the same idle stream.
        let mut streams = self.lock();
        let index = match first_idle(&streams)? {
            Some(index) => index,
            None => {
                streams.push(Stream::new(&self.gpu, Priority::High)?);
                streams.len() - 1
            }
        };
        let stream = &streams[index];
        stream.wait_event(event)?;
        Ok(Arc::new(stream.record()?))
    }

    /// Checks that the GPU still works: a failed kernel ends no block, and every later call reports it.
    ///
    /// # Errors
    /// [`Error::Cuda`] if a kernel failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.lock()[0].is_idle().map(drop)
    }
}

/// Refuses a stream that is captured, for work that a graph must not repeat.
///
/// # Errors
/// [`Error::Invalid`] with the call and the reason; [`Error::Cuda`].
pub(crate) fn check_not_captured(stream: &Stream, call: &str, why: &str) -> Result<()> {
    if !stream.is_captured()? {
        return Ok(());
    }
    Err(Error::invalid(format!("{call} in a stream that is captured into a CUDA graph"), why))
}

fn first_idle(streams: &[Stream]) -> Result<Option<usize>> {
    for (index, stream) in streams.iter().enumerate() {
        if stream.is_idle()? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}
