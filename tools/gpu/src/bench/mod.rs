//! Measures the rings of a GPU against a software controller: no PCIe, no drive.
//!
//! | module | holds |
//! |---|---|
//! | `options` | what to measure |
//! | `server` | the controllers that serve the rings |
//! | `load` | the control blocks that they execute |
//! | `rig` | all of these, created in the required order |
//! | `saturated`, `single`, `beside`, `preparation` | the measurements |
//! | `compute` | the compute load beside the rings |
//! | `report` | the results |
//! | `run` | a whole bench |

mod beside;
pub(crate) mod command;
mod compute;
pub(crate) mod load;
mod options;
mod preparation;
mod report;
pub(crate) mod rig;
mod run;
mod saturated;
pub(crate) mod server;
mod single;

pub use options::{BenchOptions, COMPUTE_MAX, ControllerChoice, QUEUES_MAX, WARPS_MAX, Watch};
pub use report::{BenchReport, Beside, LABEL, Preparation, Saturated, Single};
pub use run::{curve, run};
