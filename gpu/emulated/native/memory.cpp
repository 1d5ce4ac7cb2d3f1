// Allocation of GPU memory and pinned host memory, and their totals.
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <algorithm>
#include <thread>

namespace emulated {
namespace {

// The range to try for the window, from the most on: a limit or a sanitizer may leave fewer addresses.
constexpr u64 WINDOW_BYTES_MAX = 1ull << 40;
constexpr u64 WINDOW_BYTES_MIN = 1ull << 30;
// Offset of a small allocation in its first page.
constexpr u64 PACKED_OFFSET_BYTES = PACKED_ALIGNMENT_BYTES;

bool open_window(State& all) {
    if (all.window_end != 0) { return true; }
    for (u64 bytes = WINDOW_BYTES_MAX; bytes >= WINDOW_BYTES_MIN; bytes /= 2) {
        void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) { continue; }
        all.window_start = all.next_address = reinterpret_cast<Address>(at);
        all.window_end = all.window_start + bytes;
        return true;
    }
    return false;
}

// Maps fresh memory of a device; the range is not in the table yet. Call with the lock held.
Result map_device(State& all, u64 bytes, Range& range, Address& at) {
    const bool is_packed = bytes < GRANULE_BYTES;
    const u64 offset = is_packed ? PACKED_OFFSET_BYTES : 0;
    const u64 mapped = round_up(bytes + offset, HOST_PAGE_BYTES);
    const Address base = take_addresses(all, mapped, is_packed ? HOST_PAGE_BYTES : GRANULE_BYTES);
    const int file = base == 0 ? -1 : make_backing(mapped);
    if (file < 0) { return OUT_OF_MEMORY; }
    void* there = mmap(reinterpret_cast<void*>(base), mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    if (there == MAP_FAILED) {
        close(file);
        return OUT_OF_MEMORY;
    }
    at = base + offset;
    range.bytes = bytes;
    range.host = at;
    range.file = file;
    range.file_offset = offset;
    range.charged_bytes = round_up(bytes, PACKED_ALIGNMENT_BYTES);
    return SUCCESS;
}

// Returns the pages to the window, where any access crashes.
void unmap_device(const Range& range) {
    const Address base = range.host - range.file_offset;
    const u64 mapped = round_up(range.bytes + range.file_offset, HOST_PAGE_BYTES);
    make_inaccessible(base, mapped);
    close(range.file);
}

void unmap_pinned(const Range& range) {
    munmap(reinterpret_cast<void*>(range.host), round_up(range.bytes, HOST_PAGE_BYTES));
}

}  // namespace

bool is_in_window(const State& all, Address at) { return at >= all.window_start && at < all.window_end; }

Address take_addresses(State& all, u64 bytes, u64 alignment) {
    if (!open_window(all)) { return 0; }
    const Address at = round_up(all.next_address, alignment);
    // An unmapped page behind each allocation catches overruns.
    const u64 left = all.window_end - std::min(at, all.window_end);
    if (bytes > left || left - bytes < HOST_PAGE_BYTES) { return 0; }
    all.next_address = round_up(at + bytes, HOST_PAGE_BYTES) + HOST_PAGE_BYTES;
    return at;
}

void make_inaccessible(Address at, u64 bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void* sealed = mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, flags, -1, 0);
    // Otherwise the old content would stay readable, and its uses undetected.
    if (sealed == MAP_FAILED) { std::abort(); }
}

int make_backing(u64 bytes) {
    const int file = memfd_create("emulated-gpu-memory", MFD_CLOEXEC);
    if (file < 0) { return -1; }
    if (ftruncate(file, static_cast<off_t>(bytes)) == 0) { return file; }
    close(file);
    return -1;
}

Range* find_range(State& all, Address at) {
    auto after = all.ranges.upper_bound(at);
    if (after == all.ranges.begin()) { return nullptr; }
    --after;
    return at - after->first < after->second.bytes ? &after->second : nullptr;
}

bool is_reachable_locked(State& all, Address at, u64 bytes) {
    if (at == 0 || at + bytes < at) { return false; }
    const bool is_shared = settings().coherent && !is_in_window(all, at) && !is_in_window(all, at + bytes);
    while (bytes > 0) {
        const Range* range = find_range(all, at);
        if (range == nullptr) { return is_shared; }
        if (!range->has_access) { return false; }
        const Address base = std::prev(all.ranges.upper_bound(at))->first;
        const u64 here = std::min(bytes, base + range->bytes - at);
        at += here;
        bytes -= here;
    }
    return true;
}

