// The persistent kernel: blocks are issued while it runs, it stops and continues, and others wait or abandon beside it.
//
// The program must fail with each known fault:
// canary: ADIT_BREAK_GENERATION a warp that comes late counts for the next use of a block
#include "world.h"

using namespace test;

namespace {

bool is_success(u32 status) { return status == 0; }

// Issues blocks repeatedly, in an order that a seed determines.
void issue_many(World& world, u32 uses, u64 seed) {
    Random random{seed};
    for (u32 use = 0; use < uses; ++use) {
        const u32 block = static_cast<u32>(random.below(world.shape.blocks));
        if (world.iocb(block).generation != 0) {
            world.await(block);
            world.check_statuses(block, is_success);
        }
        world.fill(block);
        world.issue(block);
    }
    for (u32 block = 0; block < world.shape.blocks; ++block) {
        if (world.iocb(block).generation != 0) { world.await(block); }
    }
}

void blocks_are_issued_while_it_runs() {
    for (u32 warps : {1u, 2u, 5u}) {
        for (u32 rings : {1u, 3u}) {
            Shape shape;
            shape.cq_in_host = warps == 5;
            shape.rings = rings;
            shape.depth = 20;
            shape.blocks = 35;
            shape.contexts = 40;
            World world(shape);
            world.start_controller(1);
            world.start_persistent(warps);
            issue_many(world, 100, warps * 10 + rings);
            world.stop_persistent();
            world.stop_controller();
            world.check_quiet();
            world.check_counts();
            CHECK(world.commands() == 100 * 40, "%llu commands", world.commands());
        }
    }
}

void what_was_known_of_a_use_that_is_over_counts_for_nothing() {
    World world(Shape{});
    world.start_controller(1);
    world.fill(0);
    const Uring uring = *reinterpret_cast<const Uring*>(world.uring_address());
    const Block over = block_view(uring.iocbs, 0, 1);
    world.run_issue(1, {0});
    for (bool filled : {false, true}) {
        if (filled) { world.fill(0); }
        const Iocb before = world.iocb(0);
        CHECK(claim(over, counted(1, 0), 5) == 0, "nothing is left of it");
        Block torn = over;
        torn.total *= 10;
        CHECK(claim(torn, load64_relaxed_gpu(ADIT_FIELD(Iocb, over.at, claimed)), 5) == 0, "half of it is of the next use");
        CHECK(post_some(ring_view(uring.rings), over, false) == 0, "nothing is sent");
        CHECK(!hold(over), "it is over");
        start_clock(over);
        end_unclaimed(over, Ended::NOT_SENT);
        give_up_overdue(uring.rings, uring.iocbs, 0, 1);
        CHECK(std::memcmp(&before, &world.iocb(0), sizeof before) == 0, "the block is as it was");
    }
    world.run_issue(1, {0});
    world.check_statuses(0, is_success);
    world.stop_controller();
    world.check_quiet();
}

void a_late_warp_changes_nothing_of_the_next_use() {
    // Uses so short that warps always find them over and reused.
    for (u64 seed = 1; seed <= 3; ++seed) {
        Shape shape;
        shape.depth = 8;
        shape.blocks = 2;
        shape.contexts = 1 + static_cast<u32>(seed % 3);
        shape.rings = 2;
        World world(shape);
        world.start_controller(1);
        world.start_persistent(6);
        issue_many(world, 600, seed);
        world.stop_persistent();
        world.stop_controller();
        world.check_quiet();
        CHECK(world.commands() == 600ull * shape.contexts, "%llu commands", world.commands());
    }
}

void it_stops_and_goes_on() {
    Shape shape;
    shape.rings = 2;
    shape.depth = 16;
    shape.blocks = 4;
    shape.contexts = 200;
    World world(shape);
    world.start_controller(1);
    for (u32 block = 0; block < 4; ++block) { world.fill(block), world.issue(block); }
    Random random{5};
    for (u32 start = 0; start < 60; ++start) {
        world.start_persistent(1 + start % 4);
        for (u64 wait = random.below(40); wait > 0; --wait) { pause(); }
        world.stop_persistent();
    }
    world.start_persistent(2);
    for (u32 block = 0; block < 4; ++block) { world.await(block), world.check_statuses(block, is_success), world.check_data(block); }
    world.stop_persistent();
    world.stop_controller();
    world.check_quiet();
    CHECK(world.commands() == 800, "%llu commands", world.commands());
}

void completions_wait_while_it_is_stopped() {
    Shape shape;
    shape.depth = 16;
    shape.contexts = 10;
    World world(shape);
    world.fill(0);
    world.issue(0);
    world.start_persistent(1);
    while (load64_relaxed_gpu(ADIT_FIELD(Ring, reinterpret_cast<u64>(&world.ring(0)), ticket)) < 10) { pause(); }
    world.stop_persistent();
    world.start_controller(1);
    const u64 answered = reinterpret_cast<u64>(&world.queue(0).completions);
    while (load64_relaxed_gpu(answered) < 10) { pause(); }
    CHECK(!world.is_done(0), "no warp harvests");
    world.start_persistent(1);
    world.await(0);
    world.stop_persistent();
    world.stop_controller();
    world.check_statuses(0, is_success);
    world.check_quiet();
}

void it_shows_that_it_is_alive() {
    World world(Shape{});
    const u64 alive = reinterpret_cast<const Uring*>(world.uring_address())->alive;
    world.start_persistent(2);
    const u32 from = load32_relaxed_system(alive);
    while (load32_relaxed_system(alive) - from < 3) { pause(); }
    world.stop_persistent();
    const u32 last = load32_relaxed_system(alive);
    CHECK(last >= from + 3, "it counts");
    world.start_persistent(1);
    while (load32_relaxed_system(alive) == last) { pause(); }
    world.stop_persistent();
}

void every_ring_is_harvested_by_few_warps() {
    Shape shape;
    shape.rings = 8;
    shape.depth = 4;
    shape.blocks = 8;
    shape.contexts = 25;
    shape.rings_of_block = 1;
    for (u32 warps : {1u, 2u, 3u, 4u, 6u}) {
        World world(shape);
        world.start_controller(2);
        world.start_persistent(warps);
        issue_many(world, 40, warps);
        world.stop_persistent();
        world.stop_controller();
        world.check_quiet();
    }
}

u32 wait_for(const World& world, std::vector<u32> blocks, std::vector<u32> generations, u64 timeout_ns) {
    u32 result = 7;
    WaitArguments arguments{world.uring_address(), reinterpret_cast<u64>(blocks.data()), reinterpret_cast<u64>(generations.data()),
                            reinterpret_cast<u64>(&result), timeout_ns, static_cast<u32>(blocks.size()), 0};
    Grid(adit_wait, reinterpret_cast<u64>(&arguments), 1).join();
    return result;
}

void a_waiter_sees_the_end_or_its_own_deadline() {
    Shape shape;
    shape.blocks = 40;
    shape.contexts = 5;
    World world(shape);
    std::vector<u32> blocks, generations;
    for (u32 block = 0; block < shape.blocks; ++block) {
        world.fill(block);
        world.issue(block);
        blocks.push_back(block);
        generations.push_back(1);
    }
    CHECK(wait_for(world, blocks, generations, 1000000) == 1, "no kernel runs");
    world.start_controller(1);
    world.start_persistent(2);
    CHECK(wait_for(world, blocks, generations, DEADLINE_NS) == 0, "they end");
    for (u32 block : blocks) { world.check_data(block), world.check_statuses(block, is_success); }
    CHECK(wait_for(world, {39}, {2}, 1000000) == 1, "its next use was not issued");
    CHECK(wait_for(world, {}, {}, 0) == 0, "nothing is over at once");
    world.stop_persistent();
}

void abandon(const World& world, std::vector<u32> blocks, u32 ended) {
    AbandonArguments arguments{world.uring_address(), reinterpret_cast<u64>(blocks.data()), static_cast<u32>(blocks.size()), ended};
    Grid(adit_abandon, reinterpret_cast<u64>(&arguments), 1).join();
}

void abandoned_blocks_end_at_once() {
    for (bool beside : {false, true}) {
        Shape shape;
        shape.depth = 16;
        shape.blocks = 3;
        shape.contexts = 10;
        World world(shape);
        for (u32 block = 0; block < 3; ++block) { world.fill(block), world.issue(block); }
        world.start_persistent(2);
        // No controller runs: all identifiers are in flight.
        while (load64_relaxed_gpu(ADIT_FIELD(Ring, reinterpret_cast<u64>(&world.ring(0)), ticket)) < 15) { pause(); }
        if (!beside) { world.stop_persistent(); }
        abandon(world, {2, 0}, Ended::TIMED_OUT);
        CHECK(world.is_done(0) && world.is_done(2) && !world.is_done(1), "those that were named end");
        for (u32 block : {0u, 2u}) {
            world.check_statuses(block, [](u32 status) { return status == Ended::TIMED_OUT || status == Ended::NOT_SENT; });
            CHECK(world.iocb(block).failed == 10, "%llu failed", world.iocb(block).failed);
        }
        // A finished use stays unchanged.
        abandon(world, {0}, Ended::RESET);
        world.check_statuses(0, [](u32 status) { return status != Ended::RESET; });
        if (!beside) { world.start_persistent(1); }
        world.start_controller(1);
        world.await(1);
        world.check_statuses(1, is_success);
        world.await_completions();
        world.stop_persistent();
        world.stop_controller();
        world.check_quiet();
        CHECK(world.ring(0).late == world.commands() - 10, "%llu came late", world.ring(0).late);
    }
}

void what_comes_late_is_harvested_although_no_block_is_issued() {
    Shape shape;
    shape.rings = 5;
    shape.depth = 9;
    shape.blocks = 5;
    shape.contexts = 8;
    shape.rings_of_block = 1;
    World world(shape);
    for (u32 block = 0; block < 5; ++block) { world.fill(block), world.issue(block); }
    world.start_persistent(1);
    for (u32 index = 0; index < 5; ++index) {
        while (load64_relaxed_gpu(ADIT_FIELD(Ring, reinterpret_cast<u64>(&world.ring(index)), ticket)) < 8) { pause(); }
    }
    abandon(world, {0, 1, 2, 3, 4}, Ended::TIMED_OUT);
    world.start_controller(1);
    world.await_completions();
    world.stop_persistent();
    world.stop_controller();
    for (u32 index = 0; index < 5; ++index) { CHECK(world.ring(index).late == 8, "ring %u: %llu", index, world.ring(index).late); }
    world.check_quiet();
}

void abandoning_races_with_completing() {
    Shape shape;
    shape.depth = 12;
    shape.blocks = 2;
    shape.contexts = 30;
    shape.rings = 2;
    World world(shape);
    world.start_controller(1);
    world.start_persistent(3);
    u64 gave_up = 0;
    for (u32 use = 0; use < 100; ++use) {
        for (u32 block : {0u, 1u}) { world.fill(block), world.issue(block); }
        for (u32 wait = use % 17; wait > 0; --wait) { pause(); }
        abandon(world, {0}, Ended::TIMED_OUT);
        for (u32 block : {0u, 1u}) { world.await(block); }
        world.check_statuses(0, [](u32 status) { return status == 0 || status == Ended::TIMED_OUT || status == Ended::NOT_SENT; });
        world.check_statuses(1, is_success);
        CHECK(world.iocb(0).failed == world.failures(0), "%llu failed", world.iocb(0).failed);
        gave_up += world.failures(0) != 0;
    }
    std::printf("  %llu of 100 uses were given up in part\n", gave_up);
    world.await_completions();
    world.stop_persistent();
    world.stop_controller();
    world.check_quiet();
}

void a_poisoned_ring_ends_blocks_of_a_running_kernel() {
    Shape shape;
    shape.fault = Fault::WRONG_QUEUE;
    shape.fault_first = 70;
    shape.fault_every = 100000;
    shape.blocks = 4;
    shape.contexts = 50;
    World world(shape);
    world.start_controller(1);
    world.start_persistent(3);
    for (u32 block = 0; block < 4; ++block) { world.fill(block), world.issue(block); }
    for (u32 block = 0; block < 4; ++block) {
        world.await(block);
        world.check_statuses(block, [](u32 status) { return status == 0 || status == Ended::RESET; });
        world.check_data(block);
    }
    world.stop_persistent();
    CHECK(world.ring(0).poison == static_cast<u32>(Poison::WRONG_QUEUE), "%u", world.ring(0).poison);
}

void the_other_kernels_do_what_they_say() {
    u32 word = 0;
    PokeArguments poke{reinterpret_cast<u64>(&word), 77, 0};
    Grid(adit_poke, reinterpret_cast<u64>(&poke), 1).join();
    CHECK(word == 77, "%u", word);
    std::vector<float> a(64), b(64), c(64);
    for (u32 cell = 0; cell < 64; ++cell) { a[cell] = static_cast<float>(cell % 5), b[cell] = static_cast<float>(cell % 7); }
    constexpr u32 WARPS = 2;
    std::vector<u64> times(2 * WARPS, ~0ull);
    ComputeArguments compute{reinterpret_cast<u64>(a.data()), reinterpret_cast<u64>(b.data()), reinterpret_cast<u64>(c.data()), 8, 2,
                             reinterpret_cast<u64>(times.data())};
    Grid(adit_compute, reinterpret_cast<u64>(&compute), WARPS).join();
    for (u32 warp = 0; warp < WARPS; ++warp) {
        const u64 all = times[2 * warp], longest = times[2 * warp + 1];
        CHECK(longest <= all && all <= 2 * longest && all != ~0ull, "warp %u", warp);
    }
    for (u32 cell = 0; cell < 64; ++cell) {
        float sum = 0;
        for (u32 k = 0; k < 8; ++k) { sum += a[cell / 8 * 8 + k] * b[k * 8 + cell % 8]; }
        CHECK(c[cell] == sum, "cell %u", cell);
    }
}

}  // namespace

int main() {
    RUN(what_was_known_of_a_use_that_is_over_counts_for_nothing);
    RUN(blocks_are_issued_while_it_runs);
    RUN(a_late_warp_changes_nothing_of_the_next_use);
    RUN(it_stops_and_goes_on);
    RUN(completions_wait_while_it_is_stopped);
    RUN(it_shows_that_it_is_alive);
    RUN(every_ring_is_harvested_by_few_warps);
    RUN(a_waiter_sees_the_end_or_its_own_deadline);
    RUN(abandoned_blocks_end_at_once);
    RUN(what_comes_late_is_harvested_although_no_block_is_issued);
    RUN(abandoning_races_with_completing);
    RUN(a_poisoned_ring_ends_blocks_of_a_running_kernel);
    RUN(the_other_kernels_do_what_they_say);
}
