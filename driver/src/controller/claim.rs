//! Allows one controller per bus at a time: two would ring each other's doorbells.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::memory::DomainId;
use crate::runtime::lock;

/// The buses that have a controller. Each is alive, so its identifier is unique.
static CLAIMED: Mutex<BTreeSet<DomainId>> = Mutex::new(BTreeSet::new());

/// The right to control a bus, released on drop.
#[derive(Debug)]
pub(super) struct Claim(DomainId);

impl Claim {
    /// Claims a bus.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it already has a controller.
    pub(super) fn new(bus: &Arc<dyn Bus>) -> Result<Claim> {
        let domain = DomainId::of(bus);
        if lock(&CLAIMED).insert(domain) {
            return Ok(Claim(domain));
        }
        Err(Error::invalid(
            format!("{}: opened a second time", bus.device()),
            "clone the controller that is open, or drop it and its queue pairs first",
        ))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&CLAIMED).remove(&self.0);
    }
}
