// A stream: a queue of operations and the thread that does them in order.
//
// Operations on the default stream wait for what other blocking streams have, and theirs wait for the default
// stream's, as CUDA's legacy default stream does. A destroyed stream finishes what it has; its thread then ends.
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
    int priority = 0;
    bool is_legacy = false;

    bool is_idle();
    // Until the first `position` operations are done; false once the patience is over, if there is one.
    bool wait(u64 position, u32 timeout_ms);
    void wait(u64 position);
};

// Makes a stream and its thread.
std::shared_ptr<Stream> start_stream(Handle context, u32 flags, int priority, bool is_legacy);
void close_stream(const std::shared_ptr<Stream>& stream);

// The stream of a handle in the calling thread's context: 0, 1 and 2 are the default stream. Null if there is none.
std::shared_ptr<Stream> stream_of(Handle handle);

// Appends an operation; the number of operations in all, to wait for.
u64 append(const std::shared_ptr<Stream>& stream, Operation operation);

// Appends and waits: LAUNCH_TIMEOUT if the patience is over first; then it is never done.
Result run(const std::shared_ptr<Stream>& stream, Operation operation);

// Waits for all that the streams of a context have now, those of its green contexts too.
Result synchronize(Handle context);

}  // namespace emulated
