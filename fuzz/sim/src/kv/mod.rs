//! Deterministic simulation of the store (`cargo xtask sim --store`).
//!
//! One seed decides everything, as for the driver. Shards run over devices that lose power, tear, reorder, misdirect
//! and forget. A model checks their answers, and the state after each crash.
//!
//! | file | holds |
//! |---|---|
//! | `media`, `faults`, `machine`, `device` | stored data and power cuts, the faults, the state shared by devices, their queues |
//! | `frozen` | the state that a cut at a command would leave, kept to try it |
//! | `pool`, `content`, `tensors` | memory, the contents of objects, and KV blocks |
//! | `model` | what may be read of each key |
//! | `shape` | what a seed decides first: the store, its devices, its faults |
//! | `conditions` | conditional changes, versions as the store names them, other expiries |
//! | `world`, `requests`, `answers`, `looks` | the state of a run; requests; checking answers; immediate calls |
//! | `account` | a reader of removals |
//! | `attaching` | devices that come back |
//! | `schedule`, `run` | how the store is opened, used and lost; the run of one seed, and a cut at each command |
//! | `tiers` | the shards' memory tiers, and readers of what is there |
//! | `waiting` | changes that wait for memory, in the store's own order |
//! | `canary` | rules broken on purpose |

mod account;
mod answers;
mod attaching;
mod canary;
mod conditions;
mod content;
mod counts;
mod damage;
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
mod tiers;
mod waiting;
mod world;

pub use canary::StoreCanary;
pub use counts::StoreCounts;
pub use run::{count_sweep, run_cuts, run_seed};
