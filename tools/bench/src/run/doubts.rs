//! Detects runs whose figures are doubtful because the machine, not the device, was the limit.

use std::time::{Duration, Instant};

use crate::measure::percent;
use crate::outcome::{ClockOutcome, JobOutcome};
use crate::output::Warning;

/// If more than this percentage of batches had finished before the job polled, the job was the limit.
const BUSY_PERCENT: f64 = 95.0;
/// Clock drift above this makes latencies wrong by a thousandth.
const DRIFT_PPM: f64 = 1000.0;
/// Change of a core's speed between start and end of a run, in percent, that causes a warning.
const SPEED_PERCENT: f64 = 10.0;
/// Preemptions per second that show in tail latencies.
const PREEMPTIONS_PER_SECOND: f64 = 50.0;
/// Fewer preemptions are normal and say nothing about a run of milliseconds.
const PREEMPTIONS_LEAST: i64 = 10;
/// Percentage of reads with only zeroes that causes a warning.
const ZERO_PERCENT: f64 = 5.0;

/// A core's computing speed, compared between start and end of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed(Duration);

impl Speed {
    /// Measures the speed as the best of a few short trials, to exclude interruptions.
    pub(crate) fn measure() -> Speed {
        let trial = || {
            let start = Instant::now();
            let mut value = std::hint::black_box(1u64);
            for _ in 0..20_000 {
                // Each step depends on the previous one, so only the core's clock matters.
                value = std::hint::black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1);
            }
            std::hint::black_box(value);
            start.elapsed()
        };
        Speed((0..30).map(|_| trial()).min().unwrap_or_default())
    }

    /// Returns how much faster `self` was than `now`, in percent; negative if slower.
    fn lost_percent(self, now: Speed) -> f64 {
        (now.0.as_secs_f64() / self.0.as_secs_f64() - 1.0) * 100.0
    }
}

/// Facts about the machine, independent of the jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) core_count: usize,
    /// Concurrent threads, including those of software controllers.
    pub(crate) threads_at_once: usize,
    pub(crate) speeds: (Speed, Speed),
}

/// Returns all warnings about a run's figures.
pub(crate) fn doubts(jobs: &[JobOutcome], machine: &Machine, clock: &ClockOutcome) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = jobs.iter().flat_map(of_job).collect();
    if machine.threads_at_once > machine.core_count {
        let text = format!(
            "{} threads shared {} cores: latencies include waiting for a core; use fewer jobs",
            machine.threads_at_once, machine.core_count
        );
        warnings.push(Warning { code: "too-few-cores", text });
    }
    let lost = machine.speeds.0.lost_percent(machine.speeds.1);
    if lost.abs() > SPEED_PERCENT {
        let way = if lost > 0.0 { "slower" } else { "faster" };
        let text = format!(
            "a core was {:.0}% {way} at the end than at the start: fix its frequency, or let the machine rest",
            lost.abs()
        );
        warnings.push(Warning { code: "frequency-drift", text });
    }
    if clock.drift_ppm.abs() > DRIFT_PPM {
        let text = format!(
            "the time stamp counter drifted {:.0} ppm from the system's clock: all times are wrong by as much",
            clock.drift_ppm
        );
        warnings.push(Warning { code: "clock-drift", text });
    }
    warnings
}

fn of_job(job: &JobOutcome) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let name = &job.section.job.name;
    let is_null = job.target.starts_with("null:");
    let is_synchronous = ["psync:", "mmap:"].iter().any(|path| job.target.starts_with(path));
    if is_synchronous && job.section.job.iodepth > 1 {
        let text = format!(
            "{name}: {} does one I/O at a time at any iodepth; use io_uring, or numjobs={} with iodepth=1",
            job.target.split(':').next().unwrap_or_default(),
            job.section.job.iodepth
        );
        warnings.push(Warning { code: "synchronous", text });
    } else if job.busy_percent > BUSY_PERCENT
        && !is_null
        // With one I/O at a time nothing is left waiting, and blocking paths never have more.
        && job.depths.depth_percent()[0] < 100.0
        && job.completes.total() > 100
    {
        let text = format!(
            "{name}: {:.0}% of batches had finished before they were polled: this thread was the limit, not the \
             device; use more jobs",
            job.busy_percent
        );
        warnings.push(Warning { code: "generator-limited", text });
    }
    let preemptions =
        job.cpu.preemptions as f64 / job.elapsed.as_secs_f64().max(1e-3) / f64::from(job.threads);
    if preemptions > PREEMPTIONS_PER_SECOND && job.cpu.preemptions >= PREEMPTIONS_LEAST {
        let text = format!(
            "{name}: it was interrupted {preemptions:.0} times a second by other work on its core: the tail of its \
             latencies comes from the machine"
        );
        warnings.push(Warning { code: "preempted", text });
    }
    let (reads, zeroes) = job.sampled_reads;
    let share = percent(zeroes, reads);
    if share > ZERO_PERCENT {
        let text = format!(
            "{name}: {share:.0}% of the sampled reads found only zeroes: a drive answers reads of blocks that were never \
             written without touching flash; write the region first"
        );
        warnings.push(Warning { code: "never-written", text });
    }
    if job.is_cached {
        let text =
            format!("{name}: data passed through the page cache: the figures are not the device's");
        warnings.push(Warning { code: "page-cache", text });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(ns: u64) -> Speed {
        Speed(Duration::from_nanos(ns))
    }

    fn codes(machine: &Machine, drift_ppm: f64) -> Vec<&'static str> {
        let clock = ClockOutcome { is_tsc: true, drift_ppm };
        doubts(&[], machine, &clock).iter().map(|warning| warning.code).collect()
    }

    #[test]
    fn a_quiet_machine_gives_no_reason_to_doubt() {
        let quiet =
            Machine { core_count: 2, threads_at_once: 2, speeds: (speed(1000), speed(1050)) };
        assert_eq!(codes(&quiet, 100.0), [""; 0]);
    }

    #[test]
    fn each_thing_about_the_machine_is_told() {
        let loud =
            Machine { core_count: 2, threads_at_once: 3, speeds: (speed(1000), speed(1200)) };
        assert_eq!(codes(&loud, -2000.0), ["too-few-cores", "frequency-drift", "clock-drift"]);
    }

    #[test]
    fn a_core_computes_at_some_speed() {
        assert!(Speed::measure().0 > Duration::from_nanos(100));
    }
}
