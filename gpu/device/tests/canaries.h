// Known faults, one per macro, that the tests must detect: each breaks a guarantee the device code relies on.
//
// Without such a macro, this file only varies schedules.
#pragma once

#if defined(ADIT_BREAK_PUBLISH) || defined(ADIT_BREAK_HARVEST) || defined(ADIT_BREAK_COMBINE) || \
    defined(ADIT_BREAK_GENERATION) || defined(ADIT_BREAK_LANE)
#define ADIT_BROKEN 1
#else
#define ADIT_BROKEN 0
#endif
#if ADIT_BROKEN || defined(__SANITIZE_THREAD__)
#define ADIT_YIELDS 7
#endif

#include "../layout.h"

namespace test {

constexpr u64 SECOND_NS = 1000000000;
// Far beyond the time of any passing test.
constexpr u64 DEADLINE_NS = (ADIT_BROKEN ? 1 : 60) * SECOND_NS;

// A store still in flight when later ones are already visible: it lands with the next.
inline void late_store128(u64 at, u32 a, u32 b, u32 c, u32 d) {
    struct Store {
        u64 at;
        u32 words[4];
    };
    static thread_local Store before{0, {}};
    if (before.at != 0) { adit::store128(before.at, before.words[0], before.words[1], before.words[2], before.words[3]); }
    before = {at, {a, b, c, d}};
}

// A lock that admits all warps.
inline u32 no_lock(u64 at, u32 value) {
    adit::exchange32_acquire_gpu(at, value);
    return 0;
}

// A combiner that leaves although others have published since it checked.
inline u32 leave_early(u64 at, u32 value) {
    const u32 before = adit::add32_acq_rel_gpu(at, value);
    if (value <= adit::DEPTH_MAX) { return before; }
    adit::store32_relaxed_gpu(at, 0);
    return 0u - value;
}

}  // namespace test

#if defined(ADIT_BREAK_PUBLISH)
#define store128 ::test::late_store128
#endif
#if defined(ADIT_BREAK_HARVEST)
#define exchange32_acquire_gpu ::test::no_lock
#endif
#if defined(ADIT_BREAK_COMBINE)
#define add32_acq_rel_gpu ::test::leave_early
#endif
#if defined(ADIT_BREAK_GENERATION)
#define counts_for(word, generation) ((word) >= COUNT_MAX >> COUNT_BITS && (generation) != 0)
#endif
#if defined(ADIT_BREAK_LANE)
// The last lane's bytes do not count.
#define xor_lanes(values) (::adit::xor_lanes(values) ^ (values)[31])
#endif
