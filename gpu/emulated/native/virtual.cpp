// Virtual memory management: reserving addresses, creating memory, mapping it, granting access. And dma-bufs.
//
// A dma-buf is the memfd itself, so that mapping it shares the memory; if the settings forbid mapping, it is a file of
// another kind. If devices' writes are dropped or late, it is a file of zeros (`View`).
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "gdr.h"
#include "memory.h"

namespace emulated {
namespace {

bool is_granular(u64 value) { return value != 0 && value % GRANULE_BYTES == 0; }

bool is_sound(const AllocationProperties* properties) {
    if (properties == nullptr || properties->type != ALLOCATION_PINNED) { return false; }
    const Location where = properties->location;
    return where.type == LOCATION_DEVICE && is_device(where.id);
}

// Frees memory that is no longer referenced. Call with the lock held.
void drop_physical(State& all, Handle handle) {
    const auto physical = all.physicals.find(handle);
    if (!physical->released || physical->mappings != 0) { return; }
    all.used_bytes[physical->ordinal] -= physical->bytes;
    close(physical->file);
    all.physicals.remove(handle);
}

// Makes the file of a dma-buf; -1 on failure. Call with the lock held.
int make_dma_buf(Range& range, u64 bytes, bool can_be_mapped) {
    if (!can_be_mapped) { return eventfd(0, EFD_CLOEXEC); }
    const std::string peer = peer_of_export();
    if (peer == "ok") { return fcntl(range.file, F_DUPFD_CLOEXEC, 3); }
    const int theirs = make_backing(bytes);
    if (theirs >= 0) { range.view = std::make_shared<View>(fcntl(theirs, F_DUPFD_CLOEXEC, 3), peer == "late"); }
    return theirs;
}

bool is_reserved(const State& all, Address at, u64 bytes) {
    auto after = all.reservations.upper_bound(at);
    if (after == all.reservations.begin()) { return false; }
    --after;
    return at - after->first < after->second && bytes <= after->second - (at - after->first);
}

bool has_mapping(const State& all, Address at, u64 bytes) {
    const auto next = all.ranges.lower_bound(at);
    if (next != all.ranges.end() && next->first < at + bytes) { return true; }
    return next != all.ranges.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at;
}

}  // namespace

View::~View() { close(file_); }

void View::to_device(u64 offset, Address from, u64 bytes) const {
    const auto* at = reinterpret_cast<const void*>(from);
    if (pwrite(file_, at, bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes)) { std::abort(); }
}

void View::to_gpu(u64 offset, Address to, u64 bytes) const {
    auto* at = reinterpret_cast<void*>(to);
    if (!arrives_) { return; }
    if (pread(file_, at, bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes)) { std::abort(); }
}

}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties* properties, u32 option) {
    ADIT_ENTER();
    if (bytes == nullptr || option > 1 || !is_sound(properties)) { return misuse(INVALID_VALUE); }
    if (!settings().vmm) { return NOT_SUPPORTED; }
    *bytes = GRANULE_BYTES;
    return SUCCESS;
}

ADIT_CUDA cuMemCreate(Handle* handle, std::size_t bytes, const AllocationProperties* properties, u64 flags) {
    ADIT_ENTER_CONTEXT();
    const bool is_allowed = handle != nullptr && flags == 0 && is_granular(bytes) && is_sound(properties);
    if (!is_allowed) { return misuse(INVALID_VALUE); }
    const Settings now = settings();
    const bool wants_rdma = properties->gpu_direct_rdma_capable != 0;
    if (!now.vmm || (wants_rdma && !now.rdma)) { return NOT_SUPPORTED; }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    u64& used = all.used_bytes[properties->location.id];
    if (bytes > now.memory_bytes || used > now.memory_bytes - bytes) { return OUT_OF_MEMORY; }
    auto physical = std::make_shared<Physical>();
    physical->file = make_backing(bytes);
    if (physical->file < 0) { return OUT_OF_MEMORY; }
    physical->bytes = bytes;
    physical->ordinal = properties->location.id;
    physical->rdma = wants_rdma;
    used += bytes;
    *handle = all.physicals.add(physical);
    return SUCCESS;
}

ADIT_CUDA cuMemRelease(Handle handle) {
    ADIT_ENTER();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto physical = all.physicals.find(handle);
    if (physical == nullptr || physical->released) { return misuse(INVALID_VALUE); }
    physical->released = true;
    drop_physical(all, handle);
    return SUCCESS;
}

ADIT_CUDA cuMemAddressReserve(Address* address, std::size_t bytes, std::size_t alignment, Address, u64 flags) {
    ADIT_ENTER();
    const bool is_power = (alignment & (alignment - 1)) == 0;
    if (address == nullptr || flags != 0 || !is_granular(bytes) || !is_power) { return misuse(INVALID_VALUE); }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    *address = take_addresses(all, bytes, alignment < GRANULE_BYTES ? GRANULE_BYTES : alignment);
    if (*address == 0) { return OUT_OF_MEMORY; }
    all.reservations[*address] = bytes;
    return SUCCESS;
}

