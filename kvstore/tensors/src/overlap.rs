//! Chooses whether copy threads read at the same time or in turn (Dual-Blade, section IV-C), by measuring both.
//!
//! The first iteration warms up, the second measures *intra*, the third *cross*, and the faster one stays. If its rate
//! drifts, conditions have changed, and the other one is measured again for one iteration. The interval between such
//! probes doubles while they change nothing, which bounds their cost. A clearly slower probe ends after a quarter of
//! its iteration. Calls take the time; this module reads no clock.

use std::time::{Duration, Instant};

/// The overlap of the copy threads' storage reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// All threads read at the same time; their copies to the GPU queue up.
    Intra,
    /// Threads read in turn: one reads while another copies to the GPU.
    Cross,
}

impl Overlap {
    /// Returns the other one.
    pub fn other(self) -> Overlap {
        match self {
            Overlap::Intra => Overlap::Cross,
            Overlap::Cross => Overlap::Intra,
        }
    }
}

/// Relative drift of a choice's rate after which the other one is measured again.
const DRIFT: f64 = 0.10;
/// The share of an iteration after which a probe may end.
const TRIAL_SHARE: f64 = 0.25;
/// Minimum iterations between two probes; doubled by each probe that changes nothing.
const INTERVAL_MIN: u32 = 8;
/// Maximum iterations between two probes.
const INTERVAL_MAX: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    WarmUp,
    /// Measures intra, as the first of both.
    First,
    /// Measures cross, against the rate of intra.
    Second {
        intra: f64,
    },
    /// Settled, with the rate when it was chosen; `since` counts iterations since the last probe.
    Settled {
        rate: f64,
        since: u32,
    },
    /// Measures the other one, against the present rate of the choice.
    Again {
        rate: f64,
    },
}

/// Chooses the overlap of one group, iteration by iteration.
#[derive(Clone, Debug)]
pub struct Chooser {
    stage: Stage,
    choice: Overlap,
    interval: u32,
    probes: u32,
    /// Bytes read in the present iteration; the next field is the time that they took.
    bytes: u64,
    time: Duration,
    /// End of the last read.
    last_end: Option<Instant>,
    /// The rate of the last iteration.
    rate: f64,
}

impl Default for Chooser {
    fn default() -> Chooser {
        Chooser {
            stage: Stage::WarmUp,
            choice: Overlap::Intra,
            interval: INTERVAL_MIN,
            probes: 0,
            bytes: 0,
            time: Duration::ZERO,
            last_end: None,
            rate: 0.0,
        }
    }
}

impl Chooser {
    /// Returns the overlap for the present iteration.
    pub fn overlap(&self) -> Overlap {
        match self.stage {
            Stage::WarmUp | Stage::First => Overlap::Intra,
            Stage::Second { .. } => Overlap::Cross,
            Stage::Settled { .. } => self.choice,
            Stage::Again { .. } => self.choice.other(),
        }
    }

