//! What the GPU and controllers both reach: memory by one of several paths, queues and doorbells in it.

mod by_cpu;
pub(crate) mod device;
pub(crate) mod doorbell;
pub(crate) mod pages;
pub(crate) mod paths;
pub(crate) mod pool;
pub(crate) mod proxy;
pub(crate) mod queue;
pub(crate) mod queues;
pub mod self_test;
