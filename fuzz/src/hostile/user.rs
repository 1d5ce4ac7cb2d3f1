//! The driver's user: opens queues, sends requests, polls, queries, and keeps accounts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_driver::bus::Bus;
use adit_driver::spec::{Cns, CopyRange, DsmRange, Lba, LbaCount, Lid, Nsid};
use adit_driver::{
    Buffer, Command, Completion, Controller, Namespace, Placement, QueuePair, QueuePairOptions,
};

use super::bound;
use super::bus::HostileBus;
use crate::input::Input;

const ACTIONS_MAX: usize = 96;
const PAIRS_MAX: usize = 3;
const NAMESPACES_MAX: usize = 3;
const TIMEOUT: Duration = Duration::from_millis(500);
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);
/// Limit for draining a queue, in bounds of a single call: each way of recovery, several times.
const DRAIN_PATIENCE: u32 = 3;

/// A request's entry in the accounts. Dropping it ends the request.
#[derive(Debug)]
struct Ticket {
    number: u64,
    ended: Arc<AtomicU64>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

type Payload = (Option<Vec<Buffer>>, Ticket);
type Pair = QueuePair<Payload>;

/// A user of the driver, with its accounts.
pub(super) struct User {
    bus: Arc<HostileBus>,
    controller: Controller,
    namespaces: Vec<Namespace>,
    pairs: Vec<Pair>,
    idle: Vec<Buffer>,
    /// Tickets of requests that a queue has accepted and not returned.
    out: BTreeSet<u64>,
    issued: u64,
    ended: Arc<AtomicU64>,
    bound: Duration,
    recovers: bool,
}

impl User {
    pub(super) fn new(bus: Arc<HostileBus>, controller: Controller, recovers: bool) -> User {
        let bound = bound(controller.info().ready_timeout);
        User {
            bus,
            controller,
            namespaces: Vec::new(),
            pairs: Vec::new(),
            idle: Vec::new(),
            out: BTreeSet::new(),
            issued: 0,
            ended: Arc::default(),
            bound,
            recovers,
        }
    }

    /// Acts as the input says until it is used up.
    pub(super) fn work(&mut self) {
        self.open_namespace(1);
        self.create_pair();
        for _ in 0..ACTIONS_MAX {
            if self.bus.choose(|input| input.is_spent()) {
                break;
            }
            let action = self.choose(Input::byte);
            self.act(action % 24);
            if self.recovers && self.controller.check().is_err() && action & 0x40 != 0 {
                self.recover();
            }
        }
    }

    fn act(&mut self, action: u8) {
        match action {
            0..=7 => self.transfer(),
            8 => self.without_data(),
            9 => self.ranges(),
            10..=12 => self.poll(),
            13 => self.drain_one(),
            14 => self.events(),
            15 => self.create_pair(),
            16 => self.drop_pair(),
            17 => {
                let nsid = self.choose(|input| input.byte() % 5);
                self.open_namespace(nsid.into());
            }
            18 => self.ask(),
            19 => self.execute(),
            20 => {
                let ms = self.choose(|input| input.number(2));
                self.bus.soft.advance(Duration::from_millis(ms));
            }
            21 => self.allocate(),
            22 => self.observe(),
            _ => self.recover_or_not(),
        }
    }

    fn choose<R>(&self, f: impl FnOnce(&mut Input) -> R) -> R {
        self.bus.choose(f)
    }

    /// Runs a call that must end within the controller's bounds.
    fn bounded<R>(&mut self, what: &str, f: impl FnOnce(&mut User) -> R) -> R {
        let (bus, bound) = (Arc::clone(&self.bus), self.bound);
        bus.bounded(what, bound, || f(self))
    }

    fn open_namespace(&mut self, nsid: u32) {
        let opened = self.bounded("namespace", |user| user.controller.namespace(Nsid(nsid)));
        if let Ok(namespace) = opened {
            self.namespaces.truncate(NAMESPACES_MAX - 1);
            self.namespaces.insert(0, namespace);
        }
    }

    fn create_pair(&mut self) {
        let (depth, bits) = self.choose(|input| (input.pick(&[16, 2, 4, 64]), input.byte()));
        let options = QueuePairOptions {
            depth,
            timeout: TIMEOUT,
            abort_timeout: ABORT_TIMEOUT,
            placement: if bits & 1 == 0 { Placement::Host } else { Placement::Cmb },
            latencies: bits & 2 == 0,
            ..QueuePairOptions::default()
        };
        if self.pairs.len() < PAIRS_MAX {
            let created = self.bounded("create", |user| user.controller.create_queue_pair(options));
            self.pairs.extend(created);
        }
    }

