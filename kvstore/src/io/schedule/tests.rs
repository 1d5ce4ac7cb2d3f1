//! The order of a device's requests, by hand and against a model of a device.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

const MS: Duration = Duration::from_millis(1);

const LIMITS: Limits = Limits {
    depth: 6,
    queued_max: 40,
    read_bytes_max: 300,
    write_bytes_max: 100,
    write_wait_max: Duration::from_millis(10),
    background_max: 2,
    background_wait_max: Duration::from_millis(50),
};

fn at(ms: u32) -> Time {
    Time::ZERO + MS * ms
}

fn put(schedule: &mut Schedule<u32>, now: Time, class: Class, bytes: u64, name: u32) {
    schedule.push(now, class, bytes, Time::NEVER, name).expect("there is room");
}

fn put_all(schedule: &mut Schedule<u32>, class: Class, bytes: u64, names: Range<u32>) {
    for name in names {
        put(schedule, at(0), class, bytes, name);
    }
}

fn names(schedule: &mut Schedule<u32>, now: Time) -> Vec<u32> {
    std::iter::from_fn(|| schedule.pop(now)).map(|start| start.payload).collect()
}

#[test]
fn metadata_goes_first_then_reads_then_writes_then_the_background() {
    let mut schedule = Schedule::new(Limits { depth: 10, ..LIMITS });
    let classes = [Class::Background, Class::Write, Class::Read, Class::Metadata];
    for (name, class) in (0..).zip(classes) {
        put(&mut schedule, at(0), class, 10, name);
        put(&mut schedule, at(0), class, 10, name + 10);
    }
    assert_eq!(names(&mut schedule, at(0)), [3, 13, 2, 12, 1, 11, 0, 10]);
}

#[test]
fn data_leaves_two_places_to_metadata() {
    let mut schedule = Schedule::new(LIMITS);
    put_all(&mut schedule, Class::Read, 1, 0..9);
    assert_eq!(names(&mut schedule, at(0)), [0, 1, 2, 3]);
    put_all(&mut schedule, Class::Metadata, 1, 20..23);
    assert_eq!(names(&mut schedule, at(0)), [20, 21]);
    schedule.finished(Class::Read, 1);
    assert_eq!(names(&mut schedule, at(0)), [22], "before the reads that wait");
}

#[test]
fn reads_beyond_the_budget_wait_and_a_longer_one_goes_alone() {
    let mut schedule = Schedule::new(LIMITS);
    for (name, bytes) in (0..).zip([200, 100, 50, 1000]) {
        put(&mut schedule, at(0), Class::Read, bytes, name);
    }
    assert_eq!(names(&mut schedule, at(0)), [0, 1]);
    schedule.finished(Class::Read, 100);
    assert_eq!(names(&mut schedule, at(0)), [2]);
    schedule.finished(Class::Read, 200);
    assert!(names(&mut schedule, at(0)).is_empty(), "50 bytes are in flight");
    schedule.finished(Class::Read, 50);
    assert_eq!(names(&mut schedule, at(0)), [3]);
}

#[test]
fn large_writes_wait_while_reads_are_in_flight() {
    let mut schedule = Schedule::new(LIMITS);
    put(&mut schedule, at(0), Class::Read, 500, 0);
    for bytes in [60, 30, 20] {
        put(&mut schedule, at(0), Class::Write, bytes, 1);
    }
    assert_eq!(names(&mut schedule, at(0)), [0, 1, 1], "60 and 30 bytes are within the budget");
    schedule.finished(Class::Read, 500);
    assert_eq!(names(&mut schedule, at(0)), [1], "no read is there any more");
}

#[test]
fn a_write_larger_than_the_budget_goes_alone() {
    let mut schedule = Schedule::new(LIMITS);
    put(&mut schedule, at(0), Class::Read, 500, 0);
    put_all(&mut schedule, Class::Write, 1000, 1..3);
    assert_eq!(names(&mut schedule, at(0)), [0, 1]);
    schedule.finished(Class::Write, 1000);
    assert_eq!(names(&mut schedule, at(0)), [2]);
}

#[test]
fn a_write_that_has_waited_goes_before_the_next_read_but_not_before_two() {
    let mut schedule = Schedule::new(LIMITS);
    put_all(&mut schedule, Class::Write, 10, 1..4);
    put_all(&mut schedule, Class::Read, 10, 10..20);
    assert_eq!(schedule.pop(at(9)).map(|start| start.payload), Some(10));
    assert_eq!(names(&mut schedule, at(10)), [1, 11, 2]);
}

