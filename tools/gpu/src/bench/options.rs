//! What to measure, and for how long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_gpu::{Error, Place, Result};

/// Most queues of a bench.
pub const QUEUES_MAX: u32 = 256;

/// Most warps of the I/O kernel on a multiprocessor, limited by registers.
pub const WARPS_MAX: u32 = 16;

/// Longest time of the compute kernel alone; a run is waited for at most six times as long.
pub const COMPUTE_MAX: Duration = Duration::from_secs(10);

/// What serves the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerChoice {
    /// Threads of this process: the driver's software controller. Rings lie in pinned host memory.
    Cpu,
    /// A second persistent kernel on other multiprocessors.
    #[default]
    Gpu,
}

impl ControllerChoice {
    /// Name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            ControllerChoice::Cpu => "cpu",
            ControllerChoice::Gpu => "gpu",
        }
    }
}

/// What to measure: `BenchOptions { queues: 4, ..BenchOptions::default() }`.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Number of the GPU, from 0.
    pub gpu: u32,
    /// Queue pairs, 1 to [`QUEUES_MAX`]. Default 16.
    pub queues: u32,
    /// Entries of each queue, 2 to 4096. Default 1024.
    pub depth: u32,
    /// Multiprocessors of the I/O kernel, 1 to the GPU's. Default 8.
    pub sms: u32,
    /// Warps of the I/O kernel on each multiprocessor, 1 to [`WARPS_MAX`]. Default 16.
    pub warps: u32,
    /// Place of the rings: GPU memory or pinned host memory.
    pub placement: Place,
    /// What serves the rings.
    pub controller: ControllerChoice,
    /// Bytes of each command, a multiple of 512 up to 1 MiB. Default 512.
    pub block_bytes: u32,
    /// How long to measure the saturated rings: without limit, and at least one chunk of commands. Default 2 s.
    pub runtime: Duration,
    /// Number of commands measured one at a time, 1 to 1,000,000. Default 2000.
    pub single_commands: u32,
    /// Approximate time of each run of the compute kernel alone, up to [`COMPUTE_MAX`]. Default 100 ms.
    pub compute: Duration,
}

impl Default for BenchOptions {
    fn default() -> Self {
        BenchOptions {
            gpu: 0,
            queues: 16,
            depth: 1024,
            sms: 8,
            warps: 16,
            placement: Place::Gpu,
            controller: ControllerChoice::Gpu,
            block_bytes: 512,
            runtime: Duration::from_secs(2),
            single_commands: 2000,
            compute: Duration::from_millis(100),
        }
    }
}

impl BenchOptions {
    /// Refuses options that are invalid on every machine.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the option and its limit.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("queues", self.queues, 1, QUEUES_MAX),
            ("depth", self.depth, 2, 4096),
            ("sms", self.sms, 1, 1024),
            ("warps", self.warps, 1, WARPS_MAX),
            ("bs", self.block_bytes, 512, 1 << 20),
            ("single commands", self.single_commands, 1, 1_000_000),
        ];
        for (name, value, least, most) in counts {
            if !(least..=most).contains(&value) {
                let why = format!("{value} is outside {least} to {most}");
                return Err(Error::invalid(format!("{name} of the GPU bench"), why));
            }
        }
        if !self.block_bytes.is_multiple_of(512) {
            let why = format!("{} is no multiple of 512", self.block_bytes);
            return Err(Error::invalid("bs of the GPU bench", why));
        }
        if self.compute > COMPUTE_MAX {
            let (asked, most) = (self.compute.as_secs_f64(), COMPUTE_MAX.as_secs());
            let why = format!("{asked} s are more than {most} s");
            return Err(Error::invalid("compute of the GPU bench", why));
        }
        self.check_placement()
    }

    /// Refuses more multiprocessors than a GPU has.
    ///
    /// # Errors
    /// As [`BenchOptions::check`].
    pub(super) fn check_on(&self, sms_there: u32) -> Result<()> {
        if self.sms <= sms_there {
            return Ok(());
        }
        let why = format!("{} is outside 1 to {sms_there}, which the GPU has", self.sms);
        Err(Error::invalid("sms of the GPU bench", why))
    }

    fn check_placement(&self) -> Result<()> {
        let why = match (self.placement, self.controller) {
            (Place::Gpu, ControllerChoice::Cpu) => {
                "threads of the CPU do not reach rings in GPU memory; take host"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid("placement of the GPU bench", why))
    }
}

/// Progress reports and the stop flag of a long run.
pub struct Watch<'a> {
    stop: &'a AtomicBool,
    tell: &'a dyn Fn(&str),
}

impl<'a> Watch<'a> {
    /// `stop` ends the run early, in bounded time; `tell` receives the current step.
    pub fn new(stop: &'a AtomicBool, tell: &'a dyn Fn(&str)) -> Watch<'a> {
        Watch { stop, tell }
    }

    /// Whether to end with the results so far.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn tell(&self, what: &str) {
        (self.tell)(what);
    }
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("stop", self.stop).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: &BenchOptions) -> String {
        options.check().expect_err("these options cannot be measured").to_string()
    }

    #[test]
    fn the_defaults_can_be_measured() {
        BenchOptions::default().check().expect("they name no limit");
    }

    #[test]
    fn an_option_beyond_its_limit_is_named_with_the_limit() {
        let options = BenchOptions { queues: 257, ..BenchOptions::default() };
        assert_eq!(refusal(&options), "queues of the GPU bench: 257 is outside 1 to 256");
        let options = BenchOptions { depth: 1, ..BenchOptions::default() };
        assert_eq!(refusal(&options), "depth of the GPU bench: 1 is outside 2 to 4096");
    }

    #[test]
    fn a_compute_kernel_takes_no_longer_than_it_is_waited_for() {
        let options = |compute| BenchOptions { compute, ..BenchOptions::default() };
        options(COMPUTE_MAX).check().expect("it is waited for that long");
        let said = refusal(&options(Duration::from_secs(600)));
        assert_eq!(said, "compute of the GPU bench: 600 s are more than 10 s");
    }

    #[test]
    fn a_size_that_is_no_multiple_of_512_is_refused() {
        let options = BenchOptions { block_bytes: 513, ..BenchOptions::default() };
        assert_eq!(refusal(&options), "bs of the GPU bench: 513 is no multiple of 512");
    }

    #[test]
    fn rings_in_gpu_memory_are_not_served_by_the_cpu() {
        let options = BenchOptions { controller: ControllerChoice::Cpu, ..Default::default() };
        assert!(refusal(&options).contains("take host"), "{}", refusal(&options));
    }
}
