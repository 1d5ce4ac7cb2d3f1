//! The modules of `adit bench` that parse its language, included from source because a program has no library to
//! depend on.

#[path = "../../tools/src/bench/errors.rs"]
pub(crate) mod errors;
#[path = "../../tools/src/bench/jobfile/mod.rs"]
pub(crate) mod jobfile;
#[path = "../../tools/src/bench/options/mod.rs"]
pub(crate) mod options;
#[path = "../../tools/src/bench/way.rs"]
pub(crate) mod way;
