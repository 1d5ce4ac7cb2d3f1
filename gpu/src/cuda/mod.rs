//! Safe wrappers over the parts of CUDA that this crate needs. Nothing else in the crate calls CUDA.
//!
//! Every function is looked up once and called through a pointer ([`library`]), never through cudarc's bindings, which
//! panic if a library or a function is missing; cudarc provides the types. Our context is current on a thread only
//! during a call. Streams do not synchronise with the legacy default stream, and no wait blocks inside CUDA:
//! `cuStreamSynchronize` takes no deadline, and hangs behind an endless kernel.
//!
//! Addresses of GPU memory are plain `u64` in this crate. Addresses given to a stream (a kernel's argument, a word to
//! write) are accessed later and cannot be checked here. They lie in memory that this crate allocated or registered, or
//! that a caller vouched for, and the code that enqueues them keeps that memory until the stream is past it.

mod copier;
mod event;
mod gpu;
mod host_copies;
pub(crate) mod library;
mod memory;
mod module;
mod partition;
pub(crate) mod program;
mod registration;
mod running;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

pub use event::Event;
pub use gpu::{Attributes, Gpu, GpuInfo};
pub(crate) use gpu::{QUICK_LOOKS, flush_rdma_writes, poll_until};
pub use host_copies::HostCopies;
pub use memory::{DeviceMemory, PinnedMemory};
pub use module::Function;
pub(crate) use module::Module;
#[cfg(any(test, feature = "internals"))]
pub use partition::Partition;
pub use partition::{PartitionKind, Partitions};
pub(crate) use registration::Registration;
pub(crate) use running::Busy;
pub use running::{Endless, Runner};
pub use stream::{Priority, Stream};
