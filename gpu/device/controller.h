// An NVMe controller in device code, for tests and for measuring the rings without a drive.
//
// It serves I/O queues in memory, with one warp each, or several each. It trusts nothing and shares nothing with
// ring.h: it checks every field of each command (NVM Command Set 1.0 sections 3.2.4 and 3.2.6, Base 2.0 section 3.3.3),
// counts bad ones by kind and answers them with a status. It never overruns a completion queue. On request it breaks
// the rules itself, to test the other side.
//
// Addresses in commands are memory addresses as this code sees them, inside the ranges that the arguments allow.
#pragma once
#include "platform.h"

namespace adit {

// Kinds of bad commands, an index of ControllerQueue::bad.
enum class Bad : u32 {
    DOORBELL = 0,             // a doorbell's value outside the queue
    OPCODE = 1,
    FLAGS = 2,                // fused, or PSDT other than the form's
    IDENTIFIER = 3,           // in flight already
    NAMESPACE = 4,
    RESERVED = 5,             // a reserved field that is not zero
    RANGE = 6,                // LBAs outside the namespace, or too many
    POINTER = 7,              // data outside the allowed ranges, or misaligned
    LENGTH = 8,               // an SGL length that does not match the LBAs
    DESCRIPTOR = 9,           // an SGL descriptor's type
};
constexpr u32 BAD_KINDS = 16;

// The fault that hits every `fault_every`th command of a queue.
enum class Fault : u32 {
    NONE = 0,
    STATUS = 1,               // answers Unrecovered Read Error without moving data
    LOST = 2,                 // executes it without an answer
    DELAYED = 3,              // answers after `delay_ns`, out of order
    TWICE = 4,                // answers twice
    WRONG_COMMAND = 5,        // answers with an identifier that is not in flight
    WRONG_QUEUE = 6,          // answers with another submission queue identifier
    BAD_HEAD = 7,             // answers with a submission queue head outside the queue
};

// Most commands of a queue with a late answer pending.
constexpr u32 DELAYED_MAX = 32;

// Memory that commands may point to.
struct ControllerRange {
    u64 address;
    u64 bytes;
};
static_assert(sizeof(ControllerRange) == 16, "as gpu/src/layout.rs has it");

// The controller's view of a queue pair.
struct alignas(128) ControllerQueue {
    // Written by the host before the controller starts.
    u64 sq;                   // submission entries, 64 bytes each
    u64 cq;                   // completion entries, 16 bytes each
    u64 sq_doorbell;          // u32: the submission tail
    u64 cq_doorbell;          // u32: the completion head
    u64 in_flight;            // u32[2048]: a bit for each unanswered command identifier; initially zero
    u32 depth;                // of the submission queue: 2 to 65535
    u32 cq_depth;             // of the completion queue: 2 to 65535
    u32 qid;
    u32 tail;                 // the last submission tail inside the queue
    // Positions count entries since the queue was created; they and the doorbells start at 0.
    u64 sq_head;              // position of the next command
    u64 cq_tail;              // position of the next completion
    u64 cq_head;              // position up to which the host has read
    u32 sq_seen;              // the submission doorbell as last read
    u32 cq_seen;
    u64 reserved[5];

