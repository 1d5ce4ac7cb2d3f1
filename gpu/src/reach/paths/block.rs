//! A block of memory for the GPU.

use std::sync::Arc;

use adit_driver::Controller;

use super::exposed::Exposed;
use super::host::HostBlock;
use super::mapped::Mapped;
use crate::error::Result;

/// Memory that the GPU can access, with what a device needs to map it.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    Gpu(Arc<Exposed>),
    Host(Arc<HostBlock>),
}

impl Block {
    pub(crate) fn address(&self) -> u64 {
        match self {
            Block::Gpu(exposed) => exposed.memory().address(),
            Block::Host(host) => host.address(),
        }
    }

    /// Maps the whole block for a device.
    ///
    /// # Errors
    /// The device's bus's.
    pub(crate) fn map(&self, controller: &Controller) -> Result<Mapped> {
        match self {
            Block::Gpu(exposed) => exposed.map(controller),
            Block::Host(host) => host.map(controller),
        }
    }

    /// Maps it for several devices.
    ///
    /// # Errors
    /// The first refusal, which undoes the earlier mappings.
    pub(crate) fn map_for(&self, controllers: &[Arc<Controller>]) -> Result<Vec<Mapped>> {
        controllers.iter().map(|controller| self.map(controller)).collect()
    }

    /// Copies from `offset`.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] outside the block; CUDA's.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Block::Gpu(exposed) => exposed.memory().read(offset, bytes),
            Block::Host(host) => host.read(offset, bytes),
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// As [`Block::read`].
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Block::Gpu(exposed) => exposed.memory().write(offset, bytes),
            Block::Host(host) => host.write(offset, bytes),
        }
    }
}
