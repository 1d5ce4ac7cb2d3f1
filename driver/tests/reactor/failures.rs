//! A lane whose device fails or forgets requests, breaks the protocol or goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use adit_driver::bus::BusEvent;
use adit_driver::reactor::{Lost, ReactorOptions, RefuseReason, Refused, Retry, Unfinished};
use adit_driver::soft::Verdict;
use adit_driver::spec::{Lba, Status};
use adit_driver::{CommandError, Completion, Event};

use crate::hand::{Hand, completion};
use crate::rig::Rig;

/// A retryable status, which DNR makes final.
const NOT_READY: Status = Status::NAMESPACE_NOT_READY;

fn hand() -> Hand {
    Hand::new("mem=16M", &ReactorOptions::default())
}

/// Gives the first `count` I/O commands `verdict` and runs the rest. Returns a counter of fetched commands.
fn first(rig: &Rig, count: usize, verdict: Verdict) -> Arc<AtomicUsize> {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    rig.hook(move |_, qid| {
        let before =
            if qid.is_admin() { usize::MAX } else { counted.fetch_add(1, Ordering::Relaxed) };
        if before < count { verdict } else { Verdict::Run }
    });
    taken
}

#[test]
fn a_request_that_fails_for_a_moment_is_tried_again_until_it_works() {
    let mut hand = hand();
    let taken = first(&hand.rig, 4, Verdict::Fail(NOT_READY));
    let started = hand.now();
    let pending = hand.client.read(Lba(3), hand.buffer(512)).expect("room");
    assert_eq!(completion(hand.finish(pending)).result, Ok(0));
    assert_eq!(taken.load(Ordering::Relaxed), 5);
    assert_eq!(hand.client.stats().retries, 4);
    // At once, then after 1, 2 and 4 ms.
    let took = hand.now().since(started);
    assert!((7..20).contains(&took.as_millis()), "{took:?}");
    hand.close();
}

#[test]
fn the_controller_says_how_long_to_wait() {
    let mut hand = Hand::new("mem=16M,crdt=300ms+2s", &ReactorOptions::default());
    first(&hand.rig, 1, Verdict::Fail(NOT_READY.with_crd(2)));
    let started = hand.now();
    let pending = hand.client.read(Lba(3), hand.buffer(512)).expect("room");
    assert_eq!(completion(hand.finish(pending)).result, Ok(0));
    let took = hand.now().since(started);
    assert!((2000..2100).contains(&took.as_millis()), "{took:?} with a CRDT2 of 2 s");
    hand.close();
}

#[test]
fn a_request_that_goes_on_failing_ends_with_its_last_error() {
    let mut hand = hand();
    let taken = first(&hand.rig, 5, Verdict::Fail(NOT_READY));
    let pending = hand.client.read(Lba(3), hand.buffer(512)).expect("room");
    let Completion { buffer, result } = completion(hand.finish(pending));
    let Err(CommandError::Status(status)) = result else { panic!("{result:?}") };
    assert!(status.is(NOT_READY), "{status}");
    assert_eq!((buffer.len(), taken.load(Ordering::Relaxed)), (512, 5));
    drop(buffer);
    hand.close();
}

#[test]
fn dnr_and_errors_of_the_request_are_not_retried() {
    for status in
        [NOT_READY.with_dnr(true), Status::COMPARE_FAILURE, Status::INVALID_FIELD_IN_COMMAND]
    {
        let mut hand = hand();
        let taken = first(&hand.rig, 1, Verdict::Fail(status));
        let pending = hand.client.read(Lba(3), hand.buffer(512)).expect("room");
        assert!(completion(hand.finish(pending)).result.is_err());
        assert_eq!(taken.load(Ordering::Relaxed), 1, "{status}");
        hand.close();
    }
}

#[test]
fn how_often_is_the_clients_and_the_requests_choice() {
    let mut hand = hand();
    let taken = first(&hand.rig, usize::MAX, Verdict::Fail(NOT_READY));
    let client = hand.client.with_retry(Retry { times: 1, ..Retry::default() });
    let pending = client.read(Lba(0), hand.buffer(512)).expect("room");
    assert!(completion(hand.finish(pending)).result.is_err());
    assert_eq!(taken.load(Ordering::Relaxed), 2);
    let command = client.namespace().read(Lba(0), hand.buffer(512));
    let pending = client.submit_with(command, Retry::NEVER).expect("room");
    assert!(completion(hand.finish(pending)).result.is_err());
    assert_eq!(taken.load(Ordering::Relaxed), 3);
    drop(client);
    hand.close();
}

