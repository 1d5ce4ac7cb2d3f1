//! What Dual-Blade is compared with: direct layers that lie behind the page cache after all.
//!
//! `mmap` has all layers in a mapped file, as engines do it. `fadvise` has direct layers in a file that is read and written
//! through the page cache, and takes them out of it after each use. Both files are extents of the run, by other paths of
//! the driver's.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use adit_driver::{KernelPath, KernelTarget, Target};
use adit_tensors::{Extent, Gpu, RunOptions, Spread, TensorId, Tensors};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::configuration::Configuration;
use crate::failure::{Failure, Result};

/// A GPU whose direct layers leave the page cache after each use.
pub(super) struct Dropping<G> {
    gpu: G,
    file: Option<File>,
    /// Where each tensor begins in the file, once the run is open.
    offsets: OnceLock<HashMap<TensorId, u64>>,
}

impl<G> Dropping<G> {
    /// Takes a part of a tensor out of the page cache, as far as it is written back; begins to write back the rest.
    fn forget(&self, tensor: TensorId, at: u64, bytes: usize) -> io::Result<()> {
        let start = self.offsets.get().and_then(|offsets| offsets.get(&tensor));
        let (Some(file), Some(start)) = (&self.file, start) else { return Ok(()) };
        let (at, advice) = (start + at, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(posix_fadvise(file, at.cast_signed(), bytes as i64, advice)?)
    }
}

impl<G: Gpu> Gpu for Dropping<G> {
    fn to_host(&self, tensor: TensorId, offset: u64, pinned: &mut [u8]) -> io::Result<()> {
        self.gpu.to_host(tensor, offset, pinned)?;
        // What was written before: the run writes the next portion once the GPU has filled it.
        let before = offset.min(pinned.len() as u64);
        self.forget(tensor, offset - before, before as usize)
    }

    fn to_device(&self, tensor: TensorId, offset: u64, pinned: &[u8]) -> io::Result<()> {
        self.gpu.to_device(tensor, offset, pinned)?;
        self.forget(tensor, offset, pinned.len())
    }
}

/// Opens a run of a configuration.
///
/// # Errors
/// The run's, and that its file cannot be created.
pub(super) fn open<G: Gpu>(
    mut options: RunOptions,
    gpu: G,
    configuration: Configuration,
) -> Result<Tensors<Dropping<G>>> {
    let path = match configuration {
        Configuration::Mmap => Some(KernelPath::Mmap),
        Configuration::Fadvise => Some(KernelPath::Psync),
        Configuration::Direct | Configuration::Dual => None,
    };
    let made = path.map(|path| make_extent(&mut options, path)).transpose()?;
    let name = made.as_ref().map(|(name, _)| name.clone());
    let file = made.map(|(_, file)| file).filter(|_| configuration == Configuration::Fadvise);
    let shape = options.shape;
    let gpu = Dropping { gpu, file, offsets: OnceLock::new() };
    let run = Tensors::open_ranked(options, gpu, &Spread);
    let removed = name.map_or(Ok(()), fs::remove_file);
    let run = run.map_err(failure)?;
    removed.map_err(Failure::failed)?;
    let tensors = (0..shape.model.layers).flat_map(TensorId::pair);
    let offsets = tensors.filter_map(|tensor| Some((tensor, run.extent_bytes(tensor)?.start)));
    run.gpu().offsets.get_or_init(|| offsets.collect());
    Ok(run)
}

/// Makes a file under the page cache the extent; returns its name, and the file.
fn make_extent(options: &mut RunOptions, path: KernelPath) -> Result<(PathBuf, File)> {
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let name = folder.join(format!("adit-baseline-{}", std::process::id()));
    let file = File::create_new(&name);
    let file = file.map_err(|why| Failure::failed(format!("{}: {why}", name.display())))?;
    let target = KernelTarget { direct: false, ..KernelTarget::new(path, &name) };
    // Each tensor begins at an LBA, which is no longer than a page.
    let set_bytes = options.shape.set_bytes() + u64::from(2 * options.shape.model.layers) * 4096;
    let extent = Extent::new(Target::Kernel(target));
    // The paper's configuration computes its plan once, and writes nothing past the page cache.
    options.rebudget_every = Duration::ZERO;
    options.dirty_bytes = Some(u64::MAX);
    options.extent = Some(Extent { file_bytes: Some(set_bytes), ..extent });
    Ok((name, file))
}

/// Returns the failure of a run that does not open.
fn failure(error: adit_tensors::Error) -> Failure {
    match error {
        adit_tensors::Error::Invalid { .. } => Failure::usage(error),
        error => Failure::failed(error),
    }
}
