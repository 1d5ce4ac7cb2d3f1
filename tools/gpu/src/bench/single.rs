//! One command at a time: its latency by the GPU's clock.
//!
//! Each command is a kernel of one warp. Launches are serial in a stream, so that no two commands are in flight.

use std::time::Duration;

use adit_gpu::Result;

use super::load::Round;
use super::options::{BenchOptions, Watch};
use super::report::{Single, percentile};
use super::rig::Rig;

/// Commands launched per check.
pub(super) const BATCH: u32 = 64;
const TIMEOUT: Duration = Duration::from_secs(5);
const ONE_WARP: (u32, u32) = (1, 32);

/// Measures as many commands as the options say, through ring 0, by [`BATCH`] blocks behind those of the rings.
///
/// # Errors
/// When a command failed; CUDA's.
pub(super) fn measure(rig: &mut Rig, options: &BenchOptions, watch: &Watch<'_>) -> Result<Single> {
    let round = Round { count: 1, total: 1, first_ring: 0, ring_count: 1, timeout: TIMEOUT };
    let before = rig.rings.counters()?.sq_rings;
    let mut samples = Vec::with_capacity(options.single_commands as usize);
    let mut left = options.single_commands;
    let first = options.queues;
    while left > 0 && (samples.is_empty() || !watch.is_stopped()) {
        let batch = left.min(BATCH);
        rig.load.prepare(first, &vec![round; batch as usize])?;
        for block in first..first + batch {
            rig.launch(block..block + 1, ONE_WARP)?;
        }
        rig.wait(TIMEOUT)?;
        for header in rig.load.headers(first..first + batch)? {
            super::saturated::add_up(&[header])?;
            samples.push(header.ended_ns - header.started_ns);
        }
        left -= batch;
        watch.tell(&format!("one command at a time: {left} to go"));
    }
    Ok(Single {
        commands: samples.len() as u64,
        sq_rings: rig.rings.counters()?.sq_rings - before,
        p50_ns: percentile(&mut samples, 0.5),
        p99_ns: percentile(&mut samples, 0.99),
    })
}
