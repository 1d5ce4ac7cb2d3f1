// Control blocks that warps work through together: claiming contexts, harvesting completions, deadlines, waiting.
//
// - A warp takes identifiers first and then as many contexts of a block (`claimed`). No context is claimed without
//   being posted, so a warp may return between two steps without losing any.
// - A command in flight is counted in its block's `remaining`. The warp that takes it out of flight (the harvester, or
//   one that abandons it) writes how it ended and then counts it off; the warp that counts off the last one completes
//   the block.
// - The warp that sets a ring's `harvesting` is its harvester: 32 lanes read 32 completions at once. Abandoning
//   commands of a ring takes the same word. Of completions in host memory, no other warp looks at any.
// - A block is not complete while a warp has something to count off for it: a warp that abandons it counts as a
//   command.
// - Nothing here waits for another warp, and only `wait_blocks` waits at all: callers loop until everything is over.
//
// A block ends by its completions, or at its deadline, or when its rings are out of service.
#pragma once
#include "ring.h"

namespace adit {

// A completion queue entry (Base 2.0 section 3.3.3.2).
constexpr u32 CQE_BYTES = 16;
// Most polls of a completion queue before a warp does something else.
constexpr u32 HARVEST_PASSES = 8;
// Most posts of a warp before it harvests.
constexpr u32 POST_PASSES = 8;
// Fewest commands that a warp posts together to a ring full of other warps' commands, so that one doorbell serves many:
// if no word of the map has that many identifiers, about half of the ring is in flight.
constexpr u32 POST_LEAST = 16;
// Steps without progress after which a warp takes any identifier, and how often it does so in any case: a prime, so
// that every ring has its turn. Identifiers of abandoned commands may leave no word with enough of them.
constexpr u32 PATIENCE_STEPS = 256;
constexpr u32 IMPATIENT_EVERY = 61;
// Steps between two reads of the stop word, which is in host memory.
constexpr u32 STOP_STEPS = 128;
// Matches every block.
constexpr u32 ANY_BLOCK = 0xffffffffu;

// A use of a block: its fields at the time of issue.
struct Block {
    u64 at;
    u64 contexts, statuses, timeout_ns, total;
    u64 started_ns;           // 0 if no warp had started its clock
    u32 index, generation, count, first_ring, ring_count;
};

// Reads a block. If the use ends meanwhile, the fields may belong to another; that has no effect, since `claimed` and
// `remaining` name the use they count for.
inline Block block_view(u64 iocbs, u32 index, u32 generation) {
    const u64 at = iocb_at(iocbs, index);
    // Starts all loads before using the first.
    const u64 contexts = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, contexts));
    const u64 statuses = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, statuses));
    const u64 timeout_ns = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, timeout_ns));
    const u64 total = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, total));
    const u64 started_ns = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, started_ns));
    const u32 count = load32_relaxed_gpu(ADIT_FIELD(Iocb, at, count));
    const u32 first_ring = load32_relaxed_gpu(ADIT_FIELD(Iocb, at, first_ring));
    const u32 ring_count = load32_relaxed_gpu(ADIT_FIELD(Iocb, at, ring_count));
    return {at, agree(contexts), agree(statuses), agree(timeout_ns), agree(total), agree(started_ns),
            index, generation, agree(count), agree(first_ring), agree(ring_count)};
}

inline bool is_over(u32 done, u32 generation) { return static_cast<int>(done - generation) >= 0; }

// Returns the ring of a block that this warp serves at a step; warps start at different ones.
inline u64 ring_of(u64 rings, const Block& block, u32 step) {
    return ring_at(rings, block.first_ring + (warp_index() + step) % block.ring_count);
}

// -------------------------------------------------------------------------------------------- ending

// The end of a command.
struct Ending {
    bool counts;              // whether its block waits for it
    u32 block;
    u32 context;
    u32 status;               // 0, a completion's status field, or one of `Ended`
};

