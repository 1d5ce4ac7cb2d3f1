// Structures shared by host and device code: a ring, a context, an I/O control block.
//
// gpu/src/layout.rs has the same structures and asserts the same sizes, and a test compares offsets. A field has one
// writer at a time, named beside it. Structures that different warps write are 128-byte aligned, so that they do not
// share a cache line.
#pragma once
#include "platform.h"

namespace adit {

// Most entries of a queue, which leaves four bits of a command identifier for its generation.
constexpr u32 DEPTH_MAX = 4096;
constexpr u32 CONTEXTS_MAX = 2048;

// A command to be sent: 16 bytes, like the mapping table's descriptor (NVMe Base 2.0 figure 96), with the place on the
// device.
//
// place: bits 39:0 first LBA, 51:40 LBAs less one, 62:52 the region of the pool, 63 a write.
struct alignas(16) Context {
    u64 address;
    u64 place;
};
static_assert(sizeof(Context) == 16, "as gpu/src/layout.rs has it");

// Reads a context with one load: it lies in host memory, where each load is a read over PCIe.
inline Context load_context(u64 contexts, u32 index) {
    u32 words[4];
    load128(contexts + sizeof(Context) * index, words);
    return {static_cast<u64>(words[1]) << 32 | words[0], static_cast<u64>(words[3]) << 32 | words[2]};
}

inline u64 lba_of(const Context& context) { return context.place & ((1ull << 40) - 1); }
inline u32 lbas_z_of(const Context& context) { return static_cast<u32>(context.place >> 40) & 0xfff; }
inline u32 region_of(const Context& context) { return static_cast<u32>(context.place >> 52) & 0x7ff; }
inline bool is_write(const Context& context) { return context.place >> 63; }

// A region of the pool with its prebuilt PRP lists: its first page, and two lists of all its pages, the second shifted
// by 256 entries (driver: transfer/prebuilt.rs).
struct Region {
    u64 address;
    u64 lists[2];
    u64 bytes;
};
static_assert(sizeof(Region) == 32, "as gpu/src/layout.rs has it");

// How a command points to its data.
enum class Form : u32 { SGL = 0, PRP = 1 };

// Why a ring is out of service (Ring::poison).
enum class Poison : u32 {
    NONE = 0,
    UNKNOWN_COMMAND = 1,      // a completion named a command that is not in flight
    WRONG_QUEUE = 2,          // a completion named another submission queue
    BAD_HEAD = 3,             // a completion gave a submission queue head outside the ring
    HOST = 4,                 // set by the host
};

// A request word (Ring::requests): the meaning of a command identifier.
//
// bits 15:0 context, 31:16 control block, 47:32 generation, 49:48 state.
enum class State : u32 {
    FREE = 0,
    IN_FLIGHT = 1,
    ABANDONED = 2,            // its control block no longer waits for it; the device may still execute it
};
inline u64 request_of(State state, u32 generation, u32 block, u32 context) {
    return static_cast<u64>(state) << 48 | static_cast<u64>(generation & 0xffff) << 32 | block << 16 | context;
}
inline State state_of(u64 request) { return static_cast<State>(request >> 48 & 3); }
inline u32 generation_of(u64 request) { return static_cast<u32>(request >> 32) & 0xffff; }
inline u32 block_of(u64 request) { return static_cast<u32>(request >> 16) & 0xffff; }
inline u32 context_of(u64 request) { return static_cast<u32>(request) & 0xffff; }

// One queue pair. Positions count entries since its creation and never wrap: entry `position % depth` of the submission
// ring, `position % cq_depth` of the completion ring.
//
// The host chooses slots + cq_interval <= cq_depth, so that the device never finds the completion ring full: a command
// that waits for it holds an identifier, and fewer than cq_interval identifiers are free again whose completions the
// device was not told of.
struct alignas(128) Ring {
    // Written by the host before the ring is used.
    u64 sq;                   // submission entries, 64 bytes each
    u64 cq;                   // completion entries, 16 bytes each
    u64 sq_doorbell;          // u32: a register of the device, or memory that the doorbell proxy reads
    u64 cq_doorbell;
    u64 published;            // u32[depth]: low word of position + 1 once the entry is written
    u64 requests;             // u64[slots]: the request of each command identifier's slot
    u64 free_slots;           // u32[]: a bit for each free slot
    u64 reciprocal;           // 2^64 / depth, rounded down
    u64 regions;              // Region[]: with Form::PRP
    u32 depth;
    u32 qid;
    u32 nsid;
    u32 slot_bits;            // bits of a command identifier for its slot; the rest is its generation
    u32 cq_interval;          // entries per ring of the completion doorbell
    u32 lba_shift;
    u32 protection;           // PRINFO, in place in dword 12
    Form form;
    u64 cq_reciprocal;        // 2^64 / cq_depth, rounded down
    u32 cq_depth;
    u32 slots;                // command identifiers: at most depth - 1
    u32 cq_in_host;           // 1: completion entries lie in host memory, a round trip over PCIe away
    u32 reserved;

    // Written by posting warps, atomically.
    alignas(128) u64 ticket;  // positions handed out

