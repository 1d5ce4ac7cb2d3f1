// A device with queues, a pool, control blocks, and the host's part in issuing them.
#pragma once
#include "harness.h"

namespace test {

// The prebuilt lists of a region, in the layout of driver/src/transfer/prebuilt.rs: 511 entries and the next page's
// address in each page, and a second list shifted by 256 entries.
class PrpLists {
public:
    explicit PrpLists(const Memory& region) : lists_{Memory(list_bytes(region)), Memory(list_bytes(region))} {
        for (u32 which = 0; which < 2; ++which) {
            u64* words = lists_[which].as<u64>();
            for (u64 word = 511; word < lists_[which].bytes() / 8; word += 512) {
                words[word] = lists_[which].address() + (word + 1) * 8;
            }
            for (u64 page = 0; page < region.bytes() / 4096; ++page) {
                const u64 place = page + which * 256;
                words[place + place / 511] = region.address() + page * 4096;
            }
        }
    }
    u64 list(u32 which) const { return lists_[which].address(); }
    ControllerRange range(u32 which) const { return {lists_[which].address(), lists_[which].bytes()}; }

private:
    static u64 list_bytes(const Memory& region) { return (region.bytes() / 4096 + 256) * 8 * 512 / 511 + 8192; }
    Memory lists_[2];
};

// The sizes that the host gives a ring of a shape (gpu/src/rings/ring_set.rs).
inline u32 cq_depth_of(const Shape& shape) { return shape.cq_depth == 0 ? 2 * shape.depth : shape.cq_depth; }
inline u32 cq_interval_of(const Shape& shape) { return (cq_depth_of(shape) + 3) / 4; }
inline u32 slots_of(const Shape& shape) {
    const u32 most = cq_depth_of(shape) - cq_interval_of(shape);
    return shape.depth - 1 < most ? shape.depth - 1 : most;
}
inline u64 reciprocal_of(u32 depth) { return static_cast<u64>((static_cast<unsigned __int128>(1) << 64) / depth); }

class World {
public:
    explicit World(const Shape& shape);
    World(const World&) = delete;
    World& operator=(const World&) = delete;
    ~World() { stop_controller(); }

    // The host's part.
    void fill(u32 block, u32 rounds = 1);
    void issue(u32 block) { store32_release_system(ADIT_FIELD(Iocb, iocb_address(block), issued), iocb(block).generation); }
    bool is_done(u32 block) const { return load32_acquire_system(host_.address() + 4 * block) == iocb(block).generation; }
    void await(u32 block) const;
    void run_issue(u32 warps, std::vector<u32> blocks);
    void start_controller(u32 warps);
    void stop_controller();
    void start_persistent(u32 warps);
    void stop_persistent();

    // Checks of the outcome.
    void check_statuses(u32 block, const std::function<bool(u32)>& allowed) const;
    void check_data(u32 block) const;
    void check_quiet() const;
    void check_counts() const;
    void await_completions() const;
    u64 commands() const;
    u64 failures(u32 block) const;

    Ring& ring(u32 index) const { return rings_.as<Ring>()[index]; }
    Iocb& iocb(u32 index) const { return iocbs_.as<Iocb>()[index]; }
    ControllerQueue& queue(u32 index) const { return queues_.as<ControllerQueue>()[index]; }
    const Context* contexts(u32 block) const { return contexts_.as<Context>() + block * shape.contexts; }
    const u32* statuses(u32 block) const { return statuses_.as<u32>() + block * shape.contexts; }
    u64 iocb_address(u32 block) const { return iocb_at(iocbs_.address(), block); }
    u64 uring_address() const { return uring_.address(); }
    ControllerArguments& controller() const { return *controller_.as<ControllerArguments>(); }

    Shape shape;

private:
    Memory& keep(u64 bytes) {
        kept_.push_back(std::make_unique<Memory>(bytes));
        return *kept_.back();
    }
    void make_ring(u32 index);
    void make_contexts();
    void make_controller();