// Reports the end of a block. Only the warp that counted off its last command calls this, once; nothing of the block is
// touched after `done_host`, since the host may reuse it.
inline void complete(u64 at) {
    const u32 generation = load32_relaxed_gpu(ADIT_FIELD(Iocb, at, generation));
    const u64 host = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, done_host));
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, ended_ns), now_ns());
    // A late warp finds nothing to claim, whatever total it has read.
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, claimed), counted(generation, COUNT_MAX));
    store32_release_system(ADIT_FIELD(Iocb, at, done), generation);
    if (host != 0) { store32_release_system(host, generation); }
}

// Counts off ended commands of a block, whose statuses are written.
inline void count_off(u64 at, u64 ended, u64 failed) {
    once([&] {
        if (failed != 0) { add64_relaxed_gpu(ADIT_FIELD(Iocb, at, failed), failed); }
        const u64 before = add64_acq_rel_gpu(ADIT_FIELD(Iocb, at, remaining), 0 - ended);
        if ((before & COUNT_MAX) == ended) { complete(at); }
        return 0u;
    });
}

// Writes how commands ended and counts them off, with two atomics per block among them.
inline void end_commands(u64 iocbs, const PerLane<Ending>& endings) {
    PerLane<bool> counts;
    PerLane<u32> blocks;
    ADIT_EACH_LANE(lane) {
        counts[lane] = endings[lane].counts;
        blocks[lane] = endings[lane].block;
    }
    for (u32 waiting = ballot(counts); waiting != 0;) {
        const u32 block = shuffle(blocks, first_lane(waiting));
        const u64 at = iocb_at(iocbs, block);
        const u64 statuses = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, statuses));
        const bool once_each = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, total)) == load32_relaxed_gpu(ADIT_FIELD(Iocb, at, count));
        PerLane<bool> its, bad;
        ADIT_EACH_LANE(lane) {
            const Ending ending = endings[lane];
            its[lane] = ending.counts && ending.block == block;
            bad[lane] = its[lane] && ending.status != 0;
            if (bad[lane] || (its[lane] && once_each)) {
                store32_relaxed_gpu(statuses + 4ull * ending.context, ending.status);
            }
        }
        const u32 these = ballot(its);
        count_off(at, population(these), population(ballot(bad)));
        waiting &= ~these;
    }
}

// -------------------------------------------------------------------------------------------- harvesting

// A completion as read by a lane, and the request it names.
struct Completion {
    u32 head_and_queue;       // dword 2: submission queue head, submission queue identifier
    u32 cid_and_status;       // dword 3: command identifier, phase, status
    u64 request;
};

inline u64 entry_address(const RingView& ring, u64 position) {
    return ring.cq + static_cast<u64>(cq_entry_of(ring, position)) * CQE_BYTES;
}

// Whether dword 3 of the entry at a position belongs to this lap: the first lap's phase is 1, the second's 0, and so
// on.
inline bool is_fresh(const RingView& ring, u64 position, u32 dword3) {
    return (dword3 >> 16 & 1) != (cq_laps_before(ring, position) & 1);
}

// A cheap, unordered check for a completion.
inline bool has_completion(const RingView& ring) {
    const u64 head = agree(load64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, head)));
    return agree(is_fresh(ring, head, load32_relaxed_system(entry_address(ring, head) + 12)));
}

inline bool try_harvesting(const RingView& ring) {
    return once([&] { return exchange32_acquire_gpu(ADIT_FIELD(Ring, ring.at, harvesting), 1); }) == 0;
}

inline void end_harvesting(const RingView& ring) {
    once([&] {
        store32_release_gpu(ADIT_FIELD(Ring, ring.at, harvesting), 0);
        return 0u;
    });
}

