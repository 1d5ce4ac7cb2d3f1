//! The controller against hand-made commands.
//!
//! [`Rig`] is an independent host: memory in a vector, submission queue entries built dword by dword, doorbells rung by
//! register write, completions read back as bytes. It uses no driver code.

mod admin;
mod data;
mod events;
mod faults;
mod fuzz;
mod io;
mod life;
mod namespaces;
mod power;
mod queues;
mod registers;
mod shadow;

use std::cell::RefCell;
use std::collections::HashMap;

use super::{Controller, DmaResult, Fault, HostMemory, Options};
use adit_shared::Time;
use adit_spec::{Iova, Status};

/// Host memory's range on the bus.
const RAM: u64 = 0x40_0000;
const RAM_BYTES: usize = 8 << 20;
const ASQ: u64 = RAM;
const ACQ: u64 = RAM + 0x1000;
const IO_SQ: u64 = RAM + 0x2000;
const IO_CQ: u64 = RAM + 0x3000;
/// First byte after the queues.
const DATA: u64 = RAM + 0x10000;
const QUEUE_ENTRIES: u32 = 64;

struct Ram(RefCell<Vec<u8>>);

impl Ram {
    fn range(&self, iova: Iova, len: usize) -> Result<std::ops::Range<usize>, Fault> {
        let start = usize::try_from(iova.0.checked_sub(RAM).ok_or(Fault)?).map_err(|_| Fault)?;
        let end = start.checked_add(len).filter(|end| *end <= RAM_BYTES).ok_or(Fault)?;
        Ok(start..end)
    }
}

impl HostMemory for Ram {
    fn read(&self, iova: Iova, into: &mut [u8]) -> DmaResult {
        into.copy_from_slice(&self.0.borrow()[self.range(iova, into.len())?]);
        Ok(())
    }

    fn write(&self, iova: Iova, from: &[u8]) -> DmaResult {
        let range = self.range(iova, from.len())?;
        self.0.borrow_mut()[range].copy_from_slice(from);
        Ok(())
    }

    fn load32(&self, iova: Iova) -> Result<u32, Fault> {
        let mut word = [0; 4];
        self.read(iova, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn store32(&self, iova: Iova, value: u32) -> DmaResult {
        self.write(iova, &value.to_le_bytes())
    }

    fn post(&self, iova: Iova, entry: &[u8; 16]) -> DmaResult {
        self.write(iova, entry)
    }
}

/// A completion, read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    dw0: u32,
    sqhd: u16,
    sqid: u16,
    cid: u16,
    status: Status,
}

#[derive(Clone, Copy, Debug)]
struct Cmd([u32; 16]);

impl Cmd {
    fn new(opcode: u8) -> Cmd {
        let mut dwords = [0; 16];
        dwords[0] = u32::from(opcode);
        Cmd(dwords)
    }

    fn with(mut self, dword: usize, value: u32) -> Cmd {
        self.0[dword] = value;
        self
    }

    fn nsid(self, nsid: u32) -> Cmd {
        self.with(1, nsid)
    }

    fn prp(self, first: u64, second: u64) -> Cmd {
        self.with(6, first as u32)
            .with(7, (first >> 32) as u32)
            .with(8, second as u32)
            .with(9, (second >> 32) as u32)
    }

    fn sgl(self, descriptor: [u8; 16]) -> Cmd {
        let (words, _) = descriptor.as_chunks();
        let [first, second] = [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])];
        self.prp(first, second).with(0, self.0[0] | 1 << 14)
    }

    fn lbas(self, first: u64, count: u32) -> Cmd {
        self.with(10, first as u32).with(11, (first >> 32) as u32).with(12, count - 1)
    }
}

fn write(first: u64, count: u32) -> Cmd {
    Cmd::new(1).nsid(1).lbas(first, count).prp(DATA, DATA + 4096)
}

fn read(first: u64, count: u32) -> Cmd {
    Cmd::new(2).nsid(1).lbas(first, count).prp(DATA, DATA + 4096)
}

fn identify(cns: u32, nsid: u32) -> Cmd {
    Cmd::new(6).nsid(nsid).with(10, cns).prp(DATA, 0)
}

fn feature(opcode: u8, cdw10: u32, cdw11: u32) -> Cmd {
    Cmd::new(opcode).with(10, cdw10).with(11, cdw11).prp(DATA, 0)
}

#[derive(Clone, Copy)]
struct Ring {
    sq: u64,
    cq: u64,
    entries: u32,
    tail: u32,
    head: u32,
    phase: bool,
}

struct Rig {
    controller: Controller,
    ram: Ram,
    rings: HashMap<u16, Ring>,
    cid: u16,
    ns: u64,
}

impl Rig {
    /// Creates an enabled controller without I/O queues.
    fn admin_only(tail: &str) -> Rig {
        let options: Options = tail.parse().expect("options");
        let controller = Controller::new(options).expect("controller");
        let ram = Ram(RefCell::new(vec![0; RAM_BYTES]));
        let mut rig = Rig { controller, ram, rings: HashMap::new(), cid: 0, ns: 0 };
        rig.enable();
        rig
    }

    /// Creates a controller with I/O queue pair 1.
    fn new(tail: &str) -> Rig {
        let mut rig = Rig::admin_only(tail);
        rig.add_queue(1, IO_SQ, IO_CQ, QUEUE_ENTRIES);
        rig
    }

