//! Checks that objects lie inside the data area and do not overlap, and measures the space between them.

use std::ops::Range;

use super::Fault;
use super::objects::{Objects, SurveyedObject};
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object};

/// Limit of faults listed individually per kind; the rest are counted.
const TOLD_MAX: usize = 20;

/// The use of a shard's space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Units for data.
    pub data_units: u64,
    /// Units that objects take.
    pub used_units: u64,
    /// Runs of units between objects, including free slots of slabs.
    pub free_runs: u64,
    /// Units of the longest run.
    pub largest_free_units: u64,
}

/// A run of units on a device, and its object.
struct ObjectRun<'a> {
    device: u8,
    units: Range<u64>,
    whose: &'a SurveyedObject,
}

impl Space {
    /// Measures the space of all objects; `data` are the ranges of each device. Appends faults to `faults`.
    pub(super) fn of(
        objects: &Objects,
        data: &[Vec<Range<u64>>],
        faults: &mut Vec<Fault>,
    ) -> Space {
        let mut runs: Vec<ObjectRun<'_>> = Vec::new();
        for found in objects.iter() {
            let object = &found.object;
            let layout = objects.layout_of(object).filter(|_| object.layout != LayoutId::PLAIN);
            let units = self::runs(object, layout).into_iter();
            let device = object.place.device;
            runs.extend(units.map(|units| ObjectRun { device, units, whose: found }));
        }
        runs.sort_unstable_by_key(|run| (run.device, run.units.start, run.units.end));
        let (inside, outside): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| {
            let mut data = data.get(usize::from(run.device)).into_iter().flatten();
            data.any(|data| data.start <= run.units.start && run.units.end <= data.end)
        });
        told(
            faults,
            "object-outside",
            outside.iter().map(|run| {
                format!(
                    "object '{}' lies outside the data area, at {}",
                    run.whose.key, run.whose.object.place
                )
            }),
        );
        let mut space = Space::default();
        let mut overlaps = Vec::new();
        for (device, data) in (0u8..).zip(data) {
            for data in data {
                let is_here =
                    |run: &&ObjectRun<'_>| run.device == device && data.contains(&run.units.start);
                space.add(data.clone(), inside.iter().filter(is_here), &mut overlaps);
            }
        }
        told(faults, "object-overlap", overlaps.into_iter());
        space
    }

    fn add<'a>(
        &mut self,
        data: Range<u64>,
        runs: impl Iterator<Item = &'a ObjectRun<'a>>,
        overlaps: &mut Vec<String>,
    ) {
        self.data_units += data.end - data.start;
        let mut last: Option<&ObjectRun<'_>> = None;
        let mut end = data.start;
        for run in runs {
            match last {
                Some(last) if run.units.start < end => overlaps.push(format!(
                    "objects '{}' and '{}' overlap at unit {} of device {}: one of them is lost at least, which its \
                     checksums tell",
                    last.whose.key, run.whose.key, run.units.start, run.device
                )),
                _ => self.gap(run.units.start - end),
            }
            self.used_units += run.units.end.saturating_sub(run.units.start.max(end));
            if run.units.end > end {
                (last, end) = (Some(run), run.units.end);
            }
        }
        self.gap(data.end - end);
    }

    fn gap(&mut self, units: u64) {
        self.free_runs += u64::from(units > 0);
        self.largest_free_units = self.largest_free_units.max(units);
    }
}

/// Returns the units that an object takes: one run, or one for each layer if its layout interleaves them.
pub(super) fn runs(object: &Object, layout: Option<&Layout>) -> Vec<Range<u64>> {
    let at = object.place.unit;
    let one = at..at + object.units();
    let Some(layout) = layout else { return vec![one] };
    let layers = (0..layout.block().layers).map(|layer| layout.run(layer));
    layers.map(|units| at + units.start..at + units.end).collect()
}

fn told(faults: &mut Vec<Fault>, code: &'static str, texts: impl Iterator<Item = String>) {
    let texts: Vec<String> = texts.collect();
    let more = texts.len().saturating_sub(TOLD_MAX);
    faults.extend(texts.into_iter().take(TOLD_MAX).map(|text| Fault::new(code, 1, text)));
    if more > 0 {
        faults.push(Fault::new(code, more as u64, format!("and {more} more like these")));
    }
}
