//! fio's job options, parsed and typed.
//!
//! A job file or a command line yields [`Section`]s: options by name as written, and the [`JobOptions`] they
//! resolve to. [`RunOptions`] apply to the whole run. `supported.txt` lists each job option once, for job files, the
//! command line, its help and its completions, and `set` parses its value. This module opens no device.

mod check;
pub(crate) mod command_line;
mod defaults;
pub(crate) mod draft;
pub(crate) mod expression;
mod grammar;
mod iolog;
mod job;
pub(crate) mod jobfile;
pub(crate) mod others;
mod parse;
pub(crate) mod replay;
mod request;
mod rows;
mod run;
mod set;
pub(crate) mod table;
pub(crate) mod targets;
#[cfg(test)]
mod tests;
mod values;
mod workload;
pub(crate) mod written;

pub(crate) use check::writes;
pub use command_line::BenchArgs;
pub(crate) use grammar::{fraction, name_of, numbers};
pub(crate) use job::*;
pub(crate) use request::{RANDSEED, Request};
pub(crate) use run::RunOptions;
#[cfg(test)]
pub(crate) use run::SideOptions;
pub(crate) use values::*;
