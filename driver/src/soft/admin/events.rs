//! Asynchronous events (NVMe Base 2.0 section 5.2).
//!
//! Each type of event is reported once and then kept back until the host has
//! read the log page that the event names.

use crate::soft::command::Command;
use crate::soft::controller::Controller;
use crate::soft::memory::{Dma, Fault};
use crate::soft::status::{Answer, EVENT_LIMIT_EXCEEDED, Reply};

/// Requests that may be outstanding (Identify Controller AERL, which is zero-based).
pub(super) const REQUESTS_MAX: usize = 4;

const TYPE_ERROR: u8 = 0;
const TYPE_SMART: u8 = 1;
const TYPE_NOTICE: u8 = 2;
const LOG_ERROR: u8 = 1;
const LOG_SMART: u8 = 2;
const LOG_CHANGED_NAMESPACES: u8 = 4;

/// Asynchronous Event Configuration: temperature warning, namespace notices.
const CONFIG_TEMPERATURE: u32 = 1 << 1;
const CONFIG_NAMESPACES: u32 = 1 << 8;
/// More than this many changed namespaces are reported as "too many".
const CHANGED_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    kind: u8,
    info: u8,
    log: u8,
}

/// Events and the requests that wait for them.
#[derive(Debug, Default)]
pub(in crate::soft) struct Events {
    waiting: Vec<Event>,
    requests: Vec<Command>,
    /// Types that were reported and whose log was not read since.
    kept_back: u8,
    /// Namespaces whose attributes changed since their log was read.
    pub(super) changed: Vec<u32>,
}

impl Events {
    fn raise(&mut self, kind: u8, info: u8, log: u8) {
        let event = Event { kind, info, log };
        if !self.waiting.contains(&event) {
            self.waiting.push(event);
        }
    }

    /// The host rang a doorbell of no queue.
    pub(in crate::soft) fn invalid_doorbell_register(&mut self) {
        self.raise(TYPE_ERROR, 0, LOG_ERROR);
    }

    /// The host rang a doorbell with an impossible value.
    pub(in crate::soft) fn invalid_doorbell_value(&mut self) {
        self.raise(TYPE_ERROR, 1, LOG_ERROR);
    }

    /// The host has read a log page: its events may be reported again.
    pub(super) fn log_was_read(&mut self, log: u8) {
        let kind = match log {
            LOG_ERROR => TYPE_ERROR,
            LOG_SMART => TYPE_SMART,
            LOG_CHANGED_NAMESPACES => TYPE_NOTICE,
            _ => return,
        };
        self.kept_back &= !(1 << kind);
        if log == LOG_CHANGED_NAMESPACES {
            self.changed.clear();
        }
    }

    /// Takes an outstanding request back.
    pub(super) fn take_request(&mut self, cid: u16) -> Option<Command> {
        let at = self.requests.iter().position(|request| request.cid == cid)?;
        Some(self.requests.remove(at))
    }

    /// The next event that may be reported, with the request that reports it.
    fn next(&mut self) -> Option<(Command, Event)> {
        if self.waiting.is_empty() || self.requests.is_empty() {
            return None;
        }
        let at = self.waiting.iter().position(|event| self.kept_back >> event.kind & 1 == 0)?;
        let event = self.waiting.remove(at);
        self.kept_back |= 1 << event.kind;
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

    /// Completes requests for the events there are.
    pub(in crate::soft) fn deliver_events(&mut self, dma: &Dma<'_>) -> Result<(), Fault> {
        while let Some((request, event)) = self.events.next() {
            let dw0 =
                u32::from(event.kind) | u32::from(event.info) << 8 | u32::from(event.log) << 16;
            self.complete_waiting(&request, Ok(Reply::Done(dw0)), dma)?;
        }
        Ok(())
    }

    /// Reports that a namespace's attributes changed, if the host asked to be told.
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

    /// Attaches or detaches a namespace behind the host's back; false if there is none.
    pub fn attach_namespace(&mut self, nsid: u32, is_attached: bool) -> bool {
        let Some(namespace) = self.namespaces.find_mut(nsid) else { return false };
        namespace.is_attached = is_attached;
        self.namespace_changed(nsid);
        true
    }

    /// Sets the composite temperature; above the host's threshold it is a
    /// critical warning and, if the host asked for it, an event.
    pub fn set_temperature(&mut self, kelvin: u16) {
        self.statistics.temperature_kelvin = kelvin;
        let is_over = kelvin >= self.features.temperature_threshold();
        if is_over && self.features.event_config() & CONFIG_TEMPERATURE != 0 {
            self.events.raise(TYPE_SMART, 1, LOG_SMART);
        }
    }
}
