//! Commands of a namespace that are no transfers: what their data is, and where they may go.

use std::sync::Arc;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{DsmRange, Lba, LbaCount, Nsid, Sqe};
use adit_driver::{
    Buffer, Command, Controller, ControllerOptions, QueuePair, QueuePairOptions, RejectReason, Time,
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

/// What needs no buffer belongs to a controller all the same: its namespace does.
#[test]
fn a_command_for_another_controllers_namespace_is_refused() {
    let ((_bus, controller), (_other_bus, other)) = (controller(), controller());
    let namespace = other.namespace(Nsid(1)).expect("namespace");
    let mut queue: QueuePair<Option<Buffer>> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue pair");
    let zeroes = namespace.write_zeroes(Lba(0), LbaCount::ONE, false).map_buffer(|()| None);
    let rejected = queue.post(Time::ZERO, zeroes).expect_err("it would hit the wrong medium");
    assert_eq!(rejected.reason, RejectReason::Foreign);
    let list = controller.allocate(4096).expect("memory");
    let deallocate = namespace.deallocate(&[DsmRange::new(Lba(0), 1)], list).expect("it fits");
    let rejected = queue.post(Time::ZERO, deallocate.map_buffer(Some)).expect_err("likewise");
    assert_eq!(rejected.reason, RejectReason::Foreign);
}

/// Whether PRP2 is a page or a list follows from the command's length, not from the buffer it
/// ends up with.
#[test]
#[allow(unsafe_code)]
fn a_raw_command_whose_buffer_was_exchanged_for_less_is_refused() {
    let (_bus, controller) = controller();
    let mut queue: QueuePair<Buffer> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue pair");
    let three_pages = controller.allocate(3 * 4096).expect("memory");
    let sqe = Sqe::read(Nsid(1), Lba(0), LbaCount::new(24).expect("24 LBAs"));
    // SAFETY: 24 LBAs of 512 bytes are what the buffer holds.
    let command = unsafe { Command::raw(sqe, three_pages) };
    let command = command.map_buffer(|mut pages| pages.split_off(4096));
    let rejected = queue.post(Time::ZERO, command).expect_err("two pages are not three");
    assert_eq!(rejected.reason, RejectReason::ShortBuffer { needs: 3 * 4096, has: 2 * 4096 });
}