    fn drop_pair(&mut self) {
        if let Some(index) = self.which() {
            let pair = self.pairs.remove(index);
            self.bounded("drop a queue pair", |_| drop(pair));
        }
    }

    fn which(&self) -> Option<usize> {
        let index = self.choose(Input::byte);
        usize::from(index).checked_rem(self.pairs.len())
    }

    fn allocate(&mut self) {
        const PAGES: [usize; 5] = [1, 2, 8, 3, 64];
        let (pages, odd) = self.choose(|input| (input.pick(&PAGES), input.byte()));
        let allocated = self.bounded("allocate", |user| user.controller.allocate(pages * 4096));
        let Ok(mut buffer) = allocated else { return };
        // Split the buffer into pieces, some of them at odd offsets.
        let at = usize::from(odd) * 64 % buffer.len();
        if odd & 1 == 1 && at > 0 {
            self.idle.push(buffer.split_off(at));
        }
        self.idle.push(buffer);
    }

    /// Takes a few buffers, whose total is not always whole LBAs.
    fn take_buffers(&mut self) -> Vec<Buffer> {
        if self.idle.is_empty() {
            self.allocate();
        }
        let count = self.choose(|input| usize::from(input.byte() % 4)).clamp(1, 3);
        let keep = self.idle.len().saturating_sub(count);
        self.idle.split_off(keep)
    }

    fn ticket(&mut self) -> Ticket {
        self.issued += 1;
        Ticket { number: self.issued, ended: Arc::clone(&self.ended) }
    }

    fn namespace(&self) -> Option<Namespace> {
        let index = self.choose(Input::byte);
        self.namespaces.get(usize::from(index).checked_rem(self.namespaces.len())?).cloned()
    }

    fn transfer(&mut self) {
        let (Some(index), Some(namespace)) = (self.which(), self.namespace()) else { return };
        let (kind, lba) = self.choose(|input| (input.byte(), lba(input)));
        let payload = (Some(self.take_buffers()), self.ticket());
        let command = match kind % 4 {
            0 | 1 => namespace.read(lba, payload),
            2 => namespace.write(lba, payload),
            _ => namespace.compare(lba, payload),
        };
        let command = if kind & 16 == 0 { command } else { command.fua() };
        self.submit(index, command, kind & 32 == 0);
    }

    fn without_data(&mut self) {
        let (Some(index), Some(namespace)) = (self.which(), self.namespace()) else { return };
        let (kind, lba) = self.choose(|input| (input.byte(), lba(input)));
        let count = LbaCount::from_z(u16::from(kind) * 3);
        let command = match kind % 3 {
            0 => namespace.flush(),
            1 => namespace.write_zeroes(lba, count, kind & 8 == 0),
            _ => namespace.verify(lba, count),
        };
        let ticket = self.ticket();
        self.submit(index, command.map_buffer(|()| (None, ticket)), true);
    }

    fn ranges(&mut self) {
        let (Some(index), Some(namespace)) = (self.which(), self.namespace()) else { return };
        let Some(buffer) = self.take_buffers().pop() else { return };
        let (kind, lba) = self.choose(|input| (input.byte(), lba(input)));
        let count = usize::from(kind >> 1 & 7);
        let command = match kind & 1 {
            0 => namespace.deallocate(&vec![DsmRange::new(lba, 4); count], buffer),
            _ => {
                let sources = vec![CopyRange::new(lba, LbaCount::from_z(1)); count];
                namespace.copy(Lba(32), &sources, buffer)
            }
        };
        let Ok(command) = command else { return };
        let ticket = self.ticket();
        self.submit(index, command.map_buffer(|buffer| (Some(vec![buffer]), ticket)), true);
    }

    fn submit(&mut self, index: usize, command: Command<'_, Payload>, rings: bool) {
        let (now, number) = (self.bus.now(), self.issued);
        let pair = &mut self.pairs[index];
        let taken = if rings { pair.submit(now, command) } else { pair.post(now, command) };
        match taken {
            Ok(_) => assert!(self.out.insert(number), "a ticket is used once"),
            Err(rejected) => {
                let (buffers, ticket) = rejected.buffer;
                assert_eq!(ticket.number, number, "the request itself comes back");
                self.idle.extend(buffers.into_iter().flatten());
            }
        }
    }

    fn poll(&mut self) {
        let Some(index) = self.which() else { return };
        self.bounded("poll", |user| user.poll_pair(index));
    }

