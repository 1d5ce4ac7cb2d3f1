//! Failing devices: each failure shows where it belongs, nothing hangs, and everything works again after a recovery.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::Status;
use adit_driver::{Controller, ControllerOptions};
use adit_gpu::{
    Device, Ended, EngineChoice, Error, GioUring, Gpu, IocbOutcome, KernelChoice, Options, Place,
    Pool, Slice, Transfer,
};

use crate::life::{OneSlice, read, write};
use crate::rig::{LONG, REGIONS, Rig, alone, options};

/// A deadline short enough to wait for, and long enough for a busy machine.
const SHORT: Duration = Duration::from_millis(1500);

fn kernels() -> [Options; 2] {
    [KernelChoice::OneShot, KernelChoice::Persistent].map(|kernel| Options {
        kernel,
        timeout: SHORT,
        queues: 1,
        blocks: 4,
        ..options()
    })
}

fn faulty(plan: &str) -> String {
    format!("soft:mem=8M,dbbuf=off,faults={plan}")
}

fn run(rig: &Rig, transfers: impl IntoIterator<Item = OneSlice>) -> IocbOutcome {
    let iocbs = rig.uring.get_iocb(transfers, None).expect("a block");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    rig.uring.wait(iocbs, LONG).expect("ended")
}

fn works(rig: &Rig) {
    for lba in [100, 5000] {
        rig.uring.pool().write(0, 0, &[lba as u8; 512]).expect("written");
        assert_eq!(run(rig, [write(lba, 0)]).failed, []);
        rig.uring.pool().write(0, 0, &[0; 512]).expect("written");
        assert_eq!(run(rig, [read(lba, 0)]).failed, []);
        let mut bytes = [0; 512];
        rig.uring.pool().read(0, 0, &mut bytes).expect("read");
        assert_eq!(bytes, [lba as u8; 512]);
    }
}

/// Sends 40 commands of which the 11th to be executed meets the fault; returns how they ended.
fn meets(rig: &Rig) -> IocbOutcome {
    run(rig, (0..40).map(|lba| write(lba, lba * 512)))
}

#[test]
fn a_status_is_that_of_its_command_alone() {
    for options in kernels() {
        let _alone = alone("no-green");
        let rig = Rig::new(&[&faulty("status(2:81:dnr)@write:lba=17-17")], Place::Host, &options);
        let outcome = meets(&rig);
        let status = Status::new(2, 0x81).with_dnr(true);
        assert_eq!(outcome.failed, [(17, Ended::Status(status))]);
        assert_eq!(outcome.commands, 40);
        works(&rig);
    }
}

