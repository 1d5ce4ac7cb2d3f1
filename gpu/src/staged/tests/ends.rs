//! Blocks that end without success, and the return of all resources.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use adit_driver::bus::Bus as _;
use adit_driver::runtime::Worker as _;
use adit_driver::spec::Status;

use super::rig::{CHUNKS, Issued, LBA, Rig, TIMEOUT, pattern, read, write};
use super::stepped_gpu::BASE;
use crate::commands::outcome::{NOT_SENT, RESET, TIMED_OUT};
use crate::staged::thread::Lanes;

/// Returns the statuses of a block, after checking that the CPU and the GPU see the same.
fn statuses(rig: &Rig, issued: &Issued, count: usize) -> Vec<u32> {
    let told: Vec<u32> = (0..count).map(|n| issued.progress.status(n)).collect();
    for (n, status) in told.iter().enumerate() {
        assert_eq!(rig.gpu.word(issued.statuses + 4 * n as u64), *status, "context {n}");
    }
    told
}

#[test]
fn a_command_that_fails_once_is_sent_again() {
    for context in [read(0, 8, 0), write(0, 8, 0)] {
        let mut rig = Rig::new(",faults=status(0:82)@io:times=1");
        let issued = rig.issue(&[context], None);
        rig.finish(&issued);
        assert_eq!(statuses(&rig, &issued, 1), [0]);
        assert_eq!(rig.lane().stats().retries, 1);
    }
}

#[test]
fn a_context_ends_with_the_status_of_its_second_failure_and_the_others_succeed() {
    let not_ready = u32::from(Status::NAMESPACE_NOT_READY.bits());
    for contexts in [
        [read(0, 8, 0), read(8, 8, 4096), read(16, 8, 8192)],
        [write(0, 8, 0), write(8, 8, 4096), write(16, 8, 8192)],
    ] {
        let mut rig = Rig::new(",faults=status(0:82)@io:lba=8");
        let issued = rig.issue(&contexts, None);
        rig.finish(&issued);
        assert_eq!(statuses(&rig, &issued, 3), [0, not_ready, 0]);
        assert_eq!((issued.progress.failed(), rig.lane().stats().retries), (1, 1));
    }
}

#[test]
fn what_would_fail_again_is_not_sent_again() {
    let mut rig = Rig::new(",faults=status(2:81:dnr)@io:lba=8");
    let issued = rig.issue(&[read(8, 1, 0)], None);
    rig.finish(&issued);
    let status = u32::from(Status::UNRECOVERED_READ_ERROR.with_dnr(true).bits());
    assert_eq!(statuses(&rig, &issued, 1), [status]);
    assert_eq!(rig.lane().stats().retries, 0);
}

#[test]
fn lbas_that_do_not_exist_are_a_status_and_not_a_hang() {
    let mut rig = Rig::new("");
    let beyond = rig.namespace.lba_count();
    for context in [read(beyond, 1, 0), write(beyond, 1, 0)] {
        let issued = rig.issue(&[context, read(0, 1, 512)], None);
        rig.finish(&issued);
        let status = u32::from(Status::LBA_OUT_OF_RANGE.bits());
        assert_eq!(statuses(&rig, &issued, 2), [status, 0]);
    }
}

#[test]
fn a_deadline_ends_what_is_on_the_device_and_what_was_not_sent() {
    for is_write in [false, true] {
        let mut rig = Rig::new(",faults=mute@io:times=8");
        let context = |n: u64| if is_write { write(n, 1, n * 512) } else { read(n, 1, n * 512) };
        let contexts: Vec<_> = (0..CHUNKS as u64 + 2).map(context).collect();
        let begun = rig.bus.now();
        let issued = rig.issue(&contexts, None);
        rig.finish(&issued);
        assert!(rig.bus.now().since(begun) < TIMEOUT + Duration::from_millis(10));
        let told = statuses(&rig, &issued, contexts.len());
        assert_eq!(told[..CHUNKS], [TIMED_OUT; CHUNKS]);
        assert_eq!(told[CHUNKS..], [NOT_SENT; 2]);
        // The device returns them when they are aborted, and the lane continues.
        rig.pass(Duration::from_secs(10));
        assert_eq!(rig.lane().stats().late, CHUNKS as u64);
        let next = rig.issue(&contexts, None);
        rig.finish(&next);
        assert_eq!(next.progress.failed(), 0);
    }
}