bool is_reachable(Address at, u64 bytes) {
    std::lock_guard<std::mutex> held(state().lock);
    return is_reachable_locked(state(), at, bytes);
}

Use::Use(State& all, Address at) {
    const Range* range = find_range(all, at);
    if (range == nullptr) { return; }
    auto uses = range->uses;
    *uses += 1;
    held_ = std::shared_ptr<void>(nullptr, [uses](void*) { *uses -= 1; });
}

Result withdraw(Address at, Range::Sort sort, Result missing, Range& into) {
    State& all = state();
    const u64 end = now_ns() + settings().patience_ms * 1000000ull;
    for (;;) {
        {
            std::lock_guard<std::mutex> held(all.lock);
            const auto found = all.ranges.find(at);
            if (found == all.ranges.end() || found->second.sort != sort) { return misuse(missing); }
            if (*found->second.uses == 0) {
                into = found->second;
                all.ranges.erase(found);
                all.used_bytes[into.ordinal] -= into.charged_bytes;
                return SUCCESS;
            }
        }
        if (now_ns() > end) {
            all.stalls += 1;
            return LAUNCH_TIMEOUT;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

u64 release_ranges(State& all, Handle context, bool is_used) {
    u64 released = 0;
    for (auto at = all.ranges.begin(); at != all.ranges.end();) {
        const Range range = at->second;
        if (range.context != context) {
            ++at;
            continue;
        }
        at = all.ranges.erase(at);
        all.used_bytes[range.ordinal] -= range.charged_bytes;
        released += 1;
        if (is_used || *range.uses != 0) { continue; }
        if (range.sort == Range::Sort::DEVICE) { unmap_device(range); }
        if (range.sort == Range::Sort::PINNED) { unmap_pinned(range); }
    }
    return released;
}

}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuMemAlloc_v2(Address* address, std::size_t bytes) {
    ADIT_ENTER_CONTEXT();
    if (address == nullptr || bytes == 0) { return misuse(INVALID_VALUE); }
    const u64 total = settings().memory_bytes;
    Range range;
    range.rdma = settings().rdma;
    range.ordinal = current_context()->ordinal;
    range.context = current_handle();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    u64& used = all.used_bytes[range.ordinal];
    if (bytes > total || used > total - bytes) { return OUT_OF_MEMORY; }
    if (Result why = map_device(all, bytes, range, *address)) { return why; }
    range.identity = ++all.identities;
    used += range.charged_bytes;
    all.ranges[*address] = range;
    return SUCCESS;
}

ADIT_CUDA cuMemFree_v2(Address address) {
    ADIT_ENTER_CONTEXT();
    if (address == 0) { return SUCCESS; }
    if (Result why = before_free()) { return why; }
    Range range;
    if (Result why = withdraw(address, Range::Sort::DEVICE, INVALID_VALUE, range)) { return why; }
    unmap_device(range);
    return SUCCESS;
}

ADIT_CUDA cuMemHostAlloc(void** host, std::size_t bytes, u32 flags) {
    ADIT_ENTER_CONTEXT();
    if (host == nullptr || bytes == 0 || (flags & ~HOST_ALLOC_FLAGS) != 0) { return misuse(INVALID_VALUE); }
    const int access = PROT_READ | PROT_WRITE;
    void* at = mmap(nullptr, round_up(bytes, HOST_PAGE_BYTES), access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) { return OUT_OF_MEMORY; }
    Range range;
    range.sort = Range::Sort::PINNED;
    range.bytes = bytes;
    range.host = reinterpret_cast<Address>(at);
    range.is_portable = (flags & HOST_ALLOC_PORTABLE) != 0;
    range.context = current_handle();
    range.ordinal = current_context()->ordinal;
    std::lock_guard<std::mutex> held(state().lock);
    range.identity = ++state().identities;
    state().ranges[range.host] = range;
    *host = at;
    return SUCCESS;
}

ADIT_CUDA cuMemFreeHost(void* host) {
    ADIT_ENTER_CONTEXT();
    if (Result why = before_free()) { return why; }
    Range range;
    const Address at = reinterpret_cast<Address>(host);
    if (Result why = withdraw(at, Range::Sort::PINNED, INVALID_VALUE, range)) { return why; }
    unmap_pinned(range);
    return SUCCESS;
}
