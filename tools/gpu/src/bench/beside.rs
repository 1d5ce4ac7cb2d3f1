//! What a compute kernel loses beside the persistent I/O kernel while its rings are busy.
//!
//! Alone, the compute kernel has all multiprocessors. Beside, it has the complement of the I/O partition, which also
//! runs the controller in device code; the cost is that partition. Without a partition, the kernels share all
//! multiprocessors, and none is given away.

use std::sync::Arc;
use std::time::Duration;

use adit_gpu::internals::{PartitionKind, Partitions, Program};
use adit_gpu::{Error, Gpu, Priority, Result, Stream};

use super::compute::Compute;
use super::load::Round;
use super::options::{BenchOptions, Watch};
use super::report::Beside;
use super::rig::Rig;
use super::saturated::{add_up, rounds};

/// Number of measurements of each; the median counts.
const RUNS: usize = 5;
/// Approximate duration of a round of the rings, which is followed by the next.
const ROUND_MS: f64 = 10.0;
/// Time limit of the last rounds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Registers of a multiprocessor, and of a warp of each kernel, rounded up from NVRTC 13.0's figures.
const REGISTERS: u32 = 65_536;
const REGISTERS_CONTROLLER: u32 = 4_096;
const REGISTERS_IO: u32 = 3_072;

/// The compute kernel alone, before anything persistent runs.
#[derive(Debug)]
pub(super) struct Alone {
    work: Compute,
    alone_ms: f64,
    /// Its multiprocessors: all.
    sms: u32,
}

/// Measures the compute kernel alone, at least once.
///
/// # Errors
/// [`Error::TimedOut`] if it does not end; CUDA's.
pub(super) fn alone(
    gpu: &Arc<Gpu>,
    program: &Arc<Program>,
    options: &BenchOptions,
    watch: &Watch<'_>,
) -> Result<Alone> {
    let stream = Arc::new(Stream::new(gpu, Priority::Normal)?);
    let sms = gpu.info().sm_count;
    let mut work = Compute::calibrated(gpu, program, (&stream, sms), options.compute)?;
    let mut times = Vec::with_capacity(RUNS);
    while times.len() < RUNS && (times.is_empty() || !watch.is_stopped()) {
        times.push(work.time_ms(&stream, sms)?);
    }
    Ok(Alone { work, alone_ms: median(&mut times), sms })
}

/// Measures it again in the complement, while `rig` executes rounds of commands.
///
/// # Errors
/// If a command failed; [`Error::TimedOut`] if kernel or commands do not end; CUDA's.
pub(super) fn measure(
    rig: &mut Rig,
    partitions: &Partitions,
    (alone, per_second): (&mut Alone, f64),
    (grid, options): ((u32, u32), &BenchOptions),
    watch: &Watch<'_>,
) -> Result<Beside> {
    let each = per_second * ROUND_MS / 1e3 / f64::from(options.queues);
    let rounds = rounds(options.queues, (each as u64).max(1));
    let stream = Arc::new(partitions.compute.stream(Priority::Normal)?);
    let sms = partitions.compute.sms();
    let mut commands = 0;
    let mut times = Vec::with_capacity(RUNS);
    rig.persist(grid)?;
    for ring in 0..options.queues {
        begin(rig, ring, &rounds)?;
    }
    while times.len() < RUNS && (times.is_empty() || !watch.is_stopped()) {
        let run = alone.work.enqueue(&stream, sms)?;
        times.push(alone.work.wait_ms(&run, || keep_busy(rig, &rounds, &mut commands))?);
        watch.tell(&format!("a compute kernel beside the rings: {} of {RUNS}", times.len()));
    }
    settle(rig, options.queues)?;
    for header in rig.load.headers(0..options.queues)? {
        commands += add_up(&[header])?.0;
    }
    rig.unpersist()?;
    rig.check()?;
    Ok(Beside {
        alone_ms: alone.alone_ms,
        beside_ms: median(&mut times),
        sms_all: alone.sms,
        // None if only priorities separate the parts.
        sms_given: alone.sms.saturating_sub(sms),
        kind: kind(&partitions.kind),
        commands,
    })
}

/// Returns the warps of the I/O kernel on each of `sms` multiprocessors that the controller leaves room for. A kernel
/// without room for a block would wait for the controller, which does not end.
pub(super) fn warps(options: &BenchOptions, sms: u32) -> Option<u32> {
    let controller = options.queues.div_ceil(sms.max(1)).checked_mul(REGISTERS_CONTROLLER)?;
    let room = REGISTERS.checked_sub(controller)? / REGISTERS_IO;
    (room > 0).then(|| room.min(options.warps))
}

fn kind(kind: &PartitionKind) -> String {
    match kind {
        PartitionKind::Green => "green contexts".to_owned(),
        PartitionKind::Priority { why } => format!("priorities alone: {why}"),
    }
}

fn begin(rig: &mut Rig, ring: u32, rounds: &[Round]) -> Result<()> {
    rig.load.prepare(ring, &rounds[ring as usize..=ring as usize])?;
    rig.load.issue(ring)
}

/// Starts the next round of every ring whose round is over.
fn keep_busy(rig: &mut Rig, rounds: &[Round], commands: &mut u64) -> Result<()> {
    for ring in 0..rounds.len() as u32 {
        if rig.load.is_over(ring) {
            *commands += add_up(&rig.load.headers(ring..ring + 1)?)?.0;
            begin(rig, ring, rounds)?;
        }
    }
    Ok(())
}

fn settle(rig: &Rig, queues: u32) -> Result<()> {
    let begin = std::time::Instant::now();
    while !(0..queues).all(|ring| rig.load.is_over(ring)) {
        if begin.elapsed() >= PATIENCE {
            return Err(Error::TimedOut {
                waited_for: "the rings beside the compute kernel".to_owned(),
                after: PATIENCE,
                fix: "run 'adit gpu selftest'".to_owned(),
            });
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_io_kernel_takes_the_room_that_the_controller_leaves() {
        let with = |queues| BenchOptions { queues, ..BenchOptions::default() };
        assert_eq!(warps(&with(8), 8), Some(16));
        assert_eq!(warps(&with(64), 8), Some(10));
        assert_eq!(warps(&with(128), 8), None);
        assert_eq!(warps(&with(256), 1), None);
    }

    #[test]
    fn the_median_is_one_of_the_times() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut []), 0.0);
    }
}
