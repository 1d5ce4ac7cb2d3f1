//! The ground below the driver and the software controller: memory that they share, and time.
//!
//! | item | what it is |
//! |---|---|
//! | [`Atomics`] | a view of shared memory as atomics: rings, lists, shadow doorbells |
//! | [`SharedBytes`], [`SharedBytesMut`] | bytes that others may write at any time: they are copied, never referred to |
//! | [`SharedPages`] | memory that a software controller shows as a BAR |
//! | [`zero_mapping`], [`punch_hole`] | giving the space behind zeros back |
//! | [`Time`], [`deadline`] | a point in time, as an argument; the end of a wait |
//!
//! ```
//! use adit_shared::Time;
//! use std::time::Duration;
//!
//! let now = Time::ZERO;
//! let deadline = now + Duration::from_millis(5);
//! assert!(deadline > now && deadline.as_ns() == 5_000_000);
//! ```
//!
//! Nothing here knows NVMe: the two sides share this crate and the wire types, and no reading of the specification.

mod atomics;
mod media;
mod shared_bytes;
mod shared_pages;
mod time;

pub use atomics::Atomics;
pub use media::{punch_hole, zero_mapping};
pub use shared_bytes::{SharedBytes, SharedBytesMut};
pub use shared_pages::SharedPages;
pub use time::{Time, deadline};
