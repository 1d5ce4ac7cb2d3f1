//! Streams, events, kernels and green contexts of the emulated GPU.
#![allow(unsafe_code)]

mod common;

use adit_gpu_emulated::{report, set};
use common::{Gpu, SUCCESS, compile, compile_source, launch};
use cudarc::driver::sys::{self, CUresult, CUstream};
use cudarc::nvrtc::sys::nvrtcResult;
use std::ptr;

/// Holds a stream until `release` is called.
struct Gate<'a> {
    gpu: &'a Gpu,
    word: u64,
}

impl<'a> Gate<'a> {
    fn close(gpu: &'a Gpu, stream: CUstream) -> Gate<'a> {
        let word = gpu.allocate(4).unwrap();
        // SAFETY: the word is live until the gate is open.
        unsafe { assert_eq!(sys::cuStreamWaitValue32_v2(stream, word, 1, 0), SUCCESS) };
        Gate { gpu, word }
    }

    /// Uses its own stream: the default one may have to wait for those that wait here.
    fn release(self) {
        let stream = self.gpu.stream();
        // SAFETY: handles and memory are live.
        unsafe {
            assert_eq!(sys::cuStreamWriteValue32_v2(stream, self.word, 1, 0), SUCCESS);
            assert_eq!(sys::cuStreamSynchronize(stream), SUCCESS);
            assert_eq!(sys::cuStreamDestroy_v2(stream), SUCCESS);
        }
    }
}

/// Allocates memory with the arguments of `adit_poke`, a store of `value` to its first word; they begin at byte 16.
fn poke(gpu: &Gpu, value: u32) -> u64 {
    let memory = gpu.allocate(32).unwrap();
    let mut arguments = memory.to_le_bytes().to_vec();
    arguments.extend(u64::from(value).to_le_bytes());
    assert_eq!(gpu.write(memory + 16, &arguments), SUCCESS);
    memory
}

fn synchronize(stream: CUstream) -> CUresult {
    // SAFETY: a handle.
    unsafe { sys::cuStreamSynchronize(stream) }
}

fn destroy(stream: CUstream) -> CUresult {
    // SAFETY: a handle.
    unsafe { sys::cuStreamDestroy_v2(stream) }
}

#[test]
fn a_stream_keeps_order_and_does_not_hold_up_another() {
    let gpu = Gpu::with("");
    let (first, second) = (gpu.stream(), gpu.stream());
    let word = gpu.allocate(8).unwrap();
    let gate = Gate::close(&gpu, first);
    // SAFETY: handles and memory are live.
    unsafe {
        assert_eq!(sys::cuMemsetD8Async(word, 5, 1, first), SUCCESS);
        assert_eq!(sys::cuMemsetD8Async(word + 4, 6, 1, second), SUCCESS);
    }
    assert_eq!(synchronize(second), SUCCESS);
    assert_eq!((gpu.word(word), gpu.word(word + 4)), (0, 6));
    // SAFETY: a handle.
    assert_eq!(unsafe { sys::cuStreamQuery(first) }, CUresult::CUDA_ERROR_NOT_READY);
    gate.release();
    assert_eq!(synchronize(first), SUCCESS);
    assert_eq!(gpu.word(word), 5);
    assert_eq!((destroy(first), destroy(second)), (SUCCESS, SUCCESS));
    assert_eq!(destroy(first), CUresult::CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn a_stream_waits_for_an_event_as_it_was_recorded() {
    let gpu = Gpu::with("");
    let (first, second, event) = (gpu.stream(), gpu.stream(), gpu.event());
    let word = gpu.allocate(4).unwrap();
    let gate = Gate::close(&gpu, first);
    // SAFETY: handles and memory are live.
    unsafe {
        assert_eq!(sys::cuEventQuery(event), SUCCESS, "nothing is recorded");
        assert_eq!(sys::cuEventRecord(event, first), SUCCESS);
        assert_eq!(sys::cuStreamWaitEvent(second, event, 0), SUCCESS);
        assert_eq!(sys::cuMemsetD8Async(word, 1, 1, second), SUCCESS);
        assert_eq!(sys::cuEventQuery(event), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(gpu.word(word), 0);
        gate.release();
        assert_eq!(sys::cuEventSynchronize(event), SUCCESS);
        assert_eq!(synchronize(second), SUCCESS);
        assert_eq!(gpu.word(word), 1);
        assert_eq!(sys::cuEventDestroy_v2(event), SUCCESS);
        assert_eq!(sys::cuEventQuery(event), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

#[test]
fn the_default_stream_waits_for_blocking_streams_alone() {
    let gpu = Gpu::with("");
    let memory = gpu.allocate(4).unwrap();
    let free = gpu.stream();
    let gate = Gate::close(&gpu, free);
    assert_eq!(gpu.read(memory, 4).unwrap(), [0; 4]);
    gate.release();
    let blocking = gpu.stream_of(0);
    let gate = Gate::close(&gpu, blocking);
    let stalls = report().stalls;
    set("patience=50");
    assert_eq!(gpu.read(memory, 4).unwrap_err(), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    assert_eq!(report().stalls, stalls + 1);
    set("");
    gate.release();
    assert_eq!(gpu.read(memory, 4).unwrap(), [0; 4]);
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let gpu = Gpu::with("");
    let (stream, event) = (gpu.stream(), gpu.event());
    let word = gpu.allocate(4).unwrap();
    let gate = Gate::close(&gpu, stream);
    // SAFETY: handles and memory are live.
    unsafe {
        assert_eq!(sys::cuMemsetD8Async(word, 3, 1, stream), SUCCESS);
        assert_eq!(sys::cuEventRecord(event, stream), SUCCESS);
        assert_eq!(destroy(stream), SUCCESS);
        gate.release();
        assert_eq!(sys::cuEventSynchronize(event), SUCCESS);
    }
    assert_eq!(gpu.word(word), 3);
}

#[test]
fn memory_is_freed_behind_the_copies_that_use_it() {
    let gpu = Gpu::with("");
    let stream = gpu.stream();
    let memory = gpu.allocate(4096).unwrap();
    let gate = Gate::close(&gpu, stream);
    // SAFETY: handles and memory are live.
    unsafe { assert_eq!(sys::cuMemsetD8Async(memory, 3, 4096, stream), SUCCESS) };
    set("patience=50");
    assert_eq!(gpu.free(memory), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    set("");
    gate.release();
    assert_eq!(synchronize(stream), SUCCESS);
    assert_eq!(gpu.free(memory), SUCCESS);
}

#[test]
fn a_kernel_runs_as_many_warps_as_it_is_launched_with() {
    let gpu = Gpu::with("");
    let module = gpu.module();
    let function = gpu.function(module, c"adit_poke").unwrap();
    let (memory, stream) = (poke(&gpu, 77), gpu.stream());
    assert_eq!(launch(function, 3, 64, stream, memory + 16), SUCCESS);
    assert_eq!(synchronize(stream), SUCCESS);
    assert_eq!(gpu.word(memory), 77);
    assert_eq!(
        launch(function, 1, 48, stream, memory + 16),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "part of a warp"
    );
    assert_eq!(
        launch(function, 257, 32, stream, memory + 16),
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    );
    // SAFETY: a handle.
    assert_eq!(unsafe { sys::cuModuleUnload(module) }, SUCCESS);
    assert_eq!(launch(function, 1, 32, stream, memory + 16), CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(report().kernels_running, 0);
}

#[test]
fn frees_behind_a_running_kernel_are_counted_and_wait_if_told_to() {
    let gpu = Gpu::with("");
    let function = gpu.function(gpu.module(), c"adit_poke").unwrap();
    let (memory, other, stream) = (poke(&gpu, 1), gpu.allocate(64).unwrap(), gpu.stream());
    let gate = Gate::close(&gpu, stream);
    assert_eq!(launch(function, 1, 32, stream, memory + 16), SUCCESS);
    let before = report().frees_behind_kernels;
    set("free-waits,patience=50");
    assert_eq!(gpu.free(other), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    set("");
    assert_eq!(gpu.free(other), SUCCESS);
    assert_eq!(report().frees_behind_kernels, before + 2);
    gate.release();
    assert_eq!(synchronize(stream), SUCCESS);
}

#[test]
fn a_kernel_that_fails_breaks_its_context() {
    let gpu = Gpu::with("");
    let function = gpu.function(gpu.module(), c"adit_poke").unwrap();
    let (memory, stream) = (poke(&gpu, 1), gpu.stream());
    set("fail=kernel:700:1");
    assert_eq!(launch(function, 1, 32, stream, memory + 16), SUCCESS);
    assert_eq!(synchronize(stream), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(gpu.allocate(4).unwrap_err(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn a_module_has_the_kernels_of_its_program_for_its_architecture() {
    let gpu = Gpu::with("");
    let module = gpu.module();
    assert!(gpu.function(module, c"adit_issue").is_ok());
    assert_eq!(gpu.function(module, c"adit_none").unwrap_err(), CUresult::CUDA_ERROR_NOT_FOUND);
    let empty = gpu.load(&compile_source("// Nothing.\n", &[], "sm_90").unwrap()).unwrap();
    assert_eq!(gpu.function(empty, c"adit_issue").unwrap_err(), CUresult::CUDA_ERROR_NOT_FOUND);
    let older = compile("sm_80").unwrap();
    assert_eq!(gpu.load(&older).unwrap_err(), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(gpu.load(b"\x7fELF\0").unwrap_err(), CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(compile("sm_91").unwrap_err(), nvrtcResult::NVRTC_ERROR_INVALID_OPTION);
    let missing = compile_source("#include \"none.h\"\n", &[], "sm_90");
    assert_eq!(missing.unwrap_err(), nvrtcResult::NVRTC_ERROR_COMPILATION);
    set("nvrtc=error");
    assert_eq!(compile("sm_90").unwrap_err(), nvrtcResult::NVRTC_ERROR_COMPILATION);
}

/// Splits off `sms` of 20; returns the sizes of the part and the rest.
fn split(sms: u32, flags: u32) -> (sys::CUdevResource, [u32; 2]) {
    // SAFETY: all its fields are numbers or enums that have a zero.
    let mut all: sys::CUdevResource = unsafe { std::mem::zeroed() };
    let (mut part, mut rest) = (all, all);
    let (kind, mut groups) = (sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM, 1);
    // SAFETY: the structures are as the driver has them; the resource is of multiprocessors.
    unsafe {
        assert_eq!(sys::cuDeviceGetDevResource(0, &mut all, kind), SUCCESS);
        assert_eq!(
            sys::cuDevSmResourceSplitByCount(&mut part, &mut groups, &all, &mut rest, flags, sms),
            SUCCESS
        );
        let counts = [part.__bindgen_anon_1.sm.smCount, rest.__bindgen_anon_1.sm.smCount];
        (part, counts)
    }
}

#[test]
fn a_green_context_has_whole_groups_of_multiprocessors_and_streams_of_its_own() {
    let gpu = Gpu::with("sms=20");
    assert_eq!(split(3, 0).1, [8, 12]);
    assert_eq!(split(3, 1).1, [4, 16]);
    let (mut part, _) = split(8, 0);
    let function = gpu.function(gpu.module(), c"adit_poke").unwrap();
    let memory = poke(&gpu, 5);
    let (mut description, mut green, mut stream) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: handles and structures are live.
    unsafe {
        assert_eq!(sys::cuDevResourceGenerateDesc(&mut description, &mut part, 1), SUCCESS);
        assert_eq!(sys::cuGreenCtxCreate(&mut green, description, 0, 1), SUCCESS);
        assert_eq!(
            sys::cuGreenCtxStreamCreate(&mut stream, green, 0, 0),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(sys::cuGreenCtxStreamCreate(&mut stream, green, 1, 0), SUCCESS);
        assert_eq!(launch(function, 1, 32, stream, memory + 16), SUCCESS);
        assert_eq!(sys::cuCtxSynchronize(), SUCCESS, "the primary context waits for it too");
        assert_eq!(gpu.word(memory), 5);
        assert_eq!(report().green_contexts, 1);
        assert_eq!(sys::cuStreamDestroy_v2(stream), SUCCESS);
        assert_eq!(sys::cuGreenCtxDestroy(green), SUCCESS);
        assert_eq!(sys::cuGreenCtxDestroy(green), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    drop(gpu);
}

#[test]
fn streams_of_one_hardware_queue_wait_for_each_other() {
    let gpu = Gpu::with("queues=2");
    let (first, second, third) = (gpu.stream(), gpu.stream(), gpu.stream());
    let word = gpu.allocate(8).unwrap();
    // SAFETY: the word is live until all streams are idle.
    unsafe {
        assert_eq!(sys::cuStreamWaitValue32_v2(first, word, 1, 0), SUCCESS);
        assert_eq!(sys::cuStreamWriteValue32_v2(third, word + 4, 1, 0), SUCCESS);
        assert_eq!(sys::cuStreamQuery(third), CUresult::CUDA_ERROR_NOT_READY);
        // The second stream has the other queue.
        assert_eq!(sys::cuStreamWriteValue32_v2(second, word, 1, 0), SUCCESS);
    }
    assert_eq!((synchronize(second), synchronize(third)), (SUCCESS, SUCCESS));
    assert_eq!((gpu.word(word), gpu.word(word + 4)), (1, 1));
    for stream in [first, second, third] {
        assert_eq!((synchronize(stream), destroy(stream)), (SUCCESS, SUCCESS));
    }
}

fn begin_capture(stream: CUstream) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a handle.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }, SUCCESS);
}

fn is_capturing(stream: CUstream) -> bool {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a handle; it writes one number.
    assert_eq!(unsafe { sys::cuStreamIsCapturing(stream, &mut status) }, SUCCESS);
    status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
}

#[test]
fn a_captured_stream_collects_its_work_and_does_none_of_it() {
    let gpu = Gpu::with("");
    let stream = gpu.stream();
    let word = gpu.allocate(4).unwrap();
    gpu.write(word, &[0; 4]);
    begin_capture(stream);
    assert!(is_capturing(stream));
    let (mut graph, mut nodes) = (ptr::null_mut(), 0);
    // SAFETY: handles and memory are live; the graph is destroyed once.
    unsafe {
        assert_eq!(sys::cuStreamWriteValue32_v2(stream, word, 1, 0), SUCCESS);
        assert_eq!(sys::cuStreamEndCapture(stream, &mut graph), SUCCESS);
        assert_eq!(sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes), SUCCESS);
        assert_eq!(sys::cuGraphDestroy(graph), SUCCESS);
    }
    assert_eq!((synchronize(stream), nodes, gpu.word(word)), (SUCCESS, 1, 0));
    assert!(!is_capturing(stream));
    assert_eq!(destroy(stream), SUCCESS);
}

#[test]
fn a_stream_that_waits_for_a_captured_event_joins_the_capture() {
    let gpu = Gpu::with("");
    let (origin, other) = (gpu.stream(), gpu.stream());
    let event = gpu.event();
    begin_capture(origin);
    let mut graph = ptr::null_mut();
    // SAFETY: handles are live.
    unsafe {
        assert_eq!(sys::cuEventRecord(event, origin), SUCCESS);
        assert_eq!(sys::cuStreamWaitEvent(other, event, 0), SUCCESS);
        assert!(is_capturing(other));
        let unjoined = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        assert_eq!(sys::cuStreamEndCapture(origin, &mut graph), unjoined);
        assert!(!is_capturing(other));
        assert_eq!(sys::cuEventQuery(event), CUresult::CUDA_ERROR_CAPTURED_EVENT);
        assert_eq!(sys::cuEventRecord(event, origin), SUCCESS);
        assert_eq!(sys::cuEventSynchronize(event), SUCCESS);
        assert_eq!(sys::cuEventDestroy_v2(event), SUCCESS);
    }
    assert_eq!((destroy(origin), destroy(other)), (SUCCESS, SUCCESS));
}
