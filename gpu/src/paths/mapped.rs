//! A block of memory as the GPU reaches it, and as one device does.

use std::any::Any;
use std::sync::Arc;

use adit_driver::spec::Iova;
use adit_driver::{Buffer, Controller, FileMapping, IoBuffer};

use super::{Exposed, HostBlock};
use crate::error::Result;

/// Memory that the GPU reaches, with what a device needs to be given it.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    /// The GPU's.
    Gpu(Arc<Exposed>),
    /// The host's.
    Host(Arc<HostBlock>),
}

/// A block as one device reaches it; taken from the device on drop, before the block can go.
#[derive(Debug)]
pub(crate) enum Mapped {
    /// Registered by its address in this process.
    Here(Buffer),
    /// Registered by the file behind it.
    File(FileMapping),
}

impl Block {
    /// Where the GPU finds the first byte.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Block::Gpu(exposed) => exposed.memory().address(),
            Block::Host(host) => host.address(),
        }
    }

    /// Gives the whole block to a device.
    ///
    /// # Errors
    /// What the device's bus says.
    pub(crate) fn map(&self, controller: &Controller) -> Result<Mapped> {
        match self {
            Block::Gpu(exposed) => exposed.map(controller),
            Block::Host(host) => host.map(controller),
        }
    }

    /// Gives it to several.
    ///
    /// # Errors
    /// The first refusal; those before it are undone.
    pub(crate) fn map_for(&self, controllers: &[Arc<Controller>]) -> Result<Vec<Mapped>> {
        controllers.iter().map(|controller| self.map(controller)).collect()
    }

    /// Keeps the block, for whoever has to outlast a device's use of it.
    pub(crate) fn keeper(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(self.clone())
    }
}

impl Mapped {
    /// Where the device finds the first byte.
    pub(crate) fn iova(&self) -> Iova {
        match self {
            Mapped::Here(buffer) => buffer.iova(),
            Mapped::File(mapping) => mapping.iova(),
        }
    }

    /// Where the device finds the two prebuilt PRP lists of the block's pages; `None` for one of two pages or fewer,
    /// which needs no list.
    pub(crate) fn lists(&self) -> Option<[Iova; 2]> {
        let prebuilt = match self {
            Mapped::Here(buffer) => buffer.prebuilt(0),
            Mapped::File(mapping) => mapping.prebuilt(),
        };
        prebuilt.map(|lists| lists.tables())
    }
}
