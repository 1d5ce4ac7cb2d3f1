//! A GPU's rings on QEMU's controllers through VFIO: the GPU is the emulated one, whose warps are threads of the guest; the queues,
//! the doorbell registers, the IOMMU and the controller are what they are.

use super::{Case, good, usage};

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
        // Doorbells that do not get through are found out, and rung by the CPU.
        good(
            "ADIT_EMULATED_GPU=io-register=lost adit gpu trace {0} --blocks 16 --queues 2 --force",
            &["doorbells proxy", "0 failed"],
        ),
        good(
            "ADIT_EMULATED_GPU=io-register=not-permitted adit gpu trace {1} --blocks 16 --queues 2 --force",
            &["doorbells proxy", "0 failed"],
        ),
        // Without memory of the GPU's that the controller reaches by itself: staged, or all in the host's.
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
