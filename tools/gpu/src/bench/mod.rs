//! Measures the rings of a GPU against a software controller: no PCIe, no drive.
//!
//! | module | holds |
//! |---|---|
//! | `args`, `watch` | the options; progress and interrupts |
//! | `command` | the order of the measurements |
//! | `saturated`, `single`, `beside` | the measurements |
//! | `compute` | the compute load beside the rings |
//! | `report` | the results as text and JSON |
//!
//! The rings, their controller and their load are [`crate::rig`]'s.

pub(crate) mod args;
mod beside;
pub(crate) mod command;
pub(crate) mod compute;
mod report;
mod saturated;
mod single;
#[cfg(test)]
mod tests;
mod watch;
