// A stream: a queue of operations and the thread that executes them in order.
//
// Operations on the default stream wait for those of other blocking streams, and vice versa, as with CUDA's legacy
// default stream. Streams that share a hardware queue wait for each other's earlier operations (`queues=N`). A destroyed
// stream finishes its operations; its thread then ends. What is appended to a captured stream is counted, not done.
#pragma once
#include "state.h"

namespace emulated {

using Operation = std::function<void()>;

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Operation> queue;
    u64 enqueued = 0;
    u64 finished = 0;
    bool is_closing = false;
    Handle context = 0;         // as CUcontext
    u32 flags = 0;
    bool is_legacy = false;
    u32 hardware_queue = 0;     // 0: its own
    std::shared_ptr<Capture> capture;

    bool is_idle();
    // Returns the capture that the stream takes part in, or null.
    std::shared_ptr<Capture> captured();
    // Waits until the first `position` operations are done; returns false once the patience, if any, is over.
    bool wait(u64 position, u32 timeout_ms);
    void wait(u64 position);
};

std::shared_ptr<Stream> start_stream(Handle context, u32 flags, bool is_legacy);
void close_stream(const std::shared_ptr<Stream>& stream);

// Returns the stream of a handle in the calling thread's context: 0, 1 and 2 are the default stream. Null if there is
// none.
std::shared_ptr<Stream> stream_of(Handle handle);

// Appends an operation; returns the number of operations in all, to wait for. Counts it if the stream is captured.
u64 append(const std::shared_ptr<Stream>& stream, Operation operation);

// Appends and waits; LAUNCH_TIMEOUT if the patience is over first, and then the operation is never done.
Result run(const std::shared_ptr<Stream>& stream, Operation operation);

// Waits for all current operations of a context's streams, including its green contexts'.
Result synchronize(Handle context);

}  // namespace emulated
