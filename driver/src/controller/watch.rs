//! Checks a controller and its bus for events, and reacts to them.
//!
//! There is no thread: [`super::Controller::poll`] checks, acts, and returns one event at a time. It also
//! checks CSTS, to detect a failed controller before any deadline.

use std::sync::atomic::Ordering;
use std::time::Duration;

use zerocopy::FromBytes;

use super::admin::Admin;
use super::events::{ACTIVATION, Event};
use super::registers::read;
use super::shared::Shared;
use crate::Time;
use crate::bus::BusEvent;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::namespace::Shape;
use crate::runtime::lock;
use crate::spec::feature::AsyncEvent;
use crate::spec::identify::IdentifyNamespace;
use crate::spec::log::{ChangedNamespaces, Lid, SmartHealth};
use crate::spec::register::CSTS;
use crate::spec::{Cns, Nsid, Sqe, Status, View};
use crate::transfer::PAGE_BYTES;

/// Notice: Firmware Activation Starting (NVMe Base 2.0, figure 149).
const FIRMWARE_ACTIVATION: u8 = 1;
/// Bytes to read of log pages that are read only to re-arm their event.
const LOG_BYTES: u32 = 512;
/// Longest activation that is accepted; MTFA can say nearly two hours.
const ACTIVATION_MAX: Duration = Duration::from_secs(60);

impl Shared {
    /// Checks for events and handles them; returns one.
    pub(super) fn poll(&self, now: Time) -> Option<Event> {
        if let Some(event) = lock(&self.events).pop_front() {
            return Some(event);
        }
        if let Some(event) = self.bus().take_event() {
            if event == BusEvent::RemovalRequested {
                self.give_up("the system asked for the device to be released");
            }
            self.fail(self.life(), what_it_means(event));
            return Some(Event::Bus(event));
        }
        let life = self.life();
        if !life.is_running() {
            return None;
        }
        if let Some(cause) = self.cause_of_death() {
            self.fail(life, &cause);
            return None;
        }
        let status = read(&**self.bus(), CSTS);
        if !status.pp() && self.pause.is_announced.swap(false, Ordering::Relaxed) {
            self.rearm_firmware_notice();
        }
        // The thread that ends the life needs the same lock to end what is in flight.
        let take = |admin: &mut Admin| {
            self.is_in(life).then(|| (admin.take_event(), admin.take_violation()))
        };
        let (event, violation) = self.try_with_admin(take)??;
        if let Some(violation) = violation {
            self.fail(life, &format!("on the admin queue, {violation}"));
            return None;
        }
        self.act_on(now, event?);
        lock(&self.events).pop_front()
    }

    /// Returns the latest end of the controller's pause, if it pauses.
    pub(super) fn paused_until(&self, now: Time) -> Option<Time> {
        let paused = read(&**self.bus(), CSTS).pp();
        self.pause.until(now, paused, self.activation())
    }

    /// Returns the time limit of a pause, by which a command may exceed its own.
    pub(super) fn activation(&self) -> Duration {
        match self.info.identify.mtfa_100ms.get() {
            0 => ACTIVATION,
            units => Duration::from_millis(u64::from(units) * 100).min(ACTIVATION_MAX),
        }
    }

    /// Examines an event and queues the resulting ones.
    fn act_on(&self, now: Time, event: AsyncEvent) {
        tracing::info!("{}: {event}", self.bus().device());
        let known = match (event.event_type(), event.info()) {
            (AsyncEvent::SMART_HEALTH, _) => self.look_at_health(event),
            _ if event == AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED => self.look_at_changed(),
            (AsyncEvent::NOTICE, FIRMWARE_ACTIVATION) => {
                self.wait_for_firmware(now);
                Ok(())
            }
            (AsyncEvent::ERROR, _) => {
                self.tell(Event::Other(event));
                self.read_log(Lid::ERROR_INFORMATION).map(drop)
            }
            _ => {
                self.tell(Event::Other(event));
                Ok(())
            }
        };
        if let Err(error) = known {
            tracing::warn!("{error}; details of the event are unknown");
            // The event is real even if examining it failed.
            if lock(&self.events).is_empty() {
                self.tell(Event::Other(event));
            }
        }
    }

