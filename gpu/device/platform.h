// The platform of device code: words, atomics with a scope, fences, lanes, time.
//
// The same source is compiled twice: by NVRTC for a GPU, where these are PTX instructions (PTX ISA 8.x, memory
// consistency model), and by a C++17 compiler, where they are the compiler's atomics. Under NVRTC no header is
// included.
//
// Addresses are 64-bit integers throughout: they come from the host, and other agents write the memory behind them at
// the same time. All access goes through the functions here. Names give order and scope: `_gpu` is visible to this GPU,
// `_system` to the CPU and PCIe devices as well.
//
// A warp is 32 lanes that run the same code. On a GPU each lane is a thread; in C++ one thread plays all 32 in turn:
// PerLane<T> holds a value for each, ADIT_EACH_LANE runs its body for each, and code outside belongs to the warp.
// `ballot`, `shuffle`, `once`, `agree` and `xor_lanes` cross lanes; all lanes must reach them together.
#pragma once

#if defined(__CUDACC_RTC__)
#define ADIT_GPU 1
#define ADIT_KERNEL extern "C" __global__
using u32 = unsigned int;
using u64 = unsigned long long;
using u16 = unsigned short;
using u8 = unsigned char;
#else
#define ADIT_GPU 0
#define ADIT_KERNEL extern "C"
#include <cstdint>
#include <cstring>
#include <ctime>
#include <sched.h>
using u32 = std::uint32_t;
using u64 = unsigned long long;
using u16 = std::uint16_t;
using u8 = std::uint8_t;
static_assert(sizeof(u64) == 8, "an address has 64 bits");
#endif

// Returns the address of a field of a structure at an address.
#define ADIT_FIELD(type, at, field) (reinterpret_cast<u64>(&reinterpret_cast<::adit::type*>(at)->field))

namespace adit {

constexpr u32 LANES = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

// ---------------------------------------------------------------------------------------------- memory

#if ADIT_GPU

#define ADIT_LOAD(name, instruction, type, constraint)                                        \
    inline type name(u64 at) {                                                                \
        type value;                                                                           \
        asm volatile(instruction " %0, [%1];" : constraint(value) : "l"(at) : "memory");      \
        return value;                                                                         \
    }
#define ADIT_STORE(name, instruction, type, constraint)                                       \
    inline void name(u64 at, type value) {                                                    \
        asm volatile(instruction " [%0], %1;" ::"l"(at), constraint(value) : "memory");       \
    }
#define ADIT_UPDATE(name, instruction, type, output, input)                                   \
    inline type name(u64 at, type value) {                                                    \
        type before;                                                                          \
        asm volatile(instruction " %0, [%1], %2;"                                             \
                     : output(before) : "l"(at), input(value) : "memory");                    \
        return before;                                                                        \
    }

ADIT_LOAD(load32_relaxed_gpu, "ld.relaxed.gpu.global.u32", u32, "=r")
ADIT_LOAD(load32_acquire_gpu, "ld.acquire.gpu.global.u32", u32, "=r")
ADIT_LOAD(load32_relaxed_system, "ld.relaxed.sys.global.u32", u32, "=r")
ADIT_LOAD(load32_acquire_system, "ld.acquire.sys.global.u32", u32, "=r")
ADIT_LOAD(load64_relaxed_gpu, "ld.relaxed.gpu.global.u64", u64, "=l")
ADIT_LOAD(load64_acquire_gpu, "ld.acquire.gpu.global.u64", u64, "=l")
ADIT_LOAD(load64_relaxed_system, "ld.relaxed.sys.global.u64", u64, "=l")
ADIT_STORE(store32_relaxed_gpu, "st.relaxed.gpu.global.u32", u32, "r")
ADIT_STORE(store32_release_gpu, "st.release.gpu.global.u32", u32, "r")
ADIT_STORE(store32_relaxed_system, "st.relaxed.sys.global.u32", u32, "r")
ADIT_STORE(store32_release_system, "st.release.sys.global.u32", u32, "r")
ADIT_STORE(store64_relaxed_gpu, "st.relaxed.gpu.global.u64", u64, "l")
ADIT_STORE(store64_release_gpu, "st.release.gpu.global.u64", u64, "l")
ADIT_STORE(store64_relaxed_system, "st.relaxed.sys.global.u64", u64, "l")
// A doorbell: one access of exactly this width, in order behind a fence, never merged (PTX ISA: .mmio).
ADIT_STORE(store32_mmio, "st.mmio.relaxed.sys.global.u32", u32, "r")
ADIT_UPDATE(add32_relaxed_gpu, "atom.relaxed.gpu.global.add.u32", u32, "=r", "r")
ADIT_UPDATE(add32_acq_rel_gpu, "atom.acq_rel.gpu.global.add.u32", u32, "=r", "r")
ADIT_UPDATE(add64_relaxed_gpu, "atom.relaxed.gpu.global.add.u64", u64, "=l", "l")
ADIT_UPDATE(add64_acq_rel_gpu, "atom.acq_rel.gpu.global.add.u64", u64, "=l", "l")
ADIT_UPDATE(and32_acquire_gpu, "atom.acquire.gpu.global.and.b32", u32, "=r", "r")
ADIT_UPDATE(or32_release_gpu, "atom.release.gpu.global.or.b32", u32, "=r", "r")
ADIT_UPDATE(exchange32_acquire_gpu, "atom.acquire.gpu.global.exch.b32", u32, "=r", "r")
ADIT_UPDATE(exchange64_acq_rel_gpu, "atom.acq_rel.gpu.global.exch.b64", u64, "=l", "l")

// Stores `desired` if the word is `expected`; returns the previous value.
inline u64 compare_exchange64_acq_rel_gpu(u64 at, u64 expected, u64 desired) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before) : "l"(at), "l"(expected), "l"(desired) : "memory");
    return before;
}