    // Written by the queue's warp: counts since the host zeroed them.
    alignas(128) u64 commands;
    u64 completions;
    u64 sq_rings;             // observed changes of the submission doorbell
    u64 cq_rings;
    u64 faults;
    u64 delayed_count;        // commands with a late answer pending
    u64 looks;                // at the queue with a command waiting
    u64 full;                 // of those, while the completion queue was full
    u64 reserved_counts[8];
    u64 bad[BAD_KINDS];       // bad commands by kind, an index of `Bad`
    u64 delayed_ns[DELAYED_MAX];
    u32 delayed[DELAYED_MAX]; // identifier, status << 16
};
static_assert(sizeof(ControllerQueue) == 768, "as gpu/src/layout.rs has it");

struct ControllerArguments {
    u64 queues;               // ControllerQueue[queue_count]
    u64 ranges;               // ControllerRange[range_count]
    u64 stop;                 // u32 in host memory: nonzero ends the kernel
    u64 alive;                // u32 in host memory: counts up while the kernel runs; 0 for none
    u64 media;                // the namespace's bytes, which data is moved to and from; 0: no data is moved
    u64 lbas;                 // size of the namespace
    u64 delay_ns;             // of Fault::DELAYED
    u32 queue_count;
    u32 range_count;
    u32 nsid;
    u32 lba_shift;
    u32 lbas_max;             // most LBAs of a command
    u32 form;                 // 0: data by SGL data blocks; 1: by PRPs
    u32 fault;                // one of `Fault`
    u32 fault_every;          // which commands it hits: nonzero, unless the fault is NONE
    u32 fault_first;          // number of commands of each queue before the first that it may hit
    u32 reserved;
};
static_assert(sizeof(ControllerArguments) == 96, "as gpu/src/layout.rs has it");

// -------------------------------------------------------------------------------------------- a queue's state

struct Command {
    u32 words[16];
};
constexpr u32 COMMAND_BYTES = 64;
constexpr u32 ANSWER_BYTES = 16;
constexpr u32 NOTHING_BAD = 0xffff;
// Status fields, as bits 31:17 of an answer's dword 3: code, type << 8, do not retry << 14.
constexpr u32 STATUS_UNRECOVERED_READ = 0x281;
constexpr u32 DO_NOT_RETRY = 1u << 14;
constexpr u64 LIST_PAGE = 4096;

// State that a warp keeps in registers while it serves a queue.
struct QueueState {
    u64 at;
    u64 sq, cq, sq_doorbell, cq_doorbell, in_flight;
    u64 commands, completions, sq_rings, cq_rings, faults, looks, full;
    u64 sq_head, cq_tail, cq_head;
    u32 depth, cq_depth, qid;
    u32 sq_entry;             // sq_head % depth
    u32 cq_entry;             // cq_tail % cq_depth
    u32 phase;                // of the entry at cq_entry
    u32 delayed;              // commands with a late answer pending
    u32 sq_seen, cq_seen;     // the doorbells as last read
    u32 tail;                 // the last submission tail inside the queue
};

inline QueueState load_state(u64 at) {
    const ControllerQueue& queue = *reinterpret_cast<const ControllerQueue*>(at);
    const u32 sq_entry = static_cast<u32>(queue.sq_head % queue.depth);
    const u64 laps = queue.cq_tail / queue.cq_depth;
    return {at, queue.sq, queue.cq, queue.sq_doorbell, queue.cq_doorbell, queue.in_flight,
            queue.commands, queue.completions, queue.sq_rings, queue.cq_rings, queue.faults, queue.looks, queue.full,
            queue.sq_head, queue.cq_tail, queue.cq_head, queue.depth, queue.cq_depth, queue.qid,
            sq_entry, static_cast<u32>(queue.cq_tail - laps * queue.cq_depth), static_cast<u32>(~laps & 1),
            static_cast<u32>(queue.delayed_count), queue.sq_seen, queue.cq_seen, queue.tail};
}

inline void store_state(const QueueState& state) {
    once([&] {
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, commands), state.commands);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, completions), state.completions);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, sq_rings), state.sq_rings);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, cq_rings), state.cq_rings);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, faults), state.faults);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, looks), state.looks);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, full), state.full);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, sq_head), state.sq_head);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, cq_tail), state.cq_tail);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, cq_head), state.cq_head);
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, delayed_count), state.delayed);
        store32_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, sq_seen), state.sq_seen);
        store32_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, cq_seen), state.cq_seen);
        store32_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, tail), state.tail);
        return 0u;
    });
}

inline void count_bad(const QueueState& state, Bad kind) {
    add64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, bad) + 8ull * static_cast<u32>(kind), 1);
}

// Reads both doorbells, and accepts values inside the queues.
inline void read_doorbells(QueueState& state) {
    const u32 tail = agree(load32_acquire_system(state.sq_doorbell));
    const u32 head = agree(load32_acquire_system(state.cq_doorbell));
    // Makes what lane 0 acquired visible to all lanes.
    warp_sync();
    u32 wrong = 0;
    if (tail != state.sq_seen) {
        state.sq_seen = tail;
        ++state.sq_rings;
        if (tail < state.depth) { state.tail = tail; } else { ++wrong; }
    }
    if (head != state.cq_seen) {
        state.cq_seen = head;
        ++state.cq_rings;
        const u32 before = static_cast<u32>(state.cq_head % state.cq_depth);
        const u32 read = head >= before ? head - before : head + state.cq_depth - before;
        if (head < state.cq_depth && read <= state.cq_tail - state.cq_head) { state.cq_head += read; } else { ++wrong; }
    }
    if (wrong != 0) {
        once([&] {
            count_bad(state, Bad::DOORBELL);
            return 0u;
        });
    }
}

