//! Decides when the next I/O is due: rates and pauses.
//!
//! A rate is a schedule that does not wait for the device: an I/O delayed by a full queue or a slow device
//! keeps its due time, and its latency counts from then. Shifting the schedule instead would hide the very
//! waits a slow device causes ("coordinated omission").

use std::time::Duration;

use adit_driver::Time;
use adit_load::{GOLDEN, mix};

use crate::options::{JobOptions, RateProcess, ThinkTime};
use crate::way::{PerWay, Way};

/// The schedule of one job.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    rates: PerWay<Option<Rate>>,
    /// When the last I/O with a rate was due; later I/Os in the workload's order are not due earlier.
    last_due_ns: f64,
    process: RateProcess,
    noise: u64,
    think: Option<Think>,
}

/// One way's rate and next due time.
#[derive(Clone, Copy, Debug)]
struct Rate {
    unit: RateUnit,
    /// Fractional nanoseconds, so that rounding errors do not accumulate.
    due_ns: f64,
}

#[derive(Clone, Copy, Debug)]
enum RateUnit {
    NsPerByte(f64),
    NsPerIo(f64),
}

/// Pauses after a number of I/Os or a time.
#[derive(Clone, Copy, Debug)]
struct Think {
    options: ThinkTime,
    /// I/Os since the last pause was requested; as in fio, those that end before it begins count for the next.
    ios: u32,
    since: Time,
    /// Whether a pause is about to begin.
    is_wanted: bool,
    until: Time,
}

impl Pace {
    /// Creates the schedule of `job`, starting at `start`.
    pub(crate) fn new(job: &JobOptions, seed: u64, start: Time) -> Pace {
        let rate = |way: Way| {
            let by_ios =
                job.rates.rate_iops[way].map(|iops| RateUnit::NsPerIo(1e9 / iops.max(1) as f64));
            let by_bytes =
                job.rates.rate[way].map(|bytes| RateUnit::NsPerByte(1e9 / bytes.max(1) as f64));
            by_ios.or(by_bytes).map(|unit| Rate { unit, due_ns: start.as_ns() as f64 })
        };
        let think = (!job.time.thinktime.time.is_zero()).then_some(Think {
            options: job.time.thinktime,
            ios: 0,
            since: start,
            is_wanted: false,
            until: start,
        });
        Pace {
            rates: PerWay(Way::ALL.map(rate)),
            last_due_ns: start.as_ns() as f64,
            process: job.rates.rate_process,
            noise: seed,
            think,
        }
    }

    /// Returns when an I/O of this way is due; `None` without a rate.
    #[inline]
    pub(crate) fn due(&self, way: Way) -> Option<Time> {
        let rate = self.rates[way].as_ref()?;
        Some(Time::from_ns(rate.due_ns.max(self.last_due_ns) as u64))
    }

    /// Returns whether a read or a write is next: the one due first, or the one without a rate while the other
    /// is not due. `None` if rates do not decide.
    #[inline]
    pub(crate) fn way(&self, now: Time) -> Option<Way> {
        match (self.due(Way::Read), self.due(Way::Write)) {
            (Some(read), Some(write)) if read <= write => Some(Way::Read),
            (Some(_), Some(_)) => Some(Way::Write),
            (Some(read), None) if read > now => Some(Way::Write),
            (None, Some(write)) if write > now => Some(Way::Read),
            _ => None,
        }
    }

    /// Postpones all due times.
    pub(crate) fn delay(&mut self, time: Duration) {
        for way in Way::ALL {
            if let Some(rate) = &mut self.rates[way] {
                rate.due_ns += time.as_nanos() as f64;
            }
        }
    }

    /// Returns whether the job pauses.
    #[inline]
    pub(crate) fn thinks(&self) -> bool {
        self.think.is_some()
    }

    /// Returns whether a pause begins as soon as nothing is in flight.
    #[inline]
    pub(crate) fn wants_pause(&self) -> bool {
        self.think.as_ref().is_some_and(|think| think.is_wanted)
    }

    /// Begins the pause.
    pub(crate) fn pause(&mut self, now: Time) {
        if let Some(think) = &mut self.think {
            think.is_wanted = false;
            think.until = now + think.options.time;
            think.since = think.until;
        }
    }

    /// Returns when the current pause ends.
    #[inline]
    pub(crate) fn paused_until(&self) -> Time {
        self.think.as_ref().map_or(Time::ZERO, |think| think.until)
    }

