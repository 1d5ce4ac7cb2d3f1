//! Whether kernels and calls of other libraries go on beside the persistent kernel.
//!
//! The other library is cudarc, which opens the GPU's primary context and makes streams there, as PyTorch does. Its
//! streams and its kernel are made before the persistent kernel runs; calls are made while it runs, each in a thread that
//! may wait for as long as it takes.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use adit_gpu::cudarc::driver::{CudaContext, CudaStream, DriverError};
use adit_gpu::cudarc::nvrtc::Ptx;
use adit_gpu::internals::Program;
use adit_gpu::{DoorbellChoice, Gpu, KernelChoice, Options, Stream};
use serde_json::{Value, json};

use super::figures::{sized, timed};
use crate::bench::compute::{Compute, Took};
use crate::failure::{Failure, Result};
use crate::selftest::hosted;

/// Streams of the other library: as many as engines have, and fewer than the GPU's hardware queues.
const STREAMS: u64 = 12;
const STREAMS_EMULATED: u64 = 3;
/// Time of a kernel alone, in us.
const KERNEL_US: u64 = 5000;
const KERNEL_US_EMULATED: u64 = 500;
/// A call that has not returned by then waits for the persistent kernel.
const RETURNS_WITHIN: Duration = Duration::from_secs(2);
const ALLOCATED_BYTES: usize = 1 << 20;

type Call = fn(&Foreign) -> std::result::Result<(), DriverError>;

const CALLS: [(&str, Call); 3] = [
    ("make and destroy a stream", |foreign| foreign.context.new_stream().map(drop)),
    ("allocate, fill and free memory", |foreign| {
        foreign.streams[0].alloc_zeros::<u8>(ALLOCATED_BYTES).map(drop)
    }),
    ("load and unload device code", |foreign| {
        foreign.context.load_module(foreign.code.clone()).map(drop)
    }),
];

/// The other library's objects.
#[derive(Clone)]
struct Foreign {
    context: Arc<CudaContext>,
    streams: Vec<Arc<CudaStream>>,
    code: Ptx,
}

impl Foreign {
    fn new(gpu: &Arc<Gpu>, count: u64) -> Result<Foreign> {
        let (major, minor) = gpu.info().compute_capability;
        let compiled = adit_gpu::compile(&format!("sm_{major}{minor}"))?;
        let context = CudaContext::new(gpu.info().ordinal as usize).map_err(Failure::failed)?;
        let streams = (0..count).map(|_| context.new_stream());
        let streams = streams.collect::<std::result::Result<_, _>>().map_err(Failure::failed)?;
        Ok(Foreign { context, streams, code: Ptx::from_binary(compiled.cubin) })
    }
}

pub(super) fn measure(gpu: &Arc<Gpu>) -> Result<Value> {
    let program = Program::load(gpu)?;
    let foreign = Foreign::new(gpu, sized(gpu, STREAMS, STREAMS_EMULATED))?;
    let streams =
        foreign.streams.iter().map(|stream| Stream::from_cudarc(gpu, stream).map(Arc::new));
    let streams = streams.collect::<adit_gpu::Result<Vec<_>>>()?;
    let sms = gpu.info().sm_count;
    let time = Duration::from_micros(sized(gpu, KERNEL_US, KERNEL_US_EMULATED));
    let work = Compute::calibrated(gpu, &program, (&streams[0], sms), time)?;
    let alone = work.run((&streams[0], sms), || Ok(()))?;

    let options = Options {
        doorbells: DoorbellChoice::Proxy,
        kernel: KernelChoice::Persistent,
        ..hosted::options()
    };
    let uring = hosted::rings(gpu, hosted::TARGET, &options)?;
    let mut commands = 0;
    let mut ended = Vec::new();
    for stream in &streams {
        ended.extend(work.run((stream, sms), || Ok(())).ok());
        commands += hosted::there_and_back(&uring)?;
    }
    let calls = CALLS.map(|(what, call)| {
        let (took, error) = called(call, &foreign);
        json!({
            "call": what,
            "returned": took.is_some(),
            "ms": took.map(|took| timed(gpu, took.as_secs_f64() * 1e3)),
            "error": error,
        })
    });
    // Before what waited for the kernel, and the memory that it uses, are dropped.
    drop(uring);
    let longest = ended.iter().map(|took| took.ms).fold(0.0, f64::max);
    Ok(json!({
        "streams": streams.len(),
        "streams_late": streams.len() - ended.len(),
        "commands_meanwhile": commands,
        "alone": took(gpu, &alone),
        "longest_ms": timed(gpu, longest),
        "calls": calls,
    }))
}

fn took(gpu: &Arc<Gpu>, took: &Took) -> Value {
    json!({ "ms": timed(gpu, took.ms), "longest_round_ns": timed(gpu, took.longest_round_ns as f64) })
}

/// Makes a call in a thread of its own; returns how long it took if it returned in time, and its error.
fn called(call: Call, foreign: &Foreign) -> (Option<Duration>, Option<String>) {
    let foreign = foreign.clone();
    let (sender, receiver) = channel();
    let begun = Instant::now();
    thread::spawn(move || {
        let error = call(&foreign).err().map(|error| error.to_string());
        // After the limit there is no receiver.
        let _ = sender.send((begun.elapsed(), error));
    });
    match receiver.recv_timeout(RETURNS_WITHIN) {
        Ok((took, error)) => (Some(took), error),
        Err(RecvTimeoutError::Timeout) => (None, None),
        // cudarc panics if the driver lacks a function.
        Err(RecvTimeoutError::Disconnected) => {
            (Some(begun.elapsed()), Some("the call panicked".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(settings: &str, test: &str, check: fn(&Value)) {
        let test = format!("{}::{test}", module_path!());
        adit_gpu_emulated::alone(settings, &test, || {
            let gpu = Gpu::open(0).expect("an emulated GPU");
            check(&measure(&gpu).expect("measured"));
        });
    }

    #[test]
    fn kernels_and_calls_of_others_go_on() {
        figures("sms=16", "kernels_and_calls_of_others_go_on", |figures| {
            assert_eq!(figures["streams_late"], 0, "{figures}");
            assert!(figures["commands_meanwhile"].as_u64() > Some(0), "{figures}");
            for call in figures["calls"].as_array().expect("a list") {
                assert_eq!(
                    (&call["returned"], &call["error"]),
                    (&true.into(), &Value::Null),
                    "{call}"
                );
            }
        });
    }

    #[test]
    fn a_call_that_waits_for_the_persistent_kernel_is_told() {
        let name = "a_call_that_waits_for_the_persistent_kernel_is_told";
        figures("sms=16,free-waits", name, |figures| {
            let returned = [0, 1].map(|at: usize| &figures["calls"][at]["returned"]);
            assert_eq!(returned, [true, false], "{figures}");
        });
    }
}