// Reads the completions from `head` on; returns their number.
inline u32 read_completions(const RingView& ring, u64 head, PerLane<Completion>& completions) {
    PerLane<bool> fresh;
    ADIT_EACH_LANE(lane) {
        const u32 dword3 = load32_acquire_system(entry_address(ring, head + lane) + 12);
        completions[lane].cid_and_status = dword3;
        // An entry that is fresh here is not fresh one lap further, so the run ends by itself, however small the ring.
        fresh[lane] = is_fresh(ring, head + lane, dword3);
    }
    const u32 count = trailing_ones(ballot(fresh));
    ADIT_EACH_LANE(lane) {
        if (lane >= count) { continue; }
        Completion& completion = completions[lane];
        const u32 slot = completion.cid_and_status & ((1u << ring.slot_bits) - 1);
        completion.head_and_queue = load32_relaxed_system(entry_address(ring, head + lane) + 8);
        completion.request = slot < ring.slots ? load64_relaxed_gpu(ring.requests + 8ull * slot) : 0;
    }
    return count;
}

// Returns the fault of a completion.
inline Poison wrong_with(const RingView& ring, const Completion& completion) {
    if (completion.head_and_queue >> 16 != ring.qid) { return Poison::WRONG_QUEUE; }
    if ((completion.head_and_queue & 0xffff) >= ring.depth) { return Poison::BAD_HEAD; }
    const u32 generation = (completion.cid_and_status & 0xffff) >> ring.slot_bits;
    if (state_of(completion.request) == State::FREE || generation_of(completion.request) != generation) {
        return Poison::UNKNOWN_COMMAND;
    }
    return Poison::NONE;
}

// Returns how many of the first `count` completions are valid; poisons the ring unless all are.
inline u32 check_completions(const RingView& ring, const PerLane<Completion>& completions, u32 count) {
    PerLane<bool> right;
    ADIT_EACH_LANE(lane) { right[lane] = lane < count && wrong_with(ring, completions[lane]) == Poison::NONE; }
    const u32 good = trailing_ones(ballot(right));
    ADIT_EACH_LANE(lane) {
        if (lane != good || lane >= count) { continue; }
        const Completion& wrong = completions[lane];
        poison(ring, wrong_with(ring, wrong), static_cast<u64>(wrong.cid_and_status) << 32 | wrong.head_and_queue);
    }
    return good;
}

// Takes the commands of the first `count` completions out of flight and frees their identifiers. Returns how many were
// abandoned.
inline u32 finish(const RingView& ring, const PerLane<Completion>& completions, u32 count, PerLane<Ending>& endings) {
    PerLane<bool> late, named;
    ADIT_EACH_LANE(lane) {
        if (lane >= count) { continue; }
        const Completion& completion = completions[lane];
        const u32 slot = completion.cid_and_status & ((1u << ring.slot_bits) - 1);
        const u64 free = request_of(State::FREE, generation_of(completion.request), 0, 0);
        const u64 was = exchange64_acq_rel_gpu(ring.requests + 8ull * slot, free);
        // Another of these completions names the same command.
        named[lane] = state_of(was) != State::FREE;
        late[lane] = state_of(was) == State::ABANDONED;
        endings[lane] = {state_of(was) == State::IN_FLIGHT, block_of(was), context_of(was), completion.cid_and_status >> 17};
    }
    const u32 freed = ballot(named);
    ADIT_EACH_LANE(lane) {
        if (lane >= count) { continue; }
        const Completion& completion = completions[lane];
        const u32 slot = completion.cid_and_status & ((1u << ring.slot_bits) - 1);
        if (freed >> lane & 1) {
            free_slots(ring, slot / 32, 1u << slot % 32);
        } else {
            poison(ring, Poison::UNKNOWN_COMMAND,
                   static_cast<u64>(completion.cid_and_status) << 32 | completion.head_and_queue);
        }
    }
    return population(ballot(late));
}

// State that a harvester keeps in registers while it has the ring.
struct Harvest {
    u64 head;
    u64 told;
    u64 late;
    u64 rings;
};

// Tells the device the head from time to time.
inline void tell(const RingView& ring, Harvest& harvest) {
    if (harvest.head - harvest.told < ring.cq_interval) { return; }
    harvest.told = harvest.head;
    ++harvest.rings;
    once([&] {
        // Keeps the device from overwriting entries before they were read.
        fence_system();
        store32_mmio(ring.cq_doorbell, cq_entry_of(ring, harvest.head));
        return 0u;
    });
}

