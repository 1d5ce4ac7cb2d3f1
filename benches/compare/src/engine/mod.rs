//! The engines that are compared.
//!
//! Each engine's file documents its setup with reasons, and gives the same words to the report. All engines get the
//! same objects, the same memory and the same number of requests in flight.

mod adit;
mod files;
mod foyer;
mod raw;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::load::{Runner, Work};
use crate::measured::{Found, Tally};

/// An engine's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// No engine: one queue of io_uring on a file, as the driver uses it
    Raw,
    /// The same in memory of 4 KiB pages, which is what the others read into
    #[value(name = "raw-4k")]
    #[serde(rename = "raw-4k")]
    Raw4k,
    /// The store
    Adit,
    /// The store with its memory tier
    AditTier,
    /// foyer's hybrid cache, io_uring, none of it in memory
    Foyer,
    /// foyer's hybrid cache, io_uring
    FoyerTier,
    /// foyer's hybrid cache, blocking reads and writes on threads, none of it in memory
    FoyerPsync,
    /// foyer's hybrid cache, blocking reads and writes on threads
    FoyerPsyncTier,
    /// RocksDB with BlobDB
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// RocksDB with BlobDB and its blob cache
    #[cfg(feature = "rocksdb")]
    RocksdbTier,
    /// A file for each object, past the page cache
    FilesDirect,
    /// A file for each object, through the page cache
    Files,
}

impl Kind {
    /// Returns the name used on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns whether it keeps objects in memory.
    pub(crate) fn has_cache(self) -> bool {
        #[cfg(feature = "rocksdb")]
        if self == Kind::RocksdbTier {
            return true;
        }
        matches!(self, Kind::AditTier | Kind::FoyerTier | Kind::FoyerPsyncTier | Kind::Files)
    }
}

/// The inputs of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// An empty folder of its own.
    pub(crate) folder: PathBuf,
    pub(crate) objects: u64,
    pub(crate) object_bytes: usize,
    /// Memory that it may use.
    pub(crate) memory_bytes: u64,
    /// Memory in which it keeps objects; 0 for none.
    pub(crate) cache_bytes: u64,
    /// Requests in flight.
    pub(crate) depth: u32,
}

impl Setup {
    pub(crate) fn data_bytes(&self) -> u64 {
        self.objects * self.object_bytes as u64
    }
}

/// The engine's description for the report.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) setup: String,
    pub(crate) promise: String,
}

/// An engine as workers use it.
pub(crate) trait Engine: Send + Sync + 'static {
    /// A worker's own state.
    type Hands: Send;

    /// Creates a worker's state.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn hands(&self) -> Result<Self::Hands>;

    /// Stores an object; returns when the engine reports it stored.
    fn put(&self, hands: &mut Self::Hands, object: u64) -> impl Future<Output = Result<()>> + Send;

    /// Reads and checks an object.
    fn get(
        &self,
        hands: &mut Self::Hands,
        object: u64,
    ) -> impl Future<Output = Result<Found>> + Send;

    /// Returns when everything put is on the device, through its volatile cache.
    fn settle(&self) -> impl Future<Output = Result<()>> + Send;

    /// Returns how many gets its memory has answered so far, if it counts them.
    fn memory_hits(&self) -> impl Future<Output = Result<Option<u64>>> + Send {
        std::future::ready(Ok(None))
    }
}

/// Runs phases on an engine.
pub(crate) trait Bed {
    /// Runs a phase to its end.
    ///
    /// # Errors
    /// Any failure; misses and wrong bytes are counted instead.
    fn run(&mut self, work: &Arc<Work>) -> Result<Tally>;

    /// As [`Engine::settle`].
    ///
    /// # Errors
    /// Any failure.
    fn settle(&mut self) -> Result<()>;

    /// As [`Engine::memory_hits`].
    ///
    /// # Errors
    /// Any failure.
    fn memory_hits(&mut self) -> Result<Option<u64>>;
}

struct Workers<E> {
    engine: Arc<E>,
    runner: Runner,
    depth: u32,
}

impl<E: Engine> Bed for Workers<E> {
    fn run(&mut self, work: &Arc<Work>) -> Result<Tally> {
        self.runner.run(&self.engine, work, self.depth)
    }

    fn settle(&mut self) -> Result<()> {
        self.runner.block_on(self.engine.settle())
    }

    fn memory_hits(&mut self) -> Result<Option<u64>> {
        self.runner.block_on(self.engine.memory_hits())
    }
}

/// Opens an engine.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn open(kind: Kind, setup: &Setup) -> Result<(Box<dyn Bed>, About)> {
    match kind {
        Kind::Raw | Kind::Raw4k => {
            let (raw, about) = raw::Raw::open(setup, kind == Kind::Raw)?;
            Ok((Box::new(raw), about))
        }
        Kind::Adit | Kind::AditTier => {
            let runner = Runner::Tasks(runtime(1)?);
            Ok(workers(adit::Adit::open(setup)?, runner, setup))
        }
        Kind::Foyer | Kind::FoyerTier | Kind::FoyerPsync | Kind::FoyerPsyncTier => {
            let threads = std::thread::available_parallelism()?.get();
            let runner = Runner::Tasks(runtime(threads)?);
            let is_uring = matches!(kind, Kind::Foyer | Kind::FoyerTier);
            let opened = runner.block_on(foyer::Foyer::open(setup, is_uring))?;
            Ok(workers(opened, runner, setup))
        }
        #[cfg(feature = "rocksdb")]
        Kind::Rocksdb | Kind::RocksdbTier => {
            Ok(workers(rocksdb::Rocks::open(setup)?, Runner::Threads, setup))
        }
        Kind::Files | Kind::FilesDirect => {
            let opened = files::Files::open(setup, kind == Kind::FilesDirect)?;
            Ok(workers(opened, Runner::Threads, setup))
        }
    }
}

fn workers<E: Engine>(
    (engine, about): (E, About),
    runner: Runner,
    setup: &Setup,
) -> (Box<dyn Bed>, About) {
    (Box::new(Workers { engine: Arc::new(engine), runner, depth: setup.depth }), about)
}

/// Creates a runtime on the calling thread or, for several threads, on that many.
fn runtime(threads: usize) -> Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    Ok(builder.enable_all().build()?)
}

/// Creates a file with allocated blocks, as for a store, so that no put pays for allocation.
fn make_file(path: &Path, bytes: u64) -> Result<()> {
    let make = || -> Result<()> {
        let file = File::create_new(path)?;
        Ok(nix::fcntl::posix_fallocate(&file, 0, bytes as i64)?)
    };
    make().with_context(|| {
        format!("{}: {bytes} bytes cannot be set aside; free some room", path.display())
    })
}

/// Judges the bytes read: right or wrong.
fn judge(bytes: &[u8], object: u64, object_bytes: usize) -> Found {
    if crate::contents::is_right(bytes, object, object_bytes) { Found::Right } else { Found::Wrong }
}