    fn tell(&self, event: Event) {
        lock(&self.events).push_back(event);
    }

    fn read_log(&self, lid: Lid) -> Result<Buffer> {
        let sqe = Sqe::get_log_page(lid, Nsid::ALL, LOG_BYTES, 0, false);
        self.read_page("Get Log Page", sqe.expect("a multiple of 4"), LOG_BYTES as usize)
    }

    fn look_at_health(&self, event: AsyncEvent) -> Result<()> {
        let log = self.read_log(Lid::SMART_HEALTH)?;
        let log = SmartHealth::view(&log).expect("the log is as long as the structure");
        self.tell(Event::Health { event, warnings: log.critical_warning() });
        Ok(())
    }

    /// The controller is about to pause; the log that re-arms the event is read after that.
    fn wait_for_firmware(&self, now: Time) {
        let until = now + self.activation();
        self.pause.begin(until);
        self.pause.is_announced.store(true, Ordering::Relaxed);
        self.tell(Event::FirmwareActivation { until });
    }

    fn rearm_firmware_notice(&self) {
        if let Err(error) = self.read_log(Lid::FIRMWARE_SLOT) {
            tracing::warn!("{error}; another firmware activation may go unnoticed");
        }
    }

    /// Reads which namespaces changed, and examines each.
    fn look_at_changed(&self) -> Result<()> {
        let sqe =
            Sqe::get_log_page(Lid::CHANGED_NAMESPACES, Nsid::ALL, PAGE_BYTES as u32, 0, false);
        let sqe = sqe.expect("a multiple of 4");
        let log = self.read_page("Get Log Page", sqe, PAGE_BYTES as usize)?;
        let log = ChangedNamespaces::view(&log).expect("a page is as long as the log");
        // The list overflowed: examine every open namespace.
        let changed = match log.overflowed() {
            true => lock(&self.sizes).open(),
            false => log.iter().collect(),
        };
        self.look_at(changed)
    }

    /// Examines all open namespaces, after a time without reports.
    pub(super) fn look_at_open_namespaces(&self) {
        let open = lock(&self.sizes).open();
        if let Err(error) = self.look_at(open) {
            tracing::warn!("{error}; sizes of namespaces may have changed");
        }
    }

    /// Examines each namespace. Returns the first error; a namespace that could not be read keeps its known
    /// size.
    fn look_at(&self, nsids: Vec<Nsid>) -> Result<()> {
        let mut result = Ok(());
        for nsid in nsids {
            match self.format_of(nsid) {
                Ok(present) => {
                    let event = lock(&self.sizes).update(nsid, present);
                    event.into_iter().for_each(|event| self.tell(event));
                }
                Err(error @ Error::Status { .. }) => result = result.and(Err(error)),
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// Reads a namespace's shape and LBA count; `None` if it is inactive.
    fn format_of(&self, nsid: Nsid) -> Result<Option<(Shape, u64)>> {
        let sqe = Sqe::identify(Cns::NAMESPACE, nsid, 0);
        let page = match self.read_page("Identify", sqe, PAGE_BYTES as usize) {
            // Any other status says nothing about the namespace.
            Err(Error::Status { status, .. }) if status.is(Status::INVALID_NAMESPACE_OR_FORMAT) => {
                return Ok(None);
            }
            page => page?,
        };
        let identify = IdentifyNamespace::ref_from_bytes(&page).expect("a page is as long");
        Ok(Shape::of(identify).map(|shape| (shape, identify.nsze_lbas.get())))
    }

    pub(super) fn read_page(&self, name: &'static str, sqe: Sqe, bytes: usize) -> Result<Buffer> {
        self.check()?;
        let data = crate::memory::allocate(self.bus(), bytes)?;
        let (_, data) = self.call(name, sqe, Some(data))?;
        Ok(data.expect("a call gives its buffer back"))
    }
}

/// Explains why a bus event takes the controller out of service.
fn what_it_means(event: BusEvent) -> &'static str {
    match event {
        BusEvent::Error => "the bus reported an error that it cannot correct (AER)",
        BusEvent::RemovalRequested => {
            "the system asks for the device to be released (hot unplug or unbind): close it"
        }
        BusEvent::Gone => "the device is gone",
    }
}
