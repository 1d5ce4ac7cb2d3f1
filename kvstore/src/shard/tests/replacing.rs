//! Numbers of tenants and layouts that are given to others: no object ever means another one than it was put with.

use std::cell::Cell;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::checkpointing::long_rig;
use super::device::{TestDevice, memory};
use super::journal_room::{long_item, long_key};
use super::{Rig, STORED, form, format, item, options, surveyed};
use crate::model::layout::{BlockShape, Dtype, Layout, Order};
use crate::model::object::{Hold, LayoutId, TenantId};
use crate::model::options::{Durability, Quota, WhenReached};
use crate::model::place::UNIT_BYTES;
use crate::shard::{
    Action, Failure, GetItem, Outcome, Part, PutItem, PutOptions, Selection, ShardOptions,
};

const JOURNAL_UNITS: u64 = 256;
const NUMBERS: u64 = 255;
const KEYS: u64 = 24;
/// Names and shapes to choose from, more than there are numbers.
const CHOICES: u64 = 400;

fn name(number: u64) -> String {
    format!("tenant {number}")
}

/// Returns a layout of two units, unlike each other choice.
fn shape(number: u64) -> Layout {
    let block = BlockShape {
        layers: 2,
        tensors_per_layer: 1,
        kv_heads: 1,
        head_dim: 1,
        dtype: Dtype::F16,
        tokens: 1 + number as u32 / 2,
    };
    let slots = [0, 2][number as usize % 2];
    let order = if slots == 0 { Order::BlockMajor } else { Order::LayerMajor { slots } };
    Layout::new(block, order).expect("a layout")
}

fn large() -> Rig {
    let devices = vec![TestDevice::new("memory:0", 4096)];
    format(&devices, &form(JOURNAL_UNITS));
    Rig::open(devices, options(Durability::Restart))
}

impl Rig {
    fn define<T>(
        &mut self,
        mut define: impl FnMut(&mut Rig) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut last = define(self);
        for _ in 0..200 {
            if last.is_ok() {
                break;
            }
            // A checkpoint, or room in the journal.
            self.turn(1);
            last = define(self);
        }
        last
    }

    fn tenant(&mut self, number: u64) -> Result<TenantId, Failure> {
        self.define(|rig| rig.shard.tenant(rig.now, &name(number)))
    }

    fn layout(&mut self, number: u64) -> Result<LayoutId, Failure> {
        self.define(|rig| rig.shard.layout(rig.now, shape(number)))
    }

    fn delete(&mut self, key: u64) {
        let deleted = self.wait(Action::Delete(key.into()));
        assert!(matches!(deleted, Ok(Outcome::Deleted | Outcome::Miss)), "{deleted:?}");
    }

    /// Puts an object whose bytes all are `byte`.
    fn put_for(&mut self, key: u64, byte: u8, tenant: TenantId, layout: LayoutId) {
        let options = PutOptions { tenant, layout, ..PutOptions::default() };
        let mut data = memory(2 * UNIT_BYTES as usize);
        data.fill(byte);
        let data = AnyBuffer::One(data);
        assert_eq!(self.wait(Action::Put(PutItem { data, options, ..item(key, 2) })), STORED);
    }

    /// Returns an object's byte, tenant and layout, if it is there.
    fn found(&mut self, key: u64) -> Option<(u8, String, Option<Layout>)> {
        let into = AnyBuffer::One(memory(2 * UNIT_BYTES as usize));
        let get = GetItem { key: key.into(), part: Part::All, into, version: None };
        self.submit(Time::NEVER, Action::Get(get));
        self.turn(5);
        let done = self.answers.pop().expect("an answer");
        if done.result == Ok(Outcome::Miss) {
            return None;
        }
        assert_eq!(done.result, Ok(Outcome::Hit { bytes: 2 * UNIT_BYTES }), "object {key}");
        let AnyBuffer::One(read) = done.memory else { panic!("one buffer") };
        let byte = read[0];
        assert!(read.iter().all(|other| *other == byte), "object {key} is of one version");
        let info = self.shard.info(self.now, &key.into()).expect("it is there");
        let tenant = self.shard.tenants().name(info.tenant).expect("it has one").to_owned();
        Some((byte, tenant, self.shard.layouts().get(info.layout).copied()))
    }
}

