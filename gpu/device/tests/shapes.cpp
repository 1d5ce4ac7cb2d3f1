// Rings and blocks of many shapes, by one-shot kernels: every command is executed exactly once, and the data is right.
//
// Every test prints its name; a failed check prints its condition and place, and aborts. The program must fail with
// each known fault:
// canary: ADIT_BREAK_PUBLISH an entry is published before it is written
// canary: ADIT_BREAK_HARVEST two warps harvest a ring at a time
// canary: ADIT_BREAK_COMBINE a combiner leaves while others count on it
#include "world.h"

using namespace test;

namespace {

bool is_success(u32 status) { return status == 0; }

void run_shape(const Shape& shape, u32 rounds) {
    World world(shape);
    std::vector<u32> blocks;
    for (u32 block = 0; block < shape.blocks; ++block) { blocks.push_back(block); }
    for (u32 block : blocks) { world.fill(block); }
    world.start_controller(shape.rings < 4 ? shape.rings : 2);
    world.run_issue(shape.warps, blocks);
    for (u32 round = 1; round < rounds; ++round) {
        for (u32 block : blocks) { world.fill(block); }
        world.run_issue(shape.warps, blocks);
    }
    world.stop_controller();
    for (u32 block : blocks) {
        world.check_statuses(block, is_success);
        CHECK(world.iocb(block).failed == 0, "%llu failed", world.iocb(block).failed);
        if (shape.media) { world.check_data(block); }
    }
    world.check_quiet();
    world.check_counts();
    const u64 commands = static_cast<u64>(shape.blocks) * shape.contexts * rounds;
    CHECK(world.commands() == commands, "%llu commands of %llu", world.commands(), commands);
}

void every_depth_does_every_command_once() {
    for (u32 depth : {2u, 3u, 5u, 7u, 32u, 33u, 34u, 64u, 100u, 1000u, 4096u}) {
        for (u32 warps : {1u, 3u}) {
            Shape shape;
            shape.depth = depth;
            shape.warps = warps;
            shape.contexts = depth < 8 ? 100 : depth < 1000 ? 500 : 2048;
            shape.seed = depth;
            run_shape(shape, 2);
        }
    }
}

void blocks_share_rings() {
    for (u32 rings : {1u, 2u, 3u, 8u}) {
        Shape shape;
        shape.rings = rings;
        shape.depth = 17;
        shape.warps = 4;
        shape.blocks = 40;
        shape.contexts = 33;
        run_shape(shape, 2);
        shape.rings_of_block = 1;
        run_shape(shape, 2);
    }
}

void positions_go_past_powers_of_two() {
    for (u64 power : {16, 32, 48}) {
        for (u32 depth : {2u, 5u, 64u, 100u, 4096u}) {
            for (u64 back : {1, 3, 150}) {
                Shape shape;
                shape.depth = depth;
                shape.start = (1ull << power) - back;
                shape.contexts = 300;
                run_shape(shape, 2);
            }
        }
    }
}

void writes_reach_the_media() {
    Shape shape;
    shape.writes = true;
    shape.rings = 2;
    shape.lbas_most = 9;
    run_shape(shape, 1);
}

void prebuilt_lists_reach_the_same_data() {
    for (u32 lbas : {4u, 20u, 4096u}) {
        Shape shape;
        shape.form = Form::PRP;
        shape.lbas_most = lbas;
        shape.contexts = lbas == 4096 ? 5 : 400;
        shape.writes = lbas == 20;
        shape.seed = lbas;
        run_shape(shape, 1);
    }
}

// PRP2 leads to every page of a transfer, wherever its list begins and ends in the pages of the region's lists.
void a_run_of_a_prebuilt_list_ends_where_its_data_ends() {
    const u64 pages = 1100;
    Memory region(pages * PAGE);
    PrpLists lists(region);
    const Region regions[] = {{region.address(), {lists.list(0), lists.list(1)}, region.bytes()}};
    const ControllerRange ranges[] = {lists.range(0), lists.range(1)};
    ControllerArguments arguments{};
    arguments.ranges = reinterpret_cast<u64>(ranges);
    arguments.range_count = 2;
    RingView ring{};
    ring.regions = reinterpret_cast<u64>(regions);
    for (u64 first = 0; first < pages; first += first % 256 < 4 || first % 256 > 250 ? 1 : 17) {
        for (u64 count = 1; count <= 514 && first + count <= pages; ++count) {
            const u64 offset = count % 3 * 512;
            const u64 bytes = count * PAGE - offset - (count > 1 ? 512 : 0);
            const Context context{region.address() + first * PAGE + offset, 0};
            u64 next = context.address;
            const bool right = each_prp(arguments, context.address, second_prp(ring, context, bytes), bytes, [&](u64 at, u64 run) {
                CHECK(at == next, "%llu pages from %llu: %llx, not %llx", count, first, at, next);
                next += run;
                return true;
            });
            CHECK(right && next == context.address + bytes, "%llu pages from %llu", count, first);
        }
    }
}

void a_full_ring_is_left_alone_until_many_identifiers_are_free() {
    Shape shape;
    shape.depth = 129;
    shape.contexts = 200;
    World world(shape);
    u32* const free = reinterpret_cast<u32*>(world.ring(0).free_slots);
    // Three in each word of the map.
    for (u32 word = 0; word < 4; ++word) { free[word] = 7; }
    world.fill(0);
    const Uring uring = *reinterpret_cast<const Uring*>(world.uring_address());
    const RingView ring = ring_view(uring.rings);
    const Block block = block_view(uring.iocbs, 0, 1);
    CHECK(post_some(ring, block, true) == 0, "three are too few");
    CHECK(free[0] == 7 && world.ring(0).ticket == 0, "nothing was taken");
    free[2] = 0xffff;
    CHECK(post_some(ring, block, true) == 16, "sixteen are enough");
    CHECK(post_some(ring, block, false) == 3, "who lost patience takes any");
    free[3] = ALL_LANES;
    CHECK(post_some(ring, block, true) == 32, "as many as there are");
    CHECK(world.ring(0).sq_rings == 3, "a doorbell each");
}

void a_ring_that_lost_identifiers_goes_on() {
    Shape shape;
    shape.depth = 129;
    shape.contexts = 200;
    World world(shape);
    u32* const free = reinterpret_cast<u32*>(world.ring(0).free_slots);
    // Three in each word of the map.
    for (u32 word = 0; word < 4; ++word) { free[word] = 7; }
    world.fill(0);
    world.start_controller(1);
    world.run_issue(2, {0});
    world.stop_controller();
    world.check_statuses(0, is_success);
    for (u32 word = 0; word < 4; ++word) { CHECK(free[word] == 7, "word %u: %x", word, free[word]); }
}

void a_block_goes_round_until_its_total() {
    Shape shape;
    shape.rings = 2;
    shape.contexts = 50;
    World world(shape);
    world.fill(0, 41);
    world.start_controller(1);
    world.run_issue(3, {0});
    world.stop_controller();
    CHECK(world.commands() == 50 * 41, "%llu commands", world.commands());
    // Only failures are written where contexts are repeated.
    world.check_statuses(0, [](u32 status) { return status == PENDING; });
    world.check_quiet();
    world.check_counts();
}

void one_command_at_a_time_has_a_doorbell_each() {
    Shape shape;
    shape.contexts = 1;
    shape.depth = 8;
    World world(shape);
    world.start_controller(1);
    for (u32 round = 0; round < 100; ++round) {
        world.fill(0);
        world.run_issue(2, {0});
    }
    world.stop_controller();
    CHECK(world.ring(0).sq_rings == 100 && world.queue(0).commands == 100, "%llu doorbells", world.ring(0).sq_rings);
    world.check_quiet();
    world.check_counts();
}

void a_busy_ring_rings_once_for_many() {
    Shape shape;
    shape.depth = 1024;
    shape.contexts = 2048;
    shape.blocks = 8;
    shape.warps = 4;
    shape.media = false;
    World world(shape);
    std::vector<u32> blocks;
    for (u32 block = 0; block < shape.blocks; ++block) { world.fill(block), blocks.push_back(block); }
    world.start_controller(1);
    world.run_issue(shape.warps, blocks);
    world.stop_controller();
    const u64 doorbells = world.ring(0).sq_rings, commands = world.commands();
    std::printf("  %llu commands, %llu submission and %llu completion doorbells\n", commands, doorbells, world.ring(0).cq_rings);
    CHECK(commands >= doorbells * 16, "%llu doorbells for %llu commands", doorbells, commands);
    world.check_quiet();
    world.check_counts();
}

void the_controller_never_finds_its_completion_ring_full() {
    for (u32 depth : {2u, 5u, 256u, 1024u}) {
        // As many completion entries as submission entries, and twice as many.
        for (u32 cq_depth : {depth, 2 * depth}) {
            Shape shape;
            shape.depth = depth;
            shape.cq_depth = cq_depth;
            shape.contexts = depth < 8 ? 100 : 2048;
            shape.blocks = 4;
            shape.media = false;
            run_shape(shape, 2);
        }
    }
}

void one_warp_at_a_time_looks_at_completions_in_host_memory() {
    Shape shape;
    shape.cq_in_host = true;
    shape.contexts = 500;
    World world(shape);
    const Uring uring = *reinterpret_cast<const Uring*>(world.uring_address());
    world.ring(0).harvesting = 1;
    RingView ring = ring_view(uring.rings);
    // A look would end the program.
    ring.cq = 0;
    CHECK(harvest(uring.iocbs, ring) == 0, "another warp harvests");
    CHECK(world.ring(0).harvesting == 1, "and goes on");
    world.ring(0).harvesting = 0;
    CHECK(harvest(uring.iocbs, ring_view(uring.rings)) == 0, "there are none");
    CHECK(world.ring(0).harvesting == 0, "the next warp may look");
    run_shape(shape, 2);
}

void generations_of_an_identifier_advance() {
    Shape shape;
    shape.depth = 2;
    shape.contexts = 50;
    World world(shape);
    world.fill(0);
    world.start_controller(1);
    world.run_issue(1, {0});
    world.stop_controller();
    CHECK(generation_of(*reinterpret_cast<u64*>(world.ring(0).requests)) == 50, "the only slot was used 50 times");
}

void a_position_has_one_entry() {
    Random random{3};
    for (u32 depth = 2; depth <= DEPTH_MAX; depth += 1 + depth / 3) {
        RingView view{};
        view.depth = depth;
        view.reciprocal = reciprocal_of(depth);
        view.cq_depth = depth + 1;
        view.cq_reciprocal = reciprocal_of(depth + 1);
        for (u32 round = 0; round < 1000; ++round) {
            const u64 lap = random.next() >> random.below(64);
            const u64 position = lap / depth * depth + (round % 3 == 0 ? depth - 1 : round % 3 == 1 ? 0 : random.below(depth));
            CHECK(entry_of(view, position) == position % depth, "%llu of %u", position, depth);
            CHECK(cq_laps_before(view, position) == position / (depth + 1), "%llu of %u", position, depth + 1);
            CHECK(cq_entry_of(view, position) == position % (depth + 1), "%llu of %u", position, depth + 1);
        }
    }
}

}  // namespace

int main() {
    RUN(a_position_has_one_entry);
    RUN(every_depth_does_every_command_once);
    RUN(blocks_share_rings);
    RUN(positions_go_past_powers_of_two);
    RUN(writes_reach_the_media);
    RUN(prebuilt_lists_reach_the_same_data);
    RUN(a_run_of_a_prebuilt_list_ends_where_its_data_ends);
    RUN(a_full_ring_is_left_alone_until_many_identifiers_are_free);
    RUN(a_ring_that_lost_identifiers_goes_on);
    RUN(a_block_goes_round_until_its_total);
    RUN(one_command_at_a_time_has_a_doorbell_each);
    RUN(a_busy_ring_rings_once_for_many);
    RUN(the_controller_never_finds_its_completion_ring_full);
    RUN(one_warp_at_a_time_looks_at_completions_in_host_memory);
    RUN(generations_of_an_identifier_advance);
}
