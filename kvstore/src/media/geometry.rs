//! The places of everything on a store's devices.
//!
//! | on each device | units |
//! |---|---|
//! | superblock, copy A | 0 |
//! | for each shard that has its home there: its journal, and two checkpoint slots | from 1 |
//! | data: an equal part for each shard of the store | up to the last but one |
//! | superblock, copy B | the last |
//!
//! In a new store the home of shard `s` is device `s` modulo the number of devices. Changes of the devices move homes
//! and add segments of data: the chart in the superblocks says which areas there are ([`crate::media::chart`]). All
//! areas are disjoint.
//!
//! By default a journal has 96 bytes per object of the shard's maximum, and at least 1 MiB. A slot has room for each
//! object's record, with a key of the requested length, one checksum, a slab and an expiry; for all tenants and
//! layouts; and a quarter more for objects put while the checkpoint is taken.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::media::chart::{CHART_BYTES_MAX, Chart, DEVICES_MAX};
use crate::media::checkpoint::{slot_record_bytes, slot_units};
use crate::media::journal::JOURNAL_UNITS_MIN;
use crate::media::record::{LAYOUT_BYTES_MAX, TENANT_NAME_BYTES_MAX, record_bytes};
use crate::media::recovery::Areas;
use crate::model::key::KEY_BYTES_MAX;
use crate::model::place::{Place, UNIT_BYTES, units};

/// Maximum shards of a store.
pub const SHARDS_MAX: u16 = 1024;

const JOURNAL_BYTES_MIN: u64 = 1 << 20;
/// Bytes of a journal per object. A lone durable put takes a whole block, and each third of the journal costs a
/// checkpoint of all objects, hence the length. Full blocks trigger checkpoints earlier, which bounds the records of an
/// opening.
const JOURNAL_BYTES_PER_OBJECT: u64 = 96;
/// Bytes of the records of the maximum number of tenants and layouts.
const NAMES_BYTES: u64 = 255 * (12 + TENANT_NAME_BYTES_MAX + 4 + LAYOUT_BYTES_MAX) as u64;

/// Format options that determine the geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Number of shards, 1 to 1024.
    pub shards: u16,
    /// Maximum objects per shard.
    pub objects_max: u32,
    /// Length in bytes, 1 to 512, of the longest keys with which a shard holds `objects_max` objects.
    pub key_bytes: u16,
    /// Length of each journal in bytes; derived from the number of objects if `None`.
    pub journal_bytes: Option<u64>,
    /// Length of each of the two checkpoint slots in bytes; derived from the number of objects if `None`.
    pub checkpoint_bytes: Option<u64>,
    /// Length of each device in units.
    pub device_units: Vec<u64>,
}

/// The layout of all areas on a store's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    shards: u16,
    journal_units: u64,
    checkpoint_units: u64,
    chart: Chart,
    /// The home of each shard.
    homes: Vec<Place>,
}

impl Geometry {
    /// Computes the geometry of a new store.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are no shards, objects or devices, or too many; if no key has that length; or if a
    /// journal, slot or device is too short, with the minimum.
    pub fn new(options: &FormatOptions) -> Result<Geometry> {
        check_counts(options)?;
        let (journal_units, checkpoint_units) =
            (journal_units(options)?, checkpoint_units(options)?);
        let metadata_units = journal_units + 2 * checkpoint_units;
        for (device, units) in options.device_units.iter().enumerate() {
            check_device(options, device, *units, metadata_units)?;
        }
        let chart = Chart::new(&options.device_units, options.shards, metadata_units);
        Geometry::of(chart, options.shards, journal_units, checkpoint_units)
    }

    /// Computes the geometry of a chart.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths or the chart are impossible, or the chart is too long for a superblock.
    pub fn of(
        chart: Chart,
        shards: u16,
        journal_units: u64,
        checkpoint_units: u64,
    ) -> Result<Geometry> {
        let units = JOURNAL_UNITS_MIN..Place::UNITS_MAX;
        let slot_units = slot_units(NAMES_BYTES)..Place::UNITS_MAX;
        let are_lengths = units.contains(&journal_units) && slot_units.contains(&checkpoint_units);
        let is_count = (1..=SHARDS_MAX).contains(&shards);
        if !are_lengths
            || !is_count
            || !chart.is_possible(shards, journal_units + 2 * checkpoint_units)
        {
            let fix = "the areas of the store overlap or lie outside: format it again";
            return Err(Error::invalid("the chart of the store", "impossible", fix));
        }
        let bytes = chart.encoded_bytes();
        if bytes > CHART_BYTES_MAX {
            let fix = format!(
                "a superblock has room for {CHART_BYTES_MAX} bytes: the devices were changed too often, or too many \
                 shards would move; copy the objects to a new store"
            );
            return Err(Error::invalid("the chart of the store", format!("{bytes} bytes"), fix));
        }
        let homes = chart.home_places(shards, journal_units + 2 * checkpoint_units);
        Ok(Geometry { shards, journal_units, checkpoint_units, chart, homes })
    }

