// Stream queues and the functions of streams. stream.h describes their order.
#include "stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "memory.h"

namespace emulated {
namespace {

void work(const std::shared_ptr<Stream>& stream) {
    std::unique_lock<std::mutex> held(stream->lock);
    for (;;) {
        stream->changed.wait(held, [&] { return !stream->queue.empty() || stream->is_closing; });
        if (stream->queue.empty()) { return; }
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        held.unlock();
        operation();
        operation = nullptr;
        held.lock();
        stream->finished += 1;
        stream->changed.notify_all();
    }
}

// What an operation waits for besides its own stream: a stream, and the number of its operations.
using Before = std::vector<std::pair<std::shared_ptr<Stream>, u64>>;

void add_before(Before& before, const std::shared_ptr<Stream>& other) {
    std::lock_guard<std::mutex> held(other->lock);
    if (other->finished < other->enqueued) { before.emplace_back(other, other->enqueued); }
}

Before legacy_order(const std::shared_ptr<Stream>& stream) {
    Before before;
    if (stream->flags & STREAM_NON_BLOCKING) { return before; }
    std::lock_guard<std::mutex> held(state().lock);
    if (!stream->is_legacy) {
        const auto context = state().contexts.find(stream->context);
        if (context != nullptr && context->legacy != nullptr) { add_before(before, context->legacy); }
        return before;
    }
    for (const auto& entry : state().streams.items()) {
        const auto& other = entry.second;
        if (other->context == stream->context && !(other->flags & STREAM_NON_BLOCKING)) { add_before(before, other); }
    }
    return before;
}

// Adds the streams of the same hardware queue.
void add_shared(Before& before, const std::shared_ptr<Stream>& stream) {
    if (stream->hardware_queue == 0) { return; }
    std::lock_guard<std::mutex> held(state().lock);
    for (const auto& entry : state().streams.items()) {
        const auto& other = entry.second;
        if (other != stream && other->hardware_queue == stream->hardware_queue) { add_before(before, other); }
    }
}

}  // namespace

bool Stream::is_idle() {
    std::lock_guard<std::mutex> held(lock);
    return finished == enqueued;
}

bool Stream::wait(u64 position, u32 timeout_ms) {
    std::unique_lock<std::mutex> held(lock);
    return changed.wait_for(held, std::chrono::milliseconds(timeout_ms), [&] { return finished >= position; });
}

std::shared_ptr<Capture> Stream::captured() {
    std::lock_guard<std::mutex> held(lock);
    return capture;
}

void Stream::wait(u64 position) {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [&] { return finished >= position; });
}

std::shared_ptr<Stream> start_stream(Handle context, u32 flags, bool is_legacy) {
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->flags = flags;
    stream->is_legacy = is_legacy;
    static std::atomic<u32> streams{0};
    const u32 queues = settings().queues;
    if (queues != 0) { stream->hardware_queue = streams++ % queues + 1; }
    std::thread([stream] { work(stream); }).detach();
    return stream;
}

void close_stream(const std::shared_ptr<Stream>& stream) {
    {
        std::lock_guard<std::mutex> held(stream->lock);
        stream->is_closing = true;
    }
    stream->changed.notify_all();
}

std::shared_ptr<Stream> stream_of(Handle handle) {
    std::lock_guard<std::mutex> held(state().lock);
    if (handle > 2) { return state().streams.find(handle); }
    const Handle here = current_handle();
    const auto context = state().contexts.find(here);
    if (context == nullptr) { return nullptr; }
    if (context->legacy == nullptr) { context->legacy = start_stream(here, 0, true); }
    return context->legacy;
}

u64 append(const std::shared_ptr<Stream>& stream, Operation operation) {
    if (const auto capture = stream->captured()) {
        capture->nodes += 1;
        return 0;
    }
    Before before = legacy_order(stream);
    add_shared(before, stream);
    auto ordered = [before = std::move(before), operation = std::move(operation)] {
        for (const auto& [other, position] : before) { other->wait(position); }
        operation();
    };
    u64 position;
    {
        std::lock_guard<std::mutex> held(stream->lock);
        stream->queue.emplace_back(std::move(ordered));
        position = ++stream->enqueued;
    }
    stream->changed.notify_all();
    return position;
}