// Harvests up to 32 completions. The caller must be the harvester.
inline u32 harvest_once(u64 iocbs, const RingView& ring, Harvest& harvest) {
    PerLane<Completion> completions;
    PerLane<Ending> endings;
    const u32 count = read_completions(ring, harvest.head, completions);
    const u32 good = check_completions(ring, completions, count);
    if (good == 0) { return 0; }
    harvest.head += good;
    // Before identifiers are freed: a command that takes one finds room for its completion.
    tell(ring, harvest);
    harvest.late += finish(ring, completions, good, endings);
    end_commands(iocbs, endings);
    return good;
}

// Makes this warp the harvester of a ring with completions; returns false if there are none or another warp is.
inline bool begin_harvest(const RingView& ring) {
    // A look at GPU memory costs less than the exchange; one over PCIe costs a round trip.
    if (!ring.cq_in_host) { return has_completion(ring) && try_harvesting(ring); }
    if (!try_harvesting(ring)) { return false; }
    if (has_completion(ring)) { return true; }
    end_harvesting(ring);
    return false;
}

// Harvests a ring unless it is empty or another warp does. Returns the number of completions.
inline u32 harvest(u64 iocbs, const RingView& ring) {
    if (!begin_harvest(ring)) { return 0; }
    const u64 head = load64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, head));
    const u64 told = load64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, told));
    Harvest harvest{agree(head), agree(told), 0, 0};
    u32 all = 0;
    for (u32 pass = 0; pass < HARVEST_PASSES && !is_poisoned(ring); ++pass) {
        const u32 count = harvest_once(iocbs, ring, harvest);
        all += count;
        if (count < LANES) { break; }
    }
    once([&] {
        const u64 late = ADIT_FIELD(Ring, ring.at, late), rings = ADIT_FIELD(Ring, ring.at, cq_rings);
        store64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, head), harvest.head);
        store64_relaxed_gpu(ADIT_FIELD(Ring, ring.at, told), harvest.told);
        if (harvest.late != 0) { store64_relaxed_gpu(late, load64_relaxed_gpu(late) + harvest.late); }
        if (harvest.rings != 0) { store64_relaxed_gpu(rings, load64_relaxed_gpu(rings) + harvest.rings); }
        return 0u;
    });
    end_harvesting(ring);
    return all;
}

// Harvests a ring until it is empty, at most one lap.
inline void harvest_all(u64 iocbs, const RingView& ring) {
    for (u32 harvested = 0; harvested < ring.depth; harvested += LANES) {
        if (harvest(iocbs, ring) == 0) { return; }
    }
}

// -------------------------------------------------------------------------------------------- giving up

// Abandons the commands of a block (or of any) in flight in a ring. Their identifiers stay taken until their
// completions arrive. Does nothing while another warp harvests the ring.
inline void give_up_in_flight(u64 iocbs, const RingView& ring, u32 block, u32 ended) {
    if (!try_harvesting(ring)) { return; }
    for (u32 first = 0; first < ring.slots; first += LANES) {
        PerLane<Ending> endings;
        ADIT_EACH_LANE(lane) {
            const u32 slot = first + lane;
            const u64 at = ring.requests + 8ull * slot;
            const u64 now = slot < ring.slots ? load64_relaxed_gpu(at) : 0;
            if (state_of(now) != State::IN_FLIGHT || (block != ANY_BLOCK && block_of(now) != block)) { continue; }
            const u64 given_up = request_of(State::ABANDONED, generation_of(now), block_of(now), context_of(now));
            const bool ours = compare_exchange64_acq_rel_gpu(at, now, given_up) == now;
            endings[lane] = {ours, block_of(now), context_of(now), ended};
        }
        end_commands(iocbs, endings);
    }
    end_harvesting(ring);
}

