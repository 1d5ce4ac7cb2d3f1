//! What the rings of a GPU can do, against a software controller: no PCIe, no drive.
//!
//! | module | noun |
//! |---|---|
//! | `options` | what is measured |
//! | `server` | who serves the rings |
//! | `load` | the control blocks that they carry |
//! | `rig` | all of these, made in the order that they have to be made in |
//! | `saturated`, `single`, `beside`, `preparation` | what is measured |
//! | `compute` | the arithmetic that the rings may slow down |
//! | `report` | what was found |
//! | `run` | a bench from its first part to its last |

mod beside;
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
pub use run::run;
