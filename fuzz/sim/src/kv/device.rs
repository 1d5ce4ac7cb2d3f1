//! A queue to a device whose commands run late, out of order and with faults, all decided by the seed.
//!
//! It refuses what the driver would refuse, but here a refusal is the store's fault. Requests longer than a command,
//! or across a boundary, are valid: the driver splits them into several commands.

use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::paths::{CommandQueue, Operation, Request};
use adit_driver::spec::Status;
use adit_driver::transfer::Unplannable;
use adit_driver::{CommandError, Completion, Error, RejectReason, Rejected, Result, Stats, Time};
use adit_kvstore::shard::LaneInfo;

use super::canary::{StoreCanary, is_metadata};
use super::faults::{Fault, Kind};
use super::frozen::Unwritten;
use super::machine::{Machine, Shared, lock};
use super::media::WriteId;
use super::pool::{gather, length, pieces, scatter};
use crate::world::violated;

/// The capabilities of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) command_bytes_max: u64,
    /// 0 for no boundary.
    pub(crate) boundary_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) deallocates: bool,
}

/// A command that the device was told of.
#[derive(Debug)]
struct Flight<T> {
    number: u64,
    request: Request<(AnyBuffer, T)>,
    /// When it is carried out, and the earliest time at which its completion is visible.
    acts: Time,
    shows: Time,
    fault: Option<Fault>,
    /// For a flush: it covers what was seen to complete before this moment.
    moment: u64,
    write: Option<WriteId>,
    result: Option<Result<u32, CommandError>>,
}

#[derive(Debug)]
pub(crate) struct SimulatedQueue<T> {
    machine: Shared,
    device: usize,
    rules: Rules,
    posted: Vec<Request<(AnyBuffer, T)>>,
    flights: Vec<Flight<T>>,
    now: Time,
    stats: Stats,
}

impl<T> SimulatedQueue<T> {
    pub(crate) fn new(machine: &Shared, device: usize, rules: Rules) -> SimulatedQueue<T> {
        SimulatedQueue {
            machine: machine.clone(),
            device,
            rules,
            posted: Vec::new(),
            flights: Vec::new(),
            now: Time::ZERO,
            stats: Stats::default(),
        }
    }

    /// Describes the device to a shard.
    pub(crate) fn info(&self) -> LaneInfo {
        let machine = self.machine.clone();
        let media = &lock(&self.machine).media[self.device];
        LaneInfo {
            device: format!("sim:{}", self.device),
            bytes: media.lbas() * media.lba_bytes() as u64,
            lba_bytes: media.lba_bytes() as u32,
            command_bytes_max: self.rules.command_bytes_max,
            boundary_bytes: self.rules.boundary_bytes,
            depth: self.rules.depth,
            deallocates: self.rules.deallocates,
            deallocate_lbas_max: u64::MAX,
            may_lack_space: false,
            protection: None,
            accepts: Box::new(move |memory| lock(&machine).accepts(memory)),
        }
    }

    /// Checks a request against the rules.
    fn refusal(&self, request: &Request<(AnyBuffer, T)>) -> Option<RejectReason> {
        let machine = lock(&self.machine);
        let media = &machine.media[self.device];
        let (lbas, lba_bytes) = (media.lbas(), media.lba_bytes() as u64);
        let bytes = length(&request.buffer.0) as u64;
        if !pieces(&request.buffer.0).all(|piece| machine.accepts(piece)) {
            return Some(RejectReason::Foreign);
        }
        let (lba, count) = match request.operation {
            Operation::Read(lba) | Operation::Write(lba) => {
                if bytes == 0 {
                    return Some(Unplannable::Empty.into());
                }
                if !bytes.is_multiple_of(lba_bytes) {
                    return Some(Unplannable::PartialLba { bytes, lba_bytes }.into());
                }
                (lba.0, bytes / lba_bytes)
            }
            Operation::Deallocate(lba, count) => (lba.0, u64::from(count)),
            Operation::Flush => return None,
        };
        if lba + count > lbas || count == 0 {
            return Some(RejectReason::OutOfRange { lba, end: lba + count, lbas });
        }
        let is_deallocation = matches!(request.operation, Operation::Deallocate(..));
        let is_short = is_deallocation && (bytes < 16 || !self.rules.deallocates);
        is_short.then_some(RejectReason::ShortBuffer { needs: 16, has: bytes })
    }

