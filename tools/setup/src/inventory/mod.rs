//! The inventory: the host, its NVMe controllers, their users, and whether Adit may take them.
//!
//! Reads sysfs, procfs and `wipefs`'s findings; opens nothing for writing. The field names are those of the
//! JSON.

mod controller;
mod function;
mod host;
mod namespace;
mod notes;
mod obstacle;
pub(crate) mod pool;
mod verdict;

use adit_guard::disk::Usage;
use adit_guard::root::Root;
use serde::Serialize;

pub(crate) use function::{Function, Group, Member};
pub(crate) use host::{Host, Hugepages, ModuleState, NO_IOMMU_GROUP};
pub(crate) use namespace::Namespace;
pub(crate) use obstacle::{Obstacle, ObstacleKind};

/// The machine.
#[derive(Debug, Serialize)]
pub(crate) struct Inventory {
    /// What all controllers share.
    pub(crate) host: Host,
    /// The NVMe controllers by address.
    pub(crate) controllers: Vec<Function>,
    /// What could not be seen, and where missing controllers may be; one sentence each.
    pub(crate) notes: Vec<String>,
}

impl Inventory {
    /// Takes the inventory.
    pub(crate) fn read(root: &Root) -> Inventory {
        let host = Host::read(root);
        let usage = Usage::read(root);
        let mut controllers = function::all(root, &usage);
        for function in &mut controllers {
            function.obstacles = verdict::obstacles(function, &host);
        }
        let notes = notes::all(root, &controllers, &usage);
        Inventory { host, controllers, notes }
    }
}
