//! The kernel's paths on real files: what was written is read, by every path, whatever is in flight.
//!
//! No test needs privileges or a device. `uring:` needs a kernel that allows io_uring, which is tested for by name: where
//! it is forbidden these tests fail and say so.

#[path = "kernel_paths/model.rs"]
mod model;
#[path = "kernel_paths/refusals.rs"]
mod refusals;
#[path = "kernel_paths/rig.rs"]
mod rig;
#[path = "kernel_paths/uring.rs"]
mod uring;
