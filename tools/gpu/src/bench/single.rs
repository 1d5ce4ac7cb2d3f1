//! One command at a time: its latency by the GPU's clock.
//!
//! Each command is a kernel of one warp. Launches are serial in a stream, so that no two commands are in flight.

use std::time::{Duration, Instant};

use super::args::BenchArgs;
use super::watch::Watch;
use crate::failure::Result;
use crate::rig::load::Round;
use crate::rig::{Rig, add_up};

/// Commands launched per check.
pub(super) const BATCH: u32 = 64;
/// The most commands that are measured, if the run time allows.
const COMMANDS: usize = 2048;
const TIMEOUT: Duration = Duration::from_secs(5);
const ONE_WARP: (u32, u32) = (1, 32);

/// One command at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single {
    pub(super) commands: u64,
    /// Rings of the submission doorbell.
    pub(super) sq_rings: u64,
    /// Median from submission to completion.
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
}

/// Measures at least one batch through ring 0, by [`BATCH`] blocks behind those of the rings.
///
/// # Errors
/// When a command failed; CUDA's; an interrupt by the user.
pub(super) fn measure(rig: &mut Rig, args: &BenchArgs, watch: &mut Watch) -> Result<Single> {
    let round = Round { count: 1, total: 1, first_ring: 0, ring_count: 1, timeout: TIMEOUT };
    let before = rig.rings.counters()?.sq_rings;
    let mut samples = Vec::with_capacity(COMMANDS);
    let (first, begin) = (args.queues, Instant::now());
    while samples.is_empty() || (samples.len() < COMMANDS && begin.elapsed() < args.runtime) {
        watch.step(format!("one command at a time: {}", samples.len()))?;
        rig.load.prepare(first, &[round; BATCH as usize])?;
        for block in first..first + BATCH {
            rig.launch(block..block + 1, ONE_WARP)?;
        }
        rig.wait(TIMEOUT)?;
        let headers = rig.load.headers(first..first + BATCH)?;
        add_up(&headers)?;
        samples.extend(headers.iter().map(|header| header.ended_ns - header.started_ns));
    }
    samples.sort_unstable();
    let sq_rings = rig.rings.counters()?.sq_rings - before;
    let [p50_ns, p99_ns] = [50, 99].map(|percent| samples[(samples.len() - 1) * percent / 100]);
    Ok(Single { commands: samples.len() as u64, sq_rings, p50_ns, p99_ns })
}
