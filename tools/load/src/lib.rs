//! What load generators share: which block is next, what it holds, and how long it took.
//!
//! | module | noun |
//! |---|---|
//! | `random` | random numbers by index, so that each can be computed again |
//! | `permutation`, `order`, `map` | each block once, in a random order |
//! | `distribution` | hot and cold blocks: Zipf, Pareto, normal, zones |
//! | `pattern`, `payload` | contents of blocks: patterns, noise, data that compresses |
//! | `contents` | contents that identify each byte of an object |
//! | `latency`, `statistics` | latency histograms; medians and their confidence intervals |
//!
//! Everything follows from a seed; nothing here does I/O or reads a clock.

mod contents;
mod distribution;
mod latency;
mod map;
mod order;
mod pattern;
mod payload;
mod permutation;
mod random;
mod statistics;

pub use contents::{Contents, Expected};
pub use distribution::{Distribution, Draw};
pub use latency::{Latency, PERCENTILES};
pub use map::RandomMap;
pub use order::RandomOrder;
pub use pattern::Pattern;
pub use payload::{Mixed, Payload, noise, scramble};
pub use random::{GOLDEN, Stream, below, fraction, happens, mix};
pub use statistics::{CONFIDENCE, Estimate, ROUNDS_MIN, median};