    /// Returns the geometry of another chart of the store.
    ///
    /// # Errors
    /// As [`Geometry::of`].
    pub fn with_chart(&self, chart: Chart) -> Result<Geometry> {
        Geometry::of(chart, self.shards, self.journal_units, self.checkpoint_units)
    }

    /// Returns the chart.
    pub fn chart(&self) -> &Chart {
        &self.chart
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Returns the number of devices.
    pub fn devices(&self) -> u8 {
        self.chart.members.len() as u8
    }

    /// Returns the length of a journal in units.
    pub fn journal_units(&self) -> u64 {
        self.journal_units
    }

    /// Returns the length of a slot in units.
    pub fn checkpoint_units(&self) -> u64 {
        self.checkpoint_units
    }

    /// Returns the maximum bytes of records in a shard, as counted by [`record_bytes`]; more are refused, so that a
    /// checkpoint fits. A fifth of the slot is left for puts made while the checkpoint is taken.
    pub fn record_bytes_max(&self) -> u64 {
        slot_record_bytes(self.checkpoint_units) / 5 * 4
    }

    /// Returns the length in bytes, at most 512, of the longest keys with which a shard holds `objects_max` objects of
    /// one checksum each: the requested length, or more, because a slot consists of whole blocks.
    pub fn key_bytes(&self, objects_max: u32) -> u16 {
        let each = self.record_bytes_max() / u64::from(objects_max.max(1));
        each.saturating_sub(record_bytes(0, 1) as u64).min(KEY_BYTES_MAX as u64) as u16
    }

    /// Returns the device with the metadata of a shard.
    ///
    /// # Panics
    /// If there is no such shard; the methods below panic likewise.
    pub fn home(&self, shard: u16) -> u8 {
        self.homes[usize::from(shard)].device
    }

    /// Returns the units of both copies of a device's superblock.
    pub fn superblocks(&self, device: u8) -> [u64; 2] {
        superblock_units(self.chart.members[usize::from(device)].units)
    }

    /// Returns the device and the units of a shard's journal.
    pub fn journal(&self, shard: u16) -> (u8, Range<u64>) {
        let Place { device, unit } = self.homes[usize::from(shard)];
        (device, unit..unit + self.journal_units)
    }

    /// Returns the device and the units of a shard's checkpoint slot, 0 or 1.
    pub fn checkpoint(&self, shard: u16, slot: usize) -> (u8, Range<u64>) {
        assert!(slot < 2, "there are two slots");
        let (device, journal) = self.journal(shard);
        let start = journal.end + slot as u64 * self.checkpoint_units;
        (device, start..start + self.checkpoint_units)
    }

    /// Returns the places of a shard's metadata.
    pub fn areas(&self, shard: u16) -> Areas {
        let (device, journal) = self.journal(shard);
        let slots = [self.checkpoint(shard, 0).1, self.checkpoint(shard, 1).1];
        Areas { device, journal, slots }
    }

    /// Returns the units of a shard's data on a device, in order: none, or one or several ranges that do not touch.
    pub fn data(&self, shard: u16, device: u8) -> Vec<Range<u64>> {
        let home = self.homes[usize::from(shard)];
        let home = (home.device == device).then(|| home.unit..home.unit + self.metadata_units());
        let here = self.chart.segments.iter().filter(|segment| segment.device == device);
        let parts = here.map(|segment| segment.part(shard, self.shards));
        let mut ranges: Vec<Range<u64>> =
            parts.flat_map(|part| without(part, home.as_ref())).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, before| {
            let touch = before.end == next.start;
            before.end = if touch { next.end } else { before.end };
            touch
        });
        ranges
    }

