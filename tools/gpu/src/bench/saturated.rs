//! Saturated rings: commands per second, and doorbells per command.

use std::ops::Range;
use std::time::{Duration, Instant};

use adit_gpu::internals::layout::Iocb;
use adit_gpu::{Error, Result};

use super::load::Round;
use super::options::{BenchOptions, Watch};
use super::report::Saturated;
use super::rig::{CONTEXTS, Rig};
use crate::controller::Counters;

/// Commands of each ring in the first chunk.
const FIRST_COMMANDS: u64 = 4 * CONTEXTS as u64;
/// Approximate duration of a chunk; interruptions take effect between chunks.
const CHUNK_NS: u64 = 100_000_000;
/// Time limit of its commands.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns blocks and threads of the I/O kernel.
pub(super) fn grid(options: &BenchOptions, sms: u32) -> (u32, u32) {
    (options.sms.min(sms), options.warps * 32)
}

/// Returns a round over each ring, of about `commands` commands.
pub(super) fn rounds(queues: u32, commands: u64) -> Vec<Round> {
    let round = |ring| Round {
        count: CONTEXTS,
        total: commands.next_multiple_of(u64::from(CONTEXTS)),
        first_ring: ring,
        ring_count: 1,
        timeout: TIMEOUT,
    };
    (0..queues).map(round).collect()
}

/// Measures in chunks for as long as the options say.
///
/// # Errors
/// When a command failed or the controller found a bad one; CUDA's.
pub(super) fn measure(
    rig: &mut Rig,
    options: &BenchOptions,
    grid: (u32, u32),
    watch: &Watch<'_>,
) -> Result<Saturated> {
    let queues = options.queues;
    let mut chunk = FIRST_COMMANDS;
    // The first chunk warms up and determines the size of a chunk.
    let warm = rig.go(0, &rounds(queues, chunk), grid)?;
    chunk = chunk_like(&warm, chunk)?;
    rig.server.stop()?;
    let (before, seen_before) = (rig.rings.counters()?, rig.server.counters()?);
    rig.server.start()?;
    let mut sum = Saturated::default();
    let begin = Instant::now();
    while sum.commands == 0 || (begin.elapsed() < options.runtime && !watch.is_stopped()) {
        let headers = rig.go(0, &rounds(queues, chunk), grid)?;
        let (commands, elapsed_ns) = add_up(&headers)?;
        sum.commands += commands;
        sum.elapsed_ns += elapsed_ns;
        watch.tell(&format!("saturated rings: {} M commands", sum.commands / 1_000_000));
        chunk = chunk_like(&headers, chunk)?;
    }
    rig.check()?;
    rig.server.stop()?;
    let after = rig.rings.counters()?;
    sum.sq_rings = after.sq_rings - before.sq_rings;
    sum.cq_rings = after.cq_rings - before.cq_rings;
    sum.laps = sum.commands as f64 / f64::from(rig.completion_depth);
    checked(&mut sum, seen_before.zip(rig.server.counters()?))?;
    Ok(sum)
}

/// Records what the controller saw, and fails unless that equals what was sent.
fn checked(sum: &mut Saturated, seen: Option<(Counters, Counters)>) -> Result<()> {
    // The driver's controller completes only valid commands.
    sum.checked = sum.commands;
    let Some((before, after)) = seen else { return Ok(()) };
    sum.checked = after.commands - before.commands;
    sum.refused = after.bad - before.bad;
    sum.full = Some(after.full - before.full);
    if sum.checked == sum.commands && sum.refused == 0 {
        return Ok(());
    }
    let reason = format!(
        "{} commands ended, the controller saw {} and refused {}",
        sum.commands, sum.checked, sum.refused
    );
    Err(Error::OutOfService { device: "the controller in device code".to_owned(), reason })
}

/// Returns the commands of blocks, and the time from the first command to the last end.
pub(super) fn add_up(headers: &[Iocb]) -> Result<(u64, u64)> {
    let failed: u64 = headers.iter().map(|header| header.failed).sum();
    if failed > 0 {
        let reason = format!("{failed} of the bench's commands failed");
        return Err(Error::OutOfService { device: "software controller".to_owned(), reason });
    }
    let Range { start, end } = span_ns(headers);
    Ok((headers.iter().map(|header| header.total).sum(), end - start))
}

fn span_ns(headers: &[Iocb]) -> Range<u64> {
    let start = headers.iter().map(|header| header.started_ns).min().unwrap_or(0);
    let end = headers.iter().map(|header| header.ended_ns).max().unwrap_or(0);
    start..end.max(start)
}

/// Returns the commands per ring for a chunk of the intended duration.
fn chunk_like(headers: &[Iocb], commands: u64) -> Result<u64> {
    let (_, elapsed_ns) = add_up(headers)?;
    let scaled = u128::from(commands) * u128::from(CHUNK_NS) / u128::from(elapsed_ns.max(1));
    let most = commands.saturating_mul(8);
    Ok(u64::try_from(scaled).unwrap_or(most).clamp(FIRST_COMMANDS.min(commands), most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn header(started_ns: u64, ended_ns: u64, total: u64) -> Iocb {
        Iocb { started_ns, ended_ns, total, ..Iocb::new_zeroed() }
    }

    #[test]
    fn blocks_are_timed_from_the_first_start_to_the_last_end() {
        let headers = [header(100, 900, 10), header(50, 700, 20)];
        assert_eq!(add_up(&headers).expect("none failed"), (30, 850));
    }

    #[test]
    fn one_failed_command_is_the_end_of_a_measurement() {
        let mut bad = header(1, 2, 3);
        bad.failed = 1;
        assert!(add_up(&[bad]).is_err());
    }

    #[test]
    fn a_chunk_grows_towards_its_time_but_not_without_limit() {
        let slow = [header(0, 2 * CHUNK_NS, 8)];
        assert_eq!(chunk_like(&slow, 1 << 20).expect("none failed"), 1 << 19);
        let fast = [header(0, 1, 8)];
        assert_eq!(chunk_like(&fast, 1 << 20).expect("none failed"), 1 << 23);
    }

    #[test]
    fn rounds_are_whole_and_each_has_its_ring() {
        let rounds = rounds(3, 2049);
        assert_eq!(rounds.len(), 3);
        for (ring, round) in (0..).zip(&rounds) {
            assert_eq!((round.first_ring, round.ring_count, round.total), (ring, 1, 4096));
        }
    }
}
