//! Checks that other streams make progress beside the persistent kernel.
//!
//! The driver maps streams to a few hardware queues (`CUDA_DEVICE_MAX_CONNECTIONS`), each of which does its work in
//! order. Work behind a kernel that does not end waits forever, and so does all that waits for that work. So markers are
//! enqueued behind the kernel and have to end in time: a kernel in streams as other code has them, a write in the
//! engine's own, which issue blocks by writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cuda::{Function, Gpu, Partitions, Priority, Stream};
use crate::error::{Error, Result};
use crate::rings::ring_set::Marker;

/// Far longer than a marker takes, even as a thread of a busy CPU.
const PROGRESS_WITHIN: Duration = Duration::from_secs(10);
const LANES: u32 = 32;

/// Streams as other code has them, made before the kernel runs.
pub(crate) struct Beside {
    gpu: Arc<Gpu>,
    streams: [Stream; 2],
}

impl Beside {
    /// # Errors
    /// [`Error::Cuda`].
    pub(crate) fn new(gpu: &Arc<Gpu>, partitions: &Partitions) -> Result<Beside> {
        let compute = partitions.compute.stream(Priority::Normal)?;
        let streams = [compute, Stream::new(gpu, Priority::Normal)?];
        Ok(Beside { gpu: Arc::clone(gpu), streams })
    }

    /// Enqueues a marker in each stream and in the engine's `own`, and waits for all of them.
    ///
    /// # Errors
    /// [`Error::Refused`] if one does not end beside the kernel; [`Error::Cuda`].
    pub(crate) fn check(&self, own: &[Stream], kernel: &Function, marker: Marker) -> Result<()> {
        let launch = |stream: &Stream| stream.launch(kernel, 1, LANES, marker.argument);
        self.streams.iter().try_for_each(launch)?;
        own.iter().try_for_each(|stream| stream.write32(marker.word, 1))?;
        let begun = Instant::now();
        for stream in self.streams.iter().chain(own) {
            let left = PROGRESS_WITHIN.saturating_sub(begun.elapsed());
            match stream.synchronize(left) {
                Err(Error::TimedOut { .. }) => return Err(self.shared()),
                ended => ended?,
            }
        }
        Ok(())
    }

    /// Waits for the markers once the kernel has ended: their memory stays until then.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if a stream is not done by then; [`Error::Cuda`].
    pub(crate) fn await_end(&self, own: &[Stream], within: Duration) -> Result<()> {
        self.streams.iter().chain(own).try_for_each(|stream| stream.synchronize(within))
    }

    fn shared(&self) -> Error {
        let why = format!(
            "work in another stream did not end beside it within {} s, as if both shared a hardware queue \
             (CUDA_DEVICE_MAX_CONNECTIONS: {})",
            PROGRESS_WITHIN.as_secs(),
            self.gpu.info().attributes.connections
        );
        let fix = "start the program with CUDA_DEVICE_MAX_CONNECTIONS=32, or use one-shot kernels";
        Error::refused("run the persistent kernel", why, fix)
    }
}
