//! Checks what rings publish to and read from the device, over several laps.

use std::sync::Arc;

use super::*;
use crate::spec::Cid;
use crate::sys::{Backing, HostMemory, SharedPages, Window};

/// Index of the shadows in their pages.
const INDEX: usize = 3;

fn memory() -> Atomics {
    let memory = HostMemory::allocate(4096, Backing::Any, &|_, _| ()).expect("memory");
    Arc::new(memory).atomics()
}

/// Returns a bell, and the page with its register at offset 0.
fn bell() -> (Bell, Window) {
    let pages = SharedPages::allocate(4096).expect("memory");
    let window = Window::map(pages.file(), 0, pages.len()).expect("mapped");
    let register = window.register32(0).expect("inside");
    (Bell::new(Doorbell::Mapped(register), None), window)
}

fn shadow(ring_always: bool) -> (Shadow, Atomics, Atomics) {
    let (doorbells, events) = (memory(), memory());
    let pages = (doorbells.clone(), events.clone());
    (Shadow { doorbells, events, index: INDEX, ring_always }, pages.0, pages.1)
}

fn shadow_value(page: &Atomics) -> u32 {
    u32::from_le(page.dwords()[INDEX].load(Ordering::Relaxed))
}

/// Returns an entry whose dwords all differ.
fn entry(number: u32) -> Sqe {
    Sqe::from_dwords(std::array::from_fn(|dword| (number << 16) | (dword as u32 + 1)))
}

fn submission(depth: u32) -> (SubmissionRing, Atomics, Window) {
    let ((bell, window), memory) = (bell(), memory());
    (SubmissionRing::new(memory.clone(), depth, bell), memory, window)
}

fn completion(depth: u32) -> (CompletionRing, Atomics, Window) {
    let ((bell, window), memory) = (bell(), memory());
    (CompletionRing::new(memory.clone(), depth, bell), memory, window)
}

/// Writes an entry as the device does: the word with the phase last.
fn complete(memory: &Atomics, index: usize, dwords: [u32; 4]) {
    let [low, high] = [0, 2].map(|at| u64::from(dwords[at]) | u64::from(dwords[at + 1]) << 32);
    memory.words()[index * CQE_WORDS].store(low.to_le(), Ordering::Relaxed);
    memory.words()[index * CQE_WORDS + 1].store(high.to_le(), Ordering::Release);
}

#[test]
fn entries_lie_where_they_were_pushed_and_the_last_of_them_are_unsent() {
    let (mut ring, memory, register) = submission(4);
    assert_eq!(ring.depth(), 4);
    for round in 0..9 {
        let pushed: Vec<Sqe> = (0..3).map(|at| entry(3 * round + at + 1)).collect();
        for (sqe, at) in pushed.iter().zip(3 * round..) {
            assert_eq!(ring.tail(), at % 4);
            ring.push(sqe.to_qwords());
            let words = &memory.words()[(at % 4) as usize * SQE_WORDS..][..SQE_WORDS];
            let words: Vec<u64> =
                words.iter().map(|word| u64::from_le(word.load(Ordering::Relaxed))).collect();
            assert_eq!(words, sqe.to_qwords());
        }
        assert!(ring.unsent() == pushed);
        assert!(ring.ring() && !ring.ring(), "the second time there is nothing");
        assert!(ring.unsent().is_empty());
        assert_eq!(register.read32(0), 3 * (round + 1) % 4);
    }
}

#[test]
fn what_was_not_rung_can_be_taken_back_and_a_new_queue_starts_from_nothing() {
    let (mut ring, _, register) = submission(8);
    (1..4).for_each(|number| ring.push(entry(number).to_qwords()));
    assert!(ring.ring() && ring.observe_head(2));
    ring.push(entry(4).to_qwords());
    ring.rewind();
    assert_eq!((ring.tail(), ring.unsent().len(), ring.ring()), (3, 0, false));
    ring.push(entry(5).to_qwords());
    ring.restart();
    assert_eq!((ring.tail(), ring.head, ring.unsent().len()), (0, 0, 0));
    ring.push(entry(6).to_qwords());
    assert!(ring.ring());
    assert_eq!(register.read32(0), 1);
}

