// The first line of a program compiled by the emulated NVRTC: one of these words, the architecture, and the compiler's
// major version. module.cpp reads it, nvrtc.cpp writes it.
#pragma once

namespace emulated {

constexpr const char* IMAGE_CUBIN = "emulated-cubin";
constexpr const char* IMAGE_PTX = "emulated-ptx";

}  // namespace emulated
