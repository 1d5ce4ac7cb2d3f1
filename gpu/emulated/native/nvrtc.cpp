// An emulated NVRTC: it compiles nothing, but finds the kernels of a program.
//
// Its output is the text of image.h. It checks what a caller can get wrong without a compiler: that every quoted
// include is among the headers, that an architecture is named, that options are known.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "abi.h"
#include "image.h"
#include "settings.h"

#ifndef ADIT_NVRTC_MAJOR
#define ADIT_NVRTC_MAJOR 13
#endif

namespace emulated {
namespace {

enum NvrtcResult : u32 {
    NVRTC_SUCCESS = 0,
    NVRTC_INVALID_INPUT = 3,
    NVRTC_INVALID_PROGRAM = 4,
    NVRTC_INVALID_OPTION = 5,
    NVRTC_COMPILATION = 6,
};

constexpr int ARCHITECTURES[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

struct Program {
    std::string source, name, log, cubin, ptx;
    std::map<std::string, std::string> headers;
};

struct Programs {
    std::mutex lock;
    std::map<Handle, std::shared_ptr<Program>> live;
    Handle count = 0;
};

Programs& programs() {
    static Programs* const all = new Programs;
    return *all;
}

std::shared_ptr<Program> find(Handle handle) {
    std::lock_guard<std::mutex> held(programs().lock);
    const auto at = programs().live.find(handle);
    return at == programs().live.end() ? nullptr : at->second;
}

// Returns the text between each occurrence of `before` and the next of `after`.
std::vector<std::string> between(const std::string& text, const std::string& before, const char* after) {
    std::vector<std::string> found;
    for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
        const std::size_t start = at + before.size();
        const std::size_t end = text.find_first_of(after, start);
        if (end != std::string::npos) { found.push_back(text.substr(start, end - start)); }
    }
    return found;
}

// Returns a header by its include name.
const std::string* find_header(const Program& program, const std::string& name) {
    const auto at = program.headers.find(name);
    return at == program.headers.end() ? nullptr : &at->second;
}

// Expands a program's includes, each header once; reports a missing one in `log`.
bool expand(Program& program, const std::string& text, std::map<std::string, bool>& seen, std::string& whole) {
    for (const std::string& name : between(text, "#include \"", "\"\n")) {
        const std::string* header = find_header(program, name);
        if (header == nullptr) {
            program.log = program.name + ": catastrophic error: cannot open source file \"" + name + "\"\n";
            return false;
        }
        if (seen[name]) { continue; }
        seen[name] = true;
        if (!expand(program, *header, seen, whole)) { return false; }
    }
    whole += text;
    return true;
}

bool has_prefix(const std::string& text, const char* prefix) {
    return text.compare(0, std::strlen(prefix), prefix) == 0;
}

// Reads the architecture from the options, if they name one; returns false for an option that Adit does not pass.
bool read_options(int count, const char* const* options, std::string& architecture) {
    constexpr const char* KNOWN[] = {"-std=", "-default-device", "--ptxas-options="};
    for (int index = 0; index < count; ++index) {
        const std::string option = options[index];
        if (has_prefix(option, "--gpu-architecture=")) {
            architecture = option.substr(option.find('=') + 1);
            continue;
        }
        bool is_known = false;
        for (const char* known : KNOWN) { is_known = is_known || has_prefix(option, known); }
        if (!is_known) { return false; }
    }
    return true;
}

bool is_architecture(const std::string& text) {
    for (const int known : ARCHITECTURES) {
        const std::string number = std::to_string(known);
        for (const char* kind : {"sm_", "compute_"}) {
            if (text == kind + number || text == kind + number + "a") { return true; }
        }
    }
    return false;
}

NvrtcResult compile(Program& program, int count, const char* const* options) {
    std::string architecture = "sm_75", whole;
    if (!read_options(count, options, architecture) || !is_architecture(architecture)) {
        program.log = "nvrtc: error: invalid value for --gpu-architecture, or an unknown option\n";
        return NVRTC_INVALID_OPTION;
    }
    if (settings().nvrtc == "error") {
        program.log = program.name + "(1): error: identifier \"emulated\" is undefined\n\n1 error detected\n";
        return NVRTC_COMPILATION;
    }
    std::map<std::string, bool> seen;
    if (!expand(program, program.source, seen, whole)) { return NVRTC_COMPILATION; }
    std::string kernels;
    for (const std::string& name : between(whole, "ADIT_KERNEL void ", "( \n")) { kernels += name + "\n"; }
    for (const std::string& name : between(whole, "extern \"C\" __global__ void ", "( \n")) { kernels += name + "\n"; }
    const bool is_real = has_prefix(architecture, "sm_");
    const std::string made = " " + architecture + " " + std::to_string(ADIT_NVRTC_MAJOR) + "\n" + kernels;
    program.cubin = is_real ? IMAGE_CUBIN + made : "";
    program.ptx = IMAGE_PTX + made;
    return NVRTC_SUCCESS;
}

// Sizes include the terminating zero byte, as NVRTC's do for text.
NvrtcResult size_of(Handle handle, std::string Program::*field, std::size_t* bytes) {
    const auto program = find(handle);
    if (program == nullptr) { return NVRTC_INVALID_PROGRAM; }
    if (bytes == nullptr) { return NVRTC_INVALID_INPUT; }
    *bytes = ((*program).*field).size() + 1;
    return NVRTC_SUCCESS;
}

NvrtcResult text_of(Handle handle, std::string Program::*field, char* into) {
    const auto program = find(handle);
    if (program == nullptr) { return NVRTC_INVALID_PROGRAM; }
    if (into == nullptr) { return NVRTC_INVALID_INPUT; }
    const std::string& text = (*program).*field;
    std::memcpy(into, text.c_str(), text.size() + 1);
    return NVRTC_SUCCESS;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

ADIT_EXPORT NvrtcResult nvrtcVersion(int* major, int* minor) {
    if (major == nullptr || minor == nullptr) { return NVRTC_INVALID_INPUT; }
    *major = ADIT_NVRTC_MAJOR;
    *minor = 0;
    return NVRTC_SUCCESS;
}

ADIT_EXPORT NvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    if (count == nullptr) { return NVRTC_INVALID_INPUT; }
    *count = sizeof ARCHITECTURES / sizeof ARCHITECTURES[0];
    return NVRTC_SUCCESS;
}

ADIT_EXPORT NvrtcResult nvrtcGetSupportedArchs(int* architectures) {
    if (architectures == nullptr) { return NVRTC_INVALID_INPUT; }
    std::memcpy(architectures, ARCHITECTURES, sizeof ARCHITECTURES);
    return NVRTC_SUCCESS;
}

ADIT_EXPORT NvrtcResult nvrtcCreateProgram(Handle* handle, const char* source, const char* name, int count,
                                           const char* const* headers, const char* const* names) {
    if (handle == nullptr || source == nullptr || count < 0) { return NVRTC_INVALID_INPUT; }
    auto program = std::make_shared<Program>();
    program->source = source;
    program->name = name == nullptr ? "default_program" : name;
    for (int index = 0; index < count; ++index) { program->headers[names[index]] = headers[index]; }
    std::lock_guard<std::mutex> held(programs().lock);
    *handle = 0xAD0F000000000000ull | ++programs().count << 4;
    programs().live[*handle] = program;
    return NVRTC_SUCCESS;
}

ADIT_EXPORT NvrtcResult nvrtcDestroyProgram(Handle* handle) {
    std::lock_guard<std::mutex> held(programs().lock);
    if (handle == nullptr || programs().live.erase(*handle) == 0) { return NVRTC_INVALID_PROGRAM; }
    *handle = 0;
    return NVRTC_SUCCESS;
}

ADIT_EXPORT NvrtcResult nvrtcCompileProgram(Handle handle, int count, const char* const* options) {
    const auto program = find(handle);
    if (program == nullptr) { return NVRTC_INVALID_PROGRAM; }
    if (count < 0 || (count > 0 && options == nullptr)) { return NVRTC_INVALID_INPUT; }
    return compile(*program, count, options);
}

ADIT_EXPORT NvrtcResult nvrtcGetProgramLogSize(Handle handle, std::size_t* bytes) {
    return size_of(handle, &Program::log, bytes);
}

ADIT_EXPORT NvrtcResult nvrtcGetProgramLog(Handle handle, char* into) { return text_of(handle, &Program::log, into); }

ADIT_EXPORT NvrtcResult nvrtcGetCUBINSize(Handle handle, std::size_t* bytes) {
    const auto program = find(handle);
    if (program == nullptr) { return NVRTC_INVALID_PROGRAM; }
    if (bytes == nullptr) { return NVRTC_INVALID_INPUT; }
    // A virtual architecture has none.
    *bytes = program->cubin.empty() ? 0 : program->cubin.size() + 1;
    return NVRTC_SUCCESS;
}

ADIT_EXPORT NvrtcResult nvrtcGetCUBIN(Handle handle, char* into) { return text_of(handle, &Program::cubin, into); }

ADIT_EXPORT NvrtcResult nvrtcGetPTXSize(Handle handle, std::size_t* bytes) {
    return size_of(handle, &Program::ptx, bytes);
}

ADIT_EXPORT NvrtcResult nvrtcGetPTX(Handle handle, char* into) { return text_of(handle, &Program::ptx, into); }
