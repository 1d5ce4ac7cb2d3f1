//! The staged engine against models: lanes in virtual time beside a test GPU, and the whole engine on the emulated GPU.

mod bench_gpu;
mod ends;
mod moves;
mod rig;
mod threads;