#[test]
fn a_number_is_given_to_another_once_nothing_needs_it() {
    let mut rig = large();
    let holds: Vec<Hold> = (0..NUMBERS)
        .map(|number| {
            let (tenant, layout) = (rig.tenant(number), rig.layout(number));
            assert_eq!(tenant, Ok(TenantId(number as u8 + 1)));
            rig.shard.layouts().hold(layout.expect("room"));
            rig.shard.tenants().hold(tenant.expect("room"))
        })
        .collect();
    let (kept, full) = (rig.shard.layouts().hold(LayoutId(1)), |refused: Failure| {
        assert!(refused.to_string().contains("at most 255"), "{refused}");
    });
    full(rig.tenant(300).expect_err("all are held"));
    drop(holds);
    let quota = Quota { bytes: 1 << 20, when_reached: WhenReached::Refuse };
    rig.shard.set_quota(rig.now, TenantId(1), Some(quota)).expect("there is one");
    // The second number of both is in use, too.
    rig.put_for(1, 7, TenantId(2), LayoutId(2));
    assert_eq!((rig.tenant(300), rig.layout(300)), (Ok(TenantId(3)), Ok(LayoutId(3))));
    assert_eq!(rig.tenant(2), Ok(TenantId(3)), "what made room is as new again");
    rig.shard.set_quota(rig.now, TenantId(1), None).expect("there is one");
    drop(kept);
    assert_eq!((rig.tenant(301), rig.layout(301)), (Ok(TenantId(1)), Ok(LayoutId(1))));
    assert_eq!(rig.tenant(301), Ok(TenantId(1)), "it is there");
    rig.delete(1);
    // Its space waits for the journal, and needs the layout until then.
    let held = [rig.shard.tenants().hold(TenantId(1)), rig.shard.layouts().hold(LayoutId(1))];
    assert_eq!(rig.tenant(302), Ok(TenantId(2)));
    rig.wait(Action::Commit).expect("durable");
    rig.turn(20);
    assert_eq!(rig.layout(302), Ok(LayoutId(2)));
    drop(held);
}

#[test]
fn puts_that_wait_for_room_or_are_being_written_keep_their_numbers() {
    let mut rig = large();
    for number in 0..NUMBERS {
        rig.tenant(number).expect("room");
        rig.layout(number).expect("room");
    }
    rig.devices[0].medium().held = vec![super::Kind::Write];
    for key in 0..4 {
        let (tenant, layout) = (TenantId(key as u8 + 1), LayoutId(key as u8 + 1));
        let options = PutOptions { tenant, layout, ..PutOptions::default() };
        rig.submit(Time::NEVER, Action::Put(PutItem { options, ..item(key, 2) }));
    }
    rig.turn(2);
    assert_eq!(rig.shard.tenant(rig.now, "other"), Ok(TenantId(5)));
    assert_eq!(rig.shard.layout(rig.now, shape(300)), Ok(LayoutId(5)));
    rig.devices[0].medium().held.clear();
    rig.turn(50);
    for key in 0..4 {
        let (byte, tenant, layout) = rig.found(key).expect("it is stored");
        assert_eq!((byte, tenant, layout), (key as u8, name(key), Some(shape(key))));
    }
}

#[test]
fn an_old_object_that_comes_back_is_not_the_new_ones() {
    for is_tenant in [true, false] {
        let devices = vec![TestDevice::new("memory:0", 4096)];
        format(&devices, &form(JOURNAL_UNITS));
        let mut rig = Rig::open(devices, options(Durability::Durable));
        let mut holds = Vec::new();
        for number in 0..NUMBERS {
            let (tenant, layout) = (rig.tenant(number), rig.layout(number));
            holds.push(rig.shard.tenants().hold(tenant.expect("room")));
            holds.push(rig.shard.layouts().hold(layout.expect("room")));
        }
        let id = 9;
        let (tenant, layout) = if is_tenant { (id, 0) } else { (0, id) };
        rig.put_for(1, 7, TenantId(tenant), LayoutId(layout));
        rig.wait(Action::Commit).expect("durable");
        let block = rig.shard.flushed_end().expect("a journal");
        rig.delete(1);
        rig.wait(Action::Commit).expect("durable");
        rig.turn(20);
        drop(holds.drain(2 * (usize::from(id) - 1)..2 * usize::from(id)));
        assert_eq!((rig.tenant(300), rig.layout(300)), (Ok(TenantId(id)), Ok(LayoutId(id))));
        rig.wait(Action::Commit).expect("durable");
        // The record of its end is damaged.
        let at = (1 + block % JOURNAL_UNITS) * UNIT_BYTES + 100;
        rig.devices[0].medium().bytes[at as usize] ^= 1;
        let mut rig =
            rig.reopened(ShardOptions { keep_outdated: true, ..options(Durability::Durable) });
        let recovered = rig.recovery.recovered.as_ref().expect("it has a journal");
        assert_eq!((recovered.lost_blocks, rig.recovery.outdated), (1, 0));
        assert_eq!(rig.found(1), None);
        assert_eq!((rig.tenant(300), rig.layout(300)), (Ok(TenantId(id)), Ok(LayoutId(id))));
    }
}

