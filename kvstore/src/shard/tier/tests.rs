//! Compares the tier with a model, under any order of reads, changes, readers and sizes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::request::Found;
use super::super::tests::device::memory;
use super::*;
use crate::model::key::Key;
use crate::model::object::Object;

const UNIT: usize = UNIT_BYTES as usize;
const OBJECTS: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    /// Reads an object whole: from memory, or from its device, and then offers it.
    Read(u32),
    /// Reads an object and holds its bytes.
    Hold(u32),
    /// Drops the bytes of the holder with this number, modulo the number of holders.
    LetGo(usize),
    /// Replaces an object.
    Replace(u32),
    Lend(usize),
    Shrink(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let object = || 0..OBJECTS;
    let step = prop_oneof![
        12 => object().prop_map(Step::Read),
        3 => object().prop_map(Step::Hold),
        3 => any::<usize>().prop_map(Step::LetGo),
        3 => object().prop_map(Step::Replace),
        1 => (8_usize..40).prop_map(Step::Lend),
        1 => (0_usize..60).prop_map(Step::Shrink),
    ];
    vec(step, 1..300)
}

struct Rig {
    tier: Tier,
    versions: [u8; OBJECTS as usize],
    held: Vec<(Resident, u8)>,
}

/// Offers an object whose bytes are all `byte`.
fn offer(tier: &mut Tier, known: Known, hash: u64, byte: u8) {
    let about = || {
        let (layout, tenant, version) = Default::default();
        let object = Object { place: known.place, bytes: known.bytes, layout, tenant, version };
        let found = Found { device: 0, bytes: known.bytes, piece_bytes: known.bytes };
        About::new(known.id, Key::from(hash), &object, found, None)
    };
    if let Some(filling) = tier.offer(known, hash, about) {
        filling.fill_by(|into| {
            into.fill(byte);
            true
        });
    }
}

impl Rig {
    fn known(id: u32) -> Known {
        let place = Place { device: 0, unit: u64::from(id) * 100 };
        Known { id: ObjectId(id), place, bytes: (1 + u64::from(id % 4)) * UNIT_BYTES }
    }

    /// Returns the value of all bytes of an object's version.
    fn byte(&self, id: u32) -> u8 {
        self.versions[id as usize].wrapping_mul(OBJECTS as u8).wrapping_add(id as u8)
    }

    fn read(&mut self, id: u32) -> Option<Resident> {
        let (known, byte) = (Rig::known(id), self.byte(id));
        let found = self.tier.hit(known);
        match &found {
            Some(resident) => assert!(resident.iter().all(|each| *each == byte), "object {id}"),
            None if self.tier.is_on() => {
                offer(&mut self.tier, known, u64::from(id) << 40 | u64::from(id), byte);
            }
            None => {}
        }
        found
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Read(id) => drop(self.read(*id)),
            Step::Hold(id) => {
                let (byte, found) = (self.byte(*id), self.read(*id));
                self.held.extend(found.map(|resident| (resident, byte)));
            }
            Step::LetGo(number) if !self.held.is_empty() => {
                drop(self.held.swap_remove(number % self.held.len()));
            }
            Step::LetGo(_) => {}
            Step::Replace(id) => {
                self.tier.forget(ObjectId(*id));
                let version = &mut self.versions[*id as usize];
                *version = version.wrapping_add(1);
                let known = Rig::known(*id);
                assert!(self.tier.hit(known).is_none(), "object {id} was replaced");
            }
            Step::Lend(units) => self.tier.lend([memory(units * UNIT)]),
            Step::Shrink(units) => {
                let bytes = (units * UNIT) as u64;
                assert!(self.tier.shrink(bytes).0 <= bytes);
            }
        }
    }

    fn check(&self) {
        for (resident, byte) in &self.held {
            assert!(resident.iter().all(|each| each == byte), "what is held stays");
        }
        let stats = self.tier.stats();
        let entries = || self.tier.entries.iter().flatten();
        assert_eq!(stats.tier_objects, entries().count() as u64);
        assert_eq!(stats.tier_object_bytes, entries().map(|entry| entry.known.bytes).sum::<u64>());
        assert!(stats.tier_object_bytes <= stats.tier_bytes, "{stats:?}");
        let left = stats.tier_admissions - stats.tier_evictions - stats.tier_invalidations;
        assert_eq!(stats.tier_objects, left, "{stats:?}");
    }
}

