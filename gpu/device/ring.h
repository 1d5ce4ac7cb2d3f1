// A queue pair that any number of warps fill and one at a time harvests.
//
// - A command identifier is a credit: there are at most depth - 1 of them, so the submission ring cannot overrun, and
//   the device's head is not needed. They are bits of a map; a warp takes up to 32 with one instruction.
// - A position (`ticket`) is an entry's place in the ring; `published` says that the entry is written. Positions are
//   taken after identifiers, so an entry's place is free.
// - The warp that raises `pending` from zero is the combiner, and rings for all consecutive published entries, its own
//   or not; all other warps return at once. It leaves when `pending` has not grown since it last read it. The order of
//   that one atomic decides, so no entry stays published without a ring.
// - The warp that sets `harvesting` is the harvester (uring.h).
// - An abandoned request is marked ABANDONED. Its identifier is freed by its completion, however late, or by the host,
//   which recreates the queue; nothing else may free it, since the device may still use the memory.
//
// A device that breaks the protocol poisons the ring: nothing is posted or harvested any more.
#pragma once
#include "layout.h"

namespace adit {

constexpr u32 SQE_BYTES = 64;
constexpr u32 OPCODE_WRITE = 1;
constexpr u32 OPCODE_READ = 2;
// PSDT: SGLs for data (Base 2.0 figure 88).
constexpr u32 PSDT_SGL = 1u << 14;
constexpr u64 PAGE = 4096;

// A ring's constants, in registers.
struct RingView {
    u64 at;
    u64 sq, cq, sq_doorbell, cq_doorbell, published, requests, free_slots, reciprocal, cq_reciprocal, regions;
    u32 depth, cq_depth, slots, qid, nsid, slot_bits, cq_interval, lba_shift, protection;
    Form form;
    bool cq_in_host;
};

inline RingView ring_view(u64 at) {
    const Ring* ring = reinterpret_cast<const Ring*>(at);
    return {at, ring->sq, ring->cq, ring->sq_doorbell, ring->cq_doorbell, ring->published, ring->requests,
            ring->free_slots, ring->reciprocal, ring->cq_reciprocal, ring->regions, ring->depth, ring->cq_depth,
            ring->slots, ring->qid, ring->nsid, ring->slot_bits, ring->cq_interval, ring->lba_shift, ring->protection,
            ring->form, ring->cq_in_host != 0};
}

// Returns the whole laps of a ring of `depth` entries before a position: exact for every 64-bit position, with one
// multiplication.
inline u64 laps_before(u64 position, u32 depth, u64 reciprocal) {
    u64 laps = multiply_high(position, reciprocal);
    // The reciprocal is rounded down, so this is the quotient or one less.
    return position - laps * depth >= depth ? laps + 1 : laps;
}

// Returns the entry of a position in the submission ring.
inline u32 entry_of(const RingView& ring, u64 position) {
    return static_cast<u32>(position - laps_before(position, ring.depth, ring.reciprocal) * ring.depth);
}

// Returns the laps of the completion ring before a position.
inline u64 cq_laps_before(const RingView& ring, u64 position) {
    return laps_before(position, ring.cq_depth, ring.cq_reciprocal);
}

inline u32 cq_entry_of(const RingView& ring, u64 position) {
    return static_cast<u32>(position - cq_laps_before(ring, position) * ring.cq_depth);
}

inline bool is_poisoned(const RingView& ring) {
    return agree(load32_relaxed_gpu(ADIT_FIELD(Ring, ring.at, poison))) != 0;
}

inline void poison(const RingView& ring, Poison why, u64 detail) {
    store64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, poison_detail), detail);
    store32_release_gpu(ADIT_FIELD(Ring, ring.at, poison), static_cast<u32>(why));
}

// -------------------------------------------------------------------------------------------- identifiers

// Slots taken by a warp: lane i has slot `word * 32 + i` if bit i of `lanes` is set.
struct Taken {
    u32 word;
    u32 lanes;
};

// Returns the `count` lowest set bits.
inline u32 lowest_of(u32 bits, u32 count) {
    if (population(bits) <= count) { return bits; }
    u32 rest = bits;
    for (; count > 0; --count) { rest &= rest - 1; }
    return bits ^ rest;
}

