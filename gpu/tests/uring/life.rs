//! The life of control blocks: filled, issued once, awaited by streams, kernels and the CPU, returned.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::spec::Lba;
use adit_driver::{Controller, ControllerOptions};
use adit_gpu::{
    Device, Direction, Ended, EngineChoice, Error, GioUring, Gpu, KernelChoice, Options, Place,
    Pool, Priority, Slice, Stream, Transfer,
};

use crate::rig::{LONG, REGIONS, Rig, alone, device, options};

const SOFT: &str = "soft:mem=8M,dbbuf=off";

pub(crate) type OneSlice = Transfer<[Slice; 1]>;

pub(crate) fn write(lba: u64, offset: u64) -> OneSlice {
    let slices = [Slice { region: 0, offset, bytes: 512 }];
    Transfer { device: 0, direction: Direction::Write, lba: Lba(lba), slices }
}

pub(crate) fn read(lba: u64, offset: u64) -> OneSlice {
    Transfer { direction: Direction::Read, ..write(lba, offset) }
}

/// Returns transfers of one command each, enough for `blocks` blocks.
fn for_blocks(blocks: u64) -> impl Iterator<Item = OneSlice> {
    (0..(blocks - 1) * 2048 + 1).map(|lba| read(lba % 8192, lba % 8192 * 512))
}

fn one_by_one() -> Options {
    Options { blocks: 3, ..options() }
}

#[test]
fn blocks_are_issued_once_and_not_waited_for_before() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &one_by_one());
    let iocbs = rig.uring.get_iocb([read(0, 0)], None).expect("a block");
    let error = rig.uring.poll(&iocbs).expect_err("not issued").to_string();
    assert!(error.contains("issue_io first"), "{error}");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    let error = rig.uring.issue_io(&iocbs, 0).expect_err("issued before").to_string();
    assert!(error.contains("were issued"), "{error}");
    assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
}

#[test]
fn no_transfers_are_done_at_once() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &one_by_one());
    let iocbs = rig.uring.get_iocb([] as [OneSlice; 0], None).expect("nothing");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    assert_eq!(rig.uring.wait_addresses(&iocbs).expect("addresses").count, 0);
    assert_eq!(rig.uring.wait(iocbs, Duration::ZERO).expect("done").commands, 0);
}

#[test]
fn a_transfer_that_cannot_be_is_named_and_takes_no_block() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &one_by_one());
    let slice = Slice { region: 0, offset: 0, bytes: REGIONS[0] + 512 };
    let elsewhere = Slice { region: 7, offset: 0, bytes: 512 };
    let of = |slice| Transfer { slices: [slice], ..read(0, 0) };
    for (wrong, named) in [
        (of(slice), "ends at 4194304 bytes"),
        (Transfer { device: 1, ..read(0, 0) }, "over 1 devices"),
        (of(elsewhere), "2 regions"),
        (read(16384, 0), "ends at LBA 16384"),
    ] {
        for _ in 0..10 {
            let error = rig.uring.get_iocb([read(0, 0), wrong], None).expect_err(named);
            assert!(error.is_usage(), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(named) && text.contains("transfer 1 "), "{text}");
        }
    }
    let without =
        Transfer { device: 0, direction: Direction::Read, lba: Lba(0), slices: [] as [Slice; 0] };
    let error = rig.uring.get_iocb([without], None).expect_err("no slices").to_string();
    assert!(error.contains("no slices") && error.contains("transfer 0 "), "{error}");
    let all = rig.uring.get_iocb(for_blocks(3), None).expect("all blocks are free");
    assert_eq!(all.blocks(), 3);
}