// Keeps a block's use from ending until `count_off(at, 1, 0)`; returns false if it is over.
inline bool hold(const Block& block) {
    return once([&] {
        const u64 at = ADIT_FIELD(Iocb, block.at, remaining);
        u64 now = load64_relaxed_gpu(at);
        while (counts_for(now, block.generation) && (now & COUNT_MAX) != 0) {
            const u64 before = compare_exchange64_acq_rel_gpu(at, now, now + 1);
            if (before == now) { return true; }
            now = before;
        }
        return false;
    });
}

// Whether the deadline has passed. Valid only while the use is not over.
inline bool is_overdue(u64 started_ns, u64 timeout_ns, u64 time_ns) {
    return started_ns != 0 && time_ns > started_ns && time_ns - started_ns >= timeout_ns;
}

// Returns the number of unclaimed contexts for a value of `claimed`.
inline u64 unclaimed(const Block& block, u64 claimed) {
    const u64 count = claimed & COUNT_MAX;
    return counts_for(claimed, block.generation) && count < block.total ? block.total - count : 0;
}

inline u32 context_at(const Block& block, u64 position) {
    return static_cast<u32>(block.total == block.count ? position : position % block.count);
}

// Ends all unclaimed contexts of a block.
inline void end_unclaimed(const Block& block, u32 ended) {
    const u64 left = once([&] {
        const u64 at = ADIT_FIELD(Iocb, block.at, claimed);
        u64 now = load64_relaxed_gpu(at);
        for (u64 before; unclaimed(block, now) != 0; now = before) {
            before = compare_exchange64_acq_rel_gpu(at, now, counted(block.generation, COUNT_MAX));
            if (before == now) { break; }
        }
        return unclaimed(block, now);
    });
    if (left == 0) { return; }
    const u32 contexts = static_cast<u32>(left < block.count ? left : block.count);
    for (u32 first = 0; first < contexts; first += LANES) {
        ADIT_EACH_LANE(lane) {
            if (first + lane >= contexts) { continue; }
            const u32 context = context_at(block, block.total - left + first + lane);
            store32_relaxed_gpu(block.statuses + 4ull * context, ended);
        }
    }
    count_off(block.at, left, left);
}

// Abandons a block: commands in flight end as `ended`, unclaimed contexts as `unsent`. What other warps are just
// posting stays, so the caller repeats this until the block is over.
inline void give_up(u64 rings, u64 iocbs, const Block& block, u32 ended, u32 unsent) {
    end_unclaimed(block, unsent);
    for (u32 ring = 0; ring < block.ring_count; ++ring) {
        const RingView view = ring_view(ring_of(rings, block, ring));
        // Commands that the device has completed are not late, however late they are polled.
        harvest_all(iocbs, view);
        give_up_in_flight(iocbs, view, block.index, ended);
    }
}

// Abandons a block if its deadline has passed.
inline void give_up_overdue(u64 rings, u64 iocbs, u32 index, u32 generation) {
    const Block before = block_view(iocbs, index, generation);
    if (!hold(before)) { return; }
    // The fields read before may belong to another use.
    const Block block = block_view(iocbs, index, generation);
    if (agree(is_overdue(block.started_ns, block.timeout_ns, now_ns()))) {
        give_up(rings, iocbs, block, Ended::TIMED_OUT, Ended::NOT_SENT);
    }
    count_off(block.at, 1, 0);
}

// -------------------------------------------------------------------------------------------- issuing

// Starts a block's clock, unless another warp has.
inline void start_clock(const Block& block) {
    if (block.started_ns != 0 || !hold(block)) { return; }
    once([&] { return compare_exchange64_acq_rel_gpu(ADIT_FIELD(Iocb, block.at, started_ns), 0, now_ns()); });
    count_off(block.at, 1, 0);
}

// Claims up to `wanted` consecutive contexts, not past the last; returns their position << 6 | number. `now` is a
// recent value of `claimed`.
inline u64 claim(const Block& block, u64 now, u32 wanted) {
    return once([&, now]() mutable {
        const u64 at = ADIT_FIELD(Iocb, block.at, claimed);
        for (;;) {
            u64 count = unclaimed(block, now);
            if (count == 0) { return 0ull; }
            const u64 position = now & COUNT_MAX;
            const u32 to_last = block.count - context_at(block, position);
            count = count < wanted ? count : wanted;
            count = count < to_last ? count : to_last;
            const u64 before = compare_exchange64_acq_rel_gpu(at, now, now + count);
            if (before == now) { return position << 6 | count; }
            now = before;
        }
    });
}