    u64 lbas_;
    Random random_;
    Memory rings_, iocbs_, queues_, contexts_, statuses_, host_, media_, pool_, uring_, controller_, ranges_, regions_, words_;
    PrpLists lists_;
    std::vector<std::unique_ptr<Memory>> kept_;
    std::unique_ptr<Grid> controlling_, persisting_;
};

inline World::World(const Shape& given)
    : shape(given), lbas_(static_cast<u64>(given.blocks) * given.contexts * given.lbas_most), random_{given.seed},
      rings_(given.rings * sizeof(Ring)), iocbs_(given.blocks * sizeof(Iocb)), queues_(given.rings * sizeof(ControllerQueue)),
      contexts_(static_cast<u64>(given.blocks) * given.contexts * sizeof(Context)),
      statuses_(static_cast<u64>(given.blocks) * given.contexts * 4), host_(given.blocks * 4), media_(lbas_ << LBA_SHIFT),
      pool_((lbas_ << LBA_SHIFT) + 8192), uring_(sizeof(Uring)), controller_(sizeof(ControllerArguments)),
      ranges_(3 * sizeof(ControllerRange)), regions_(sizeof(Region)), words_(4096), lists_(pool_) {
    for (u32 index = 0; index < shape.rings; ++index) { make_ring(index); }
    make_contexts();
    make_controller();
    *uring_.as<Uring>() = {rings_.address(), iocbs_.address(), shape.rings, shape.blocks,
                           words_.address(), words_.address() + 64, {}};
}

inline void World::make_ring(u32 index) {
    const u32 depth = shape.depth, cq_depth = cq_depth_of(shape), slots = slots_of(shape);
    u32 slot_bits = 0;
    while ((1u << slot_bits) < slots) { ++slot_bits; }
    Memory& sq = keep(depth * 64ull);
    Memory& cq = keep(cq_depth * 16ull);
    Memory& published = keep(depth * 4ull);
    Memory& requests = keep(slots * 8ull);
    Memory& free_slots = keep((slots + 31) / 32 * 4ull);
    Memory& in_flight = keep(65536 / 8);
    const u64 doorbells = words_.address() + 128 + index * 8;
    for (u32 slot = 0; slot < slots; ++slot) { free_slots.as<u32>()[slot / 32] |= 1u << slot % 32; }
    // Entries as the previous lap would have left them.
    for (u64 position = shape.start; position < shape.start + depth; ++position) {
        published.as<u32>()[position % depth] = shape.start == 0 ? 0 : static_cast<u32>(position + 1 - depth);
    }
    for (u64 position = shape.start; position < shape.start + cq_depth; ++position) {
        cq.as<u32>()[position % cq_depth * 4 + 3] = static_cast<u32>(position / cq_depth & 1) << 16;
    }
    const u32 entry = static_cast<u32>(shape.start % depth), cq_entry = static_cast<u32>(shape.start % cq_depth);
    *reinterpret_cast<u32*>(doorbells) = entry;
    *reinterpret_cast<u32*>(doorbells + 4) = cq_entry;
    Ring& made = ring(index);
    made.sq = sq.address();
    made.cq = cq.address();
    made.sq_doorbell = doorbells;
    made.cq_doorbell = doorbells + 4;
    made.published = published.address();
    made.requests = requests.address();
    made.free_slots = free_slots.address();
    made.reciprocal = reciprocal_of(depth);
    made.cq_reciprocal = reciprocal_of(cq_depth);
    made.regions = regions_.address();
    made.depth = depth;
    made.cq_depth = cq_depth;
    made.slots = slots;
    made.qid = index + 1;
    made.nsid = 7;
    made.slot_bits = slot_bits;
    made.cq_interval = cq_interval_of(shape);
    made.lba_shift = LBA_SHIFT;
    made.form = shape.form;
    made.cq_in_host = shape.cq_in_host;
    made.ticket = made.rung = made.head = made.told = shape.start;
    ControllerQueue& served = queue(index);
    served.sq = sq.address();
    served.cq = cq.address();
    served.sq_doorbell = doorbells;
    served.cq_doorbell = doorbells + 4;
    served.in_flight = in_flight.address();
    served.depth = depth;
    served.cq_depth = cq_depth;
    served.qid = index + 1;
    served.sq_seen = served.tail = entry;
    served.cq_seen = cq_entry;
    served.sq_head = served.cq_tail = served.cq_head = shape.start;
}

// Gives each context its own LBAs and its own part of the pool.
inline void World::make_contexts() {
    *regions_.as<Region>() = {pool_.address(), {lists_.list(0), lists_.list(1)}, pool_.bytes()};
    // Inside a page, so that PRPs have offsets.
    const u64 from = pool_.address() + 512;
    for (u64 index = 0; index < static_cast<u64>(shape.blocks) * shape.contexts; ++index) {
        const u64 lba = index * shape.lbas_most;
        const u64 lbas_z = random_.below(shape.lbas_most);
        contexts_.as<Context>()[index] = {from + (lba << LBA_SHIFT), lba | lbas_z << 40 | (shape.writes ? 1ull << 63 : 0)};
    }
    u32* source = shape.writes ? reinterpret_cast<u32*>(from) : media_.as<u32>();
    for (u64 word = 0; word < lbas_ * LBA_WORDS; ++word) {
        source[word] = pattern(word / LBA_WORDS, static_cast<u32>(word % LBA_WORDS));
    }
}

inline void World::make_controller() {
    ControllerRange* ranges = ranges_.as<ControllerRange>();
    ranges[0] = {pool_.address(), pool_.bytes()};
    ranges[1] = lists_.range(0);
    ranges[2] = lists_.range(1);
    ControllerArguments& made = *controller_.as<ControllerArguments>();
    made.queues = queues_.address();
    made.ranges = ranges_.address();
    made.stop = words_.address() + 4;
    made.alive = words_.address() + 8;
    made.media = shape.media ? media_.address() : 0;
    made.lbas = lbas_;
    made.delay_ns = shape.delay_ns;
    made.queue_count = shape.rings;
    made.range_count = 3;
    made.nsid = 7;
    made.lba_shift = LBA_SHIFT;
    made.lbas_max = 4096;
    made.form = static_cast<u32>(shape.form);
    made.fault = static_cast<u32>(shape.fault);
    made.fault_every = shape.fault_every;
    made.fault_first = shape.fault_first;
}

// -------------------------------------------------------------------------------------------- the host's part

inline void World::fill(u32 block, u32 rounds) {
    const u64 at = iocb_address(block);
    const u32 generation = iocb(block).generation + 1;
    const u32 each = shape.rings_of_block == 0 ? shape.rings : shape.rings_of_block;
    for (u32 context = 0; context < shape.contexts; ++context) {
        statuses_.as<u32>()[block * shape.contexts + context] = PENDING;
    }
    // A late warp may read it meanwhile.
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, contexts), reinterpret_cast<u64>(contexts(block)));
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, statuses), reinterpret_cast<u64>(statuses(block)));
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, done_host), host_.address() + 4 * block);
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, timeout_ns), shape.timeout_ns);
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, total), static_cast<u64>(shape.contexts) * rounds);
    store32_relaxed_gpu(ADIT_FIELD(Iocb, at, count), shape.contexts);
    store32_relaxed_gpu(ADIT_FIELD(Iocb, at, first_ring), block * each % shape.rings);
    store32_relaxed_gpu(ADIT_FIELD(Iocb, at, ring_count), each);
    store32_relaxed_gpu(ADIT_FIELD(Iocb, at, generation), generation);
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, claimed), counted(generation, 0));
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, started_ns), 0);
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, remaining), counted(generation, static_cast<u64>(shape.contexts) * rounds));
    store64_relaxed_gpu(ADIT_FIELD(Iocb, at, failed), 0);
}

