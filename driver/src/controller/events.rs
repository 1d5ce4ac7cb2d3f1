//! Asynchronous events of a controller and its bus, and what the driver remembers for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::Time;
use crate::bus::BusEvent;
use crate::namespace::Shape;
use crate::spec::Nsid;
use crate::spec::feature::AsyncEvent;
use crate::spec::log::CriticalWarning;

/// Pause for a firmware activation if the controller states none (MTFA of 0).
pub(super) const ACTIVATION: Duration = Duration::from_secs(10);
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
    pub(super) fn update(&mut self, nsid: Nsid, now: Option<(Shape, u64)>) -> Option<Event> {
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
    pub(super) fn open(&mut self) -> Vec<Nsid> {
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
    pub(super) is_announced: AtomicBool,
}

impl Pause {
    pub(super) fn begin(&self, until: Time) {
        self.until_ns.store(until.as_ns(), Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    /// Returns the latest end of the current pause; `None` if there is none or it lasts too long. `paused` is
    /// CSTS.PP, `longest` the limit of a pause.
    pub(super) fn until(&self, now: Time, paused: bool, longest: Duration) -> Option<Time> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::identify::{IdentifyNamespace, LbaFormat};
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
