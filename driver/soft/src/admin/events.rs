//! Asynchronous Event Request, and what the owner makes happen to the device.

use std::time::Duration;

use crate::command::Command;
use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::memory::{Dma, Served};
use crate::state::events::{
    LOG_CHANGED_NAMESPACES, LOG_FIRMWARE, LOG_SMART, TYPE_NOTICE, TYPE_SMART,
};
use crate::status::{Answer, EVENT_LIMIT_EXCEEDED, Reply};

/// Asynchronous Event Configuration: SMART critical warnings by their bits, namespace and
/// firmware activation notices.
const CONFIG_WARNINGS: u32 = 0xff;
const CONFIG_NAMESPACES: u32 = 1 << 8;
const CONFIG_FIRMWARE: u32 = 1 << 9;
/// Critical warnings (SMART log): available spare, temperature.
const WARNING_SPARE: u8 = 1;
const WARNING_TEMPERATURE: u8 = 1 << 1;
/// Information of SMART events: reliability, temperature, spare.
const SMART_RELIABILITY: u8 = 0;
const SMART_TEMPERATURE: u8 = 1;
const SMART_SPARE: u8 = 2;
/// Beyond this many changed namespaces, the log reports "too many".
const CHANGED_MAX: usize = 1024;

impl Controller {
    pub(super) fn async_event_request(&mut self, command: &Command) -> Answer {
        if self.events.add_request(command) { Ok(Reply::Later) } else { Err(EVENT_LIMIT_EXCEEDED) }
    }

    /// Completes requests with the reportable events.
    pub(crate) fn deliver_events(&mut self, dma: &Dma<'_>) -> Served {
        while let Some((request, dw0)) = self.events.next() {
            self.complete_waiting(&request, Ok(Reply::Done(dw0)), dma)?;
        }
        Ok(())
    }

    /// Reports that a namespace's attributes changed, if the host enabled that notice.
    pub fn namespace_changed(&mut self, nsid: u32) {
        let changed = &mut self.events.changed;
        if !changed.contains(&nsid) && changed.len() <= CHANGED_MAX {
            changed.push(nsid);
            changed.sort_unstable();
        }
        if self.features.event_config() & CONFIG_NAMESPACES != 0 {
            self.events.raise(TYPE_NOTICE, 0, LOG_CHANGED_NAMESPACES);
        }
    }

    /// Attaches or detaches a namespace without a host command; returns false if there is no such namespace.
    pub fn attach_namespace(&mut self, nsid: u32, is_attached: bool) -> bool {
        let Some(namespace) = self.namespaces.find_mut(nsid) else { return false };
        namespace.is_attached = is_attached;
        self.namespace_changed(nsid);
        true
    }

    /// Sets the composite temperature. Above the host's threshold, it raises a critical warning and, if enabled, an
    /// event.
    pub fn set_temperature(&mut self, kelvin: u16) {
        self.statistics.temperature_kelvin = kelvin;
        if kelvin >= self.features.temperature_threshold() {
            self.raise_warnings(WARNING_TEMPERATURE);
        }
    }

    /// Sets the critical warnings of the SMART log, by their bits there; the temperature's follows from the
    /// temperature. Each raises an event if enabled.
    pub fn warn_critical(&mut self, warnings: u8) {
        self.statistics.critical_warning = warnings;
        self.raise_warnings(warnings);
    }

    fn raise_warnings(&mut self, warnings: u8) {
        let wanted = warnings & (self.features.event_config() & CONFIG_WARNINGS) as u8;
        for bit in (0..8).map(|bit| 1 << bit).filter(|bit| wanted & bit != 0) {
            let info = match bit {
                WARNING_SPARE => SMART_SPARE,
                WARNING_TEMPERATURE => SMART_TEMPERATURE,
                _ => SMART_RELIABILITY,
            };
            self.events.raise(TYPE_SMART, info, LOG_SMART);
        }
    }

    /// Activates firmware without a host command: raises a notice if enabled, then pauses commands for `duration`
    /// (CSTS.PP).
    pub fn activate_firmware(&mut self, duration: Duration) {
        if self.features.event_config() & CONFIG_FIRMWARE != 0 {
            self.events.raise(TYPE_NOTICE, 1, LOG_FIRMWARE);
        }
        self.life.pause_next(duration);
    }

    /// Resizes a namespace without a host command. Data past the new end is lost; added LBAs read as zeros.
    ///
    /// # Errors
    /// An error if there is no such namespace, or no room behind it.
    pub fn resize_namespace(&mut self, nsid: u32, lba_count: u64) -> Result<()> {
        let (offset, len) = self.namespaces.resize(nsid, lba_count)?;
        let what = format!("namespace {nsid}");
        self.media.erase(offset, len).map_err(|_| Error::invalid(what, "its storage fails"))?;
        self.namespace_changed(nsid);
        Ok(())
    }

    /// Deletes a namespace without a host command; returns false if there is none.
    pub fn remove_namespace(&mut self, nsid: u32) -> bool {
        let is_gone = self.namespaces.remove(nsid).is_some();
        if is_gone {
            self.namespace_changed(nsid);
        }
        is_gone
    }
}