    /// Returns how much of the pause is spent spinning.
    pub(crate) fn spin(&self) -> Duration {
        self.think.as_ref().map_or(Duration::ZERO, |think| think.options.spin)
    }

    /// Records that an I/O of `bytes` was issued.
    #[inline]
    pub(crate) fn issued(&mut self, way: Way, bytes: u64, now: Time) {
        if let Some(rate) = &mut self.rates[way] {
            let gap = match rate.unit {
                RateUnit::NsPerByte(ns) => ns * bytes as f64,
                RateUnit::NsPerIo(ns) => ns,
            };
            let gap = match self.process {
                RateProcess::Linear => gap,
                RateProcess::Poisson => gap * exponential(&mut self.noise),
            };
            self.last_due_ns = self.last_due_ns.max(rate.due_ns);
            rate.due_ns += gap;
        }
        if let Some(think) = &mut self.think {
            think.ios += u32::from(think.options.counts_issues);
            think.look(now);
        }
    }

    /// Records that an I/O completed.
    #[inline]
    pub(crate) fn completed(&mut self, now: Time) {
        if let Some(think) = self.think.as_mut().filter(|think| !think.options.counts_issues) {
            think.ios += 1;
            think.look(now);
        }
    }
}

impl Think {
    /// Requests a pause if it is time for one.
    fn look(&mut self, now: Time) {
        if self.is_wanted {
            return;
        }
        let iotime = self.options.iotime;
        let by_time = !iotime.is_zero() && now.since(self.since) >= iotime;
        let by_count = match self.options.blocks {
            Some(blocks) => self.ios >= blocks,
            None => iotime.is_zero() && self.ios > 0,
        };
        self.is_wanted = by_time || by_count;
        if self.is_wanted {
            self.ios = 0;
        }
    }
}

