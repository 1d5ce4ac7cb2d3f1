//! Deterministic simulation of the store (`cargo xtask sim --store`).
//!
//! One seed decides everything, as with the driver. Shards run over devices that lose power, tear, reorder, misdirect
//! and forget; what they answer is held against a model, and so is what comes back after each crash.
//!
//! | file | noun |
//! |---|---|
//! | `media`, `faults`, `machine`, `device` | what is stored and what a power cut takes, what strikes, what devices share, their queues |
//! | `frozen` | what a cut at a command would find, kept to try it |
//! | `pool`, `content`, `tensors` | memory, what objects are filled with, and KV blocks |
//! | `model` | what may be read of each key |
//! | `shape` | what a seed decides first: the store, its devices, its faults |
//! | `world`, `requests`, `answers`, `looks` | what there is; what is asked; what comes back and how it is checked; calls that are answered at once |
//! | `attaching` | devices that come back |
//! | `schedule`, `run` | how the store is opened, lived with and lost; the run of one seed, and a cut at each command |
//! | `canary` | rules broken on purpose |

mod answers;
mod attaching;
mod canary;
mod content;
mod counts;
mod device;
mod faults;
mod frozen;
mod looks;
mod machine;
mod media;
mod model;
mod pool;
mod requests;
mod run;
mod schedule;
mod shape;
mod tensors;
mod world;

pub use canary::StoreCanary;
pub use counts::StoreCounts;
pub use run::{count_sweep, run_cuts, run_seed};
