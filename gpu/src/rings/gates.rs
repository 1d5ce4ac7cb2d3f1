//! Gates: streams that wait for users' events and record our own after them.
//!
//! A user may record an event again at any time; an event of ours, recorded behind a wait for it, stays unaffected.
//! Streams are serial, so each wait takes an idle one: a slow event delays no other. There are as many gates as events
//! were under way at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::{Event, Gpu, Priority, Stream};
use crate::error::Result;

/// Streams that turn users' events into our own.
#[derive(Debug)]
pub(crate) struct Gates {
    gpu: Arc<Gpu>,
    /// At least one.
    streams: Mutex<Vec<Stream>>,
}

impl Gates {
    /// # Errors
    /// [`crate::Error::Cuda`].
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
    /// [`crate::Error::Cuda`].
    pub(crate) fn own(&self, event: &Event) -> Result<Arc<Event>> {
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
    /// [`crate::Error::Cuda`] if a kernel failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.lock()[0].is_idle().map(drop)
    }
}

fn first_idle(streams: &[Stream]) -> Result<Option<usize>> {
    for (index, stream) in streams.iter().enumerate() {
        if stream.is_idle()? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}
