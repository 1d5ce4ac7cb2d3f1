//! Deterministic simulation of the driver (`cargo xtask sim`).
//!
//! One seed decides everything: the controller's features, the requests, the faults and their order. The driver runs
//! over the software controller in virtual time, on one thread, through its public interface; nothing reads a clock
//! or draws a random number. After every step the project's laws are checked:
//!
//! | law | what is checked | where |
//! |---|---|---|
//! | 1 | a read returns what was acknowledged, or what may be there | `model` |
//! | 2 | no panic; broken completions are noticed and honest ones are not; nothing is written beside buffers | `answers` |
//! | 3 | buffers come back once; what the device accesses is mapped; nothing is left at the end | `bus`, `world`, `life` |
//! | 4 | every request and every call ends in bounded virtual time | `world`, `answers` |
//!
//! Laws are also broken on purpose ([`Canary`]): a checker that misses it is broken.
//!
//! | file | holds |
//! |---|---|
//! | `shape` | what a seed decides first: controller, queues, kinds of faults |
//! | `faults` | kinds of faults, and which strike a command |
//! | `requests`, `arena`, `content` | requests, their buffers, the contents of LBAs |
//! | `model` | what each LBA may hold |
//! | `bus` | the bus, which watches both sides |
//! | `world`, `life`, `answers` | the state of a run; queues and controllers; checking answers |
//! | `schedule` | the next action |
//! | `runner` | the run of one seed, and its report on failure |

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