// Keeps later writes from being visible to the CPU or a device before what this thread wrote, or saw written, earlier.
inline void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Keeps this thread's later copies by TMA (`cp.async.bulk`) from reading global memory as it was before what the thread
// has seen written: they go through the async proxy, which no acquire orders. For kernels that wait (`wait_blocks`), in
// the thread that copies; sm_90 and newer.
inline void fence_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Four words at a 16-byte boundary; unordered.
inline void store128(u64 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
inline void load128(u64 at, u32* words) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(at) : "memory");
}

#undef ADIT_LOAD
#undef ADIT_STORE
#undef ADIT_UPDATE

#else

#if defined(ADIT_YIELDS)
// Occasionally lets another warp run before an access, so that tests see many schedules; ADIT_YIELDS is the seed.
inline void disturb() {
    static thread_local u64 state = ADIT_YIELDS * 2 + reinterpret_cast<std::uintptr_t>(&state) * 2 + 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    if (state >> 57 == 0) { sched_yield(); }
}
#else
inline void disturb() {}
#endif

template <class T> T* pointer(u64 at) {
    disturb();
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(at));
}

#define ADIT_LOAD(name, type, order) \
    inline type name(u64 at) { return __atomic_load_n(pointer<type>(at), order); }
#define ADIT_STORE(name, type, order) \
    inline void name(u64 at, type value) { __atomic_store_n(pointer<type>(at), value, order); }
#define ADIT_UPDATE(name, type, builtin, order) \
    inline type name(u64 at, type value) { return builtin(pointer<type>(at), value, order); }

