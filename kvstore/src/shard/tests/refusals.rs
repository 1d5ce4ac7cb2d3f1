//! Puts that are refused or declined, and what is written of those that are not.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{TestDevice, memory};
use super::{Rig, SHAPE, STORED, UNITS, device_failed, form, format, hit, item, options};
use crate::model::key::Key;
use crate::model::layout::{BlockShape, Layout, Order};
use crate::model::object::{LayoutId, Object, ObjectId, TenantId};
use crate::model::options::{Durability, PolicyKind};
use crate::model::place::UNIT_BYTES;
use crate::policy::evict::{Lru, Newcomer, Policy, PolicyMaker};
use crate::shard::{
    Action, Decline, Failure, Outcome, PutItem, PutOptions, ReserveItem, ShardOptions,
};

/// Returns a put of `bytes` bytes in memory of `units` units.
fn sized(bytes: u64, units: u64) -> Action {
    Action::Put(PutItem { bytes, ..item(1, units) })
}

fn tenant_used(rig: &Rig) -> u64 {
    rig.shard.tenants().stats().iter().map(|tenant| tenant.used_bytes).sum()
}

#[test]
fn an_object_that_no_device_can_hold_is_too_large() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let most = rig.shard.parts.objects.spaces().extent_units_max();
    let (needs, has) = ((most + 1) * UNIT_BYTES, most * UNIT_BYTES);
    assert_eq!(rig.put(1, most + 1), Err(Failure::TooLarge { needs, has }));
    let options = PutOptions::default();
    let reserve = ReserveItem { key: 1u64.into(), bytes: has + 1, options };
    assert_eq!(rig.wait(Action::Reserve(reserve)), Err(Failure::TooLarge { needs, has }));
    assert_eq!(rig.put(1, most), STORED);
    assert_eq!(rig.shard.stats().puts, 2);
}

#[test]
fn an_object_has_a_length() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let refused = Err(Failure::Part("an object has up to 2^40 - 1 bytes".into()));
    let nothing = PutItem { bytes: 0, data: AnyBuffer::None, ..item(1, 1) };
    let refusal = Err(Failure::Memory { needs: UNIT_BYTES, has: 0 });
    assert_eq!(rig.wait(Action::Put(nothing)), refusal, "an empty object takes a unit");
    assert_eq!(rig.wait(sized(Object::BYTES_END, 1)), refused);
    let too_large = rig.wait(sized(Object::BYTES_END - 1, 1));
    assert!(matches!(too_large, Err(Failure::TooLarge { .. })), "{too_large:?}");
    assert_eq!(rig.wait(sized(1, 1)), STORED);
    assert_eq!(rig.shard.info(rig.now, &1u64.into()).expect("it is there").bytes, 1);
}

#[test]
fn memory_has_all_units_of_an_object_and_may_have_more() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let (needs, has) = (3 * UNIT_BYTES, 2 * UNIT_BYTES);
    assert_eq!(rig.wait(sized(2 * UNIT_BYTES + 1, 2)), Err(Failure::Memory { needs, has }));
    for (bytes, units) in [(2 * UNIT_BYTES + 1, 3), (2 * UNIT_BYTES, 2), (UNIT_BYTES, 3)] {
        assert_eq!(rig.wait(sized(bytes, units)), STORED, "{bytes} bytes in {units} units");
    }
    // Two buffers, of which the first ends within a unit.
    let mut first = memory(2 * UNIT_BYTES as usize);
    let rest = first.split_off(UNIT_BYTES as usize + 512);
    let (_, key) = (item(1, 1), 1u64.into());
    let data = AnyBuffer::Many(vec![first, rest]);
    let put = PutItem { key, bytes: 2 * UNIT_BYTES, data, options: PutOptions::default() };
    let (needs, has) = (2 * UNIT_BYTES, 2 * UNIT_BYTES);
    assert_eq!(rig.wait(Action::Put(put)), Err(Failure::Memory { needs, has }));
}

#[test]
fn an_object_goes_to_a_device_whose_queue_can_use_its_memory() {
    let mut rig = Rig::new(3, 64, options(Durability::Restart));
    let device = |rig: &Rig, key: u64| rig.shard.info(rig.now, &key.into()).map(|info| info.device);
    rig.shard.parts.lanes[0].info.accepts = Box::new(|_| false);
    rig.shard.parts.lanes[2].info.accepts = Box::new(|_| false);
    for key in 0..4 {
        assert_eq!(rig.put(key, 1), STORED);
        assert_eq!(device(&rig, key), Some(1));
    }
    rig.shard.parts.lanes[2].info.accepts = Box::new(|_| true);
    assert!((4..8).all(|key| rig.put(key, 1) == STORED));
    assert_eq!((4..8).filter(|key| device(&rig, *key) == Some(2)).count(), 2);
    assert!((4..8).all(|key| device(&rig, key) != Some(0)));
    for device in 0..3 {
        rig.shard.parts.lanes[device].info.accepts = Box::new(|_| false);
    }
    assert_eq!(rig.put(9, 1), Err(Failure::Foreign { device: 0 }));
}

