//! Deterministic simulation of the driver (`cargo xtask sim`).
//!
//! One seed decides everything: the controller's make-up, the requests, the faults and the order of it
//! all. The driver runs over the software controller in virtual time, on one thread, through its public
//! interface; nothing reads a clock or draws a random number. After every step the laws of the
//! project are checked:
//!
//! | law | what is checked | where |
//! |---|---|---|
//! | 1 | what a read returns is what was acknowledged, or may be there | `model` |
//! | 2 | no panic; broken completions are noticed and honest ones are not; nothing is written beside buffers | `answers` |
//! | 3 | buffers come back once; what the device reaches is mapped; nothing is left in the end | `bus`, `world`, `life` |
//! | 4 | every request and every call ends in bounded virtual time | `world`, `answers` |
//!
//! What must not happen is made to happen on purpose, too ([`Canary`]): a checker that misses it is broken.
//!
//! | file | noun |
//! |---|---|
//! | `shape` | what a seed decides first: controller, queues, kinds of faults |
//! | `faults` | kinds of faults, and what strikes a command |
//! | `requests`, `arena`, `content` | requests, their buffers, what LBAs are filled with |
//! | `model` | what each LBA may hold |
//! | `bus` | the bus, which watches both sides |
//! | `world`, `life`, `answers` | what there is; queues and controllers; what comes back and how it is checked |
//! | `schedule` | what comes next |
//! | `runner` | the run of one seed, and what it says when it fails |

mod answers;
mod arena;
mod bus;
mod canary;
mod content;
mod counts;
mod faults;
pub mod kv;
mod life;
mod model;
mod outcome;
mod random;
mod requests;
mod runner;
mod schedule;
mod shape;
mod trace;
mod world;

pub use canary::Canary;
pub use counts::Counts;
pub use runner::{Failure, Report, note_panics, run_seed};
