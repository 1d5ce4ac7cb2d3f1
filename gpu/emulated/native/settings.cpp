// Parses and stores the settings; settings.h lists the words.
#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace emulated {
namespace {

// Kept for the life of the process: worker threads may outlive static destructors.
struct Kept {
    std::mutex lock;
    Settings now;
};

bool parse(const std::string& list, Settings& into);

Kept& kept() {
    static Kept* const one = [] {
        auto* made = new Kept;
        const char* list = std::getenv("ADIT_EMULATED_GPU");
        if (list != nullptr && !parse(list, made->now)) {
            const char* text = "ADIT_EMULATED_GPU=%s has an unknown word; see gpu/emulated/native/settings.h\n";
            std::fprintf(stderr, text, list);
            made->now = Settings{};
        }
        return made;
    }();
    return *one;
}

bool number(const std::string& text, u64& into) {
    char* end = nullptr;
    into = std::strtoull(text.c_str(), &end, 0);
    return !text.empty() && *end == '\0';
}

bool parse_failure(const std::string& text, Settings& into) {
    const std::size_t first = text.find(':');
    if (first == std::string::npos || first == 0) { return false; }
    const std::size_t second = text.find(':', first + 1);
    u64 code = 0, nth = 0;
    const std::size_t length = second == std::string::npos ? std::string::npos : second - first - 1;
    if (!number(text.substr(first + 1, length), code) || code == 0) { return false; }
    if (second != std::string::npos && (!number(text.substr(second + 1), nth) || nth == 0)) { return false; }
    into.failures.push_back({text.substr(0, first), static_cast<u32>(code), static_cast<u32>(nth), 0});
    return true;
}

bool parse_flag(const std::string& word, Settings& into) {
    if (word == "no-green") { into.green = false; }
    else if (word == "no-dma-buf") { into.dma_buf = false; }
    else if (word == "no-rdma") { into.rdma = false; }
    else if (word == "no-vmm") { into.vmm = false; }
    else if (word == "coherent") { into.coherent = true; }
    else if (word == "free-waits") { into.free_waits = true; }
    else { return false; }
    return true;
}

bool parse_number(const std::string& key, const std::string& text, Settings& into) {
    u64 value = 0;
    if (!number(text, value)) { return false; }
    if (key == "gpus") { into.gpus = static_cast<u32>(value); }
    else if (key == "driver") { into.driver = static_cast<u32>(value); }
    else if (key == "sms") { into.sms = static_cast<u32>(value); }
    else if (key == "queues") { into.queues = static_cast<u32>(value); }
    else if (key == "memory") { into.memory_bytes = value; }
    else if (key == "bar1") { into.bar1_bytes = value; }
    else if (key == "ordering") { into.ordering = static_cast<int>(value); }
    else if (key == "patience") { into.patience_ms = static_cast<u32>(value); }
    else if (key == "exit") { into.exit_ms = static_cast<u32>(value); }
    else { return false; }
    return true;
}

bool choose(const std::string& value, const std::vector<std::string>& choices, std::string& into) {
    for (const std::string& choice : choices) {
        if (choice == value) {
            into = value;
            return true;
        }
    }
    return false;
}

bool parse_peer(const std::string& value, Settings& into) {
    std::size_t at = value.find(':');
    const std::string what = value.substr(0, at);
    into.peer_nths.clear();
    while (at != std::string::npos) {
        const std::size_t end = value.find('+', at + 1);
        u64 nth = 0;
        const std::size_t length = end == std::string::npos ? std::string::npos : end - at - 1;
        if (!number(value.substr(at + 1, length), nth) || nth == 0) { return false; }
        into.peer_nths.push_back(static_cast<u32>(nth));
        at = end;
    }
    return choose(what, {"ok", "dropped", "late"}, into.peer);
}

bool parse_choice(const std::string& key, const std::string& value, Settings& into) {
    if (key == "host-register") { return choose(value, {"ok", "refused"}, into.host_register); }
    if (key == "io-register") {
        return choose(value, {"ok", "needs-touch", "not-permitted", "lost", "lost-elsewhere", "no-heads"}, into.io_register);
    }
    if (key == "nvrtc") { return choose(value, {"ok", "error"}, into.nvrtc); }
    if (key == "gdr") { return choose(value, {"ok", "absent", "refused"}, into.gdr); }
    if (key == "copies") { return choose(value, {"ok", "dropped"}, into.copies); }
    if (key == "peer") { return parse_peer(value, into); }
    if (key == "fail") { return parse_failure(value, into); }
    if (key == "dma-buf-mmap") {
        into.dma_buf_mmap = value == "on";
        return value == "on" || value == "off";
    }
    return parse_number(key, value, into);
}

bool parse_word(const std::string& word, Settings& into) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) { return parse_flag(word, into); }
    return parse_choice(word.substr(0, equals), word.substr(equals + 1), into);
}

bool parse(const std::string& list, Settings& into) {
    std::size_t at = 0;
    while (at < list.size()) {
        std::size_t end = list.find(',', at);
        if (end == std::string::npos) { end = list.size(); }
        const std::string word = list.substr(at, end - at);
        if (!word.empty() && !parse_word(word, into)) { return false; }
        at = end + 1;
    }
    return into.gpus <= 8 && into.sms > 0;
}

}  // namespace

Settings settings() {
    Kept& all = kept();
    std::lock_guard<std::mutex> held(all.lock);
    return all.now;
}

namespace {

// Whether `name` is the function's symbol or its documented name, without `_v2`.
bool is_named(const std::string& name, const std::string& function) {
    return name == function || name + "_v2" == function;
}

}  // namespace

std::string peer_of_export() {
    Kept& all = kept();
    std::lock_guard<std::mutex> held(all.lock);
    all.now.peer_exports += 1;
    const std::vector<u32>& nths = all.now.peer_nths;
    const bool is_listed = std::find(nths.begin(), nths.end(), all.now.peer_exports) != nths.end();
    return nths.empty() || is_listed ? all.now.peer : "ok";
}

u32 injected_failure(const char* function) {
    Kept& all = kept();
    std::lock_guard<std::mutex> held(all.lock);
    for (Failure& failure : all.now.failures) {
        if (!is_named(failure.function, function)) { continue; }
        failure.calls += 1;
        if (failure.nth == 0 || failure.nth == failure.calls) { return failure.code; }
    }
    return 0;
}

}  // namespace emulated

ADIT_EXPORT int adit_emulated_set(const char* list) {
    emulated::Settings fresh;
    if (list == nullptr || !emulated::parse(list, fresh)) { return -1; }
    emulated::Kept& all = emulated::kept();
    std::lock_guard<std::mutex> held(all.lock);
    all.now = fresh;
    return 0;
}
