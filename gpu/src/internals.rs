//! Parts of the crate for its benchmark, self-test and diagnosis. They change without notice.

use std::sync::Arc;

use crate::error::Result;

pub use crate::commands::{cut, layout, outcome, table};
pub use crate::cuda::program::{Kernel, Program};
pub use crate::cuda::{
    DeviceMemory, Endless, Function, Gpu, Partition, PartitionKind, Partitions, PinnedMemory,
    Runner, Stream,
};
pub use crate::reach::doorbell::Doorbells;
pub use crate::reach::paths::{check_dma_buf, check_dma_buf_mapping, gdr_is_present, try_path};
pub use crate::reach::proxy::ProxyThread;
pub use crate::reach::queue::Queue;
pub use crate::reach::self_test;
pub use crate::rings::ring_set::Rings;
pub use crate::rings::verify::Verifier;

/// Divides a GPU: `sms` multiprocessors for I/O, the others for computing.
pub fn partition(gpu: &Arc<Gpu>, sms: u32) -> Partitions {
    gpu.partition(sms)
}

/// Enqueues a kernel whose one argument is `argument`.
///
/// # Errors
/// As [`crate::Error::Cuda`].
pub fn launch(
    stream: &Stream,
    function: &Function,
    (blocks, threads): (u32, u32),
    argument: u64,
) -> Result<()> {
    stream.launch(function, blocks, threads, argument)
}

/// Makes later work of a stream wait for a word, as [`crate::GioUring::wait_cqe`] does.
///
/// # Errors
/// As [`crate::Error::Cuda`].
pub fn wait32_at_least(stream: &Stream, address: u64, value: u32) -> Result<()> {
    stream.wait32_at_least(address, value, false)
}

/// Enqueues a write of a word.
///
/// # Errors
/// As [`crate::Error::Cuda`].
pub fn write32(stream: &Stream, address: u64, value: u32) -> Result<()> {
    stream.write32(address, value)
}
