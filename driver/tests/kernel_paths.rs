//! The kernel paths on real files: every path reads what was written, with any requests in flight.
//!
//! No test needs privileges or a device. `uring:` needs a kernel that allows io_uring; where it is forbidden, the tests
//! fail and say so.

#[path = "kernel_paths/model.rs"]
mod model;
#[path = "kernel_paths/refusals.rs"]
mod refusals;
#[path = "kernel_paths/rig.rs"]
mod rig;
#[path = "kernel_paths/uring.rs"]
mod uring;
