//! KV tensors of one inference run, without keys: memory where it helps, and the drive directly where it does not.
//!
//! A run has two tensors for each layer, K and V. Prefill writes all of them once; each decode step reads all of them
//! and appends one token. They are temporal: no journal, no keys, nothing is kept after the run. If the set is larger
//! than memory, a page cache that replaces the least recently used page evicts each page before its next use. This
//! module keeps some layers in the page cache, as many as fit, and reads the others past it.
//!
//! | group | lives in | read | written |
//! |---|---|---|---|
//! | 1 | a file for each copy thread ([`group1`](self#group-1)) | through the page cache | through the page cache; in prefill only as much as stays there |
//! | 2 | one contiguous run of LBAs of any [`adit_driver::Target`] | directly, in order | directly |
//!
//! # How to use it
//!
//! [`Tensors::open`] takes [`RunOptions`] and a [`Gpu`], which copies between pinned memory and the device that computes.
//! Then, for each layer, [`Tensors::write_layer`] in prefill, and [`Tensors::begin_read`], [`Tensors::finish_read`]
//! and `write_layer` of one more token in decode; [`Tensors::next_iteration`] after each pass over the layers.
//!
//! ```
//! use adit_kvstore::tensors::{Model, ModelGpu, RunOptions, Shape, Tensors};
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
//! # Ok::<(), adit_kvstore::Error>(())
//! ```
//!
//! `docs/use/tensors.md` explains `kvstore/examples/decode.rs`, a loop that reads some layers ahead.
//!
//! # Group 1
//!
//! Prefill writes into the page cache as much of the group as the kernel keeps there without writing it back
//! ([`dirty_room`](crate::memory::dirty_room)), so that it never waits for the drive, and the rest past it. These layers
//! enter the page cache when they are read back, while copy threads are idle or by their first read. When memory shrinks,
//! layers leave the page cache and are read directly from the same files: that moves no bytes. When it grows, a layer of
//! group 2 is written to the files as it passes through pinned memory on its next read: that moves its bytes once.
//!
//! A drive behind `vfio:` or `uring-cmd:` has no page cache: group 1 then lives on a mounted file system of another
//! drive or namespace, and without one ([`RunOptions::folder`]) there is only group 2.
//!
//! # Inside
//!
//! | file | holds |
//! |---|---|
//! | `shape` | sizes of a model's tensors |
//! | `governor` | how many layers are in the page cache as memory comes and goes ([`crate::memory`]) |
//! | `plan` | which layers are in which group |
//! | `place` | where each tensor lies, and which commands reach it |
//! | `overlap` | whether the copy threads read at the same time or in turn |
//! | `group1`, `group2` | a file under the page cache; a queue that moves runs of LBAs |
//! | `copy` | the threads that own pinned memory, and the GPU's side of them |
//! | `run` | the handle |
//!
//! Planner, governor, places and overlap have no clock and no I/O of their own.

mod copy;
mod governor;
mod group1;
mod group2;
mod options;
mod overlap;
mod place;
mod plan;
mod run;
mod shape;
mod stats;

pub use copy::gpu::{Gpu, ModelGpu};
pub use options::{Configuration, Extent, Knob, RunOptions};
pub use overlap::{Chooser, Overlap};
pub use place::{Area, Chunk, Place, PlaceMap, Slab, Span, chunks};
pub use plan::{FirstLayers, Plan, Ranker, Spread, cached_layers};
pub use run::{NotFinished, Reading, Tensors};
pub use shape::{Component, Model, Shape, TensorId};
pub use stats::{Figures, GroupStats, Latency, RunStats};
