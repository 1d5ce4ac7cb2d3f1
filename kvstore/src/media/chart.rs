//! The chart of a store: its devices, and the use of their units. Each superblock has it, because it changes when a
//! device is added or removed, or grows ([`crate::media::change`]).
//!
//! - A *segment* is a run of units for data, cut into equal parts, one for each shard. A device begins with one, and
//!   gets another each time that it grows: parts never move, so extents stay valid.
//! - A *home* is a shard's metadata: its journal, then two checkpoint slots. Homes lie before the first segment of a
//!   device, or in the shard's own part of a segment, which is shorter by them.
//!
//! [`Chart::is_possible`] holds for each chart that is decoded: all areas lie on their devices and are disjoint. This
//! module does not know how long a journal should be ([`crate::media::geometry`]).

use std::ops::Range;

use crate::media::bytes::{Reader, Writer};
use crate::model::place::Place;

/// Maximum devices of a store: the devices allowed for a put are bits of a word.
pub const DEVICES_MAX: usize = 64;
/// Maximum bytes of an encoded chart.
pub const CHART_BYTES_MAX: usize = 3820;

const COUNTS_BYTES: usize = 6;
const DEVICE_BYTES: usize = 16;
const SEGMENT_BYTES: usize = 11;
const HOMES_BYTES: usize = 12;

/// A device of the store. Its index is its position in the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number, unique in the store and constant while indices change.
    pub id: u64,
    /// Its length in units.
    pub units: u64,
}

/// A run of units for data, of which each shard has an equal part, to within a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device's index.
    pub device: u8,
    /// The units.
    pub units: Range<u64>,
}

impl Segment {
    /// Returns the part of one of `shards` shards.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn part(&self, shard: u16, shards: u16) -> Range<u64> {
        assert!(shard < shards, "a shard of the store's");
        let bound = |shard: u16| {
            let part = u128::from(self.units.end - self.units.start) * u128::from(shard);
            self.units.start + (part / u128::from(shards)) as u64
        };
        bound(shard)..bound(shard + 1)
    }
}

/// Homes of shards `first`, `first + step`, …, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Homes {
    /// The device's index.
    pub device: u8,
    /// The first unit of the first home.
    pub unit: u64,
    /// The first shard.
    pub first: u16,
    /// The distance to the next shard, at least 1.
    pub step: u16,
    /// The number of shards, at least 1.
    pub count: u16,
}

impl Homes {
    /// Iterates over the shards, and the position of each. The numbers may exceed those of the store's shards.
    fn shards(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let Homes { first, step, count, .. } = *self;
        (0..u64::from(count)).map(move |at| (at, u64::from(first) + at * u64::from(step)))
    }
}

/// The devices of a store, and the use of their units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    /// The devices, by index.
    pub members: Vec<Member>,
    /// The places of data.
    pub segments: Vec<Segment>,
    /// The places of metadata.
    pub homes: Vec<Homes>,
}

impl Chart {
    /// Returns the chart of a new store: the shards' homes lie on the devices in turn, and the rest of each device is
    /// one segment.
    pub fn new(device_units: &[u64], shards: u16, metadata_units: u64) -> Chart {
        let devices = device_units.len() as u16;
        let mut chart = Chart { members: Vec::new(), segments: Vec::new(), homes: Vec::new() };
        for (index, units) in (0..devices).zip(device_units) {
            let count = shards / devices + u16::from(index < shards % devices);
            let device = index as u8;
            if count > 0 {
                chart.homes.push(Homes { device, unit: 1, first: index, step: devices, count });
            }
            let start = 1 + u64::from(count) * metadata_units;
            chart.members.push(Member { id: index.into(), units: *units });
            chart.segments.push(Segment { device, units: start..units.saturating_sub(1) });
        }
        chart
    }

    /// Returns the chart with one more device, which holds only data.
    #[must_use]
    pub fn with_device(&self, member: Member) -> Chart {
        let mut chart = self.clone();
        let device = chart.members.len() as u8;
        chart.members.push(member);
        chart.segments.push(Segment { device, units: 1..member.units.saturating_sub(1) });
        chart
    }

