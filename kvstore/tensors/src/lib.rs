//! KV tensors of one inference run, without keys: memory where it helps, and the drive directly where it does not.
//!
//! A run has two tensors for each layer, K and V. Prefill writes all of them once; each decode step reads all of them
//! and appends one token. They are temporal: no journal, no keys, nothing is kept after the run. If the set is larger
//! than memory, a page cache that replaces the least recently used page evicts each page before its next use. This
//! crate keeps some layers in the page cache, as many as fit, and reads the others past it.
//!
//! | [`Group`] | lives in | read | written |
//! |---|---|---|---|
//! | `Cached` | a file for each copy thread | through the page cache | through the page cache; in prefill only as much as stays there |
//! | `Direct` | one contiguous run of LBAs of any [`adit_driver::Target`], or the same files | directly, in order | directly |
//!
//! The paper Dual-Blade (arXiv:2604.26557) calls the cached layers group 1 and the direct ones group 2.
//!
//! # How to use it
//!
//! [`Tensors::open`] takes [`RunOptions`] and a [`Gpu`], which copies between pinned memory and the device that computes.
//! Then, for each layer, [`Tensors::write_layer`] in prefill, and [`Tensors::begin_read`], [`Tensors::finish_read`]
//! and `write_layer` of one more token in decode; [`Tensors::next_iteration`] after each pass over the layers.
//!
//! ```
//! use adit_tensors::{Model, ModelGpu, RunOptions, Shape, Tensors};
//!
//! // Two sequences of 64 tokens each, to which 4 more are generated. The GPU is a model of one.
//! let shape = Shape::new(Model::OPT_1_3B, 2, 64, 4)?;
//! let mut run = Tensors::open(RunOptions::new(shape), ModelGpu::new(12 << 30, true))?;
//! for layer in 0..shape.model.layers {
//!     run.write_layer(layer, 0..64)?; // As prefill computes it.
//! }
//! run.next_iteration()?;
//! for tokens in 64..shape.tokens_max() {
//!     for layer in 0..shape.model.layers {
//!         run.read_layer(layer, tokens)?; // Then the GPU computes the next token's keys and values.
//!         run.write_layer(layer, tokens..tokens + 1)?;
//!     }
//!     run.next_iteration()?;
//! }
//! assert_eq!(run.close()?.iterations, 4);
//! # Ok::<(), adit_tensors::Error>(())
//! ```
//!
//! `docs/use/tensors.md` explains `kvstore/tensors/examples/decode.rs`, a loop that reads some layers ahead.
//!
//! # Cached layers
//!
//! Prefill writes as many of them into the page cache as the kernel keeps there without writing them back
//! ([`dirty_room`](adit_kvstore::memory::dirty_room)), so that it never waits for the drive, and the rest past it. These
//! layers enter the page cache when they are read back, while copy threads are idle or by their first read. When memory
//! shrinks, layers leave the page cache and are read directly from the same files: that moves no bytes. When it grows, a
//! layer of the extent is written to the files as it passes through pinned memory on its next read: that moves its bytes
//! once.
//!
//! A drive behind `vfio:` or `uring-cmd:` has no page cache: cached layers then live on a mounted file system of another
//! drive or namespace. Without one ([`RunOptions::folder`]) all layers are direct.
//!
//! # Inside
//!
//! From the bottom up; a file builds on those before it:
//!
//! | file | holds |
//! |---|---|
//! | `shape` | sizes of a model's tensors |
//! | `place` | where each tensor lies, and which commands reach it |
//! | `plan` | which layers are in which group |
//! | `stats` | what a run counts |
//! | `overlap` | whether the copy threads read at the same time or in turn |
//! | `cached`, `direct` | a file under the page cache; the core of a queue that moves runs of LBAs |
//! | `options` | options of a run |
//! | `governor` | how many layers are cached as memory comes and goes |
//! | `copy` | the threads that own pinned memory, and the GPU's side of them |
//! | `run` | the handle |
//!
//! Files below `copy` read no clock and never wait for a device, but take the time; only calls of `cached` wait for the
//! kernel. `copy` and `run` pass the time to them.
#![forbid(unsafe_code)]

mod cached;
mod copy;
mod direct;
mod error;
mod governor;
mod options;
mod overlap;
mod place;
mod plan;
mod run;
mod shape;
mod stats;

pub use copy::gpu::{Gpu, ModelGpu};
pub use error::{Error, Result};
pub use options::{Extent, Knob, RunOptions};
pub use overlap::{Chooser, Overlap};
pub use plan::{FirstLayers, Group, Plan, Ranker, Spread};
pub use run::{Reading, Tensors};
pub use shape::{Component, Model, Shape, TensorId};
pub use stats::{Cost, Figures, GroupStats, Latency, RunStats};
