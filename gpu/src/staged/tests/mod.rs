//! The staged engine against models: lanes in virtual time beside a test GPU, and the whole engine on the emulated GPU.

mod ends;
mod moves;
mod rig;
mod stepped_gpu;
mod threads;
