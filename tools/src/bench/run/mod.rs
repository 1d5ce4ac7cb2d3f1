//! Running jobs.

mod again;
pub(crate) mod cpu;
mod supervisor;
