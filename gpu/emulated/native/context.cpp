// Initialisation, primary and green contexts, and each thread's stack of current ones.
//
// A green context has its own SMs on paper only: kernels are threads. What is emulated is the arithmetic of the split
// and which objects belong to which context.
#include "memory.h"
#include "stream.h"

namespace emulated {

extern thread_local std::vector<Handle> context_stack;

namespace {

// Removes all objects of a context from a table; returns their number.
template <class T> u64 clear(Table<T>& table, Handle context) {
    std::vector<Handle> gone;
    for (const auto& entry : table.items()) {
        if (entry.second->context == context) { gone.push_back(entry.first); }
    }
    for (const Handle handle : gone) { table.remove(handle); }
    return gone.size();
}

// Closes a context and destroys its objects, as CUDA does. They count as leaks, except if a kernel's failure prevented
// their release. Memory still in use stays, in no table. Call with the lock held.
void close_context(State& all, Handle handle) {
    const auto context = all.contexts.find(handle);
    const bool is_used = context->kernels_running != 0;
    if (context->legacy != nullptr) { close_stream(context->legacy); }
    for (const auto& entry : all.streams.items()) {
        if (entry.second->context == handle) { close_stream(entry.second); }
    }
    u64 left = clear(all.streams, handle) + clear(all.events, handle) + clear(all.modules, handle);
    left += release_ranges(all, handle, is_used);
    if (context->error == 0) { all.leaks += left; }
    all.contexts.remove(handle);
}

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuInit(u32 flags) {
    if (const u32 code = injected_failure(__func__)) { return static_cast<Result>(code); }
    if (flags != 0) { return misuse(INVALID_VALUE); }
    if (settings().gpus == 0) { return NO_DEVICE; }
    std::lock_guard<std::mutex> held(state().lock);
    state().initialized = true;
    return SUCCESS;
}

ADIT_CUDA cuDevicePrimaryCtxRetain(Handle* handle, int ordinal) {
    ADIT_ENTER();
    if (!is_device(ordinal)) { return misuse(INVALID_DEVICE); }
    if (handle == nullptr) { return misuse(INVALID_VALUE); }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    auto context = all.contexts.find(all.primaries[ordinal]);
    if (context == nullptr) {
        context = std::make_shared<Context>();
        context->ordinal = ordinal;
        all.primaries[ordinal] = all.contexts.add(context);
    }
    context->retained += 1;
    *handle = all.primaries[ordinal];
    return SUCCESS;
}

ADIT_CUDA cuDevicePrimaryCtxRelease_v2(int ordinal) {
    ADIT_ENTER();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto context = all.contexts.find(all.primaries[ordinal]);
    if (context == nullptr) { return misuse(INVALID_CONTEXT); }
    context->retained -= 1;
    if (context->retained == 0) { close_context(all, all.primaries[ordinal]); }
    return SUCCESS;
}

ADIT_CUDA cuCtxSetCurrent(Handle handle) {
    ADIT_ENTER();
    {
        std::lock_guard<std::mutex> held(state().lock);
        if (handle != 0 && state().contexts.find(handle) == nullptr) { return misuse(INVALID_CONTEXT); }
    }
    if (!context_stack.empty()) { context_stack.pop_back(); }
    if (handle != 0) { context_stack.push_back(handle); }
    return SUCCESS;
}

ADIT_CUDA cuCtxGetCurrent(Handle* handle) {
    ADIT_ENTER();
    if (handle == nullptr) { return misuse(INVALID_VALUE); }
    *handle = current_handle();
    return SUCCESS;
}

ADIT_CUDA cuCtxPushCurrent_v2(Handle handle) {
    ADIT_ENTER();
    std::lock_guard<std::mutex> held(state().lock);
    if (state().contexts.find(handle) == nullptr) { return misuse(INVALID_CONTEXT); }
    context_stack.push_back(handle);
    return SUCCESS;
}

ADIT_CUDA cuCtxPopCurrent_v2(Handle* handle) {
    ADIT_ENTER();
    if (context_stack.empty()) { return misuse(INVALID_CONTEXT); }
    if (handle != nullptr) { *handle = context_stack.back(); }
    context_stack.pop_back();
    return SUCCESS;
}

ADIT_CUDA cuCtxSynchronize() {
    ADIT_ENTER_CONTEXT();
    return synchronize(current_handle());
}

ADIT_CUDA cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ADIT_ENTER_CONTEXT();
    if (least != nullptr) { *least = 0; }
    if (greatest != nullptr) { *greatest = -5; }
    return SUCCESS;
}

namespace emulated {
namespace {

DeviceResource sm_resource(u32 count) {
    DeviceResource resource{};
    resource.type = RESOURCE_SM;
    // Compute capability 9.0: eight at a time, or two without clusters.
    resource.sm = {count, 8, 8};
    return resource;
}

u32 rounded_up(u32 value, u32 unit) { return (value + unit - 1) / unit * unit; }

}  // namespace
}  // namespace emulated

ADIT_CUDA cuDeviceGetDevResource(int ordinal, DeviceResource* resource, u32 type) {
    ADIT_ENTER();
    if (!settings().green) { return NOT_SUPPORTED; }
    if (!is_device(ordinal)) { return misuse(INVALID_DEVICE); }
    if (resource == nullptr || type != RESOURCE_SM) { return misuse(INVALID_VALUE); }
    *resource = sm_resource(settings().sms);
    return SUCCESS;
}

ADIT_CUDA cuDevSmResourceSplitByCount(DeviceResource* groups, u32* count, const DeviceResource* input,
                                      DeviceResource* remaining, u32 flags, u32 sms_min) {
    ADIT_ENTER();
    if (!settings().green) { return NOT_SUPPORTED; }
    if (count == nullptr || input == nullptr || input->type != RESOURCE_SM) { return misuse(INVALID_VALUE); }
    const u32 unit = (flags & SPLIT_IGNORE_SM_COSCHEDULING) != 0 ? 2 : input->sm.alignment;
    const u32 size = rounded_up(sms_min == 0 ? 1 : sms_min, unit);
    const u32 possible = input->sm.count / size;
    if (groups == nullptr) {
        *count = possible;
        return SUCCESS;
    }
    if (possible == 0 || *count == 0) { return INVALID_VALUE; }
    if (*count > possible) { *count = possible; }
    for (u32 group = 0; group < *count; ++group) { groups[group] = sm_resource(size); }
    if (remaining != nullptr) { *remaining = sm_resource(input->sm.count - size * *count); }
    return SUCCESS;
}

ADIT_CUDA cuDevResourceGenerateDesc(Handle* handle, const DeviceResource* resources, u32 count) {
    ADIT_ENTER();
    if (!settings().green) { return NOT_SUPPORTED; }
    if (handle == nullptr || resources == nullptr || count == 0) { return misuse(INVALID_VALUE); }
    auto description = std::make_shared<SmResource>();
    for (u32 index = 0; index < count; ++index) {
        if (resources[index].type != RESOURCE_SM || resources[index].sm.count == 0) { return misuse(INVALID_VALUE); }
        description->count += resources[index].sm.count;
    }
    std::lock_guard<std::mutex> held(state().lock);
    *handle = state().descriptions.add(description);
    return SUCCESS;
}

ADIT_CUDA cuGreenCtxCreate(Handle* handle, Handle description_handle, int ordinal, u32 flags) {
    ADIT_ENTER();
    if (!settings().green) { return NOT_SUPPORTED; }
    if (handle == nullptr || flags != 1) { return misuse(INVALID_VALUE); }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto description = all.descriptions.find(description_handle);
    const Handle parent = all.primaries[ordinal];
    if (description == nullptr || all.contexts.find(parent) == nullptr) { return misuse(INVALID_CONTEXT); }
    auto green = std::make_shared<Context>();
    green->ordinal = ordinal;
    green->is_green = true;
    green->parent = parent;
    *handle = all.greens.add(green);
    all.green_views[all.contexts.add(green)] = *handle;
    return SUCCESS;
}

ADIT_CUDA cuGreenCtxDestroy(Handle handle) {
    ADIT_ENTER();
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    if (!all.greens.remove(handle)) { return misuse(INVALID_HANDLE); }
    for (auto view = all.green_views.begin(); view != all.green_views.end(); ++view) {
        if (view->second != handle) { continue; }
        close_context(all, view->first);
        all.green_views.erase(view);
        return SUCCESS;
    }
    return SUCCESS;
}