// Returns how many answers fit.
inline u32 answer_room(const QueueState& state) {
    return state.cq_depth - 1 - static_cast<u32>(state.cq_tail - state.cq_head);
}

// -------------------------------------------------------------------------------------------- checking

inline u64 join(u32 low, u32 high) { return static_cast<u64>(high) << 32 | low; }
inline u64 command_lba(const Command& command) { return join(command.words[10], command.words[11]); }
inline u32 command_lbas(const Command& command) { return (command.words[12] & 0xffff) + 1; }
inline u64 data_pointer(const Command& command) { return join(command.words[6], command.words[7]); }
inline u64 second_pointer(const Command& command) { return join(command.words[8], command.words[9]); }

inline bool is_allowed(const ControllerArguments& arguments, u64 address, u64 bytes) {
    const ControllerRange* ranges = reinterpret_cast<const ControllerRange*>(arguments.ranges);
    for (u32 each = 0; each < arguments.range_count; ++each) {
        const u64 offset = address - ranges[each].address;
        if (address >= ranges[each].address && offset <= ranges[each].bytes && bytes <= ranges[each].bytes - offset) {
            return true;
        }
    }
    return false;
}

// Visits the runs of data that PRPs point to (Base 2.0 section 4.1.1); returns false if the PRPs are invalid. `visit`
// takes an address and bytes, and returns whether to continue.
template <class F>
bool each_prp(const ControllerArguments& arguments, u64 first, u64 second, u64 bytes, F&& visit) {
    const u64 in_first = LIST_PAGE - first % LIST_PAGE;
    if (bytes <= in_first) { return first % 4 == 0 && second == 0 && visit(first, bytes); }
    if (first % 4 != 0 || !visit(first, in_first)) { return false; }
    u64 left = bytes - in_first;
    if (left <= LIST_PAGE) { return second % LIST_PAGE == 0 && visit(second, left); }
    u64 list = second;
    if (list % 8 != 0) { return false; }
    while (left != 0) {
        if (!is_allowed(arguments, list, 8)) { return false; }
        const u64 entry = load64_relaxed_system(list);
        if (entry % LIST_PAGE != 0) { return false; }
        // The last word of a list's page points to the next page, if more than one entry is left.
        if (list % LIST_PAGE == LIST_PAGE - 8 && left > LIST_PAGE) {
            list = entry;
            continue;
        }
        const u64 here = left < LIST_PAGE ? left : LIST_PAGE;
        if (!visit(entry, here)) { return false; }
        left -= here;
        list += 8;
    }
    return true;
}

inline Bad wrong_data(const ControllerArguments& arguments, const Command& command) {
    const u64 bytes = static_cast<u64>(command_lbas(command)) << arguments.lba_shift;
    const u64 address = data_pointer(command);
    if (arguments.form == 0) {
        if (command.words[9] != 0) { return Bad::DESCRIPTOR; }
        if (command.words[8] != bytes) { return Bad::LENGTH; }
        const bool right = address % 4 == 0 && is_allowed(arguments, address, bytes);
        return right ? static_cast<Bad>(NOTHING_BAD) : Bad::POINTER;
    }
    const bool right = each_prp(arguments, address, second_pointer(command), bytes, [&](u64 at, u64 length) {
        return is_allowed(arguments, at, length);
    });
    return right ? static_cast<Bad>(NOTHING_BAD) : Bad::POINTER;
}

// Returns the fault of a command, other than of its identifier.
inline Bad wrong_field(const ControllerArguments& arguments, const Command& command) {
    const u32 opcode = command.words[0] & 0xff;
    if (opcode != 1 && opcode != 2) { return Bad::OPCODE; }
    if ((command.words[0] >> 8 & 0xff) != (arguments.form == 0 ? 0x40 : 0)) { return Bad::FLAGS; }
    if (command.words[1] != arguments.nsid) { return Bad::NAMESPACE; }
    const u32 reserved = command.words[2] | command.words[3] | command.words[4] | command.words[5] |
                         command.words[12] >> 16 | command.words[13] | command.words[14] | command.words[15];
    if (reserved != 0) { return Bad::RESERVED; }
    const u64 lba = command_lba(command), lbas = command_lbas(command);
    if (lbas > arguments.lbas_max || lba >= arguments.lbas || lbas > arguments.lbas - lba) { return Bad::RANGE; }
    return wrong_data(arguments, command);
}

