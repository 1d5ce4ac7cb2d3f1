//! Results of a bench. A part that was not measured is `None`, and `missing` gives the reason.

use super::options::BenchOptions;

/// The condition of every figure.
pub const LABEL: &str = "software controller, no PCIe";

/// Saturated rings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saturated {
    /// Completed commands, all successful.
    pub commands: u64,
    /// Commands that the controller checked.
    pub checked: u64,
    /// Commands in which the controller found a fault.
    pub refused: u64,
    /// Time from the first command to the last, by the device's clock.
    pub elapsed_ns: u64,
    /// Rings of the submission doorbells.
    pub sq_rings: u64,
    /// Rings of the completion doorbells.
    pub cq_rings: u64,
    /// Laps of the completion rings.
    pub laps: f64,
    /// Looks at which the controller in device code found a completion ring full with a command waiting; `None` for
    /// a controller that does not count them.
    pub full: Option<u64>,
}

impl Saturated {
    /// Commands per second.
    pub fn per_second(&self) -> f64 {
        ratio(self.commands as f64 * 1e9, self.elapsed_ns as f64)
    }

    /// Average commands per ring.
    pub fn commands_per_ring(&self) -> f64 {
        ratio(self.commands as f64, self.sq_rings as f64)
    }

    /// Completion doorbell rings per lap of a ring.
    pub fn cq_rings_per_lap(&self) -> f64 {
        ratio(self.cq_rings as f64, self.laps)
    }
}

/// One command at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Single {
    /// Commands measured.
    pub commands: u64,
    /// Rings of the submission doorbell.
    pub sq_rings: u64,
    /// Median from submission to completion, by the device's clock.
    pub p50_ns: u64,
    /// 99th percentile from submission to completion.
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
    /// Multiprocessors given away; 0 without a partition.
    pub sms_given: u32,
    /// How they were partitioned: `green contexts`, or why they were not.
    pub kind: String,
    /// Commands completed meanwhile.
    pub commands: u64,
}

impl Beside {
    /// Returns the extra time of the kernel, as a share of its time alone.
    pub fn slowdown(&self) -> f64 {
        ratio(self.beside_ms, self.alone_ms) - 1.0
    }

    /// Returns the share of multiprocessors given away.
    pub fn share(&self) -> f64 {
        ratio(f64::from(self.sms_given), f64::from(self.sms_all))
    }
}

/// Filling control blocks on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Preparation {
    /// Tensors, one transfer each.
    pub tensors: u64,
    /// Commands that they took.
    pub commands: u64,
    /// Median of several fillings.
    pub p50_ns: u64,
    /// Fastest filling.
    pub least_ns: u64,
}

/// Results of a bench.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// The options.
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
    /// Parts that were not measured: name and reason.
    pub missing: Vec<(&'static str, String)>,
}

impl BenchReport {
    /// Whether the GPU is emulated: its counts are a GPU's, its times those of threads of the CPU.
    pub fn is_emulated(&self) -> bool {
        crate::is_emulated(&self.gpu)
    }
}

/// Returns `a / b`, or 0 if `b` is 0.
fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// Returns the value below which `share` of the samples lie; 0 without samples. Sorts them.
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
