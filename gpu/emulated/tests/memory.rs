//! Memory of the emulated GPU: live memory can be used, other memory is refused and counted.
#![allow(unsafe_code)]

mod common;

use adit_gpu_emulated::{report, set};
use common::{Gpu, SUCCESS, launch};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::c_void;
use std::ptr;

const MIB: usize = 1 << 20;

#[test]
fn what_is_written_to_gpu_memory_is_read_from_it() {
    let gpu = Gpu::with("");
    let memory = gpu.allocate(3 * MIB).unwrap();
    let bytes: Vec<u8> = (0..5000u32).map(|byte| byte as u8).collect();
    assert_eq!(gpu.write(memory + 77, &bytes), SUCCESS);
    assert_eq!(gpu.read(memory + 77, bytes.len()).unwrap(), bytes);
    assert_eq!(gpu.read(memory, 77).unwrap(), [0; 77]);
    assert_eq!(gpu.free(memory), SUCCESS);
}

#[test]
fn freed_memory_is_no_longer_there() {
    let gpu = Gpu::with("");
    let memory = gpu.allocate(4096).unwrap();
    assert_eq!(gpu.free(memory), SUCCESS);
    let before = report().misuses;
    assert_eq!(gpu.read(memory, 4).unwrap_err(), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(gpu.write(memory, &[1]), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(gpu.free(memory), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(report().misuses, before + 3);
}

#[test]
fn a_copy_that_ends_behind_its_allocation_is_refused() {
    let gpu = Gpu::with("");
    let memory = gpu.allocate(4096).unwrap();
    assert_eq!(gpu.read(memory + 4000, 96).unwrap().len(), 96);
    assert_eq!(gpu.read(memory + 4000, 97).unwrap_err(), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(gpu.free(memory), SUCCESS);
}

#[test]
fn small_allocations_begin_inside_pages_and_large_ones_at_granules() {
    let gpu = Gpu::with("");
    let (small, large) = (gpu.allocate(65536).unwrap(), gpu.allocate(2 * MIB).unwrap());
    assert_eq!(small % 4096, 512);
    assert_eq!(large % (2 * MIB as u64), 0);
    assert_eq!((gpu.free(small), gpu.free(large)), (SUCCESS, SUCCESS));
}

#[test]
fn memory_is_as_large_as_the_settings_say() {
    let gpu = Gpu::with("memory=8388608");
    let memory = gpu.allocate(6 * MIB).unwrap();
    assert_eq!(gpu.allocate(3 * MIB).unwrap_err(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(report().allocated_bytes, 6 * MIB as u64);
    assert_eq!(gpu.free(memory), SUCCESS);
    assert_eq!(gpu.free(gpu.allocate(8 * MIB).unwrap()), SUCCESS);
}

#[test]
fn what_is_left_when_the_context_goes_is_counted() {
    let gpu = Gpu::with("");
    let before = report().leaks;
    let (memory, _event, _stream) = (gpu.allocate(1).unwrap(), gpu.event(), gpu.stream());
    let alone = gpu.close();
    assert_eq!((report().leaks, report().allocations), (before + 3, 0));
    drop(alone);
    assert_eq!(Gpu::with("").free(memory), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn what_a_broken_context_leaves_is_not_counted_as_leaked() {
    let gpu = Gpu::with("");
    let function = gpu.function(gpu.module(), c"adit_poke").unwrap();
    let (memory, stream, before) = (gpu.allocate(64).unwrap(), gpu.stream(), report().leaks);
    set("fail=kernel:719");
    assert_eq!(launch(function, 1, 32, stream, memory), SUCCESS);
    // SAFETY: a handle.
    assert_eq!(unsafe { sys::cuStreamSynchronize(stream) }, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(gpu.free(memory), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let _alone = gpu.close();
    assert_eq!((report().leaks, report().allocations, report().streams), (before, 0, 0));
}

#[test]
fn a_thread_without_a_context_gets_nothing() {
    let gpu = Gpu::with("");
    let result = std::thread::spawn(|| {
        let mut address = 0;
        // SAFETY: it writes one address.
        unsafe { sys::cuMemAlloc_v2(&mut address, 4096) }
    });
    assert_eq!(result.join().unwrap(), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    drop(gpu);
}

#[test]
fn a_call_fails_when_it_is_told_to() {
    let gpu = Gpu::with("fail=cuMemAlloc_v2:2:2");
    let memory = gpu.allocate(64).unwrap();
    assert_eq!(gpu.allocate(64).unwrap_err(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(gpu.free(gpu.allocate(64).unwrap()), SUCCESS);
    // By the documented name too, which has no version.
    set("fail=cuMemFree:1");
    assert_eq!(gpu.free(memory), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(gpu.free(memory), CUresult::CUDA_ERROR_INVALID_VALUE);
    set("");
    assert_eq!(gpu.free(memory), SUCCESS);
}

/// Makes pages of this process: shared, so that they are absent until touched.
fn pages(count: usize) -> *mut c_void {
    // SAFETY: a fresh mapping of no file.
    let at = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(
            ptr::null_mut(),
            count * 4096,
            access,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

fn register(at: *mut c_void, bytes: usize, flags: u32) -> CUresult {
    // SAFETY: the pages stay mapped.
    unsafe { sys::cuMemHostRegister_v2(at, bytes, flags) }
}

fn device_address(at: *mut c_void) -> Result<u64, CUresult> {
    let mut address = 0;
    // SAFETY: it writes one address.
    let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, at, 0) };
    if result == SUCCESS { Ok(address) } else { Err(result) }
}

fn unregister(at: *mut c_void) -> CUresult {
    // SAFETY: nothing uses it.
    unsafe { sys::cuMemHostUnregister(at) }
}

#[test]
fn memory_is_registered_once_and_unregistered_once() {
    let gpu = Gpu::with("");
    let at = pages(2);
    assert_eq!(register(at, 8192, 3), SUCCESS);
    assert_eq!(register(at, 4096, 3), CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(device_address(at).unwrap(), at as u64);
    assert_eq!(unregister(at), SUCCESS);
    assert_eq!(unregister(at), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    set("host-register=refused");
    assert_eq!(register(at, 8192, 3), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    drop(gpu);
}

#[test]
fn registers_of_a_device_need_leave_and_pages_that_are_there() {
    const IO: u32 = 7;
    let gpu = Gpu::with("io-register=not-permitted");
    let at = pages(1);
    assert_eq!(register(at, 4096, IO), CUresult::CUDA_ERROR_NOT_PERMITTED);
    set("io-register=needs-touch");
    assert_eq!(register(at, 4096, IO), CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: the page is ours.
    unsafe { at.cast::<u32>().write_volatile(1) };
    assert_eq!(register(at, 4096, IO), SUCCESS);
    assert_eq!(device_address(at).unwrap(), at as u64);
    assert_eq!(unregister(at), SUCCESS);
    drop(gpu);
}

#[test]
fn stores_through_a_lost_registration_go_nowhere() {
    let gpu = Gpu::with("io-register=lost");
    let at = pages(1);
    assert_eq!(register(at, 4096, 7), SUCCESS);
    let address = device_address(at).unwrap();
    assert_ne!(address, at as u64);
    assert_eq!(gpu.write(address, &[9; 4]), SUCCESS);
    // SAFETY: the page is ours.
    assert_eq!(unsafe { at.cast::<u32>().read_volatile() }, 0);
    assert_eq!(unregister(at), SUCCESS);
    drop(gpu);
}

/// Returns the address that the second GPU has for registered memory.
fn address_elsewhere(at: *mut c_void) -> Result<u64, CUresult> {
    let mut context = ptr::null_mut();
    // SAFETY: they write one handle, which is given back.
    unsafe {
        assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut context, 1), SUCCESS);
        assert_eq!(sys::cuCtxPushCurrent_v2(context), SUCCESS);
        let address = device_address(at);
        assert_eq!(sys::cuCtxPopCurrent_v2(&mut context), SUCCESS);
        assert_eq!(sys::cuDevicePrimaryCtxRelease_v2(1), SUCCESS);
        address
    }
}

#[test]
fn another_gpu_has_an_address_for_portable_memory_alone() {
    const IO: u32 = 7;
    let gpu = Gpu::with("gpus=2");
    let at = pages(1);
    assert_eq!(register(at, 4096, 2), SUCCESS);
    assert_eq!(address_elsewhere(at), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    assert_eq!((unregister(at), register(at, 4096, 3)), (SUCCESS, SUCCESS));
    assert_eq!(address_elsewhere(at), device_address(at));
    assert_eq!(unregister(at), SUCCESS);
    set("gpus=2,io-register=lost-elsewhere");
    assert_eq!(register(at, 4096, IO), SUCCESS);
    assert_eq!(device_address(at), Ok(at as u64));
    assert_ne!(address_elsewhere(at), Ok(at as u64), "a page of its own, not the registers");
    assert_eq!(unregister(at), SUCCESS);
    drop(gpu);
}

fn properties() -> sys::CUmemAllocationProp {
    // SAFETY: all its fields are numbers, enums that have a zero, or a pointer.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.allocFlags.gpuDirectRDMACapable = 1;
    properties
}

/// Maps granules; returns their address and handle.
fn map_granules(bytes: usize) -> (u64, u64) {
    let (mut handle, mut address, properties) = (0, 0, properties());
    let access = sys::CUmemAccessDesc {
        location: properties.location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the structures are as the driver has them.
    unsafe {
        assert_eq!(sys::cuMemCreate(&mut handle, bytes, &properties, 0), SUCCESS);
        assert_eq!(sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0), SUCCESS);
        assert_eq!(sys::cuMemMap(address, bytes, 0, handle, 0), SUCCESS);
        assert_ne!(
            sys::cuMemsetD8Async(address, 1, 1, ptr::null_mut()),
            SUCCESS,
            "no GPU has access yet"
        );
        assert_eq!(sys::cuMemSetAccess(address, bytes, &access, 1), SUCCESS);
    }
    (address, handle)
}

fn dma_buf(address: u64, bytes: usize) -> Result<i32, CUresult> {
    let mut file = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: for a dma-buf it writes one int.
    let result = unsafe {
        sys::cuMemGetHandleForAddressRange((&raw mut file).cast(), address, bytes, kind, 0)
    };
    if result == SUCCESS { Ok(file) } else { Err(result) }
}

fn map_file(file: i32) -> *mut c_void {
    // SAFETY: a fresh mapping.
    unsafe {
        libc::mmap(
            ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file,
            0,
        )
    }
}

#[test]
fn a_dma_buf_is_the_memory_itself() {
    let gpu = Gpu::with("");
    let bytes = 4 * MIB;
    let (address, handle) = map_granules(bytes);
    let file = dma_buf(address, bytes).unwrap();
    let at = map_file(file);
    assert_ne!(at, libc::MAP_FAILED);
    assert_eq!(gpu.write(address, &[7; 16]), SUCCESS);
    // SAFETY: the page is mapped.
    assert_eq!(unsafe { at.cast::<[u8; 16]>().read_volatile() }, [7; 16]);
    set("dma-buf-mmap=off");
    assert_eq!(map_file(dma_buf(address, bytes).unwrap()), libc::MAP_FAILED);
    set("no-dma-buf");
    assert_eq!(dma_buf(address, bytes).unwrap_err(), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    // SAFETY: nothing uses the memory.
    unsafe {
        assert_ne!(sys::cuMemAddressFree(address, bytes), SUCCESS, "it is mapped");
        assert_eq!(sys::cuMemUnmap(address, bytes), SUCCESS);
        assert_eq!(sys::cuMemAddressFree(address, bytes), SUCCESS);
        assert_eq!(sys::cuMemRelease(handle), SUCCESS);
        assert_ne!(sys::cuMemRelease(handle), SUCCESS);
    }
    let report = report();
    assert_eq!((report.virtual_ranges, report.mappings, report.physicals), (0, 0, 0));
    drop(gpu);
}

/// The gdrcopy functions used here.
struct Gdr {
    library: libloading::Library,
}

type Open = unsafe extern "C" fn() -> *mut c_void;
type Pin = unsafe extern "C" fn(*mut c_void, u64, usize, u64, u32, *mut u64) -> i32;
type Unpin = unsafe extern "C" fn(*mut c_void, u64) -> i32;
type Map = unsafe extern "C" fn(*mut c_void, u64, *mut *mut c_void, usize) -> i32;
type Unmap = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, usize) -> i32;

impl Gdr {
    fn load() -> Gdr {
        // SAFETY: the emulated library, which is loaded already.
        Gdr { library: unsafe { libloading::Library::new("libgdrapi.so.2") }.unwrap() }
    }

    fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the types above are gdrcopy's.
        *unsafe { self.library.get::<T>(name) }.unwrap()
    }

    fn open(&self) -> *mut c_void {
        // SAFETY: it takes nothing.
        unsafe { self.function::<Open>("gdr_open")() }
    }

    fn pin(&self, gdr: *mut c_void, address: u64, bytes: usize) -> Result<u64, i32> {
        let mut handle = 0;
        // SAFETY: it writes one handle.
        let code = unsafe {
            self.function::<Pin>("gdr_pin_buffer")(gdr, address, bytes, 0, 0, &mut handle)
        };
        if code == 0 { Ok(handle) } else { Err(code) }
    }
}

#[test]
fn gdrcopy_maps_whole_pages_of_live_memory_within_the_bar() {
    let gpu = Gpu::with("bar1=4194304");
    let (library, memory) = (Gdr::load(), gpu.allocate(4 * MIB).unwrap());
    let gdr = library.open();
    assert_eq!(library.pin(gdr, memory + 4096, 65536).unwrap_err(), libc::EINVAL);
    let handle = library.pin(gdr, memory + 65536, 65536).unwrap();
    assert_eq!(library.pin(gdr, memory, 4 * MIB).unwrap_err(), libc::ENOMEM);
    let mut at = ptr::null_mut();
    // SAFETY: the handle is live, and the mapping until it is given back.
    unsafe {
        assert_eq!(library.function::<Map>("gdr_map")(gdr, handle, &mut at, 65536), 0);
        at.cast::<u32>().write_volatile(0xadd17);
        assert_eq!(gpu.word(memory + 65536), 0xadd17);
        assert_eq!(
            library.function::<Unpin>("gdr_unpin_buffer")(gdr, handle),
            libc::EINVAL,
            "it is mapped"
        );
        assert_eq!(library.function::<Unmap>("gdr_unmap")(gdr, handle, at, 65536), 0);
        assert_eq!(report().pinned_ranges, 1);
        assert_eq!(library.function::<Unpin>("gdr_unpin_buffer")(gdr, handle), 0);
    }
    assert_eq!(report().pinned_ranges, 0);
    set("gdr=refused");
    assert_eq!(library.pin(gdr, memory, 65536).unwrap_err(), libc::EPERM);
    set("gdr=absent");
    assert!(library.open().is_null());
    assert_eq!(gpu.free(memory), SUCCESS);
}
