//! The reactor: its lanes, driven by hand in virtual time over a misbehaving software controller, and its threads on
//! the machine's clock.
#![allow(missing_docs)]

#[path = "model/random.rs"]
#[allow(dead_code, reason = "shared with the model, which uses all of it")]
mod random;
#[path = "support/rig.rs"]
#[allow(dead_code, reason = "shared with the tests of faults, which use all of it")]
mod rig;

#[path = "reactor/failures.rs"]
mod failures;
#[path = "reactor/hand.rs"]
mod hand;
#[path = "reactor/lanes.rs"]
mod lanes;
#[path = "reactor/seeds.rs"]
mod seeds;
#[path = "reactor/stress.rs"]
mod stress;
#[path = "reactor/threads.rs"]
mod threads;
