//! Launches kernels of its own beside the persistent I/O kernel, on the multiprocessors that I/O leaves: `beside TARGET`.
//! Overwrites the first 256 KiB of the target, by default those of a software controller in this process.
//!
//! One kernel fills the pool, rings write it to the drive and read it back, another kernel checks it; streams and events
//! keep the order, and the CPU waits once, at the end. The kernels are loaded and launched by cudarc, in a stream of
//! this crate: any other library that takes a `CUstream` or a `cudaStream_t` would do.
#![allow(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::spec::Lba;
use adit_driver::{Controller, ControllerOptions, Target};
use adit_gpu::cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result,
};
use adit_gpu::cudarc::nvrtc::Ptx;
use adit_gpu::{
    Device, Direction, EngineChoice, GioUring, Gpu, Iocbs, KernelChoice, Options, Pool, Priority,
    Slice, Stream, Transfer, compile_kernels,
};

const DATA_BYTES: u64 = 256 << 10;
const WORDS: u32 = (DATA_BYTES / 4) as u32;
/// The regions of the pool: the data, and the kernels' arguments.
const DATA: usize = 0;
const ARGUMENTS: usize = 1;
const REGIONS: [u64; 2] = [DATA_BYTES, 64 << 10];
/// Bytes of the arguments of one launch; the count of wrong words is behind those of all launches.
const ARGUMENT_BYTES: u64 = 24;
const WITHIN: Duration = Duration::from_secs(30);

/// Kernels of the example, with the arguments of each launch.
struct Kernels {
    fill: CudaFunction,
    check: CudaFunction,
    arguments: u64,
}

/// The launches, by their arguments.
#[derive(Clone, Copy)]
enum Launch {
    /// Of no words: loads the kernels, which CUDA might not do beside a kernel that does not end.
    Nothing,
    Write,
    /// Other data, so that what is checked was read.
    Spoil,
    Check,
}