// Returns the status for a fault (Base 2.0 figures 94 and 95, NVM Command Set 1.0 figure 15).
inline u32 status_of(Bad kind) {
    switch (kind) {
    case Bad::OPCODE: return DO_NOT_RETRY | 0x01;
    case Bad::IDENTIFIER: return DO_NOT_RETRY | 0x03;
    case Bad::NAMESPACE: return DO_NOT_RETRY | 0x0b;
    case Bad::RANGE: return DO_NOT_RETRY | 0x80;
    case Bad::POINTER: return DO_NOT_RETRY | 0x13;
    case Bad::LENGTH: return DO_NOT_RETRY | 0x0f;
    case Bad::DESCRIPTOR: return DO_NOT_RETRY | 0x11;
    default: return DO_NOT_RETRY | 0x02;
    }
}

// Checks the commands of the first `count` lanes; returns the status of each, 0 if valid.
inline PerLane<u32> check_commands(const ControllerArguments& arguments, const QueueState& state,
                                   const PerLane<Command>& commands, u32 count) {
    PerLane<u32> statuses;
    ADIT_EACH_LANE(lane) {
        if (lane >= count) { continue; }
        const u32 cid = commands[lane].words[0] >> 16;
        const u32 bit = 1u << cid % 32;
        const bool taken = or32_release_gpu(state.in_flight + 4ull * (cid / 32), bit) & bit;
        const Bad kind = taken ? Bad::IDENTIFIER : wrong_field(arguments, commands[lane]);
        if (kind == static_cast<Bad>(NOTHING_BAD)) { continue; }
        count_bad(state, kind);
        statuses[lane] = status_of(kind);
    }
    return statuses;
}

// -------------------------------------------------------------------------------------------- moving data

// Copies with all lanes. Addresses and `bytes` are multiples of 4.
inline void copy(u64 to, u64 from, u64 bytes) {
    if ((to | from | bytes) % 16 == 0) {
        ADIT_EACH_LANE(lane) {
            for (u64 offset = lane * 16; offset < bytes; offset += LANES * 16) {
                u32 words[4];
                load128(from + offset, words);
                store128(to + offset, words[0], words[1], words[2], words[3]);
            }
        }
        return;
    }
    ADIT_EACH_LANE(lane) {
        for (u64 offset = lane * 4; offset < bytes; offset += LANES * 4) {
            *reinterpret_cast<u32*>(to + offset) = *reinterpret_cast<const u32*>(from + offset);
        }
    }
}

inline void move_command(const ControllerArguments& arguments, const Command& command) {
    const u64 bytes = static_cast<u64>(command_lbas(command)) << arguments.lba_shift;
    const bool write = (command.words[0] & 0xff) == 1;
    u64 media = arguments.media + (command_lba(command) << arguments.lba_shift);
    auto move = [&](u64 at, u64 length) {
        copy(write ? media : at, write ? at : media, length);
        media += length;
        return true;
    };
    if (arguments.form == 0) {
        move(data_pointer(command), bytes);
    } else {
        each_prp(arguments, data_pointer(command), second_pointer(command), bytes, move);
    }
}

// Moves the data of the commands of some lanes.
inline void move_data(const ControllerArguments& arguments, const PerLane<Command>& commands, u32 lanes) {
    for (; lanes != 0; lanes &= lanes - 1) {
        const u32 from = first_lane(lanes);
        Command command{};
        for (u32 word = 0; word < 16; ++word) {
            PerLane<u32> words;
            ADIT_EACH_LANE(lane) { words[lane] = commands[lane].words[word]; }
            command.words[word] = shuffle(words, from);
        }
        move_command(arguments, command);
    }
    warp_sync();
}

// -------------------------------------------------------------------------------------------- answering

// Dwords 2 and 3 of an answer; the phase is added when it is written.
struct Answer {
    u32 head_and_queue;
    u32 cid_and_status;
};

inline void write_answer(const QueueState& state, u32 rank, const Answer& answer) {
    const u32 entry = state.cq_entry + rank;
    const bool wrapped = entry >= state.cq_depth;
    const u64 at = state.cq + static_cast<u64>(wrapped ? entry - state.cq_depth : entry) * ANSWER_BYTES;
    store64_relaxed_system(at, 0);
    store32_relaxed_system(at + 8, answer.head_and_queue);
    store32_release_system(at + 12, answer.cid_and_status | (wrapped ? 1 - state.phase : state.phase) << 16);
}

