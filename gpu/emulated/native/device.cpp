// The devices and their properties: attributes follow the settings; the rest is like an H200.
#include <cstdio>

#include "memory.h"

namespace emulated {
namespace {

constexpr u32 CAPABILITY_MAJOR = 9;
constexpr u32 FIRST_BUS = 0x17;
constexpr u32 MMAP_ATTRIBUTE_DRIVER = 13030;

Result set_attribute(u32 attribute, int& value) {
    const Settings now = settings();
    switch (attribute) {
        case COMPUTE_CAPABILITY_MAJOR: value = CAPABILITY_MAJOR; return SUCCESS;
        // Without cuMemAllocAsync there are no pools.
        case COMPUTE_CAPABILITY_MINOR: case INTEGRATED: case MEMORY_POOLS: value = 0; return SUCCESS;
        case CAN_MAP_HOST_MEMORY: case UNIFIED_ADDRESSING: value = 1; return SUCCESS;
        case MULTIPROCESSOR_COUNT: value = static_cast<int>(now.sms); return SUCCESS;
        case PAGEABLE_MEMORY_ACCESS: case PAGEABLE_USES_HOST_PAGE_TABLES: value = now.coherent; return SUCCESS;
        case HOST_REGISTER_SUPPORTED: value = now.host_register == "ok"; return SUCCESS;
        case RDMA_WITH_CUDA_VMM: value = now.vmm && now.rdma; return SUCCESS;
        case GPU_DIRECT_RDMA: case CAN_FLUSH_REMOTE_WRITES: value = now.rdma; return SUCCESS;
        // Bit 0 the host's call, bit 1 stream operations.
        case RDMA_FLUSH_WRITES_OPTIONS: value = now.rdma ? 3 : 0; return SUCCESS;
        case RDMA_WRITES_ORDERING: value = now.rdma ? now.ordering : 0; return SUCCESS;
        case DMA_BUF_SUPPORTED: value = now.dma_buf; return SUCCESS;
        case DMA_BUF_MMAP_SUPPORTED:
            if (now.driver < MMAP_ATTRIBUTE_DRIVER) { return INVALID_VALUE; }
            value = now.dma_buf && now.dma_buf_mmap;
            return SUCCESS;
        default: return misuse(INVALID_VALUE);
    }
}

}  // namespace

bool is_device(int ordinal) { return ordinal >= 0 && static_cast<u32>(ordinal) < settings().gpus; }

}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuDriverGetVersion(int* version) {
    if (const u32 code = injected_failure(__func__)) { return static_cast<Result>(code); }
    if (version == nullptr) { return misuse(INVALID_VALUE); }
    *version = static_cast<int>(settings().driver);
    return SUCCESS;
}

ADIT_CUDA cuDeviceGetCount(int* count) {
    ADIT_ENTER();
    if (count == nullptr) { return misuse(INVALID_VALUE); }
    *count = static_cast<int>(settings().gpus);
    return SUCCESS;
}

ADIT_CUDA cuDeviceGet(int* device, int ordinal) {
    ADIT_ENTER();
    if (device == nullptr) { return misuse(INVALID_VALUE); }
    if (!is_device(ordinal)) { return INVALID_DEVICE; }
    *device = ordinal;
    return SUCCESS;
}

ADIT_CUDA cuDeviceGetName(char* name, int bytes, int ordinal) {
    ADIT_ENTER();
    if (!is_device(ordinal)) { return misuse(INVALID_DEVICE); }
    if (name == nullptr || bytes <= 0) { return misuse(INVALID_VALUE); }
    std::snprintf(name, static_cast<std::size_t>(bytes), "Emulated GPU %d", ordinal);
    return SUCCESS;
}

ADIT_CUDA cuDeviceGetAttribute(int* value, u32 attribute, int ordinal) {
    ADIT_ENTER();
    if (!is_device(ordinal)) { return misuse(INVALID_DEVICE); }
    if (value == nullptr) { return misuse(INVALID_VALUE); }
    return set_attribute(attribute, *value);
}

ADIT_CUDA cuDeviceTotalMem_v2(std::size_t* bytes, int ordinal) {
    ADIT_ENTER();
    if (!is_device(ordinal)) { return misuse(INVALID_DEVICE); }
    if (bytes == nullptr) { return misuse(INVALID_VALUE); }
    *bytes = settings().memory_bytes;
    return SUCCESS;
}

ADIT_CUDA cuDeviceGetPCIBusId(char* text, int bytes, int ordinal) {
    ADIT_ENTER();
    if (!is_device(ordinal)) { return misuse(INVALID_DEVICE); }
    if (text == nullptr || bytes < 13) { return misuse(INVALID_VALUE); }
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", FIRST_BUS + static_cast<u32>(ordinal));
    return SUCCESS;
}

ADIT_CUDA cuFlushGPUDirectRDMAWrites(u32 target, u32 scope) {
    ADIT_ENTER_CONTEXT();
    if (!settings().rdma) { return NOT_SUPPORTED; }
    const bool is_scope = scope == 100 || scope == 200;
    return target == 0 && is_scope ? SUCCESS : misuse(INVALID_VALUE);
}