namespace {

Result wait_for(const std::shared_ptr<Stream>& stream, u64 position) {
    if (stream->wait(position, settings().patience_ms)) { return SUCCESS; }
    state().stalls += 1;
    return LAUNCH_TIMEOUT;
}

Result sticky(Handle handle) {
    const auto context = context_of(handle);
    return context == nullptr ? SUCCESS : static_cast<Result>(context->error.load());
}

u64 tail(const std::shared_ptr<Stream>& stream) {
    std::lock_guard<std::mutex> held(stream->lock);
    return stream->enqueued;
}

}  // namespace

Result run(const std::shared_ptr<Stream>& stream, Operation operation) {
    // The first to take it, the stream or a caller that gave up, decides whether it is done: its target may be gone
    // once the caller has returned.
    auto taken = std::make_shared<std::atomic<bool>>(false);
    const u64 position = append(stream, [taken, operation = std::move(operation)] {
        if (!taken->exchange(true)) { operation(); }
    });
    const Result why = wait_for(stream, position);
    if (why == SUCCESS || !taken->exchange(true)) { return why; }
    stream->wait(position);
    return SUCCESS;
}

Result synchronize(Handle context) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
        State& all = state();
        std::lock_guard<std::mutex> held(all.lock);
        auto is_within = [&](Handle handle) {
            const auto found = all.contexts.find(handle);
            return handle == context || (found != nullptr && found->parent == context);
        };
        for (const auto& entry : all.streams.items()) {
            if (is_within(entry.second->context)) { streams.push_back(entry.second); }
        }
        for (const auto& entry : all.contexts.items()) {
            if (is_within(entry.first) && entry.second->legacy) { streams.push_back(entry.second->legacy); }
        }
    }
    for (const auto& stream : streams) {
        if (Result why = wait_for(stream, tail(stream))) { return why; }
    }
    return sticky(context);
}

