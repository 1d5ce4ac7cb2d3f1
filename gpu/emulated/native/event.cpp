// Events: a record is a mark that the stream sets when it gets there; a wait applies to the latest record at that
// moment. An event that was recorded in a captured stream is part of the capture: a stream that waits for it joins.
#include "stream.h"

namespace emulated {
namespace {

// Returns a handle's event, and its last record (null for none).
std::shared_ptr<Event> find_event(Handle handle, std::shared_ptr<Mark>& recorded) {
    std::lock_guard<std::mutex> held(state().lock);
    auto event = state().events.find(handle);
    if (event != nullptr) { recorded = event->recorded; }
    return event;
}

std::shared_ptr<Capture> capture_of(const Event& event) {
    std::lock_guard<std::mutex> held(state().lock);
    return event.capture;
}

// Refuses to wait for or to query what is captured, which spoils the capture.
Result refuse_captured(const Event& event) {
    const auto capture = capture_of(event);
    if (capture == nullptr) { return SUCCESS; }
    capture->is_invalid = true;
    return CAPTURED_EVENT;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuEventCreate(Handle* handle, u32 flags) {
    ADIT_ENTER_CONTEXT();
    if (handle == nullptr || flags > 7) { return misuse(INVALID_VALUE); }
    auto event = std::make_shared<Event>();
    event->flags = flags;
    event->context = current_handle();
    std::lock_guard<std::mutex> held(state().lock);
    *handle = state().events.add(event);
    return SUCCESS;
}

ADIT_CUDA cuEventDestroy_v2(Handle handle) {
    ADIT_ENTER();
    std::lock_guard<std::mutex> held(state().lock);
    return state().events.remove(handle) ? SUCCESS : misuse(INVALID_HANDLE);
}

ADIT_CUDA cuEventRecord(Handle handle, Handle stream_handle) {
    ADIT_ENTER();
    std::shared_ptr<Mark> before;
    const auto event = find_event(handle, before);
    const auto stream = stream_of(stream_handle);
    if (event == nullptr || stream == nullptr) { return misuse(INVALID_HANDLE); }
    const auto capture = stream->captured();
    auto mark = std::make_shared<Mark>();
    append(stream, [mark] { mark->set(); });
    std::lock_guard<std::mutex> held(state().lock);
    event->capture = capture;
    event->recorded = capture == nullptr ? mark : nullptr;
    return SUCCESS;
}

ADIT_CUDA cuEventQuery(Handle handle) {
    ADIT_ENTER();
    std::shared_ptr<Mark> mark;
    const auto event = find_event(handle, mark);
    if (event == nullptr) { return misuse(INVALID_HANDLE); }
    if (Result why = refuse_captured(*event)) { return why; }
    if (mark != nullptr && !mark->is_set()) { return NOT_READY; }
    const auto context = context_of(event->context);
    return context == nullptr ? SUCCESS : static_cast<Result>(context->error.load());
}

ADIT_CUDA cuEventSynchronize(Handle handle) {
    ADIT_ENTER();
    std::shared_ptr<Mark> mark;
    const auto event = find_event(handle, mark);
    if (event == nullptr) { return misuse(INVALID_HANDLE); }
    if (Result why = refuse_captured(*event)) { return why; }
    if (mark == nullptr || mark->wait(settings().patience_ms)) { return SUCCESS; }
    state().stalls += 1;
    return LAUNCH_TIMEOUT;
}

ADIT_CUDA cuEventElapsedTime(float* milliseconds, Handle start, Handle end) {
    ADIT_ENTER();
    std::shared_ptr<Mark> from, to;
    const auto first = find_event(start, from), second = find_event(end, to);
    if (first == nullptr || second == nullptr) { return misuse(INVALID_HANDLE); }
    if (milliseconds == nullptr) { return misuse(INVALID_VALUE); }
    const bool is_timed = ((first->flags | second->flags) & EVENT_DISABLE_TIMING) == 0;
    if (from == nullptr || to == nullptr || !is_timed) { return misuse(INVALID_HANDLE); }
    if (!from->is_set() || !to->is_set()) { return NOT_READY; }
    const auto elapsed_ns = static_cast<std::int64_t>(to->time_ns - from->time_ns);
    *milliseconds = static_cast<float>(static_cast<double>(elapsed_ns) / 1e6);
    return SUCCESS;
}

ADIT_CUDA cuStreamWaitEvent(Handle stream_handle, Handle handle, u32 flags) {
    ADIT_ENTER();
    std::shared_ptr<Mark> mark;
    const auto event = find_event(handle, mark);
    const auto stream = stream_of(stream_handle);
    if (event == nullptr || stream == nullptr) { return misuse(INVALID_HANDLE); }
    if (flags > 1) { return misuse(INVALID_VALUE); }
    if (const auto capture = capture_of(*event)) {
        std::lock_guard<std::mutex> held(stream->lock);
        stream->capture = capture;
        return SUCCESS;
    }
    if (mark == nullptr) { return SUCCESS; }
    append(stream, [mark] {
        std::unique_lock<std::mutex> held(mark->lock);
        mark->changed.wait(held, [&] { return mark->is_done; });
    });
    return SUCCESS;
}
