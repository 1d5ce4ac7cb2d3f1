//! What the tools' crates share: failures and exit codes, signals, reports, numbers as people write and read them.

#[cfg(feature = "session")]
pub mod blocks;
pub mod failure;
pub mod human;
pub mod interrupt;
#[cfg(feature = "meter")]
pub mod meter;
pub mod output;
pub mod process;
#[cfg(feature = "session")]
pub mod session;
pub mod units;
pub mod whole_file;