// Writes the answers of `lanes`, and those of `again` twice. There must be room for them.
inline void write_answers(QueueState& state, const PerLane<Answer>& answers, u32 lanes, u32 again) {
    ADIT_EACH_LANE(lane) {
        if ((lanes >> lane & 1) == 0) { continue; }
        const u32 below = lanes_below(lane);
        const u32 rank = population(lanes & below) + population(again & below);
        const u32 cid = answers[lane].cid_and_status & 0xffff;
        and32_acquire_gpu(state.in_flight + 4ull * (cid / 32), ~(1u << cid % 32));
        write_answer(state, rank, answers[lane]);
        if (again >> lane & 1) { write_answer(state, rank + 1, answers[lane]); }
    }
    const u32 count = population(lanes) + population(again);
    state.completions += count;
    state.cq_tail += count;
    state.cq_entry += count;
    if (state.cq_entry >= state.cq_depth) {
        state.cq_entry -= state.cq_depth;
        state.phase = 1 - state.phase;
    }
    warp_sync();
}

// Defers the answers of some lanes; there must be room for them.
inline void delay_answers(const ControllerArguments& arguments, QueueState& state, const PerLane<Answer>& answers, u32 lanes) {
    ADIT_EACH_LANE(lane) {
        if ((lanes >> lane & 1) == 0) { continue; }
        const u32 place = state.delayed + population(lanes & lanes_below(lane));
        store64_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, delayed_ns) + 8ull * place, now_ns() + arguments.delay_ns);
        store32_relaxed_gpu(ADIT_FIELD(ControllerQueue, state.at, delayed) + 4ull * place, answers[lane].cid_and_status);
    }
    state.delayed += population(lanes);
    warp_sync();
}

// Writes deferred answers that are due, as far as there is room.
inline void answer_delayed(QueueState& state) {
    const u64 times = ADIT_FIELD(ControllerQueue, state.at, delayed_ns), words = ADIT_FIELD(ControllerQueue, state.at, delayed);
    PerLane<Answer> answers;
    PerLane<u64> due_ns;
    PerLane<bool> due;
    ADIT_EACH_LANE(lane) {
        if (lane >= state.delayed) { continue; }
        due_ns[lane] = load64_relaxed_gpu(times + 8ull * lane);
        due[lane] = now_ns() >= due_ns[lane];
        answers[lane] = {state.sq_entry | state.qid << 16, load32_relaxed_gpu(words + 4ull * lane)};
    }
    u32 lanes = ballot(due);
    for (u32 room = answer_room(state); population(lanes) > room;) { lanes &= lanes - 1; }
    if (lanes == 0) { return; }
    const u32 stay = lowest(state.delayed) & ~lanes;
    ADIT_EACH_LANE(lane) {
        if ((stay >> lane & 1) == 0) { continue; }
        const u32 place = population(stay & lanes_below(lane));
        store64_relaxed_gpu(times + 8ull * place, due_ns[lane]);
        store32_relaxed_gpu(words + 4ull * place, answers[lane].cid_and_status);
    }
    state.delayed = population(stay);
    write_answers(state, answers, lanes, 0);
}

// -------------------------------------------------------------------------------------------- serving

// Returns the lanes of a batch that the fault hits.
inline u32 faulty_lanes(const ControllerArguments& arguments, const QueueState& state, u32 count) {
    if (static_cast<Fault>(arguments.fault) == Fault::NONE) { return 0; }
    PerLane<bool> hit;
    ADIT_EACH_LANE(lane) {
        const u64 number = state.commands + lane;
        hit[lane] = lane < count && number >= arguments.fault_first &&
                    (number - arguments.fault_first) % arguments.fault_every == 0;
    }
    return ballot(hit);
}

inline void spoil(Fault fault, const QueueState& state, Answer& answer) {
    if (fault == Fault::WRONG_COMMAND) { answer.cid_and_status ^= 0x8000; }
    if (fault == Fault::WRONG_QUEUE) { answer.head_and_queue += 0x10000; }
    if (fault == Fault::BAD_HEAD) { answer.head_and_queue = state.depth | state.qid << 16; }
}

