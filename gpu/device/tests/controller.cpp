// The device-code controller alone: it answers every bad command with the right status, counts it, and respects the
// room in its queues. The commands are written here by hand, from the specification.
#include "harness.h"

using namespace test;

namespace {

constexpr u32 DEPTH = 8;
constexpr u64 LBAS = 100;

// A controller with one queue, and the host's side of it.
class Device {
public:
    explicit Device(u32 form = 0)
        : sq_(DEPTH * 64), cq_(DEPTH * 16), in_flight_(8192), words_(64), media_(LBAS * 512), pool_(16 * 4096),
          queue_(sizeof(ControllerQueue)), range_(sizeof(ControllerRange)) {
        *range_.as<ControllerRange>() = {pool_.address(), pool_.bytes()};
        ControllerQueue& made = queue();
        made.sq = sq_.address();
        made.cq = cq_.address();
        made.sq_doorbell = words_.address();
        made.cq_doorbell = words_.address() + 4;
        made.in_flight = in_flight_.address();
        made.depth = made.cq_depth = DEPTH;
        made.qid = 3;
        arguments.queues = queue_.address();
        arguments.ranges = range_.address();
        arguments.stop = words_.address() + 8;
        arguments.media = media_.address();
        arguments.lbas = LBAS;
        arguments.queue_count = arguments.range_count = 1;
        arguments.nsid = 1;
        arguments.lba_shift = 9;
        arguments.lbas_max = 64;
        arguments.form = form;
        arguments.fault_every = 1;
        for (u32 word = 0; word < LBAS * LBA_WORDS; ++word) { media_.as<u32>()[word] = pattern(word / LBA_WORDS, word % LBA_WORDS); }
    }

    ControllerQueue& queue() const { return *queue_.as<ControllerQueue>(); }
    u64 pool() const { return pool_.address(); }
    const u32* data() const { return pool_.as<u32>(); }
    u32* words() const { return words_.as<u32>(); }

    // Returns a valid read of two LBAs.
    Command read(u32 cid) const {
        Command command{};
        const bool sgl = arguments.form == 0;
        command.words[0] = 2 | (sgl ? 0x4000 : 0) | cid << 16;
        command.words[1] = 1;
        command.words[6] = static_cast<u32>(pool());
        command.words[7] = static_cast<u32>(pool() >> 32);
        command.words[8] = sgl ? 1024 : 0;
        command.words[10] = 5;
        command.words[12] = 1;
        return command;
    }
    void put(const Command& command) {
        std::memcpy(sq_.as<u32>() + tail_ * 16, command.words, 64);
        tail_ = (tail_ + 1) % DEPTH;
    }
    // Rings for the controller, and serves until it is idle.
    void serve() {
        words()[0] = tail_;
        while (adit::serve(arguments, queue_.address()) != 0) {}
    }
    // Takes the next answer's identifier and status, if there is one.
    bool answer(u32& cid, u32& status) {
        const u32 dword3 = cq_.as<u32>()[head_ % DEPTH * 4 + 3];
        if ((dword3 >> 16 & 1) == (head_ / DEPTH & 1)) { return false; }
        CHECK(cq_.as<u32>()[head_ % DEPTH * 4 + 2] >> 16 == 3, "the queue's identifier");
        cid = dword3 & 0xffff;
        status = dword3 >> 17;
        ++head_;
        return true;
    }
    void tell_head() { words()[1] = head_ % DEPTH; }