    /// Starts a command on the device.
    fn start(&mut self, machine: &mut Machine, request: Request<(AnyBuffer, T)>) {
        machine.count_command();
        let kind = kind(request.operation);
        let mut random = machine.random.fork();
        let fault = machine.faults.strike(kind, &mut random);
        if fault == Some(Fault::Lost) {
            machine.lose(self.device);
        }
        let mut takes = random.between(machine.pace.least_ns, machine.pace.most_ns);
        if fault == Some(Fault::Late) {
            takes += random.between(1_000_000, 3_000_000_000);
        }
        let acts = self.now + Duration::from_nanos(takes);
        let waits = if random.one_in(4) { random.below(takes + 1) } else { 0 };
        let shows = acts + Duration::from_nanos(waits);
        let number = machine.begin(shows);
        let moment = machine.media[self.device].moment();
        let (write, result) = (None, None);
        if let (true, Operation::Write(lba)) = (machine.freezer.is_on(), request.operation) {
            let (device, lba, data) = (self.device, lba.0, gather(&request.buffer.0));
            machine.freezer.begin(number, Unwritten { device, lba, data });
        }
        machine.freeze();
        self.flights.push(Flight { number, request, acts, shows, fault, moment, write, result });
    }

    /// Carries out what is due.
    fn act(&mut self, machine: &mut Machine) {
        self.flights.sort_by_key(|flight| flight.acts);
        let due = |flight: &&mut Flight<T>| flight.acts <= self.now && flight.result.is_none();
        for flight in self.flights.iter_mut().filter(due) {
            let (result, write) = carry_out(machine, self.device, flight);
            (flight.result, flight.write) = (Some(result), write);
            machine.freezer.end(flight.number);
        }
    }

    /// Ends everything in flight, because the device is dead or the queue is dropped. Writes may be carried out in
    /// part.
    fn end_all(&mut self, machine: &mut Machine) -> Vec<Completion<(AnyBuffer, T)>> {
        let mut ended = Vec::new();
        for flight in self.flights.drain(..) {
            machine.end(flight.number);
            let writes = matches!(flight.request.operation, Operation::Write(_));
            if writes && flight.result.is_none() {
                write_in_part(machine, self.device, &flight.request);
            }
            // Writes carried out but never seen are in the cache; later flushes cover them.
            if let Some(write) = flight.write {
                machine.media[self.device].seen(write);
            }
            let result = Err(CommandError::Reset { may_have_written: writes });
            ended.push(Completion { buffer: flight.request.buffer, result });
        }
        for request in self.posted.drain(..) {
            let result = Err(CommandError::Reset { may_have_written: false });
            ended.push(Completion { buffer: request.buffer, result });
        }
        ended
    }

    /// Takes the completions that are visible, in order.
    fn take_shown(&mut self, machine: &mut Machine) -> Vec<Completion<(AnyBuffer, T)>> {
        self.flights.sort_by_key(|flight| flight.shows);
        let is_shown = |flight: &Flight<T>| flight.shows <= self.now && flight.result.is_some();
        let (shown, rest) = self.flights.drain(..).partition::<Vec<_>, _>(is_shown);
        self.flights = rest;
        let (media, canary) = (&mut machine.media[self.device], machine.canary);
        let complete = |flight: Flight<T>| {
            let result = flight.result.expect("what is shown was carried out");
            let is_flushed = match canary {
                Some(StoreCanary::UnflushedData) => is_metadata(&gather(&flight.request.buffer.0)),
                Some(StoreCanary::UnflushedBlocks) => {
                    !is_metadata(&gather(&flight.request.buffer.0))
                }
                _ => true,
            };
            if let (Some(write), true) = (flight.write, result.is_ok() && is_flushed) {
                media.seen(write);
            }
            Completion { buffer: flight.request.buffer, result }
        };
        let numbers: Vec<u64> = shown.iter().map(|flight| flight.number).collect();
        let completions = shown.into_iter().map(complete).collect();
        numbers.into_iter().for_each(|number| machine.end(number));
        completions
    }
}

