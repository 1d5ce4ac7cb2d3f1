//! `adit bench`: fio's workloads over every path to a device.
//!
//! | module | noun |
//! |---|---|
//! | `options`, `jobfile` | fio's language: command lines, job files, and the jobs they describe |
//! | `guard` | what keeps a job from destroying what somebody wants to keep |
//! | `run` | the jobs' threads, and the loop that is measured |
//! | `workload` | which I/O is next |
//! | `data` | what written blocks hold, and whether what is read is what was written |
//! | `measure`, `outcome`, `errors` | what is counted |
//! | `report`, `logs` | how it is told |
//! | `side` | jobs on several paths and with several values, and against earlier results |

mod command;
mod data;
mod errors;
mod guard;
mod jobfile;
mod logs;
mod measure;
mod options;
mod outcome;
mod report;
mod run;
mod side;
mod way;
mod workload;

pub(crate) use command::{BenchCommand, command, verdict};
pub(crate) use data::noise;
pub(crate) use guard::{Permission, Written, check as check_destruction};
pub(crate) use measure::Latency;
pub(crate) use options::command_line::unknown_option;
pub(crate) use options::draft::PERCENTILES;
pub(crate) use options::{Distribution, Request, RunOptions, Section};
pub(crate) use outcome::{JobOutcome, WayOutcome};
pub(crate) use report::moments;
pub(crate) use run::run_on;
pub(crate) use way::Way;
pub(crate) use workload::distribution::Draw;
pub(crate) use workload::random::{Stream, below, mix};
