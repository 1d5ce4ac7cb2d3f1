// GPU memory: memfds mapped into a reserved window of addresses, so that any access to a part that is not live is an
// error.
//
// Addresses are never reused. Only allocations of 2 MiB and more begin at a page: smaller ones are 512-byte aligned, as
// CUDA packs them.
#pragma once
#include "state.h"

namespace emulated {

constexpr u64 HOST_PAGE_BYTES = 4096;
constexpr u64 GRANULE_BYTES = 2ull << 20;
constexpr u64 PACKED_ALIGNMENT_BYTES = 512;

inline u64 round_up(u64 value, u64 unit) { return (value + unit - 1) / unit * unit; }

// Whether the GPU can access all of a range now: live memory, or any host memory if it shares the CPU's page tables.
bool is_reachable(Address at, u64 bytes);

// As above with the lock held; and the range around `at`, or null.
Range* find_range(State& all, Address at);
bool is_reachable_locked(State& all, Address at, u64 bytes);
bool is_in_window(const State& all, Address at);

// Takes unused addresses of the window; 0 if it is full. Call with the lock held.
Address take_addresses(State& all, u64 bytes, u64 alignment);

// Removes pages of the window: any access to them crashes.
void make_inaccessible(Address at, u64 bytes);

// Makes a file of zeros to back memory; -1 on failure.
int make_backing(u64 bytes);

// Waits for the copies that use the range at `at`, then removes it from the table; `missing` if there is none of that
// sort.
Result withdraw(Address at, Range::Sort sort, Result missing, Range& into);

// Removes a context's allocations and registrations from the table, and frees them unless in use; returns their number.
// Call with the lock held.
u64 release_ranges(State& all, Handle context, bool is_used);

// Keeps a range from being freed while an operation uses it.
class Use {
public:
    Use(State& all, Address at);        // call with the lock held; empty if `at` is in no range
private:
    std::shared_ptr<void> held_;
};

}  // namespace emulated
