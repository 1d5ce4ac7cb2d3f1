//! gio_uring end to end: an emulated GPU over software controllers, checked against models.
//!
//! The process has one emulated GPU, so tests run one after the other ([`rig::alone`]), and each leaves nothing behind
//! on it.

mod beside;
mod data;
mod faults;
mod graphs;
mod life;
mod misuse;
mod proof;
mod rig;
mod verify;
