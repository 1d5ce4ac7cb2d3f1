// The base of the tests: rings, control blocks and a controller in this process's memory, grids of threads, checks.
//
// A thread plays each warp. The host's part (filling, issuing and reading a block) is done here as in gpu/src/uring.rs.
// Only the layout is shared with the code under test.
#pragma once
#include "canaries.h"
#include "../kernels.cu"
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace test {

using namespace adit;

// A status before its context has ended.
constexpr u32 PENDING = 0xffffffff;

#define CHECK(condition, ...)                                                       \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);    \
            std::fprintf(stderr, __VA_ARGS__);                                      \
            std::fprintf(stderr, "\n");                                             \
            std::abort();                                                           \
        }                                                                           \
    } while (0)

#define RUN(name)                   \
    do {                            \
        std::printf("%s\n", #name); \
        std::fflush(stdout);        \
        name();                     \
    } while (0)

// A small generator: the same numbers for the same seed.
struct Random {
    u64 state;
    u64 next() {
        state += 0x9e3779b97f4a7c15ull;
        u64 value = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
        value = (value ^ value >> 27) * 0x94d049bb133111ebull;
        return value ^ value >> 31;
    }
    u64 below(u64 end) { return next() % end; }
};

// Zeroed memory at a page boundary.
class Memory {
public:
    explicit Memory(u64 bytes) : bytes_((bytes + 4095) / 4096 * 4096), at_(std::aligned_alloc(4096, bytes_)) {
        std::memset(at_, 0, bytes_);
    }
    Memory(Memory&& other) noexcept : bytes_(other.bytes_), at_(other.at_) { other.at_ = nullptr; }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { std::free(at_); }
    u64 address() const { return reinterpret_cast<u64>(at_); }
    u64 bytes() const { return bytes_; }
    template <class T> T* as() const { return static_cast<T*>(at_); }

private:
    u64 bytes_;
    void* at_;
};

// Runs a kernel on threads; `join` waits for all.
class Grid {
public:
    Grid(void (*kernel)(u64), u64 argument, u32 warps) {
        for (u32 warp = 0; warp < warps; ++warp) {
            threads_.emplace_back([=] {
                place() = {warp, warps};
                kernel(argument);
            });
        }
    }
    void join() {
        for (auto& thread : threads_) { thread.join(); }
        threads_.clear();
    }
    ~Grid() { join(); }

private:
    std::vector<std::thread> threads_;
};

// Parameters of a world.
struct Shape {
    u32 rings = 1;
    u32 depth = 64;
    u32 cq_depth = 0;         // 0: twice `depth`
    u32 warps = 2;
    u32 blocks = 1;
    u32 contexts = 256;       // per block
    u32 lbas_most = 2;        // per context
    u64 start = 0;            // first position of each ring
    u64 timeout_ns = DEADLINE_NS;
    Form form = Form::SGL;
    Fault fault = Fault::NONE;
    u32 fault_every = 1;
    u32 fault_first = 0;
    u64 delay_ns = 0;
    bool writes = false;
    bool cq_in_host = false;
    bool media = true;
    u32 rings_of_block = 0;   // 0: all; otherwise blocks take turns
    u64 seed = 1;
};

// Returns the word that both the media and the pool hold at a place.
inline u32 pattern(u64 lba, u32 word) { return static_cast<u32>(lba * 2654435761u + word * 40503u + 12345u); }

constexpr u32 LBA_SHIFT = 9;
constexpr u32 LBA_WORDS = 128;

}  // namespace test