    /// Returns the chart with a longer device. Its former last unit and the new units become data, except the new last
    /// one.
    ///
    /// # Panics
    /// If the device is not longer.
    #[must_use]
    pub fn with_length(&self, device: u8, units: u64) -> Chart {
        let mut chart = self.clone();
        let member = &mut chart.members[usize::from(device)];
        assert!(units > member.units, "a device grows");
        chart.segments.push(Segment { device, units: member.units - 1..units - 1 });
        member.units = units;
        chart
    }

    /// Returns the chart without a device, whose homes moved to `moved`: their shards, devices and first units. Higher
    /// device indices are one less in the result, and in `moved`.
    #[must_use]
    pub fn without_device(&self, device: u8, moved: &[(u16, u8, u64)]) -> Chart {
        let index = |other: u8| index_without(other, device);
        let mut chart = self.clone();
        chart.members.remove(usize::from(device));
        chart.segments.retain(|segment| segment.device != device);
        chart.homes.retain(|homes| homes.device != device);
        let moved = moved.iter();
        let homes = |&(first, device, unit)| Homes { device, unit, first, step: 1, count: 1 };
        chart.homes.extend(moved.map(homes));
        chart.segments.iter_mut().for_each(|segment| segment.device = index(segment.device));
        chart.homes.iter_mut().for_each(|homes| homes.device = index(homes.device));
        chart
    }

    /// Returns the device and the first unit of each shard's home.
    ///
    /// # Panics
    /// If the chart is not possible.
    pub fn home_places(&self, shards: u16, metadata_units: u64) -> Vec<Place> {
        let places = self.places(shards, metadata_units).expect("a possible chart");
        places.into_iter().map(|place| place.expect("each shard has a home")).collect()
    }

    /// Returns the home of each shard that has one; `None` if one has two, or an index is too high.
    fn places(&self, shards: u16, metadata_units: u64) -> Option<Vec<Option<Place>>> {
        let mut places = vec![None; usize::from(shards)];
        for homes in &self.homes {
            for (at, shard) in homes.shards() {
                let place = places.get_mut(usize::try_from(shard).ok()?)?;
                let unit = at.checked_mul(metadata_units)?.checked_add(homes.unit)?;
                if homes.step == 0 || place.replace(Place { device: homes.device, unit }).is_some()
                {
                    return None;
                }
            }
        }
        Some(places)
    }

    /// Returns whether this can be the chart of a store of `shards`: everything lies on its device between the two
    /// copies of the superblock, nothing overlaps, and each shard has one home.
    pub fn is_possible(&self, shards: u16, metadata_units: u64) -> bool {
        self.are_members_possible()
            && self.are_segments_possible()
            && self.are_homes_possible(shards, metadata_units)
    }

    fn are_members_possible(&self) -> bool {
        let count = (1..=DEVICES_MAX).contains(&self.members.len());
        let mut ids: Vec<u64> = self.members.iter().map(|member| member.id).collect();
        ids.sort_unstable();
        let long = |member: &Member| (2..=Place::UNITS_MAX).contains(&member.units);
        count && self.members.iter().all(long) && ids.windows(2).all(|two| two[0] < two[1])
    }

    /// Returns whether units lie on a device between the two copies of its superblock.
    fn holds(&self, device: u8, units: &Range<u64>) -> bool {
        let member = self.members.get(usize::from(device));
        member.is_some_and(|member| units.start >= 1 && units.end < member.units)
            && units.start < units.end
    }

    fn are_segments_possible(&self) -> bool {
        let each = self.segments.iter();
        let all: Vec<_> = each.map(|segment| (segment.device, segment.units.clone())).collect();
        all.iter().all(|(device, units)| self.holds(*device, units)) && are_disjoint(all)
    }

