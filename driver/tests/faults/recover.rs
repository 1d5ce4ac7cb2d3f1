//! `recover()` at different moments and after different failures, and the state of older handles afterwards.

use std::time::Duration;

use adit_driver::bus::pci::VirtualFunction;
use adit_driver::controller::Placement;
use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Lba};
use adit_driver::{Buffer, CommandError, ControllerOptions, Error, QueuePair, QueuePairOptions};

use crate::rig::{Rig, Watch};

const CSTS: u32 = 0x1c;

const KINDS: [&str; 4] =
    ["mem=16M", "mem=16M,dbbuf=off", "mem=16M,sgl=off,mdts=2", "mem=16M,cmb=1M"];

fn buffer(rig: &Rig, byte: u8) -> Buffer {
    let mut data = rig.controller.allocate(16 << 10).expect("buffer");
    data.fill(byte);
    data
}

fn write_and_read(rig: &Rig, pair: &mut QueuePair<Buffer>, data: Buffer) -> Buffer {
    let byte = data[0];
    let (mut data, _) = pair.execute(rig.namespace.write(Lba(8), data)).expect("written");
    data.fill(!byte);
    let (data, _) = pair.execute(rig.namespace.read(Lba(8), data)).expect("read");
    assert!(data.iter().all(|&found| found == byte));
    data
}

fn break_it(rig: &Rig) {
    rig.bus.soft.with_controller(|controller| controller.fail());
    assert_eq!(rig.controller.poll(rig.now()), None);
    rig.controller.check().expect_err("its poll finds CSTS.CFS");
}

#[test]
fn every_handle_goes_on_after_recovery() {
    for tail in KINDS {
        let options = ControllerOptions { cmb: tail.contains("cmb"), ..Default::default() };
        let rig = Rig::open(Watch::new(tail), &options);
        let place = || if options.cmb { Placement::Cmb } else { Placement::Host };
        let options = || QueuePairOptions { depth: 16, placement: place(), ..Default::default() };
        let mut pairs: Vec<QueuePair<Buffer>> =
            (0..3).map(|_| rig.controller.create_queue_pair(options()).expect("pair")).collect();
        let (mapped, mut data) = (rig.bus.mapped() + 2, buffer(&rig, 1));
        for turn in 2..8 {
            break_it(&rig);
            rig.controller.recover().unwrap_or_else(|error| panic!("{tail}: {error}"));
            for pair in &mut pairs {
                data = write_and_read(&rig, pair, data);
            }
            data.fill(turn);
            assert!(rig.bus.mapped() <= mapped, "{tail}: recovery maps nothing that stays");
        }
        let late = rig.pair::<Buffer>(4);
        drop((late, data, pairs));
        rig.finish();
    }
}

#[test]
fn what_was_in_flight_comes_back_once_whether_or_not_its_queue_was_polled_meanwhile() {
    for polls_meanwhile in [false, true] {
        let rig = Rig::new("mem=16M");
        let mut pair = rig.pair::<Buffer>(8);
        rig.all_io(Verdict::Lose);
        for _ in 0..3 {
            pair.submit(rig.now(), rig.namespace.write(Lba(0), buffer(&rig, 1))).expect("room");
        }
        rig.settle();
        rig.clear_hook();
        break_it(&rig);
        let mut ended = Vec::new();
        if polls_meanwhile {
            pair.poll(rig.now(), |completion| ended.push(completion.result));
            assert_eq!(ended.len(), 3);
        }
        rig.controller.recover().expect("recovered");
        pair.poll(rig.now(), |completion| ended.push(completion.result));
        assert_eq!(ended, [Err(CommandError::Reset { may_have_written: true }); 3]);
        let data = buffer(&rig, 7);
        drop(write_and_read(&rig, &mut pair, data));
        assert_eq!(pair.stats().violations(), 0);
        drop(pair);
        rig.finish();
    }
}

