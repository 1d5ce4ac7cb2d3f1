// An emulated gdrcopy: pins GPU memory and maps it for the CPU (public interface of gdrcopy 2.x).
//
// It pins and maps whole 64 KiB pages, and pinning counts against the settings' bar1. The setting `absent` makes
// gdr_open fail, as without the kernel module; `refused` makes only pinning fail.
#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "gdr.h"
#include "memory.h"

namespace emulated {
namespace {

constexpr u64 GPU_PAGE_BYTES = 64 << 10;

struct Pin {
    Address address;
    u64 bytes;
    void* mapped;
    u64 mapped_bytes;
};

struct Pins {
    std::mutex lock;
    std::map<unsigned long, Pin> live;
    unsigned long count = 0;
    u64 bytes = 0;
};

// Its address is the result of gdr_open.
Pins& pins() {
    static Pins* const all = new Pins;
    return *all;
}

Pin* find_pin(void* gdr, unsigned long handle) {
    const auto at = pins().live.find(handle);
    return gdr != &pins() || at == pins().live.end() ? nullptr : &at->second;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_EXPORT void* gdr_open() { return adit_emulated_gdr(nullptr) == GdrState::ABSENT ? nullptr : &pins(); }

ADIT_EXPORT int gdr_close(void* gdr) { return gdr == &pins() ? 0 : EINVAL; }

ADIT_EXPORT int gdr_pin_buffer(void* gdr, unsigned long address, std::size_t bytes, u64, u32, unsigned long* handle) {
    u64 bar1_bytes = 0;
    if (gdr != &pins() || handle == nullptr || bytes == 0) { return EINVAL; }
    if (adit_emulated_gdr(&bar1_bytes) == GdrState::REFUSED) { return EPERM; }
    const u64 whole = round_up(bytes, GPU_PAGE_BYTES);
    if (address % GPU_PAGE_BYTES != 0 || adit_emulated_backing(address, bytes, nullptr) < 0) { return EINVAL; }
    std::lock_guard<std::mutex> held(pins().lock);
    if (whole > bar1_bytes || pins().bytes > bar1_bytes - whole) { return ENOMEM; }
    pins().bytes += whole;
    *handle = ++pins().count;
    pins().live[*handle] = {address, whole, nullptr, 0};
    adit_emulated_count_pins(1);
    return 0;
}

ADIT_EXPORT int gdr_unpin_buffer(void* gdr, unsigned long handle) {
    std::lock_guard<std::mutex> held(pins().lock);
    const Pin* pin = find_pin(gdr, handle);
    if (pin == nullptr || pin->mapped != nullptr) { return EINVAL; }
    pins().bytes -= pin->bytes;
    pins().live.erase(handle);
    adit_emulated_count_pins(-1);
    return 0;
}

ADIT_EXPORT int gdr_map(void* gdr, unsigned long handle, void** mapped, std::size_t bytes) {
    std::lock_guard<std::mutex> held(pins().lock);
    Pin* pin = find_pin(gdr, handle);
    if (pin == nullptr || mapped == nullptr || bytes == 0) { return EINVAL; }
    const u64 whole = round_up(bytes, GPU_PAGE_BYTES);
    if (whole > pin->bytes) { return EINVAL; }
    if (pin->mapped != nullptr) { return EAGAIN; }
    u64 offset = 0;
    const int file = adit_emulated_backing(pin->address, 1, &offset);
    if (file < 0) { return EINVAL; }
    void* at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
    if (at == MAP_FAILED) { return errno; }
    pin->mapped = *mapped = at;
    pin->mapped_bytes = whole;
    return 0;
}

ADIT_EXPORT int gdr_unmap(void* gdr, unsigned long handle, void* mapped, std::size_t) {
    std::lock_guard<std::mutex> held(pins().lock);
    Pin* pin = find_pin(gdr, handle);
    if (pin == nullptr || mapped == nullptr || pin->mapped != mapped) { return EINVAL; }
    munmap(mapped, pin->mapped_bytes);
    pin->mapped = nullptr;
    return 0;
}