#[test]
fn what_is_overdue_comes_back_and_what_was_sent_does_not() {
    let mut schedule = Schedule::new(LIMITS);
    for (deadline, name) in [(30, 0), (20, 1), (10, 2)] {
        schedule.push(at(0), Class::Read, 1, at(deadline), name).expect("there is room");
    }
    assert_eq!(schedule.pop(at(0)).map(|start| start.payload), Some(0));
    assert_eq!((schedule.expired(at(9)), schedule.expired(at(10))), (None, Some(2)));
    assert_eq!((schedule.expired(at(99)), schedule.expired(at(99))), (Some(1), None));
    assert!(!schedule.is_idle());
    schedule.finished(Class::Read, 1);
    assert!(schedule.is_idle());
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let mut schedule = Schedule::new(Limits { queued_max: 1, ..LIMITS });
    put(&mut schedule, at(0), Class::Read, 1, 0);
    assert_eq!(schedule.push(at(0), Class::Metadata, 1, Time::NEVER, 9), Err(9));
}

#[test]
fn deadlines_of_requests_that_are_gone_do_not_pile_up() {
    let mut schedule = Schedule::new(LIMITS);
    let room = schedule.deadlines.capacity();
    for turn in 0..10_000 {
        schedule.push(at(0), Class::Read, 1, at(1000), turn).expect("there is room");
        assert_eq!(names(&mut schedule, at(0)), [turn]);
        schedule.finished(Class::Read, 1);
    }
    assert!(schedule.deadlines.len() < 100, "{} are kept", schedule.deadlines.len());
    assert_eq!(schedule.deadlines.capacity(), room, "nothing is allocated");
}

#[test]
#[should_panic(expected = "is in flight")]
fn what_was_not_started_cannot_finish() {
    let mut schedule = Schedule::new(LIMITS);
    put(&mut schedule, at(0), Class::Read, 4, 0);
    schedule.pop(at(0));
    schedule.finished(Class::Read, 5);
}

/// The model's requests are shorter.
const BYTES_END: u64 = 150;
const ALL: [Class; 4] = [Class::Read, Class::Write, Class::Metadata, Class::Background];

#[derive(Clone, Debug)]
enum Step {
    Push { class: Class, bytes: u64, deadline_ms: u32 },
    Finish(prop::sample::Index),
    Pass { ms: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = || any::<prop::sample::Index>();
    let push = (prop::sample::select(ALL.to_vec()), 1..BYTES_END, prop_oneof![Just(0), 1..60u32]);
    let step = prop_oneof![
        8 => push.prop_map(|(class, bytes, deadline_ms)| Step::Push { class, bytes, deadline_ms }),
        5 => index().prop_map(Step::Finish),
        2 => (0..20u32).prop_map(|ms| Step::Pass { ms }),
    ];
    prop::collection::vec(step, 0..300)
}

/// A device and its waiting requests.
struct Model {
    schedule: Schedule<u32>,
    now_ms: u32,
    /// Class and deadline of each waiting request, by name, in the order of arrival.
    waiting: BTreeMap<u32, (Class, u32)>,
    flying: Vec<(Class, u64)>,
    pushed: u32,
}

impl Model {
    fn new() -> Model {
        let schedule = Schedule::new(LIMITS);
        Model { schedule, now_ms: 0, waiting: BTreeMap::new(), flying: Vec::new(), pushed: 0 }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Push { class, bytes, deadline_ms } => self.push(class, bytes, deadline_ms),
            Step::Finish(at) if !self.flying.is_empty() => {
                let (class, bytes) = self.flying.swap_remove(at.index(self.flying.len()));
                self.schedule.finished(class, bytes);
            }
            Step::Pass { ms } => self.pass(ms),
            Step::Finish(_) => {}
        }
        self.send();
    }

    fn push(&mut self, class: Class, bytes: u64, deadline_ms: u32) {
        let deadline = if deadline_ms == 0 { u32::MAX } else { self.now_ms + deadline_ms };
        let name = self.pushed;
        match self.schedule.push(at(self.now_ms), class, bytes, at(deadline), name) {
            Ok(()) => {
                self.waiting.insert(name, (class, deadline));
                self.pushed += 1;
            }
            Err(_) => assert_eq!(self.waiting.len(), 40, "only a full queue refuses"),
        }
    }

    fn pass(&mut self, ms: u32) {
        self.now_ms += ms;
        let schedule = &mut self.schedule;
        let gone: Vec<u32> = std::iter::from_fn(|| schedule.expired(at(self.now_ms))).collect();
        let overdue = self.waiting.values().filter(|(.., deadline)| *deadline <= self.now_ms);
        assert_eq!(gone.len(), overdue.count());
        let gone = gone.into_iter().map(|name| self.waiting.remove(&name).expect("it waited").1);
        let deadlines: Vec<u32> = gone.collect();
        assert!(deadlines.is_sorted() && deadlines.last().is_none_or(|last| *last <= self.now_ms));
    }