// Returns the fewest identifiers that a warp takes.
inline u32 least_slots(const RingView& ring, u32 wanted, bool patient) {
    u32 least = ring.depth / 4 < POST_LEAST ? ring.depth / 4 : POST_LEAST;
    least = least < wanted ? least : wanted;
    return patient && least != 0 ? least : 1;
}

inline bool is_patient(u32 idle, u32 step) { return idle < PATIENCE_STEPS && step % IMPATIENT_EVERY != 0; }

// Posts up to 32 contexts of a block through a ring; returns their number. Posts none if there is nothing to claim, too
// few identifiers, or the ring is out of service.
inline u32 post_some(const RingView& ring, const Block& block, bool patient) {
    const u64 seen = agree(load64_relaxed_gpu(ADIT_FIELD(Iocb, block.at, claimed)));
    const u64 left = unclaimed(block, seen);
    if (left == 0 || is_poisoned(ring)) { return 0; }
    const u32 wanted = left < LANES ? static_cast<u32>(left) : LANES;
    const Taken taken = take_slots(ring, wanted, least_slots(ring, wanted, patient), warp_index());
    if (taken.lanes == 0) { return 0; }
    const u64 claimed = claim(block, seen, population(taken.lanes));
    const u32 count = static_cast<u32>(claimed & 63);
    const u32 kept = lowest_of(taken.lanes, count);
    if (kept != taken.lanes) {
        once([&] {
            free_slots(ring, taken.word, taken.lanes ^ kept);
            return 0u;
        });
    }
    if (count == 0) { return 0; }
    post(ring, {taken.word, kept}, block.contexts, block.index, context_at(block, claimed >> 6));
    return count;
}

// Whether every ring of a block is out of service.
inline bool all_poisoned(u64 rings, const Block& block) {
    for (u32 ring = 0; ring < block.ring_count; ++ring) {
        if (agree(load32_relaxed_gpu(ADIT_FIELD(Ring, ring_of(rings, block, ring), poison))) == 0) { return false; }
    }
    return true;
}

// Posts contexts of a block through one of its rings; returns their number.
inline u32 work_on(u64 rings, const Block& block, u32 step, bool patient) {
    start_clock(block);
    const RingView ring = ring_view(ring_of(rings, block, step));
    u32 posted = 0;
    for (u32 pass = 0; pass < POST_PASSES; ++pass) {
        const u32 count = post_some(ring, block, patient);
        posted += count;
        if (count == 0) { break; }
    }
    if (posted == 0 && is_poisoned(ring) && all_poisoned(rings, block) && hold(block)) {
        end_unclaimed(block, Ended::RESET);
        count_off(block.at, 1, 0);
    }
    return posted;
}

// Harvests a ring; if it is out of service, ends its commands in flight. Returns the number of harvested commands.
inline u32 tend(u64 iocbs, u64 ring_address, bool anyone_waits) {
    const RingView ring = ring_view(ring_address);
    if (!is_poisoned(ring)) { return harvest(iocbs, ring); }
    if (anyone_waits) { give_up_in_flight(iocbs, ring, ANY_BLOCK, Ended::RESET); }
    return 0;
}

// -------------------------------------------------------------------------------------------- going round

// A warp's view of up to 32 uses of blocks, one per lane.
struct Survey {
    PerLane<u32> index, generation;
    u32 active;               // lanes whose use is not over
    u32 work;                 // of those, with unclaimed contexts
    u32 overdue;              // of those, past their deadline
};

