// The kernels, and those of the crate's example, built for the CPU from the same source as for a GPU.
#pragma GCC visibility push(default)
#include "../../device/kernels.cu"
#include "../../examples/beside/kernels.cu"
#pragma GCC visibility pop

namespace emulated {

void play_warp(void (*kernel)(unsigned long long), std::uint32_t warp, std::uint32_t warps, std::uint64_t argument) {
    adit::place() = {warp, warps};
    kernel(argument);
}

}  // namespace emulated
