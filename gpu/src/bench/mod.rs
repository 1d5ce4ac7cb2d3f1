//! What the rings of a GPU can do, against a software controller: no PCIe, no drive.
//!
//! | module | noun |
//! |---|---|
//! | `options` | what is measured |
//! | `report` | what was found |

mod options;
mod report;

pub use options::{BenchOptions, ControllerChoice, QUEUES_MAX, Watch};
pub use report::{BenchReport, Beside, LABEL, Preparation, Saturated, Single};