namespace {

// Refuses to wait for or to query what is captured, which spoils the capture.
Result refuse_captured(const std::shared_ptr<Stream>& stream) {
    const auto capture = stream->captured();
    if (capture == nullptr) { return SUCCESS; }
    capture->is_invalid = true;
    return STREAM_CAPTURE_UNSUPPORTED;
}

// Ends a stream's part in a capture, and that of all others; returns their number.
u64 end_capture(State& all, const std::shared_ptr<Capture>& capture) {
    u64 ended = 0;
    for (const auto& entry : all.streams.items()) {
        std::lock_guard<std::mutex> held(entry.second->lock);
        if (entry.second->capture != capture) { continue; }
        entry.second->capture = nullptr;
        ended += 1;
    }
    return ended;
}

Result make_stream(Handle* handle, Handle context, u32 flags) {
    if (handle == nullptr || (flags & ~STREAM_NON_BLOCKING) != 0) { return misuse(INVALID_VALUE); }
    auto stream = start_stream(context, flags, false);
    std::lock_guard<std::mutex> held(state().lock);
    *handle = state().streams.add(stream);
    return SUCCESS;
}

// Appends an operation on a word, which stays live until it is done.
Result append_on(Handle handle, Address at, Operation operation) {
    const auto stream = stream_of(handle);
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    std::unique_lock<std::mutex> held(state().lock);
    const Use uses(state(), at);
    held.unlock();
    append(stream, [uses, operation = std::move(operation)] { operation(); });
    return SUCCESS;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuStreamCreate(Handle* handle, u32 flags) {
    ADIT_ENTER_CONTEXT();
    return make_stream(handle, current_handle(), flags);
}

ADIT_CUDA cuStreamCreateWithPriority(Handle* handle, u32 flags, int) {
    ADIT_ENTER_CONTEXT();
    return make_stream(handle, current_handle(), flags);
}

ADIT_CUDA cuGreenCtxStreamCreate(Handle* handle, Handle green, u32 flags, int) {
    ADIT_ENTER();
    Handle view = 0;
    {
        std::lock_guard<std::mutex> held(state().lock);
        for (const auto& [context, of] : state().green_views) {
            if (of == green) { view = context; }
        }
    }
    if (view == 0) { return misuse(INVALID_HANDLE); }
    // A stream of a green context never takes part in the order of the default stream.
    if ((flags & STREAM_NON_BLOCKING) == 0) { return misuse(INVALID_VALUE); }
    return make_stream(handle, view, flags);
}

ADIT_CUDA cuStreamDestroy_v2(Handle handle) {
    ADIT_ENTER();
    std::shared_ptr<Stream> stream;
    {
        std::lock_guard<std::mutex> held(state().lock);
        stream = state().streams.find(handle);
        state().streams.remove(handle);
    }
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    close_stream(stream);
    return SUCCESS;
}

ADIT_CUDA cuStreamQuery(Handle handle) {
    ADIT_ENTER();
    const auto stream = stream_of(handle);
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    if (Result why = refuse_captured(stream)) { return why; }
    if (!stream->is_idle()) { return NOT_READY; }
    return sticky(stream->context);
}

ADIT_CUDA cuStreamSynchronize(Handle handle) {
    ADIT_ENTER();
    const auto stream = stream_of(handle);
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    if (Result why = refuse_captured(stream)) { return why; }
    if (Result why = wait_for(stream, tail(stream))) { return why; }
    return sticky(stream->context);
}

ADIT_CUDA cuStreamBeginCapture_v2(Handle handle, u32 mode) {
    ADIT_ENTER();
    const auto stream = stream_of(handle);
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    if (stream->is_legacy) { return STREAM_CAPTURE_UNSUPPORTED; }
    std::lock_guard<std::mutex> held(stream->lock);
    if (mode > 2 || stream->capture != nullptr) { return misuse(INVALID_VALUE); }
    stream->capture = std::make_shared<Capture>();
    stream->capture->origin = handle;
    return SUCCESS;
}

ADIT_CUDA cuStreamEndCapture(Handle handle, Handle* graph) {
    ADIT_ENTER();
    const auto stream = stream_of(handle);
    if (stream == nullptr || graph == nullptr) { return misuse(INVALID_HANDLE); }
    const auto capture = stream->captured();
    if (capture == nullptr || capture->origin != handle) { return misuse(STREAM_CAPTURE_UNMATCHED); }
    State& all = state();
    std::lock_guard<std::mutex> held(all.lock);
    const u64 streams = end_capture(all, capture);
    *graph = 0;
    if (capture->is_invalid) { return STREAM_CAPTURE_INVALIDATED; }
    // A stream that joined by an event has to be joined again before the end; no caller of this driver does so.
    if (streams > 1) { return STREAM_CAPTURE_UNJOINED; }
    *graph = all.graphs.add(std::make_shared<u64>(capture->nodes));
    return SUCCESS;
}

ADIT_CUDA cuStreamIsCapturing(Handle handle, u32* status) {
    ADIT_ENTER();
    const auto stream = stream_of(handle);
    if (stream == nullptr || status == nullptr) { return misuse(INVALID_HANDLE); }
    const auto capture = stream->captured();
    *status = capture == nullptr ? CAPTURE_NONE : capture->is_invalid ? CAPTURE_INVALIDATED : CAPTURE_ACTIVE;
    return SUCCESS;
}

ADIT_CUDA cuGraphGetNodes(Handle handle, Handle* nodes, std::size_t* count) {
    ADIT_ENTER();
    std::lock_guard<std::mutex> held(state().lock);
    const auto graph = state().graphs.find(handle);
    if (graph == nullptr || nodes != nullptr || count == nullptr) { return misuse(INVALID_VALUE); }
    *count = *graph;
    return SUCCESS;
}

ADIT_CUDA cuGraphDestroy(Handle handle) {
    ADIT_ENTER();
    std::lock_guard<std::mutex> held(state().lock);
    return state().graphs.remove(handle) ? SUCCESS : misuse(INVALID_VALUE);
}

ADIT_CUDA cuStreamWaitValue32_v2(Handle handle, Address at, u32 value, u32 flags) {
    ADIT_ENTER();
    const bool flushes = (flags & WAIT_FLUSH) != 0;
    if ((flags & ~WAIT_FLUSH) != WAIT_GEQ || at % sizeof value != 0 || !is_reachable(at, sizeof value)) { return misuse(INVALID_VALUE); }
    if (flushes && !settings().rdma) { return NOT_SUPPORTED; }
    const u32* word = reinterpret_cast<const u32*>(at);
    return append_on(handle, at, [=] {
        while (static_cast<std::int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    });
}

ADIT_CUDA cuStreamWriteValue32_v2(Handle handle, Address at, u32 value, u32 flags) {
    ADIT_ENTER();
    if (flags > 1 || at % sizeof value != 0 || !is_reachable(at, sizeof value)) { return misuse(INVALID_VALUE); }
    return append_on(handle, at, [=] { __atomic_store_n(reinterpret_cast<u32*>(at), value, __ATOMIC_RELEASE); });
}