    /// Returns the units of a shard's data on each device.
    pub fn data_of(&self, shard: u16) -> Vec<Vec<Range<u64>>> {
        (0..self.devices()).map(|device| self.data(shard, device)).collect()
    }

    /// Returns the units for data on all devices.
    pub fn data_units(&self) -> u64 {
        let all = (0..self.shards).flat_map(|shard| self.data_of(shard)).flatten();
        all.map(|range| range.end - range.start).sum()
    }

    /// Returns the units of a shard's journal and both slots.
    pub(crate) fn metadata_units(&self) -> u64 {
        self.journal_units + 2 * self.checkpoint_units
    }
}

/// Returns `part` without the units of `home`, which lies inside or outside of it.
pub(crate) fn without(
    part: Range<u64>,
    home: Option<&Range<u64>>,
) -> impl Iterator<Item = Range<u64>> + use<> {
    let inside = home.filter(|home| part.start <= home.start && home.end <= part.end);
    let (end, start) = inside.map_or((part.end, part.end), |home| (home.start, home.end));
    [part.start..end, start..part.end].into_iter().filter(|range| range.start < range.end)
}

/// Returns the units of both superblock copies on a device of `device_units`, copy A first.
pub fn superblock_units(device_units: u64) -> [u64; 2] {
    [0, device_units.saturating_sub(1)]
}

/// Checks the length of a device of a new store.
fn check_device(
    options: &FormatOptions,
    device: usize,
    units: u64,
    metadata_units: u64,
) -> Result<()> {
    let (shards, devices) = (usize::from(options.shards), options.device_units.len());
    let homes = (shards / devices + usize::from(device < shards % devices)) as u64;
    let least = 2 + homes * metadata_units + u64::from(options.shards);
    if (least..=Place::UNITS_MAX).contains(&units) {
        return Ok(());
    }
    let bytes = least * UNIT_BYTES;
    let fix = format!(
        "device {device} needs {bytes} bytes or more, and no more than 2^52: take fewer objects or shards, or a larger \
         device"
    );
    let has_bytes = units.saturating_mul(UNIT_BYTES);
    Err(Error::invalid("the size of a device", format!("{has_bytes} bytes"), fix))
}

fn check_counts(options: &FormatOptions) -> Result<()> {
    let devices = options.device_units.len();
    if !(1..=DEVICES_MAX).contains(&devices) {
        let fix = format!("a store has 1 to {DEVICES_MAX}");
        return Err(Error::invalid("the number of devices", devices, fix));
    }
    if !(1..=SHARDS_MAX).contains(&options.shards) {
        let fix = format!("a store has 1 to {SHARDS_MAX}");
        return Err(Error::invalid("the number of shards", options.shards, fix));
    }
    if options.objects_max == 0 {
        return Err(Error::invalid("the number of objects", 0, "a shard has room for one or more"));
    }
    if !(1..=KEY_BYTES_MAX).contains(&usize::from(options.key_bytes)) {
        let fix = format!("use 1 to {KEY_BYTES_MAX} bytes: as many as your longest keys have");
        return Err(Error::invalid("the length of keys", options.key_bytes, fix));
    }
    Ok(())
}

/// Converts a configured length to units, within the minimum and the longest possible device.
fn chosen_units(what: &'static str, bytes: u64, units_min: u64) -> Result<u64> {
    let units = units(bytes);
    if (units_min..Place::UNITS_MAX).contains(&units) {
        return Ok(units);
    }
    let fix = format!("{} bytes are the least, and 2^52 too many", units_min * UNIT_BYTES);
    Err(Error::invalid(what, format!("{bytes} bytes"), fix))
}

fn journal_units(options: &FormatOptions) -> Result<u64> {
    let usual = u64::from(options.objects_max) * JOURNAL_BYTES_PER_OBJECT;
    let bytes = options.journal_bytes.unwrap_or(usual.max(JOURNAL_BYTES_MIN));
    chosen_units("the size of a journal", bytes, JOURNAL_UNITS_MIN)
}