ADIT_CUDA cuMemAddressFree(Address address, std::size_t bytes) {
    ADIT_ENTER();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto found = all.reservations.find(address);
    if (found == all.reservations.end() || found->second != bytes) { return misuse(INVALID_VALUE); }
    if (has_mapping(all, address, bytes)) { return misuse(INVALID_VALUE); }
    all.reservations.erase(found);
    return SUCCESS;
}

ADIT_CUDA cuMemMap(Address address, std::size_t bytes, std::size_t offset, Handle handle, u64 flags) {
    ADIT_ENTER();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto physical = all.physicals.find(handle);
    const bool is_free = is_granular(bytes) && is_reserved(all, address, bytes) && !has_mapping(all, address, bytes);
    if (physical == nullptr || physical->released || offset != 0 || flags != 0) { return misuse(INVALID_VALUE); }
    if (!is_free || bytes > physical->bytes) { return misuse(INVALID_VALUE); }
    void* made = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, 0);
    if (made == MAP_FAILED) { return OUT_OF_MEMORY; }
    Range range;
    range.sort = Range::Sort::VIRTUAL;
    range.bytes = bytes;
    range.host = address;
    range.file = physical->file;
    range.ordinal = physical->ordinal;
    range.rdma = physical->rdma;
    range.has_access = false;
    range.physical = handle;
    range.identity = ++all.identities;
    physical->mappings += 1;
    all.ranges[address] = range;
    return SUCCESS;
}

ADIT_CUDA cuMemSetAccess(Address address, std::size_t bytes, const AccessDescription* access, std::size_t count) {
    ADIT_ENTER();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto found = all.ranges.find(address);
    if (access == nullptr || count == 0 || access->flags != ACCESS_READ_WRITE) { return misuse(INVALID_VALUE); }
    const bool is_mapped = found != all.ranges.end() && found->second.sort == Range::Sort::VIRTUAL;
    if (!is_mapped || found->second.bytes != bytes) { return misuse(INVALID_VALUE); }
    if (mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) != 0) { return OUT_OF_MEMORY; }
    found->second.has_access = true;
    return SUCCESS;
}

ADIT_CUDA cuMemUnmap(Address address, std::size_t bytes) {
    ADIT_ENTER();
    {
        std::lock_guard<std::mutex> held(state().lock);
        const Range* range = find_range(state(), address);
        if (range == nullptr || range->bytes != bytes) { return misuse(INVALID_VALUE); }
    }
    Range range;
    if (Result why = withdraw(address, Range::Sort::VIRTUAL, INVALID_VALUE, range)) { return why; }
    make_inaccessible(address, bytes);
    std::lock_guard<std::mutex> held(state().lock);
    state().physicals.find(range.physical)->mappings -= 1;
    drop_physical(state(), range.physical);
    return SUCCESS;
}

ADIT_CUDA cuMemGetHandleForAddressRange(void* handle, Address address, std::size_t bytes, u32 type, u64 flags) {
    ADIT_ENTER_CONTEXT();
    const Settings now = settings();
    if (!now.dma_buf) { return NOT_SUPPORTED; }
    const bool is_aligned = address % HOST_PAGE_BYTES == 0 && bytes % HOST_PAGE_BYTES == 0 && bytes != 0;
    if (handle == nullptr || type != RANGE_HANDLE_DMA_BUF || flags > 1 || !is_aligned) { return misuse(INVALID_VALUE); }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    Range* range = find_range(all, address);
    const bool is_device = range != nullptr && range->file >= 0 && is_reachable_locked(all, address, bytes);
    if (!is_device) { return misuse(INVALID_VALUE); }
    // A memfd cannot start in its middle.
    const bool is_start = all.ranges.count(address) != 0;
    if (!range->rdma || !is_start || bytes > range->bytes) { return NOT_SUPPORTED; }
    const int file = make_dma_buf(*range, bytes, now.dma_buf_mmap);
    if (file < 0) { return OUT_OF_MEMORY; }
    *static_cast<int*>(handle) = file;
    return SUCCESS;
}

ADIT_EXPORT int adit_emulated_backing(Address address, u64 bytes, u64* offset) {
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const Range* range = find_range(all, address);
    if (range == nullptr || range->file < 0 || !is_reachable_locked(all, address, bytes)) { return -1; }
    if (offset != nullptr) { *offset = range->file_offset + (address - range->host); }
    return range->file;
}

ADIT_EXPORT GdrState adit_emulated_gdr(u64* bar1_bytes) {
    const Settings now = settings();
    if (bar1_bytes != nullptr) { *bar1_bytes = now.bar1_bytes; }
    if (now.gdr == "absent") { return GdrState::ABSENT; }
    return now.gdr == "refused" ? GdrState::REFUSED : GdrState::OK;
}

ADIT_EXPORT void adit_emulated_count_pins(int more) { state().pinned_ranges += static_cast<u64>(more); }