ADIT_LOAD(load32_relaxed_gpu, u32, __ATOMIC_RELAXED)
ADIT_LOAD(load32_acquire_gpu, u32, __ATOMIC_ACQUIRE)
ADIT_LOAD(load32_relaxed_system, u32, __ATOMIC_RELAXED)
ADIT_LOAD(load32_acquire_system, u32, __ATOMIC_ACQUIRE)
ADIT_LOAD(load64_relaxed_gpu, u64, __ATOMIC_RELAXED)
ADIT_LOAD(load64_acquire_gpu, u64, __ATOMIC_ACQUIRE)
ADIT_LOAD(load64_relaxed_system, u64, __ATOMIC_RELAXED)
ADIT_STORE(store32_relaxed_gpu, u32, __ATOMIC_RELAXED)
ADIT_STORE(store32_release_gpu, u32, __ATOMIC_RELEASE)
ADIT_STORE(store32_relaxed_system, u32, __ATOMIC_RELAXED)
ADIT_STORE(store32_release_system, u32, __ATOMIC_RELEASE)
ADIT_STORE(store64_relaxed_gpu, u64, __ATOMIC_RELAXED)
ADIT_STORE(store64_release_gpu, u64, __ATOMIC_RELEASE)
ADIT_STORE(store64_relaxed_system, u64, __ATOMIC_RELAXED)
// The store itself contains the fence that precedes it on a GPU, because ThreadSanitizer does not support fences.
ADIT_STORE(store32_mmio, u32, __ATOMIC_RELEASE)
ADIT_UPDATE(add32_relaxed_gpu, u32, __atomic_fetch_add, __ATOMIC_RELAXED)
ADIT_UPDATE(add32_acq_rel_gpu, u32, __atomic_fetch_add, __ATOMIC_ACQ_REL)
ADIT_UPDATE(add64_relaxed_gpu, u64, __atomic_fetch_add, __ATOMIC_RELAXED)
ADIT_UPDATE(add64_acq_rel_gpu, u64, __atomic_fetch_add, __ATOMIC_ACQ_REL)
ADIT_UPDATE(and32_acquire_gpu, u32, __atomic_fetch_and, __ATOMIC_ACQUIRE)
ADIT_UPDATE(or32_release_gpu, u32, __atomic_fetch_or, __ATOMIC_RELEASE)
ADIT_UPDATE(exchange32_acquire_gpu, u32, __atomic_exchange_n, __ATOMIC_ACQUIRE)
ADIT_UPDATE(exchange64_acq_rel_gpu, u64, __atomic_exchange_n, __ATOMIC_ACQ_REL)

inline u64 compare_exchange64_acq_rel_gpu(u64 at, u64 expected, u64 desired) {
    __atomic_compare_exchange_n(pointer<u64>(at), &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}

inline void fence_system() {}

inline void store128(u64 at, u32 a, u32 b, u32 c, u32 d) {
    const u32 words[4] = {a, b, c, d};
    std::memcpy(reinterpret_cast<void*>(at), words, sizeof words);
}
inline void load128(u64 at, u32* words) { std::memcpy(words, reinterpret_cast<const void*>(at), 16); }

#undef ADIT_LOAD
#undef ADIT_STORE
#undef ADIT_UPDATE

#endif

// ---------------------------------------------------------------------------------------------- lanes

#if ADIT_GPU

inline u32 lane_index() { return threadIdx.x % LANES; }
// Warps of a grid are numbered from 0; blocks are whole warps.
inline u32 warp_index() { return (blockIdx.x * blockDim.x + threadIdx.x) / LANES; }
inline u32 warp_count() { return gridDim.x * blockDim.x / LANES; }

template <class T> struct PerLane {
    T value{};
    T& operator[](u32) { return value; }
    const T& operator[](u32) const { return value; }
};

#define ADIT_EACH_LANE(lane) \
    for (u32 lane = ::adit::lane_index(), adit_once = 1; adit_once != 0; adit_once = 0)

inline void warp_sync() { __syncwarp(ALL_LANES); }
// Returns a bit for each lane whose value is true.
inline u32 ballot(const PerLane<bool>& values) { return __ballot_sync(ALL_LANES, values.value); }
template <class T> T shuffle(const PerLane<T>& values, u32 from) { return __shfl_sync(ALL_LANES, values.value, from); }
// Runs the action on lane 0, after everything all lanes did before; returns the result to all.
template <class F> auto once(F&& action) -> decltype(action()) {
    warp_sync();
    decltype(action()) result{};
    if (lane_index() == 0) { result = action(); }
    // Makes what lane 0 acquired visible to all lanes: a shuffle alone does not order memory.
    warp_sync();
    return __shfl_sync(ALL_LANES, result, 0);
}
// Returns lane 0's value to all: lanes may read a concurrently written word differently.
template <class T> T agree(T value) { return __shfl_sync(ALL_LANES, value, 0); }
// Returns the sum over GF(2) of all lanes' values.
inline u32 xor_lanes(const PerLane<u32>& values) { return __reduce_xor_sync(ALL_LANES, values.value); }
// Returns a copy of constants in the block's shared memory, where lanes read different words at once. All threads of the
// block must reach it together; T is whole words.
template <class T> const T& block_copy(const T& constants) {
    __shared__ T copy;
    const u32* from = reinterpret_cast<const u32*>(&constants);
    u32* to = reinterpret_cast<u32*>(&copy);
    for (u32 word = threadIdx.x; word < sizeof(T) / 4; word += blockDim.x) { to[word] = from[word]; }
    __syncthreads();
    return copy;
}
inline u32 population(u32 bits) { return __popc(bits); }
// Returns the number of ones from bit 0 on.
inline u32 trailing_ones(u32 bits) { return bits == ALL_LANES ? LANES : __ffs(~bits) - 1; }
inline u64 multiply_high(u64 a, u64 b) { return __umul64hi(a, b); }
inline u64 now_ns() { u64 time; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time)); return time; }
inline void pause() { __nanosleep(100); }

