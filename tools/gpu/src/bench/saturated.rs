//! Saturated rings: commands per second, and doorbells per command.

use std::time::{Duration, Instant};

use super::args::BenchArgs;
use super::watch::Watch;
use crate::failure::Result;
use crate::rig::load::{CONTEXTS, Round};
use crate::rig::{Rig, add_up};

/// Commands of each ring in the first chunk.
const FIRST_COMMANDS: u64 = 4 * CONTEXTS as u64;
/// Approximate duration of a chunk; interruptions take effect between chunks.
const CHUNK_NS: u64 = 100_000_000;
/// Time limit of its commands.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Saturated rings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saturated {
    /// Completed commands, all successful and checked by the controller.
    pub(super) commands: u64,
    /// Time from the first command to the last, by the device's clock.
    pub(super) elapsed_ns: u64,
    /// Rings of the submission doorbells.
    pub(super) sq_rings: u64,
    /// Rings of the completion doorbells.
    pub(super) cq_rings: u64,
    /// Laps of the completion rings.
    pub(super) laps: f64,
    /// Looks at which the controller in device code found a completion ring full with a command waiting; `None` for
    /// the CPU's, which does not count them.
    pub(super) cq_full: Option<u64>,
}

impl Saturated {
    pub(super) fn per_second(&self) -> f64 {
        self.commands as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Average commands per ring of a submission doorbell.
    pub(super) fn commands_per_ring(&self) -> f64 {
        self.commands as f64 / self.sq_rings.max(1) as f64
    }

    pub(super) fn cq_rings_per_lap(&self) -> f64 {
        assert!(self.laps > 0.0, "commands were measured");
        self.cq_rings as f64 / self.laps
    }
}

/// Returns a round over each ring, of about `commands` commands.
pub(super) fn rounds(queues: u32, commands: u64) -> Vec<Round> {
    let round = |ring| Round {
        count: CONTEXTS,
        total: commands.max(1).next_multiple_of(u64::from(CONTEXTS)),
        first_ring: ring,
        ring_count: 1,
        timeout: TIMEOUT,
    };
    (0..queues).map(round).collect()
}

/// Measures in chunks for as long as the options say, and at least one.
///
/// # Errors
/// When a command failed; CUDA's; an interrupt by the user.
pub(super) fn measure(
    rig: &mut Rig,
    args: &BenchArgs,
    grid: (u32, u32),
    watch: &mut Watch,
) -> Result<Saturated> {
    let mut sum = Saturated::default();
    let mut chunk = FIRST_COMMANDS;
    let begin = Instant::now();
    while sum.commands == 0 || begin.elapsed() < args.runtime {
        watch.step(format!("saturated rings: {} M commands", sum.commands / 1_000_000))?;
        let (commands, elapsed_ns) = add_up(&rig.go(0, &rounds(args.queues, chunk), grid)?)?;
        sum.commands += commands;
        sum.elapsed_ns += elapsed_ns;
        chunk = chunk_after(chunk, elapsed_ns);
    }
    let counters = rig.rings.counters()?;
    (sum.sq_rings, sum.cq_rings) = (counters.sq_rings, counters.cq_rings);
    sum.laps = sum.commands as f64 / f64::from(rig.completion_depth);
    Ok(sum)
}

/// Returns the commands per ring for a chunk of the intended duration, after one that took `elapsed_ns`.
fn chunk_after(commands: u64, elapsed_ns: u64) -> u64 {
    let scaled = u128::from(commands) * u128::from(CHUNK_NS) / u128::from(elapsed_ns.max(1));
    let most = commands.saturating_mul(8);
    u64::try_from(scaled).unwrap_or(most).clamp(FIRST_COMMANDS.min(commands), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_grows_towards_its_time_but_not_without_limit() {
        assert_eq!(chunk_after(1 << 20, 2 * CHUNK_NS), 1 << 19);
        assert_eq!(chunk_after(1 << 20, 1), 1 << 23);
        assert_eq!(chunk_after(FIRST_COMMANDS, u64::MAX), FIRST_COMMANDS);
    }
}