    fn are_homes_possible(&self, shards: u16, metadata_units: u64) -> bool {
        let Some(places) = self.places(shards, metadata_units) else { return false };
        let mut all = Vec::new();
        for (shard, place) in (0..shards).zip(places) {
            let Some(Place { device, unit }) = place else { return false };
            let Some(end) = unit.checked_add(metadata_units) else { return false };
            let units = unit..end;
            if !self.holds(device, &units) || !self.has_place_for(device, &units, shard, shards) {
                return false;
            }
            all.push((device, units));
        }
        are_disjoint(all)
    }

    /// Returns whether a home lies in no segment, or in its shard's part of one.
    fn has_place_for(&self, device: u8, home: &Range<u64>, shard: u16, shards: u16) -> bool {
        let here = self.segments.iter().filter(|segment| segment.device == device);
        let mut met = here.filter(|s| s.units.start < home.end && home.start < s.units.end);
        let Some(segment) = met.next() else { return true };
        let part = segment.part(shard, shards);
        met.next().is_none() && part.start <= home.start && home.end <= part.end
    }

    /// Returns the encoded length in bytes; more than [`CHART_BYTES_MAX`] do not fit in a superblock.
    pub fn encoded_bytes(&self) -> usize {
        COUNTS_BYTES
            + DEVICE_BYTES * self.members.len()
            + SEGMENT_BYTES * self.segments.len()
            + HOMES_BYTES * self.homes.len()
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        for count in [self.members.len(), self.segments.len(), self.homes.len()] {
            writer.put(&(count as u16).to_le_bytes());
        }
        for member in &self.members {
            writer.put(&member.id.to_le_bytes()).put(&member.units.to_le_bytes());
        }
        for Segment { device, units } in &self.segments {
            writer.put(&[*device]).u40(units.start).u40(units.end);
        }
        for homes in &self.homes {
            writer.put(&[homes.device]).u40(homes.unit);
            for number in [homes.first, homes.step, homes.count] {
                writer.put(&number.to_le_bytes());
            }
        }
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Option<Chart> {
        let mut counts = [0; 3];
        for count in &mut counts {
            *count = usize::from(reader.u16()?);
        }
        let member =
            |reader: &mut Reader<'_>| Some(Member { id: reader.u64()?, units: reader.u64()? });
        let segment = |reader: &mut Reader<'_>| {
            Some(Segment { device: reader.u8()?, units: reader.u40()?..reader.u40()? })
        };
        let homes = |reader: &mut Reader<'_>| {
            let (device, unit) = (reader.u8()?, reader.u40()?);
            let (first, step, count) = (reader.u16()?, reader.u16()?, reader.u16()?);
            Some(Homes { device, unit, first, step, count })
        };
        Some(Chart {
            members: (0..counts[0]).map(|_| member(reader)).collect::<Option<_>>()?,
            segments: (0..counts[1]).map(|_| segment(reader)).collect::<Option<_>>()?,
            homes: (0..counts[2]).map(|_| homes(reader)).collect::<Option<_>>()?,
        })
    }
}

/// Returns a device's index after device `removed` was removed.
pub(crate) fn index_without(device: u8, removed: u8) -> u8 {
    device - u8::from(device > removed)
}