#[test]
fn blocks_come_back_when_they_are_dropped_or_their_commands_have_ended() {
    for engine in [EngineChoice::Rings, EngineChoice::Staged] {
        let _alone = alone("");
        let rig = Rig::new(&[SOFT], Place::Host, &Options { engine, ..one_by_one() });
        let held = rig.uring.get_iocb(for_blocks(2), None).expect("two blocks");
        let error = rig.uring.get_iocb(for_blocks(2), None).expect_err("one is left");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("all 3 I/O control blocks are in use"), "{error}");
        drop(held);
        // Many more than there are, one after the other, awaited or dropped.
        for round in 0..12 {
            let iocbs = (0..).find_map(|_| rig.uring.get_iocb(for_blocks(2), None).ok());
            let iocbs = iocbs.expect("blocks come back");
            rig.uring.issue_io(&iocbs, 0).expect("issued");
            if round % 3 > 0 {
                assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
            }
        }
    }
}

#[test]
fn the_last_block_is_free_when_its_commands_have_ended_though_its_kernel_has_yet_to_return() {
    let _alone = alone("exit=20");
    let rig = Rig::new(&[SOFT], Place::Host, &one_by_one());
    for round in 0..4 {
        let iocbs = rig.uring.get_iocb(for_blocks(3), None).expect("blocks are free again");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        if round % 2 > 0 {
            assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
            continue;
        }
        while !rig.uring.poll(&iocbs).expect("issued") {}
        drop(iocbs);
    }
}

#[test]
fn transfers_wait_for_the_event_and_streams_wait_for_transfers() {
    for kernel in [KernelChoice::OneShot, KernelChoice::Persistent] {
        let _alone = alone("no-green");
        let rig = Rig::new(&[SOFT], Place::Host, &Options { kernel, ..one_by_one() });
        let stream = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        let first = rig.uring.get_iocb([write(7, 0)], None).expect("a block");
        // The stream continues when the first is done; the second begins when the stream has come that far.
        rig.uring.wait_cqe(&first, &stream).expect("enqueued");
        let event = stream.record().expect("an event");
        let second = rig.uring.get_iocb([read(7, 4096)], Some(&event)).expect("a block");
        rig.uring.pool().write(0, 0, &[0x5a; 512]).expect("written");
        rig.uring.issue_io(&first, 0).expect("issued");
        rig.uring.issue_io(&second, 0).expect("issued");
        rig.uring.wait_cqe(&second, &stream).expect("enqueued");
        stream.synchronize(LONG).expect("the stream goes on by the GPU alone");
        assert!(rig.uring.poll(&first).expect("issued") && event.is_over().expect("an event"));
        let mut bytes = [0; 512];
        rig.uring.pool().read(0, 4096, &mut bytes).expect("read");
        assert_eq!(bytes, [0x5a; 512]);
        assert!(rig.uring.wait(second, LONG).expect("done").is_success());
    }
}

#[test]
fn nothing_begins_before_its_event() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &one_by_one());
    let gate = rig.uring.get_iocb([read(1, 0)], None).expect("a block");
    let stream = Stream::new(&rig.gpu, Priority::Normal).expect("a stream");
    rig.uring.wait_cqe(&gate, &stream).expect("enqueued");
    let event = stream.record().expect("an event");
    let behind = rig.uring.get_iocb([write(2, 512)], Some(&event)).expect("a block");
    rig.uring.issue_io(&behind, 0).expect("issued");
    let before = rig.uring.stats().expect("stats").commands;
    let error =
        rig.uring.wait(behind, Duration::from_millis(20)).expect_err("the event is not over");
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert_eq!(rig.uring.stats().expect("stats").commands, before);
    rig.uring.issue_io(&gate, 0).expect("issued");
    assert!(rig.uring.wait(gate, LONG).expect("done").is_success());
}