#[test]
fn a_checkpoint_that_is_damaged_late_makes_no_object_anothers() {
    for is_tenant in [true, false] {
        let mut rig = long_rig(512);
        for number in 0..NUMBERS {
            rig.tenant(number).expect("room");
            rig.layout(number).expect("room");
        }
        rig.wait(Action::Commit).expect("durable");
        rig.checkpoint();
        assert_eq!((rig.tenant(300), rig.layout(300)), (Ok(TenantId(1)), Ok(LayoutId(1))));
        let (tenant, layout) = (TenantId(is_tenant.into()), LayoutId((!is_tenant).into()));
        let options_of = PutOptions { tenant, layout, ..PutOptions::default() };
        // Three blocks of the checkpoint's body.
        let keys = 0..300;
        let put = |key| PutItem { options: options_of.clone(), ..long_item(key, 2) };
        let tag = rig.submit_puts(keys.clone().map(put));
        rig.settle();
        assert_eq!(rig.taken(tag), vec![STORED; 300]);
        rig.wait(Action::Commit).expect("durable");
        rig.settle();
        let before = rig.devices[0].medium().bytes.clone();
        rig.checkpoint();
        let mut medium = rig.devices[0].medium();
        let last = before.iter().zip(&medium.bytes).rposition(|(before, after)| before != after);
        medium.bytes[last.expect("its body's end")] ^= 1;
        drop(medium);
        let rig = rig.reopened(options(Durability::Restart));
        assert_eq!((rig.recovery.objects, rig.recovery.dropped), (300, 0));
        assert!(keys.clone().all(|key| rig.shard.info(rig.now, &long_key(key)).is_some()));
        let chosen = rig.recovery.recovered.as_ref().and_then(|found| found.checkpoint);
        assert_eq!(chosen.expect("the older one").number, 1);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: u64, tenant: u64, layout: Option<u64> },
    Delete { key: u64 },
    Sweep { tenant: u64 },
    Commit,
    Checkpoint,
    Restart,
    PowerCut { keeps: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let put = (0..KEYS, 0..CHOICES, proptest::option::of(0..CHOICES));
    let step = prop_oneof![
        30 => put.prop_map(|(key, tenant, layout)| Step::Put { key, tenant, layout }),
        12 => (0..KEYS).prop_map(|key| Step::Delete { key }),
        1 => (0..CHOICES).prop_map(|tenant| Step::Sweep { tenant }),
        2 => Just(Step::Commit),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
        1 => any::<u64>().prop_map(|keeps| Step::PowerCut { keeps }),
    ];
    proptest::collection::vec(step, 60..160)
}

/// What each key had at some time, by the byte of the version.
type Versions = Vec<(u64, String, Option<Layout>)>;

struct World {
    rig: Rig,
    versions: Versions,
    /// The version that each key has now, if it has one; what a power cut may bring back is not here.
    now: Vec<Option<usize>>,
    replaced: u64,
}

impl World {
    fn new() -> World {
        let mut rig = large();
        for number in 0..NUMBERS {
            rig.tenant(number).expect("room");
            rig.layout(number).expect("room");
        }
        rig.wait(Action::Commit).expect("durable");
        World { rig, versions: Vec::new(), now: vec![None; KEYS as usize], replaced: 0 }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put { key, tenant, layout } => self.put(key, tenant, layout),
            Step::Delete { key } => {
                self.rig.delete(key);
                self.now[key as usize] = None;
            }
            Step::Sweep { tenant } => {
                let selection = Selection::Tenant(name(tenant).into());
                self.rig.wait(Action::DeleteWhere(selection)).expect("swept");
                for now in &mut self.now {
                    *now = now.filter(|version| self.versions[*version].1 != name(tenant));
                }
            }
            Step::Commit => drop(self.rig.wait(Action::Commit).expect("durable")),
            Step::Checkpoint => {
                self.rig.shard.parts.log.request_checkpoint();
                self.rig.turn(1);
            }
            Step::Restart => {
                self.rig.wait(Action::Commit).expect("durable");
                self.reopen(|_| true);
                self.check();
            }
            Step::PowerCut { keeps } => {
                self.reopen(|unit| keeps.rotate_left(unit as u32 % 64) & 1 == 0);
                self.look();
            }
        }
    }

    fn put(&mut self, key: u64, tenant: u64, layout: Option<u64>) {
        let before = self.rig.shard.tenants().name(TenantId(u8::MAX)).map(str::to_owned);
        let names: Vec<_> =
            self.rig.shard.tenants().stats().into_iter().map(|it| it.name).collect();
        let id = self.rig.tenant(tenant).expect("some have nothing");
        self.replaced += u64::from(names.iter().all(|known| **known != name(tenant)));
        assert!(before.is_some(), "all numbers are taken");
        let layout_id = layout.map(|number| self.rig.layout(number).expect("some have nothing"));
        let version = self.versions.len();
        self.versions.push((key, name(tenant), layout.map(shape)));
        self.rig.put_for(key, version as u8, id, layout_id.unwrap_or_default());
        self.now[key as usize] = Some(version);
    }

    fn reopen(&mut self, is_lost: impl FnMut(u64) -> bool) {
        let device = self.rig.devices[0].after_loss(is_lost);
        // A power cut cuts the journal, and is no fault of an object.
        let (_, mut faults) = surveyed(&device);
        faults.retain(|fault| fault.code != "journal-cut");
        assert!(faults.is_empty(), "{faults:?}");
        self.rig = Rig::open(vec![device], options(Durability::Restart));
        assert_eq!(self.rig.recovery.dropped, 0, "nothing looks like damage");
    }

    /// Checks that each object has the tenant and the layout that its bytes were put with.
    fn look(&mut self) {
        for key in 0..KEYS {
            let found = self.rig.found(key);
            let version = found.as_ref().map(|(byte, ..)| usize::from(*byte));
            if let (Some(version), Some((_, tenant, layout))) = (version, found) {
                assert_eq!(self.versions[version], (key, tenant, layout));
            }
            self.now[key as usize] = version;
        }
    }

    /// And that each is there in its last version.
    fn check(&mut self) {
        let before = self.now.clone();
        self.look();
        assert_eq!(self.now, before);
    }
}

