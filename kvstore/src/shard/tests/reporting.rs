//! What a shard says of itself: sizes, devices, what is flushed, and how its lanes wake a thread.

use std::os::fd::AsFd;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::paths::{DeviceQueue, QueueOptions};
use adit_driver::runtime::Alarm;
use adit_driver::{Device, DeviceOptions};

use super::device::memory;
use super::{Rig, SHAPE, STORED, UNITS, form, item, options, used_units};
use crate::media::format;
use crate::model::layout::{BlockShape, Layout, Order};
use crate::model::object::LayoutId;
use crate::model::options::{Durability, Quota, WhenReached};
use crate::model::place::UNIT_BYTES;
use crate::shard::{
    Action, Failure, LANE_MEMORY_BYTES, Lane, LaneInfo, Load, Outcome, PutItem, PutOptions, Shard,
};

const COMMITTED: Result<Outcome, Failure> = Ok(Outcome::Committed);

#[test]
fn sizes_are_those_of_the_objects_and_tables() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let tenant = rig.shard.tenant(rig.now, "a").expect("a tenant");
    let quota = Quota { bytes: 8 * UNIT_BYTES, when_reached: WhenReached::EvictOwn };
    rig.shard.set_quota(rig.now, tenant, Some(quota)).expect("a quota");
    let all = rig.capacity();
    assert_eq!((rig.shard.stats().free_runs, rig.shard.stats().largest_free_units), (1, all));
    for (key, units) in [(1, 5), (2, 3), (3, 4)] {
        let options = PutOptions { tenant, ..PutOptions::default() };
        let options = if key == 2 { options } else { PutOptions::default() };
        assert_eq!(rig.wait(Action::Put(PutItem { options, ..item(key, units) })), STORED);
    }
    let lease = rig.shard.lease(rig.now, &[1u64.into(), 3u64.into()], Time::NEVER);
    assert!(lease.is_ok_and(|(_, count)| count == 2));
    assert_eq!(rig.wait(Action::Delete(2u64.into())), Ok(Outcome::Deleted));
    let stats = rig.shard.stats();
    assert_eq!((stats.objects, stats.leased, stats.capacity_units), (2, 2, all));
    assert_eq!((stats.used_units, used_units(&rig.shard)), (9, 12), "three are not free yet");
    assert_eq!((stats.free_runs, stats.largest_free_units), (1, all - 12));
    let tables = [
        rig.shard.parts.objects.index().memory_bytes(),
        rig.shard.parts.objects.order().memory_bytes(),
        rig.shard.parts.objects.own_memory_bytes(),
        rig.shard.parts.objects.regions().memory_bytes(),
        rig.shard.parts.objects.tier().memory_bytes(),
    ];
    assert!(tables.iter().all(|bytes| *bytes > 0), "{tables:?}");
    assert_eq!(stats.memory_bytes, tables.iter().sum::<usize>() as u64);
    assert_eq!(rig.wait(Action::Commit), COMMITTED);
    rig.turn(50);
    let stats = rig.shard.stats();
    assert_eq!((stats.free_runs, stats.largest_free_units), (2, all - 12));
}

#[test]
fn each_device_has_its_figures() {
    let mut rig = Rig::new(2, 64, options(Durability::Volatile));
    let written = |rig: &Rig| -> Vec<u64> {
        rig.shard.lanes().figures().map(|figures| figures.written_bytes).collect()
    };
    let before = written(&rig);
    for (key, units) in [(1, 3), (2, 5)] {
        assert_eq!(rig.put(key, units), STORED);
    }
    let mut since: Vec<u64> =
        written(&rig).iter().zip(before).map(|(now, before)| now - before).collect();
    since.sort_unstable();
    assert_eq!(since, [3 * UNIT_BYTES, 5 * UNIT_BYTES]);
}

#[test]
fn what_was_flushed_of_the_journal_grows_with_each_commit() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let mut end = rig.shard.flushed_end().expect("a journal");
    for key in 0..3 {
        assert_eq!(rig.put(key, 1), STORED);
        assert_eq!(rig.shard.flushed_end(), Some(end), "nothing was flushed yet");
        assert_eq!(rig.wait(Action::Commit), COMMITTED);
        let next = rig.shard.flushed_end().expect("a journal");
        assert!(next > end, "{next} after {end}");
        end = next;
    }
    assert_eq!(Rig::new(1, 64, options(Durability::Volatile)).shard.flushed_end(), None);
}

