//! NVMe from user space.

pub mod bus;
pub mod error;
pub mod spec;
pub mod sys;
pub mod target;
mod time;

pub use error::{Error, Result};
pub use target::Target;
pub use time::Time;
