//! Asynchronous events of a controller and its bus, and the driver's reactions.
//!
//! There is no thread: [`super::Controller::poll`] checks, acts, and returns one event at a time. It also
//! checks CSTS, to detect a failed controller before any deadline.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use zerocopy::FromBytes;

use super::admin::Admin;
use super::registers::read;
use super::shared::Shared;
use crate::Time;
use crate::bus::BusEvent;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::namespace::Shape;
use crate::runtime::lock;
use crate::spec::feature::{AsyncEvent, AsyncEventType};
use crate::spec::identify::IdentifyNamespace;
use crate::spec::log::{ChangedNamespaces, CriticalWarning, Lid, SmartHealth};
use crate::spec::register::CSTS;
use crate::spec::{Cns, Nsid, Sqe, Status, View};
use crate::transfer::PAGE_BYTES;

/// Notice: Firmware Activation Starting (NVMe Base 2.0, figure 149).
const FIRMWARE_ACTIVATION: u8 = 1;
/// Pause for a firmware activation if the controller states none (MTFA of 0).
pub(super) const ACTIVATION: Duration = Duration::from_secs(10);
/// Longest activation that is accepted; MTFA can say nearly two hours.
const ACTIVATION_MAX: Duration = Duration::from_secs(60);
/// Bytes to read of log pages that are read only to re-arm their event.
const LOG_BYTES: u32 = 512;

/// An event of a controller outside its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The controller's health changed.
    Health {
        /// The reported event.
        event: AsyncEvent,
        /// The critical warnings now in the SMART / Health log (NVMe Base 2.0 section 5.16.1.3).
        warnings: CriticalWarning,
    },
    /// The size of an open namespace changed; its handles already use the new one.
    NamespaceResized {
        /// The namespace.
        nsid: Nsid,
        /// Its new number of LBAs.
        lba_count: u64,
    },
    /// A namespace is gone or has a new format: its handles have no LBAs any more.
    NamespaceRemoved {
        /// The namespace.
        nsid: Nsid,
    },
    /// A namespace without open handles appeared or changed.
    NamespaceAdded {
        /// The namespace.
        nsid: Nsid,
    },
    /// The controller activates new firmware and may pause (NVMe Base 2.0 section 3.11.1). Commands that
    /// become overdue meanwhile are not aborted.
    FirmwareActivation {
        /// The latest end of the pause.
        until: Time,
    },
    /// Any other asynchronous event, as the controller sent it.
    Other(AsyncEvent),
    /// An event of the device's bus; the controller is out of service.
    Bus(BusEvent),
}

/// The sizes of open namespaces, shared with their handles.
#[derive(Debug, Default)]
pub(super) struct Sizes(BTreeMap<Nsid, Size>);

#[derive(Debug)]
struct Size {
    shape: Shape,
    lba_count: Weak<AtomicU64>,
}

impl Sizes {
    /// Returns the LBA count that all handles of a namespace share.
    pub(super) fn share(&mut self, nsid: Nsid, shape: Shape, count: u64) -> Arc<AtomicU64> {
        let known = self.0.get(&nsid).filter(|size| size.shape == shape);
        if let Some(shared) = known.and_then(|size| size.lba_count.upgrade()) {
            shared.store(count, Ordering::Relaxed);
            return shared;
        }
        let shared = Arc::new(AtomicU64::new(count));
        self.0.insert(nsid, Size { shape, lba_count: Arc::downgrade(&shared) });
        shared
    }

    /// Records a namespace's current shape and LBA count, or `None` if it is inactive.
    fn update(&mut self, nsid: Nsid, now: Option<(Shape, u64)>) -> Option<Event> {
        let open = self.0.get(&nsid).and_then(|size| Some((size, size.lba_count.upgrade()?)));
        match (open, now) {
            (None, Some(_)) => Some(Event::NamespaceAdded { nsid }),
            (None, None) => Some(Event::NamespaceRemoved { nsid }),
            (Some((size, count)), Some((shape, lba_count))) if size.shape == shape => {
                let before = count.swap(lba_count, Ordering::Relaxed);
                (before != lba_count).then_some(Event::NamespaceResized { nsid, lba_count })
            }
            (Some((_, count)), _) => {
                let before = count.swap(0, Ordering::Relaxed);
                (before != 0).then_some(Event::NamespaceRemoved { nsid })
            }
        }
    }

    /// Drops namespaces without open handles; returns the others.
    fn open(&mut self) -> Vec<Nsid> {
        self.0.retain(|_, size| size.lba_count.strong_count() > 0);
        self.0.keys().copied().collect()
    }
}