#[test]
fn an_object_is_too_large_for_the_devices_that_can_use_its_memory() {
    let name = |index| format!("memory:{index}");
    let devices: Vec<_> =
        (0u64..3).map(|at| TestDevice::new(&name(at), (3 - at) * UNITS)).collect();
    format(&devices, &form(64));
    let mut rig = Rig::open(devices, options(Durability::Restart));
    let most = [0, 1, 2].map(|device| rig.shard.parts.objects.spaces().extent_units_on(device));
    assert!(most[2] < most[1] && most[1] < most[0], "{most:?}");
    rig.shard.parts.lanes[0].info.accepts = Box::new(|_| false);
    let (needs, has) = ((most[1] + 1) * UNIT_BYTES, most[1] * UNIT_BYTES);
    assert_eq!(rig.put(1, most[1] + 1), Err(Failure::TooLarge { needs, has }));
    assert_eq!(rig.put(1, most[1]), STORED);
    rig.devices[1].medium().is_dead = true;
    rig.turn(3);
    assert!(device_failed(1, &rig.put(2, most[1])), "the only one that could hold it");
    assert_eq!(rig.put(2, most[2]), STORED);
}

#[test]
fn tenants_and_layouts_are_defined_before_they_are_used() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let with = |options| Action::Put(PutItem { options, ..item(1, 2) });
    let tenant = PutOptions { tenant: TenantId(1), ..PutOptions::default() };
    assert_eq!(rig.wait(with(tenant)), Err(Failure::Undefined("tenant")));
    let layout = PutOptions { layout: LayoutId(1), ..PutOptions::default() };
    assert_eq!(rig.wait(with(layout)), Err(Failure::Undefined("layout")));
    assert_eq!(rig.wait(with(PutOptions::default())), STORED);
}

#[test]
fn a_kv_block_has_the_length_of_its_layout_with_or_without_padding() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    // Two tensors of 3 KiB, each in a unit of its own.
    let shape = BlockShape { tokens: 24, ..SHAPE };
    let layout = Layout::new(shape, Order::LayerMajor { slots: 4 }).expect("a layout");
    let (bytes, padded) = (layout.block_bytes(), layout.block_units() * UNIT_BYTES);
    assert!(bytes < padded);
    let layout = rig.shard.layout(rig.now, layout).expect("room");
    let mut put = |bytes| {
        let options = PutOptions { layout, ..PutOptions::default() };
        rig.wait(Action::Put(PutItem { bytes, options, ..item(1, padded / UNIT_BYTES) }))
    };
    let refused = Err(Failure::Part("a KV block has the bytes of all its tensors".into()));
    assert_eq!((put(bytes), put(padded)), (STORED, STORED));
    for wrong in [bytes - 1, bytes + 1, padded - 1, padded + 1] {
        assert_eq!(put(wrong), refused, "{wrong} bytes");
    }
}

#[test]
fn what_is_behind_the_end_of_an_object_is_written_as_zeroes_and_nothing_else_is() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let put = PutItem { key: 1u64.into(), bytes: 5000, ..item(0xee, 3) };
    rig.submit(Time::NEVER, Action::Put(put));
    rig.turn(5);
    let done = rig.answers.pop().expect("an answer");
    assert_eq!(done.result, STORED);
    let AnyBuffer::One(given) = done.memory else { panic!("one buffer") };
    let end = 2 * UNIT_BYTES as usize;
    assert!(given[5000..end].iter().all(|byte| *byte == 0), "zeroed up to its last unit's end");
    assert!(given[end..].iter().all(|byte| *byte == 0xee), "the rest is not the object's");
    let id = rig.shard.parts.objects.index().find(Key::from(1u64).as_bytes()).expect("it is there");
    let start = (rig.shard.parts.objects.index().object(id).place.unit * UNIT_BYTES) as usize;
    let medium = rig.devices[0].medium();
    assert!(medium.bytes[start..start + 5000].iter().all(|byte| *byte == 0xee));
    assert!(medium.bytes[start + 5000..start + end].iter().all(|byte| *byte == 0));
}

