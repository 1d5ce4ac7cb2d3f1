//! gio_uring: control blocks filled by the CPU, and the rings in GPU memory through which the GPU carries them out.

mod beside;
mod engine;
mod gates;
pub(crate) mod iocb;
mod member;
mod proof;
pub(crate) mod ring_set;
pub(crate) mod uring;
pub(crate) mod verify;