    fn enable(&mut self) {
        self.poke(ASQ, &[0; 0x4000]);
        self.controller.write_register(0x24, 4, 0x003f_003f);
        self.controller.write_register(0x28, 8, ASQ);
        self.controller.write_register(0x30, 8, ACQ);
        self.controller.write_register(0x14, 4, 0x0046_0001);
        self.step();
        assert_eq!(self.csts(), 1);
        self.rings.clear();
        self.track(0, ASQ, ACQ, QUEUE_ENTRIES);
    }

    fn csts(&self) -> u64 {
        self.controller.read_register(0x1c, 4)
    }

    fn track(&mut self, qid: u16, sq: u64, cq: u64, entries: u32) {
        self.rings.insert(qid, Ring { sq, cq, entries, tail: 0, head: 0, phase: true });
    }

    fn add_queue(&mut self, qid: u16, sq: u64, cq: u64, entries: u32) {
        let size = (entries - 1) << 16 | u32::from(qid);
        let create = Cmd::new(5).with(10, size).with(11, 1).prp(cq, 0);
        assert_eq!(self.admin(create).status, Status::SUCCESS);
        let create = Cmd::new(1).with(10, size).with(11, u32::from(qid) << 16 | 1).prp(sq, 0);
        assert_eq!(self.admin(create).status, Status::SUCCESS);
        self.track(qid, sq, cq, entries);
    }

    fn step(&mut self) -> usize {
        self.ns += 1_000_000;
        self.controller.step(&self.ram, Time::from_ns(self.ns))
    }

    fn ring_doorbell(&mut self, index: u32, value: u32) {
        let offset = 0x1000 + index * (4 << self.controller.options().dstrd);
        self.controller.write_register(offset, 4, u64::from(value));
    }

    /// Puts a command into a queue without ringing; returns its CID.
    fn post(&mut self, qid: u16, command: Cmd) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        let command = command.with(0, command.0[0] & 0xffff | u32::from(self.cid) << 16);
        let ring = self.rings.get_mut(&qid).expect("queue");
        let at = ring.sq + u64::from(ring.tail) * 64;
        ring.tail = (ring.tail + 1) % ring.entries;
        let bytes: Vec<u8> = command.0.iter().flat_map(|dword| dword.to_le_bytes()).collect();
        self.poke(at, &bytes);
        self.cid
    }

    fn ring(&mut self, qid: u16) {
        let tail = self.rings[&qid].tail;
        self.ring_doorbell(u32::from(qid) * 2, tail);
    }

    fn submit(&mut self, qid: u16, command: Cmd) -> u16 {
        let cid = self.post(qid, command);
        self.ring(qid);
        cid
    }

    fn step_at(&mut self, ns: u64) -> usize {
        self.ns = ns;
        self.controller.step(&self.ram, Time::from_ns(ns))
    }

    /// Returns the next completion of a queue, if its phase marks one.
    fn peek_completion(&mut self, qid: u16) -> Option<Done> {
        let ring = self.rings[&qid];
        let bytes = self.peek(ring.cq + u64::from(ring.head) * 16, 16);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let is_new = (half(14) & 1 == 1) == ring.phase;
        is_new.then(|| Done {
            dw0: u32::from(half(0)) | u32::from(half(2)) << 16,
            sqhd: half(8),
            sqid: half(10),
            cid: half(12),
            status: Status::from_bits(half(14) >> 1).with_dnr(false),
        })
    }

    fn take_completion(&mut self, qid: u16) -> Option<Done> {
        let done = self.peek_completion(qid)?;
        let ring = self.rings.get_mut(&qid).expect("queue");
        ring.head = (ring.head + 1) % ring.entries;
        ring.phase ^= ring.head == 0;
        Some(done)
    }

    /// Takes all completions and rings the head doorbell.
    fn reap(&mut self, qid: u16) -> Vec<Done> {
        let done: Vec<Done> = std::iter::from_fn(|| self.take_completion(qid)).collect();
        let head = self.rings[&qid].head;
        self.ring_doorbell(u32::from(qid) * 2 + 1, head);
        done
    }

    /// Submits, steps, and takes the one completion.
    fn execute(&mut self, qid: u16, command: Cmd) -> Done {
        let cid = self.submit(qid, command);
        self.step();
        let done = self.reap(qid);
        assert_eq!((done.len(), done[0].cid, done[0].sqid), (1, cid, qid));
        done[0]
    }

    fn admin(&mut self, command: Cmd) -> Done {
        self.execute(0, command)
    }

    fn io(&mut self, command: Cmd) -> Status {
        self.execute(1, command).status
    }

    fn ok(&mut self, command: Cmd) {
        assert_eq!(self.io(command), Status::SUCCESS);
    }

    fn poke(&self, at: u64, bytes: &[u8]) {
        self.ram.write(Iova(at), bytes).expect("inside RAM");
    }

    fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram.read(Iova(at), &mut bytes).expect("inside RAM");
        bytes
    }

    fn peek_u32(&self, at: u64) -> u32 {
        self.ram.load32(Iova(at)).expect("inside RAM")
    }
}

/// Returns bytes that vary by position.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(31).to_le_bytes()[at % 3] ^ seed).collect()
}
