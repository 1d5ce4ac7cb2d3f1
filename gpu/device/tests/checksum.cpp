// Checksums of any bytes, wherever they begin and end and however they are divided, against sums bit by bit.
//
// canary: ADIT_BREAK_LANE the last lane's bytes do not count
#include "harness.h"

using namespace test;

namespace {

// A sum bit by bit, from the polynomial of RFC 3720.
class Slow {
public:
    void add(u8 byte) {
        state_ ^= byte;
        for (u32 bit = 0; bit < 8; ++bit) { state_ = state_ >> 1 ^ ((state_ & 1) != 0 ? 0x82f63b78 : 0); }
    }
    u32 sum() const { return ~state_; }

private:
    u32 state_ = ~0u;
};

u32 slow_sum(const u8* bytes, u64 count) {
    Slow slow;
    for (u64 at = 0; at < count; ++at) { slow.add(bytes[at]); }
    return slow.sum();
}

u32 device_sum(const std::vector<Segment>& segments) {
    const Check check{0, static_cast<u32>(segments.size()), 0, 0};
    return sum_of(SUM_TABLES, check, reinterpret_cast<u64>(segments.data()));
}

u32 device_sum(const u8* bytes, u64 count) { return device_sum({{reinterpret_cast<u64>(bytes), count}}); }

void fill(Random& random, const Memory& memory) {
    for (u64 word = 0; word < memory.bytes() / 8; ++word) { memory.as<u64>()[word] = random.next(); }
}

// RFC 3720, appendix B.4, and the check value of the algorithm.
void known_sums_come_out() {
    u8 bytes[32];
    const auto expect = [&](u32 sum) { CHECK(device_sum(bytes, 32) == sum, "%x", device_sum(bytes, 32)); };
    std::memset(bytes, 0, 32);
    expect(0x8a9136aa);
    std::memset(bytes, 0xff, 32);
    expect(0x62a8ab43);
    for (u32 at = 0; at < 32; ++at) { bytes[at] = static_cast<u8>(at); }
    expect(0x46dd794e);
    for (u32 at = 0; at < 32; ++at) { bytes[at] = static_cast<u8>(31 - at); }
    expect(0x113fdb5c);
    std::memcpy(bytes, "123456789", 9);
    CHECK(device_sum(bytes, 9) == 0xe3069283, "%x", device_sum(bytes, 9));
}

void every_length_at_every_alignment() {
    Random random{11};
    const Memory memory(4096);
    fill(random, memory);
    for (u64 from = 0; from < 32; ++from) {
        const u8* bytes = memory.as<u8>() + 512 + from;
        Slow slow;
        for (u64 count = 0; count <= 600; ++count) {
            CHECK(device_sum(bytes, count) == slow.sum(), "%llu bytes at %llu", count, from);
            slow.add(bytes[count]);
        }
    }
}

void long_runs_at_odd_places() {
    Random random{12};
    const Memory memory(1 << 20);
    fill(random, memory);
    for (u64 count : {2047ull, 2048ull, 4096ull, 32768ull, 65535ull, 1000003ull}) {
        const u64 from = random.below(1000);
        const u8* bytes = memory.as<u8>() + from;
        CHECK(device_sum(bytes, count) == slow_sum(bytes, count), "%llu bytes at %llu", count, from);
    }
}

// Returns segments with these bytes in order, at other places of `into`, in which they lie in any order.
std::vector<Segment> scattered(Random& random, const u8* bytes, u64 count, const Memory& into) {
    std::vector<Segment> segments;
    u64 at = random.below(40);
    for (u64 done = 0; done < count;) {
        const u64 most = random.below(4) == 0 ? 8 : 1500, left = count - done;
        const u64 run = 1 + random.below(left < most ? left : most);
        std::memcpy(into.as<u8>() + at, bytes + done, run);
        segments.push_back({into.address() + at, run});
        at += run + random.below(20);
        done += run;
        if (random.below(5) == 0) { segments.push_back({into.address() + at, 0}); }
    }
    return segments;
}

void segments_are_summed_as_one_run() {
    Random random{13};
    const Memory memory(1 << 14), other(1 << 18);
    fill(random, memory);
    for (u32 round = 0; round < 200; ++round) {
        const u64 count = 1 + random.below(9000);
        const auto segments = scattered(random, memory.as<u8>(), count, other);
        CHECK(device_sum(segments) == slow_sum(memory.as<u8>(), count), "round %u: %llu bytes", round, count);
    }
    CHECK(device_sum(std::vector<Segment>{}) == 0, "no bytes");
    // Divided anywhere.
    const u32 whole = slow_sum(memory.as<u8>(), 1100);
    for (u64 first = 0; first <= 1100; ++first) {
        const u32 sum = device_sum({{memory.address(), first}, {memory.address() + first, 1100 - first}});
        CHECK(sum == whole, "divided at %llu", first);
    }
}

// The checks of a grid.
struct Job {
    std::vector<Check> checks;
    std::vector<Segment> segments;