// Chooses the word to take from among 32 from `first` on, and returns its bits: the first with `wanted` bits, or else
// the first with `least`. The bits are empty if there is none.
inline Taken choose_word(const RingView& ring, u32 first, u32 words, u32 wanted, u32 least) {
    PerLane<u32> bits;
    PerLane<bool> all, some;
    ADIT_EACH_LANE(lane) {
        bits[lane] = lane < words ? load32_relaxed_gpu(ring.free_slots + 4 * ((first + lane) % words)) : 0;
        all[lane] = population(bits[lane]) >= wanted;
        some[lane] = population(bits[lane]) >= least;
    }
    const u32 with_all = ballot(all), with_some = ballot(some);
    if (with_some == 0) { return {0, 0}; }
    const u32 lane = first_lane(with_all != 0 ? with_all : with_some);
    return {(first + lane) % words, shuffle(bits, lane)};
}

// Takes up to `wanted` identifiers from a word of the map that has at least `least`, or none if there is no such word.
// `hint` spreads warps over the map. `least` is at least 1 and at most `wanted`.
inline Taken take_slots(const RingView& ring, u32 wanted, u32 least, u32 hint) {
    const u32 words = (ring.slots + 31) / 32;
    for (u32 looked = 0; looked < words; looked += LANES) {
        const Taken there = choose_word(ring, (hint + looked) % words, words, wanted, least);
        if (there.lanes == 0) { continue; }
        const u64 at = ring.free_slots + 4ull * there.word;
        const u32 pick = lowest_of(there.lanes, wanted);
        // Another warp may have been first, so take only the bits that were still set.
        const u32 lanes = once([&] { return and32_acquire_gpu(at, ~pick) & pick; });
        if (lanes != 0) { return {there.word, lanes}; }
    }
    return {0, 0};
}

// Frees slots of one word of the map.
inline void free_slots(const RingView& ring, u32 word, u32 lanes) {
    or32_release_gpu(ring.free_slots + 4ull * word, lanes);
}

// -------------------------------------------------------------------------------------------- entries

// Returns PRP2 of `bytes` from `address` on: nothing, the second page, or a run of the region's prebuilt list.
inline u64 second_prp(const RingView& ring, const Context& context, u64 bytes) {
    u64 offset = context.address % PAGE;
    u64 pages = (offset + bytes + PAGE - 1) / PAGE;
    u64 second = context.address - offset + PAGE;
    if (pages == 1) { return 0; }
    if (pages == 2) { return second; }
    const Region& region = reinterpret_cast<const Region*>(ring.regions)[region_of(context)];
    // The layout of driver/src/transfer/prebuilt.rs: 511 entries and a chain pointer per page. A short list comes from
    // the table in which it meets no chain pointer; a long one that would end on a page's last word comes from the
    // second.
    u64 entries = pages - 1;
    u64 page = (second - region.address) / PAGE;
    u64 word = page + page / 511;
    if (entries <= 256) {
        u64 phase = word / 256 % 2;
        return region.lists[phase] + (word + phase * 257) * 8;
    }
    u64 available = 512 - word % 512;
    if (entries < available || (entries - available) % 511 != 0) { return region.lists[0] + word * 8; }
    u64 shifted = page + 256;
    return region.lists[1] + (shifted + shifted / 511) * 8;
}

