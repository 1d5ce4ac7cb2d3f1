// Kernels of the example's own: a pattern of words, written and checked. Each takes the address of `Arguments`.
#include "platform.h"

namespace beside {

struct Arguments {
    u64 words;                // u32[count]
    u64 wrong;                // u64: words that are not as the pattern has them
    u32 count;
    u32 seed;
};
static_assert(sizeof(Arguments) == 24, "as main.rs has it");

inline u32 pattern(u32 seed, u64 index) { return seed + static_cast<u32>(index) * 2654435761u; }

// Calls the action with each index below `count`, shared out among all lanes of the grid.
template <class F> void each_word(u32 count, F&& action) {
    ADIT_EACH_LANE(lane) {
        const u64 step = static_cast<u64>(adit::warp_count()) * adit::LANES;
        for (u64 index = adit::warp_index() * adit::LANES + lane; index < count; index += step) { action(index); }
    }
}

}  // namespace beside

ADIT_KERNEL void beside_fill(u64 at) {
    const beside::Arguments arguments = *reinterpret_cast<const beside::Arguments*>(at);
    beside::each_word(arguments.count, [&](u64 index) {
        adit::store32_relaxed_gpu(arguments.words + 4 * index, beside::pattern(arguments.seed, index));
    });
}

ADIT_KERNEL void beside_check(u64 at) {
    const beside::Arguments arguments = *reinterpret_cast<const beside::Arguments*>(at);
    beside::each_word(arguments.count, [&](u64 index) {
        const u32 word = adit::load32_relaxed_gpu(arguments.words + 4 * index);
        if (word != beside::pattern(arguments.seed, index)) { adit::add64_relaxed_gpu(arguments.wrong, 1); }
    });
}