#[test]
fn a_late_answer_does_not_reach_gpu_memory() {
    let mut rig = Rig::new(",faults=delay(1500ms)@op=2:times=1");
    rig.put_on_device(0, &pattern(1, LBA));
    let issued = rig.issue(&[read(0, 1, 0)], None);
    rig.finish(&issued);
    assert_eq!(statuses(&rig, &issued, 1), [TIMED_OUT]);
    rig.pass(Duration::from_secs(5));
    assert_eq!(rig.lane().stats().late, 1);
    assert_eq!(rig.gpu.read(BASE, LBA), vec![0; LBA]);
}

#[test]
fn a_controller_that_fails_ends_its_blocks_and_works_again_once_recovered() {
    let mut rig = Rig::new(",faults=cfs@io:n=3:times=1");
    let contexts: Vec<_> = (0..3 * CHUNKS as u64).map(|n| read(n, 1, n * 512)).collect();
    let issued = rig.issue(&contexts, None);
    rig.finish(&issued);
    let told = statuses(&rig, &issued, contexts.len());
    assert!(told.contains(&RESET) && told.iter().all(|status| [0, RESET].contains(status)));
    rig.controller.recover().expect("it comes back");
    let next = rig.issue(&contexts, None);
    rig.finish(&next);
    assert_eq!(next.progress.failed(), 0);
}

#[test]
fn a_device_that_is_gone_ends_its_blocks() {
    let mut rig = Rig::new("");
    let issued = rig.issue(&[read(0, 1, 0), write(8, 8, 4096)], None);
    rig.bus.unplug();
    rig.finish(&issued);
    assert_eq!(issued.progress.failed(), 2);
}

#[test]
fn a_block_whose_copies_the_gpu_refuses_ends_and_its_memory_stays() {
    for context in [read(0, 1, 0), write(0, 1, 0)] {
        let mut rig = Rig::new("");
        rig.gpu.refuse(true);
        let issued = rig.issue(&[context], None);
        while issued.progress.done() == 0 {
            rig.step(1);
        }
        assert_eq!(issued.progress.status(0), RESET);
        rig.gpu.refuse(false);
        let next = rig.issue(&[context], None);
        rig.finish(&next);
        assert_eq!(next.progress.failed(), 0);
        rig.lane = None;
        assert_eq!(rig.gpu.registrations(), 1, "a copy might still use it");
    }
}

#[test]
fn a_block_that_is_given_up_is_over_when_its_line_is_and_disturbs_no_second_use() {
    for refuses_all in [false, true] {
        let mut rig = Rig::new("");
        let event = rig.gpu.event();
        let contexts: Vec<_> = (0..CHUNKS as u64).map(|n| write(n, 1, n * 512)).collect();
        let first = rig.issue(&contexts[..1], Some(event));
        rig.pass(Duration::from_millis(1));
        assert_eq!(rig.lane().stats().copies, 1, "behind the event");
        let second = rig.issue(&contexts[..3], Some(event));
        match refuses_all {
            true => rig.gpu.refuse(true),
            false => rig.gpu.refuse_marks(true),
        }
        rig.pass(Duration::from_millis(1));
        rig.gpu.refuse(false);
        rig.gpu.refuse_marks(false);
        rig.pass(4 * TIMEOUT);
        assert_eq!((first.progress.done(), second.progress.done()), (0, 0), "the words are in use");
        rig.gpu.happen(event);
        while second.progress.done() == 0 {
            rig.step(1);
        }
        assert_eq!(second.progress.status(0), RESET);
        rig.finish(&first);
        let again = rig.issue_again(&second, &[write(0, 1, 0)]);
        rig.finish(&again);
        rig.pass(TIMEOUT);
        assert_eq!(rig.gpu.word(again.done), again.generation, "it does not go back");
        assert_eq!(statuses(&rig, &again, 1), [0]);
    }
}

#[test]
fn a_lane_dropped_with_a_block_that_was_given_up_tells_of_it() {
    for is_stuck in [false, true] {
        let mut rig = Rig::new("");
        let event = rig.gpu.event();
        let issued = rig.issue(&[write(0, 1, 0)], Some(event));
        rig.gpu.refuse_marks(true);
        rig.pass(Duration::from_millis(1));
        assert_eq!(issued.progress.done(), 0);
        if !is_stuck {
            rig.gpu.happen(event);
        }
        rig.lane().close();
        assert_eq!(rig.lane().has_lost(), is_stuck, "what the stream writes stays if it may");
        assert_eq!(issued.progress.done(), issued.generation);
        assert_eq!(issued.progress.status(0), RESET);
    }
}