#else

// Set by the code that plays the grid, one C++ thread for each warp.
struct Place { u32 warp_index; u32 warp_count; };
inline Place& place() { static thread_local Place here{0, 1}; return here; }
inline u32 warp_index() { return place().warp_index; }
inline u32 warp_count() { return place().warp_count; }

template <class T> struct PerLane {
    T value[LANES]{};
    T& operator[](u32 lane) { return value[lane]; }
    const T& operator[](u32 lane) const { return value[lane]; }
};

#define ADIT_EACH_LANE(lane) for (u32 lane = 0; lane < ::adit::LANES; ++lane)

inline void warp_sync() {}
inline u32 ballot(const PerLane<bool>& values) {
    u32 bits = 0;
    for (u32 lane = 0; lane < LANES; ++lane) { bits |= static_cast<u32>(values[lane]) << lane; }
    return bits;
}
template <class T> T shuffle(const PerLane<T>& values, u32 from) { return values[from]; }
template <class F> auto once(F&& action) -> decltype(action()) { return action(); }
template <class T> T agree(T value) { return value; }
inline u32 xor_lanes(const PerLane<u32>& values) {
    u32 sum = 0;
    for (u32 lane = 0; lane < LANES; ++lane) { sum ^= values[lane]; }
    return sum;
}
template <class T> const T& block_copy(const T& constants) { return constants; }
inline u32 population(u32 bits) { return static_cast<u32>(__builtin_popcount(bits)); }
inline u32 trailing_ones(u32 bits) { return bits == ALL_LANES ? LANES : static_cast<u32>(__builtin_ctz(~bits)); }
inline u64 multiply_high(u64 a, u64 b) { return static_cast<u64>((static_cast<unsigned __int128>(a) * b) >> 64); }
inline u64 now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<u64>(time.tv_sec) * 1000000000ull + static_cast<u64>(time.tv_nsec);
}
inline void pause() { sched_yield(); }

#endif

// Returns the bits below `lane`.
inline u32 lanes_below(u32 lane) { return (1u << lane) - 1; }
// Returns the lowest lane of a nonempty mask.
inline u32 first_lane(u32 lanes) { return trailing_ones((lanes - 1) & ~lanes); }
// Returns the n lowest lanes.
inline u32 lowest(u32 lanes) { return lanes >= LANES ? ALL_LANES : (1u << lanes) - 1; }

}  // namespace adit
