//! Asynchronous events that wait, and the requests that wait for them (NVMe Base 2.0 section 5.2).
//!
//! After reporting an event, the controller holds back events of that type until the host reads the log page it named.

use crate::command::Command;

/// Requests that may be outstanding (Identify Controller AERL, which is zero-based).
pub(crate) const REQUESTS_MAX: usize = 4;

const TYPE_ERROR: u8 = 0;
pub(crate) const TYPE_SMART: u8 = 1;
pub(crate) const TYPE_NOTICE: u8 = 2;
const LOG_ERROR: u8 = 1;
pub(crate) const LOG_SMART: u8 = 2;
pub(crate) const LOG_FIRMWARE: u8 = 3;
pub(crate) const LOG_CHANGED_NAMESPACES: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingEvent {
    kind: u8,
    info: u8,
    log: u8,
}

/// Pending events, and the requests that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: Vec<PendingEvent>,
    requests: Vec<Command>,
    /// By event type: the log of the last reported event until the host reads it; 0 for none.
    kept_back: [u8; 8],
    /// Namespaces that changed since the host last read their log.
    pub(crate) changed: Vec<u32>,
}

impl Events {
    /// Adds an event, unless the same one waits already.
    pub(crate) fn raise(&mut self, kind: u8, info: u8, log: u8) {
        let event = PendingEvent { kind, info, log };
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
    pub(crate) fn log_was_read(&mut self, log: u8) {
        for kept_back in self.kept_back.iter_mut().filter(|kept_back| **kept_back == log) {
            *kept_back = 0;
        }
        if log == LOG_CHANGED_NAMESPACES {
            self.changed.clear();
        }
    }

    /// Takes an outstanding request back, for Abort.
    pub(crate) fn take_request(&mut self, cid: u16) -> Option<Command> {
        let at = self.requests.iter().position(|request| request.cid == cid)?;
        Some(self.requests.remove(at))
    }

    /// Adds a request; returns false if as many as the host may send are outstanding.
    pub(crate) fn add_request(&mut self, request: &Command) -> bool {
        let has_room = self.requests.len() < REQUESTS_MAX;
        if has_room {
            self.requests.push(*request);
        }
        has_room
    }

    /// Takes the next reportable event and a request to report it with: the request, and its dword 0.
    pub(crate) fn next(&mut self) -> Option<(Command, u32)> {
        if self.waiting.is_empty() || self.requests.is_empty() {
            return None;
        }
        let is_free = |event: &PendingEvent| self.kept_back[usize::from(event.kind)] == 0;
        let at = self.waiting.iter().position(is_free)?;
        let event = self.waiting.remove(at);
        self.kept_back[usize::from(event.kind)] = event.log;
        let dw0 = u32::from(event.kind) | u32::from(event.info) << 8 | u32::from(event.log) << 16;
        Some((self.requests.remove(0), dw0))
    }
}
