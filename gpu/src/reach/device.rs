//! Devices as the caller of the rings names them.

use std::sync::Arc;

use adit_driver::{Controller, Namespace};

/// A device to transfer to and from.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its controller. For rings, opened without shadow doorbells.
    pub controller: Arc<Controller>,
    /// One of the controller's namespaces.
    pub namespace: Namespace,
}
