//! NVMe from user space.

pub mod spec;
