// The global state, the checks at the start of each call, and the report.
#include "state.h"

#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

#include "stream.h"

namespace emulated {

thread_local std::vector<Handle> context_stack;

State& state() {
    static State* const one = new State;
    return *one;
}

Result misuse(Result code) {
    state().misuses += 1;
    return code;
}

u64 now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<u64>(time.tv_sec) * 1000000000ull + static_cast<u64>(time.tv_nsec);
}

void Mark::set() {
    {
        std::lock_guard<std::mutex> held(lock);
        is_done = true;
        time_ns = now_ns();
    }
    changed.notify_all();
}

bool Mark::is_set() {
    std::lock_guard<std::mutex> held(lock);
    return is_done;
}

bool Mark::wait(u32 timeout_ms) {
    std::unique_lock<std::mutex> held(lock);
    return changed.wait_for(held, std::chrono::milliseconds(timeout_ms), [this] { return is_done; });
}

Result enter(const char* function) {
    if (const u32 code = injected_failure(function)) { return static_cast<Result>(code); }
    std::lock_guard<std::mutex> held(state().lock);
    return state().initialized ? SUCCESS : NOT_INITIALIZED;
}

Handle current_handle() { return context_stack.empty() ? 0 : context_stack.back(); }

std::shared_ptr<Context> current_context() {
    std::lock_guard<std::mutex> held(state().lock);
    return state().contexts.find(current_handle());
}

std::shared_ptr<Context> context_of(Handle handle) {
    std::lock_guard<std::mutex> held(state().lock);
    auto context = state().contexts.find(handle);
    return context != nullptr && context->is_green ? state().contexts.find(context->parent) : context;
}

Result enter_context(const char* function) {
    if (Result why = enter(function)) { return why; }
    if (current_handle() == 0) { return misuse(INVALID_CONTEXT); }
    const auto context = context_of(current_handle());
    if (context == nullptr) { return misuse(CONTEXT_IS_DESTROYED); }
    return static_cast<Result>(context->error.load());
}

Result before_free() {
    const auto context = context_of(current_handle());
    if (context == nullptr || context->kernels_running == 0) { return SUCCESS; }
    state().frees_behind_kernels += 1;
    const Settings now = settings();
    const u64 end = now_ns() + now.patience_ms * 1000000ull;
    while (now.free_waits && context->kernels_running != 0) {
        if (now_ns() > end) {
            state().stalls += 1;
            return LAUNCH_TIMEOUT;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return SUCCESS;
}

}  // namespace emulated

using namespace emulated;

ADIT_EXPORT void adit_emulated_report(Report* report) {
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    *report = Report{};
    for (const auto& entry : all.ranges) {
        const Range& range = entry.second;
        report->allocations += range.sort == Range::Sort::DEVICE;
        report->host_allocations += range.sort == Range::Sort::PINNED;
        report->registrations += range.sort == Range::Sort::REGISTERED;
        report->mappings += range.sort == Range::Sort::VIRTUAL;
    }
    for (const auto& used : all.used_bytes) { report->allocated_bytes += used.second; }
    for (const auto& entry : all.contexts.items()) {
        report->kernels_running += entry.second->kernels_running;
        report->contexts += !entry.second->is_green;
    }
    report->virtual_ranges = all.reservations.size();
    report->physicals = all.physicals.items().size();
    report->streams = all.streams.items().size();
    report->events = all.events.items().size();
    report->modules = all.modules.items().size();
    report->green_contexts = all.greens.items().size();
    report->launches = all.launches;
    report->misuses = all.misuses;
    report->leaks = all.leaks;
    report->stalls = all.stalls;
    report->frees_behind_kernels = all.frees_behind_kernels;
    report->pinned_ranges = all.pinned_ranges;
}
