// Devices that fail, forget, answer late or break the rules: every context ends exactly once, in time, with a status.
#include "world.h"

using namespace test;

namespace {

constexpr u64 MS = 1000000;

// Counts the contexts of a block that ended with `status`.
u32 ended_as(const World& world, u32 block, u32 status) {
    u32 count = 0;
    for (u32 context = 0; context < world.shape.contexts; ++context) { count += world.statuses(block)[context] == status; }
    return count;
}

// Counts the identifiers that are not free; each must belong to an abandoned command.
u32 taken_slots(const World& world, u32 index) {
    u32 taken = 0;
    for (u32 slot = 0; slot < world.ring(index).slots; ++slot) {
        const bool is_free = reinterpret_cast<u32*>(world.ring(index).free_slots)[slot / 32] >> slot % 32 & 1;
        const State state = state_of(reinterpret_cast<u64*>(world.ring(index).requests)[slot]);
        CHECK(state == (is_free ? State::FREE : State::ABANDONED), "slot %u is in state %u", slot, static_cast<u32>(state));
        taken += !is_free;
    }
    return taken;
}

void a_failed_command_says_its_status() {
    for (u32 every : {1u, 2u, 7u, 300u}) {
        Shape shape;
        shape.cq_in_host = every == 7;
        shape.rings = 2;
        shape.fault = Fault::STATUS;
        shape.fault_every = every;
        World world(shape);
        world.fill(0);
        world.start_controller(1);
        world.run_issue(3, {0});
        world.stop_controller();
        world.check_statuses(0, [](u32 status) { return status == 0 || status == 0x281; });
        const u64 faults = world.queue(0).faults + world.queue(1).faults;
        CHECK(world.failures(0) == faults && world.iocb(0).failed == faults && faults != 0, "%llu faults", faults);
        world.check_data(0);
        world.check_quiet();
    }
}

void a_lost_command_times_out_and_keeps_its_identifier() {
    Shape shape;
    shape.fault = Fault::LOST;
    shape.fault_every = 40;
    shape.timeout_ns = 400 * MS;
    World world(shape);
    world.fill(0);
    world.start_controller(1);
    world.run_issue(2, {0});
    world.stop_controller();
    const u64 faults = world.queue(0).faults;
    CHECK(ended_as(world, 0, Ended::TIMED_OUT) == faults && faults == 7, "%llu were lost", faults);
    CHECK(ended_as(world, 0, 0) == shape.contexts - faults, "the rest was done");
    CHECK(taken_slots(world, 0) == faults, "%u identifiers", taken_slots(world, 0));
    CHECK(world.iocb(0).failed == faults, "%llu failed", world.iocb(0).failed);
    world.check_statuses(0, [](u32 status) { return status == 0 || status == Ended::TIMED_OUT; });
}

void a_dead_device_ends_a_block_at_its_deadline() {
    for (u32 rounds : {1u, 3u}) {
        Shape shape;
        shape.cq_in_host = rounds == 3;
        shape.depth = 32;
        shape.rings = 2;
        shape.timeout_ns = 5 * MS;
        World world(shape);
        world.fill(0, rounds);
        // No controller runs.
        world.run_issue(2, {0});
        CHECK(world.iocb(0).failed == shape.contexts * rounds, "%llu failed", world.iocb(0).failed);
        CHECK(taken_slots(world, 0) + taken_slots(world, 1) == 62, "all identifiers are in flight");
        const u32 timed_out = ended_as(world, 0, Ended::TIMED_OUT), unsent = ended_as(world, 0, Ended::NOT_SENT);
        CHECK(timed_out + unsent == shape.contexts, "%u timed out, %u not sent", timed_out, unsent);
        if (rounds == 1) { CHECK(timed_out == 62, "%u timed out", timed_out); }
        // Without identifiers, nothing is sent.
        world.fill(0);
        world.run_issue(2, {0});
        CHECK(ended_as(world, 0, Ended::NOT_SENT) == shape.contexts, "nothing could be sent");
        // The device comes back: its late completions free the identifiers, and affect no block.
        world.start_controller(1);
        world.shape.timeout_ns = DEADLINE_NS;
        world.fill(0);
        store64_relaxed_gpu(ADIT_FIELD(Iocb, world.iocb_address(0), timeout_ns), DEADLINE_NS);
        world.run_issue(2, {0});
        world.stop_controller();
        world.check_statuses(0, [](u32 status) { return status == 0; });
        CHECK(world.ring(0).late + world.ring(1).late == 62, "%llu came late", world.ring(0).late);
        world.check_quiet();
        world.check_data(0);
    }
}

void delayed_commands_complete_out_of_order() {
    Shape shape;
    shape.fault = Fault::DELAYED;
    shape.fault_every = 5;
    shape.delay_ns = 2 * MS;
    shape.depth = 40;
    World world(shape);
    world.fill(0);
    world.start_controller(1);
    world.run_issue(2, {0});
    world.stop_controller();
    world.check_statuses(0, [](u32 status) { return status == 0; });
    CHECK(world.queue(0).faults == 52 && world.ring(0).late == 0, "%llu were delayed", world.queue(0).faults);
    world.check_data(0);
    world.check_quiet();
}

void a_late_completion_frees_its_identifier() {
    Shape shape;
    shape.fault = Fault::DELAYED;
    shape.fault_every = 10;
    shape.delay_ns = 1000 * MS;
    shape.timeout_ns = 400 * MS;
    shape.depth = 100;
    World world(shape);
    world.fill(0);
    world.start_controller(1);
    world.run_issue(2, {0});
    world.stop_controller();
    const u32 delayed = ended_as(world, 0, Ended::TIMED_OUT);
    CHECK(delayed == 26 && taken_slots(world, 0) == 26, "%u were delayed", delayed);
    world.controller().fault = static_cast<u32>(Fault::NONE);
    world.shape.timeout_ns = DEADLINE_NS;
    world.start_controller(1);
    while (world.ring(0).late < delayed) {
        world.fill(0);
        world.run_issue(1, {0});
        world.check_statuses(0, [](u32 status) { return status == 0; });
    }
    world.stop_controller();
    CHECK(world.ring(0).late == delayed, "%llu came late", world.ring(0).late);
    world.check_quiet();
}

void a_device_that_breaks_the_rules_poisons_its_ring() {
    const struct {
        Fault fault;
        Poison poison;
    } cases[] = {{Fault::TWICE, Poison::UNKNOWN_COMMAND},
                 {Fault::WRONG_COMMAND, Poison::UNKNOWN_COMMAND},
                 {Fault::WRONG_QUEUE, Poison::WRONG_QUEUE},
                 {Fault::BAD_HEAD, Poison::BAD_HEAD}};
    for (const auto& each : cases) {
        for (u32 first : {0u, 1u, 33u, 200u}) {
            Shape shape;
            shape.fault = each.fault;
            shape.fault_first = first;
            shape.fault_every = 100000;
            shape.depth = 50;
            World world(shape);
            world.fill(0);
            world.start_controller(1);
            world.run_issue(3, {0});
            CHECK(world.ring(0).poison == static_cast<u32>(each.poison), "fault %u: %u", static_cast<u32>(each.fault), world.ring(0).poison);
            CHECK(world.ring(0).poison_detail != 0, "the completion is kept");
            world.check_statuses(0, [](u32 status) { return status == 0 || status == Ended::RESET; });
            // With the fault on the very last commands, no later completion may be needed to end.
            CHECK(ended_as(world, 0, 0) >= (each.fault == Fault::TWICE ? first : 0), "what was right before counts");
            world.check_data(0);
            world.fill(0);
            world.run_issue(3, {0});
            world.stop_controller();
            world.check_statuses(0, [](u32 status) { return status == Ended::RESET; });
        }
    }
}

void a_block_goes_on_through_its_other_rings() {
    Shape shape;
    shape.rings = 3;
    World world(shape);
    world.ring(1).poison = static_cast<u32>(Poison::HOST);
    world.fill(0);
    world.start_controller(2);
    world.run_issue(4, {0});
    world.stop_controller();
    world.check_statuses(0, [](u32 status) { return status == 0; });
    CHECK(world.queue(1).commands == 0 && world.commands() == shape.contexts, "%llu commands", world.queue(1).commands);
}

void a_ring_that_the_host_takes_away_ends_what_is_in_flight() {
    Shape shape;
    shape.depth = 30;
    World world(shape);
    world.fill(0);
    // No controller runs, and the deadline is far away.
    std::thread host([&] {
        while (load64_relaxed_gpu(ADIT_FIELD(Ring, reinterpret_cast<u64>(&world.ring(0)), ticket)) < 29) { pause(); }
        store32_release_gpu(ADIT_FIELD(Ring, reinterpret_cast<u64>(&world.ring(0)), poison), static_cast<u32>(Poison::HOST));
    });
    world.run_issue(3, {0});
    host.join();
    world.check_statuses(0, [](u32 status) { return status == Ended::RESET; });
    CHECK(taken_slots(world, 0) == 29, "identifiers stay taken");
}

}  // namespace

int main() {
    RUN(a_failed_command_says_its_status);
    RUN(a_lost_command_times_out_and_keeps_its_identifier);
    RUN(a_dead_device_ends_a_block_at_its_deadline);
    RUN(delayed_commands_complete_out_of_order);
    RUN(a_late_completion_frees_its_identifier);
    RUN(a_device_that_breaks_the_rules_poisons_its_ring);
    RUN(a_block_goes_on_through_its_other_rings);
    RUN(a_ring_that_the_host_takes_away_ends_what_is_in_flight);
}