fn are_disjoint(mut areas: Vec<(u8, Range<u64>)>) -> bool {
    areas.sort_unstable_by_key(|(device, units)| (*device, units.start));
    areas.windows(2).all(|two| two[0].0 != two[1].0 || two[0].1.end <= two[1].1.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart::new(&[1000, 2000], 3, 100)
    }

    fn is_possible(change: impl FnOnce(&mut Chart)) -> bool {
        let mut chart = chart();
        change(&mut chart);
        chart.is_possible(3, 100)
    }

    #[test]
    fn a_new_store_has_homes_in_turn_and_a_segment_a_device() {
        let chart = chart();
        assert!(chart.is_possible(3, 100));
        let places = [(0, 1), (1, 1), (0, 101)].map(|(device, unit)| Place { device, unit });
        assert_eq!(chart.home_places(3, 100), places);
        let segments: Vec<_> = chart.segments.iter().map(|s| s.units.clone()).collect();
        assert_eq!(segments, [201..999, 101..1999]);
    }

    #[test]
    fn a_device_that_grew_keeps_its_parts_and_its_old_end_becomes_data() {
        let grown = chart().with_length(0, 1500);
        assert_eq!(grown.segments[..2], chart().segments);
        assert_eq!(grown.segments[2], Segment { device: 0, units: 999..1499 });
        assert!(grown.is_possible(3, 100));
    }

    #[test]
    fn a_removed_device_takes_its_segments_and_lowers_later_indices() {
        let more = chart().with_device(Member { id: 77, units: 900 });
        assert!(more.is_possible(3, 100));
        let part = more.segments[1].part(0, 3);
        let moved = [(0, 1, part.start), (2, 2, more.segments[2].part(2, 3).start)];
        let less = more.without_device(0, &moved);
        assert!(less.is_possible(3, 100));
        assert_eq!(less.members.iter().map(|member| member.id).collect::<Vec<_>>(), [1, 77]);
        let places = less.home_places(3, 100);
        assert_eq!(places[0], Place { device: 0, unit: part.start });
        assert_eq!(places[1], Place { device: 0, unit: 1 });
        assert_eq!(places[2].device, 1);
        assert!(!more.without_device(0, &moved[1..]).is_possible(3, 100), "shard 0 has no home");
    }

    #[test]
    fn what_overlaps_or_lies_outside_is_impossible() {
        assert!(is_possible(|_| ()));
        assert!(!is_possible(|chart| chart.members[1].id = 0));
        assert!(!is_possible(|chart| chart.members[1].units = 1999));
        assert!(!is_possible(|chart| chart.members.clear()));
        assert!(!is_possible(|chart| chart.segments[0].units = 0..10));
        assert!(!is_possible(|chart| chart.segments[0].units = 10..10));
        assert!(!is_possible(|chart| chart.segments[0].units = 150..900), "over a home");
        assert!(!is_possible(|chart| chart.segments[1].device = 2));
        assert!(!is_possible(|chart| chart.segments.push(chart.segments[0].clone())));
        assert!(!is_possible(|chart| chart.homes[0].step = 0));
        assert!(!is_possible(|chart| chart.homes[0].count = 1), "shard 2 has no home");
        assert!(!is_possible(|chart| chart.homes[0].count = u16::MAX));
        assert!(!is_possible(|chart| chart.homes[1].first = 0), "shard 0 has two");
        assert!(!is_possible(|chart| chart.homes[1].unit = u64::MAX));
        assert!(!chart().is_possible(4, 100) && !chart().is_possible(3, u64::MAX / 2));
        let of_shard = |shard: u16| {
            let part = chart().segments[1].part(2, 3);
            chart().without_device(
                0,
                &[(0, 1, chart().segments[1].part(0, 3).start), (shard, 1, part.start)],
            )
        };
        assert!(of_shard(2).is_possible(3, 100));
        let mut of_another = of_shard(2);
        (of_another.homes[1].first, of_another.homes[2].first) = (2, 0);
        assert!(!of_another.is_possible(3, 100), "homes in the parts of other shards");
    }

    #[test]
    fn a_chart_comes_back_and_is_as_long_as_it_says() {
        let chart = chart().with_length(1, 3000);
        let mut bytes = [0; 200];
        let mut writer = Writer::new(&mut bytes);
        chart.encode(&mut writer);
        assert_eq!(writer.len(), chart.encoded_bytes());
        assert_eq!(Chart::parse(&mut Reader(&bytes)), Some(chart));
        assert_eq!(Chart::parse(&mut Reader(&bytes[..50])), None);
    }

    #[test]
    fn the_largest_new_store_leaves_room_for_changes() {
        let chart = Chart::new(&[1 << 30; DEVICES_MAX], 1024, 16);
        assert!(chart.encoded_bytes() + 80 * SEGMENT_BYTES <= CHART_BYTES_MAX);
    }
}