    void add(const std::vector<Segment>& more, u32 sum) {
        checks.push_back({static_cast<u32>(segments.size()), static_cast<u32>(more.size()), sum, 0});
        segments.insert(segments.end(), more.begin(), more.end());
    }
    std::vector<u32> run(u32 warps) const {
        std::vector<u32> verdicts(checks.size(), 0);
        const VerifyArguments arguments{reinterpret_cast<u64>(checks.data()), reinterpret_cast<u64>(segments.data()),
                                        reinterpret_cast<u64>(verdicts.data()), static_cast<u32>(checks.size()), 0};
        Grid(adit_verify, reinterpret_cast<u64>(&arguments), warps).join();
        return verdicts;
    }
};

void each_check_has_its_verdict() {
    Random random{14};
    const Memory memory(1 << 18);
    fill(random, memory);
    Job job;
    std::vector<u32> expected;
    for (u32 each = 0; each < 100; ++each) {
        const u64 from = random.below(1 << 17), count = random.below(3000), first = random.below(count + 1);
        const bool right = random.below(3) != 0;
        const u32 sum = slow_sum(memory.as<u8>() + from, count) ^ (right ? 0 : 1u << random.below(32));
        job.add({{memory.address() + from, first}, {memory.address() + from + first, count - first}}, sum);
        expected.push_back(right ? Verdict::INTACT : Verdict::CORRUPT);
    }
    for (u32 warps : {1u, 3u, 8u}) { CHECK(job.run(warps) == expected, "%u warps", warps); }
    CHECK(Job{}.run(2).empty(), "nothing to do");
}

void whatever_changes_the_bytes_is_found() {
    Random random{15};
    const Memory memory(8192);
    fill(random, memory);
    const std::vector<Segment> parts{{memory.address(), 1024}, {memory.address() + 4096, 1024}};
    const u32 sum = device_sum(parts);
    Job job;
    job.add(parts, sum);
    job.add({parts[1], parts[0]}, sum);
    job.add({parts[0], parts[0]}, sum);
    job.add({parts[0]}, sum);
    job.add({parts[0], {parts[1].address, 1023}}, sum);
    job.add({parts[0], {parts[1].address, 1025}}, sum);
    job.add({{parts[0].address, 1023}, {parts[0].address + 1, 1}, parts[1]}, sum);
    auto verdicts = job.run(2);
    CHECK(verdicts[0] == Verdict::INTACT, "nothing was changed");
    for (u64 each = 1; each < verdicts.size(); ++each) { CHECK(verdicts[each] == Verdict::CORRUPT, "change %llu", each); }
    for (u64 bit = 0; bit < 2048 * 8; bit += 1 + random.below(9)) {
        u8& byte = reinterpret_cast<u8*>(parts[bit / 8192].address)[bit / 8 % 1024];
        byte ^= static_cast<u8>(1 << bit % 8);
        CHECK(device_sum(parts) != sum, "bit %llu", bit);
        byte ^= static_cast<u8>(1 << bit % 8);
    }
}

}  // namespace

int main() {
    RUN(known_sums_come_out);
    RUN(every_length_at_every_alignment);
    RUN(long_runs_at_odd_places);
    RUN(segments_are_summed_as_one_run);
    RUN(each_check_has_its_verdict);
    RUN(whatever_changes_the_bytes_is_found);
}