    // `pending` atomically; the rest by the combiner, the warp that raised it from zero.
    alignas(128) u32 pending; // entries published since the combiner last read it
    u32 reserved_pending;
    u64 rung;                 // position that the device was told
    u64 sq_rings;             // submission doorbell rings

    // `harvesting` atomically; the rest by the harvester, the warp that set it; `poison` once by any warp.
    alignas(128) u32 harvesting;
    u32 poison;
    u64 head;                 // position of the next completion
    u64 told;                 // position that the device was told
    u64 cq_rings;
    u64 late;                 // completions of abandoned commands
    u64 poison_detail;        // the completion's dwords 2 and 3
};
static_assert(sizeof(Ring) == 512, "as gpu/src/layout.rs has it");

// `claimed` and `remaining` name the use of the block they count for: bits 63:40 are the low bits of its generation. A
// late warp with knowledge of an earlier use changes nothing.
constexpr u32 COUNT_BITS = 40;
constexpr u64 COUNT_MAX = (1ull << COUNT_BITS) - 1;
inline u64 counted(u32 generation, u64 count) { return static_cast<u64>(generation) << COUNT_BITS | count; }
inline bool counts_for(u64 word, u32 generation) { return (word ^ counted(generation, 0)) >> COUNT_BITS == 0; }

// An I/O control block: up to 2048 contexts that are issued and awaited together.
//
// The host writes a block only while it is idle: from the moment it reads the last use's generation in `done_host` (or
// `done`, if there is no `done_host`) until it writes `issued` or launches a kernel for it. Each word is written whole.
struct alignas(128) Iocb {
    // Written by the host while the block is idle.
    u64 contexts;             // Context[count]
    u64 statuses;             // u32[count]: how each ended (`Ended`); if `total` > `count`, its last failure, or unchanged
    u64 done_host;            // u32 in host memory: a copy of `done` for the CPU, written after it; 0 for none
    u64 timeout_ns;           // from the moment a warp first sees it
    u64 total;                // commands to issue, 1 to COUNT_MAX / 2: `count`, or a multiple of it to repeat the contexts
    u32 count;
    u32 first_ring;           // the rings it may use
    u32 ring_count;
    u32 generation;           // of this use of the block: one more than the previous use's, and never 0
    u64 reserved[3];

    // Written last by the stream or the host to issue the block: `generation`.
    alignas(128) u32 issued;
    u32 reserved_issued;

    // Written by the host while the block is idle, and then by warps, atomically.
    alignas(128) u64 claimed; // contexts that warps claimed: initially counted(generation, 0), finally all ones
    u64 started_ns;           // when a warp first saw it; initially 0
    u64 remaining;            // commands that have not ended: initially counted(generation, total)
    u64 failed;               // commands that did not succeed; initially 0
    u64 ended_ns;             // when the last ended

    // `generation` once every command has ended; waiters poll it.
    alignas(128) u32 done;
    u32 reserved_done;
};
static_assert(sizeof(Iocb) == 512, "as gpu/src/layout.rs has it");

// How a context ended: the status field of its completion (Base 2.0 section 3.3.3.2.1, bits 31:17 of dword 3: 0 is
// success), or one of these.
namespace Ended {
constexpr u32 TIMED_OUT = 0x10000;       // no completion before its block's deadline; the device may still execute it
constexpr u32 NOT_SENT = 0x10001;        // the deadline passed, or the rings were stopped, before it was posted
constexpr u32 RESET = 0x10002;           // its ring went out of service
}  // namespace Ended

// Bytes that the checksum of a check is over: its segments, one behind the other.
struct Segment {
    u64 address;
    u64 bytes;
};
static_assert(sizeof(Segment) == 16, "as gpu/src/layout.rs has it");

struct Check {
    u32 first;                // its first segment
    u32 segments;
    u32 sum;                  // the CRC-32C that its bytes should have
    u32 zero;
};
static_assert(sizeof(Check) == 16, "as gpu/src/layout.rs has it");

// How a check ended; the host writes 0 before.
namespace Verdict {
constexpr u32 INTACT = 1;
constexpr u32 CORRUPT = 2;
}  // namespace Verdict

struct VerifyArguments {
    u64 checks;               // Check[count]
    u64 segments;             // Segment[]
    u64 verdicts;             // u32[count] in host memory, each one of `Verdict`
    u32 count;
    u32 zero;
};
static_assert(sizeof(VerifyArguments) == 32, "as gpu/src/layout.rs has it");

// The root of everything that device code works on: the argument of the kernels.
struct alignas(128) Uring {
    u64 rings;                // Ring[ring_count]
    u64 iocbs;                // Iocb[iocb_count]
    u32 ring_count;
    u32 iocb_count;
    u64 stop;                 // u32 in host memory: nonzero ends the persistent kernel
    u64 alive;                // u32 in host memory: counts up while the persistent kernel polls for work; 0 for none
    u64 reserved[11];
};
static_assert(sizeof(Uring) == 128, "as gpu/src/layout.rs has it");

inline u64 ring_at(u64 uring_rings, u32 index) { return uring_rings + static_cast<u64>(index) * sizeof(Ring); }
inline u64 iocb_at(u64 uring_iocbs, u32 index) { return uring_iocbs + static_cast<u64>(index) * sizeof(Iocb); }

}  // namespace adit
