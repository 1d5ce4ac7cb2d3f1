// CRC-32C of bytes in memory, by one warp: the checksum that a store keeps of each payload (RFC 3720, section 12.1).
//
// A checksum is the remainder of a polynomial over GF(2) divided by P. In a word, bit 31 is the coefficient of x^0 and
// bit 0 that of x^31, so that the bytes of a little-endian word come in the order in which the sum takes them.
//
// The warp takes rows of 512 bytes, 16 for each lane. A lane has a remainder for each of its four words: a row
// multiplies it by x^4096, by tables, and adds the word. At the end each is multiplied by the power of x that its place
// in the row stands for, and all are added. Three facts spare computing powers from lengths:
// - Zeros before the first byte change no remainder, so the first row may begin before the run of bytes.
// - What a sum is at the beginning of a run, ~0 or the sum of the runs before, are four more bytes in front of it.
// - x has an inverse modulo P, so zeros behind the last byte are divided out.
//
// Loads are of 16 bytes at their alignment, so up to 15 bytes before and behind a run are read and masked out: none is
// in another page than a byte of the run.
#pragma once
#include "layout.h"

namespace adit {

constexpr u32 SUM_POLYNOMIAL = 0x82f63b78;
// The state of a sum before the first byte. A sum is the complement of the state behind the last.
constexpr u32 SUM_BEGIN = 0xffffffff;
constexpr u32 ROW_BYTES = 512;
constexpr u32 ROW_WORDS = ROW_BYTES / 4;
constexpr u32 VECTOR_BYTES = 16;
// Rows of a step, whose loads do not wait for one another.
constexpr u32 ROWS_AT_ONCE = 4;

constexpr u32 times_x(u32 value) { return value >> 1 ^ ((value & 1) != 0 ? SUM_POLYNOMIAL : 0); }
// The inverse of `times_x`: it sets bit 31 only by the polynomial.
constexpr u32 divided_by_x(u32 value) {
    return value >> 31 != 0 ? (value ^ SUM_POLYNOMIAL) << 1 | 1 : value << 1;
}

// Returns a * b modulo P.
inline u32 times(u32 a, u32 b) {
    u32 product = 0;
    for (u32 bit = 0; bit < 32; ++bit) {
        product ^= (0u - (a >> 31)) & b;
        a <<= 1;
        b = times_x(b);
    }
    return product;
}

// What the sums multiply by.
struct SumTables {
    u32 row[4][256];          // by x^4096: the products of each byte of a word
    u32 place[ROW_WORDS];     // for the last row: x^(32 * (128 - word)), the sum's own x^32 included
    u32 back[VECTOR_BYTES];   // x^(-8 * bytes)
};
static_assert(sizeof(SumTables) % 4 == 0, "copied by words");

constexpr SumTables make_sum_tables() {
    SumTables tables{};
    u32 power = 1u << 31;
    for (u32 word = ROW_WORDS; word-- > 0;) {
        for (u32 bit = 0; bit < 32; ++bit) { power = times_x(power); }
        tables.place[word] = power;
    }
    for (u32 bit = 32; bit-- > 0; power = times_x(power)) { tables.row[bit / 8][1u << bit % 8] = power; }
    for (u32 byte = 0; byte < 4; ++byte) {
        for (u32 value = 1; value < 256; ++value) {
            const u32 rest = value & (value - 1);
            tables.row[byte][value] = tables.row[byte][rest] ^ tables.row[byte][value ^ rest];
        }
    }
    tables.back[0] = 1u << 31;
    for (u32 bytes = 1; bytes < VECTOR_BYTES; ++bytes) {
        tables.back[bytes] = tables.back[bytes - 1];
        for (u32 bit = 0; bit < 8; ++bit) { tables.back[bytes] = divided_by_x(tables.back[bytes]); }
    }
    return tables;
}
constexpr SumTables SUM_TABLES = make_sum_tables();

// A run of bytes, and its rows: the last ends at the first boundary of a vector behind the run.
struct SumRun {
    u64 from, to;             // its bytes
    u64 first;                // address of the first row
    u64 rows;
    u32 prefix;               // the four bytes in front of it
};

inline SumRun sum_run(u64 from, u64 bytes, u32 prefix) {
    const u64 to = from + bytes, mask = VECTOR_BYTES - 1;
    const u64 begin = (from - 4) & ~mask, end = (to + mask) & ~mask;
    const u64 rows = (end - begin + ROW_BYTES - 1) / ROW_BYTES;
    return {from, to, end - rows * ROW_BYTES, rows, prefix};
}

// Returns ones where a word at `at` is inside a run.
inline u32 inside(const SumRun& run, u64 at) {
    const u64 before = run.from > at ? run.from - at : 0, behind = at + 4 > run.to ? at + 4 - run.to : 0;
    if (before >= 4 || behind >= 4) { return 0; }
    return ~0u << 8 * before & ~0u >> 8 * behind;
}

// Returns what of the prefix is in a word at `at`.
inline u32 prefix_in(const SumRun& run, u64 at) {
    const u64 begin = run.from - 4;
    if (at + 4 <= begin || at >= run.from) { return 0; }
    return at >= begin ? run.prefix >> 8 * (at - begin) : run.prefix << 8 * (begin - at);
}

inline void fold(const SumTables& tables, u32* sums, const u32* words) {
    for (u32 word = 0; word < 4; ++word) {
        const u32 sum = sums[word];
        sums[word] = tables.row[0][sum & 0xff] ^ tables.row[1][sum >> 8 & 0xff] ^ tables.row[2][sum >> 16 & 0xff] ^
                     tables.row[3][sum >> 24] ^ words[word];
    }
}

// Adds a lane's vector of a row that is not all inside the run.
inline void fold_edge(const SumTables& tables, const SumRun& run, u64 at, u32* sums) {
    u32 words[4] = {0, 0, 0, 0};
    if (at + VECTOR_BYTES > run.from && at < run.to) { load128(at, words); }
    for (u32 word = 0; word < 4; ++word) {
        words[word] = (words[word] & inside(run, at + 4 * word)) | prefix_in(run, at + 4 * word);
    }
    fold(tables, sums, words);
}

// Returns what a lane adds to the state of a sum behind the run's last row.
inline u32 lane_sum(const SumTables& tables, const SumRun& run, u32 lane) {
    u32 sums[4] = {0, 0, 0, 0};
    u64 at = run.first + VECTOR_BYTES * lane;
    for (u64 row = 0; row < run.rows;) {
        // The prefix and the first byte may be in two rows.
        if (row < 2 || row + ROWS_AT_ONCE >= run.rows) {
            fold_edge(tables, run, at, sums);
            ++row;
            at += ROW_BYTES;
            continue;
        }
        u32 words[ROWS_AT_ONCE][4];
        for (u32 next = 0; next < ROWS_AT_ONCE; ++next) { load128(at + next * ROW_BYTES, words[next]); }
        for (u32 next = 0; next < ROWS_AT_ONCE; ++next) { fold(tables, sums, words[next]); }
        row += ROWS_AT_ONCE;
        at += ROWS_AT_ONCE * ROW_BYTES;
    }
    u32 sum = 0;
    for (u32 word = 0; word < 4; ++word) { sum ^= times(sums[word], tables.place[4 * lane + word]); }
    return sum;
}

// Returns the state of a sum behind a run of bytes, from the state before it.
inline u32 sum_on(const SumTables& tables, u32 state, u64 from, u64 bytes) {
    const SumRun run = sum_run(from, bytes, times(state, tables.back[4]));
    PerLane<u32> sums;
    ADIT_EACH_LANE(lane) { sums[lane] = lane_sum(tables, run, lane); }
    const u32 sum = xor_lanes(sums);
    const u32 behind = static_cast<u32>(run.first + run.rows * ROW_BYTES - run.to);
    return behind == 0 ? sum : times(sum, tables.back[behind]);
}

// Returns the sum of a check's bytes.
inline u32 sum_of(const SumTables& tables, const Check& check, u64 segments) {
    u32 state = SUM_BEGIN;
    for (u32 each = 0; each < check.segments; ++each) {
        const Segment segment = reinterpret_cast<const Segment*>(segments)[check.first + each];
        state = sum_on(tables, state, segment.address, segment.bytes);
    }
    return ~state;
}

// Compares the sums of listed checks with the expected ones; a warp takes one check after another. For all threads of
// their blocks.
inline void verify_listed(const VerifyArguments& arguments) {
    const SumTables& tables = block_copy(SUM_TABLES);
    for (u32 each = warp_index(); each < arguments.count; each += warp_count()) {
        const Check check = reinterpret_cast<const Check*>(arguments.checks)[each];
        const bool intact = sum_of(tables, check, arguments.segments) == check.sum;
        once([&] {
            store32_release_system(arguments.verdicts + 4ull * each, intact ? Verdict::INTACT : Verdict::CORRUPT);
            return 0u;
        });
    }
}

}  // namespace adit