/// A pause that the controller announced or shows in CSTS.PP.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Its latest end in nanoseconds; 0 if there is none.
    until_ns: AtomicU64,
    /// It was announced; the log page that re-arms the event is still to be read.
    is_announced: AtomicBool,
}

impl Pause {
    fn begin(&self, until: Time) {
        self.until_ns.store(until.as_ns(), Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    /// Returns the latest end of the current pause; `None` if there is none or it lasts too long. `paused` is
    /// CSTS.PP, `longest` the limit of a pause.
    fn until(&self, now: Time, paused: bool, longest: Duration) -> Option<Time> {
        let until = Time::from_ns(self.until_ns.load(Ordering::Relaxed));
        match (until == Time::ZERO, paused) {
            (true, false) => None,
            (true, true) => {
                self.begin(now + longest);
                Some(now + longest)
            }
            (false, paused) if now >= until => {
                // Remember a pause that exceeds its limit, so that it does not start over.
                if !paused {
                    self.clear();
                }
                None
            }
            (false, _) => Some(until),
        }
    }
}

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
        let known = match (event.event_type, event.info) {
            (AsyncEventType::SmartHealth, _) => self.look_at_health(event),
            _ if event == AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED => self.look_at_changed(),
            (AsyncEventType::Notice, FIRMWARE_ACTIVATION) => {
                self.wait_for_firmware(now);
                Ok(())
            }
            (AsyncEventType::Error, _) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::identify::LbaFormat;
    use zerocopy::FromZeros;

    const NSID: Nsid = Nsid(3);

    fn shape(lba_bytes: u32, ms_bytes: u16) -> Shape {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.nsze_lbas = 1.into();
        identify.lbaf[0] = LbaFormat::new(lba_bytes.ilog2() as u8, ms_bytes);
        Shape::of(&identify).expect("a valid format")
    }

    #[test]
    fn handles_of_a_namespace_follow_its_size() {
        let mut sizes = Sizes::default();
        let first = sizes.share(NSID, shape(512, 0), 100);
        let second = sizes.share(NSID, shape(512, 0), 100);
        let resized = Event::NamespaceResized { nsid: NSID, lba_count: 50 };
        assert_eq!(sizes.update(NSID, Some((shape(512, 0), 50))), Some(resized));
        assert_eq!(sizes.update(NSID, Some((shape(512, 0), 50))), None, "known already");
        assert_eq!(first.load(Ordering::Relaxed), 50);
        assert_eq!(second.load(Ordering::Relaxed), 50);
        assert_eq!(sizes.update(NSID, None), Some(Event::NamespaceRemoved { nsid: NSID }));
        assert_eq!(second.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_namespace_of_another_format_is_another_one() {
        let mut sizes = Sizes::default();
        let before = sizes.share(NSID, shape(512, 0), 100);
        let event = sizes.update(NSID, Some((shape(4096, 0), 12)));
        assert_eq!(event, Some(Event::NamespaceRemoved { nsid: NSID }));
        let after = sizes.share(NSID, shape(4096, 0), 12);
        assert_eq!((before.load(Ordering::Relaxed), after.load(Ordering::Relaxed)), (0, 12));
        // The same LBAs with metadata need different transfers.
        let event = sizes.update(NSID, Some((shape(4096, 8), 12)));
        assert_eq!(event, Some(Event::NamespaceRemoved { nsid: NSID }));
        assert_eq!(after.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn namespaces_that_are_not_open_are_reported_and_forgotten() {
        let mut sizes = Sizes::default();
        drop(sizes.share(NSID, shape(512, 0), 100));
        assert!(sizes.open().is_empty());
        let added = sizes.update(NSID, Some((shape(512, 0), 1)));
        assert_eq!(added, Some(Event::NamespaceAdded { nsid: NSID }));
    }

    #[test]
    fn a_pause_ends_when_it_is_over_or_has_lasted_too_long() {
        const LONGEST: Duration = Duration::from_secs(1);
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let pause = Pause::default();
        assert_eq!(pause.until(at(10), false, LONGEST), None);
        assert_eq!(pause.until(at(10), true, LONGEST), Some(at(1010)), "CSTS.PP alone");
        assert_eq!(pause.until(at(500), true, LONGEST), Some(at(1010)), "not prolonged");
        assert_eq!(pause.until(at(1010), true, LONGEST), None, "too long");
        assert_eq!(pause.until(at(1020), true, LONGEST), None, "nor does it begin anew");
        assert_eq!(pause.until(at(1030), false, LONGEST), None);
        assert_eq!(pause.until(at(1040), true, LONGEST), Some(at(2040)), "the next one");
    }
}