#[test]
fn a_transfer_is_named_for_each_of_its_commands_that_failed() {
    let _alone = alone("");
    let rig = Rig::new(
        &[&(faulty("status(2:80)@write:lba=40-79") + ",mdts=1")],
        Place::Host,
        &kernels()[0],
    );
    let slices = [Slice { region: 0, offset: 0, bytes: 48 * 512 }];
    let large = Transfer { slices, ..write(32, 0) };
    let outcome = run(&rig, [write(1, 0), large, write(2, 0)]);
    // Three commands of 16 LBAs, of which those at 32, 48 and 64 overlap the range.
    assert_eq!(outcome.commands, 5);
    assert_eq!(outcome.failed.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn a_lost_command_ends_at_the_deadline_and_its_identifier_comes_back_with_the_recovery() {
    for (fault, options) in ["lose", "mute"].into_iter().zip(kernels()) {
        let _alone = alone("no-green");
        let rig =
            Rig::new(&[&faulty(&format!("{fault}@write:n=11:times=1"))], Place::Host, &options);
        let outcome = meets(&rig);
        assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
        assert_eq!(outcome.failed[0].1, Ended::TimedOut);
        assert!(outcome.took >= SHORT);
        // All others continued; so do the rings, one identifier short, and complete again after a recovery.
        works(&rig);
        rig.uring.recover().expect("recovered");
        works(&rig);
    }
}

#[test]
fn a_held_command_is_aborted_in_a_recovery() {
    for options in kernels() {
        let _alone = alone("no-green");
        let rig = Rig::new(&[&faulty("hold@write:n=5:times=1")], Place::Host, &options);
        let outcome = meets(&rig);
        assert_eq!(
            outcome.failed.iter().map(|(_, ended)| *ended).collect::<Vec<_>>(),
            [Ended::TimedOut]
        );
        let before = rig.uring.stats().expect("stats");
        rig.uring.recover().expect("recovered");
        let after = rig.uring.stats().expect("stats");
        // Its completion was late, and the queue continued; or, on a busy machine, so late that there is a new queue.
        let went_on = (before.late + 1, before.commands);
        let counted = (after.late, after.commands);
        assert!([went_on, (0, 0)].contains(&counted), "{before:?}, then {after:?}");
        works(&rig);
    }
}

#[test]
fn a_late_completion_disturbs_nothing() {
    for options in kernels() {
        let _alone = alone("no-green");
        let options = Options { timeout: Duration::from_millis(300), depth: 8, ..options };
        let rig = Rig::new(&[&faulty("delay(1500ms)@write:lba=17-17")], Place::Host, &options);
        let outcome = run(&rig, [write(17, 0)]);
        assert_eq!(outcome.failed, [(0, Ended::TimedOut)]);
        // Its identifier stays taken until it completes, beside other commands.
        let ended = (0..1000).find(|_| {
            std::thread::sleep(Duration::from_millis(10));
            run(&rig, [read(3, 0)]);
            rig.uring.stats().expect("stats").late >= 1
        });
        assert!(ended.is_some(), "{:?}", rig.uring.stats());
    }
}

#[test]
fn a_device_that_breaks_the_protocol_is_put_out_of_service_and_recovered() {
    for fault in ["cid", "sqid", "sqhd", "twice"] {
        for options in kernels() {
            let _alone = alone("no-green");
            let rig =
                Rig::new(&[&faulty(&format!("{fault}@write:n=11:times=1"))], Place::Host, &options);
            let outcome = meets(&rig);
            let iocbs = rig.uring.get_iocb([write(0, 0)], None).expect("a block");
            if outcome.is_success() {
                // The second of two completions came after everything else had ended, and is seen with the next.
                rig.uring.issue_io(&iocbs, 0).expect("issued");
                let next = rig.uring.wait(iocbs, LONG).expect("ended");
                assert_eq!((fault, next.failed), ("twice", vec![(0, Ended::Reset)]));
            } else {
                assert!(
                    outcome.failed.iter().all(|(_, ended)| *ended == Ended::Reset),
                    "{fault}: {outcome:?}"
                );
            }
            let again = rig.uring.get_iocb([write(0, 0)], None).expect("a block");
            let error = rig.uring.issue_io(&again, 0).expect_err("out of service");
            assert!(matches!(error, Error::OutOfService { .. }), "{fault}: {error:?}");
            assert!(error.to_string().contains("queue 1: a completion "), "{fault}: {error}");
            rig.uring.recover().expect("recovered");
            works(&rig);
        }
    }
}

#[test]
fn completions_that_are_not_seen_end_at_the_deadline() {
    for options in kernels() {
        let _alone = alone("no-green");
        let rig = Rig::new(&[&faulty("phase@write:n=11:times=1")], Place::Host, &options);
        let outcome = meets(&rig);
        assert!(!outcome.is_success());
        assert!(
            outcome
                .failed
                .iter()
                .all(|(_, ended)| matches!(ended, Ended::TimedOut | Ended::NotSent)),
            "{outcome:?}"
        );
        rig.uring.recover().expect("recovered");
        works(&rig);
    }
}

#[test]
fn a_controller_that_fails_is_reset_with_its_queues() {
    for options in kernels() {
        let _alone = alone("no-green");
        let rig = Rig::new(&[&faulty("cfs@write:n=11:times=1")], Place::Host, &options);
        let outcome = meets(&rig);
        assert!(!outcome.is_success());
        rig.uring.recover().expect("recovered");
        works(&rig);
    }
}

#[test]
fn commands_beyond_the_identifiers_are_not_sent_at_the_deadline() {
    let _alone = alone("");
    let options = Options { depth: 4, ..kernels()[0].clone() };
    let rig = Rig::new(&[&faulty("hold@write")], Place::Host, &options);
    let outcome = meets(&rig);
    let count = |ended| outcome.failed.iter().filter(|failed| failed.1 == ended).count();
    // The device has three.
    assert_eq!((count(Ended::TimedOut), count(Ended::NotSent)), (3, 37));
    rig.uring.recover().expect("recovered");
    assert!(run(&rig, [read(0, 0)]).is_success());
}

#[test]
fn a_device_that_is_gone_is_said_to_be() {
    let _alone = alone("");
    let rig = Rig::new(&[&faulty("remove@write:n=11:times=1")], Place::Host, &kernels()[0]);
    let outcome = meets(&rig);
    assert!(!outcome.is_success());
    let error = rig.uring.recover().expect_err("it is not there");
    assert!(matches!(error, Error::Driver(_)), "{error:?}");
    let iocbs = rig.uring.get_iocb([read(0, 0)], None).expect("a block");
    let error = rig.uring.issue_io(&iocbs, 0).expect_err("out of service");
    assert!(matches!(error, Error::OutOfService { .. }), "{error:?}");
}

#[test]
fn a_launch_that_fails_takes_the_rings_out_of_service_until_they_are_recovered() {
    let _alone = alone("");
    let rig = Rig::new(&["soft:mem=8M,dbbuf=off"], Place::Host, &kernels()[0]);
    let iocbs = rig.uring.get_iocb([write(0, 0)], None).expect("a block");
    adit_gpu_emulated::set("fail=cuLaunchKernel:701:1");
    let error = rig.uring.issue_io(&iocbs, 0).expect_err("refused");
    assert!(matches!(&error, Error::Cuda { call: "cuLaunchKernel", code: 701, .. }), "{error:?}");
    adit_gpu_emulated::set("");
    let others = rig.uring.get_iocb([write(0, 0)], None).expect("a block");
    let error = rig.uring.issue_io(&others, 0).expect_err("out of service");
    assert!(error.to_string().contains("cuLaunchKernel"), "{error}");
    rig.uring.recover().expect("recovered");
    assert_eq!(rig.uring.wait(iocbs, LONG).expect("ended").failed, [(0, Ended::Reset)]);
    works(&rig);
}

#[test]
fn nothing_is_mapped_for_a_device_once_the_rings_and_their_pool_are_gone() {
    for (engine, options) in [EngineChoice::Rings, EngineChoice::Staged].into_iter().zip(kernels())
    {
        let _alone = alone("no-green");
        let options = Options { engine, ..options };
        let bus = SoftBus::new(
            "mem=8M,dbbuf=off,sgl=off,faults=delay(2ms)@io:p=0.3".parse().expect("options"),
            Drive::Thread,
        );
        let bus = bus.expect("a bus");
        let controller = Controller::attach(Arc::clone(&bus) as _, &ControllerOptions::default());
        let controller = Arc::new(controller.expect("a controller"));
        let before = bus.mapped_bytes();
        let gpu = Gpu::open(0).expect("a GPU");
        let controllers = [Arc::clone(&controller)];
        let pool = Pool::allocate(&gpu, &controllers, &REGIONS, Some(Place::Host)).expect("a pool");
        let namespace = controller.namespace(controller.namespace_ids().expect("a list")[0]);
        let device = Device {
            controller: Arc::clone(&controller),
            namespace: namespace.expect("a namespace"),
        };
        let uring = GioUring::init_queue(&gpu, vec![device], pool, &options).expect("rings");
        let all = (0..500).map(|lba| read(lba * 8, lba * 8192 % REGIONS[0]));
        let iocbs = uring.get_iocb(all, None).expect("a block");
        uring.issue_io(&iocbs, 0).expect("issued");
        assert!(bus.mapped_bytes() > before);
        drop((uring, iocbs));
        assert_eq!((bus.mapped_bytes(), bus.dma_faults()), (before, 0));
    }
}