    ControllerArguments arguments{};

private:
    Memory sq_, cq_, in_flight_, words_, media_, pool_, queue_, range_;
    u32 tail_ = 0, head_ = 0;
};

// A command with one word changed, and the expected answer.
struct BadCommand {
    u32 form;
    u32 word;
    u32 value;
    Bad kind;
    u32 status;
};

void every_wrong_field_is_told_and_counted() {
    const u32 no_retry = 0x4000;
    const BadCommand cases[] = {
        {0, 0, 0x4000, Bad::OPCODE, 1},           {0, 0, 0x4009, Bad::OPCODE, 1},      {0, 0, 0x0002, Bad::FLAGS, 2},
        {0, 0, 0x8002, Bad::FLAGS, 2},            {0, 0, 0x4102, Bad::FLAGS, 2},       {1, 0, 0x4002, Bad::FLAGS, 2},
        {0, 1, 0, Bad::NAMESPACE, 0x0b},          {0, 1, 2, Bad::NAMESPACE, 0x0b},     {0, 2, 1, Bad::RESERVED, 2},
        {0, 3, 1, Bad::RESERVED, 2},              {0, 4, 1, Bad::RESERVED, 2},         {0, 5, 1u << 31, Bad::RESERVED, 2},
        {0, 13, 1, Bad::RESERVED, 2},             {0, 14, 1, Bad::RESERVED, 2},        {0, 15, 1, Bad::RESERVED, 2},
        {0, 12, 1u << 16 | 1, Bad::RESERVED, 2},  {0, 10, 99, Bad::RANGE, 0x80},       {0, 10, 100, Bad::RANGE, 0x80},
        {0, 11, 1, Bad::RANGE, 0x80},             {0, 11, 0xffffffff, Bad::RANGE, 0x80}, {0, 12, 64, Bad::RANGE, 0x80},
        {0, 7, 1, Bad::POINTER, 0x13},            {0, 7, 0xffffffff, Bad::POINTER, 0x13}, {0, 8, 512, Bad::LENGTH, 0x0f},
        {0, 8, 1025, Bad::LENGTH, 0x0f},          {0, 9, 1u << 24, Bad::DESCRIPTOR, 0x11}, {0, 9, 1, Bad::DESCRIPTOR, 0x11},
        {1, 8, 4096, Bad::POINTER, 0x13},         {1, 7, 1, Bad::POINTER, 0x13},
    };
    for (const BadCommand& each : cases) {
        Device device(each.form);
        Command command = device.read(77);
        command.words[each.word] = each.word == 0 ? each.value | 77 << 16 : each.value;
        device.put(command);
        device.serve();
        u32 cid = 0, status = 0;
        CHECK(device.answer(cid, status) && cid == 77, "word %u = %x is answered", each.word, each.value);
        CHECK(status == (each.status | no_retry), "word %u = %x: status %x", each.word, each.value, status);
        for (u32 kind = 0; kind < BAD_KINDS; ++kind) {
            CHECK(device.queue().bad[kind] == (kind == static_cast<u32>(each.kind)), "word %u = %x: kind %u", each.word, each.value, kind);
        }
        CHECK(device.data()[0] == 0, "no data was moved");
    }
}

void pointers_must_stay_inside_the_ranges() {
    const struct {
        u64 offset;
        bool right;
    } cases[] = {{0, true}, {4, true}, {2, false}, {16 * 4096 - 1024, true}, {16 * 4096 - 1020, false}, {16 * 4096, false}, {~0ull - 511, false}};
    for (const auto& each : cases) {
        Device device;
        Command command = device.read(1);
        command.words[6] = static_cast<u32>(device.pool() + each.offset);
        command.words[7] = static_cast<u32>((device.pool() + each.offset) >> 32);
        device.put(command);
        device.serve();
        u32 cid = 0, status = 0;
        CHECK(device.answer(cid, status) && (status == 0) == each.right, "offset %llu: status %x", each.offset, status);
        if (each.right) { CHECK(device.data()[each.offset / 4] == pattern(5, 0), "the data is there"); }
    }
}

// Reads 13 KiB from `offset` on, with a list in the last page's words from `list` on.
Command read_by_list(Device& device, u64 offset, u64 list) {
    Command command = device.read(1);
    const u64 first = device.pool() + offset, second = device.pool() + list;
    command.words[6] = static_cast<u32>(first);
    command.words[8] = static_cast<u32>(second);
    command.words[9] = static_cast<u32>(second >> 32);
    command.words[12] = 25;
    return command;
}

void lists_are_followed_and_checked() {
    // Number of list words in the first list page; the rest lies behind a pointer to the next page.
    for (u32 here : {1u, 2u, 3u, 4u, 512u}) {
        for (u32 spoiled : {0u, 1u, 2u, 3u}) {
            Device device(1);
            u64* list = const_cast<u64*>(reinterpret_cast<const u64*>(device.data())) + 14 * 512 - here;
            Command command = read_by_list(device, 512, 14 * 4096 - here * 8);
            u32 word = 0;
            for (u32 page = 1; page <= 3; ++page) {
                if (word == here - 1 && page != 3) {
                    list[word] = device.pool() + 14 * 4096;
                    word = here;
                }
                list[word++] = device.pool() + page * 4096 + (page == spoiled ? 8 : 0);
            }
            device.put(command);
            device.serve();
            u32 cid = 0, status = 0;
            CHECK(device.answer(cid, status) && (status == 0) == (spoiled == 0), "%u words, entry %u: status %x", here, spoiled, status);
            for (u32 each = 0; spoiled == 0 && each < 26 * LBA_WORDS; ++each) {
                CHECK(device.data()[128 + each] == pattern(5 + each / LBA_WORDS, each % LBA_WORDS), "%u words: word %u", here, each);
            }
        }
    }
}

void an_identifier_in_flight_is_not_taken_twice() {
    Device device;
    device.arguments.fault = static_cast<u32>(Fault::LOST);
    device.put(device.read(9));
    device.serve();
    device.arguments.fault = static_cast<u32>(Fault::NONE);
    device.put(device.read(9));
    device.put(device.read(10));
    device.serve();
    u32 cid = 0, status = 0;
    CHECK(device.answer(cid, status) && cid == 9 && status == 0x4003, "%u: %x", cid, status);
    CHECK(device.answer(cid, status) && cid == 10 && status == 0, "%u: %x", cid, status);
    CHECK(device.queue().bad[static_cast<u32>(Bad::IDENTIFIER)] == 1, "it is counted");
}

void answers_wait_for_room() {
    Device device;
    u32 next = 0, answered = 0, cid = 0, status = 0;
    for (; next < DEPTH - 1; ++next) { device.put(device.read(next)); }
    device.serve();
    for (u32 each = 0; each < 5; ++each) { device.put(device.read(next++)); }
    device.serve();
    CHECK(device.queue().commands == DEPTH - 1, "%llu were served with the answers not read", device.queue().commands);
    while (device.answer(cid, status)) { CHECK(cid == answered++ && status == 0, "%u: %x", cid, status); }
    CHECK(answered == DEPTH - 1, "%u answers", answered);
    CHECK(device.queue().looks == 2 && device.queue().full == 1, "%llu looks, %llu full", device.queue().looks, device.queue().full);
    device.tell_head();
    device.serve();
    while (device.answer(cid, status)) { CHECK(cid == answered++ && status == 0, "%u: %x", cid, status); }
    CHECK(answered == next, "%u answers", answered);
}

void a_doorbell_outside_the_queue_is_counted_and_ignored() {
    Device device;
    device.put(device.read(1));
    device.serve();
    for (u32 value : {DEPTH, 0xffffffffu}) {
        device.words()[0] = value;
        serve(device.arguments, reinterpret_cast<u64>(&device.queue()));
        device.words()[1] = value;
        serve(device.arguments, reinterpret_cast<u64>(&device.queue()));
    }
    // One past what was answered.
    device.words()[1] = 2;
    serve(device.arguments, reinterpret_cast<u64>(&device.queue()));
    CHECK(device.queue().bad[static_cast<u32>(Bad::DOORBELL)] == 5, "%llu", device.queue().bad[0]);
    CHECK(device.queue().commands == 1 && device.queue().cq_head == 0, "%llu commands", device.queue().commands);
    device.put(device.read(2));
    device.serve();
    CHECK(device.queue().commands == 2, "it goes on");
}

}  // namespace

int main() {
    RUN(every_wrong_field_is_told_and_counted);
    RUN(pointers_must_stay_inside_the_ranges);
    RUN(lists_are_followed_and_checked);
    RUN(an_identifier_in_flight_is_not_taken_twice);
    RUN(answers_wait_for_room);
    RUN(a_doorbell_outside_the_queue_is_counted_and_ignored);
}
