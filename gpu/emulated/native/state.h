// The state of the emulated driver: contexts, memory, streams, events, modules, and what went wrong.
//
// - A handle is a number that is no address and is never reused: a stale one is recognised, and dereferencing it
//   crashes.
// - `State::lock` guards every table. Stream queues and marks have their own locks, taken after it, never before.
// - Nothing here is destroyed at the end of the process: worker threads may still run kernels.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "abi.h"
#include "settings.h"

namespace emulated {

// A handle's kind: its upper bits, which no address has.
enum class Kind : u64 { CONTEXT = 1, GREEN, STREAM, EVENT, MODULE, FUNCTION, PHYSICAL, DESCRIPTION, GRAPH };

template <class T> class Table {
public:
    explicit Table(Kind kind) : prefix_(0xAD00000000000000ull | static_cast<u64>(kind) << 48) {}
    Handle add(std::shared_ptr<T> item) {
        const Handle handle = prefix_ | ++count_ << 4;
        items_[handle] = std::move(item);
        return handle;
    }
    std::shared_ptr<T> find(Handle handle) const {
        const auto at = items_.find(handle);
        return at == items_.end() ? nullptr : at->second;
    }
    bool remove(Handle handle) { return items_.erase(handle) != 0; }
    const std::map<Handle, std::shared_ptr<T>>& items() const { return items_; }

private:
    u64 prefix_;
    u64 count_ = 0;
    std::map<Handle, std::shared_ptr<T>> items_;
};

// A one-time occurrence: a recorded event, the end of an operation.
struct Mark {
    std::mutex lock;
    std::condition_variable changed;
    bool is_done = false;
    u64 time_ns = 0;