#[test]
fn threads_issue_side_by_side() {
    for kernel in [KernelChoice::OneShot, KernelChoice::Persistent] {
        let _alone = alone("no-green");
        let rig = Rig::new(&[SOFT], Place::Host, &Options { kernel, ..options() });
        let issue = |thread: u64| {
            let uring = Arc::clone(&rig.uring);
            move || {
                for round in 0..10 {
                    let lba = thread * 1000 + round * 50;
                    let all = (0..50).map(|next| write(lba + next, (lba + next) % 8192 * 512));
                    let iocbs = uring.get_iocb(all, None).expect("blocks");
                    uring.issue_io(&iocbs, 1).expect("issued");
                    let outcome = uring.wait(iocbs, LONG).expect("done");
                    assert_eq!((outcome.commands, outcome.failed.len()), (50, 0));
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(issue(thread));
            }
        });
        assert_eq!(rig.uring.stats().expect("stats").commands, 1500);
    }
}

#[test]
fn one_command_is_told_of_once() {
    let _alone = alone("");
    let rig = Rig::new(&[SOFT], Place::Host, &options());
    for lba in 0..20 {
        let iocbs = rig.uring.get_iocb([write(lba, 0)], None).expect("a block");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
    }
    let stats = rig.uring.stats().expect("stats");
    assert_eq!((stats.commands, stats.sq_rings), (20, 20));
}

#[test]
fn stopped_rings_issue_nothing_until_they_are_recovered() {
    for kernel in [KernelChoice::OneShot, KernelChoice::Persistent] {
        let _alone = alone("no-green");
        let rig = Rig::new(&[SOFT], Place::Host, &Options { kernel, ..one_by_one() });
        let iocbs = rig.uring.get_iocb(for_blocks(2), None).expect("blocks");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        rig.uring.stop().expect("stopped");
        assert!(rig.uring.poll(&iocbs).expect("issued"), "everything has ended");
        let outcome = rig.uring.wait(iocbs, LONG).expect("ended");
        assert_eq!(outcome.commands, 2049);
        let iocbs = rig.uring.get_iocb([read(0, 0)], None).expect("a block");
        let error = rig.uring.issue_io(&iocbs, 0).expect_err("stopped");
        assert!(matches!(error, Error::OutOfService { .. }), "{error:?}");
        assert!(error.to_string().contains("they were stopped"), "{error}");
        rig.uring.recover().expect("recovered");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
    }
}

/// Recovers while a block waits for an event in the rings of another rig, whose own block releases the event.
fn let_go_while_recovering(rig: &Rig, gates: &Rig, delay: Duration) {
    let gate = gates.uring.get_iocb([read(1, 0)], None).expect("a block");
    let stream = Stream::new(&gates.gpu, Priority::Normal).expect("a stream");
    gates.uring.wait_cqe(&gate, &stream).expect("enqueued");
    let event = stream.record().expect("an event");
    let behind = rig.uring.get_iocb([write(2, 512)], Some(&event)).expect("a block");
    rig.uring.issue_io(&behind, 0).expect("issued");
    let before = rig.uring.stats().expect("stats").commands;
    std::thread::scope(|scope| {
        let recovery = scope.spawn(|| rig.uring.recover());
        std::thread::sleep(delay);
        gates.uring.issue_io(&gate, 0).expect("issued");
        recovery.join().expect("no panic").expect("recovered");
    });
    let commands = rig.uring.stats().expect("stats").commands;
    // Recreated queues have not counted anything yet.
    let settled = commands.checked_sub(before).unwrap_or(commands);
    assert!(rig.uring.poll(&behind).expect("issued"), "everything has ended");
    let failed = rig.uring.wait(behind, LONG).expect("ended").failed;
    // The recovery may come late enough for it to be sent, or even done.
    match settled {
        0 => assert_eq!(failed, [(0, Ended::Reset)]),
        1 => assert!(failed.is_empty() || failed == [(0, Ended::Reset)], "{failed:?}"),
        _ => panic!("{settled} commands for one transfer"),
    }
    assert!(gates.uring.wait(gate, LONG).expect("done").is_success());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(rig.uring.stats().expect("stats").commands, commands, "none comes later");
}