fn checkpoint_units(options: &FormatOptions) -> Result<u64> {
    let each = record_bytes(options.key_bytes.into(), 1) as u64;
    let usual = u64::from(options.objects_max) * each + NAMES_BYTES;
    let usual = slot_units(usual + usual.div_ceil(4));
    let bytes = options.checkpoint_bytes.unwrap_or(usual * UNIT_BYTES);
    chosen_units("the size of a checkpoint", bytes, slot_units(NAMES_BYTES))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::media::chart::Member;

    fn options(shards: u16, objects_max: u32, device_units: Vec<u64>) -> FormatOptions {
        let (journal_bytes, checkpoint_bytes) = (None, None);
        let key_bytes = 32;
        FormatOptions {
            shards,
            objects_max,
            key_bytes,
            journal_bytes,
            checkpoint_bytes,
            device_units,
        }
    }

    fn areas(geometry: &Geometry, device: u8) -> Vec<Range<u64>> {
        let mut areas: Vec<_> =
            geometry.superblocks(device).into_iter().map(|unit| unit..unit + 1).collect();
        for shard in 0..geometry.shards() {
            areas.extend(geometry.data(shard, device));
            let Areas { device: home, journal, slots } = geometry.areas(shard);
            if home == device {
                areas.push(journal);
                areas.extend(slots);
            }
        }
        areas.sort_by_key(|area| area.start);
        areas
    }

    proptest! {
        #[test]
        fn areas_are_disjoint_and_cover_the_devices(
            shards in 1u16..40,
            objects_max in 1u32..50_000,
            device_units in vec(60_000u64..200_000, 1..5),
        ) {
            let Ok(geometry) = Geometry::new(&options(shards, objects_max, device_units.clone())) else {
                return Ok(());
            };
            for (device, units) in device_units.iter().enumerate() {
                let areas = areas(&geometry, device as u8);
                prop_assert!(areas.iter().all(|area| area.start < area.end));
                prop_assert!(areas.windows(2).all(|two| two[0].end == two[1].start), "{:?}", areas);
                prop_assert_eq!((areas[0].start, areas[areas.len() - 1].end), (0, *units));
                let data: Vec<_> = (0..shards).map(|shard| geometry.data(shard, device as u8)).collect();
                let lens: Vec<_> = data.iter().map(|data| data[0].end - data[0].start).collect();
                let (least, most) = (lens.iter().min(), lens.iter().max());
                prop_assert!(most.expect("a shard") - least.expect("a shard") <= 1);
            }
        }

        #[test]
        fn the_least_size_that_is_named_does(shards in 1u16..9, objects_max in 1u32..5000, devices in 1usize..4) {
            let refused = Geometry::new(&options(shards, objects_max, vec![2; devices]));
            let text = refused.expect_err("too small").to_string();
            let bytes: u64 = text.split(' ').skip_while(|word| *word != "needs").nth(1)
                .and_then(|word| word.parse().ok()).expect("a figure");
            let units = bytes / UNIT_BYTES;
            // The first device has the most homes, so a size that fits it fits all.
            prop_assert!(Geometry::new(&options(shards, objects_max, vec![units; devices])).is_ok());
            prop_assert!(Geometry::new(&options(shards, objects_max, vec![units - 1; devices])).is_err());
        }
    }

    #[test]
    fn a_home_in_a_shards_part_leaves_data_on_both_sides_of_it() {
        let geometry = Geometry::new(&options(2, 100, vec![20_000, 20_000])).expect("room");
        let units = geometry.metadata_units();
        let part = geometry.data(0, 1)[0].clone();
        for start in [part.start, part.start + 100, part.end - units] {
            let chart = geometry.chart().without_device(0, &[(0, 1, start)]);
            let moved = geometry.with_chart(chart).expect("possible");
            assert_eq!((moved.devices(), moved.journal(0).1.start), (1, start));
            let data = moved.data(0, 0);
            assert_eq!(data.len(), if start == part.start + 100 { 2 } else { 1 }, "{data:?}");
            let areas = areas(&moved, 0);
            assert!(areas.windows(2).all(|two| two[0].end == two[1].start), "{areas:?}");
            assert_eq!(moved.data(1, 0), geometry.data(1, 1));
        }
    }

    #[test]
    fn a_device_that_grew_or_came_is_data_for_all_shards() {
        let geometry = Geometry::new(&options(2, 100, vec![20_000])).expect("room");
        let chart = geometry.chart().with_length(0, 30_000);
        let chart = chart.with_device(Member { id: 9, units: 10_000 });
        let grown = geometry.with_chart(chart).expect("possible");
        for shard in 0..2 {
            let (before, after) = (geometry.data(shard, 0), grown.data(shard, 0));
            assert!(after.iter().any(|range| range.start == before[0].start));
            let units = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
            assert_eq!(units(&after) - units(&before), 5000);
            assert_eq!(units(&grown.data(shard, 1)), 4999);
        }
        let one = Geometry::new(&options(1, 100, vec![20_000])).expect("room");
        let grown_one = one.with_chart(one.chart().with_length(0, 30_000)).expect("possible");
        let start = one.data(0, 0)[0].start;
        assert!(grown_one.data(0, 0).iter().eq([&(start..29_999)]), "they touch");
        assert_eq!(grown.data_units() - geometry.data_units(), 10_000 + 9_998);
        assert_eq!(grown.superblocks(0), [0, 29_999]);
    }

    #[test]
    fn too_many_changes_are_refused_with_what_to_do() {
        let mut geometry = Geometry::new(&options(1, 100, vec![20_000])).expect("room");
        let mut units = 20_000;
        let refused = loop {
            units += 10;
            match geometry.with_chart(geometry.chart().with_length(0, units)) {
                Ok(grown) => geometry = grown,
                Err(refused) => break refused.to_string(),
            }
        };
        assert!(refused.contains("changed too often"), "{refused}");
        assert!(geometry.chart().segments.len() > 300);
    }

    proptest! {
        #[test]
        fn all_objects_have_room_with_keys_of_the_length_asked_for(
            objects_max in 1u32..50_000_000,
            key_bytes in 1u16..=512,
        ) {
            let options = FormatOptions { key_bytes, ..options(1, objects_max, vec![1 << 36]) };
            let geometry = Geometry::new(&options).expect("room");
            prop_assert!((key_bytes..=512).contains(&geometry.key_bytes(objects_max)));
            let all = u64::from(objects_max) * record_bytes(key_bytes.into(), 1) as u64;
            prop_assert!(all <= geometry.record_bytes_max());
        }
    }

    #[test]
    fn keys_that_cannot_be_are_refused_with_the_lengths_that_can() {
        for key_bytes in [0, 513] {
            let options = FormatOptions { key_bytes, ..options(1, 100, vec![20_000]) };
            let refused = Geometry::new(&options).expect_err("no key is so long").to_string();
            assert!(refused.contains("use 1 to 512 bytes"), "{refused}");
        }
    }

    #[test]
    fn sizes_follow_from_the_number_of_objects() {
        let geometry = Geometry::new(&options(1, 10_000_000, vec![1 << 30])).expect("room");
        assert_eq!(geometry.journal_units(), units(960_000_000));
        assert!(geometry.record_bytes_max() >= 10_000_000 * 77 + NAMES_BYTES);
        let slot_bytes = geometry.checkpoint_units() * UNIT_BYTES;
        assert!((950_000_000..1_050_000_000).contains(&slot_bytes), "{slot_bytes} bytes");
        assert_eq!(geometry.key_bytes(10_000_000), 32);
        let small = Geometry::new(&options(1, 1, vec![1 << 20])).expect("room");
        assert_eq!(small.key_bytes(1), 512, "the longest that there are");
        assert_eq!(small.journal_units(), 256);
    }

    #[test]
    fn chosen_sizes_are_kept_and_checked() {
        let chosen = |journal, checkpoint| {
            let (journal_bytes, checkpoint_bytes) = (Some(journal), Some(checkpoint));
            let options = options(2, 100, vec![1 << 20, 1 << 19]);
            Geometry::new(&FormatOptions { journal_bytes, checkpoint_bytes, ..options })
        };
        let geometry = chosen(70_000, 1 << 20).expect("room");
        assert_eq!((geometry.journal_units(), geometry.checkpoint_units()), (18, 256));
        assert_eq!((geometry.home(0), geometry.home(1)), (0, 1));
        assert!(chosen(4096, 1 << 20).is_err() && chosen(70_000, 4096).is_err());
        assert!(chosen(u64::MAX, 1 << 20).is_err() && chosen(70_000, u64::MAX).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused =
            |options: FormatOptions| Geometry::new(&options).expect_err("refused").to_string();
        assert!(refused(options(0, 1, vec![1 << 20])).contains("the number of shards is '0'"));
        assert!(refused(options(1, 0, vec![1 << 20])).contains("the number of objects is '0'"));
        assert!(refused(options(1, 1, vec![])).contains("the number of devices is '0'"));
        assert!(refused(options(1, 1, vec![1 << 41])).contains("2^52"));
    }
}