#[test]
fn a_block_that_gets_no_line_ends_for_the_gpu_too() {
    let mut rig = Rig::new("");
    rig.gpu.refuse_lines(true);
    let issued = rig.issue(&[read(0, 1, 0), write(1, 1, 512)], None);
    assert_eq!(rig.gpu.word(issued.done), issued.generation, "a stream may wait for it");
    rig.finish(&issued);
    assert_eq!(statuses(&rig, &issued, 2), [RESET; 2]);
    rig.gpu.refuse_lines(false);
    let next = rig.issue(&[read(0, 1, 0)], None);
    rig.finish(&next);
    assert_eq!(next.progress.failed(), 0);
}

#[test]
fn a_block_that_its_thread_never_took_ends_for_the_gpu_too() {
    let mut rig = Rig::new("");
    let work = rig.work(&[read(0, 1, 0), write(1, 1, 512)], None);
    let (done, statuses) = (work.done, work.statuses);
    let (progress, generation) = (Arc::clone(&work.progress), work.generation);
    let (sender, receiver) = channel();
    sender.send(work).expect("the receiver lives");
    let lanes = vec![rig.lane.take().expect("it was not dropped")];
    let published = Arc::default();
    Lanes { lanes, work: receiver, published, keep: Arc::new(()) }.end();
    assert_eq!((progress.done(), progress.status(0)), (generation, NOT_SENT));
    assert_eq!(rig.gpu.word(statuses + 4), NOT_SENT);
    assert_eq!(rig.gpu.word(done), generation, "a stream may wait for it");
}

#[test]
fn a_lane_that_lost_all_its_chunks_ends_what_it_is_given() {
    let mut rig = Rig::new("");
    rig.gpu.refuse(true);
    for _ in 0..=CHUNKS {
        let begun = rig.bus.now();
        let issued = rig.issue(&[write(0, 1, 0)], None);
        while issued.progress.done() == 0 {
            rig.step(1);
        }
        assert!(rig.bus.now().since(begun) < TIMEOUT, "nothing waits for a chunk that never comes");
        assert_eq!(issued.progress.status(0), RESET);
    }
    rig.gpu.refuse(false);
    let issued = rig.issue(&[write(0, 1, 0)], None);
    while issued.progress.done() == 0 {
        rig.step(1);
    }
    assert_eq!(issued.progress.status(0), RESET);
}

#[test]
fn a_lane_dropped_in_flight_gives_everything_back() {
    for (steps, tail) in [(0, ""), (1, ""), (2, ""), (3, ""), (40, ""), (5, ",faults=mute@io")] {
        let mut rig = Rig::new(tail);
        let contexts: Vec<_> = (0..64)
            .map(|n| if n % 2 == 0 { read(n, 1, n * 512) } else { write(n, 1, n * 512) })
            .collect();
        rig.lane = None;
        let mapped = rig.bus.mapped_bytes();
        let mut rig = rig.with_lane();
        let issued = [rig.issue(&contexts, None), rig.issue(&contexts, None)];
        for _ in 0..steps {
            rig.step(1);
        }
        rig.lane = None;
        assert_eq!(rig.gpu.registrations(), 0, "{steps} steps");
        assert_eq!(rig.bus.mapped_bytes(), mapped, "{steps} steps");
        for block in issued {
            assert_eq!(block.progress.done(), block.generation, "its waiters are released");
        }
    }
}

#[test]
fn a_lane_dropped_beside_a_stuck_gpu_ends_and_leaves_the_memory() {
    let mut rig = Rig::new("");
    rig.gpu.stick(true);
    let issued = rig.issue(&[read(0, 1, 0), write(1, 1, 512)], None);
    for _ in 0..10 {
        rig.step(1);
    }
    rig.lane = None;
    assert_eq!(issued.progress.done(), issued.generation);
    assert_eq!(rig.gpu.registrations(), 1, "the GPU may still copy");
    // Its requests reach memory that still exists.
    rig.gpu.stick(false);
    assert!(rig.gpu.run(usize::MAX) > 0);
}
