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

/// A fixed amount of work for a kernel.
#[derive(Debug)]
pub(super) struct Compute {
    reached: Arc<Reached>,
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
}

impl Compute {
    /// Creates work that takes about `time` on a number of multiprocessors in a stream.
    ///
    /// # Errors
    /// As [`Compute::run_ms`].
    pub(super) fn calibrated(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        on: (&Arc<Stream>, u32),
        time: Duration,
    ) -> Result<Compute> {
        let bytes = 3 * u64::from(ROWS_MAX) * u64::from(ROWS_MAX) * 4;
        let matrices = DeviceMemory::allocate(gpu, bytes)?;
        matrices.zero()?;
        let arguments = DeviceMemory::allocate(gpu, size_of::<ComputeArguments>() as u64)?;
        let reached = Arc::new(Reached { program: Arc::clone(program), matrices, arguments });
        let mut work = Compute { reached, rows: ROWS_FIRST, rounds: 1, patience: PATIENCE };
        let product_ms = |work: &Compute| work.run_ms(on, || Ok(()));
        // The first run is slower than later ones.
        product_ms(&work)?;
        let mut took_ms = product_ms(&work)?;
        while took_ms < PRODUCT_MS_MIN && work.rows < ROWS_MAX {
            work.rows *= 2;
            took_ms = product_ms(&work)?;
        }
        let rounds = time.as_secs_f64() * 1e3 / took_ms.max(1e-3);
        work.rounds = rounds.clamp(1.0, 1e6) as u32;
        Ok(work)
    }

    /// Runs it once, calling `meanwhile` repeatedly, and returns its duration. What a kernel that was not seen to end may
    /// reach is leaked.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if it does not end; [`Error::Cuda`]; the errors of `meanwhile`.
    pub(super) fn run_ms(
        &self,
        (stream, sms): (&Arc<Stream>, u32),
        meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<f64> {
        let begin = self.launch(stream, sms)?;
        let took = stream.record().and_then(|end| self.wait_ms(&begin, &end, meanwhile));
        if took.is_err() {
            tracing::warn!(
                "the compute kernel of the bench was not seen to end; the memory that it may reach is not freed"
            );
            std::mem::forget((Arc::clone(&self.reached), Arc::clone(stream)));
        }
        took
    }

    /// Enqueues it; returns the event of its beginning.
    fn launch(&self, stream: &Stream, sms: u32) -> Result<Event> {
        let Reached { program, matrices, arguments } = &*self.reached;
        let matrix_bytes = u64::from(self.rows) * u64::from(self.rows) * 4;
        let a = matrices.address();
        let (b, c) = (a + matrix_bytes, a + 2 * matrix_bytes);
        let told = ComputeArguments { a, b, c, n: self.rows, rounds: self.rounds };
        arguments.write(0, told.as_bytes())?;
        let grid = match crate::is_emulated(&stream.gpu().info().name) {
            true => (sms, 32), // It has room for few warps, each of which is a thread.
            false => (sms * BLOCKS_PER_SM, THREADS),
        };
        let begin = stream.record()?;
        internals::launch(stream, program.function(Kernel::Compute), grid, arguments.address())?;
        Ok(begin)
    }

    fn wait_ms(
        &self,
        begin: &Event,
        end: &Event,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<f64> {
        let launched = Instant::now();
        while !end.is_over()? {
            if launched.elapsed() >= self.patience {
                return Err(Error::TimedOut {
                    waited_for: "the compute kernel of the bench".to_owned(),
                    after: self.patience,
                    fix: "end what else the GPU does".to_owned(),
                });
            }
            meanwhile()?;
            std::thread::yield_now();
        }
        begin.elapsed_ms(end).map(f64::from)
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
            work.run_ms((&stream, 2), || Ok(())).expect("it ends by itself");
            work.patience = Duration::ZERO;
            let late =
                work.run_ms((&stream, 2), || Ok(())).expect_err("it takes more than no time");
            assert!(matches!(late, Error::TimedOut { .. }), "{late}");
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