inline void World::await(u32 block) const {
    for (const u64 from = now_ns(); !is_done(block);) {
        CHECK(now_ns() - from < 2 * DEADLINE_NS, "block %u does not end: claimed %llx, remaining %llx", block,
              load64_relaxed_gpu(ADIT_FIELD(Iocb, iocb_address(block), claimed)),
              load64_relaxed_gpu(ADIT_FIELD(Iocb, iocb_address(block), remaining)));
        pause();
    }
}

// Issues blocks by a kernel, and waits for its end.
inline void World::run_issue(u32 warps, std::vector<u32> blocks) {
    std::vector<u32> generations;
    for (u32 block : blocks) { generations.push_back(iocb(block).generation); }
    IssueArguments arguments{uring_address(), reinterpret_cast<u64>(blocks.data()), reinterpret_cast<u64>(generations.data()),
                             static_cast<u32>(blocks.size()), 0};
    Grid(adit_issue, reinterpret_cast<u64>(&arguments), warps).join();
    for (u32 block : blocks) { CHECK(is_done(block), "the kernel ended before block %u", block); }
}

inline void World::start_controller(u32 warps) {
    store32_relaxed_system(controller().stop, 0);
    controlling_ = std::make_unique<Grid>(adit_controller, controller_.address(), warps);
}

inline void World::stop_controller() {
    store32_relaxed_system(controller().stop, 1);
    controlling_.reset();
}

inline void World::start_persistent(u32 warps) {
    store32_relaxed_system(uring_.as<Uring>()->stop, 0);
    persisting_ = std::make_unique<Grid>(adit_persist, uring_address(), warps);
}

inline void World::stop_persistent() {
    store32_relaxed_system(uring_.as<Uring>()->stop, 1);
    persisting_.reset();
}

// -------------------------------------------------------------------------------------------- what became of it

