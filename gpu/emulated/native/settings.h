// The properties of an emulated GPU and the calls that fail: a comma list, read at load from ADIT_EMULATED_GPU and set
// at run time.
//
// gpus=N driver=N sms=N memory=BYTES bar1=BYTES ordering=N    numbers; the defaults are below
// queues=N                    hardware queues that streams share in turn; 0: each stream has its own
// no-green no-dma-buf no-rdma no-vmm coherent free-waits      features it lacks or has
// dma-buf-mmap=on|off   host-register=ok|refused
// io-register=ok|needs-touch|not-permitted|lost|lost-elsewhere|no-heads     elsewhere: stores of GPUs that did not register
//                             it; no-heads: stores to completion doorbells
// nvrtc=ok|error   gdr=ok|absent|refused   patience=MS   exit=MS
// copies=ok|dropped           dropped: asynchronous copies (cuMemcpyAsync) move nothing
// peer=ok|dropped|late[:NTH[+NTH...]]     what devices write through a dma-buf, or only through the NTH exported from
//                             now, is dropped, or is seen by the GPU after its first look at it
// fail=FUNCTION:CODE[:NTH]    each call of FUNCTION fails with CODE, or only the NTH from now: the documented name,
//                             or the symbol's; `kernel` is a launched kernel, whose context is then broken
//
// A list replaces the whole previous list. A list with an unknown word is refused and changes nothing.
#pragma once
#include <string>
#include <vector>

#include "abi.h"

namespace emulated {

struct Failure {
    std::string function;
    u32 code;
    u32 nth;        // 0: each call
    u32 calls;
};

struct Settings {
    u32 gpus = 1;
    u32 driver = 13000;                 // 1000 * major + 10 * minor
    u32 sms = 132;
    u32 queues = 0;
    u64 memory_bytes = 16ull << 30;
    u64 bar1_bytes = 32ull << 30;
    int ordering = 0;                   // attribute 118: 0 none, 100 owner, 200 all devices
    bool green = true;
    bool dma_buf = true;
    bool dma_buf_mmap = true;
    bool rdma = true;
    bool vmm = true;
    bool coherent = false;
    bool free_waits = false;            // freeing memory waits for all kernels, as CUDA may
    u32 patience_ms = 30000;            // longest a call waits for work before it fails with LAUNCH_TIMEOUT
    u32 exit_ms = 0;                    // how long a kernel takes to end after its work
    std::string host_register = "ok";
    std::string io_register = "ok";
    std::string nvrtc = "ok";
    std::string gdr = "ok";
    std::string copies = "ok";
    std::string peer = "ok";
    std::vector<u32> peer_nths;         // none: each dma-buf
    u32 peer_exports = 0;
    std::vector<Failure> failures;
};

Settings settings();

// Returns what happens to devices' writes through the dma-buf that is being exported.
std::string peer_of_export();

// Returns the code that this call of a function must fail with, or 0.
u32 injected_failure(const char* function);

}  // namespace emulated

// Replaces the settings; returns 0, or -1 and changes nothing if a word is unknown.
ADIT_EXPORT int adit_emulated_set(const char* list);