// Answers the batch's commands, applying the fault to those of `faulty`.
inline void answer_batch(const ControllerArguments& arguments, QueueState& state, const PerLane<Command>& commands,
                         const PerLane<u32>& statuses, u32 count, u32 faulty) {
    const Fault fault = static_cast<Fault>(arguments.fault);
    PerLane<Answer> answers;
    ADIT_EACH_LANE(lane) {
        if (lane >= count) { continue; }
        const u32 cid = commands[lane].words[0] >> 16;
        answers[lane] = {state.sq_entry | state.qid << 16, cid | statuses[lane] << 17};
        if (faulty >> lane & 1) { spoil(fault, state, answers[lane]); }
    }
    u32 aside = 0;
    if (fault == Fault::LOST) { aside = faulty; }
    if (fault == Fault::DELAYED) {
        aside = faulty;
        while (state.delayed + population(aside) > DELAYED_MAX) { aside &= aside - 1; }
        delay_answers(arguments, state, answers, aside);
    }
    write_answers(state, answers, lowest(count) & ~aside, fault == Fault::TWICE ? faulty : 0);
    state.faults += population(faulty);
}

// Serves up to 32 commands; returns their number.
inline u32 serve_batch(const ControllerArguments& arguments, QueueState& state) {
    const Fault fault = static_cast<Fault>(arguments.fault);
    const u32 there = state.tail >= state.sq_entry ? state.tail - state.sq_entry : state.tail + state.depth - state.sq_entry;
    if (there == 0) { return 0; }
    const u32 room = fault == Fault::TWICE ? answer_room(state) / 2 : answer_room(state);
    ++state.looks;
    state.full += room == 0;
    u32 count = there < room ? there : room;
    count = count < LANES ? count : LANES;
    if (count == 0) { return 0; }
    PerLane<Command> commands;
    ADIT_EACH_LANE(lane) {
        if (lane >= count) { continue; }
        const u32 entry = state.sq_entry + lane;
        const u64 at = state.sq + static_cast<u64>(entry >= state.depth ? entry - state.depth : entry) * COMMAND_BYTES;
        for (u32 part = 0; part < 4; ++part) { load128(at + 16ull * part, commands[lane].words + 4 * part); }
    }
    const u32 faulty = faulty_lanes(arguments, state, count);
    PerLane<u32> statuses = check_commands(arguments, state, commands, count);
    PerLane<bool> right;
    ADIT_EACH_LANE(lane) {
        if (fault == Fault::STATUS && (faulty >> lane & 1) != 0 && statuses[lane] == 0) {
            statuses[lane] = STATUS_UNRECOVERED_READ;
        }
        right[lane] = lane < count && statuses[lane] == 0;
    }
    if (arguments.media != 0) { move_data(arguments, commands, ballot(right)); }
    state.sq_head += count;
    state.sq_entry = state.sq_entry + count >= state.depth ? state.sq_entry + count - state.depth : state.sq_entry + count;
    answer_batch(arguments, state, commands, statuses, count, faulty);
    state.commands += count;
    return count;
}

// Turns that a warp takes at a queue before it checks its other queues and the stop word.
constexpr u32 SERVE_TURNS = 128;

// Serves a queue for a while; returns the number of commands.
inline u64 serve(const ControllerArguments& arguments, u64 at) {
    QueueState state = load_state(at);
    const u64 before = state.commands;
    for (u32 turn = 0; turn < SERVE_TURNS; ++turn) {
        read_doorbells(state);
        if (state.delayed != 0) { answer_delayed(state); }
        if (serve_batch(arguments, state) == 0) { break; }
    }
    store_state(state);
    return state.commands - before;
}

// Serves queues until the host sets stop; each warp serves every `warp_count`th queue.
inline void control(const ControllerArguments& arguments) {
    for (u32 round = 0;; ++round) {
        u64 served = 0;
        for (u32 queue = warp_index(); queue < arguments.queue_count; queue += warp_count()) {
            served += serve(arguments, arguments.queues + static_cast<u64>(queue) * sizeof(ControllerQueue));
        }
        if (served != 0 && round % SERVE_TURNS != 0) { continue; }
        if (agree(load32_relaxed_system(arguments.stop)) != 0) { return; }
        if (warp_index() == 0 && arguments.alive != 0) {
            once([&] {
                store32_relaxed_system(arguments.alive, load32_relaxed_system(arguments.alive) + 1);
                return 0u;
            });
        }
        if (served == 0) { pause(); }
    }
}

}  // namespace adit
