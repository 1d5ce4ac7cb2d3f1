//! A lane without faults: order, room, doorbells, ends.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use adit_driver::reactor::{Lane, ReactorOptions, RefuseReason, Refused, Unfinished};
use adit_driver::soft::Verdict;
use adit_driver::spec::{DsmRange, Lba, LbaCount, Nsid, Qid};
use adit_driver::{Buffer, Completion, RejectReason};

use crate::hand::{Hand, completion};
use crate::rig::Rig;

fn options(queue_depth: u32, mailbox_depth: usize) -> ReactorOptions {
    ReactorOptions { queue_depth, mailbox_depth, ..ReactorOptions::default() }
}

/// Records the LBA of each I/O command in fetch order.
fn taken(rig: &Rig) -> Arc<Mutex<Vec<u64>>> {
    let lbas = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&lbas);
    rig.hook(move |sqe, qid: Qid| {
        if !qid.is_admin() {
            let lba = u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get());
            noted.lock().expect("not poisoned").push(lba);
        }
        Verdict::Run
    });
    lbas
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_kind_of_request_comes_back_as_what_it_was_sent_as() {
    let mut hand = Hand::new("mem=16M", &ReactorOptions::default());
    let mut buffer = hand.buffer(4096);
    buffer.fill(0x5a);
    let written = hand.client.write(Lba(8), buffer).expect("room");
    let Completion { buffer, result } = completion(hand.finish(written));
    assert_eq!((result, buffer.len()), (Ok(0), 4096));
    let flushed = hand.client.flush().expect("room");
    assert_eq!(completion(hand.finish(flushed)).result, Ok(0));
    let pieces = vec![hand.buffer(512), hand.buffer(1536), hand.buffer(2048)];
    let read = hand.client.read(Lba(8), pieces).expect("room");
    let Completion { buffer: pieces, result } = completion(hand.finish(read));
    assert_eq!(result, Ok(0));
    assert_eq!(pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(), [512, 1536, 2048]);
    assert!(pieces.iter().all(|piece| piece.iter().all(|byte| *byte == 0x5a)));
    let ranges = [DsmRange::new(Lba(8), 8)];
    let deallocate = hand.client.namespace().deallocate(&ranges, buffer).expect("one range");
    let deallocated = hand.client.submit(deallocate).expect("room");
    assert_eq!(completion(hand.finish(deallocated)).result, Ok(0));
    let count = LbaCount::new(8).expect("a count");
    let zeroes = hand.client.namespace().write_zeroes(Lba(64), count, false);
    let zeroed = hand.client.submit(zeroes).expect("room");
    assert_eq!(completion(hand.finish(zeroed)).result, Ok(0));
    drop(pieces);
    hand.close();
}

#[test]
fn requests_are_posted_in_the_order_they_were_sent_with_one_doorbell() {
    let mut hand = Hand::new("mem=16M", &options(64, 64));
    let lbas = taken(&hand.rig);
    let other = hand.client.clone();
    let sent: Vec<_> = (0..20u64)
        .map(|lba| {
            let client = if lba % 3 == 0 { &other } else { &hand.client };
            client.read(Lba(lba), hand.buffer(512)).expect("room")
        })
        .collect();
    let turn = hand.turn();
    assert_eq!((turn.moved, turn.in_flight), (20, 20));
    hand.rig.settle();
    assert_eq!(hand.turn().moved, 20);
    assert_eq!(*lbas.lock().expect("not poisoned"), (0..20).collect::<Vec<_>>());
    for pending in sent {
        assert_eq!(completion(pending.try_wait().expect("ended")).result, Ok(0));
    }
    hand.rig.bus.soft.advance(Duration::from_secs(1));
    hand.turn();
    assert_eq!(hand.client.queue_stats().submission_rings, 1);
    assert_eq!(hand.client.stats().ended, 20);
    drop(other);
    hand.close();
}

#[test]
fn a_full_queue_leaves_requests_in_the_mailbox_and_a_full_mailbox_gives_them_back() {
    // One command in flight, four requests waiting; the first of them has left the mailbox.
    let mut hand = Hand::new("mem=16M", &options(2, 4));
    let lbas = taken(&hand.rig);
    let mut sent = Vec::new();
    for lba in 0..4 {
        sent.push(hand.client.read(Lba(lba), hand.buffer(512)).expect("room"));
    }
    let refused = hand.client.read(Lba(9), hand.buffer(1024)).expect_err("full");
    let Refused { buffer, reason: RefuseReason::Full } = refused else { panic!("{refused}") };
    assert_eq!(buffer.len(), 1024, "it is the buffer that was sent");
    assert_eq!(hand.turn().in_flight, 1);
    sent.push(hand.client.read(Lba(4), buffer).expect("room again"));
    for _ in 0..5 {
        hand.exchange();
    }
    for pending in sent {
        assert!(completion(pending.try_wait().expect("ended")).result.is_ok());
    }
    assert_eq!(*lbas.lock().expect("not poisoned"), [0, 1, 2, 3, 4]);
    hand.close();
}