#[test]
fn a_retry_goes_behind_what_was_posted_meanwhile_and_others_do_not_wait_for_it() {
    let mut hand = hand();
    first(&hand.rig, 2, Verdict::Fail(NOT_READY));
    let slow = hand.client.read(Lba(0), hand.buffer(512)).expect("room");
    hand.exchange();
    hand.exchange();
    let slow = slow.try_wait().expect_err("waits for its second retry");
    let quick = hand.client.read(Lba(1), hand.buffer(512)).expect("room");
    hand.exchange();
    assert!(completion(quick.try_wait().expect("ended")).result.is_ok());
    assert!(completion(hand.finish(slow)).result.is_ok());
    hand.close();
}

#[test]
fn a_read_that_timed_out_is_sent_again_whatever_the_caller_says() {
    let mut hand = hand();
    let taken = first(&hand.rig, 1, Verdict::Hold);
    let client = hand.client.with_retry(Retry { times: 4, repeat: false });
    let pending = client.read(Lba(0), hand.buffer(512)).expect("room");
    assert_eq!(completion(hand.finish(pending)).result, Ok(0));
    assert_eq!(taken.load(Ordering::Relaxed), 2);
    drop(client);
    hand.close();
}

#[test]
fn a_write_that_timed_out_is_sent_again_unless_the_caller_forbids_it() {
    for repeat in [true, false] {
        let mut hand = hand();
        first(&hand.rig, 1, Verdict::Hold);
        let client = hand.client.with_retry(Retry { times: 4, repeat });
        let pending = client.write(Lba(0), hand.buffer(512)).expect("room");
        let result = completion(hand.finish(pending)).result;
        match repeat {
            true => assert_eq!(result, Ok(0)),
            false => assert_eq!(result, Err(CommandError::TimedOut { may_have_written: true })),
        }
        drop(client);
        hand.close();
    }
}

#[test]
fn what_was_caught_in_a_queue_created_anew_is_sent_again() {
    let options = ReactorOptions { latencies: true, ..ReactorOptions::default() };
    let mut hand = Hand::new("mem=16M", &options);
    // It is lost, so that an abort does not find it.
    let taken = first(&hand.rig, 1, Verdict::Lose);
    let lost = hand.client.write(Lba(0), hand.buffer(512)).expect("room");
    assert_eq!(completion(hand.finish(lost)).result, Ok(0));
    assert_eq!(taken.load(Ordering::Relaxed), 2);
    hand.rig.controller.check().expect("in service all the time");
    hand.rig.bus.soft.advance(Duration::from_secs(1));
    hand.turn();
    let stats = hand.client.queue_stats();
    assert_eq!((stats.recreations, stats.retries), (1, 1));
    let latencies = stats.latencies_ns.expect("asked for");
    assert_eq!(latencies.len(), 1, "the one that completed");
    hand.close();
}

/// Sends two requests to a controller that then breaks the protocol.
fn violated(
    options: &ReactorOptions,
) -> (Hand, [adit_driver::reactor::Pending<adit_driver::Buffer>; 2]) {
    let mut hand = Hand::new("mem=16M", options);
    first(&hand.rig, 2, Verdict::Hold);
    let sent = [0, 1].map(|lba| hand.client.write(Lba(lba), hand.buffer(512)).expect("room"));
    hand.exchange();
    first(&hand.rig, 1, Verdict::Twice);
    let third = hand.client.read(Lba(2), hand.buffer(512)).expect("room");
    assert!(completion(hand.finish(third)).result.is_ok());
    (hand, sent)
}

