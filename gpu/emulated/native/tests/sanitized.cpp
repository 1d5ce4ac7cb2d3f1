// The emulated driver under the compiler's sanitizers: threads that allocate, copy, record, launch and free at once.
//
// From the repository's root, once with SANITIZE=address,undefined and once with SANITIZE=thread:
//   FLAGS="-std=c++17 -g -O1 -pthread -fsanitize=$SANITIZE -fno-sanitize-recover=all"
//   cd gpu/emulated/native
//   g++ $FLAGS -I../../device -shared -fPIC {codes,context,copy,device,event,kernels,memory,module}.cpp
//       {register,settings,state,stream,virtual}.cpp -ldl -o /tmp/libcuda.so
//   g++ $FLAGS tests/sanitized.cpp /tmp/libcuda.so -o /tmp/sanitized && /tmp/sanitized
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../image.h"
#include "../state.h"

using namespace emulated;

ADIT_CUDA cuInit(u32);
ADIT_CUDA cuDevicePrimaryCtxRetain(Handle*, int);
ADIT_CUDA cuDevicePrimaryCtxRelease_v2(int);
ADIT_CUDA cuCtxSetCurrent(Handle);
ADIT_CUDA cuCtxSynchronize();
ADIT_CUDA cuMemAlloc_v2(Address*, std::size_t);
ADIT_CUDA cuMemFree_v2(Address);
ADIT_CUDA cuMemHostAlloc(void**, std::size_t, u32);
ADIT_CUDA cuMemFreeHost(void*);
ADIT_CUDA cuMemcpyAsync(Address, Address, std::size_t, Handle);
ADIT_CUDA cuMemcpyHtoD_v2(Address, const void*, std::size_t);
ADIT_CUDA cuMemcpyDtoH_v2(void*, Address, std::size_t);
ADIT_CUDA cuStreamCreate(Handle*, u32);
ADIT_CUDA cuStreamDestroy_v2(Handle);
ADIT_CUDA cuStreamSynchronize(Handle);
ADIT_CUDA cuStreamWaitEvent(Handle, Handle, u32);
ADIT_CUDA cuStreamWriteValue32_v2(Handle, Address, u32, u32);
ADIT_CUDA cuStreamWaitValue32_v2(Handle, Address, u32, u32);
ADIT_CUDA cuEventCreate(Handle*, u32);
ADIT_CUDA cuEventRecord(Handle, Handle);
ADIT_CUDA cuEventSynchronize(Handle);
ADIT_CUDA cuEventDestroy_v2(Handle);
ADIT_CUDA cuModuleLoadData(Handle*, const void*);
ADIT_CUDA cuModuleGetFunction(Handle*, Handle, const char*);
ADIT_CUDA cuModuleUnload(Handle);
ADIT_CUDA cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, void**, void**);
ADIT_EXPORT void adit_emulated_report(Report*);

namespace {

constexpr u32 THREADS = 4;
constexpr u32 ROUNDS = 50;
constexpr u64 BYTES = 20000;

void need(bool holds, const char* what) {
    if (holds) { return; }
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
}

// Arguments of adit_poke in pinned memory: the address of a word, then the value.
void poke(Handle function, Handle stream, u64* arguments, Address word, u32 value) {
    arguments[0] = word;
    arguments[1] = value;
    u64 argument = reinterpret_cast<u64>(arguments);
    void* parameters[] = {&argument};
    const Result result = cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, stream, parameters, nullptr);
    need(result == SUCCESS, "a kernel is launched");
}

// Two streams pass a word and a copy back and forth, with memory freed as early as possible.
void round_trip(Handle function, u32 seed) {
    Handle first, second, event;
    Address memory;
    void* pinned;
    need(cuStreamCreate(&first, seed % 2) == SUCCESS && cuStreamCreate(&second, 1) == SUCCESS, "streams are made");
    need(cuEventCreate(&event, 0) == SUCCESS && cuMemAlloc_v2(&memory, BYTES) == SUCCESS, "so are an event and memory");
    need(cuMemHostAlloc(&pinned, BYTES, 3) == SUCCESS, "and pinned memory");
    std::memset(pinned, static_cast<int>(seed), BYTES);
    const Address host = reinterpret_cast<Address>(pinned);
    poke(function, first, static_cast<u64*>(pinned) + 8, memory, seed + 1);
    need(cuStreamWaitValue32_v2(second, memory, seed + 1, 1) == SUCCESS, "a stream waits for a kernel");
    need(cuMemcpyAsync(memory + 128, host + 128, BYTES - 128, second) == SUCCESS, "then copies");
    need(cuEventRecord(event, second) == SUCCESS && cuStreamWaitEvent(first, event, 0) == SUCCESS, "the other waits");
    need(cuStreamWriteValue32_v2(first, memory, seed, 0) == SUCCESS, "and writes");
    need(cuStreamDestroy_v2(second) == SUCCESS && cuStreamSynchronize(first) == SUCCESS, "and that ends");
    std::vector<u8> back(BYTES);
    need(cuMemcpyDtoH_v2(back.data(), memory, BYTES) == SUCCESS, "it is read back");
    need(back[0] == (seed & 0xff) && back[BYTES - 1] == static_cast<u8>(seed), "as it was written");
    need(cuEventSynchronize(event) == SUCCESS && cuEventDestroy_v2(event) == SUCCESS, "the event is over");
    need(cuMemFree_v2(memory) == SUCCESS && cuMemFree_v2(memory) != SUCCESS, "memory is freed once");
    need(cuMemFreeHost(pinned) == SUCCESS && cuStreamDestroy_v2(first) == SUCCESS, "nothing is left");
}

}  // namespace

int main() {
    Handle context, module, function;
    need(cuInit(0) == SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == SUCCESS, "there is a GPU");
    need(cuCtxSetCurrent(context) == SUCCESS, "it has a context");
    const std::string image = std::string(IMAGE_CUBIN) + " sm_90 13\nadit_poke\n";
    need(cuModuleLoadData(&module, image.c_str()) == SUCCESS, "a module is loaded");
    need(cuModuleGetFunction(&function, module, "adit_poke") == SUCCESS, "it has the kernel");
    std::vector<std::thread> threads;
    for (u32 thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([=] {
            need(cuCtxSetCurrent(context) == SUCCESS, "a thread takes the context");
            for (u32 round = 0; round < ROUNDS; ++round) { round_trip(function, thread * ROUNDS + round); }
        });
    }
    for (std::thread& thread : threads) { thread.join(); }
    need(cuCtxSynchronize() == SUCCESS && cuModuleUnload(module) == SUCCESS, "all is over");
    need(cuDevicePrimaryCtxRelease_v2(0) == SUCCESS, "the context goes");
    Report report;
    adit_emulated_report(&report);
    need(report.leaks == 0 && report.allocations == 0 && report.host_allocations == 0, "nothing leaked");
    need(report.misuses == THREADS * ROUNDS && report.stalls == 0, "only the second frees were refused");
    std::printf("%llu kernels, nothing leaked\n", static_cast<unsigned long long>(report.launches));
}
