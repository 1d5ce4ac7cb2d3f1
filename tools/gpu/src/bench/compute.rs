//! A compute load: products of matrices in GPU memory, timed by events and by its own warps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_gpu::internals::{self, DeviceMemory, Kernel, Program};
use adit_gpu::{Error, Event, Gpu, Result, Stream};
use serde::Serialize;
use zerocopy::{Immutable, IntoBytes};

use crate::options::is_emulated;

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
    times: u64,
}

const _: () = assert!(size_of::<ComputeArguments>() == 40);

/// The duration of a kernel; the names of its fields are those of the JSON.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Took {
    /// By events around it.
    pub(crate) ms: f64,
    /// A warp's round by the GPU's clock: the mean, and the longest of all.
    pub(crate) round_ns: u64,
    pub(crate) longest_round_ns: u64,
}

/// A fixed amount of work for a kernel.
#[derive(Debug)]
pub(crate) struct Compute {
    reached: Arc<Reached>,
    rows: u32,
    rounds: u32,
    patience: Duration,
}

/// The memory that a kernel accesses.
#[derive(Debug)]
struct Reached {
    program: Arc<Program>,
    matrices: DeviceMemory,
    arguments: DeviceMemory,
    /// Two words of each warp.
    times: DeviceMemory,
}

impl Compute {
    /// Creates work that takes about `time` on a number of multiprocessors in a stream.
    ///
    /// # Errors
    /// As [`Compute::run`].
    pub(crate) fn calibrated(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        on: (&Arc<Stream>, u32),
        time: Duration,
    ) -> Result<Compute> {
        let bytes = 3 * u64::from(ROWS_MAX) * u64::from(ROWS_MAX) * 4;
        let matrices = DeviceMemory::zeroed(gpu, bytes)?;
        let arguments = DeviceMemory::allocate(gpu, size_of::<ComputeArguments>() as u64)?;
        let times = DeviceMemory::allocate(gpu, u64::from(warps(gpu, gpu.info().sm_count)) * 16)?;
        let reached = Reached { program: Arc::clone(program), matrices, arguments, times };
        let reached = Arc::new(reached);
        let mut work = Compute { reached, rows: ROWS_FIRST, rounds: 1, patience: PATIENCE };
        let product_ms = |work: &Compute| work.run(on, || Ok(())).map(|took| took.ms);
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
    pub(crate) fn run(
        &self,
        (stream, sms): (&Arc<Stream>, u32),
        meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<Took> {
        let begin = self.launch(stream, sms)?;
        let took = stream.record().and_then(|end| self.wait_ms(&begin, &end, meanwhile));
        if took.is_err() {
            tracing::warn!(
                "the compute kernel of the bench was not seen to end; the memory that it may reach is not freed"
            );
            std::mem::forget((Arc::clone(&self.reached), Arc::clone(stream)));
        }
        self.told(took?, warps(stream.gpu(), sms))
    }

    /// Reads what the warps of the last run measured.
    fn told(&self, ms: f64, warps: u32) -> Result<Took> {
        let mut words = vec![0u64; 2 * warps as usize];
        self.reached.times.read(0, words.as_mut_bytes())?;
        let sum: u64 = words.iter().step_by(2).sum();
        let round_ns = sum / u64::from(warps) / u64::from(self.rounds);
        let longest = words.iter().skip(1).step_by(2).max();
        Ok(Took { ms, round_ns, longest_round_ns: longest.copied().unwrap_or(0) })
    }

    /// Enqueues it; returns the event of its beginning.
    fn launch(&self, stream: &Stream, sms: u32) -> Result<Event> {
        let Reached { program, matrices, arguments, times } = &*self.reached;
        let matrix_bytes = u64::from(self.rows) * u64::from(self.rows) * 4;
        let a = matrices.address();
        let (b, c) = (a + matrix_bytes, a + 2 * matrix_bytes);
        let (n, rounds, times) = (self.rows, self.rounds, times.address());
        arguments.write(0, ComputeArguments { a, b, c, n, rounds, times }.as_bytes())?;
        let grid = grid(stream.gpu(), sms);
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
                let fix = "end what else the GPU does";
                let what = "the compute kernel of the bench";
                return Err(Error::timed_out(what, self.patience, fix));
            }
            meanwhile()?;
            std::thread::yield_now();
        }
        begin.elapsed_ms(end).map(f64::from)
    }
}

/// Returns the blocks and threads of the kernel on `sms` multiprocessors.
fn grid(gpu: &Gpu, sms: u32) -> (u32, u32) {
    match is_emulated(&gpu.info().name) {
        true => (sms, 32), // It has room for few warps, each of which is a thread.
        false => (sms * BLOCKS_PER_SM, THREADS),
    }
}

fn warps(gpu: &Gpu, sms: u32) -> u32 {
    let (blocks, threads) = grid(gpu, sms);
    blocks * threads / 32
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
            let took = work.run((&stream, 2), || Ok(())).expect("it ends by itself");
            assert!(took.round_ns > 0 && took.longest_round_ns >= took.round_ns, "{took:?}");
            assert!(took.longest_round_ns as f64 <= took.ms * 1e6, "{took:?}");
            work.patience = Duration::ZERO;
            let late = work.run((&stream, 2), || Ok(())).expect_err("it takes more than no time");
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
