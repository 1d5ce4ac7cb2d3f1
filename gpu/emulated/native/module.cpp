// Modules and kernels: an image is the text that the emulated NVRTC makes of a program, and a kernel is the C++ build
// of the function of that name.
//
// The first line of an image names the format, the architecture and the compiler's major version; each further line is a
// kernel of the program. So a module knows only its program's kernels, and only those built into this library can run.
// A grid is one thread per warp, all at once: device code waits for other warps, so each needs its thread.
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <sstream>
#include <system_error>
#include <thread>

#include "image.h"
#include "stream.h"

namespace emulated {

// Runs a kernel as one warp of a grid, to its end (kernels.cpp).
void play_warp(Kernel kernel, u32 warp, u32 warps, u64 argument);

namespace {

constexpr u32 LANES = 32;
// Each is a thread.
constexpr u32 WARPS_MAX = 256;
constexpr u32 THREADS_MAX = 1024;

Result load(Handle* handle, const char* image) {
    if (handle == nullptr || image == nullptr) { return misuse(INVALID_VALUE); }
    std::istringstream text{image};
    std::string format, architecture, kernel;
    u32 compiler = 0;
    text >> format >> architecture >> compiler;
    const bool is_binary = format == IMAGE_CUBIN;
    if (!is_binary && format != IMAGE_PTX) { return INVALID_IMAGE; }
    if (compiler > settings().driver / 1000) { return is_binary ? INVALID_IMAGE : UNSUPPORTED_PTX_VERSION; }
    // PTX is for any GPU of its architecture or a later one; a CUBIN for its own.
    const std::string own = "sm_90";
    if (is_binary ? architecture.substr(0, 5) != own : architecture > "sm_90a") { return NO_BINARY_FOR_GPU; }
    auto module = std::make_shared<Module>();
    module->context = current_handle();
    while (text >> kernel) { module->kernels.insert(kernel); }
    std::lock_guard<std::mutex> held(state().lock);
    *handle = state().modules.add(module);
    return SUCCESS;
}

// Returns the kernel of a name, if it was built in.
Kernel built_in(const char* name) {
    Dl_info own;
    if (dladdr(reinterpret_cast<void*>(&load), &own) == 0) { return nullptr; }
    void* library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) { return nullptr; }
    void* found = dlsym(library, name);
    dlclose(library);
    return reinterpret_cast<Kernel>(found);
}

bool start_warps(Kernel kernel, u32 warps, u64 argument, std::vector<std::thread>& threads) {
    try {
        for (u32 warp = 0; warp < warps; ++warp) {
            threads.emplace_back([=] { play_warp(kernel, warp, warps, argument); });
        }
    } catch (const std::system_error&) {
        return false;
    }
    return true;
}

void run_grid(Context& context, Kernel kernel, u32 warps, u64 argument) {
    if (context.error != 0) { return; }
    if (const u32 code = injected_failure("kernel")) {
        context.error = code;
        return;
    }
    std::vector<std::thread> threads;
    threads.reserve(warps);
    if (!start_warps(kernel, warps, argument, threads)) { context.error = LAUNCH_FAILED; }
    for (std::thread& thread : threads) { thread.join(); }
    std::this_thread::sleep_for(std::chrono::milliseconds(settings().exit_ms));
}

Result launch(Kernel kernel, u32 blocks, u32 threads, Handle handle, u64 argument) {
    const auto stream = stream_of(handle);
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    // Device code requires whole warps.
    if (blocks == 0 || threads == 0 || threads > THREADS_MAX || threads % LANES != 0) { return misuse(INVALID_VALUE); }
    const u64 warps = static_cast<u64>(blocks) * threads / LANES;
    if (warps > WARPS_MAX) { return LAUNCH_OUT_OF_RESOURCES; }
    const auto context = context_of(stream->context);
    if (context == nullptr) { return misuse(CONTEXT_IS_DESTROYED); }
    if (stream->captured() != nullptr) {
        append(stream, [] {});
        return SUCCESS;
    }
    context->kernels_running += 1;
    state().launches += 1;
    append(stream, [=] {
        run_grid(*context, kernel, static_cast<u32>(warps), argument);
        context->kernels_running -= 1;
    });
    return SUCCESS;
}

std::shared_ptr<Kernel> find_function(Handle handle) {
    std::lock_guard<std::mutex> held(state().lock);
    return state().functions.find(handle);
}

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuModuleLoadData(Handle* handle, const void* image) {
    ADIT_ENTER_CONTEXT();
    return load(handle, static_cast<const char*>(image));
}

ADIT_CUDA cuModuleUnload(Handle handle) {
    ADIT_ENTER_CONTEXT();
    if (Result why = before_free()) { return why; }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto module = all.modules.find(handle);
    if (module == nullptr) { return misuse(INVALID_HANDLE); }
    for (const Handle function : module->functions) { all.functions.remove(function); }
    all.modules.remove(handle);
    return SUCCESS;
}

ADIT_CUDA cuModuleGetFunction(Handle* handle, Handle module_handle, const char* name) {
    ADIT_ENTER_CONTEXT();
    if (handle == nullptr || name == nullptr) { return misuse(INVALID_VALUE); }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const auto module = all.modules.find(module_handle);
    if (module == nullptr) { return misuse(INVALID_HANDLE); }
    const Kernel kernel = module->kernels.count(name) == 0 ? nullptr : built_in(name);
    if (kernel == nullptr) { return NOT_FOUND; }
    *handle = all.functions.add(std::make_shared<Kernel>(kernel));
    module->functions.push_back(*handle);
    return SUCCESS;
}

ADIT_CUDA cuFuncLoad(Handle handle) {
    ADIT_ENTER_CONTEXT();
    return find_function(handle) == nullptr ? misuse(INVALID_HANDLE) : SUCCESS;
}

ADIT_CUDA cuLaunchKernel(Handle handle, u32 blocks, u32 blocks_y, u32 blocks_z, u32 threads, u32 threads_y,
                         u32 threads_z, u32 shared_bytes, Handle stream, void** parameters, void**) {
    ADIT_ENTER_CONTEXT();
    const auto function = find_function(handle);
    if (function == nullptr) { return misuse(INVALID_HANDLE); }
    const bool is_flat = blocks_y == 1 && blocks_z == 1 && threads_y == 1 && threads_z == 1 && shared_bytes == 0;
    if (!is_flat || parameters == nullptr) { return misuse(INVALID_VALUE); }
    // Kernels take one 64-bit number.
    u64 argument;
    std::memcpy(&argument, parameters[0], sizeof argument);
    return launch(*function, blocks, threads, stream, argument);
}