// Writes the 64 bytes of a read or write (NVM Command Set 1.0 sections 3.2.4, 3.2.6).
inline void write_entry(const RingView& ring, u64 position, u32 cid, const Context& context) {
    const u64 lba = lba_of(context);
    const u32 lbas_z = lbas_z_of(context);
    const u32 bytes = (lbas_z + 1) << ring.lba_shift;
    const bool sgl = ring.form == Form::SGL;
    // An SGL data block is its address, its length and type 0; PRPs are two addresses (Base 2.0 figures 96, 88).
    const u64 second = sgl ? bytes : second_prp(ring, context, bytes);
    const u32 opcode = is_write(context) ? OPCODE_WRITE : OPCODE_READ;
    const u64 at = ring.sq + static_cast<u64>(entry_of(ring, position)) * SQE_BYTES;
    store128(at, opcode | (sgl ? PSDT_SGL : 0) | cid << 16, ring.nsid, 0, 0);
    store128(at + 16, 0, 0, static_cast<u32>(context.address), static_cast<u32>(context.address >> 32));
    store128(at + 32, static_cast<u32>(second), static_cast<u32>(second >> 32), static_cast<u32>(lba),
             static_cast<u32>(lba >> 32));
    // Dword 14 is the expected reference tag with protection information, and otherwise reserved as zero.
    store128(at + 48, lbas_z | ring.protection, 0, ring.protection != 0 ? static_cast<u32>(lba) : 0, 0);
}

// -------------------------------------------------------------------------------------------- posting

// Returns the end of the consecutive published positions from `from` on.
inline u64 published_end(const RingView& ring, u64 from) {
    u64 end = from;
    for (;;) {
        PerLane<bool> there;
        ADIT_EACH_LANE(lane) {
            u64 position = end + lane;
            // An entry names its position, so the run ends within a lap.
            u64 at = ring.published + 4ull * entry_of(ring, position);
            there[lane] = load32_acquire_gpu(at) == static_cast<u32>(position + 1);
        }
        u32 run = trailing_ones(ballot(there));
        end += run;
        if (run < LANES) { return end; }
    }
}

// Rings for the consecutive published entries, if any.
inline void ring_published(const RingView& ring) {
    u64 rung = agree(load64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, rung)));
    u64 end = published_end(ring, rung);
    if (end == rung) { return; }
    once([&] {
        store64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, rung), end);
        u64 rings = ADIT_FIELD(Ring, ring.at, sq_rings);
        store64_relaxed_gpu(rings, load64_relaxed_gpu(rings) + 1);
        // Keeps the device from fetching an entry before it is written, whichever warp wrote it.
        fence_system();
        store32_mmio(ring.sq_doorbell, entry_of(ring, end));
        return 0u;
    });
}

// Rings for all warps until none has published since the last check. `seen` is what this warp added.
inline void combine(const RingView& ring, u32 seen) {
    for (;;) {
        ring_published(ring);
        u32 before = once([&] { return add32_acq_rel_gpu(ADIT_FIELD(Ring, ring.at, pending), 0u - seen); });
        if (before == seen) { return; }
        seen = before - seen;
    }
}

// Posts a control block's contexts from `first` on, one per taken identifier (at least one), and ensures that the
// device is told.
inline void post(const RingView& ring, const Taken& taken, u64 contexts, u32 block, u32 first) {
    const u32 count = population(taken.lanes);
    // Orders the entry's last use before this one: that many identifiers can only be taken again if the device has
    // fetched the old entry, and each taker saw that of its own.
    const u64 ticket = once([&] { return add64_acq_rel_gpu(ADIT_FIELD(Ring, ring.at, ticket), count); });
    ADIT_EACH_LANE(lane) {
        if ((taken.lanes >> lane & 1) == 0) { continue; }
        const u32 rank = population(taken.lanes & lanes_below(lane));
        const u32 slot = taken.word * 32 + lane;
        const Context context = load_context(contexts, first + rank);
        const u64 request = ring.requests + 8ull * slot;
        const u32 generation = (generation_of(load64_relaxed_gpu(request)) + 1) & (0xffffu >> ring.slot_bits);
        const u64 position = ticket + rank;
        write_entry(ring, position, generation << ring.slot_bits | slot, context);
        // After the entry, which has used the context: a warp that finds the request may abandon it, and the host may
        // refill the context.
        store64_relaxed_gpu(request, request_of(State::IN_FLIGHT, generation, block, first + rank));
        store32_release_gpu(ring.published + 4ull * entry_of(ring, position), static_cast<u32>(position + 1));
    }
    const u32 before = once([&] { return add32_acq_rel_gpu(ADIT_FIELD(Ring, ring.at, pending), count); });
    if (before == 0) { combine(ring, count); }
}

}  // namespace adit