#[test]
fn who_waits_for_room_is_woken_when_there_is() {
    let mut hand = Hand::new("mem=16M", &options(2, 1));
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let context = &mut Context::from_waker(&waker);
    let first = hand.client.read(Lba(0), hand.buffer(512)).expect("room");
    let client = hand.client.clone();
    let buffer = hand.buffer(512);
    let mut waiting = pin!(client.submit_async(client.namespace().read(Lba(1), buffer)));
    assert!(waiting.as_mut().poll(context).is_pending());
    assert!(waiting.as_mut().poll(context).is_pending());
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    hand.turn();
    assert_eq!(count.0.load(Ordering::Relaxed), 1, "room was made once");
    let Poll::Ready(Ok(second)) = waiting.as_mut().poll(context) else { panic!("room") };
    assert!(completion(hand.finish(first)).result.is_ok());
    assert!(completion(hand.finish(second)).result.is_ok());
    drop(client);
    hand.close();
}

#[test]
fn waiting_for_room_ends_in_time_and_gives_the_buffer_back() {
    let mut hand = Hand::new("mem=16M", &options(2, 1));
    let first = hand.client.read(Lba(0), hand.buffer(512)).expect("room");
    let command = hand.client.namespace().read(Lba(1), hand.buffer(1024));
    let refused = hand.client.submit_wait(command, Duration::from_millis(3)).expect_err("full");
    assert!(matches!(refused.reason, RefuseReason::Full), "{refused}");
    assert_eq!(refused.buffer.len(), 1024);
    assert!(completion(hand.finish(first)).result.is_ok());
    drop(refused);
    hand.close();
}

#[test]
fn what_no_queue_would_take_comes_back_by_its_pending() {
    let mut hand = Hand::new("mem=1M", &ReactorOptions::default());
    let beyond = hand.client.read(Lba(2047), hand.buffer(1024)).expect("room in the mailbox");
    match hand.finish(beyond) {
        Err(Unfinished::Refused(Refused { buffer, reason })) => {
            assert_eq!(buffer.len(), 1024);
            let RefuseReason::Rejected(RejectReason::OutOfRange { lba: 2047, .. }) = reason else {
                panic!("{reason}");
            };
        }
        other => panic!("{other:?}"),
    }
    let after = hand.client.read(Lba(0), hand.buffer(512)).expect("room");
    assert!(completion(hand.finish(after)).result.is_ok(), "the lane goes on");
    hand.close();
}

#[test]
fn other_namespaces_and_controllers_are_told_apart() {
    let rig = Rig::new("mem=2M,namespaces=2");
    let second = rig.controller.namespace(Nsid(2)).expect("namespace 2");
    let mut hand = Hand::over(rig, &ReactorOptions::default());
    let wrong = hand.client.submit(second.read(Lba(0), hand.buffer(512))).expect_err("refused");
    assert!(matches!(wrong.reason, RefuseReason::OtherNamespace), "{wrong}");
    let client = hand.client.with_namespace(&second).expect("of this controller");
    let right = client.submit(second.write(Lba(5), wrong.buffer)).expect("room");
    assert!(completion(hand.finish(right)).result.is_ok());
    let stranger = Rig::new("mem=1M");
    let error = hand.client.with_namespace(&stranger.namespace).expect_err("another controller's");
    assert!(error.to_string().contains("another controller"), "{error}");
    let options = ReactorOptions::default();
    assert!(Lane::attach(&hand.rig.controller, &stranger.namespace, &options).is_err());
    let foreign = stranger.controller.allocate(512).expect("memory");
    let foreign = hand.client.read(Lba(0), foreign).expect("room in the mailbox");
    let Err(Unfinished::Refused(refused)) = hand.finish(foreign) else { panic!("refused") };
    assert!(matches!(refused.reason, RefuseReason::Rejected(RejectReason::Foreign)), "{refused}");
    drop((client, second, refused));
    stranger.finish();
    hand.close();
}