    /// Polls once and records what finished.
    fn poll_pair(&mut self, index: usize) {
        let (now, out, idle) = (self.bus.now(), &mut self.out, &mut self.idle);
        let mut handed = 0;
        let counted = self.pairs[index].poll(now, |completion: Completion<Payload>| {
            let (buffers, ticket) = completion.buffer;
            assert!(out.remove(&ticket.number), "request {} ended twice", ticket.number);
            idle.extend(buffers.into_iter().flatten());
            handed += 1;
        });
        assert_eq!(counted, handed, "as many are counted as handed over");
    }

    fn drain_one(&mut self) {
        if let Some(index) = self.which() {
            self.drain(index);
        }
    }

    /// Polls until nothing is in flight, unless the controller keeps it.
    fn drain(&mut self, index: usize) {
        self.pairs[index].ring();
        let started = self.bus.now();
        while self.pairs[index].in_flight() > 0 {
            self.bounded("poll", |user| user.poll_pair(index));
            let took = self.bus.now().since(started);
            if took > self.bound * DRAIN_PATIENCE {
                let failed = self.controller.check().is_err();
                assert!(failed && self.bus.may_be_stuck(), "not drained after {took:?}");
                return;
            }
            self.controller.pause(Duration::from_millis(1));
        }
    }

    fn events(&mut self) {
        for _ in 0..8 {
            let now = self.bus.now();
            if self.bounded("events", |user| user.controller.poll(now)).is_none() {
                break;
            }
        }
    }

    fn ask(&mut self) {
        let (kind, nsid) = self.choose(|input| (input.byte(), input.edgy()));
        let (lid, nsid) = (Lid(kind >> 2), Nsid(nsid as u32));
        self.bounded("ask", |user| match kind % 4 {
            0 => drop(user.controller.namespace_ids()),
            1 => drop(user.controller.identify(Cns(kind >> 2), nsid)),
            _ => drop(user.controller.log_page(lid, nsid, 4 * (1 + u32::from(kind)))),
        });
    }

    fn execute(&mut self) {
        let (Some(index), Some(namespace)) = (self.which(), self.namespace()) else { return };
        // `execute` polls the queue, where only its own requests may end.
        self.drain(index);
        let payload = (Some(self.take_buffers()), self.ticket());
        let ended = self
            .bounded("execute", |user| user.pairs[index].execute(namespace.read(Lba(0), payload)));
        if let Ok(((buffers, _ticket), _)) = ended {
            self.idle.extend(buffers.into_iter().flatten());
        }
    }

    fn observe(&mut self) {
        for pair in &self.pairs {
            let stats = pair.stats();
            assert!(pair.in_flight() <= pair.capacity(), "no more than fits: {stats:?}");
        }
        for namespace in &self.namespaces {
            assert!(namespace.lba_bytes().is_power_of_two(), "{namespace:?}");
            std::hint::black_box((namespace.lba_count(), namespace.bytes()));
        }
        std::hint::black_box((self.controller.admin_violations(), format!("{:?}", self.pairs)));
    }

    fn recover_or_not(&mut self) {
        match self.recovers {
            true => self.recover(),
            false => drop(self.controller.check()),
        }
    }

    fn recover(&mut self) {
        let recovered = self.bounded("recover", |user| user.controller.recover());
        match recovered {
            Ok(()) => {}
            Err(error) => assert!(!error.to_string().is_empty(), "refused with a reason"),
        }
    }

    /// Releases everything in some order, and checks the accounts.
    pub(super) fn leave(mut self) {
        let order = self.choose(Input::byte);
        if order & 1 == 0 {
            (0..self.pairs.len()).for_each(|index| self.drain(index));
        }
        let User { bus, controller, namespaces, pairs, idle, issued, ended, bound, .. } = self;
        let mut last: Vec<Box<dyn FnOnce()>> = vec![
            Box::new(move || drop(controller)),
            Box::new(move || drop(pairs)),
            Box::new(move || drop(idle)),
            Box::new(move || drop(namespaces)),
        ];
        let places = last.len();
        last.rotate_left(usize::from(order >> 1) % places);
        let bound = bound * PAIRS_MAX as u32;
        last.into_iter().for_each(|step| bus.bounded("drop", bound, step));
        let ended = ended.load(Ordering::Relaxed);
        assert!(ended == issued || bus.may_be_stuck(), "{ended} of {issued} requests ended");
    }
}

/// Returns an LBA, mostly inside the namespace.
fn lba(input: &mut Input) -> Lba {
    match input.byte() {
        255 => Lba(input.edgy()),
        near => Lba(u64::from(near)),
    }
}
