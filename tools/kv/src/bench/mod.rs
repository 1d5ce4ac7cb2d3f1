//! `adit kv bench`: a store under load.
//!
//! | module | noun |
//! |---|---|
//! | `options` | the command line |
//! | `workload`, `chooser`, `trace` | what is done to which object |
//! | `objects`, `contents` | what objects are called and hold, and whether what was read is what was put |
//! | `bed`, `engine`, `drive` | the store, what is in flight, and the loops |
//! | `layers` | KV blocks of a model, restored layer by layer |
//! | `counted`, `report` | what is counted and how it is told |
//! | `kept` | what a store that is there keeps from being overwritten |
//! | `run` | the command |

mod bed;
mod chooser;
mod contents;
mod counted;
mod drive;
mod engine;
mod kept;
mod layers;
mod objects;
mod options;
mod report;
mod run;
mod trace;
mod workload;

pub use layers::{Blocks, Moved};
pub(crate) use options::KvBenchArgs;
pub(crate) use run::run;
