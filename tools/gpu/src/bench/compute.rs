//! A compute load: products of matrices in GPU memory, timed by events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_gpu::internals::{self, DeviceMemory, Kernel, Program};
use adit_gpu::{Error, Event, Gpu, Result, Stream};
use zerocopy::{Immutable, IntoBytes};

/// Rows of the first matrices to try, and the most.
const ROWS_FIRST: u32 = 128;
const ROWS_MAX: u32 = 2048;
/// A shorter product is too small to fill a GPU.
const PRODUCT_MS_MIN: f64 = 0.2;
const THREADS: u32 = 256;
const BLOCKS_PER_SM: u32 = 4;
/// Time limit of a kernel.
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

/// A fixed amount of work for a kernel. The memory of a kernel that was not seen to end is not freed.
#[derive(Debug)]
pub(super) struct Compute {
    /// None once dropped.
    reached: Option<Reached>,
    rows: u32,
    rounds: u32,
    patience: Duration,
}

/// What a kernel accesses.
#[derive(Debug)]
struct Reached {
    program: Arc<Program>,
    matrices: DeviceMemory,
    arguments: DeviceMemory,
    /// The stream of a kernel not seen to end, which keeps its partition.
    under_way: Option<Arc<Stream>>,
}

/// An enqueued kernel.
#[derive(Debug)]
pub(super) struct Run {
    begin: Event,
    end: Event,
}

impl Run {
    /// Returns its duration once it is over.
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
    /// Creates work that takes about `time` on `sms` multiprocessors in `stream`.
    ///
    /// # Errors
    /// As [`Compute::time_ms`].
    pub(super) fn calibrated(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        (stream, sms): (&Arc<Stream>, u32),
        time: Duration,
    ) -> Result<Compute> {
        let bytes = 3 * u64::from(ROWS_MAX) * u64::from(ROWS_MAX) * 4;
        let matrices = DeviceMemory::allocate(gpu, bytes)?;
        matrices.zero()?;
        let arguments = DeviceMemory::allocate(gpu, size_of::<ComputeArguments>() as u64)?;
        let reached =
            Reached { program: Arc::clone(program), matrices, arguments, under_way: None };
        let mut work =
            Compute { reached: Some(reached), rows: ROWS_FIRST, rounds: 1, patience: PATIENCE };
        // The first run is slower than later ones.
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

    /// Enqueues it once, for `sms` multiprocessors. The previous run must be over.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn enqueue(&mut self, stream: &Arc<Stream>, sms: u32) -> Result<Run> {
        let matrix_bytes = u64::from(self.rows) * u64::from(self.rows) * 4;
        let reached = self.reached.as_mut().expect("it is taken when the work is dropped");
        let a = reached.matrices.address();
        let arguments = ComputeArguments {
            a,
            b: a + matrix_bytes,
            c: a + 2 * matrix_bytes,
            n: self.rows,
            rounds: self.rounds,
        };
        reached.arguments.write(0, arguments.as_bytes())?;
        let begin = stream.record()?;
        reached.launch(stream, sms)?;
        reached.under_way = Some(Arc::clone(stream));
        Ok(Run { begin, end: stream.record()? })
    }

    /// Runs it once and returns its duration.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if it does not end; [`Error::Cuda`].
    pub(super) fn time_ms(&mut self, stream: &Arc<Stream>, sms: u32) -> Result<f64> {
        let run = self.enqueue(stream, sms)?;
        self.wait_ms(&run, || Ok(()))
    }

    /// Waits for it, calling `meanwhile` repeatedly.
    ///
    /// # Errors
    /// As [`Compute::time_ms`]; the errors of `meanwhile`.
    pub(super) fn wait_ms(
        &mut self,
        run: &Run,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<f64> {
        let begin = Instant::now();
        loop {
            if let Some(took_ms) = run.took_ms()? {
                self.reached.as_mut().expect("it is not dropped").under_way = None;
                return Ok(took_ms);
            }
            if begin.elapsed() >= self.patience {
                return Err(Error::TimedOut {
                    waited_for: "the compute kernel of the bench".to_owned(),
                    after: self.patience,
                    fix: "give it less to do (--compute), or end what else the GPU does".to_owned(),
                });
            }
            meanwhile()?;
            std::thread::yield_now();
        }
    }
}

impl Reached {
    /// Uses small blocks where large ones do not fit.
    fn launch(&self, stream: &Stream, sms: u32) -> Result<()> {
        let (kernel, at) = (self.program.function(Kernel::Compute), self.arguments.address());
        match internals::launch(stream, kernel, (sms * BLOCKS_PER_SM, THREADS), at) {
            Err(Error::Cuda { name, .. }) if name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" => {
                internals::launch(stream, kernel, (sms, 32), at)
            }
            other => other,
        }
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        let reached = self.reached.take();
        if reached.as_ref().is_some_and(|reached| reached.under_way.is_some()) {
            tracing::warn!(
                "the compute kernel of the bench has not ended; the memory that it may reach is not freed"
            );
            std::mem::forget(reached);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_gpu::Priority;

    /// Longest time that a kernel may outlive the test.
    const AT_MOST: Duration = Duration::from_secs(60);

    #[test]
    fn a_kernel_that_does_not_end_in_time_keeps_its_memory() {
        let test = concat!(module_path!(), "::a_kernel_that_does_not_end_in_time_keeps_its_memory");
        adit_gpu_emulated::alone("sms=2", test, || {
            let gpu = Gpu::open(0).expect("an emulated GPU");
            let program = Program::load(&gpu).expect("it compiles");
            let stream = Arc::new(Stream::new(&gpu, Priority::Normal).expect("a stream"));
            let time = Duration::from_millis(500);
            let mut work = Compute::calibrated(&gpu, &program, (&stream, 2), time).expect("work");
            work.time_ms(&stream, 2).expect("it ends by itself");
            work.patience = Duration::ZERO;
            let late = work.time_ms(&stream, 2).expect_err("it takes longer than no time");
            assert!(matches!(late, Error::TimedOut { .. }), "{late}");
            assert!(late.to_string().contains("--compute"), "{late}");
            let before = adit_gpu_emulated::report();
            assert_eq!(before.kernels_running, 1);
            drop((work, program, stream));
            let begun = Instant::now();
            while adit_gpu_emulated::report().kernels_running > 0 {
                assert!(begun.elapsed() < AT_MOST, "the kernel does not end");
                std::thread::yield_now();
            }
            let after = adit_gpu_emulated::report();
            assert_eq!(after.allocated_bytes, before.allocated_bytes);
            assert_eq!((after.streams, after.modules), (before.streams, before.modules));
        });
    }
}
