// Fairness: rings, control blocks and devices that share warps do not keep each other from progressing.
#include "world.h"

using namespace test;

namespace {

constexpr u64 MS = 1000000;
constexpr u64 LONG_NS = 20000 * MS;

Shape shape_of(u32 rings, u32 depth, u32 blocks, u32 contexts) {
    Shape shape;
    shape.rings = rings;
    shape.depth = depth;
    shape.blocks = blocks;
    shape.contexts = contexts;
    shape.timeout_ns = LONG_NS;
    shape.media = false;
    return shape;
}

void every_ring_is_posted_to_with_more_blocks_than_lanes() {
    World world(shape_of(4, 64, 64, 200));
    world.start_controller(1);
    world.start_persistent(2);
    for (u32 round = 0; round < 5; ++round) {
        for (u32 block = 0; block < 4; ++block) {
            world.fill(block);
            world.issue(block);
        }
        for (u32 block = 0; block < 4; ++block) { world.await(block); }
    }
    world.stop_persistent();
    world.stop_controller();
    for (u32 ring = 0; ring < 4; ++ring) {
        CHECK(world.ring(ring).ticket > 0, "ring %u of 4 has none of 4000 commands", ring);
    }
    world.check_quiet();
}

void a_short_block_does_not_wait_for_a_long_one() {
    World world(shape_of(2, 64, 64, 200));
    world.start_controller(1);
    world.start_persistent(2);
    world.fill(0, 1000);
    world.issue(0);
    while (load64_relaxed_gpu(ADIT_FIELD(Iocb, world.iocb_address(0), started_ns)) == 0) { pause(); }
    world.fill(1);
    world.issue(1);
    world.await(1);
    CHECK(!world.is_done(0), "the long block of 200000 commands was over first");
    world.await(0);
    world.stop_persistent();
    world.stop_controller();
    world.check_quiet();
}

// Two devices with two rings each; only the first answers.
void a_dead_device_does_not_take_a_healthy_ones_time() {
    Shape shape = shape_of(4, 256, 2, 100);
    shape.rings_of_block = 2;
    shape.timeout_ns = 2000 * MS;
    World world(shape);
    world.controller().queue_count = 2;
    world.start_controller(1);
    world.fill(0, 100);
    world.fill(1);
    world.run_issue(2, {1, 0});
    world.stop_controller();
    CHECK(world.iocb(0).failed == 0, "%llu of the healthy device's commands failed", world.iocb(0).failed);
    CHECK(world.iocb(1).failed == 100, "%llu of the dead device's commands failed", world.iocb(1).failed);
}

// Waits until the device has completed everything posted to a ring in its first lap, which stays unharvested.
void await_first_lap(const World& world, u32 index) {
    const RingView ring = ring_view(reinterpret_cast<u64>(&world.ring(index)));
    const u64 last = world.ring(index).ticket - 1;
    while (!is_fresh(ring, last, load32_acquire_system(entry_address(ring, last) + 12))) { pause(); }
}

// The device completes everything and the deadline passes before any warp polls.
void what_was_completed_before_the_deadline_is_not_late() {
    Shape shape = shape_of(4, 64, 1, 200);
    shape.timeout_ns = 300 * MS;
    World world(shape);
    const Uring uring = *reinterpret_cast<const Uring*>(world.uring_address());
    world.fill(0);
    const Block block = block_view(uring.iocbs, 0, world.iocb(0).generation);
    for (u32 step = 0; step < 16; ++step) { work_on(uring.rings, block, step, false); }
    world.start_controller(1);
    for (u32 ring = 0; ring < 4; ++ring) { await_first_lap(world, ring); }
    while (now_ns() - world.iocb(0).started_ns < shape.timeout_ns) { pause(); }
    world.run_issue(1, {0});
    world.stop_controller();
    CHECK(world.iocb(0).failed == 0, "%llu of 200 failed", world.iocb(0).failed);
}

// 12 identifiers are left in each word of the map, of 63; another ring is always busy.
void a_ring_that_lost_identifiers_goes_on_beside_a_busy_one() {
    Shape shape = shape_of(2, 64, 2, 100);
    shape.rings_of_block = 1;
    World world(shape);
    u32* free_slots = reinterpret_cast<u32*>(world.ring(0).free_slots);
    u64* requests = reinterpret_cast<u64*>(world.ring(0).requests);
    for (u32 slot = 0; slot < 63; ++slot) {
        if (slot % 32 < 12) { continue; }
        free_slots[slot / 32] &= ~(1u << slot % 32);
        requests[slot] = request_of(State::ABANDONED, 0, 0, 0);
    }
    world.start_controller(1);
    world.start_persistent(2);
    world.fill(1, 2000);
    world.issue(1);
    while (load64_relaxed_gpu(ADIT_FIELD(Iocb, world.iocb_address(1), started_ns)) == 0) { pause(); }
    world.fill(0);
    world.issue(0);
    world.await(0);
    CHECK(!world.is_done(1), "the busy ring's 200000 commands were over first");
    CHECK(world.iocb(0).failed == 0, "%llu of 100 failed", world.iocb(0).failed);
    world.await(1);
    world.stop_persistent();
    world.stop_controller();
}

}  // namespace

int main() {
    RUN(every_ring_is_posted_to_with_more_blocks_than_lanes);
    RUN(a_short_block_does_not_wait_for_a_long_one);
    RUN(a_dead_device_does_not_take_a_healthy_ones_time);
    RUN(what_was_completed_before_the_deadline_is_not_late);
    RUN(a_ring_that_lost_identifiers_goes_on_beside_a_busy_one);
}