impl<T: Send + 'static> CommandQueue<(AnyBuffer, T)> for SimulatedQueue<T> {
    fn post(
        &mut self,
        now: Time,
        request: Request<(AnyBuffer, T)>,
    ) -> Result<(), Rejected<(AnyBuffer, T)>> {
        self.now = self.now.max(now);
        if self.posted.len() + self.flights.len() >= self.rules.depth as usize {
            return Err(Rejected { buffer: request.buffer, reason: RejectReason::Full });
        }
        if let Some(reason) = self.refusal(&request) {
            let operation = request.operation;
            violated(2, format_args!("device {} refuses {operation:?}: {reason}", self.device));
        }
        self.stats.submitted += 1;
        self.posted.push(request);
        Ok(())
    }

    fn post_again(
        &mut self,
        now: Time,
        request: Request<(AnyBuffer, T)>,
    ) -> Result<(), Rejected<(AnyBuffer, T)>> {
        self.post(now, request)?;
        self.stats.retries += 1;
        Ok(())
    }

    fn ring(&mut self) {
        let machine = self.machine.clone();
        let mut machine = lock(&machine);
        for request in std::mem::take(&mut self.posted) {
            if machine.is_dead(self.device) {
                self.posted.push(request);
            } else {
                self.start(&mut machine, request);
            }
        }
        self.stats.submission_rings += 1;
    }

    fn poll(&mut self, now: Time, done: impl FnMut(Completion<(AnyBuffer, T)>)) -> usize {
        self.now = self.now.max(now);
        let completions = {
            let machine = self.machine.clone();
            let mut machine = lock(&machine);
            if machine.is_dead(self.device) {
                self.end_all(&mut machine)
            } else {
                self.act(&mut machine);
                let shown = self.take_shown(&mut machine);
                if !shown.is_empty() {
                    machine.freezer.reap();
                }
                shown
            }
        };
        let count = completions.len();
        self.stats.completed += count as u64;
        completions.into_iter().for_each(done);
        count
    }

    fn check(&self) -> Result<()> {
        let device = format!("sim:{}", self.device);
        if lock(&self.machine).is_dead(self.device) {
            return Err(Error::Failed { device, reason: "it does not answer".to_owned() });
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}

impl<T> Drop for SimulatedQueue<T> {
    fn drop(&mut self) {
        let machine = self.machine.clone();
        drop(self.end_all(&mut lock(&machine)));
    }
}

fn kind(operation: Operation) -> Kind {
    match operation {
        Operation::Read(_) => Kind::Read,
        Operation::Write(_) => Kind::Write,
        Operation::Flush => Kind::Flush,
        Operation::Deallocate(..) => Kind::Deallocate,
    }
}

type Carried = (Result<u32, CommandError>, Option<WriteId>);

fn carry_out<T>(machine: &mut Machine, device: usize, flight: &mut Flight<T>) -> Carried {
    if flight.fault == Some(Fault::Busy) {
        return (Err(CommandError::Status(Status::COMMAND_INTERRUPTED)), None);
    }
    match flight.request.operation {
        Operation::Read(lba) => {
            let result = read(machine, device, lba.0, flight.fault, &mut flight.request.buffer.0);
            (result, None)
        }
        Operation::Write(lba) => write(machine, device, lba.0, flight),
        Operation::Flush if flight.fault == Some(Fault::FlushError) => {
            (Err(CommandError::Status(Status::INTERNAL_ERROR)), None)
        }
        Operation::Flush => {
            if machine.canary != Some(StoreCanary::IgnoredFlush) {
                machine.media[device].flush(flight.moment);
            }
            (Ok(0), None)
        }
        Operation::Deallocate(lba, lbas) => {
            // The range's description takes the first 16 bytes.
            scatter(&mut flight.request.buffer.0, &[0xdd; 16]);
            deallocate(machine, device, lba.0, u64::from(lbas));
            (Ok(0), None)
        }
    }
}

fn read(
    machine: &mut Machine,
    device: usize,
    lba: u64,
    fault: Option<Fault>,
    into: &mut AnyBuffer,
) -> Result<u32, CommandError> {
    let bytes = length(into);
    let random = &mut machine.random;
    let media = &mut machine.media[device];
    let lba_bytes = media.lba_bytes();
    let lbas = (bytes / lba_bytes) as u64;
    let struck = lba + random.below(lbas);
    match fault {
        Some(Fault::BadLba) => media.spoil(struck),
        Some(Fault::StoredFlip) => media.flip(struck, random.index(lba_bytes * 8)),
        _ => {}
    }
    if fault == Some(Fault::ReadError) || media.is_unreadable(lba, lbas) {
        return Err(CommandError::Status(Status::UNRECOVERED_READ_ERROR));
    }
    let from = match fault {
        Some(Fault::MisdirectedRead) => random.below(media.lbas() - lbas + 1),
        _ => lba,
    };
    let mut data = media.read(from, bytes);
    match fault {
        Some(Fault::ReadFlip) => data[random.index(bytes)] ^= 1 << random.below(8),
        Some(Fault::StaleRead | Fault::TornRead) => {
            let part = if fault == Some(Fault::TornRead) { 512 } else { lba_bytes };
            for (index, into) in data.chunks_mut(part).enumerate() {
                let at = index * part;
                let old = media.past(lba + (at / lba_bytes) as u64);
                if let (Some(old), true) = (old, random.one_in(2)) {
                    into.copy_from_slice(&old[at % lba_bytes..][..part]);
                }
            }
        }
        _ => {}
    }
    scatter(into, &data);
    Ok(0)
}

fn write<T>(machine: &mut Machine, device: usize, lba: u64, flight: &mut Flight<T>) -> Carried {
    let mut data = gather(&flight.request.buffer.0);
    let random = &mut machine.random;
    let media = &mut machine.media[device];
    let lbas = (data.len() / media.lba_bytes()) as u64;
    match flight.fault {
        Some(Fault::WriteError) => {
            write_in_part(machine, device, &flight.request);
            return (Err(CommandError::Status(Status::WRITE_FAULT)), None);
        }
        Some(Fault::LostWrite) => return (Ok(0), None),
        Some(Fault::MisdirectedWrite) => {
            media.write(random.below(media.lbas() - lbas + 1), &data);
            return (Ok(0), None);
        }
        Some(Fault::WriteFlip) => {
            let at = random.index(data.len());
            data[at] ^= 1 << random.below(8);
        }
        _ => {}
    }
    (Ok(0), Some(media.write(lba, &data)))
}

/// Writes some, all or none of a write's LBAs to the cache.
fn write_in_part<T>(machine: &mut Machine, device: usize, request: &Request<(AnyBuffer, T)>) {
    if let Operation::Write(lba) = request.operation {
        machine.write_in_part(device, lba.0, &gather(&request.buffer.0));
    }
}

/// Deallocates LBAs, which then read as before, as zeros or as anything.
fn deallocate(machine: &mut Machine, device: usize, lba: u64, lbas: u64) {
    let random = &mut machine.random;
    let media = &mut machine.media[device];
    for lba in lba..lba + lbas {
        let byte = match random.below(3) {
            0 => continue,
            1 => 0,
            _ => random.next() as u8,
        };
        let write = media.write(lba, &vec![byte; media.lba_bytes()]);
        media.seen(write);
    }
}

#[cfg(test)]
mod tests {
    use adit_driver::memory::IoBuffer;
    use adit_driver::spec::Lba;

    use super::super::faults::Faults;
    use super::super::machine::Pace;
    use super::super::media::Media;
    use super::super::pool::Pool;
    use super::*;
    use crate::random::Random;

    const RULES: Rules = Rules {
        command_bytes_max: 64 << 10,
        boundary_bytes: 128 << 10,
        depth: 4,
        deallocates: true,
    };

    fn machine(lba_bytes: usize) -> Shared {
        let media = Media::new(1 << 20, lba_bytes, true);
        let pace = Pace { least_ns: 10, most_ns: 1000 };
        let machine = Machine::new(vec![media], Faults::none(), pace, Random::new(5));
        std::sync::Arc::new(std::sync::Mutex::new(machine))
    }

    fn memory(bytes: usize, fill: u8) -> AnyBuffer {
        if bytes == 0 {
            return AnyBuffer::None;
        }
        let mut buffer = Pool::default().allocate(bytes);
        buffer.fill(fill);
        AnyBuffer::One(buffer)
    }

    /// Runs one request to its end.
    fn run(queue: &mut SimulatedQueue<u32>, operation: Operation, memory: AnyBuffer) -> AnyBuffer {
        let request = Request { operation, buffer: (memory, 7) };
        queue.post(Time::ZERO, request).expect("there is room");
        queue.ring();
        let mut memory = None;
        let next = lock(&queue.machine.clone()).next().expect("it is in flight");
        let count = queue.poll(next, |completion| {
            assert_eq!((completion.result, completion.buffer.1), (Ok(0), 7));
            memory = Some(completion.buffer.0);
        });
        assert_eq!(count, 1);
        memory.expect("it is over")
    }

    #[test]
    fn what_is_written_is_read_and_stays_once_it_is_flushed() {
        for lba_bytes in [512, 4096] {
            let machine = machine(lba_bytes);
            let mut queue = SimulatedQueue::new(&machine, 0, RULES);
            run(&mut queue, Operation::Write(Lba(8)), memory(8192, 1));
            run(&mut queue, Operation::Flush, AnyBuffer::None);
            run(&mut queue, Operation::Write(Lba(0)), memory(4096, 2));
            lock(&machine).cut_at(Some(4));
            let request =
                Request { operation: Operation::Read(Lba(0)), buffer: (memory(4096, 9), 1) };
            queue.post(Time::ZERO, request).expect("there is room");
            queue.ring();
            assert!(lock(&machine).is_off() && queue.check().is_err());
            queue.poll(Time::ZERO, |completion| {
                let reset = CommandError::Reset { may_have_written: false };
                assert_eq!(completion.result, Err(reset));
            });
            drop(queue);
            lock(&machine).restart();
            let mut queue = SimulatedQueue::new(&machine, 0, RULES);
            let read = gather(&run(&mut queue, Operation::Read(Lba(8)), memory(8192, 9)));
            assert!(read.iter().all(|byte| *byte == 1));
            let read = gather(&run(&mut queue, Operation::Read(Lba(0)), memory(4096, 9)));
            assert!(read.iter().all(|byte| matches!(byte, 0 | 2)));
        }
    }

    #[test]
    fn completions_come_late_and_out_of_order() {
        let machine = machine(4096);
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let mut queue = SimulatedQueue::new(&machine, 0, RULES);
            for tag in 0..3u32 {
                let operation = Operation::Read(Lba(u64::from(tag)));
                let request = Request { operation, buffer: (memory(4096, 0), tag) };
                queue.post(Time::ZERO, request).expect("there is room");
            }
            assert_eq!(queue.poll(Time::ZERO, |_| ()), 0, "they were not rung");
            queue.ring();
            let mut order = Vec::new();
            while order.len() < 3 {
                let next = lock(&machine).next().expect("something is in flight");
                queue.poll(next, |completion| order.push(completion.buffer.1));
            }
            orders.insert(order);
        }
        assert_eq!(orders.len(), 6);
    }

    #[test]
    fn requests_that_no_controller_takes_are_the_stores_fault() {
        let machine = machine(4096);
        let wrong = [
            (Operation::Read(Lba(256)), 4096),
            (Operation::Write(Lba(0)), 512),
            (Operation::Write(Lba(0)), 0),
            (Operation::Deallocate(Lba(250), 7), 4096),
            (Operation::Deallocate(Lba(250), 1), 8),
        ];
        let queue = SimulatedQueue::<u32>::new(&machine, 0, RULES);
        for (operation, bytes) in wrong {
            let request = Request { operation, buffer: (memory(bytes, 0), 0) };
            assert!(queue.refusal(&request).is_some(), "{operation:?}");
        }
        let foreign = memory(4096, 0);
        lock(&machine).set_foreign(foreign.segment(0).iova.0..foreign.segment(0).iova.0 + 1);
        let request = Request { operation: Operation::Read(Lba(0)), buffer: (foreign, 0) };
        assert!(queue.refusal(&request).is_some());
    }

    #[test]
    fn a_full_queue_gives_requests_back() {
        let machine = machine(4096);
        let mut queue = SimulatedQueue::new(&machine, 0, RULES);
        let request =
            |tag: u32| Request { operation: Operation::Flush, buffer: (AnyBuffer::None, tag) };
        (0..4).for_each(|tag| queue.post(Time::ZERO, request(tag)).expect("there is room"));
        assert!(queue.post(Time::ZERO, request(4)).is_err());
    }
}