#[test]
fn an_event_that_is_over_amid_a_recovery_begins_nothing_afterwards() {
    for kernel in [KernelChoice::OneShot, KernelChoice::Persistent] {
        let _alone = alone("no-green");
        let gates = Rig::new(&[SOFT], Place::Host, &one_by_one());
        let rig = Rig::new(&[SOFT], Place::Host, &Options { kernel, ..one_by_one() });
        for step in 0..40 {
            let_go_while_recovering(&rig, &gates, Duration::from_micros(1000 + 97 * step));
        }
    }
}

#[test]
fn rings_are_dropped_with_transfers_under_way() {
    for kernel in [KernelChoice::OneShot, KernelChoice::Persistent] {
        let _alone = alone("no-green");
        let rig = Rig::new(
            &["soft:mem=8M,dbbuf=off,faults=delay(3ms)@io:p=0.2"],
            Place::Host,
            &Options { kernel, ..one_by_one() },
        );
        let iocbs = rig.uring.get_iocb(for_blocks(2), None).expect("blocks");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        let Rig { uring, devices, .. } = rig;
        drop(uring);
        drop(iocbs);
        // The queues are gone: the controller can create all of them again.
        devices[0].controller.check().expect("in service");
    }
}

#[test]
fn kernels_that_wait_behind_each_other_are_stopped_one_after_the_other() {
    let _alone = alone("");
    let options = Options { blocks: 12, ..options() };
    let rig = Rig::new(&["soft:mem=8M,dbbuf=off,faults=hold@write"], Place::Host, &options);
    let issue = |lba| {
        let iocbs = rig.uring.get_iocb([write(lba, 0)], None).expect("a block");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        iocbs
    };
    let all = (0..12).map(issue).collect::<Vec<_>>();
    rig.uring.stop().expect("stopped");
    for iocbs in all {
        assert_eq!(
            rig.uring.wait(iocbs, Duration::ZERO).expect("ended").failed,
            [(0, Ended::Reset)]
        );
    }
}

#[test]
fn what_was_chosen_is_said_with_the_reason() {
    let _alone = alone("no-green,no-dma-buf,gdr=absent");
    let auto = Options { engine: EngineChoice::Auto, ..one_by_one() };
    let rig = Rig::new(&[SOFT], Place::Host, &auto);
    let chosen = rig.uring.description();
    assert_eq!(chosen.engine, EngineChoice::Rings);
    assert_eq!(chosen.places, Some((Place::Host, Place::Host)));
    assert_eq!((chosen.queues, chosen.table_bytes), (2, 32));
    assert!(chosen.no_partition.is_some() && chosen.doorbells.is_some(), "{chosen:?}");
    drop(rig);
    let rig = Rig::new(&[SOFT], Place::Gpu, &auto);
    let chosen = rig.uring.description();
    assert_eq!(chosen.engine, EngineChoice::Staged);
    let whys = &chosen.why_staged;
    let paths: Vec<&str> = whys.iter().filter_map(|why| Some(why.split_once(": ")?.0)).collect();
    let expected = ["coherent memory", "dma-buf through iommufd", "dma-buf mapped here", "gdrdrv"];
    assert_eq!(paths, expected, "{whys:?}");
}

/// Creates rings over devices, with a pool in host memory for the first `pool_for` of them.
fn make(devices: &[Device], pool_for: usize, options: &Options) -> Result<GioUring, Error> {
    let gpu = Gpu::open(0).expect("a GPU");
    let controllers = devices.iter().take(pool_for).map(|device| Arc::clone(&device.controller));
    let controllers = controllers.collect::<Vec<_>>();
    let pool = Pool::allocate(&gpu, &controllers, &REGIONS, Some(Place::Host)).expect("a pool");
    GioUring::init_queue(&gpu, devices.to_vec(), pool, options)
}

