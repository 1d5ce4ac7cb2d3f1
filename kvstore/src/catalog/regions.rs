//! Lists the objects that begin in each region of a device, so that a run of its space can be emptied.
//!
//! A region is [`REGION_UNITS`] units. Its objects are an unordered list: four bytes per object and four per region.
//! Removing an object walks the list, which has at most one object per unit.
//!
//! The regions know where objects begin; the index knows their lengths.

use std::ops::Range;

use crate::catalog::table::Table;
use crate::model::object::ObjectId;
use crate::model::place::Place;

/// Units of a region: 256 KiB.
const REGION_UNITS: u64 = 64;

/// The regions of one range of a device.
#[derive(Debug)]
struct Heads {
    range: Range<u64>,
    /// The first object of each region plus one; 0 if there is none.
    first: Table<u32>,
}

impl Heads {
    fn new(range: Range<u64>) -> Heads {
        let regions = (range.end - range.start).div_ceil(REGION_UNITS);
        let regions = usize::try_from(regions).expect("the regions fit in memory");
        Heads { range, first: Table::new(regions) }
    }

    fn region(&self, unit: u64) -> usize {
        assert!(self.range.contains(&unit), "unit {unit} is in {:?}", self.range);
        ((unit - self.range.start) / REGION_UNITS) as usize
    }
}

/// Lists of the objects of a shard by where they begin.
#[derive(Debug)]
pub(crate) struct Regions {
    /// For each device, those of its ranges, in order.
    devices: Vec<Vec<Heads>>,
    /// For each object, the next one of its region plus one; 0 at the end.
    next: Table<u32>,
}

impl Regions {
    /// Creates empty lists for objects with ids below `objects_max` in the ranges of each device, which are in order
    /// and disjoint.
    pub(crate) fn new(ranges: &[Vec<Range<u64>>], objects_max: u32) -> Regions {
        let heads = |ranges: &Vec<Range<u64>>| {
            let there = ranges.iter().filter(|range| !range.is_empty());
            there.cloned().map(Heads::new).collect()
        };
        Regions {
            devices: ranges.iter().map(heads).collect(),
            next: Table::new(objects_max as usize),
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let heads = self.devices.iter().flatten().map(|heads| heads.first.memory_bytes());
        heads.sum::<usize>() + self.next.memory_bytes()
    }

    /// Returns the list that an object at `place` is in.
    fn first(&mut self, place: Place) -> &mut u32 {
        let ranges = &mut self.devices[usize::from(place.device)];
        let at = ranges.partition_point(|heads| heads.range.end <= place.unit);
        let heads = ranges.get_mut(at).expect("an object lies in a range");
        let region = heads.region(place.unit);
        &mut heads.first[region]
    }

    /// Adds an object that begins at `place`.
    pub(crate) fn insert(&mut self, id: ObjectId, place: Place) {
        let next = std::mem::replace(self.first(place), id.0 + 1);
        self.next[id.0 as usize] = next;
    }

    /// Removes an object that began at `place`.
    ///
    /// # Panics
    /// If it is not in that region.
    pub(crate) fn remove(&mut self, id: ObjectId, place: Place) {
        let after = self.next[id.0 as usize];
        let first = self.first(place);
        if *first == id.0 + 1 {
            *first = after;
            return;
        }
        let mut link = *first;
        loop {
            let before = link.checked_sub(1).expect("an object is in the list of its region");
            link = self.next[before as usize];
            if link == id.0 + 1 {
                self.next[before as usize] = after;
                return;
            }
        }
    }

    /// Passes on every object that begins in these units of a device, and others of the same regions.
    pub(crate) fn visit(&self, device: u8, units: &Range<u64>, mut each: impl FnMut(ObjectId)) {
        for heads in &self.devices[usize::from(device)] {
            let units = units.start.max(heads.range.start)..units.end.min(heads.range.end);
            if units.is_empty() {
                continue;
            }
            for region in heads.region(units.start)..=heads.region(units.end - 1) {
                let mut link = heads.first[region];
                while let Some(id) = link.checked_sub(1) {
                    each(ObjectId(id));
                    link = self.next[id as usize];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_region_has_the_objects_that_begin_in_it(
            steps in vec((0u32..40, 0u8..2, 0u64..1000), 1..200),
            from in 0u64..1100,
            len in 0u64..400,
        ) {
            let mut regions = Regions::new(&[vec![100..600, 600..1100], vec![0..300, 300..1000]], 40);
            let mut model = BTreeMap::new();
            for (id, device, unit) in steps {
                let place = Place { device, unit: if device == 0 { unit + 100 } else { unit } };
                match model.remove(&id) {
                    Some(was) => regions.remove(ObjectId(id), was),
                    None => {
                        regions.insert(ObjectId(id), place);
                        model.insert(id, place);
                    }
                }
            }
            for device in 0..2 {
                let units = from..from + len;
                let mut seen = Vec::new();
                regions.visit(device, &units, |id| seen.push(id.0));
                let all = seen.len();
                seen.retain(|id| model[id].device == device && units.contains(&model[id].unit));
                prop_assert!(all - seen.len() <= 2 * REGION_UNITS as usize);
                seen.sort_unstable();
                let is_here = |place: &Place| place.device == device && units.contains(&place.unit);
                let expected: Vec<u32> =
                    model.iter().filter(|(_, place)| is_here(place)).map(|(id, _)| *id).collect();
                prop_assert_eq!(seen, expected);
            }
        }
    }
}
