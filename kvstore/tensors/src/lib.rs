//! Offloads the KV tensors of one inference run: memory where it helps, the drive directly where it does not.
//!
//! A run has two tensors for each layer, K and V. Prefill writes all of them once; each decode step reads all of them
//! and appends one token. They are temporary: no journal, no keys, nothing is kept after the run. If the set exceeds
//! memory, an LRU page cache evicts each page before its next use. This crate keeps as many layers in the page cache as
//! fit and reads the others past it.
//!
//! | [`Group`] | lives in | read | written |
//! |---|---|---|---|
//! | `Cached` | one file per copy thread | through the page cache | through the page cache; in prefill only as much as stays there |
//! | `Direct` | one contiguous run of LBAs of any [`adit_driver::Target`], or the same files | directly, in order | directly |
//!
//! The paper Dual-Blade (arXiv:2604.26557) calls the cached layers group 1 and the direct ones group 2.
//!
//! # Usage
//!
//! [`Tensors::open`] takes [`RunOptions`] and a [`Gpu`], which copies between pinned memory and the computing device.
//! Then, for each layer, [`Tensors::write_layer`] in prefill, and [`Tensors::begin_read`], [`Tensors::finish_read`]
//! and `write_layer` of one more token in decode; [`Tensors::next_iteration`] after each pass over the layers.
//!
//! ```
//! use adit_tensors::{Model, ModelGpu, RunOptions, Shape, Tensors};
//!
//! // Two sequences of 64 tokens each, and 4 more to generate. The GPU is a model.
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
//! `docs/use/tensors.md` explains `kvstore/tensors/examples/decode.rs`, a loop that reads layers ahead.
//!
//! # Cached layers
//!
//! Prefill writes as many of them into the page cache as the kernel keeps without writing them back
//! ([`dirty_room`](adit_kvstore::memory::dirty_room)), so that this never waits for the drive. It writes the rest past
//! the page cache; these layers enter it when they are read back, while copy threads are idle or by their first read.
//! When memory shrinks, layers leave the page cache and are read directly from the same files, which moves no bytes.
//! When memory grows, a layer of the extent is written to the files as it passes through pinned memory on its next
//! read, which moves its bytes once.
//!
//! A drive behind `vfio:` or `uring-cmd:` has no page cache: cached layers then need a mounted file system on another
//! drive or namespace. Without one ([`RunOptions::folder`]), all layers are direct.
//!
//! # Inside
//!
//! Each file builds on those above it:
//!
//! | file | holds |
//! |---|---|
//! | `shape` | sizes of a model's tensors |
//! | `place` | the places of tensors, and the commands that reach them |
//! | `plan` | the group of each layer |
//! | `stats` | the statistics of a run |
//! | `overlap` | the choice whether copy threads read at the same time or in turn |
//! | `cached`, `direct` | a file under the page cache; the core of a queue that moves runs of LBAs |
//! | `options` | options of a run |
//! | `governor` | the number of cached layers, as memory changes |
//! | `copy` | the threads that own pinned memory, and the GPU trait |
//! | `run` | the handle |
//!
//! The files above `copy` read no clock and never wait for a device: `copy` and `run` pass them the time. Only calls of
//! `cached` wait for the kernel.
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
