//! Commands whose data is a list of ranges, in buffers larger than the list.

use std::sync::Arc;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{DsmRange, Lba, Nsid};
use adit_driver::{
    Buffer, Controller, ControllerOptions, QueuePair, QueuePairOptions, RejectReason, Time,
};

fn controller() -> (Arc<SoftBus>, Controller) {
    let bus = SoftBus::new("mem=1M".parse().expect("options"), Drive::Manual).expect("bus");
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
    (bus, controller.expect("controller"))
}

/// A list that ends on its second page, in a buffer that reaches into a third: PRP2 must be
/// the second page, because the controller goes by the length of the list.
#[test]
fn a_list_of_ranges_is_as_long_as_its_ranges() {
    let (bus, controller) = controller();
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let mut queue: QueuePair<Buffer> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue pair");
    let mut ones = controller.allocate(256 * 512).expect("memory");
    ones.fill(1);
    let (mut ones, _) = queue.execute(namespace.write(Lba(0), ones)).expect("write");

    let ranges: Vec<DsmRange> = (0..256).map(|lba| DsmRange::new(Lba(lba), 1)).collect();
    let list = controller.allocate(16384).expect("memory").split_off(0x800);
    queue.execute(namespace.deallocate(&ranges, list).expect("it fits")).expect("deallocate");

    ones.fill(2);
    let (read, _) = queue.execute(namespace.read(Lba(0), ones)).expect("read");
    assert!(read.iter().all(|&byte| byte == 0), "all ranges were deallocated");
    assert_eq!(bus.dma_faults(), 0);
}

#[test]
fn a_list_whose_buffer_was_exchanged_for_less_is_refused() {
    let (_bus, controller) = controller();
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let mut queue: QueuePair<Buffer> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue pair");
    let list = controller.allocate(4096).expect("memory");
    let command = namespace.deallocate(&[DsmRange::new(Lba(0), 1)], list).expect("it fits");
    let command = command.map_buffer(|mut list| list.split_off(4088));
    let rejected = queue.post(Time::ZERO, command).expect_err("8 bytes are no range");
    assert_eq!(rejected.reason, RejectReason::ShortBuffer { needs: 16, has: 8 });
}
