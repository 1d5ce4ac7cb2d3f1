//! How the rings of a GPU are made.

use std::time::Duration;

use crate::proxy::ProxyOptions;

/// Where a ring or a pool lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the GPU's memory.
    Gpu,
    /// In pinned host memory that the GPU reaches.
    Host,
    /// In the controller memory buffer: submission rings only.
    Cmb,
}

impl Place {
    /// As it is written in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Place::Gpu => "hbm",
            Place::Host => "host",
            Place::Cmb => "cmb",
        }
    }
}

/// How the GPU's doorbells reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellChoice {
    /// Mapped for the GPU if that works, by proxy otherwise.
    #[default]
    Auto,
    /// Mapped for the GPU.
    Mapped,
    /// By a thread that writes the registers.
    Proxy,
}

/// Who carries transfers out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// Rings if they work, staged otherwise.
    #[default]
    Auto,
    /// The GPU, through rings of its own.
    Rings,
    /// CPU threads, through pinned memory and asynchronous copies.
    Staged,
}

/// How the GPU runs the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelChoice {
    /// A kernel for each call of `issue_io`, which ends with its transfers.
    #[default]
    OneShot,
    /// One kernel that runs as long as the rings do. CUDA frees and loads nothing meanwhile: this crate refuses to make other
    /// rings and pools on the GPU, and leaks those that are dropped; stop these rings first. Other libraries of the process
    /// wait in such calls: have them allocate before, and set `CUDA_MODULE_LOADING=EAGER`.
    Persistent,
}

/// How rings are made. `Options { depth: 1024, ..Options::default() }`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queue pairs on each device: at least 1, and no more than the controller still has; a doorbell proxy serves 1024 in
    /// all. Default 8.
    pub queues: u32,
    /// Entries of each queue: 2 to 4096, and no more than the controller's queues may have. Default 256.
    pub depth: u32,
    /// Streaming multiprocessors set aside for I/O: rounded up to what the hardware can set apart. With 0 or all of them, and
    /// where there are no green contexts, I/O gets priority instead of a partition, and the number is clamped to 1 and all.
    /// Default 8, the least of a partition on recent GPUs.
    pub sms: u32,
    /// Where submission rings lie; `None` is beside the pool, or host memory where that does not work. [`Place::Cmb`] needs a
    /// controller that was opened with its memory buffer (`ControllerOptions::cmb`).
    pub submission: Option<Place>,
    /// Where completion rings lie; `None` as for submission rings, and host memory where these are in the controller memory
    /// buffer. Never [`Place::Cmb`].
    pub completion: Option<Place>,
    /// How doorbells are rung.
    pub doorbells: DoorbellChoice,
    /// The thread that rings them, where it is by proxy.
    pub proxy: ProxyOptions,
    /// Who carries transfers out.
    pub engine: EngineChoice,
    /// How the GPU runs the rings.
    pub kernel: KernelChoice,
    /// The cores of the staged engine's threads, one for each. Default none: two threads, where the system puts them.
    pub staged_cores: Vec<usize>,
    /// I/O control blocks, 1 to 4096, each of up to 2048 contexts. Default 64.
    pub blocks: u32,
    /// How long the commands of a control block may take, by the GPU's clock from the moment a warp first looks at the issued
    /// block, which is after its event; with the staged engine by the CPU's, likewise from after its event. Default 10 s.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            queues: 8,
            depth: 256,
            sms: 8,
            submission: None,
            completion: None,
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
