// The kernels. Each takes one 64-bit argument: the address of its arguments, in memory that the GPU reads and that
// stays unchanged until the kernel has ended.
//
// A grid is any number of blocks of whole warps; warps do not depend on each other, so any number makes progress, but
// those of a block of adit_verify begin together.
#include "checksum.h"
#include "controller.h"
#include "uring.h"

namespace adit {

struct IssueArguments {
    u64 uring;
    u64 blocks;               // u32[count]: indices of control blocks
    u64 generations;          // u32[count]: their uses
    u32 count;
    u32 zero;
};
static_assert(sizeof(IssueArguments) == 32, "as gpu/src/layout.rs has it");

struct WaitArguments {
    u64 uring;
    u64 blocks;               // u32[count]
    u64 generations;          // u32[count]
    u64 result;               // u32: 0 all are over, 1 timeout
    u64 timeout_ns;
    u32 count;
    u32 zero;
};
static_assert(sizeof(WaitArguments) == 48, "as gpu/src/layout.rs has it");

struct AbandonArguments {
    u64 uring;
    u64 blocks;               // u32[count]
    u32 count;
    u32 ended;                // how commands in flight end: one of `Ended`
};
static_assert(sizeof(AbandonArguments) == 24, "as gpu/src/layout.rs has it");

struct PokeArguments {
    u64 address;
    u32 value;
    u32 zero;
};
static_assert(sizeof(PokeArguments) == 16, "as gpu/src/layout.rs has it");

// Arguments of adit_compute: matrices of n rows of n 32-bit floats.
struct ComputeArguments {
    u64 a, b, c;
    u32 n;                    // a multiple of 4
    u32 rounds;
    u64 times;                // u64[2 * warps], or 0: how long each warp took, and its longest round, in ns
};
static_assert(sizeof(ComputeArguments) == 40, "as tools/gpu/src/bench/compute.rs has it");

// Computes four rows of c = a * b in one column.
inline void multiply_rows(const ComputeArguments& arguments, u64 row, u64 column) {
    const float* a = reinterpret_cast<const float*>(arguments.a);
    const float* b = reinterpret_cast<const float*>(arguments.b);
    float* c = reinterpret_cast<float*>(arguments.c);
    const u64 n = arguments.n;
    float sums[4] = {0, 0, 0, 0};
    for (u64 k = 0; k < n; ++k) {
        const float factor = b[k * n + column];
        for (u64 next = 0; next < 4; ++next) { sums[next] += a[(row + next) * n + k] * factor; }
    }
    for (u64 next = 0; next < 4; ++next) { c[(row + next) * n + column] = sums[next]; }
}

}  // namespace adit

// Issues listed uses of blocks; ends when all are over.
ADIT_KERNEL void adit_issue(u64 at) {
    const adit::IssueArguments arguments = *reinterpret_cast<const adit::IssueArguments*>(at);
    const adit::Uring uring = *reinterpret_cast<const adit::Uring*>(arguments.uring);
    adit::issue_listed(uring, arguments.blocks, arguments.generations, arguments.count);
}

// Issues the blocks that the host issues, until `stop`. The argument is the address of the Uring.
ADIT_KERNEL void adit_persist(u64 at) {
    const adit::Uring uring = *reinterpret_cast<const adit::Uring*>(at);
    adit::persist(uring);
}

// Waits for listed uses of blocks. One warp.
ADIT_KERNEL void adit_wait(u64 at) {
    const adit::WaitArguments arguments = *reinterpret_cast<const adit::WaitArguments*>(at);
    const adit::Uring uring = *reinterpret_cast<const adit::Uring*>(arguments.uring);
    const bool over = adit::wait_blocks(uring.iocbs, arguments.blocks, arguments.generations, arguments.count,
                                        arguments.timeout_ns);
    adit::once([&] {
        adit::store32_release_system(arguments.result, over ? 0 : 1);
        return 0u;
    });
}

// Abandons everything that listed blocks have in flight or unsent. One warp.
ADIT_KERNEL void adit_abandon(u64 at) {
    const adit::AbandonArguments arguments = *reinterpret_cast<const adit::AbandonArguments*>(at);
    const adit::Uring uring = *reinterpret_cast<const adit::Uring*>(arguments.uring);
    adit::abandon_listed(uring, arguments.blocks, arguments.count, arguments.ended);
}

// Compares bytes with their checksums.
ADIT_KERNEL void adit_verify(u64 at) {
    const adit::VerifyArguments arguments = *reinterpret_cast<const adit::VerifyArguments*>(at);
    adit::verify_listed(arguments);
}

// Serves queues as an NVMe controller, until `stop`.
ADIT_KERNEL void adit_controller(u64 at) {
    const adit::ControllerArguments arguments = *reinterpret_cast<const adit::ControllerArguments*>(at);
    adit::control(arguments);
}

// Writes one word like a doorbell. One warp.
ADIT_KERNEL void adit_poke(u64 at) {
    const adit::PokeArguments arguments = *reinterpret_cast<const adit::PokeArguments*>(at);
    adit::once([&] {
        adit::fence_system();
        adit::store32_mmio(arguments.address, arguments.value);
        return 0u;
    });
}

// A compute load: c = a * b, repeatedly. Its warps time themselves.
ADIT_KERNEL void adit_compute(u64 at) {
    const adit::ComputeArguments arguments = *reinterpret_cast<const adit::ComputeArguments*>(at);
    const u64 n = arguments.n;
    const u64 begun = adit::now_ns();
    u64 longest = 0;
    u64 before = begun;
    for (u32 round = 0; round < arguments.rounds; ++round) {
        ADIT_EACH_LANE(lane) {
            const u64 step = static_cast<u64>(adit::warp_count()) * adit::LANES;
            for (u64 each = adit::warp_index() * adit::LANES + lane; each < n * n / 4; each += step) {
                adit::multiply_rows(arguments, each / n * 4, each % n);
            }
        }
        const u64 now = adit::now_ns();
        longest = now - before > longest ? now - before : longest;
        before = now;
    }
    if (arguments.times == 0) { return; }
    adit::once([&] {
        u64* times = reinterpret_cast<u64*>(arguments.times) + 2ull * adit::warp_index();
        times[0] = before - begun;
        times[1] = longest;
        return 0u;
    });
}
