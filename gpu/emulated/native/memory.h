// GPU memory: memfds mapped into a window of addresses of its own, so that whatever is in it and not live is a mistake.
//
// Addresses are never used again. Only allocations of 2 MiB and more begin at a page: smaller ones are 512-byte
// aligned, as CUDA packs them.
#pragma once
#include "state.h"

namespace emulated {

constexpr u64 HOST_PAGE_BYTES = 4096;
constexpr u64 GRANULE_BYTES = 2ull << 20;
constexpr u64 PACKED_ALIGNMENT_BYTES = 512;

inline u64 round_up(u64 value, u64 unit) { return (value + unit - 1) / unit * unit; }

// Whether the GPU reaches all of a range now: memory that is live, or any of the host's where it shares its page
// tables.
bool is_reachable(Address at, u64 bytes);

// As above with the lock held, and the range that `at` is in, or null.
Range* find_range(State& all, Address at);
bool is_reachable_locked(State& all, Address at, u64 bytes);
bool is_in_window(const State& all, Address at);

// Addresses of the window that nothing else had; 0 if it is full. With the lock held.
Address take_addresses(State& all, u64 bytes, u64 alignment);

// Takes pages of the window away: whoever reads or writes them crashes.
void make_inaccessible(Address at, u64 bytes);

// Makes a file of zeros to back memory; -1 if the system has none.
int make_backing(u64 bytes);

// Waits for the copies that use the range that begins at `at`, then takes it out of the table; `missing` if there is
// none of that sort.
Result withdraw(Address at, Range::Sort sort, Result missing, Range& into);

// Takes what a context allocated and registered out of the table, and frees it unless it is in use; how many. With
// the lock held.
u64 release_ranges(State& all, Handle context, bool is_used);

// Keeps a range from being freed while an operation uses it.
class Use {
public:
    Use(State& all, Address at);        // with the lock held; nothing if `at` is in no range
private:
    std::shared_ptr<void> held_;
};

}  // namespace emulated
