//! `adit bench`: runs fio's workloads over any path to a device.
//!
//! | module | noun |
//! |---|---|
//! | `options`, `jobfile` | fio's language: command lines, job files, and the jobs they describe |
//! | `guard` | keeps jobs from destroying data |
//! | `run` | the jobs' threads, and the measured loop |
//! | `workload` | which I/O is next |
//! | `data` | contents of written blocks, and their verification |
//! | `measure`, `outcome`, `errors` | counts |
//! | `report`, `logs` | fio's report formats and logs |
//! | `side` | comparison of targets, option values and earlier results |
//!
//! Jobs come from `options`, directions of I/O from `way`. Only `run` opens devices for I/O; `workload`, `data`
//! and `report` are tested without one.

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