#[test]
fn devices_with_shadow_doorbells_are_staged() {
    let _alone = alone("");
    let target = "soft:mem=8M".parse().expect("a target");
    let controller =
        Controller::open(&target, &ControllerOptions::default()).expect("a controller");
    let controller = Arc::new(controller);
    let first = controller.namespace_ids().expect("a list")[0];
    let namespace = controller.namespace(first).expect("a namespace");
    let devices = [Device { controller, namespace }];
    let error = make(&devices, 1, &options()).err().expect("the GPU cannot ring").to_string();
    assert!(error.contains("dbbuf=off"), "{error}");
    let auto = Options { engine: EngineChoice::Auto, ..options() };
    let uring = make(&devices, 1, &auto).expect("staged");
    let whys = &uring.description().why_staged;
    assert!(whys.len() == 1 && whys[0].contains("shadow doorbells are in use"), "{whys:?}");
}

#[test]
fn rings_that_cannot_be_are_refused_with_the_limit() {
    let _alone = alone("");
    let soft = [device(SOFT)];
    let auto = || Options { engine: EngineChoice::Auto, ..options() };
    for (devices, pool_for, options, named) in [
        (&soft[..0], 0, auto(), "0 devices"),
        (&soft[..], 0, auto(), "a pool for 0 controllers"),
        (&soft[..], 1, Options { queues: 0, ..auto() }, "0 queues"),
        (&soft[..], 1, Options { blocks: 0, ..auto() }, "1 to 4096"),
        (&soft[..], 1, Options { depth: 1, ..auto() }, "2 to 4096"),
        (&soft[..], 1, Options { depth: 5000, ..auto() }, "2 to 4096"),
    ] {
        let error = make(devices, pool_for, &options).err().expect(named);
        assert!(error.is_usage() && error.to_string().contains(named), "{named}: {error:?}");
    }
    let many = Options { queues: 65, ..options() };
    let error = make(&soft, 1, &many).err().expect("it has 64 queues").to_string();
    assert!(error.contains("64 I/O queues"), "{error}");
}

#[test]
fn kernels_may_not_wait_where_data_arrive_later_than_completions() {
    let ordered = |place, completion, ordering: u32| {
        let _alone = alone(&format!("coherent,ordering={ordering}"));
        let options = Options { completion: Some(completion), ..one_by_one() };
        let rig = Rig::new(&[SOFT], place, &options);
        let iocbs = rig.uring.get_iocb([read(3, 0)], None).expect("a block");
        let stream = rig.uring.compute_stream(Priority::Normal).expect("a stream");
        rig.uring.wait_cqe(&iocbs, &stream).expect("a stream's wait flushes");
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        stream.synchronize(LONG).expect("done");
        let addresses = rig.uring.wait_addresses(&iocbs);
        assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
        addresses
    };
    for completion in [Place::Gpu, Place::Host] {
        assert_eq!(ordered(Place::Gpu, completion, 100).expect("ordered for the owner").count, 1);
        // Two writes to one memory are not ordered either.
        let error = ordered(Place::Gpu, completion, 0).expect_err("not ordered").to_string();
        assert!(error.contains("rdma_writes_ordering") && error.contains("wait_cqe"), "{error}");
    }
    assert_eq!(ordered(Place::Host, Place::Host, 0).expect("all in host memory").count, 1);
}

#[test]
fn rings_of_one_controller_share_a_granule() {
    let _alone = alone("");
    let gpu = Gpu::open(0).expect("a GPU");
    let device = device(SOFT);
    let controllers = [Arc::clone(&device.controller)];
    let pool = Pool::allocate(&gpu, &controllers, &[1 << 20], Some(Place::Gpu)).expect("a pool");
    let before = adit_gpu_emulated::report().physicals;
    let options = Options { queues: 8, ..options() };
    let uring = GioUring::init_queue(&gpu, vec![device], pool, &options).expect("rings");
    assert_eq!(uring.description().places, Some((Place::Gpu, Place::Gpu)));
    assert_eq!(adit_gpu_emulated::report().physicals - before, 1);
    let iocbs = uring.get_iocb([read(0, 0)], None).expect("a block");
    uring.issue_io(&iocbs, 0).expect("issued");
    assert!(uring.wait(iocbs, LONG).expect("ended").is_success());
}