#[test]
fn a_dropped_pending_leaves_its_buffer_with_the_device_until_it_is_done() {
    let mut hand = Hand::new("mem=16M", &ReactorOptions::default());
    hand.rig.all_reads(Verdict::Hold);
    let before = hand.rig.bus.mapped();
    drop(hand.client.read(Lba(0), hand.buffer(4096)).expect("room"));
    hand.exchange();
    assert_eq!(hand.rig.bus.mapped(), before + 1, "the device has it");
    assert_eq!(hand.rig.bus.soft.release_held(), 1);
    hand.turn();
    assert_eq!(hand.rig.bus.mapped(), before, "its region went with the completion");
    hand.close();
}

#[test]
fn a_dropped_pending_that_had_ended_frees_its_buffer() {
    let mut hand = Hand::new("mem=16M", &ReactorOptions::default());
    let before = hand.rig.bus.mapped();
    let pending = hand.client.read(Lba(0), hand.buffer(4096)).expect("room");
    hand.exchange();
    assert_eq!(hand.rig.bus.mapped(), before + 1);
    drop(pending);
    assert_eq!(hand.rig.bus.mapped(), before);
    hand.close();
}

#[test]
fn a_lane_that_is_dropped_ends_what_is_in_it() {
    let hand = Hand::new("mem=16M", &options(2, 8));
    hand.rig.all_reads(Verdict::Lose);
    let sent: Vec<_> =
        (0..3u64).map(|lba| hand.client.read(Lba(lba), hand.buffer(512)).expect("room")).collect();
    let Hand { rig, mut lane, client } = hand;
    lane.turn(lane.now());
    rig.settle();
    drop(lane);
    let ends: Vec<String> = sent
        .into_iter()
        .map(|pending| match pending.wait().expect_err("not carried out") {
            Unfinished::Refused(Refused { buffer, reason }) => {
                assert_eq!(buffer.len(), 512, "what was not sent comes back");
                reason.to_string()
            }
            Unfinished::Lost(lost) => lost.to_string(),
        })
        .collect();
    assert!(ends[0].contains("before the command completed"), "{ends:?}");
    assert!(ends[1..].iter().all(|end| end.contains("reactor has stopped")), "{ends:?}");
    let buffer = rig.controller.allocate(512).expect("memory");
    let refused = client.read(Lba(0), buffer).expect_err("the lane is gone");
    assert!(matches!(refused.reason, RefuseReason::Stopped), "{refused}");
    drop((refused, client));
    rig.finish();
}

#[test]
fn a_lane_is_over_when_its_last_client_and_request_are_gone() {
    let mut hand = Hand::new("mem=16M", &ReactorOptions::default());
    let pending = hand.client.read(Lba(0), hand.buffer(512)).expect("room");
    let Hand { rig, ref mut lane, client } = hand;
    let other = client.clone();
    drop(client);
    assert!(!lane.is_over(), "a client is left");
    drop(other);
    assert!(!lane.is_over(), "a request is left");
    lane.turn(rig.now());
    assert!(!lane.is_over(), "it is in flight");
    rig.settle();
    lane.turn(rig.now());
    assert!(lane.is_over());
    assert!(pending.wait().is_ok(), "its sender still gets it");
    drop(hand.lane);
    rig.finish();
}

#[test]
fn an_idle_lane_says_when_it_wants_to_be_called_again() {
    let options =
        ReactorOptions { timeout: Duration::from_millis(30), ..ReactorOptions::default() };
    let mut hand = Hand::new("mem=16M", &options);
    let now = hand.now();
    let idle = hand.turn();
    assert_eq!((idle.moved, idle.in_flight), (0, 0));
    assert_eq!(idle.next.since(now), Duration::from_millis(100), "to look at the controller");
    hand.rig.all_reads(Verdict::Hold);
    let pending = hand.client.read(Lba(0), hand.buffer(512)).expect("room");
    let busy = hand.turn();
    assert_eq!(busy.next.since(now), options.timeout, "a deadline comes first");
    hand.rig.settle();
    assert_eq!(hand.rig.bus.soft.release_held(), 1);
    assert!(completion(hand.finish::<Buffer>(pending)).result.is_ok());
    hand.close();
}

#[test]
fn impossible_options_are_refused_with_the_limit() {
    let rig = Rig::new("mem=1M");
    for depth in [0, 65537] {
        let error = Lane::attach(&rig.controller, &rig.namespace, &options(8, depth));
        let error = error.expect_err("impossible").to_string();
        assert!(error.contains("1 to 65536"), "{error}");
    }
    assert!(Lane::attach(&rig.controller, &rig.namespace, &options(1, 8)).is_err(), "CAP.MQES");
    rig.finish();
}
