//! `adit kv bench`: measures a store under load.
//!
//! | module | noun |
//! |---|---|
//! | `options` | the command line |
//! | `workload`, `chooser`, `trace` | operations and the objects they apply to |
//! | `objects`, `contents` | names and contents of objects, and their verification |
//! | `bed`, `engine`, `drive` | the store, requests in flight, and the loops |
//! | `dual_blade` | KV tensors of an inference run, in processes with limited memory |
//! | `layers` | KV blocks of a model, restored layer by layer |
//! | `counted`, `report` | counts and their report |
//! | `kept` | protection of existing stores |
//! | `run` | the command |

mod bed;
mod chooser;
mod contents;
mod counted;
mod drive;
mod dual_blade;
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
