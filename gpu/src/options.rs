//! Options of a GPU's rings.

use std::time::Duration;

use adit_driver::runtime::Idle;
use adit_driver::spec::Lba;

/// Where a ring or a pool lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the GPU's memory.
    Gpu,
    /// In pinned host memory that the GPU can access.
    Host,
}

impl Place {
    /// Returns the name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Place::Gpu => "hbm",
            Place::Host => "host",
        }
    }
}

/// How the GPU's doorbells reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellChoice {
    /// Mapped for the GPU if that works, else by proxy.
    #[default]
    Auto,
    /// Mapped for the GPU.
    Mapped,
    /// By a thread that writes the registers.
    Proxy,
}

/// How transfers are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// Rings if they work, staged otherwise.
    #[default]
    Auto,
    /// By the GPU, through its own rings.
    Rings,
    /// By CPU threads, through pinned memory and asynchronous copies.
    Staged,
}

/// How the GPU runs the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelChoice {
    /// One kernel per call of `issue_io`, which ends with its transfers.
    #[default]
    OneShot,
    /// One kernel that runs as long as the rings do. CUDA frees and loads nothing meanwhile: this crate refuses to
    /// create other rings and pools on the GPU and leaks dropped ones; stop these rings first. Other libraries of the
    /// process block in such calls: let them allocate before, and set `CUDA_MODULE_LOADING=EAGER`.
    Persistent,
}

/// Options of rings: `Options { depth: 1024, ..Options::default() }`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queue pairs per device: at least 1, limited by the controller's free ones and by the 1024 of a doorbell proxy.
    /// Default 8.
    pub queues: u32,
    /// Entries per queue: 2 to 4096, limited by the controller. Default 256.
    pub depth: u32,
    /// Streaming multiprocessors reserved for I/O, rounded up to the hardware's granularity. With 0, with all of them
    /// or without green contexts, I/O gets priority instead of a partition, and the number is clamped to between 1 and
    /// all. `None`, the default, is as many as the devices can keep busy ([`Options::sms_for`]).
    pub sms: Option<u32>,
    /// Place of submission rings; `None` is beside the pool, or host memory if that does not work.
    pub submission: Option<Place>,
    /// Place of completion rings; `None` as for submission rings.
    pub completion: Option<Place>,
    /// An LBA of every device that may be overwritten, to prove the way of writes when rings are made. Default none:
    /// only reads are proven.
    pub scratch: Option<Lba>,
    /// How doorbells are rung.
    pub doorbells: DoorbellChoice,
    /// The proxy thread's options.
    pub proxy: ProxyOptions,
    /// How transfers are executed.
    pub engine: EngineChoice,
    /// How the GPU runs the rings.
    pub kernel: KernelChoice,
    /// Cores of the staged engine's threads, one thread each. By default, two unpinned threads.
    pub staged_cores: Vec<usize>,
    /// I/O control blocks, 1 to 4096, each of up to 2048 contexts. Default 64.
    pub blocks: u32,
    /// Time limit of a control block's commands. It counts by the GPU's clock from when a warp first sees the issued
    /// block, after its event; with the staged engine by the CPU's clock, likewise from after its event. Default 10 s.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            queues: 8,
            depth: 256,
            sms: None,
            submission: None,
            completion: None,
            scratch: None,
            doorbells: DoorbellChoice::default(),
            proxy: ProxyOptions::default(),
            engine: EngineChoice::default(),
            kernel: KernelChoice::default(),
            staged_cores: Vec::new(),
            blocks: 64,
            timeout: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// Returns the multiprocessors that `devices` drives can keep busy: what they complete in a second at most, over what
    /// a multiprocessor issues and harvests in that time.
    pub fn sms_for(devices: usize) -> u32 {
        let needed = (devices as u64 * COMMANDS_PER_DEVICE).div_ceil(COMMANDS_PER_SM);
        u32::try_from(needed).unwrap_or(u32::MAX)
    }
}

/// Commands per second of a drive: reads of 4 KiB over PCIe 5.0 x4, which carries 15.75 GB/s.
const COMMANDS_PER_DEVICE: u64 = 3_845_000;
/// Commands per second of a multiprocessor: an eighth of what eight have to do at least (docs/use/gpu.md). No GPU was
/// there to measure one, which `adit gpu bench --sms 1` does.
const COMMANDS_PER_SM: u64 = 7_500_000;

/// Options of the thread that rings doorbells for the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyOptions {
    /// The core to pin its thread to; if refused, it runs unpinned and the log says so. Default none: then Linux may wake it on
    /// the core of `issue_io`'s caller, and a caller that goes on computing delays its first doorbell by milliseconds.
    pub core: Option<usize>,
    /// When it goes from polling to yielding, and on to sleeping once no commands are in flight. Default 200 us and
    /// 200 us. It naps, for at most 50 us, only where rings are being tested.
    pub idle: Idle,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        let us = Duration::from_micros;
        ProxyOptions { core: None, idle: Idle { spin: us(200), pause: us(200), sleep_max: us(50) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiprocessors_follow_the_drives_and_one_is_enough_for_one() {
        assert_eq!([1, 2, 4, 16].map(Options::sms_for), [1, 2, 3, 9]);
        for devices in 1..100 {
            let issued = u64::from(Options::sms_for(devices)) * COMMANDS_PER_SM;
            let spare = issued - devices as u64 * COMMANDS_PER_DEVICE;
            assert!(spare < COMMANDS_PER_SM, "enough, and none too many");
        }
    }
}
