//! What the tools' crates share: failures and exit codes, signals, reports, numbers as people write and read them.

pub mod failure;
pub mod human;
pub mod interrupt;
pub mod output;
pub mod process;
pub mod units;
pub mod whole_file;
