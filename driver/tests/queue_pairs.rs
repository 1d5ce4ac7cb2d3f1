//! Queue pairs over the software controller, one after another.

use std::sync::{Arc, Mutex};

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::soft::Verdict;
use adit_driver::spec::{Lba, Nsid, Sqe};
use adit_driver::{Buffer, Controller, ControllerOptions, QueuePair, QueuePairOptions};

fn open(target: &str) -> Controller {
    let target = target.parse().expect("a target");
    Controller::open(&target, &ControllerOptions::default()).expect("opens")
}

#[test]
fn a_queue_that_reuses_an_identifier_starts_from_nothing() {
    for target in ["soft:mem=8M,ioqueues=1", "soft:mem=8M,ioqueues=1,dbbuf=off"] {
        let controller = open(target);
        let namespace =
            controller.namespace(controller.namespace_ids().expect("listed")[0]).expect("opens");
        for round in 0..3 {
            let mut queue: QueuePair<Buffer> = controller
                .create_queue_pair(QueuePairOptions { depth: 64, ..Default::default() })
                .expect("created");
            let mut buffer = controller.allocate(4096).expect("allocated");
            // An odd number, so that the tail is not 0 at the end.
            for lba in 0..37 {
                buffer.fill(round);
                let (written, _) =
                    queue.execute(namespace.write(Lba(lba * 8), buffer)).expect("written");
                (buffer, _) = queue.execute(namespace.read(Lba(lba * 8), written)).expect("read");
                assert!(buffer.iter().all(|byte| *byte == round), "{target}, round {round}");
            }
            assert_eq!(queue.stats().violations(), 0, "{target}, round {round}");
        }
    }
}

/// Two controllers on one bus would ring each other's doorbells.
#[test]
fn a_bus_has_one_controller_at_a_time() {
    let bus = SoftBus::new("mem=1M".parse().expect("options"), Drive::Manual).expect("bus");
    let attach = || Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
    let first = attach().expect("controller");
    let error = attach().expect_err("a second one");
    assert!(error.to_string().contains("second time"), "{error}");
    assert!(first.namespace_ids().is_ok(), "the first is as it was");
    drop(first);
    attach().expect("once the first is gone");
}

/// The dwords that give a command's place and options, as the device sees them.
#[test]
fn a_command_says_all_of_its_lba_its_length_and_its_flags() {
    // 4 TiB of 512 bytes: some LBAs take more than 32 bits.
    let options = "null,size=4T".parse().expect("options");
    let bus = SoftBus::new(options, Drive::Manual).expect("bus");
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
    let controller = controller.expect("controller");
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let seen = Arc::new(Mutex::new(Vec::<Sqe>::new()));
    let hook = Arc::clone(&seen);
    let mut queue: QueuePair<Buffer> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue pair");
    bus.with_controller(|controller| {
        controller.set_hook(move |sqe, _| {
            hook.lock().expect("not poisoned").push(*sqe);
            Verdict::Run
        });
    });
    let buffer = controller.allocate(4096).expect("memory");
    let (buffer, _) = queue.execute(namespace.write(Lba(0x1_2345_6789), buffer)).expect("written");
    queue.execute(namespace.read(Lba(0x1_0000_0000), buffer).fua()).expect("read");
    let seen = seen.lock().expect("not poisoned");
    let told: Vec<[u32; 4]> = seen
        .iter()
        .map(|sqe| [sqe.cdw0.get() & 0xff, sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw12.get()])
        .collect();
    assert_eq!(told, [[1, 0x2345_6789, 1, 7], [2, 0, 1, 1 << 30 | 7]]);
}
