// Copies and fills, in the order of a stream.
//
// Memory of the GPU's window must be live from the call to the end of the copy. Host memory that is neither pinned nor
// registered is copied as CUDA does it: a source is read, and a destination written, before the call returns.
#include <cstring>

#include "memory.h"
#include "stream.h"

namespace emulated {
namespace {

enum class Side { GPU, PAGEABLE, MISSING };

// Call with the lock held.
Side side_of(State& all, Address at, u64 bytes) {
    if (is_reachable_locked(all, at, bytes)) { return Side::GPU; }
    const bool is_bad = at == 0 || at + bytes < at || is_in_window(all, at) || find_range(all, at) != nullptr;
    return is_bad ? Side::MISSING : Side::PAGEABLE;
}

struct Copy {
    Address to, from;
    u64 bytes;
    bool to_gpu, from_gpu;      // what must be the GPU's by the function's name
};

// The part of a copy that devices see late, or never. Empty for memory that they share.
struct Seen {
    Seen(State& all, Address at) {
        const Range* range = find_range(all, at);
        if (range == nullptr || range->view == nullptr) { return; }
        view = range->view;
        offset = at - range->host;
    }
    std::shared_ptr<View> view;
    u64 offset = 0;
};

Result copy(const Copy& what, const std::shared_ptr<Stream>& stream, bool waits) {
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    if (what.bytes == 0) { return SUCCESS; }
    std::unique_lock<std::mutex> held(state().lock);
    const Side to = side_of(state(), what.to, what.bytes), from = side_of(state(), what.from, what.bytes);
    const bool is_known = (to == Side::GPU || !what.to_gpu) && (from == Side::GPU || !what.from_gpu);
    if (to == Side::MISSING || from == Side::MISSING || !is_known) { return misuse(INVALID_VALUE); }
    const Use uses_to(state(), what.to), uses_from(state(), what.from);
    const Seen seen_to(state(), what.to), seen_from(state(), what.from);
    held.unlock();
    std::shared_ptr<std::vector<u8>> staged;
    const u8* source = reinterpret_cast<const u8*>(what.from);
    if (from == Side::PAGEABLE && !waits) { staged = std::make_shared<std::vector<u8>>(source, source + what.bytes); }
    auto operation = [=] {
        (void)uses_to, (void)uses_from;
        std::memmove(reinterpret_cast<void*>(what.to), staged ? staged->data() : source, what.bytes);
        if (seen_to.view != nullptr) { seen_to.view->to_device(seen_to.offset, what.to, what.bytes); }
        if (seen_from.view != nullptr) { seen_from.view->to_gpu(seen_from.offset, what.from, what.bytes); }
    };
    if (waits || to == Side::PAGEABLE) { return run(stream, operation); }
    append(stream, operation);
    return SUCCESS;
}

Result fill(Address at, u8 value, u64 count, const std::shared_ptr<Stream>& stream) {
    if (stream == nullptr) { return misuse(INVALID_HANDLE); }
    if (count == 0) { return SUCCESS; }
    std::unique_lock<std::mutex> held(state().lock);
    const bool is_sound = is_reachable_locked(state(), at, count);
    if (!is_sound) { return misuse(INVALID_VALUE); }
    const Use uses(state(), at);
    held.unlock();
    const auto context = context_of(current_handle());
    if (context != nullptr && !context->has_filled.exchange(true)) {
        if (Result why = before_free()) { return why; }
    }
    append(stream, [=] {
        (void)uses;
        std::memset(reinterpret_cast<void*>(at), value, count);
    });
    return SUCCESS;
}

Address address_of(const void* host) { return reinterpret_cast<Address>(host); }

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_CUDA cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
    ADIT_ENTER_CONTEXT();
    return copy({to, address_of(from), bytes, true, false}, stream_of(0), true);
}

ADIT_CUDA cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
    ADIT_ENTER_CONTEXT();
    return copy({address_of(to), from, bytes, false, true}, stream_of(0), true);
}

ADIT_CUDA cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Handle stream) {
    ADIT_ENTER_CONTEXT();
    return copy({to, address_of(from), bytes, true, false}, stream_of(stream), false);
}

ADIT_CUDA cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Handle stream) {
    ADIT_ENTER_CONTEXT();
    return copy({address_of(to), from, bytes, false, true}, stream_of(stream), false);
}

ADIT_CUDA cuMemcpyAsync(Address to, Address from, std::size_t bytes, Handle stream) {
    ADIT_ENTER_CONTEXT();
    const u64 moved = settings().copies == "dropped" ? 0 : bytes;
    return copy({to, from, moved, false, false}, stream_of(stream), false);
}

ADIT_CUDA cuMemsetD8Async(Address at, u8 value, std::size_t count, Handle stream) {
    ADIT_ENTER_CONTEXT();
    return fill(at, value, count, stream_of(stream));
}