#[test]
fn a_layout_is_defined_where_the_journal_takes_its_record() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let define = |rig: &mut Rig, tokens| {
        let layout = Layout::new(BlockShape { tokens, ..SHAPE }, Order::BlockMajor);
        rig.shard.layout(rig.now, layout.expect("a layout"))
    };
    assert_eq!(define(&mut rig, 4), Ok(LayoutId(1)));
    rig.fill_journal();
    assert_eq!(define(&mut rig, 2), Err(Failure::Full));
    assert_eq!(define(&mut rig, 4), Ok(LayoutId(1)), "it is known");
    let mut is_refused = |_: &u32| {
        rig.turn(1);
        define(&mut rig, 2) == Err(Failure::Full)
    };
    assert!((0..100).take_while(&mut is_refused).count() < 100, "polling makes room");
    rig.devices[0].medium().is_dead = true;
    rig.turn(3);
    let refused = define(&mut rig, 1);
    assert!(matches!(refused, Err(Failure::Device { device: 0, .. })), "{refused:?}");
}

#[test]
fn memory_is_registered_with_each_queue_that_can_use_it() {
    let mut rig = Rig::new(2, 64, options(Durability::Restart));
    rig.shard.parts.lanes[1].info.accepts = Box::new(|memory| memory.len() < 8192);
    [4096, 8192].into_iter().for_each(|bytes| rig.shard.register(&memory(bytes)));
    let registered: Vec<_> =
        rig.devices.iter().map(|device| device.medium().registered.clone()).collect();
    assert_eq!(registered, [vec![4096, 8192], vec![4096]]);
}

#[test]
fn a_shard_gives_its_lanes_back_with_their_memory() {
    let mut rig = Rig::new(2, 64, options(Durability::Restart));
    assert_eq!(rig.put(1, 1), STORED);
    rig.settle();
    let lanes = rig.shard.into_lanes();
    let names: Vec<_> = lanes.iter().map(|lane| lane.info.device.clone()).collect();
    assert_eq!(names, ["memory:0", "memory:1"]);
    let memory = lanes.into_iter().map(Lane::into_memory);
    assert!(memory.into_iter().all(|one| one.is_some_and(|all| all.len() == LANE_MEMORY_BYTES)));
}

/// Returns a lane over a file's queue.
fn file_lane(device: &Device) -> Lane<DeviceQueue<Load>> {
    let second = Duration::from_secs(1);
    let options = QueueOptions { depth: 8, timeout: second, abort_timeout: second };
    let memory = device.allocate(LANE_MEMORY_BYTES).expect("memory");
    let about = device.info();
    let info = LaneInfo {
        device: about.device.clone(),
        bytes: about.bytes,
        lba_bytes: about.lba_bytes,
        command_bytes_max: about.command_bytes_max,
        boundary_bytes: about.boundary_bytes,
        depth: options.depth,
        deallocates: false,
        deallocate_lbas_max: 0,
        may_lack_space: false,
        protection: None,
        accepts: Box::new(|_| true),
    };
    let queue = device.create_queue(&options, &[&memory]).expect("a queue");
    Lane::new(queue, info, memory)
}

#[test]
fn a_shard_wakes_its_thread_if_all_of_its_queues_do() {
    let path = std::env::temp_dir().join(format!("adit-notifying-{}.img", std::process::id()));
    let target = format!("uring:{}", path.display()).parse().expect("a target");
    let file_bytes = Some(UNITS * UNIT_BYTES);
    let device_options = DeviceOptions { queue_count: 4, file_bytes, ..DeviceOptions::default() };
    let device = Device::open(&target, &device_options).expect("a file");
    let clock = &mut || device.now();
    format::format(&mut [file_lane(&device)], &form(64), clock).expect("a blank file");
    let mut lanes = vec![file_lane(&device)];
    let set = format::read_set(&mut lanes, clock).expect("a store");
    let options = options(Durability::Restart);
    let (mut shard, _) = Shard::<_, u64>::open(0, lanes, &set, options, clock).expect("opens");
    std::fs::remove_file(&path).expect("it was made");
    assert!(!shard.lanes().notifies());
    let alarm = Alarm::new().expect("an alarm");
    shard.notify(alarm.as_fd()).expect("a queue takes an event");
    assert!(shard.lanes().notifies(), "this path raises an event with each completion");
    shard.parts.lanes[0].notifies = false;
    assert!(!shard.lanes().notifies());
}
