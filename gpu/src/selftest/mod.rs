//! A list of named checks of this machine's GPU, its driver, the device code and the rings.
//!
//! Every check is made on its own: one that fails does not keep the next from being made. None waits for ever.

mod check;

pub use check::{Check, Outcome, Verdict, verdict};