proptest! {
    #[test]
    fn what_is_found_is_the_newest_version_and_what_is_held_stays(steps in steps()) {
        let mut rig = Rig { tier: Tier::default(), versions: [0; OBJECTS as usize], held: Vec::new() };
        rig.tier.lend([memory(32 * UNIT)]);
        for step in &steps {
            rig.take(step);
            rig.check();
        }
        // At the end, all memory is free, in one run per region.
        rig.held.clear();
        (0..OBJECTS).for_each(|id| rig.tier.forget(ObjectId(id)));
        let largest = rig.tier.regions.largest_bytes() as usize;
        prop_assert!(largest == 0 || rig.tier.regions.take(largest).is_some());
    }
}

#[test]
fn objects_that_readers_hold_are_not_evicted() {
    let mut rig = Rig { tier: Tier::default(), versions: [0; OBJECTS as usize], held: Vec::new() };
    rig.tier.lend([memory(8 * UNIT)]);
    let ids = || (0..OBJECTS).filter(|id| id % 4 == 0);
    (0..2).for_each(|_| ids().take(6).for_each(|id| rig.take(&Step::Hold(id))));
    assert_eq!((rig.held.len(), rig.tier.hot.filled()), (6, 6));
    // Two units are left: these objects enter one by one, and evict only one another.
    for id in [16, 20, 20, 16, 16, 20, 20] {
        rig.take(&Step::Read(id));
    }
    let known = |id| Rig::known(id);
    assert!(ids().take(6).all(|id| rig.tier.hit(known(id)).is_some()), "all are in memory");
    rig.check();
}

/// Returns whether this process has memory mapped at `address`.
fn is_mapped(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mut runs = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    runs.any(|(start, end)| {
        let of = |text| u64::from_str_radix(text, 16).expect("an address");
        (of(start)..of(end)).contains(&address)
    })
}

#[test]
fn memory_that_a_tier_gives_up_is_freed_by_its_caller() {
    let mut rig = Rig { tier: Tier::default(), versions: [0; OBJECTS as usize], held: Vec::new() };
    rig.tier.lend([memory(1024 * UNIT), memory(1024 * UNIT)]);
    let objects = 2 * 1024 / 4;
    let known = |number: u32| {
        let place = Place { device: 0, unit: u64::from(number) * 4 };
        Known { id: ObjectId(number), place, bytes: 4 * UNIT_BYTES }
    };
    // Fill all memory, so that no free run keeps a region.
    (0..objects).for_each(|number| offer(&mut rig.tier, known(number), u64::from(number), 0));
    let resident = |rig: &mut Rig, number| rig.tier.hit(known(number)).expect("in memory");
    let addresses =
        [0, objects - 1].map(|number| resident(&mut rig, number).as_ptr().addr() as u64);
    let (left, given_up) = rig.tier.shrink(0);
    assert_eq!((left, rig.tier.stats().tier_evictions), (0, u64::from(objects)));
    assert!(addresses.iter().all(|address| is_mapped(*address)), "not yet");
    drop(given_up);
}

#[test]
fn what_goes_for_an_object_that_finds_no_room_is_no_more_than_its_length() {
    let mut rig = Rig { tier: Tier::default(), versions: [0; OBJECTS as usize], held: Vec::new() };
    rig.tier.lend([memory(64 * UNIT)]);
    let known = |number: u32, units: u64| {
        let place = Place { device: 0, unit: u64::from(number) * 8 };
        Known { id: ObjectId(number), place, bytes: units * UNIT_BYTES }
    };
    let hash = |number: u32| u64::from(number) << 40 | u64::from(number);
    (0..64).for_each(|number| offer(&mut rig.tier, known(number, 1), hash(number), 0));
    // Readers hold every second unit.
    let held: Vec<_> = (0..64).step_by(2).map(|number| rig.tier.hit(known(number, 1))).collect();
    assert!(held.iter().all(Option::is_some));
    (0..2).for_each(|_| offer(&mut rig.tier, known(64, 8), hash(64), 0));
    assert_eq!((rig.tier.hot.filled(), rig.tier.stats().tier_evictions), (64, 8));
}
