// Registration of host memory with the GPU, device registers included, and queries about pointers.
//
// CUDA accepts I/O memory only if its pages are in the page table already, and only with permission. The settings
// emulate both, as well as a registration whose stores go nowhere, of all GPUs or of those that did not register it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "memory.h"

namespace emulated {
namespace {

constexpr u64 PAGE_PRESENT = 1ull << 63;

// Whether all pages are in this process's page table, by /proc/self/pagemap; true if it cannot be read.
bool is_present(Address at, u64 bytes) {
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (file < 0) { return true; }
    bool all = true;
    for (Address page = at; all && page < at + bytes; page += HOST_PAGE_BYTES) {
        u64 entry = PAGE_PRESENT;
        const auto offset = static_cast<off_t>(page / HOST_PAGE_BYTES * sizeof entry);
        if (pread(file, &entry, sizeof entry, offset) != sizeof entry) { break; }
        all = (entry & PAGE_PRESENT) != 0;
    }
    close(file);
    return all;
}

Result check_io(Address at, u64 bytes, const std::string& how) {
    if (at % HOST_PAGE_BYTES != 0 || bytes % HOST_PAGE_BYTES != 0) { return misuse(INVALID_VALUE); }
    if (how == "not-permitted") { return NOT_PERMITTED; }
    return how == "needs-touch" && !is_present(at, bytes) ? INVALID_VALUE : SUCCESS;
}

bool overlaps(State& all, Address host, u64 bytes) {
    for (const auto& entry : all.ranges) {
        const Range& range = entry.second;
        if (host < range.host + range.bytes && range.host < host + bytes) { return true; }
    }
    return false;
}

// Makes pages in place of registers that stores do not reach.
Address substitute(State& all, u64 bytes) {
    const Address at = take_addresses(all, bytes, HOST_PAGE_BYTES);
    if (at == 0) { return 0; }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    void* made = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return made == MAP_FAILED ? 0 : at;
}

// Passes stores to tails on from substituted pages of doorbells, but none to heads, while they are registered.
void pass_tails_on(Address address, u64 identity) {
    std::vector<u32> last;
    for (;;) {
        {
            State& all = state();
            std::lock_guard<std::mutex> held(all.lock);
            const auto found = all.ranges.find(address);
            if (found == all.ranges.end() || found->second.identity != identity) { return; }
            last.resize(found->second.bytes / sizeof(u32));
            auto* from = reinterpret_cast<std::atomic<u32>*>(address);
            auto* to = reinterpret_cast<std::atomic<u32>*>(found->second.host);
            for (std::size_t word = 0; word < last.size(); word += 2) {
                const u32 value = from[word].load(std::memory_order_acquire);
                if (value == last[word]) { continue; }
                last[word] = value;
                to[word].store(value, std::memory_order_release);
            }
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

Result add_registration(Address host, u64 bytes, u32 flags, const std::string& how) {
    const bool is_io = (flags & HOST_REGISTER_IOMEMORY) != 0;
    Range range;
    range.sort = Range::Sort::REGISTERED;
    range.bytes = bytes;
    range.host = host;
    range.is_io = is_io;
    range.is_portable = (flags & HOST_REGISTER_PORTABLE) != 0;
    range.context = current_handle();
    range.ordinal = current_context()->ordinal;
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    if (overlaps(all, host, bytes)) { return HOST_MEMORY_ALREADY_REGISTERED; }
    const bool is_substituted = is_io && (how == "lost" || how == "no-heads");
    const Address address = is_substituted ? substitute(all, bytes) : host;
    range.elsewhere = is_io && how == "lost-elsewhere" ? substitute(all, bytes) : address;
    if (address == 0 || range.elsewhere == 0) { return OUT_OF_MEMORY; }
    range.identity = ++all.identities;
    all.ranges[address] = range;
    if (is_io && how == "no-heads") { std::thread(pass_tails_on, address, range.identity).detach(); }
    return SUCCESS;
}

// Returns the entry of registered or pinned memory, or the end. Call with the lock held.
std::map<Address, Range>::const_iterator find_host(const State& all, Address host) {
    return std::find_if(all.ranges.begin(), all.ranges.end(), [&](const auto& entry) {
        const Range& range = entry.second;
        const bool is_host = range.sort == Range::Sort::PINNED || range.sort == Range::Sort::REGISTERED;
        return is_host && host >= range.host && host - range.host < range.bytes;
    });
}

// Returns a GPU's address of registered or pinned memory; 0 for none, and for another GPU's unless it is portable. Call
// with the lock held.
Address address_for(const State& all, Address host, int ordinal) {
    const auto found = find_host(all, host);
    if (found == all.ranges.end()) { return 0; }
    const auto& [address, range] = *found;
    if (range.ordinal == ordinal) { return address + (host - range.host); }
    if (!range.is_portable) { return 0; }
    return (range.elsewhere == 0 ? address : range.elsewhere) + (host - range.host);
}

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuMemHostRegister_v2(void* pointer, std::size_t bytes, u32 flags) {
    ADIT_ENTER_CONTEXT();
    const Address host = reinterpret_cast<Address>(pointer);
    if (pointer == nullptr || bytes == 0 || flags > 15 || host + bytes < host) { return misuse(INVALID_VALUE); }
    const Settings now = settings();
    const bool is_io = (flags & HOST_REGISTER_IOMEMORY) != 0;
    if (!is_io && now.host_register == "refused") { return NOT_SUPPORTED; }
    if (is_io) {
        if (Result why = check_io(host, bytes, now.io_register)) { return why; }
    }
    return add_registration(host, bytes, flags, now.io_register);
}

ADIT_CUDA cuMemHostUnregister(void* pointer) {
    ADIT_ENTER_CONTEXT();
    if (Result why = before_free()) { return why; }
    const Address host = reinterpret_cast<Address>(pointer);
    Address address = 0;
    {
        std::lock_guard<std::mutex> held(state().lock);
        const auto found = find_host(state(), host);
        if (found != state().ranges.end()) { address = found->first; }
    }
    Range range;
    if (Result why = withdraw(address, Range::Sort::REGISTERED, HOST_MEMORY_NOT_REGISTERED, range)) { return why; }
    if (address != host) { make_inaccessible(address, range.bytes); }
    if (range.elsewhere != address) { make_inaccessible(range.elsewhere, range.bytes); }
    return SUCCESS;
}

ADIT_CUDA cuMemHostGetDevicePointer_v2(Address* address, void* host, u32 flags) {
    ADIT_ENTER_CONTEXT();
    if (address == nullptr || flags != 0) { return misuse(INVALID_VALUE); }
    const int ordinal = current_context()->ordinal;
    std::lock_guard<std::mutex> held(state().lock);
    *address = address_for(state(), reinterpret_cast<Address>(host), ordinal);
    return *address == 0 ? misuse(INVALID_VALUE) : SUCCESS;
}

ADIT_CUDA cuPointerSetAttribute(const void* value, u32 attribute, Address at) {
    ADIT_ENTER_CONTEXT();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    Range* range = find_range(all, at);
    if (value == nullptr || range == nullptr || attribute != POINTER_SYNC_MEMOPS) { return misuse(INVALID_VALUE); }
    const bool is_device = range->sort == Range::Sort::DEVICE || range->sort == Range::Sort::VIRTUAL;
    if (!is_device) { return misuse(INVALID_VALUE); }
    u32 set;
    std::memcpy(&set, value, sizeof set);
    range->sync_memops = set != 0;
    return SUCCESS;
}
