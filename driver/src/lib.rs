//! NVMe from user space.

pub mod bus;
pub mod error;
pub mod locality;
pub mod soft;
pub mod spec;
pub mod sys;
mod time;

pub use error::{Error, Result};
pub use time::Time;