// Reads the state of the uses that `survey` names, in the lanes of `active`.
inline void look(u64 iocbs, Survey& survey) {
    PerLane<bool> active, work, overdue;
    const u64 time_ns = now_ns();
    ADIT_EACH_LANE(lane) {
        if ((survey.active >> lane & 1) == 0) { continue; }
        const u64 at = iocb_at(iocbs, survey.index[lane]);
        const u64 claimed = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, claimed));
        const u64 total = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, total));
        const u64 started_ns = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, started_ns));
        const u64 timeout_ns = load64_relaxed_gpu(ADIT_FIELD(Iocb, at, timeout_ns));
        active[lane] = !is_over(load32_acquire_gpu(ADIT_FIELD(Iocb, at, done)), survey.generation[lane]);
        work[lane] = active[lane] && counts_for(claimed, survey.generation[lane]) && (claimed & COUNT_MAX) < total;
        overdue[lane] = active[lane] && is_overdue(started_ns, timeout_ns, time_ns);
    }
    survey.active = ballot(active);
    survey.work = ballot(work);
    survey.overdue = ballot(overdue);
    // Makes what each lane acquired visible to all: a ballot does not order memory.
    warp_sync();
}

// Chooses one of some lanes. Steps also choose rings and groups of blocks, so a product spreads the lanes (Fibonacci
// hashing): whatever factors steps share, each lane meets each ring.
inline u32 lane_for(u32 lanes, u32 step) {
    const u32 nth = (((warp_index() + step) * 0x9e3779b1u >> 16) * population(lanes)) >> 16;
    return first_lane(lanes & ~lowest_of(lanes, nth));
}

// Does the pending work for one use of each kind in a survey. Returns whether anything moved.
inline bool attend(u64 rings, u64 iocbs, const Survey& survey, u32 step, bool patient) {
    if (survey.active == 0) { return false; }
    u32 moved = 0;
    if (survey.work != 0) {
        const u32 lane = lane_for(survey.work, step);
        const Block block = block_view(iocbs, shuffle(survey.index, lane), shuffle(survey.generation, lane));
        moved += work_on(rings, block, step, patient);
    }
    const u32 lane = lane_for(survey.active, step);
    const Block block = block_view(iocbs, shuffle(survey.index, lane), shuffle(survey.generation, lane));
    moved += tend(iocbs, ring_of(rings, block, step), true);
    if (survey.overdue != 0) {
        const u32 late = lane_for(survey.overdue, step);
        give_up_overdue(rings, iocbs, shuffle(survey.index, late), shuffle(survey.generation, late));
    }
    return moved != 0;
}

// Reads up to 32 listed uses from `first` on.
inline void read_list(u64 blocks, u64 generations, u32 first, u32 count, Survey& survey) {
    ADIT_EACH_LANE(lane) {
        if (first + lane >= count) { continue; }
        survey.index[lane] = load32_relaxed_gpu(blocks + 4ull * (first + lane));
        survey.generation[lane] = load32_relaxed_gpu(generations + 4ull * (first + lane));
    }
}

// Returns the issued uses among up to 32 blocks from `first` on.
inline Survey survey_issued(u64 iocbs, u32 first, u32 count) {
    Survey survey{};
    PerLane<bool> issued;
    ADIT_EACH_LANE(lane) {
        if (first + lane >= count) { continue; }
        const u64 at = iocb_at(iocbs, first + lane);
        const u32 done = load32_relaxed_gpu(ADIT_FIELD(Iocb, at, done));
        survey.index[lane] = first + lane;
        survey.generation[lane] = load32_acquire_system(ADIT_FIELD(Iocb, at, issued));
        issued[lane] = survey.generation[lane] != done;
    }
    survey.active = ballot(issued);
    if (survey.active != 0) { look(iocbs, survey); }
    return survey;
}

