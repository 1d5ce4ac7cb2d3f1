//! Arithmetic to be slowed down: products of matrices in GPU memory, timed by events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::{Immutable, IntoBytes};

use crate::cuda::{DeviceMemory, Event, Gpu, Stream};
use crate::error::{Error, Result};
use crate::program::{Kernel, Program};

/// Rows of the first matrices that are tried, and the most.
const ROWS_FIRST: u32 = 128;
const ROWS_MAX: u32 = 2048;
/// A product that takes less is too small to fill a GPU.
const PRODUCT_MS_MIN: f64 = 0.2;
const THREADS: u32 = 256;
const BLOCKS_PER_SM: u32 = 4;
/// How long a kernel may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The argument of `adit_compute` (kernels.cu).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct ComputeArguments {
    a: u64,
    b: u64,
    c: u64,
    n: u32,
    rounds: u32,
}

const _: () = assert!(size_of::<ComputeArguments>() == 32);

/// A kernel's work, always the same.
#[derive(Debug)]
pub(super) struct Compute {
    program: Arc<Program>,
    matrices: DeviceMemory,
    arguments: DeviceMemory,
    rows: u32,
    rounds: u32,
}

/// A kernel that is on its way.
#[derive(Debug)]
pub(super) struct Run {
    begin: Event,
    end: Event,
}

impl Run {
    /// Its time once it is over.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn took_ms(&self) -> Result<Option<f64>> {
        if !self.end.is_over()? {
            return Ok(None);
        }
        self.begin.elapsed_ms(&self.end).map(|took| Some(f64::from(took)))
    }
}

impl Compute {
    /// Work that takes about `time` on `sms` multiprocessors in `stream`.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn calibrated(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        (stream, sms): (&Stream, u32),
        time: Duration,
    ) -> Result<Compute> {
        let bytes = 3 * u64::from(ROWS_MAX) * u64::from(ROWS_MAX) * 4;
        let matrices = DeviceMemory::allocate(gpu, bytes)?;
        matrices.zero()?;
        let arguments = DeviceMemory::allocate(gpu, size_of::<ComputeArguments>() as u64)?;
        let program = Arc::clone(program);
        let mut work = Compute { program, matrices, arguments, rows: ROWS_FIRST, rounds: 1 };
        // The first run is slower than those after it.
        work.time_ms(stream, sms)?;
        let mut product_ms = work.time_ms(stream, sms)?;
        while product_ms < PRODUCT_MS_MIN && work.rows < ROWS_MAX {
            work.rows *= 2;
            product_ms = work.time_ms(stream, sms)?;
        }
        let rounds = time.as_secs_f64() * 1e3 / product_ms.max(1e-3);
        work.rounds = rounds.clamp(1.0, 1e6) as u32;
        Ok(work)
    }

    /// Enqueues it once, for `sms` multiprocessors. It is not enqueued again before it is over.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn enqueue(&self, stream: &Stream, sms: u32) -> Result<Run> {
        let matrix_bytes = u64::from(self.rows) * u64::from(self.rows) * 4;
        let a = self.matrices.address();
        let arguments = ComputeArguments {
            a,
            b: a + matrix_bytes,
            c: a + 2 * matrix_bytes,
            n: self.rows,
            rounds: self.rounds,
        };
        self.arguments.write(0, arguments.as_bytes())?;
        let begin = stream.record()?;
        self.launch(stream, sms)?;
        Ok(Run { begin, end: stream.record()? })
    }

    /// Takes small blocks where large ones do not fit.
    fn launch(&self, stream: &Stream, sms: u32) -> Result<()> {
        let (kernel, at) = (self.program.function(Kernel::Compute), self.arguments.address());
        match stream.launch(kernel, sms * BLOCKS_PER_SM, THREADS, at) {
            Err(Error::Cuda { name, .. }) if name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" => {
                stream.launch(kernel, sms, 32, at)
            }
            other => other,
        }
    }

    /// Runs it once, and says how long it took.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if it does not end; [`Error::Cuda`].
    pub(super) fn time_ms(&self, stream: &Stream, sms: u32) -> Result<f64> {
        let run = self.enqueue(stream, sms)?;
        self.wait_ms(&run, || Ok(()))
    }

    /// Waits for it, and does `meanwhile` again and again.
    ///
    /// # Errors
    /// As [`Compute::time_ms`]; what `meanwhile` fails with.
    pub(super) fn wait_ms(
        &self,
        run: &Run,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<f64> {
        let begin = Instant::now();
        loop {
            if let Some(took_ms) = run.took_ms()? {
                return Ok(took_ms);
            }
            if begin.elapsed() >= PATIENCE {
                return Err(Error::TimedOut {
                    waited_for: "the compute kernel of the bench".to_owned(),
                    after: PATIENCE,
                    fix: "give it less to do (--compute), or end what else the GPU does".to_owned(),
                });
            }
            meanwhile()?;
            std::thread::yield_now();
        }
    }
}
