//! What the links examine: the machine, and one of its devices.

use std::cell::OnceCell;

use adit_driver::{Controller, Target};

use crate::inventory::{Function, Inventory};
use adit_guard::root::Root;

/// Returns the target for a device address; `None` on a recorded machine.
pub(super) type Reach = fn(&Root, &str) -> Option<Target>;

/// The state common to all links.
pub(super) struct Scene<'a> {
    pub(super) root: &'a Root,
    pub(super) inventory: &'a Inventory,
    pub(super) target: Reach,
}

/// The state of one device's chain.
pub(super) struct Patient<'a> {
    pub(super) scene: &'a Scene<'a>,
    pub(super) function: &'a Function,
    pub(super) target: Option<Target>,
    /// Present once it is open.
    pub(super) controller: OnceCell<Controller>,
}
