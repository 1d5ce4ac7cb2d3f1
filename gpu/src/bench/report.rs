//! What a bench found. A part that was not measured is `None`, and `missing` says why.

use super::options::BenchOptions;

/// What every figure was measured against.
pub const LABEL: &str = "software controller, no PCIe";

/// Saturated rings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saturated {
    /// Commands that ended, all with success.
    pub commands: u64,
    /// Commands that the controller checked.
    pub checked: u64,
    /// Commands that the controller found a fault with.
    pub refused: u64,
    /// From the first command to the last, by the device's clock.
    pub elapsed_ns: u64,
    /// Times that the submission doorbells were rung.
    pub sq_rings: u64,
    /// Times that the completion doorbells were rung.
    pub cq_rings: u64,
    /// Laps of the completion rings.
    pub laps: f64,
}

impl Saturated {
    /// Commands per second.
    pub fn per_second(&self) -> f64 {
        ratio(self.commands as f64 * 1e9, self.elapsed_ns as f64)
    }

    /// Commands that the device was told of at once, on average.
    pub fn commands_per_ring(&self) -> f64 {
        ratio(self.commands as f64, self.sq_rings as f64)
    }

    /// Completion doorbells for each lap of a ring.
    pub fn cq_rings_per_lap(&self) -> f64 {
        ratio(self.cq_rings as f64, self.laps)
    }
}

/// One command at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Single {
    /// Commands measured.
    pub commands: u64,
    /// Times that the submission doorbell was rung.
    pub sq_rings: u64,
    /// Submission to completion, by the device's clock: half of the commands took no longer.
    pub p50_ns: u64,
    /// Submission to completion of which 99 of 100 commands took no longer.
    pub p99_ns: u64,
}

/// A compute kernel beside the persistent I/O kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beside {
    /// Time of the kernel alone, on all multiprocessors.
    pub alone_ms: f64,
    /// Time of the kernel in the complement, beside the rings at work.
    pub beside_ms: f64,
    /// Multiprocessors of the GPU.
    pub sms_all: u32,
    /// Multiprocessors that were given away; 0 where none could be set apart.
    pub sms_given: u32,
    /// How they were set apart: `green contexts`, or why they were not.
    pub kind: String,
    /// Commands that ended meanwhile.
    pub commands: u64,
}

impl Beside {
    /// How much longer the kernel took, as a share of its time alone.
    pub fn slowdown(&self) -> f64 {
        ratio(self.beside_ms, self.alone_ms) - 1.0
    }

    /// The share of multiprocessors that was given away.
    pub fn share(&self) -> f64 {
        ratio(f64::from(self.sms_given), f64::from(self.sms_all))
    }
}

/// Filling control blocks on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Preparation {
    /// Tensors, one transfer each.
    pub tensors: u64,
    /// The commands that they became.
    pub commands: u64,
    /// The median of several fillings.
    pub p50_ns: u64,
    /// The fastest.
    pub least_ns: u64,
}

/// What a bench found.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// What was asked for.
    pub options: BenchOptions,
    /// The GPU's name.
    pub gpu: String,
    /// Saturated rings.
    pub saturated: Option<Saturated>,
    /// One command at a time.
    pub single: Option<Single>,
    /// A compute kernel beside the rings.
    pub beside: Option<Beside>,
    /// Filling control blocks.
    pub preparation: Option<Preparation>,
    /// What was not measured, and why: a part's name and a sentence.
    pub missing: Vec<(&'static str, String)>,
}

/// `a / b`, or 0 where there is nothing to divide by.
fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// The value below which `share` of the samples lie; 0 of none. Sorts them.
pub(super) fn percentile(samples: &mut [u64], share: f64) -> u64 {
    assert!((0.0..=1.0).contains(&share), "a share of the samples");
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    samples.get((last as f64 * share).round() as usize).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_nothing_are_zero() {
        let nothing = Saturated::default();
        assert_eq!(nothing.per_second(), 0.0);
        assert_eq!(nothing.commands_per_ring(), 0.0);
        assert_eq!(nothing.cq_rings_per_lap(), 0.0);
        assert_eq!(percentile(&mut [], 0.5), 0);
    }

    #[test]
    fn percentiles_are_samples() {
        let mut samples: Vec<u64> = (0..=100).rev().collect();
        assert_eq!(percentile(&mut samples, 0.5), 50);
        assert_eq!(percentile(&mut samples, 0.99), 99);
        assert_eq!(percentile(&mut samples, 1.0), 100);
    }

    #[test]
    fn a_slowdown_is_told_beside_the_share_given_away() {
        let beside = Beside {
            alone_ms: 10.0,
            beside_ms: 10.8,
            sms_all: 132,
            sms_given: 8,
            ..Beside::default()
        };
        assert!((beside.slowdown() - 0.08).abs() < 1e-9);
        assert!((beside.share() - 8.0 / 132.0).abs() < 1e-9);
    }
}