#[test]
fn what_is_posted_out_of_service_was_never_written() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    break_it(&rig);
    rig.controller.allocate(4096).expect_err("no memory for a controller out of service");
    rig.controller.recover().expect("recovered");
    let data = buffer(&rig, 1);
    break_it(&rig);
    pair.submit(rig.now(), rig.namespace.write(Lba(0), data)).expect("room");
    let finished = rig.drain(&mut pair);
    assert_eq!(finished[0].result, Err(CommandError::Reset { may_have_written: false }));
    drop((finished, pair));
    rig.finish();
}

#[test]
fn what_is_posted_between_recovery_and_the_next_poll_is_carried_out() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    let data = buffer(&rig, 9);
    break_it(&rig);
    rig.controller.recover().expect("recovered");
    pair.submit(rig.now(), rig.namespace.write(Lba(0), data)).expect("room");
    let finished = rig.drain(&mut pair);
    assert_eq!(finished[0].result, Ok(0));
    drop((finished, pair));
    rig.finish();
}

#[test]
fn a_device_that_was_pulled_and_put_back_recovers() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    let data = write_and_read(&rig, &mut pair, buffer(&rig, 3));
    rig.bus.lie(|_, _| u64::MAX);
    assert_eq!(rig.controller.poll(rig.now()), None);
    let error = rig.controller.recover().expect_err("gone").to_string();
    assert!(error.contains("all ones"), "{error}");
    assert!(matches!(rig.controller.check(), Err(Error::Failed { .. })));
    assert!(rig.controller.may_come_back() && !rig.controller.may_still_write());
    rig.bus.tell_the_truth();
    rig.controller.recover().expect("it is back");
    drop(write_and_read(&rig, &mut pair, data));
    drop(pair);
    rig.finish();
}

#[test]
fn a_virtual_function_that_is_taken_offline_in_use_is_told_as_such() {
    let rig = Rig::new("mem=16M");
    let physical = "0000:01:00.0".parse().expect("an address");
    rig.bus.be_virtual(VirtualFunction { physical, controller: None, number: 1 });
    rig.bus.lie(|offset, _| if offset == CSTS { 2 } else { 0 });
    assert_eq!(rig.controller.poll(rig.now()), None);
    let error = rig.controller.recover().expect_err("offline").to_string();
    assert!(error.contains("it is a virtual function that is not online"), "{error}");
    rig.bus.tell_the_truth();
    rig.controller.recover().expect("it is online again");
    rig.finish();
}

#[test]
fn a_controller_that_does_not_come_up_stays_out_of_service_until_it_does() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    let data = buffer(&rig, 3);
    break_it(&rig);
    rig.admin(AdminOpcode::IDENTIFY, Verdict::Lose);
    for _ in 0..3 {
        let error = rig.bounded(|| rig.controller.recover()).expect_err("no answer");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(matches!(rig.controller.check(), Err(Error::Failed { .. })));
        assert_eq!(pair.poll(rig.now(), |_| panic!("nothing is in flight")), 0);
    }
    rig.clear_hook();
    rig.controller.recover().expect("it answers");
    drop(write_and_read(&rig, &mut pair, data));
    drop(pair);
    rig.finish();
}

#[test]
fn a_queue_that_cannot_be_created_anew_takes_the_controller_down_again() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    let data = buffer(&rig, 3);
    break_it(&rig);
    rig.controller.recover().expect("recovered");
    rig.admin(AdminOpcode::CREATE_IO_SQ, Verdict::Fail(adit_driver::spec::Status::INTERNAL_ERROR));
    pair.poll(rig.now(), |_| panic!("nothing is in flight"));
    let error = rig.controller.check().expect_err("out of service").to_string();
    assert!(error.contains("I/O queue 1 could not be created"), "{error}");
    rig.clear_hook();
    rig.controller.recover().expect("recovered");
    drop(write_and_read(&rig, &mut pair, data));
    drop(pair);
    rig.finish();
}

#[test]
fn another_device_in_its_place_is_refused() {
    let rig = Rig::new("mem=16M");
    break_it(&rig);
    // A different MQES.
    rig.bus.lie(|offset, truth| if offset == 0 { truth ^ 0x10 } else { truth });
    let error = rig.controller.recover().expect_err("another one").to_string();
    assert!(error.contains("came back changed"), "{error}");
    rig.finish();
}

