//! Latencies of finished I/Os, and their counts.

use adit_driver::Time;

use crate::options::Disabled;
use crate::outcome::WayOutcome;
use crate::way::{PerWay, Way};
use crate::workload::Step;

/// An I/O's three latencies in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Latencies {
    pub(super) slat: u64,
    pub(super) clat: u64,
    pub(super) lat: u64,
}

impl Latencies {
    /// Returns those of an I/O that began at `since` and was seen to be done at `seen`.
    #[inline]
    pub(super) fn of(since: Time, posted: Time, told: Time, seen: Time) -> Latencies {
        Latencies { slat: ns(posted, told), clat: ns(told, seen), lat: ns(since, seen) }
    }
}

/// Equal I/Os of a batch, counted at once; most I/Os of a deep queue are.
#[derive(Debug, Default)]
pub(super) struct AlikeIos {
    like: Option<(Way, Latencies, Disabled)>,
    ios: u64,
    bytes: u64,
}

impl AlikeIos {
    pub(super) fn is_empty(&self) -> bool {
        self.like.is_none()
    }

    #[inline]
    pub(super) fn add(
        &mut self,
        ways: &mut PerWay<WayOutcome>,
        step: Step,
        latencies: Latencies,
        disabled: Disabled,
    ) {
        let like = Some((step.way, latencies, disabled));
        if self.like != like {
            self.close(ways);
            self.like = like;
        }
        self.ios += 1;
        self.bytes += step.bytes;
    }

    #[inline]
    pub(super) fn close(&mut self, ways: &mut PerWay<WayOutcome>) {
        let Some((way, latencies, disabled)) = self.like.take() else { return };
        let counted = &mut ways[way];
        counted.ios += self.ios;
        counted.bytes += self.bytes;
        for (latency, ns, is_off) in [
            (&mut counted.slat, latencies.slat, disabled.slat),
            (&mut counted.clat, latencies.clat, disabled.clat),
            (&mut counted.lat, latencies.lat, disabled.lat),
        ] {
            if !is_off {
                latency.record_many(ns, self.ios);
            }
        }
        (self.ios, self.bytes) = (0, 0);
    }
}

/// The start of the cycle over which minimum rates are measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycle {
    pub(super) start: Time,
    pub(super) counted: PerWay<(u64, u64)>,
    pub(super) percentile_at: Time,
}

/// Returns the nanoseconds between two times; 0 if they are swapped.
#[inline]
pub(super) fn ns(from: Time, to: Time) -> u64 {
    to.as_ns().saturating_sub(from.as_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ios_that_are_alike_count_as_if_one_by_one() {
        let mut ways = PerWay::all(WayOutcome::default());
        let mut run = AlikeIos::default();
        for n in 0..10 {
            let step = Step { way: Way::Write, file: 0, offset: 0, bytes: 100, number: n };
            let latencies = Latencies { slat: 1, clat: n / 4, lat: 1 + n / 4 };
            run.add(&mut ways, step, latencies, Disabled { lat: true, ..Disabled::default() });
        }
        run.close(&mut ways);
        let counted = &ways[Way::Write];
        assert_eq!((counted.ios, counted.bytes, counted.slat.count()), (10, 1000, 10));
        assert_eq!(
            (counted.clat.max_ns(), counted.clat.count_below(2), counted.lat.count()),
            (2, 8, 0)
        );
    }
}
