//! The loops: one thread that keeps a number of items in flight until it is stopped or finished.

use std::time::Duration;

use adit_driver::Time;

use super::bed::Bed;
use super::chooser::{Chooser, ChosenStep};
use super::counted::Replayed;
use super::engine::{Engine, OperationKind};
use super::trace::TraceRequest;
use adit_tools_common::blocks;

/// Interval between checks for a stop.
const LOOK: Duration = Duration::from_millis(5);

/// Decides when a run ends, and reports its progress.
pub(super) struct Watch<'a> {
    /// When the time limit is reached.
    pub(super) until: Time,
    /// Called regularly with the progress; returning false ends the run.
    pub(super) goes_on: &'a mut dyn FnMut(Far) -> bool,
    /// The time of the last call.
    pub(super) looked: Time,
}

/// A run's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Far {
    /// Objects read.
    pub(super) gets: u64,
    /// Objects put.
    pub(super) puts: u64,
    /// Completed part of the work.
    pub(super) done: u64,
    /// Total work; 0 if the run has no end of its own.
    pub(super) whole: u64,
}

impl Watch<'_> {
    /// Returns whether the run continues.
    fn goes_on<B: Bed>(&mut self, engine: &mut Engine<'_, B>, done: u64, whole: u64) -> bool {
        if engine.has_failed() {
            return false;
        }
        let now = engine.bed().now();
        if now >= self.until {
            return false;
        }
        if now.since(self.looked) < LOOK {
            return true;
        }
        self.looked = now;
        let counted = engine.counted();
        let far = Far { gets: counted.get.ops(), puts: counted.put.ops(), done, whole };
        (self.goes_on)(far)
    }
}

/// Puts the objects `0..count` in order; returns how many were begun.
pub(super) fn fill<B: Bed>(
    engine: &mut Engine<'_, B>,
    depth: usize,
    count: u64,
    watch: &mut Watch<'_>,
) -> u64 {
    let mut next = 0;
    while next < count && watch.goes_on(engine, next, count) {
        while next < count && engine.in_flight() < depth {
            engine.begin(OperationKind::Put, [next].into_iter());
            next += 1;
        }
        engine.turn();
    }
    engine.drain();
    next
}

/// Applies `chooser`'s steps to the objects of `known` (to all of `0..` without a list) until stopped.
pub(super) fn mix<B: Bed>(
    engine: &mut Engine<'_, B>,
    depth: usize,
    chooser: &mut Chooser,
    known: Option<&[u64]>,
    watch: &mut Watch<'_>,
) {
    let name = |number: u64| match known {
        // Inserted objects follow the last known one.
        Some(known) => known.get(number as usize).copied().unwrap_or_else(|| {
            known.last().map_or(0, |last| last + 1) + (number - known.len() as u64)
        }),
        None => number,
    };
    while watch.goes_on(engine, 0, 0) {
        while engine.in_flight() < depth {
            if let Some(object) = engine.take_modified() {
                engine.begin(OperationKind::Put, [object].into_iter());
                continue;
            }
            chooser.settle(|number| engine.may_put(name(number)));
            match chooser.next() {
                ChosenStep::Get(from, length) => {
                    engine.begin(OperationKind::Get, (from..from + length).map(name));
                }
                ChosenStep::Modify(object) => {
                    engine.begin(OperationKind::Modify, [name(object)].into_iter())
                }
                // An object is not put twice at the same time, because the order of two concurrent puts is
                // unknown; it is drawn again later.
                ChosenStep::Update(object) | ChosenStep::Insert(object)
                    if engine.may_put(name(object)) =>
                {
                    engine.begin(OperationKind::Put, [name(object)].into_iter());
                }
                ChosenStep::Update(_) | ChosenStep::Insert(_) => break,
            }
        }
        engine.turn();
    }
    engine.drain();
}

/// Replays `trace` request by request: looks up the prefix, reads the existing blocks, puts the rest.
///
/// Requests run one after the other, so that the set of existing blocks does not depend on timing.
pub(super) fn replay<B: Bed>(
    engine: &mut Engine<'_, B>,
    depth: usize,
    trace: &[TraceRequest],
    watch: &mut Watch<'_>,
) {
    engine.counted().replayed = Some(Replayed::default());
    for (number, request) in (0..).zip(trace) {
        if !watch.goes_on(engine, number, trace.len() as u64) {
            break;
        }
        let ids = &request.hash_ids;
        let keys: Vec<_> = ids.iter().map(|id| blocks::key(*id)).collect();
        let begun = engine.bed().now();
        let hits = match engine.bed().lookup_prefix(begun, &keys) {
            Ok(hits) => hits,
            Err(failure) => return engine.fail(failure),
        };
        let before = hits.checked_sub(1).map(|last| ids[last]);
        all(engine, depth, OperationKind::Get, &ids[..hits], None);
        all(engine, depth, OperationKind::Put, &ids[hits..], before);
        let took = engine.bed().now().since(begun);
        if let (Some(replayed), false) = (&mut engine.counted().replayed, ids.is_empty()) {
            replayed.requests += 1;
            replayed.references += ids.len() as u64;
            replayed.prefix_hits += hits as u64;
            replayed.latency.record(took.as_nanos() as u64);
        }
    }
}

/// Applies one operation to all of `objects`, a sequence behind `before`, in order, and waits for the last. They begin
/// together, as an engine's do, but at most `depth` are in flight.
fn all<B: Bed>(
    engine: &mut Engine<'_, B>,
    depth: usize,
    kind: OperationKind,
    objects: &[u64],
    mut before: Option<u64>,
) {
    let mut rest = objects;
    while let Some(last) = rest.len().checked_sub(1) {
        // An object is not put twice at the same time.
        let is_new = |at: &usize| kind != OperationKind::Put || !rest[..*at].contains(&rest[*at]);
        let count = (0..=last).take(depth).take_while(is_new).count();
        let (together, left) = rest.split_at(count);
        engine.drain();
        if engine.has_failed() {
            break;
        }
        engine.begin_after(kind, together.iter().copied(), before);
        before = together.last().copied();
        rest = left;
    }
    engine.drain();
}

#[cfg(test)]
mod tests;