#[test]
fn each_dword_of_a_completion_comes_back_once_in_every_lap() {
    let (mut ring, memory, register) = completion(3);
    assert_eq!(ring.depth(), 3);
    for count in 0..12u32 {
        assert!(!ring.has_news() && ring.pop().is_none(), "the last lap's is old");
        let (index, phase) = (count % 3, (count / 3 % 2) ^ 1);
        let tag = count + 1;
        let dwords = [tag << 24 | 1, tag << 24 | 2, tag << 24 | 3, phase << 16 | tag << 17 | tag];
        complete(&memory, index as usize, dwords);
        assert!(ring.has_news());
        let popped = ring.pop().expect("it is new");
        assert_eq!((popped.cqe().to_dwords(), popped.cid()), (dwords, Cid(tag as u16)));
        ring.ring();
        assert_eq!(register.read32(0), (index + 1) % 3);
    }
}

#[test]
fn a_head_that_lags_is_told_once_more_than_an_eighth_of_the_ring_was_taken() {
    let (mut ring, memory, register) = completion(16);
    ring.lag();
    let mut told = 0;
    for count in 1..100u32 {
        let phase = ((count - 1) / 16 % 2) ^ 1;
        complete(&memory, (count as usize - 1) % 16, [0, 0, 0, phase << 16]);
        assert!(ring.pop().is_some());
        let is_told = count % 3 == 0;
        assert_eq!((ring.untold(), ring.ring_if_many()), ((count - 1) % 3 + 1, is_told));
        told = if is_told { count % 16 } else { told };
        assert_eq!(register.read32(0), told);
    }
    ring.ring();
    assert_eq!((ring.untold(), register.read32(0)), (0, 99 % 16));
}

#[test]
fn a_completion_ring_starts_anew_in_its_first_phase() {
    let (mut ring, memory, _) = completion(2);
    (0..2).for_each(|index| complete(&memory, index, [0, 0, 0, 1 << 16]));
    assert!(ring.pop().is_some() && ring.pop().is_some() && ring.pop().is_none());
    complete(&memory, 0, [0; 4]);
    assert!(ring.pop().is_some(), "the second lap");
    ring.ring();
    memory.clear();
    ring.restart();
    assert!(!ring.has_news());
    assert_eq!((ring.entries.at(), ring.bell.last), (0, 0));
    complete(&memory, 0, [7, 0, 0, 1 << 16]);
    assert_eq!(ring.pop().map(Arrival::dw0), Some(7));
}

#[test]
fn a_tail_is_published_in_its_shadow_and_rung_when_it_passes_the_event() {
    let (mut ring, _, register) = submission(8);
    let (shadow, doorbells, events) = shadow(false);
    (1..3).for_each(|number| ring.push(entry(number).to_qwords()));
    ring.ring();
    ring.set_shadow(shadow);
    assert_eq!(shadow_value(&doorbells), 2, "what was rung before");
    events.dwords()[INDEX].store(3u32.to_le(), Ordering::Relaxed);
    ring.push(entry(3).to_qwords());
    ring.ring();
    assert_eq!(
        (shadow_value(&doorbells), register.read32(0)),
        (3, 2),
        "the device does not wait for it"
    );
    ring.push(entry(4).to_qwords());
    ring.ring();
    assert_eq!((shadow_value(&doorbells), register.read32(0)), (4, 4), "it passes 3");
}

#[test]
fn a_head_is_published_and_the_doorbell_rung_always_where_asked() {
    let (mut ring, memory, register) = completion(8);
    let (shadow, doorbells, events) = shadow(true);
    events.dwords()[INDEX].store(6u32.to_le(), Ordering::Relaxed);
    ring.set_shadow(shadow);
    complete(&memory, 0, [0, 0, 0, 1 << 16]);
    assert!(ring.pop().is_some());
    ring.ring();
    assert_eq!((shadow_value(&doorbells), register.read32(0)), (1, 1));
}

#[test]
fn a_cleared_shadow_has_nothing_of_the_queue_before() {
    let (shadow, doorbells, events) = shadow(false);
    for page in [&doorbells, &events] {
        page.dwords()[INDEX].store(5, Ordering::Relaxed);
    }
    shadow.clear();
    assert_eq!((shadow_value(&doorbells), shadow_value(&events)), (0, 0));
}

#[test]
fn an_event_is_passed_by_the_step_that_leaves_it_and_by_no_later_one() {
    assert!(passed(2, 2, 5), "from the event on");
    assert!(passed(4, 2, 5), "over it");
    assert!(!passed(1, 2, 5), "it was passed before");
    assert!(!passed(5, 2, 5), "not yet");
}