#[test]
fn a_controller_out_of_service_ends_requests_and_refuses_new_ones_until_it_is_recovered() {
    let (mut hand, sent) = violated(&ReactorOptions::default());
    let mut spare = None;
    for pending in sent {
        let Completion { buffer, result } = completion(hand.finish(pending));
        assert_eq!(result, Err(CommandError::Reset { may_have_written: true }));
        spare = Some(buffer);
    }
    let spare = spare.expect("two came back");
    let Refused { buffer, reason } = hand.client.read(Lba(0), spare).expect_err("refused");
    assert!(matches!(&reason, RefuseReason::Failed(_)), "{reason}");
    hand.rig.clear_hook();
    hand.rig.controller.recover().expect("it comes back");
    let pending = hand.client.read(Lba(0), buffer).expect("taken again");
    assert_eq!(completion(hand.finish(pending)).result, Ok(0));
    hand.close();
}

#[test]
fn a_reactor_that_recovers_brings_the_controller_back_and_sends_everything_again() {
    let options = ReactorOptions { auto_recover: true, ..ReactorOptions::default() };
    let (mut hand, sent) = violated(&options);
    let later = hand.client.read(Lba(9), hand.buffer(512)).expect("it waits for the controller");
    for pending in sent {
        assert_eq!(completion(hand.finish(pending)).result, Ok(0));
    }
    assert_eq!(completion(hand.finish(later)).result, Ok(0));
    hand.rig.controller.check().expect("in service");
    assert!(hand.client.stats().retries >= 2);
    hand.close();
}

#[test]
fn a_controller_that_cannot_be_recovered_ends_its_requests() {
    let options = ReactorOptions { auto_recover: true, ..ReactorOptions::default() };
    let mut hand = Hand::new("mem=16M", &options);
    hand.rig.all_io(Verdict::Hold);
    let flying = hand.client.read(Lba(0), hand.buffer(512)).expect("room");
    let spare = hand.buffer(512);
    hand.exchange();
    hand.rig.bus.soft.unplug();
    let waiting = hand.client.read(Lba(1), hand.buffer(512)).expect("room");
    let ended = hand.finish(flying);
    assert!(!matches!(ended, Ok(Completion { result: Ok(_), .. })), "{ended:?}");
    let ended = hand.finish(waiting);
    assert!(!matches!(ended, Ok(Completion { result: Ok(_), .. })), "{ended:?}");
    let refused = hand.client.read(Lba(2), spare).expect_err("no hope");
    assert!(matches!(refused.reason, RefuseReason::Failed(_)), "{refused}");
}

#[test]
fn a_controller_that_cannot_be_stopped_keeps_its_buffers_and_says_so() {
    let mut hand = Hand::new("mem=16M,nssr=off", &ReactorOptions::default());
    first(&hand.rig, usize::MAX, Verdict::Lose);
    let mut sent: Vec<_> =
        (0..3u64).map(|lba| hand.client.write(Lba(lba), hand.buffer(512)).expect("room")).collect();
    hand.exchange();
    hand.rig.bus.fail_reset();
    hand.rig.bus.soft.with_controller(|controller| {
        controller.refuse_disable(true);
        controller.refuse_subsystem_reset(true);
    });
    hand.rig.bus.soft.report(BusEvent::Error);
    hand.rig.bus.soft.advance(Duration::from_secs(1));
    sent.push(hand.client.write(Lba(3), hand.buffer(512)).expect("the failure is not known yet"));
    let last = hand.finish(sent.pop().expect("the last"));
    assert!(matches!(last, Err(Unfinished::Refused(_))), "never sent: {last:?}");
    for pending in sent {
        let ended = hand.finish(pending);
        assert!(matches!(ended, Err(Unfinished::Lost(Lost::Stuck { .. }))), "{ended:?}");
    }
    assert_eq!(hand.turn().in_flight, 0, "they have ended");
}

#[test]
fn events_reach_the_clients_and_a_bus_error_takes_the_controller_out_of_service() {
    let mut hand = hand();
    assert_eq!(hand.client.take_event(), None);
    hand.rig.bus.soft.report(BusEvent::Error);
    hand.rig.bus.soft.advance(Duration::from_millis(100));
    hand.turn();
    assert_eq!(hand.client.clone().take_event(), Some(Event::Bus(BusEvent::Error)));
    assert_eq!(hand.client.take_event(), None, "each is taken once");
    assert!(hand.rig.controller.check().is_err());
    hand.close();
}
