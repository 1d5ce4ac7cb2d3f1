//! Namespace commands other than transfers: their data, and where they may be posted.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::paths::{CommandQueue, Operation, QueueOptions, Request};
use adit_driver::spec::{CopyRange, DsmRange, Lba, LbaCount, Nsid, Sqe, Status};
use adit_driver::transfer::Unplannable;
use adit_driver::{
    Buffer, Command, CommandError, Completion, Controller, ControllerOptions, Device, Errno,
    OverLimit, QueuePair, QueuePairOptions, RejectReason, Time,
};

fn controller() -> (Arc<SoftBus>, Controller) {
    made_as("mem=1M")
}

fn made_as(options: &str) -> (Arc<SoftBus>, Controller) {
    let bus = SoftBus::new(options.parse().expect("options"), Drive::Manual).expect("bus");
    let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
    (bus, controller.expect("controller"))
}

/// A list that ends on its second page, in a buffer that extends into a third: PRP2 must be the second page, because
/// the controller goes by the length of the list.
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

/// A command without a buffer also belongs to a controller, through its namespace.
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

/// The command's length decides whether PRP2 is a page or a list, not the buffer it ends up with.
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

/// The controller enforces its reported limits, so a command at each limit works and one above it would fail there.
#[test]
fn commands_without_a_transfer_keep_to_the_controllers_limits() {
    let (_bus, controller) = made_as("mem=1M,wzsl=1,vsl=2,dmrl=2,dmrsl=8,dmsl=12");
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let mut queue: QueuePair<Option<Buffer>> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("queue pair");
    let mut run = |command: Command<'_, Option<Buffer>>| match queue.post(Time::ZERO, command) {
        Err(rejected) => Some(rejected.reason),
        Ok(_) => {
            queue.ring();
            let mut result = None;
            while queue.poll(controller.now(), |done| result = Some(done.result)) == 0 {
                controller.pause(Duration::from_micros(1));
            }
            result.expect("polled").expect("a command within the limits");
            None
        }
    };
    let over = |limit, what, asks, takes| {
        Some(RejectReason::OverLimit(OverLimit { what, limit, asks, takes }))
    };
    let count = |lbas| LbaCount::new(lbas).expect("a count");
    let zeroes = |lbas| namespace.write_zeroes(Lba(0), count(lbas), false).map_buffer(|()| None);
    assert_eq!(run(zeroes(16)), None);
    assert_eq!(run(zeroes(17)), over("WZSL", "bytes of one Write Zeroes", 17 * 512, 8192));
    let verify = |lbas| namespace.verify(Lba(0), count(lbas)).map_buffer(|()| None);
    assert_eq!(run(verify(32)), None);
    assert_eq!(run(verify(33)), over("VSL", "bytes of one Verify", 33 * 512, 16384));
    let mut deallocate = |lbas: &[u32]| {
        let ranges: Vec<DsmRange> = lbas.iter().map(|lbas| DsmRange::new(Lba(0), *lbas)).collect();
        let list = controller.allocate(4096).expect("memory");
        run(namespace.deallocate(&ranges, list).expect("it fits").map_buffer(Some))
    };
    assert_eq!(deallocate(&[8, 4]), None);
    assert_eq!(deallocate(&[1; 3]), over("DMRL", "ranges of one deallocation", 3, 2));
    assert_eq!(deallocate(&[9]), over("DMRSL", "LBAs of one range to deallocate", 9, 8));
    assert_eq!(deallocate(&[8, 5]), over("DMSL", "LBAs of one deallocation", 13, 12));
}

/// A device's deallocation is one run, split into the ranges that the controller accepts.
#[test]
fn a_long_deallocation_is_cut_into_ranges_that_the_controller_takes() {
    let (bus, controller) = made_as("mem=1M,dmrl=3,dmrsl=8");
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let target = "soft:mem=1M".parse().expect("target");
    let device = Device::of_namespace(controller, namespace, &target);
    assert_eq!(device.info().deallocate_lbas_max, 24);
    let timeout = Duration::from_secs(10);
    let options = QueueOptions { depth: 4, timeout, abort_timeout: timeout };
    let mut queue = device.create_queue::<Buffer>(&options, &[]).expect("queue");
    let mut run = |operation, buffer| {
        let posted = queue.post(device.now(), Request { operation, buffer });
        posted.map_err(|rejected| rejected.reason)?;
        queue.ring();
        let mut done = None;
        while queue.poll(device.now(), |completion| done = Some(completion)) == 0 {
            bus.pause(Duration::from_micros(1));
        }
        let Completion { buffer, result } = done.expect("polled");
        result.expect("within the limits");
        Ok(buffer)
    };
    let mut ones = device.allocate(24 * 512).expect("memory");
    ones.fill(1);
    let ones = run(Operation::Write(Lba(0)), ones).expect("written");
    let list = || device.allocate(4096).expect("memory");
    run(Operation::Deallocate(Lba(0), 22), list()).expect("three ranges");
    let read = run(Operation::Read(Lba(0)), ones).expect("read");
    assert!(read[..22 * 512].iter().all(|&byte| byte == 0));
    assert!(read[22 * 512..].iter().all(|&byte| byte == 1), "and no more than that");
    let refused = run(Operation::Deallocate(Lba(0), 25), list()).expect_err("a fourth range");
    assert!(
        matches!(refused, RejectReason::OverLimit(OverLimit { asks: 25, takes: 24, .. })),
        "{refused}"
    );
    let short = list().split_off(4096 - 32);
    let refused = run(Operation::Deallocate(Lba(0), 24), short).expect_err("room for two");
    assert_eq!(refused, RejectReason::ShortBuffer { needs: 48, has: 32 });
}

#[test]
fn ranges_fit_their_buffer_exactly_or_are_refused() {
    let (_bus, controller) = controller();
    let namespace = controller.namespace(Nsid(1)).expect("namespace");
    let room = |bytes: usize| controller.allocate(4096).expect("memory").split_off(4096 - bytes);
    let ranges = [DsmRange::new(Lba(0), 1); 3];
    assert!(namespace.deallocate(&ranges, room(48)).is_ok());
    let refused = namespace.deallocate(&ranges, room(32)).expect_err("two fit");
    assert_eq!(refused, Unplannable::Ranges { ranges: 3, room: 2 });
    let sources = [CopyRange::new(Lba(0), LbaCount::ONE); 3];
    assert!(namespace.copy(Lba(8), &sources, room(96)).is_ok());
    let refused = namespace.copy(Lba(8), &sources, room(64)).expect_err("two fit");
    assert_eq!(refused, Unplannable::Ranges { ranges: 3, room: 2 });
}

#[test]
fn a_failure_says_what_became_of_the_data_and_whether_the_disk_is_full() {
    let full = CommandError::System(Errno(libc::ENOSPC));
    assert_eq!(full.to_string(), "No space left on device");
    let exceeded = CommandError::Status(Status::CAPACITY_EXCEEDED);
    let other = CommandError::Status(Status::LBA_OUT_OF_RANGE);
    let late = |may_have_written| CommandError::TimedOut { may_have_written };
    let is_full = [full, exceeded, other, late(true)].map(|error| error.is_no_space());
    assert_eq!(is_full, [true, true, false, false]);
    assert!(late(true).to_string().ends_with("; data may have been written"));
    assert!(late(false).to_string().ends_with("; nothing was written"));
}
