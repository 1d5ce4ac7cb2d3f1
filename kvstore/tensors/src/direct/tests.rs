use std::collections::VecDeque;

use adit_driver::paths::{Device, DeviceOptions};
use adit_driver::{CommandError, Completion, Rejected, Stats};

use super::*;

const LBA: u64 = 4096;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A queue in simulated time: commands run one at a time, each for [`TOOK`].
struct Simulated {
    depth: usize,
    /// Commands with the times of their ends; the next field is the last end of all.
    in_flight: VecDeque<(Time, Load, Operation)>,
    busy_until: Time,
    /// Commands that never end.
    lost: Vec<(Load, Operation)>,
    loses: bool,
    /// The first LBAs of all commands, in the order in which they were posted.
    slbas: Vec<u64>,
}

const TOOK: Duration = Duration::from_secs(1);

impl CommandQueue<Load> for Simulated {
    fn post(&mut self, now: Time, request: Request<Load>) -> Result<(), Rejected<Load>> {
        let Request { operation, buffer } = request;
        if self.in_flight.len() == self.depth {
            return Err(Rejected { buffer, reason: RejectReason::Full });
        }
        let (Operation::Read(lba) | Operation::Write(lba) | Operation::Deallocate(lba, _)) =
            operation
        else {
            panic!("{operation:?}");
        };
        self.slbas.push(lba.0);
        if self.loses {
            self.lost.push((buffer, operation));
            return Ok(());
        }
        self.busy_until = self.busy_until.max(now) + TOOK;
        self.in_flight.push_back((self.busy_until, buffer, operation));
        Ok(())
    }

    fn post_again(&mut self, now: Time, request: Request<Load>) -> Result<(), Rejected<Load>> {
        self.post(now, request)
    }

    fn ring(&mut self) {}

    fn poll(&mut self, now: Time, mut done: impl FnMut(Completion<Load>)) -> usize {
        let mut count = 0;
        while self.in_flight.front().is_some_and(|(ends_at, ..)| *ends_at <= now) {
            let (_, buffer, _) = self.in_flight.pop_front().expect("it is there");
            done(Completion { buffer, result: Ok::<u32, CommandError>(0) });
            count += 1;
        }
        count
    }

    fn check(&self) -> adit_driver::Result<()> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// A core over a simulated queue with commands of 4 LBAs, and memory of 16 LBAs.
fn core(loses: bool) -> (DirectQueue<Simulated>, Buffer) {
    let target = "soft:mem=16M,lba=4096".parse().expect("a target");
    let device = Device::open(&target, &DeviceOptions::default()).expect("a drive");
    let allocate = |bytes: u64| {
        let mut memory = device.allocate(bytes as usize).expect("memory");
        drop(memory.split_off(bytes as usize));
        memory
    };
    let queue = Simulated {
        depth: 3,
        in_flight: VecDeque::new(),
        busy_until: Time::ZERO,
        lost: Vec::new(),
        loses,
        slbas: Vec::new(),
    };
    let spare = vec![allocate(LBA), allocate(LBA)];
    let core = DirectQueue::new(queue, device.info(), (3, 4 * LBA), TIMEOUT, spare);
    (core, allocate(16 * LBA))
}

/// Calls `step` after each simulated second, and at once after an answer, until it has ended. Returns the time of its
/// end.
fn pass(
    core: &mut DirectQueue<Simulated>,
    mut now: Time,
    mut step: impl FnMut(&mut DirectQueue<Simulated>, Time) -> Result<bool>,
) -> Result<Time> {
    core.expect_answers(now);
    while !step(core, now)? {
        // An answer may let the next step continue at once.
        let has_answered = core.heard_at() == now;
        now = now + if has_answered { Duration::from_nanos(1) } else { TOOK };
    }
    Ok(now)
}

#[test]
fn a_transfer_takes_as_long_as_its_commands_whatever_the_clock_says() {
    let (mut core, memory) = core(false);
    let begun = Time::from_ns(77);
    core.begin(begun, Direction::Read, Span { slba: 100, bytes: 14 * LBA }, memory);
    let ended = pass(&mut core, begun, DirectQueue::advance);
    assert!(ended.is_ok(), "{ended:?}");
    let now = begun + Duration::from_secs(10);
    let (memory, result) = core.finish(now, ended.map(drop));
    assert!(result.is_ok() && memory.is_some_and(|memory| memory.len() as u64 == 16 * LBA));
    assert_eq!(core.queue.slbas, [100, 104, 108, 112], "in the order of their LBAs");
    let Cost { commands, sequential, active, busy } = core.take_cost();
    assert_eq!((commands, sequential), (4, 3));
    assert_eq!((active, busy.as_secs()), (Duration::from_secs(10), 4));
}

#[test]
fn a_device_that_never_answers_is_given_up_after_the_time_limit() {
    let (mut core, memory) = core(true);
    let begun = Time::ZERO + TIMEOUT * 7;
    core.begin(begun, Direction::Write, Span { slba: 0, bytes: 8 * LBA }, memory);
    let mut last = begun;
    let ended = pass(&mut core, begun, |core, now| {
        last = now;
        core.advance(now)
    });
    let text = ended.as_ref().expect_err("nothing ends").to_string();
    assert_eq!(last.since(begun).as_secs(), TIMEOUT.as_secs());
    assert!(text.contains("waited 30000 ms for a command of a tensor"), "{text}");
    let (memory, result) = core.finish(last, ended.map(drop));
    assert!(memory.is_none() && result.is_err() && core.is_stuck(), "the device has the memory");
    assert!(core.has_room_behind(last).is_err(), "nothing more is sent");
}

#[test]
fn writes_left_behind_end_before_their_tensor_is_used_again() {
    let (mut core, _) = core(false);
    let tensors = [0, 1, 2].map(|layer| TensorId::pair(layer)[0]);
    let mut now = Time::ZERO;
    for (slba, tensor) in (0..).zip(tensors) {
        assert!(core.leaves_behind(tensor, LBA));
        now = pass(&mut core, now, DirectQueue::has_room_behind).expect("room");
        let fill = |memory: &mut [u8]| -> Result<()> {
            memory.fill(slba as u8);
            Ok(())
        };
        core.write_behind(tensor, Span { slba, bytes: LBA }, fill).expect("it is filled");
        assert!(!core.leaves_behind(tensor, LBA), "one for each tensor");
        now = pass(&mut core, now, DirectQueue::post_waiting).expect("it is posted");
    }
    let waited = now.since(Time::ZERO + TOOK);
    assert!(waited < TOOK / 2, "the third one waits for the memory of the first: {waited:?}");
    let settle =
        |tensor| move |core: &mut DirectQueue<Simulated>, now| core.has_settled(now, tensor);
    let first = pass(&mut core, now, settle(Some(tensors[0]))).expect("no failure");
    let all = pass(&mut core, now, settle(None)).expect("no failure");
    assert_eq!(first, now, "it has ended");
    assert!(all >= Time::ZERO + 3 * TOOK && all.since(Time::ZERO) < 4 * TOOK, "{all}");
    assert!(core.results.behind.is_empty() && core.results.spare.len() == 2);
}
