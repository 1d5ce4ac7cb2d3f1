//! The properties of the emulated GPU, by the settings.
#![allow(unsafe_code)]

mod common;

use adit_gpu_emulated::set;
use common::{Gpu, SUCCESS};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_char};
use std::ptr;

const SM_COUNT: u32 = 16;
const HOST_PAGE_TABLES: u32 = 100;
const GPU_DIRECT_RDMA: u32 = 116;
const WRITES_ORDERING: u32 = 118;
const DMA_BUF: u32 = 124;
const DMA_BUF_MMAP: u32 = 152;

/// Returns an attribute by its number: the bindings do not name all of them.
fn attribute(number: u32) -> Result<i32, u32> {
    type Get = unsafe extern "C" fn(*mut i32, u32, i32) -> u32;
    let mut value = 0;
    // SAFETY: the function has this type, with results and attributes as numbers; it writes one int.
    let result = unsafe {
        let get = sys::culib().get::<Get>(b"cuDeviceGetAttribute\0").expect("it is there");
        get(&mut value, number, 0)
    };
    if result == 0 { Ok(value) } else { Err(result) }
}

#[test]
fn attributes_are_as_the_settings_say() {
    let gpu = Gpu::with("");
    let all = [SM_COUNT, HOST_PAGE_TABLES, GPU_DIRECT_RDMA, WRITES_ORDERING, DMA_BUF, DMA_BUF_MMAP];
    let now = || all.map(|number| attribute(number).ok());
    assert_eq!(now(), [Some(132), Some(0), Some(1), Some(0), Some(1), None]);
    set("sms=16,coherent,ordering=100,driver=13030");
    assert_eq!(now(), [Some(16), Some(1), Some(1), Some(100), Some(1), Some(1)]);
    set("driver=13030,no-rdma,dma-buf-mmap=off");
    assert_eq!(now(), [Some(132), Some(0), Some(0), Some(0), Some(1), Some(0)]);
    set("no-dma-buf");
    assert_eq!(attribute(DMA_BUF), Ok(0));
    assert_eq!(attribute(9999), Err(1));
    drop(gpu);
}

#[test]
fn a_word_that_is_not_known_changes_nothing() {
    let gpu = Gpu::with("sms=16");
    for list in [
        "sms=8,nonsense",
        "sms=",
        "sms=x",
        "io-register=maybe",
        "fail=cuInit",
        "fail=cuInit:0",
        "fail=:1",
    ] {
        assert!(std::panic::catch_unwind(|| set(list)).is_err(), "{list}");
        assert_eq!(attribute(SM_COUNT), Ok(16), "{list}");
    }
    drop(gpu);
}

#[test]
fn a_machine_may_have_two_gpus_or_a_driver_without_any() {
    let gpu = Gpu::with("gpus=2");
    let (mut count, mut device) = (0, 0);
    // SAFETY: they write one int.
    unsafe {
        assert_eq!(sys::cuDeviceGetCount(&mut count), SUCCESS);
        assert_eq!(sys::cuDeviceGet(&mut device, 1), SUCCESS);
        assert_eq!(sys::cuDeviceGet(&mut device, 2), CUresult::CUDA_ERROR_INVALID_DEVICE);
        set("gpus=0");
        assert_eq!(sys::cuInit(0), CUresult::CUDA_ERROR_NO_DEVICE);
    }
    assert_eq!(count, 2);
    drop(gpu);
}

#[test]
fn memory_of_the_host_is_the_gpus_too_where_page_tables_are_shared() {
    let gpu = Gpu::with("");
    let stream = gpu.stream();
    let word = Box::new(5u32);
    let at = ptr::from_ref(word.as_ref()) as u64;
    // SAFETY: the word outlives the stream's work.
    unsafe {
        assert_eq!(
            sys::cuStreamWriteValue32_v2(stream, at, 6, 0),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        set("coherent");
        assert_eq!(sys::cuStreamWriteValue32_v2(stream, at, 6, 0), SUCCESS);
        assert_eq!(sys::cuStreamSynchronize(stream), SUCCESS);
        assert_eq!(ptr::from_ref(word.as_ref()).read_volatile(), 6);
    }
}

#[test]
fn results_have_names() {
    let gpu = Gpu::with("");
    let mut name: *const c_char = ptr::null();
    // SAFETY: it writes one pointer, to a text that stays.
    unsafe {
        assert_eq!(sys::cuGetErrorName(CUresult::CUDA_ERROR_NOT_PERMITTED, &mut name), SUCCESS);
        assert_eq!(CStr::from_ptr(name), c"CUDA_ERROR_NOT_PERMITTED");
    }
    drop(gpu);
}