    /// Returns whether both were measured and the faster one chosen.
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Settled { .. })
    }

    /// Returns the number of iterations spent on measuring, without the warm-up.
    pub fn probes(&self) -> u32 {
        self.probes
    }

    /// Returns the rate of the last iteration, in bytes per second of reading; 0 if nothing was read.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Records a read of `bytes`, out of the group's `all_bytes` per iteration, with its begin and end. Time that it
    /// shares with earlier reads counts once.
    pub(crate) fn note_read(&mut self, bytes: u64, all_bytes: u64, begun: Instant, ended: Instant) {
        let last_end = self.last_end.unwrap_or(begun);
        self.bytes += bytes;
        self.time += ended.saturating_duration_since(begun.max(last_end));
        self.last_end = Some(ended.max(last_end));
        self.notice(self.present_rate(), self.bytes as f64 / all_bytes.max(1) as f64);
    }

    /// Ends an iteration.
    pub(crate) fn end_iteration(&mut self) {
        self.rate = self.present_rate();
        self.finish(self.rate);
        (self.bytes, self.time) = (0, Duration::ZERO);
    }

    fn present_rate(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }

    /// Checks the group's `rate` after a `share` of an iteration: ends a clearly slower probe, so that the rest of the
    /// iteration continues as before.
    fn notice(&mut self, rate: f64, share: f64) {
        let (Stage::Second { intra: best } | Stage::Again { rate: best }) = self.stage else {
            return;
        };
        if (TRIAL_SHARE..1.0).contains(&share) && rate > 0.0 && rate < best * (1.0 - DRIFT) {
            self.finish(rate);
        }
    }

    /// Ends an iteration in which the group was read at `rate`, in bytes per second. A rate of 0, as of a group without
    /// layers, changes nothing.
    fn finish(&mut self, rate: f64) {
        if rate.is_nan() || rate <= 0.0 {
            return;
        }
        match self.stage {
            Stage::WarmUp => self.stage = Stage::First,
            Stage::First => self.probe_next(Stage::Second { intra: rate }),
            Stage::Second { intra } => {
                self.probes += 1;
                self.choice = if rate > intra { Overlap::Cross } else { Overlap::Intra };
                self.stage = Stage::Settled { rate: rate.max(intra), since: 0 };
            }
            Stage::Settled { rate: chosen, since } => self.watch(chosen, rate, since + 1),
            Stage::Again { rate: present } => self.compare(present, rate),
        }
        assert!(self.interval <= INTERVAL_MAX, "probing never stops for good");
    }

    fn probe_next(&mut self, stage: Stage) {
        self.probes += 1;
        self.stage = stage;
    }

    fn watch(&mut self, chosen: f64, rate: f64, since: u32) {
        let drifted = (rate / chosen - 1.0).abs() > DRIFT;
        self.stage = match drifted && since >= self.interval {
            true => Stage::Again { rate },
            false => Stage::Settled { rate: chosen, since },
        };
    }

    fn compare(&mut self, present: f64, other: f64) {
        self.probes += 1;
        if other > present {
            self.choice = self.choice.other();
            self.interval = INTERVAL_MIN;
        } else {
            self.interval = (self.interval * 2).min(INTERVAL_MAX);
        }
        self.stage = Stage::Settled { rate: present.max(other), since: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs iterations at the rates of both overlaps and returns the share of throughput lost against the better one.
    fn regret(chooser: &mut Chooser, iterations: u32, intra: f64, cross: f64) -> f64 {
        let mut time = 0.0;
        for _ in 0..iterations {
            let rate = if chooser.overlap() == Overlap::Intra { intra } else { cross };
            time += 1.0 / rate;
            chooser.finish(rate);
        }
        time * intra.max(cross) / f64::from(iterations) - 1.0
    }

    #[test]
    fn each_is_measured_once_and_the_faster_one_stays() {
        for (intra, cross, best) in [(11.9, 13.1, Overlap::Cross), (13.1, 11.9, Overlap::Intra)] {
            let mut chooser = Chooser::default();
            let mut seen = Vec::new();
            for _ in 0..31 {
                seen.push(chooser.overlap());
                chooser.finish(if chooser.overlap() == Overlap::Intra { intra } else { cross });
            }
            assert_eq!(seen[..3], [Overlap::Intra, Overlap::Intra, Overlap::Cross]);
            assert!(seen[3..].iter().all(|overlap| *overlap == best), "{seen:?}");
            assert_eq!(chooser.probes(), 2, "steady rates are measured once each");
        }
    }

    #[test]
    fn a_probe_that_is_clearly_slower_ends_early() {
        let mut chooser = Chooser::default();
        (0..2).for_each(|_| chooser.finish(12.0));
        for (rate, share) in [(6.0, 0.2), (11.0, 0.5), (0.0, 0.5), (f64::NAN, 0.5)] {
            chooser.notice(rate, share);
            assert_eq!(chooser.overlap(), Overlap::Cross, "{rate} after {share}");
        }
        chooser.notice(6.0, 0.25);
        assert!(chooser.is_settled() && chooser.overlap() == Overlap::Intra);
        assert_eq!(chooser.probes(), 2);
        chooser.notice(1.0, 0.5);
        assert!(chooser.is_settled(), "only a probe ends early");
    }

    #[test]
    fn a_change_of_sides_is_found_and_the_regret_is_bounded() {
        let mut chooser = Chooser::default();
        regret(&mut chooser, 20, 10.0, 8.0);
        assert_eq!(chooser.overlap(), Overlap::Intra);
        let lost = regret(&mut chooser, 2000, 6.0, 8.0);
        assert_eq!(chooser.overlap(), Overlap::Cross, "intra fell behind cross");
        assert!(lost < 0.03, "{lost}");
    }

    #[test]
    fn time_that_reads_share_counts_once() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut chooser = Chooser::default();
        for (from, to) in [(0, 100), (50, 150), (20, 120), (1150, 1250)] {
            chooser.note_read(1000, 4000, at(from), at(to));
        }
        assert_eq!(chooser.time, Duration::from_millis(250));
        chooser.end_iteration();
        assert_eq!((chooser.rate(), chooser.bytes), (16_000.0, 0));
        chooser.end_iteration();
        assert_eq!(chooser.rate(), 0.0, "nothing was read");
    }

    #[test]
    fn a_run_of_iterations_in_simulated_time_finds_the_faster_overlap() {
        let (mut now, mut chooser) = (Instant::now(), Chooser::default());
        for iteration in 0..10 {
            for _layer in 0..8 {
                let took = if chooser.overlap() == Overlap::Intra { 30 } else { 20 };
                let ended = now + Duration::from_millis(took);
                chooser.note_read(1 << 20, 8 << 20, now, ended);
                now = ended;
            }
            chooser.end_iteration();
            assert_eq!(chooser.is_settled(), iteration >= 2);
        }
        assert_eq!((chooser.overlap(), chooser.probes()), (Overlap::Cross, 2));
    }

    proptest! {
        #[test]
        fn probing_is_bounded_whatever_the_rates(rates in prop::collection::vec(0.1f64..100.0, 1..600)) {
            let mut chooser = Chooser::default();
            for rate in &rates {
                chooser.finish(*rate);
            }
            prop_assert!(chooser.probes() <= 2 + rates.len() as u32 / INTERVAL_MIN);
        }

        #[test]
        fn a_group_without_layers_decides_nothing(count in 0usize..5) {
            let mut chooser = Chooser::default();
            (0..count).for_each(|_| chooser.finish(0.0));
            chooser.finish(f64::NAN);
            prop_assert_eq!(chooser.stage, Stage::WarmUp);
        }
    }
}
