// The emulated driver's functions for the emulated gdrcopy.
#pragma once
#include "abi.h"

namespace emulated {

enum class GdrState : u32 { OK, ABSENT, REFUSED };

}  // namespace emulated

// The settings for gdrcopy, and the limit of its mappings.
ADIT_EXPORT emulated::GdrState adit_emulated_gdr(emulated::u64* bar1_bytes);
// The file behind live GPU memory, which the caller must not close, and the offset in it; -1 if there is none.
ADIT_EXPORT int adit_emulated_backing(emulated::Address address, emulated::u64 bytes, emulated::u64* offset);
// Adds to the number of pinned ranges.
ADIT_EXPORT void adit_emulated_count_pins(int more);