// Works until all listed uses are over, by completion or at their deadlines, or until the host sets stop, which leaves
// the rest to be abandoned.
inline void issue_listed(const Uring& uring, u64 blocks, u64 generations, u32 count) {
    Survey survey{};
    // The list is in host memory: one that fits a warp is read once.
    read_list(blocks, generations, 0, count, survey);
    for (u32 step = 0, idle = 0;; ++step) {
        if (step % STOP_STEPS == 0 && agree(load32_relaxed_system(uring.stop)) != 0) { return; }
        bool over = true, moved = false;
        for (u32 first = 0; first < count; first += LANES) {
            if (count > LANES) { read_list(blocks, generations, first, count, survey); }
            survey.active = lowest(count - first);
            look(uring.iocbs, survey);
            over = over && survey.active == 0;
            moved = attend(uring.rings, uring.iocbs, survey, step, is_patient(idle, step)) || moved;
        }
        if (over) { return; }
        idle = moved ? 0 : idle + 1;
        if (!moved) { pause(); }
    }
}

// Works on issued blocks until the host sets stop. All state is in memory, so a later start continues.
inline void persist(const Uring& uring) {
    const u32 warp = warp_index();
    const u32 groups = (uring.iocb_count + LANES - 1) / LANES;
    for (u32 step = 0, idle = 0;; ++step) {
        if (step % STOP_STEPS == 0) {
            if (agree(load32_relaxed_system(uring.stop)) != 0) { return; }
            if (warp == 0 && uring.alive != 0) {
                once([&] {
                    store32_relaxed_system(uring.alive, load32_relaxed_system(uring.alive) + 1);
                    return 0u;
                });
            }
        }
        const u32 group = (warp + step) % groups;
        const Survey survey = survey_issued(uring.iocbs, group * LANES, uring.iocb_count);
        // Rings are counted by rounds of the groups, so that each group meets each ring.
        bool moved = attend(uring.rings, uring.iocbs, survey, step / groups, is_patient(idle, step));
        // All rings are polled in turn, by warps that start at different ones: abandoned commands complete late.
        const u64 ring = ring_at(uring.rings, (warp + step) % uring.ring_count);
        moved = tend(uring.iocbs, ring, survey.active != 0) != 0 || moved;
        idle = moved ? 0 : idle + 1;
        if (!moved) { pause(); }
    }
}

// -------------------------------------------------------------------------------------------- waiting and abandoning

// Waits until all listed uses are over; returns false if that takes longer than `timeout_ns`. For one warp of any
// kernel.
inline bool wait_blocks(u64 iocbs, u64 blocks, u64 generations, u32 count, u64 timeout_ns) {
    const u64 from_ns = now_ns();
    for (;;) {
        bool over = true;
        for (u32 first = 0; first < count && over; first += LANES) {
            PerLane<bool> done;
            ADIT_EACH_LANE(lane) {
                done[lane] = true;
                if (first + lane >= count) { continue; }
                const u64 at = iocb_at(iocbs, load32_relaxed_gpu(blocks + 4ull * (first + lane)));
                const u32 generation = load32_relaxed_gpu(generations + 4ull * (first + lane));
                done[lane] = is_over(load32_acquire_gpu(ADIT_FIELD(Iocb, at, done)), generation);
            }
            over = ballot(done) == ALL_LANES;
        }
        // Makes what other lanes acquired visible to each.
        warp_sync();
        if (over) { return true; }
        if (agree(now_ns() - from_ns >= timeout_ns)) { return false; }
        pause();
    }
}

// Most rounds of `abandon_listed` for a block: by then, what other warps were posting is in flight.
constexpr u32 ABANDON_ROUNDS = 10000;

// Abandons everything that the current uses of listed blocks have in flight or unsent.
inline void abandon_listed(const Uring& uring, u64 blocks, u32 count, u32 ended) {
    for (u32 each = 0; each < count; ++each) {
        const u32 index = agree(load32_relaxed_gpu(blocks + 4ull * each));
        const u64 at = iocb_at(uring.iocbs, index);
        const Block block = block_view(uring.iocbs, index, agree(load32_relaxed_gpu(ADIT_FIELD(Iocb, at, generation))));
        start_clock(block);
        for (u32 round = 0; round < ABANDON_ROUNDS && hold(block); ++round) {
            give_up(uring.rings, uring.iocbs, block, ended, ended == Ended::TIMED_OUT ? Ended::NOT_SENT : ended);
            count_off(block.at, 1, 0);
            pause();
        }
    }
}

}  // namespace adit