    void set();
    bool is_set();
    // Returns false once the patience is over.
    bool wait(u32 timeout_ms);
};

struct Stream;

// Work that streams collect for a graph.
struct Capture {
    Handle origin = 0;                  // the stream where it began, and has to end
    std::atomic<u64> nodes{0};
    std::atomic<bool> is_invalid{false};
};

struct Context {
    int ordinal = 0;
    bool is_green = false;
    Handle parent = 0;                  // of a green context, the primary one
    u32 retained = 0;
    std::atomic<u32> error{0};          // sticky: set by a failed kernel
    std::atomic<u32> kernels_running{0};
    std::atomic<bool> has_filled{false};    // the driver has loaded its own kernel for fills
    std::shared_ptr<Stream> legacy;     // the default stream
};

struct Event {
    u32 flags = 0;
    Handle context = 0;
    std::shared_ptr<Mark> recorded;     // null until recorded
    std::shared_ptr<Capture> capture;   // set if it was last recorded in a stream that was captured
};

// A compiled program: its architecture and kernels.
struct Module {
    Handle context = 0;
    std::set<std::string> kernels;
    std::vector<Handle> functions;
};

using Kernel = void (*)(unsigned long long);

// A device's own copy of GPU memory, where PCIe does not keep the two the same: `peer` of the settings.
class View {
public:
    View(int file, bool arrives) : file_(file), arrives_(arrives) {}
    View(const View&) = delete;
    ~View();
    // After the GPU has written so many bytes from `offset` of the memory, which are at `from`: the device sees them.
    void to_device(u64 offset, Address from, u64 bytes) const;
    // After the GPU has read them: from now on it sees what the device has written there, unless that was dropped.
    void to_gpu(u64 offset, Address to, u64 bytes) const;

private:
    int file_;
    bool arrives_;
};

// A range that the GPU can access, by its first GPU address.
struct Range {
    enum class Sort { DEVICE, PINNED, REGISTERED, VIRTUAL };
    Sort sort = Sort::DEVICE;
    u64 bytes = 0;
    Address host = 0;                   // its CPU address; for GPU memory, the same address
    int file = -1;                      // GPU memory: the file behind it, from `file_offset` on
    u64 file_offset = 0;
    u64 charged_bytes = 0;
    u64 identity = 0;
    int ordinal = 0;
    bool rdma = true;
    bool sync_memops = false;
    bool is_io = false;
    bool is_portable = false;           // host memory: for every GPU
    Address elsewhere = 0;              // registered memory: its address for other GPUs
    bool has_access = true;             // virtual ranges: after cuMemSetAccess
    Handle context = 0;
    Handle physical = 0;                // virtual ranges: the mapped memory
    std::shared_ptr<View> view;         // null: devices share the memory
    // Copies queued or under way.
    std::shared_ptr<std::atomic<u32>> uses = std::make_shared<std::atomic<u32>>(0);
};

// cuMemCreate's memory.
struct Physical {
    int file = -1;
    u64 bytes = 0;
    int ordinal = 0;
    bool rdma = false;
    u32 mappings = 0;
    bool released = false;
};

// The report for tests. gpu/emulated/src/lib.rs has the same fields.
struct Report {
    u64 allocations;            // cuMemAlloc
    u64 allocated_bytes;        // of GPU memory in all
    u64 host_allocations;
    u64 registrations;
    u64 virtual_ranges;         // reserved
    u64 mappings;
    u64 physicals;
    u64 streams;
    u64 events;
    u64 modules;
    u64 contexts;               // retained primary contexts
    u64 green_contexts;
    u64 kernels_running;
    u64 launches;               // so far, like all that follow
    u64 misuses;                // handles or memory that do not, or no longer, exist
    u64 leaks;                  // objects alive when their context went
    u64 stalls;                 // calls that gave up waiting for work
    u64 frees_behind_kernels;   // calls that CUDA may delay until all kernels end, made while one ran
    u64 pinned_ranges;          // gdrcopy pins
};

struct State {
    std::mutex lock;
    bool initialized = false;
    Table<Context> contexts{Kind::CONTEXT};
    Table<Context> greens{Kind::GREEN};
    Table<Stream> streams{Kind::STREAM};
    Table<Event> events{Kind::EVENT};
    Table<Module> modules{Kind::MODULE};
    Table<Kernel> functions{Kind::FUNCTION};
    Table<Physical> physicals{Kind::PHYSICAL};
    Table<SmResource> descriptions{Kind::DESCRIPTION};
    Table<u64> graphs{Kind::GRAPH};             // their numbers of nodes alone, as nothing launches them
    std::map<int, Handle> primaries;
    std::map<Handle, Handle> green_views;       // a green context viewed as a context: CUcontext -> CUgreenCtx
    std::map<Address, Range> ranges;
    std::map<Address, u64> reservations;
    std::map<int, u64> used_bytes;              // by device
    Address window_start = 0;                   // GPU memory is here, and nothing else
    Address next_address = 0;
    Address window_end = 0;
    u64 identities = 0;
    std::atomic<u64> launches{0}, misuses{0}, leaks{0}, stalls{0}, frees_behind_kernels{0}, pinned_ranges{0};
};

State& state();

// Counts a call that refers to something nonexistent, and returns the code.
Result misuse(Result code);

// First step of every function: an injected failure, then initialisation.
Result enter(const char* function);
// As `enter`, and requires a live and unbroken context on the calling thread.
Result enter_context(const char* function);
// Whether there is a device of this number.
bool is_device(int ordinal);
// Returns the calling thread's context; 0 for none.
Handle current_handle();
std::shared_ptr<Context> current_context();
// Returns the primary context of a handle: itself, or a green one's parent. Call without the lock.
std::shared_ptr<Context> context_of(Handle handle);
// Waits until no kernel runs if the settings say so; counts the call if one runs.
Result before_free();

u64 now_ns();

}  // namespace emulated

// Begins an exported function.
#define ADIT_CUDA ADIT_EXPORT ::emulated::Result
#define ADIT_ENTER()                                                                              \
    if (::emulated::Result why = ::emulated::enter(__func__)) { return why; }
#define ADIT_ENTER_CONTEXT()                                                                      \
    if (::emulated::Result why = ::emulated::enter_context(__func__)) { return why; }
