//! Gates: streams in which events of others are waited for, to be ours from then on.
//!
//! A user records an event again as he likes; what is recorded behind a wait for it stays as it was. A stream does one
//! thing after the other, so each wait gets one that is idle: an event that takes long holds up no other. There are as
//! many as events were under way at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::{Event, Gpu, Priority, Stream};
use crate::error::Result;

/// See the module.
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

    /// An event of ours that is over when the user's is, as it was last recorded.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(crate) fn own(&self, event: &Event) -> Result<Arc<Event>> {
        // Nobody else takes the same idle one meanwhile.
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

    /// Whether the GPU still works: a kernel that failed ends no block, and every call says that it did.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`] if one failed.
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
