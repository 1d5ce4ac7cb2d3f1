// The parts of the CUDA driver's binary interface that Adit uses: codes, attribute numbers and structures of CUDA 13.0.
//
// Handles are 64-bit numbers here and opaque pointers to the caller: both are one register. Structures have the layout
// of the bindings (cudarc, feature cuda-13000), and their sizes are asserted.
#pragma once
#include <cstddef>
#include <cstdint>

#define ADIT_EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using Handle = u64;
using Address = u64;

enum Result : u32 {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_UNJOINED = 904,
    CAPTURED_EVENT = 907,
};

enum DeviceAttribute : u32 {
    MULTIPROCESSOR_COUNT = 16,
    INTEGRATED = 18,
    CAN_MAP_HOST_MEMORY = 19,
    UNIFIED_ADDRESSING = 41,
    COMPUTE_CAPABILITY_MAJOR = 75,
    COMPUTE_CAPABILITY_MINOR = 76,
    PAGEABLE_MEMORY_ACCESS = 88,
    CAN_FLUSH_REMOTE_WRITES = 98,
    HOST_REGISTER_SUPPORTED = 99,
    PAGEABLE_USES_HOST_PAGE_TABLES = 100,
    RDMA_WITH_CUDA_VMM = 110,
    MEMORY_POOLS = 115,
    GPU_DIRECT_RDMA = 116,
    RDMA_FLUSH_WRITES_OPTIONS = 117,
    RDMA_WRITES_ORDERING = 118,
    DMA_BUF_SUPPORTED = 124,
    // From 13.3 on; older drivers refuse the number.
    DMA_BUF_MMAP_SUPPORTED = 152,
};

constexpr u32 POINTER_SYNC_MEMOPS = 6;
constexpr u32 HOST_ALLOC_FLAGS = 7;         // PORTABLE | DEVICEMAP | WRITECOMBINED
constexpr u32 HOST_ALLOC_PORTABLE = 1;
constexpr u32 HOST_REGISTER_PORTABLE = 1;
constexpr u32 HOST_REGISTER_IOMEMORY = 4;
constexpr u32 STREAM_NON_BLOCKING = 1;
constexpr u32 EVENT_DISABLE_TIMING = 2;
constexpr u32 CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2;
constexpr u32 WAIT_GEQ = 0;
constexpr u32 WAIT_FLUSH = 1u << 30;
constexpr u32 RESOURCE_SM = 1;
constexpr u32 SPLIT_IGNORE_SM_COSCHEDULING = 1;
constexpr u32 RANGE_HANDLE_DMA_BUF = 1;
constexpr u32 LOCATION_DEVICE = 1;
constexpr u32 ALLOCATION_PINNED = 1;
constexpr u32 ACCESS_READ_WRITE = 3;

struct Location {
    u32 type;
    int id;
};

struct AllocationProperties {
    u32 type;
    u32 handle_types;
    Location location;
    void* win32;
    u8 compression;
    u8 gpu_direct_rdma_capable;
    u16 usage;
    u8 reserved[4];
};
static_assert(sizeof(AllocationProperties) == 32, "CUmemAllocationProp");

struct AccessDescription {
    Location location;
    u32 flags;
};
static_assert(sizeof(AccessDescription) == 12, "CUmemAccessDesc");

struct SmResource {
    u32 count;
    u32 partition_min;
    u32 alignment;
};

struct DeviceResource {
    u32 type;
    u8 padding[92];
    SmResource sm;
    u8 oversize[48 - sizeof(SmResource)];
};
static_assert(sizeof(DeviceResource) == 144, "CUdevResource");

}  // namespace emulated