/// Returns an exponentially distributed number with mean 1.
fn exponential(noise: &mut u64) -> f64 {
    *noise = noise.wrapping_add(GOLDEN);
    // In (0, 1], so that its logarithm exists.
    let uniform = ((mix(*noise) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RateOptions;

    fn job() -> JobOptions {
        JobOptions::usual()
    }

    #[test]
    fn a_rate_in_ios_is_kept_however_late_the_generator_is() {
        let job = JobOptions {
            rates: RateOptions { rate_iops: PerWay::all(Some(1000)), ..job().rates },
            ..job()
        };
        let mut pace = Pace::new(&job, 1, Time::ZERO);
        for n in 0..100 {
            assert_eq!(pace.due(Way::Read), Some(Time::from_ns(n * 1_000_000)));
            pace.issued(Way::Read, 4096, Time::from_ns(1 << 40));
        }
    }

    #[test]
    fn a_rate_in_bytes_counts_their_length() {
        let job = JobOptions {
            rates: RateOptions { rate: PerWay::all(Some(4096 * 1000)), ..job().rates },
            ..job()
        };
        let mut pace = Pace::new(&job, 1, Time::ZERO);
        pace.issued(Way::Write, 8192, Time::ZERO);
        let due = pace.due(Way::Write).expect("a rate").as_ns();
        assert!(due.abs_diff(2_000_000) <= 1, "{due}");
        assert_eq!(pace.due(Way::Read), Some(Time::ZERO), "each way has its own");
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_deviation_of_an_exponential() {
        let job = JobOptions {
            rates: RateOptions {
                rate_iops: PerWay::all(Some(1_000_000)),
                rate_process: RateProcess::Poisson,
                ..job().rates
            },
            ..job()
        };
        let mut pace = Pace::new(&job, 7, Time::ZERO);
        let gaps: Vec<f64> = (0..100_000)
            .map(|_| {
                let before = pace.rates[Way::Read].expect("a rate").due_ns;
                pace.issued(Way::Read, 4096, Time::ZERO);
                pace.rates[Way::Read].expect("a rate").due_ns - before
            })
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance =
            gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / gaps.len() as f64;
        assert!((980.0..1020.0).contains(&mean), "{mean}");
        assert!((970.0..1030.0).contains(&variance.sqrt()), "{}", variance.sqrt());
    }

    #[test]
    fn thinking_begins_after_so_many_ios() {
        let thinktime =
            ThinkTime { time: Duration::from_micros(50), blocks: Some(3), ..ThinkTime::default() };
        let mut pace = Pace::new(
            &JobOptions { time: crate::options::TimeOptions { thinktime, ..job().time }, ..job() },
            1,
            Time::ZERO,
        );
        let now = Time::from_ns(1000);
        for _ in 0..2 {
            pace.completed(now);
        }
        assert_eq!(pace.paused_until(), Time::ZERO);
        assert!(!pace.wants_pause());
        pace.completed(now);
        assert!(pace.wants_pause(), "once nothing is in flight");
        pace.pause(Time::from_ns(2000));
        assert!(!pace.wants_pause());
        assert_eq!(pace.paused_until(), Time::from_ns(52_000));
    }

    #[test]
    fn thinking_begins_by_time_or_count_whichever_is_first_and_by_time_alone_without_a_count() {
        let pauses = |blocks, at_ns: u64| {
            let time = Duration::from_micros(50);
            let iotime = Duration::from_micros(10);
            let thinktime = ThinkTime { time, iotime, blocks, ..ThinkTime::default() };
            let mut pace = Pace::new(
                &JobOptions {
                    time: crate::options::TimeOptions { thinktime, ..job().time },
                    ..job()
                },
                1,
                Time::ZERO,
            );
            (0..4).for_each(|_| pace.completed(Time::from_ns(at_ns)));
            pace.wants_pause()
        };
        assert!(!pauses(None, 9_999) && pauses(None, 10_000));
        assert!(pauses(Some(4), 9_999) && !pauses(Some(5), 9_999) && pauses(Some(5), 10_000));
    }

    #[test]
    fn completions_are_counted_unless_issues_are_asked_for() {
        let pace = |counts_issues| {
            let time = Duration::from_micros(50);
            let thinktime = ThinkTime { time, counts_issues, ..ThinkTime::default() };
            Pace::new(
                &JobOptions {
                    time: crate::options::TimeOptions { thinktime, ..job().time },
                    ..job()
                },
                1,
                Time::ZERO,
            )
        };
        let (mut done, mut issued) = (pace(false), pace(true));
        for pace in [&mut done, &mut issued] {
            pace.issued(Way::Read, 4096, Time::ZERO);
        }
        assert!(!done.wants_pause() && issued.wants_pause());
        done.completed(Time::ZERO);
        assert!(done.wants_pause());
    }

    #[test]
    fn what_completes_before_a_pause_begins_counts_for_the_next() {
        let time = Duration::from_micros(50);
        let thinktime = ThinkTime { time, blocks: Some(2), ..ThinkTime::default() };
        let mut pace = Pace::new(
            &JobOptions { time: crate::options::TimeOptions { thinktime, ..job().time }, ..job() },
            1,
            Time::ZERO,
        );
        // Four are in flight; the pause is requested after two of them complete.
        (0..4).for_each(|_| pace.completed(Time::ZERO));
        pace.pause(Time::ZERO);
        assert!(!pace.wants_pause(), "not before another one is issued");
        pace.issued(Way::Read, 4096, Time::ZERO);
        assert!(pace.wants_pause());
        pace.completed(Time::ZERO);
        pace.pause(Time::ZERO);
        pace.issued(Way::Read, 4096, Time::ZERO);
        assert!(!pace.wants_pause());
    }

    #[test]
    fn an_io_is_due_no_earlier_than_those_before_it() {
        let mut rates = PerWay::all(None);
        (rates[Way::Read], rates[Way::Write]) = (Some(1000), Some(5000));
        let mut pace = Pace::new(
            &JobOptions { rates: RateOptions { rate_iops: rates, ..job().rates }, ..job() },
            1,
            Time::ZERO,
        );
        for _ in 0..10 {
            pace.issued(Way::Read, 4096, Time::ZERO);
        }
        let last_read = Time::from_ns(9_000_000);
        assert_eq!(pace.due(Way::Write), Some(last_read), "its turn came with the last read");
        pace.issued(Way::Write, 4096, Time::ZERO);
        assert_eq!(pace.due(Way::Read), Some(Time::from_ns(10_000_000)));
    }

    #[test]
    fn what_is_checked_in_between_delays_what_is_due() {
        let mut pace = Pace::new(
            &JobOptions {
                rates: RateOptions { rate_iops: PerWay::all(Some(1000)), ..job().rates },
                ..job()
            },
            1,
            Time::ZERO,
        );
        pace.issued(Way::Write, 4096, Time::ZERO);
        pace.delay(Duration::from_secs(1));
        assert_eq!(pace.due(Way::Write), Some(Time::from_ns(1_001_000_000)));
    }
}
