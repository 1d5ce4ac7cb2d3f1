//! Deterministic simulation of the store (`cargo xtask sim --store`).
//!
//! One seed decides everything, as with the driver. Shards run over devices that lose power, tear, reorder, misdirect
//! and forget; after each answer, and after each reopening, what is read is held against a model.
//!
//! | file | noun |
//! |---|---|
//! | `media`, `faults`, `machine`, `device` | what is stored and what a power cut takes, what strikes, what devices share, their queues |
//! | `pool`, `content` | memory, and what objects are filled with |
//! | `model` | what may be read of each key |
//! | `canary` | rules broken on purpose |

mod canary;
mod content;
mod device;
mod faults;
mod machine;
mod media;
mod model;
mod pool;

pub use canary::StoreCanary;