#[test]
fn the_write_budget_counts_whole_units_and_a_declined_put_charges_nothing() {
    // An hour's worth is three units.
    let bytes = Some(24 * 3 * UNIT_BYTES);
    let frugal = ShardOptions { write_bytes_per_day: bytes, ..options(Durability::Restart) };
    let mut rig = Rig::new(1, 64, frugal);
    assert_eq!(rig.wait(sized(2 * UNIT_BYTES + 1, 3)), STORED);
    let used = tenant_used(&rig);
    for count in 1..3 {
        assert_eq!(rig.wait(sized(1, 1)), Ok(Outcome::Declined(Decline::Budget)));
        assert_eq!((rig.shard.stats().declined, tenant_used(&rig)), (count, used));
    }
    rig.now = rig.now + std::time::Duration::from_secs(1201);
    assert_eq!(rig.wait(sized(1, 1)), STORED, "a third of an hour's worth");
}

#[test]
fn admission_declines_blocks_that_come_once_with_what_follows_them_and_nothing_put_alone() {
    let devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    format(&devices, &form(64));
    let auto = ShardOptions { policy: PolicyKind::Auto, ..options(Durability::Volatile) };
    let mut rig = Rig::open(devices, auto);
    let together = |rig: &mut Rig, first: u64| -> Vec<Result<Outcome, Failure>> {
        let tag = rig.submit_puts((first..first + 8).map(|key| item(key, 1)));
        rig.turn(40);
        rig.taken(tag)
    };
    let declined = Ok(Outcome::Declined(Decline::Admission));
    let (mut new, mut last) = (10_000, Vec::new());
    for round in 0..1500u64 {
        // Some sequences come again and again, and twice as many once.
        let hot = round % 50 * 8;
        let keys: Vec<Key> = (hot..hot + 8).map(Key::from).collect();
        let found = rig.shard.lookup_prefix(rig.now, &keys);
        if found < 8 {
            together(&mut rig, hot);
        }
        for _ in 0..2 {
            new += 8;
            last = together(&mut rig, new);
        }
        if round > 100 && last == vec![declined.clone(); 8] {
            break;
        }
    }
    assert_eq!(last, vec![declined.clone(); 8], "all of it is declined");
    assert_eq!(rig.put(new + 1000, 1), STORED, "it is put alone");
    let whole = (0..50).map(|sequence| sequence * 8).find(|first| {
        let keys: Vec<Key> = (*first..*first + 8).map(Key::from).collect();
        rig.shard.lookup_prefix(rig.now, &keys) == 8
    });
    let whole = whole.expect("a sequence that comes again is there");
    assert_eq!(together(&mut rig, whole), vec![STORED; 8], "they are replaced");
    assert!(rig.shard.stats().declined >= 8);
    let before = rig.shard.stats().bytes_written;
    new += 8;
    let stored = together(&mut rig, new).iter().filter(|result| **result == STORED).count() as u64;
    let written = rig.shard.stats().bytes_written - before;
    assert_eq!(written, stored * UNIT_BYTES, "what is declined is not written");
}

/// Admits the first put that it judges, and no other.
struct Once {
    lru: Lru,
    has_admitted: bool,
}

impl Policy for Once {
    fn admits(&mut self, _new: &Newcomer) -> bool {
        !std::mem::replace(&mut self.has_admitted, true)
    }

    fn inserted(&mut self, id: ObjectId, key_hash: u64) {
        self.lru.inserted(id, key_hash);
    }

    fn touched(&mut self, id: ObjectId) {
        self.lru.touched(id);
    }

    fn removed(&mut self, id: ObjectId) {
        self.lru.removed(id);
    }

    fn evicted(&mut self, id: ObjectId, key_hash: u64) {
        self.lru.evicted(id, key_hash);
    }

    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        self.lru.victim(is_leased)
    }

    fn memory_bytes(&self) -> usize {
        self.lru.memory_bytes()
    }
}

/// Declined, the second would leave the bytes of the first, which is not there yet when it is judged.
#[test]
fn a_put_behind_one_of_its_key_that_is_under_way_is_never_declined() {
    for durability in [Durability::Volatile, Durability::Restart, Durability::Durable] {
        let once = |objects| -> Box<dyn Policy> {
            Box::new(Once { lru: Lru::new(objects), has_admitted: false })
        };
        let custom_policy = Some(PolicyMaker::new(once));
        let mut rig = Rig::new(1, 64, ShardOptions { custom_policy, ..options(durability) });
        let together = rig.submit_puts([item(1, 1), item(1, 2)]);
        let behind = rig.submit(Time::NEVER, Action::Put(item(1, 3)));
        rig.turn(50);
        assert_eq!(rig.taken(together), [STORED, STORED], "{durability:?}");
        assert_eq!((rig.taken(behind), rig.get(1, 3)), (vec![STORED], hit(3)));
        assert_eq!(rig.put(2, 1), Ok(Outcome::Declined(Decline::Admission)));
    }
}
