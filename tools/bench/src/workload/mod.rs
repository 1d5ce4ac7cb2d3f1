//! Generates I/Os: place, length and way.
//!
//! Everything follows from the seed, the pass and the position, so a pass can be replayed without a record.
//! `places` decides which places are used. A pass ends after all of them, or, if places may repeat, after as
//! many bytes as the region has. Does no I/O.

mod generator;
mod latest;
mod places;
mod plan;
mod sizes;
mod steps;
#[cfg(test)]
pub(crate) mod tests;
mod ways;

pub(crate) use generator::{JobRegion, Step};
pub(crate) use plan::unit_bytes;
pub(crate) use sizes::gcd;
pub(crate) use steps::Steps;
