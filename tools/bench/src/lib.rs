//! `adit bench`: fio's workloads over every path to a device.
//!
//! | module | noun |
//! |---|---|
//! | `options` | fio's language: command lines, job files, and the jobs they describe |
//! | `run` | the jobs' threads, and the loop that is measured |
//! | `workload` | which I/O is next |
//! | `data` | what written blocks hold, and whether what is read is what was written |
//! | `measure`, `outcome`, `errors` | what is counted |
//! | `report`, `logs` | the formats of the outcome |
//! | `side` | jobs on several paths and with several values, and against earlier results |

mod command;
mod data;
mod errors;
mod logs;
mod measure;
mod options;
mod outcome;
mod report;
mod run;
mod side;
mod way;
mod workload;

pub use command::{BenchCommand, command};
pub use options::command_line::unknown_option;

/// fio's language, for the fuzz target of job files.
pub mod language {
    pub use crate::options::BenchArgs;
    pub use crate::options::jobfile::{ReadFile, Surroundings, parse};
    pub use crate::options::written::{TextPlace, Written, WrittenSection, sections, words};
}

use adit_tools_common::{failure, human, interrupt, output, units, whole_file};
