// The kernels, built for the CPU: the same source that a GPU gets.
#pragma GCC visibility push(default)
#if __has_include("../../device/kernels.cu")
#include "../../device/kernels.cu"
#else
#include "../../device/ring.h"
ADIT_KERNEL void adit_poke(u64 arguments) {
    const u64* words = adit::pointer<u64>(arguments);
    adit::store32_mmio(words[0], static_cast<u32>(words[1]));
}
#endif
#pragma GCC visibility pop

namespace emulated {

void play_warp(void (*kernel)(unsigned long long), std::uint32_t warp, std::uint32_t warps, std::uint64_t argument) {
    adit::place() = {warp, warps};
    kernel(argument);
}

}  // namespace emulated