#[test]
fn a_controller_in_service_is_left_alone() {
    let rig = Rig::new("mem=16M");
    let mut pair = rig.pair::<Buffer>(8);
    rig.controller.recover().expect("nothing to do");
    drop(write_and_read(&rig, &mut pair, buffer(&rig, 3)));
    drop(pair);
    rig.finish();
}

#[test]
fn a_stuck_controller_whose_reset_works_later_gives_everything_back() {
    let rig = Rig::new("mem=16M,nssr=off");
    let mut pair = rig.pair::<Buffer>(8);
    rig.all_io(Verdict::Lose);
    pair.submit(rig.now(), rig.namespace.read(Lba(0), buffer(&rig, 0))).expect("room");
    rig.settle();
    rig.clear_hook();
    rig.bus.soft.with_controller(|controller| controller.refuse_disable(true));
    rig.bus.fail_reset();
    break_it(&rig);
    assert_eq!(pair.poll(rig.now(), |_| panic!("it may still write it")), 0);
    rig.controller.recover().expect_err("it cannot be reset");
    assert!(rig.controller.may_still_write() && !rig.controller.may_come_back());
    assert_eq!(pair.poll(rig.now(), |_| panic!("it may still write it")), 0);
    rig.bus.allow_reset();
    rig.controller.recover().expect("recovered");
    let mut ended = 0;
    pair.poll(rig.now(), |_| ended += 1);
    assert_eq!(ended, 1);
    let data = buffer(&rig, 3);
    drop(write_and_read(&rig, &mut pair, data));
    drop(pair);
    rig.finish();
}

#[test]
fn queues_dropped_out_of_service_or_after_recovery_are_free_again() {
    let rig = Rig::new("mem=16M,ioqueues=2");
    let (first, second) = (rig.pair::<Buffer>(8), rig.pair::<Buffer>(8));
    break_it(&rig);
    drop(first);
    rig.controller.recover().expect("recovered");
    // From the controller's previous life, so there is nothing to delete.
    drop(second);
    rig.controller.check().expect("in service");
    let mut pairs = [rig.pair::<Buffer>(8), rig.pair::<Buffer>(8)];
    for pair in &mut pairs {
        let data = buffer(&rig, 3);
        drop(write_and_read(&rig, pair, data));
    }
    drop(pairs);
    rig.finish();
}

#[test]
fn threads_that_recover_at_once_agree() {
    let rig = Rig::new("mem=16M");
    let pairs: Vec<_> = (0..4).map(|_| (rig.pair::<Buffer>(8), buffer(&rig, 5))).collect();
    break_it(&rig);
    std::thread::scope(|scope| {
        for (mut pair, data) in pairs {
            let rig = &rig;
            scope.spawn(move || {
                rig.controller.recover().expect("one of us does it");
                drop(write_and_read(rig, &mut pair, data));
            });
        }
    });
    assert!(rig.now().since(adit_driver::Time::ZERO) < Duration::from_secs(300));
    rig.finish();
}

#[test]
fn what_was_never_sent_survives_a_queue_that_cannot_be_created_and_ends_whole() {
    let rig = Rig::new("mem=16M,mdts=1");
    let mut pair = rig.pair::<Buffer>(16);
    let (split, later) = (buffer(&rig, 1), buffer(&rig, 2));
    break_it(&rig);
    rig.controller.recover().expect("recovered");
    pair.post(rig.now(), rig.namespace.write(Lba(0), split)).expect("room");
    rig.admin(AdminOpcode::CREATE_IO_SQ, Verdict::Fail(adit_driver::spec::Status::INTERNAL_ERROR));
    pair.poll(rig.now(), |_| panic!("not before the controller is out of service"));
    rig.controller.check().expect_err("out of service");
    rig.clear_hook();
    rig.controller.recover().expect("recovered");
    // Without a poll in between, all its commands go to the queue created last.
    let finished = rig.drain(&mut pair);
    assert_eq!((finished.len(), finished[0].result), (1, Ok(0)));
    drop(write_and_read(&rig, &mut pair, later));
    assert_eq!(pair.stats().violations(), 0);
    drop((finished, pair));
    rig.finish();
}
