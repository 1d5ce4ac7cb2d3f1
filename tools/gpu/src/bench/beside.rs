//! Measures what a compute kernel loses beside the persistent I/O kernel while its rings are busy.
//!
//! Alone, the compute kernel has all multiprocessors. Beside, it has the complement of the I/O partition, which also
//! runs the controller in device code; the cost is that partition. Without a partition, the kernels share all
//! multiprocessors, and none is given away. In the complement it also runs while the rings have nothing to do: what it
//! loses from there to busy rings is their share of caches and memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_gpu::internals::{PartitionKind, Partitions, Program};
use adit_gpu::{Error, Gpu, Priority, Result, Stream};

use super::compute::{Compute, Took};
use super::watch::Watch;
use crate::failure;
use crate::rig::load::Round;
use crate::rig::{Rig, add_up};

/// Number of measurements of each; the median counts.
const RUNS: usize = 5;
/// Approximate duration of a round of the rings, which is followed by the next.
pub(super) const ROUND: Duration = Duration::from_millis(10);
/// Time limit of the last rounds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Registers of a multiprocessor, and of a warp of each kernel, rounded up from NVRTC 13.0's figures.
const REGISTERS: u32 = 65_536;
const REGISTERS_CONTROLLER: u32 = 4_096;
const REGISTERS_IO: u32 = 3_072;

/// A compute kernel beside the persistent I/O kernel.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    /// The kernel alone, on all multiprocessors.
    pub(super) alone: Took,
    /// The kernel in the complement, beside rings without work.
    pub(super) idle: Took,
    /// The kernel in the complement, beside the rings at work.
    pub(super) busy: Took,
    /// Multiprocessors of the GPU.
    pub(super) sms_all: u32,
    /// Multiprocessors given away; 0 without a partition.
    pub(super) sms_given: u32,
    /// How they were partitioned: `green contexts`, or why they were not.
    pub(super) kind: String,
    /// Commands completed meanwhile.
    pub(super) commands: u64,
}

impl Beside {
    /// Returns the extra time of the kernel, as a share of its time alone.
    pub(super) fn slowdown(&self) -> f64 {
        more(&self.busy, &self.alone)
    }

    /// Returns the extra time of the kernel in the complement when the rings are at work, as a share of its time there.
    pub(super) fn disturbance(&self) -> f64 {
        more(&self.busy, &self.idle)
    }

    /// Returns the share of multiprocessors given away.
    pub(super) fn share(&self) -> f64 {
        f64::from(self.sms_given) / f64::from(self.sms_all)
    }
}

fn more(took: &Took, than: &Took) -> f64 {
    assert!(than.ms > 0.0, "a kernel takes time");
    took.ms / than.ms - 1.0
}

/// The compute kernel alone, before anything persistent runs.
#[derive(Debug)]
pub(super) struct Alone {
    work: Compute,
    took: Took,
    /// Its multiprocessors: all.
    sms: u32,
}

/// Measures the compute kernel alone, which takes about `time`.
///
/// # Errors
/// [`Error::TimedOut`] if it does not end; CUDA's.
pub(super) fn alone(gpu: &Arc<Gpu>, program: &Arc<Program>, time: Duration) -> Result<Alone> {
    let stream = Arc::new(Stream::new(gpu, Priority::Normal)?);
    let sms = gpu.info().sm_count;
    let work = Compute::calibrated(gpu, program, (&stream, sms), time)?;
    let took = undisturbed(&work, (&stream, sms))?;
    Ok(Alone { work, took, sms })
}

/// Measures it again in the complement, while a persistent kernel of `grid` executes `rounds`, one of each ring, over
/// and over.
///
/// # Errors
/// If a command failed; [`Error::TimedOut`] if kernel or commands do not end; CUDA's; an interrupt by the user.
pub(super) fn measure(
    rig: &mut Rig,
    partitions: &Partitions,
    alone: &Alone,
    (grid, rounds): ((u32, u32), &[Round]),
    watch: &mut Watch,
) -> failure::Result<Beside> {
    let stream = Arc::new(partitions.compute.stream(Priority::Normal)?);
    let sms = partitions.compute.sms();
    let mut commands = 0;
    let mut times = Vec::with_capacity(RUNS);
    let idle = undisturbed(&alone.work, (&stream, sms))?;
    rig.persist(grid)?;
    for ring in 0..rounds.len() as u32 {
        begin(rig, ring, rounds)?;
    }
    while times.len() < RUNS {
        watch.step(format!("a compute kernel beside the rings: {} of {RUNS}", times.len()))?;
        let meanwhile = || keep_busy(rig, rounds, &mut commands);
        times.push(alone.work.run((&stream, sms), meanwhile)?);
    }
    commands += settle(rig, rounds.len() as u32)?;
    rig.unpersist()?;
    rig.finish(commands)?;
    Ok(Beside {
        alone: alone.took,
        idle,
        busy: median(times),
        sms_all: alone.sms,
        // None if only priorities separate the parts.
        sms_given: alone.sms.saturating_sub(sms),
        kind: match &partitions.kind {
            PartitionKind::Green => "green contexts".to_owned(),
            PartitionKind::Priority { why } => format!("priorities alone: {why}"),
        },
        commands,
    })
}

/// Returns the warps of the I/O kernel on each of `sms` multiprocessors, of those `asked` for, that the controller of
/// `queues` leaves room for. A kernel without room for a block would wait for the controller, which does not end.
pub(super) fn warps((queues, asked): (u32, u32), sms: u32) -> Option<u32> {
    let controller = queues.div_ceil(sms.max(1)) * REGISTERS_CONTROLLER;
    let room = REGISTERS.checked_sub(controller)? / REGISTERS_IO;
    (room > 0).then(|| room.min(asked))
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

/// Waits for the last rounds; returns their commands.
fn settle(rig: &Rig, queues: u32) -> Result<u64> {
    let begin = Instant::now();
    while !(0..queues).all(|ring| rig.load.is_over(ring)) {
        if begin.elapsed() >= PATIENCE {
            let fix = "run 'adit gpu selftest'";
            return Err(Error::timed_out("the rings beside the compute kernel", PATIENCE, fix));
        }
        std::thread::yield_now();
    }
    Ok(add_up(&rig.load.headers(0..queues)?)?.0)
}

/// Returns the median of several runs with nothing to do meanwhile.
fn undisturbed(work: &Compute, on: (&Arc<Stream>, u32)) -> Result<Took> {
    let times = (0..RUNS).map(|_| work.run(on, || Ok(())));
    Ok(median(times.collect::<Result<_>>()?))
}

fn median(mut times: Vec<Took>) -> Took {
    times.sort_by(|one, other| one.ms.total_cmp(&other.ms));
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_io_kernel_takes_the_room_that_the_controller_leaves() {
        assert_eq!(warps((8, 16), 8), Some(16));
        assert_eq!(warps((64, 16), 8), Some(10));
        assert_eq!(warps((128, 16), 8), None);
        assert_eq!(warps((256, 16), 1), None);
    }
}