/// A put whose data a power cut took had the newest version; its record stays in the journal, and a later opening does
/// not look at its data.
#[test]
fn an_object_is_younger_than_those_whose_data_a_power_cut_took() {
    let put = |key, tenant, layout| Step::Put { key, tenant, layout };
    // Which data the cut takes depends on every place.
    let steps = [
        put(3, 255, None),
        put(18, 93, Some(70)),
        put(2, 235, None),
        put(9, 238, Some(275)),
        put(20, 142, Some(181)),
        put(21, 151, None),
        put(7, 167, None),
        put(22, 188, Some(56)),
        put(15, 128, Some(195)),
        put(23, 294, Some(273)),
        put(2, 78, Some(80)),
        put(9, 359, None),
        put(23, 17, None),
        put(7, 13, Some(322)),
        put(7, 168, Some(339)),
        put(4, 391, Some(196)),
        Step::Delete { key: 20 },
        Step::Commit,
        Step::Delete { key: 9 },
        put(15, 275, None),
        put(14, 15, Some(14)),
        put(4, 295, Some(226)),
        put(21, 380, None),
        put(12, 309, Some(250)),
        Step::Checkpoint,
        put(18, 91, None),
        Step::Restart,
        put(8, 266, None),
        put(21, 58, None),
        Step::Delete { key: 19 },
        put(12, 130, Some(343)),
        Step::Delete { key: 22 },
        Step::Delete { key: 12 },
        put(8, 32, None),
        Step::PowerCut { keeps: 11284117500961731987 },
        put(10, 325, Some(302)),
        Step::Restart,
    ];
    let mut world = World::new();
    steps.iter().for_each(|step| world.step(step));
}

#[test]
fn no_object_ever_gets_anothers_tenant_or_layout() {
    let replaced = Cell::new(0);
    let config = Config { cases: 24, ..Config::default() };
    let tried = TestRunner::new(config).run(&steps(), |steps| {
        let mut world = World::new();
        steps.iter().for_each(|step| world.step(step));
        world.rig.wait(Action::Commit).expect("durable");
        world.step(&Step::Restart);
        replaced.set(replaced.get() + world.replaced);
        Ok(())
    });
    tried.expect("each object is as it was put");
    let replaced = replaced.get();
    assert!(replaced > 100, "{replaced} numbers were given to others");
}