inline void World::check_statuses(u32 block, const std::function<bool(u32)>& allowed) const {
    for (u32 context = 0; context < shape.contexts; ++context) {
        const u32 status = statuses(block)[context];
        CHECK(allowed(status), "block %u context %u ended with %x", block, context, status);
    }
    // Late warps may still read it.
    const u64 remaining = load64_relaxed_gpu(ADIT_FIELD(Iocb, iocb_address(block), remaining));
    const u64 started_ns = load64_relaxed_gpu(ADIT_FIELD(Iocb, iocb_address(block), started_ns));
    CHECK(remaining == counted(iocb(block).generation, 0), "block %u remains %llx", block, remaining);
    CHECK(started_ns != 0 && iocb(block).ended_ns >= started_ns, "block %u has no times", block);
}

// Checks that the data of exactly the successful contexts is in place.
inline void World::check_data(u32 block) const {
    for (u32 index = 0; index < shape.contexts; ++index) {
        if (statuses(block)[index] != 0) { continue; }
        const Context& context = contexts(block)[index];
        const u64 lba = lba_of(context);
        const u32* moved = shape.writes ? media_.as<u32>() + lba * LBA_WORDS : reinterpret_cast<const u32*>(context.address);
        for (u32 word = 0; word < (lbas_z_of(context) + 1) * LBA_WORDS; ++word) {
            CHECK(moved[word] == pattern(lba + word / LBA_WORDS, word % LBA_WORDS), "block %u context %u word %u", block, index, word);
        }
    }
}

// Checks that every identifier is free, every posted entry was rung for, and the controller saw no bad command.
inline void World::check_quiet() const {
    for (u32 index = 0; index < shape.rings; ++index) {
        const Ring& quiet = ring(index);
        for (u32 slot = 0; slot < quiet.slots; ++slot) {
            CHECK(reinterpret_cast<u32*>(quiet.free_slots)[slot / 32] >> slot % 32 & 1, "ring %u slot %u is taken", index, slot);
            CHECK(state_of(reinterpret_cast<u64*>(quiet.requests)[slot]) == State::FREE, "ring %u slot %u", index, slot);
        }
        CHECK(quiet.poison == 0, "ring %u is out of service: %u, %llx", index, quiet.poison, quiet.poison_detail);
        CHECK(quiet.ticket == quiet.rung && quiet.rung == quiet.head, "ring %u: %llu, %llu, %llu", index, quiet.ticket, quiet.rung, quiet.head);
        CHECK(quiet.pending == 0 && quiet.harvesting == 0, "ring %u is held", index);
        for (u32 kind = 0; kind < BAD_KINDS; ++kind) {
            CHECK(queue(index).bad[kind] == 0, "queue %u saw %llu bad commands of kind %u", index, queue(index).bad[kind], kind);
        }
        CHECK(queue(index).commands == quiet.head - shape.start, "queue %u saw %llu commands of %llu", index,
              queue(index).commands, quiet.head - shape.start);
    }
}

// Checks that doorbells are as rare as they should be.
inline void World::check_counts() const {
    for (u32 index = 0; index < shape.rings; ++index) {
        const Ring& counted = ring(index);
        const u64 commands = counted.head - shape.start;
        CHECK(counted.cq_rings * counted.cq_depth <= commands * 4, "ring %u: %llu completion doorbells for %llu", index, counted.cq_rings, commands);
        CHECK(counted.sq_rings <= commands, "ring %u: %llu submission doorbells for %llu", index, counted.sq_rings, commands);
        CHECK(queue(index).full == 0, "queue %u: its completion ring was full at %llu looks of %llu", index, queue(index).full, queue(index).looks);
        CHECK(queue(index).sq_rings <= counted.sq_rings, "queue %u saw more doorbells than were rung", index);
    }
}

// Waits until everything posted has been harvested, whether or not a block waits for it.
inline void World::await_completions() const {
    for (u32 index = 0; index < shape.rings; ++index) {
        const u64 at = reinterpret_cast<u64>(&ring(index));
        for (const u64 from = now_ns(); load64_relaxed_gpu(ADIT_FIELD(Ring, at, head)) != load64_relaxed_gpu(ADIT_FIELD(Ring, at, ticket));) {
            CHECK(now_ns() - from < 2 * DEADLINE_NS, "no warp harvests ring %u", index);
            pause();
        }
    }
}

inline u64 World::commands() const {
    u64 all = 0;
    for (u32 index = 0; index < shape.rings; ++index) { all += queue(index).commands; }
    return all;
}

inline u64 World::failures(u32 block) const {
    u64 all = 0;
    for (u32 context = 0; context < shape.contexts; ++context) { all += statuses(block)[context] != 0; }
    return all;
}

}  // namespace test