    fn send(&mut self) {
        while let Some(start) = self.schedule.pop(at(self.now_ms)) {
            let of_class = |(_, (class, _)): &(&u32, &(Class, u32))| *class == start.class;
            let first = self.waiting.iter().find(of_class).map(|(name, _)| *name);
            assert_eq!(first, Some(start.payload), "the first of its class");
            let metadata = self.count(Class::Metadata);
            assert!(metadata == 0 || start.class == Class::Metadata, "never behind data");
            self.check_reads(&start);
            self.check_writes(&start);
            self.waiting.remove(&start.payload);
            self.flying.push((start.class, start.bytes));
        }
        let flying = |class| self.flying.iter().filter(|(other, _)| *other == class).count();
        assert!(self.flying.len() <= 6 && self.flying.len() - flying(Class::Metadata) <= 4);
        assert!(flying(Class::Background) <= 2);
        let room = self.flying.len() - flying(Class::Metadata) < 4 && self.flying.len() < 6;
        let room = room && self.bytes(Class::Read) <= LIMITS.read_bytes_max - BYTES_END;
        assert!(!room || self.count(Class::Read) == 0, "no read waits while there is room");
    }

    /// Returns the bytes of a class that are in flight.
    fn bytes(&self, class: Class) -> u64 {
        let of_class = self.flying.iter().filter(|(other, _)| *other == class);
        of_class.map(|(_, bytes)| bytes).sum()
    }

    fn count(&self, class: Class) -> usize {
        self.waiting.values().filter(|(other, _)| *other == class).count()
    }

    /// Checks that reads in flight are within the budget.
    fn check_reads(&self, start: &Start<u32>) {
        let bytes = self.bytes(Class::Read);
        if start.class == Class::Read {
            assert!(bytes == 0 || bytes + start.bytes <= LIMITS.read_bytes_max);
        }
    }

    /// Checks that writes in flight are within the budget while there are reads.
    fn check_writes(&self, start: &Start<u32>) {
        let of = |class| self.flying.iter().filter(move |(other, _)| *other == class);
        let reads = self.count(Class::Read) + of(Class::Read).count();
        let bytes = self.bytes(Class::Write);
        if start.class == Class::Write && reads > 0 {
            assert!(bytes == 0 || bytes + start.bytes <= LIMITS.write_bytes_max);
        }
    }
}

proptest! {
    #[test]
    fn each_request_leaves_once_in_order_and_within_the_limits(steps in steps()) {
        let mut model = Model::new();
        steps.into_iter().for_each(|step| model.step(step));
        while !model.flying.is_empty() || !model.waiting.is_empty() {
            for (class, bytes) in std::mem::take(&mut model.flying) {
                model.schedule.finished(class, bytes);
            }
            model.send();
            prop_assert!(!model.flying.is_empty() || model.waiting.is_empty(), "it goes on");
        }
        prop_assert!(model.schedule.is_idle());
    }

    /// Endless reads, metadata and writes, on a device that completes one request per millisecond, in order. Each
    /// request goes within the bound of its class plus the requests before it.
    #[test]
    fn nothing_starves_however_much_else_there_is(
        bytes in prop::collection::vec(1..300u64, 40), writes in 1..6usize
    ) {
        let mut schedule = Schedule::new(LIMITS);
        let mut flying: VecDeque<(Class, u64)> = VecDeque::new();
        let mut bytes = bytes.into_iter().cycle();
        let mut worst = [0; CLASSES];
        for now_ms in 0..3000 {
            let wanted = [(Class::Read, 6), (Class::Write, writes), (Class::Background, 2)];
            for (class, count) in wanted {
                while (schedule.waiting(class) as usize) < count {
                    put(&mut schedule, at(now_ms), class, bytes.next().expect("a cycle"), now_ms);
                }
            }
            while let Some(start) = schedule.pop(at(now_ms)) {
                let waited = &mut worst[start.class as usize];
                *waited = (now_ms - start.payload).max(*waited);
                flying.push_back((start.class, start.bytes));
            }
            let (class, bytes) = flying.pop_front().expect("something is in flight");
            schedule.finished(class, bytes);
        }
        for class in [Class::Read, Class::Write, Class::Background] {
            // All that was put may have gone.
            let waits = schedule.lists.first(class).map_or(0, |first| 3000 - first.payload);
            worst[class as usize] = waits.max(worst[class as usize]);
        }
        let ahead = (writes as u32 + 2) * LIMITS.depth;
        prop_assert!(worst[Class::Write as usize] <= 10 + ahead, "{worst:?}");
        prop_assert!(worst[Class::Background as usize] <= 50 + ahead, "{worst:?}");
        prop_assert!(worst[Class::Read as usize] <= ahead, "{worst:?}");
    }
}
