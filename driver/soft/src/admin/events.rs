//! Asynchronous events (NVMe Base 2.0 section 5.2).
//!
//! After reporting an event, the controller holds back events of that type until the host reads the log page it named.

use std::time::Duration;

use crate::command::Command;
use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::memory::Dma;
use crate::run::Served;
use crate::status::{Answer, EVENT_LIMIT_EXCEEDED, Reply};

/// Requests that may be outstanding (Identify Controller AERL, which is zero-based).
pub(super) const REQUESTS_MAX: usize = 4;

const TYPE_ERROR: u8 = 0;
const TYPE_SMART: u8 = 1;
const TYPE_NOTICE: u8 = 2;
const LOG_ERROR: u8 = 1;
const LOG_SMART: u8 = 2;
const LOG_FIRMWARE: u8 = 3;
const LOG_CHANGED_NAMESPACES: u8 = 4;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    kind: u8,
    info: u8,
    log: u8,
}

/// Pending events, and the requests that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: Vec<Event>,
    requests: Vec<Command>,
    /// By event type: the log of the last reported event until the host reads it; 0 for none.
    kept_back: [u8; 8],
    /// Namespaces that changed since the host last read their log.
    pub(super) changed: Vec<u32>,
}

impl Events {
    fn raise(&mut self, kind: u8, info: u8, log: u8) {
        let event = Event { kind, info, log };
        if !self.waiting.contains(&event) {
            self.waiting.push(event);
        }
    }

    /// Reports a ring of a nonexistent queue's doorbell.
    pub(crate) fn invalid_doorbell_register(&mut self) {
        self.raise(TYPE_ERROR, 0, LOG_ERROR);
    }

    /// Reports a ring with an impossible value.
    pub(crate) fn invalid_doorbell_value(&mut self) {
        self.raise(TYPE_ERROR, 1, LOG_ERROR);
    }

    /// Re-arms the events of a log page that the host has read.
    pub(super) fn log_was_read(&mut self, log: u8) {
        for kept_back in self.kept_back.iter_mut().filter(|kept_back| **kept_back == log) {
            *kept_back = 0;
        }
        if log == LOG_CHANGED_NAMESPACES {
            self.changed.clear();
        }
    }

    /// Takes an outstanding request back, for Abort.
    pub(super) fn take_request(&mut self, cid: u16) -> Option<Command> {
        let at = self.requests.iter().position(|request| request.cid == cid)?;
        Some(self.requests.remove(at))
    }

    /// Takes the next reportable event and a request to report it with.
    fn next(&mut self) -> Option<(Command, Event)> {
        if self.waiting.is_empty() || self.requests.is_empty() {
            return None;
        }
        let is_free = |event: &Event| self.kept_back[usize::from(event.kind)] == 0;
        let at = self.waiting.iter().position(is_free)?;
        let event = self.waiting.remove(at);
        self.kept_back[usize::from(event.kind)] = event.log;
        Some((self.requests.remove(0), event))
    }
}

impl Controller {
    pub(super) fn async_event_request(&mut self, command: &Command) -> Answer {
        if self.events.requests.len() >= REQUESTS_MAX {
            return Err(EVENT_LIMIT_EXCEEDED);
        }
        self.events.requests.push(*command);
        Ok(Reply::Later)
    }

    /// Completes requests with the reportable events.
    pub(crate) fn deliver_events(&mut self, dma: &Dma<'_>) -> Served {
        while let Some((request, event)) = self.events.next() {
            let dw0 =
                u32::from(event.kind) | u32::from(event.info) << 8 | u32::from(event.log) << 16;
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