fn main() -> ExitCode {
    let target = std::env::args().nth(1).unwrap_or_else(|| "soft:mem=64M,dbbuf=off".to_owned());
    match run(&target) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns how many words came back wrong.
fn run(target: &str) -> Result<u64, Box<dyn Error>> {
    let gpu = Gpu::open(0)?;
    let device = open(&target.parse()?)?;
    let pool = Pool::allocate(&gpu, &[Arc::clone(&device.controller)], &REGIONS, None)?;
    // cudarc opens the same context, the GPU's primary one. All is loaded, and has run, before the persistent kernel.
    let context = CudaContext::new(0)?;
    let before = Stream::from_cudarc(&gpu, &context.new_stream()?)?;
    let kernels = Kernels::load(&gpu, &context, &pool)?;
    kernels.prepare(&context, &pool, &before)?;
    before.synchronize(WITHIN)?;

    let options = Options {
        engine: EngineChoice::Rings,
        kernel: KernelChoice::Persistent,
        queues: 1,
        sms: Some(2),
        ..Options::default()
    };
    let uring = GioUring::init_queue(&gpu, vec![device], pool.clone(), &options)?;
    let compute = uring.compute_stream(Priority::Normal)?;
    // SAFETY: the stream outlives what cudarc makes of its handle, at the end of this function.
    let lent = unsafe { context.wrap_borrowed_stream(compute.raw().cast()) };
    kernels.launch(&lent, Launch::Write)?;
    let written = transfer(&uring, Direction::Write, &compute)?;
    kernels.launch(&lent, Launch::Spoil)?;
    let read = transfer(&uring, Direction::Read, &compute)?;
    kernels.launch(&lent, Launch::Check)?;
    compute.synchronize(WITHIN)?;
    for iocbs in [written, read] {
        let outcome = uring.wait(iocbs, WITHIN)?;
        assert!(outcome.is_success(), "{:?}", outcome.failed);
    }

    let mut wrong = [0u8; 8];
    // SAFETY: eight bytes of the pool, which nothing writes any more.
    unsafe { result::memcpy_dtoh_async(&mut wrong, kernels.wrong(), lent.cu_stream())? };
    compute.synchronize(WITHIN)?;
    let wrong = u64::from_ne_bytes(wrong);
    let (commands, sms) = (uring.stats()?.commands, uring.description().sms);
    println!(
        "{commands} commands on {sms} SMs beside the kernels; {wrong} of {WORDS} words differ"
    );
    Ok(wrong)
}

fn open(target: &Target) -> Result<Device, Box<dyn Error>> {
    let options = ControllerOptions { shadow_doorbells: false, ..ControllerOptions::default() };
    let controller = Arc::new(Controller::open(target, &options)?);
    let namespace = controller.namespace_of(target)?;
    Ok(Device { controller, namespace })
}

/// Moves the data to or from the drive, behind what is in the stream and before what comes after.
fn transfer(
    uring: &GioUring,
    direction: Direction,
    compute: &Stream,
) -> Result<Iocbs, adit_gpu::Error> {
    let slices = [Slice { region: DATA as u32, offset: 0, bytes: DATA_BYTES }];
    let whole = Transfer { device: 0, direction, lba: Lba(0), slices };
    let behind = compute.record()?;
    let iocbs = uring.get_iocb([whole], Some(&behind))?;
    uring.issue_io(&iocbs, 0)?;
    uring.wait_cqe(&iocbs, compute)?;
    Ok(iocbs)
}

impl Kernels {
    fn load(gpu: &Gpu, context: &Arc<CudaContext>, pool: &Pool) -> Result<Kernels, Box<dyn Error>> {
        let (major, minor) = gpu.info().compute_capability;
        let source = include_str!("kernels.cu");
        let compiled = compile_kernels(source, &format!("sm_{major}{minor}"))?;
        // Machine code: a driver may refuse the PTX of a newer minor version.
        let module = context.load_module(Ptx::from_binary(compiled.cubin))?;
        let (fill, check) =
            (module.load_function("beside_fill")?, module.load_function("beside_check")?);
        Ok(Kernels { fill, check, arguments: pool.address(ARGUMENTS) })
    }

    /// Writes the arguments of all launches, and runs each kernel once.
    fn prepare(
        &self,
        context: &Arc<CudaContext>,
        pool: &Pool,
        stream: &Stream,
    ) -> Result<(), Box<dyn Error>> {
        const SEED: u32 = 0x5eed;
        let mut image = Vec::new();
        for (count, seed) in [(0, 0), (WORDS, SEED), (WORDS, !SEED), (WORDS, SEED)] {
            image.extend(pool.address(DATA).to_ne_bytes());
            image.extend(self.wrong().to_ne_bytes());
            image.extend([count, seed].map(u32::to_ne_bytes).concat());
        }
        image.extend([0; 8]);
        // SAFETY: the stream outlives what cudarc makes of its handle, at the end of this function.
        let lent = unsafe { context.wrap_borrowed_stream(stream.raw().cast()) };
        // SAFETY: the region has room for it, and the copy has ended before `image` goes.
        unsafe { result::memcpy_htod_async(self.arguments, &image, lent.cu_stream())? };
        stream.synchronize(WITHIN)?;
        for function in [&self.fill, &self.check] {
            self.launch_one(&lent, function, Launch::Nothing)?;
        }
        Ok(())
    }

    /// Returns the address of the count of wrong words.
    fn wrong(&self) -> u64 {
        self.arguments + ARGUMENT_BYTES * (Launch::Check as u64 + 1)
    }

    fn launch(&self, stream: &Arc<CudaStream>, launch: Launch) -> Result<(), Box<dyn Error>> {
        let function = if matches!(launch, Launch::Check) { &self.check } else { &self.fill };
        self.launch_one(stream, function, launch)
    }

    fn launch_one(
        &self,
        stream: &Arc<CudaStream>,
        function: &CudaFunction,
        launch: Launch,
    ) -> Result<(), Box<dyn Error>> {
        let shape =
            LaunchConfig { grid_dim: (4, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
        let argument = self.arguments + ARGUMENT_BYTES * launch as u64;
        // SAFETY: the kernel takes one address, of arguments that name the pool's memory.
        unsafe { stream.launch_builder(function).arg(&argument).launch(shape)? };
        Ok(())
    }
}
