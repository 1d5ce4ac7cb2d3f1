//! Guests that run a GPU's rings on QEMU's controllers through VFIO. The GPU is emulated, with warps as threads
//! of the guest; queues, doorbell registers, IOMMU and controller are as usual.

use super::case::{Case, good, usage};

pub(super) const CASES: &[Case] = &[Case {
    name: "gpu-rings",
    guest: &[
        "--gpu",
        "--nvme",
        "mdts=5",
        "--nvme",
        "mdts=7;logical_block_size=4096,physical_block_size=4096",
    ],
    steps: &[
        good("adit gpu doctor {0}", &["Emulated GPU 0", "doorbell"]),
        usage("adit gpu trace {0} --depth 1", &["2..=4096"]),
        good("adit gpu trace {0} --blocks 16 --queues 2", &["doorbells mapped", "0 failed"]),
        good(
            "adit gpu trace {1} --blocks 16 --queues 2 --kernel persistent",
            &["doorbells mapped", "0 failed"],
        ),
        // Doorbells that do not get through are detected, and the CPU rings them.
        good(
            "ADIT_EMULATED_GPU=io-register=lost adit gpu trace {0} --blocks 16 --queues 2 --force",
            &["doorbells proxy", "0 failed"],
        ),
        good(
            "ADIT_EMULATED_GPU=io-register=not-permitted adit gpu trace {1} --blocks 16 --queues 2 --force",
            &["doorbells proxy", "0 failed"],
        ),
        // Without GPU memory that the controller can reach: staged, or everything in host memory.
        good(
            "ADIT_EMULATED_GPU=no-dma-buf,gdr=absent adit gpu trace {0} --blocks 16 --queues 2 --force",
            &["CPU threads stage the transfers, since", "CPU threads have them", "0 failed"],
        ),
        good(
            "ADIT_EMULATED_GPU=no-dma-buf,gdr=absent adit gpu trace {0} --blocks 16 --queues 2 --force --placement host",
            &[
                "pages   in host",
                "entries in host, completions in host",
                "doorbells mapped",
                "0 failed",
            ],
        ),
    ],
}];
