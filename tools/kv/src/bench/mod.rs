//! `adit kv bench`: measures a store under load.
//!
//! | module | noun |
//! |---|---|
//! | `options` | the command line |
//! | `workload`, `chooser`, `trace` | operations and the objects they apply to |
//! | `objects` | generations of objects |
//! | `bed`, `served`, `engine`, `drive` | the store, here or at its server, requests in flight, and the loops |
//! | `dual_blade` | KV tensors of an inference run, in processes with limited memory |
//! | `counted`, `report` | counts and their report |
//! | `kept` | protection of existing stores |
//! | `run` | the command |

mod bed;
mod chooser;
mod counted;
mod drive;
mod dual_blade;
mod engine;
mod kept;
mod objects;
mod options;
mod report;
mod run;
mod served;
mod trace;
mod workload;

pub(crate) use options::KvBenchArgs;
pub(crate) use run::run;
