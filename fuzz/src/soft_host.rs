//! The software controller fed by a hostile host: registers, queues, commands, lists, doorbells.
//!
//! The controller accesses memory only through `Ram`, which refuses addresses outside and counts: the accesses of one
//! step are limited, whatever the lists say.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::soft::{Controller, DOORBELLS_OFFSET, DmaResult, Fault, HostMemory, Verdict};
use adit_driver::spec::{Iova, Status};

use crate::input::Input;

/// Host memory on the bus: start and size.
const RAM: u64 = 0x40_0000;
const RAM_BYTES: usize = 1 << 18;
/// Admin submission and completion ring, I/O rings, and the first byte that no queue uses.
const ASQ: u64 = RAM;
const ACQ: u64 = RAM + 0x1000;
const IO_SQ: u64 = RAM + 0x2000;
const IO_CQ: u64 = RAM + 0x3000;
const DATA: u64 = RAM + 0x4000;
const ENTRIES: u16 = 16;
const ACTIONS_MAX: usize = 256;
/// Limit of accesses in one step: a burst of commands, each with the longest possible list.
const ACCESSES_MAX: u64 = 64 << 17;

/// Host memory, and its number of accesses.
struct Ram {
    bytes: RefCell<Vec<u8>>,
    accesses: Cell<u64>,
}

impl Ram {
    fn range(&self, iova: Iova, len: usize) -> Result<Range<usize>, Fault> {
        self.accesses.set(self.accesses.get() + 1);
        let start = usize::try_from(iova.0.checked_sub(RAM).ok_or(Fault)?).map_err(|_| Fault)?;
        let end = start.checked_add(len).filter(|end| *end <= RAM_BYTES).ok_or(Fault)?;
        Ok(start..end)
    }

    /// Writes as the host, cut off where its memory ends.
    fn poke(&self, at: u64, bytes: &[u8]) {
        let start = ((at.wrapping_sub(RAM)) as usize) % RAM_BYTES;
        let end = (start + bytes.len()).min(RAM_BYTES);
        self.bytes.borrow_mut()[start..end].copy_from_slice(&bytes[..end - start]);
    }
}

impl HostMemory for Ram {
    fn read(&self, iova: Iova, into: &mut [u8]) -> DmaResult {
        into.copy_from_slice(&self.bytes.borrow()[self.range(iova, into.len())?]);
        Ok(())
    }

    fn write(&self, iova: Iova, from: &[u8]) -> DmaResult {
        let range = self.range(iova, from.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(from);
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

/// The host: memory, the controller under attack, and its ring tails.
struct Host {
    ram: Ram,
    controller: Controller,
    tails: [u16; 2],
    now: Time,
    cid: u16,
}

/// Runs one input.
pub fn target(data: &[u8]) {
    let input = &mut Input::new(data);
    let options = input.pick(&[
        "mem=256k,namespaces=3,cmb=16k,mdts=4,ioqueues=4",
        "mem=64k,lba=4096,sgl=dword,ioqueues=2,mqes=8",
        "null,sgl=off,dbbuf=off,dstrd=2,mdts=0",
        "mem=128k,lba=512+4096,noiob=8,ioqueues=1024",
    ]);
    let controller = Controller::new(options.parse().expect("options")).expect("controller");
    let ram = Ram { bytes: RefCell::new(vec![0; RAM_BYTES]), accesses: Cell::new(0) };
    let mut host = Host { ram, controller, tails: [0; 2], now: Time::ZERO, cid: 0 };
    if input.byte() & 7 != 7 {
        host.set_up();
    }
    for _ in 0..ACTIONS_MAX {
        if input.is_spent() {
            break;
        }
        host.act(input);
        host.step();
    }
    host.controller.reset();
    host.step();
}

impl Host {
    /// Enables the controller and creates one I/O queue pair, as a correct host does.
    fn set_up(&mut self) {
        for (offset, width, value) in
            [(0x24, 4, 0x000f_000f), (0x28, 8, ASQ), (0x30, 8, ACQ), (0x14, 4, 0x0046_0001)]
        {
            self.controller.write_register(offset, width, value);
        }
        self.step();
        let size = u32::from(ENTRIES - 1) << 16;
        let rings = [(5, IO_CQ, 1), (1, IO_SQ, 1 << 16 | 1)];
        for (opcode, ring, cdw11) in rings {
            let mut words = [0; 16];
            (words[0], words[6], words[10], words[11]) = (opcode, ring as u32, size | 1, cdw11);
            self.submit(0, words);
            self.step();
        }
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_micros(100);
        self.ram.accesses.set(0);
        self.controller.step(&self.ram, self.now);
        assert!(self.ram.accesses.get() <= ACCESSES_MAX, "work in one step is bounded");
    }

    /// Writes a command to a ring and rings its doorbell.
    fn submit(&mut self, queue: usize, mut words: [u32; 16]) {
        words[0] = words[0] & 0xffff | u32::from(self.cid) << 16;
        self.cid = self.cid.wrapping_add(1);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let ring = [ASQ, IO_SQ][queue];
        self.ram.poke(ring + 64 * u64::from(self.tails[queue]), &bytes);
        self.tails[queue] = (self.tails[queue] + 1) % ENTRIES;
        self.ring(queue as u32 * 2, self.tails[queue].into());
    }

    fn ring(&mut self, index: u32, value: u32) {
        let stride = 4 << self.controller.options().dstrd;
        self.controller.write_register(DOORBELLS_OFFSET + index * stride, 4, value.into());
    }

    fn act(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0..=6 => {
                let (queue, words) = command(input);
                self.submit(queue, words);
            }
            7 => self.ring(u32::from(input.byte() % 16), input.edgy() as u32),
            8 => {
                let (at, value) = (address(input), input.number(8));
                self.ram.poke(at, &value.to_le_bytes());
            }
            9 => self.descriptors(input),
            10 => self.register(input),
            11 => self.hook(input),
            12 => drop(self.controller.release_held(&self.ram)),
            13 => self.event(input),
            14 => self.controller.poll_shadow(input.byte() & 1 == 0),
            // Take all completions, so that the controller may continue.
            _ => {
                (0..2).for_each(|queue| self.ring(queue * 2 + 1, self.tails[queue as usize].into()))
            }
        }
    }

    fn register(&mut self, input: &mut Input) {
        let known = [0x0c, 0x10, 0x14, 0x14, 0x1c, 0x20, 0x24, 0x28, 0x30, 0x38, 0x3c, 0x50, 0x58];
        let offset = if input.byte() & 3 == 0 { input.edgy() as u32 } else { input.pick(&known) };
        let width = input.pick(&[4, 8]);
        self.controller.write_register(offset, width, input.edgy());
        std::hint::black_box(self.controller.read_register(offset, width));
    }

    /// Writes a few SGL descriptors or PRP entries where commands look for lists.
    fn descriptors(&mut self, input: &mut Input) {
        let at = address(input);
        for index in 0..u64::from(input.byte() % 16) {
            let (target, len, kind) = (address(input), input.edgy(), input.byte());
            let high = len & 0xffff_ffff | u64::from(kind & 0xf3) << 56;
            self.ram.poke(at.wrapping_add(index * 16), &target.to_le_bytes());
            self.ram.poke(at.wrapping_add(index * 16 + 8), &high.to_le_bytes());
        }
    }

    fn hook(&mut self, input: &mut Input) {
        let verdict = match input.byte() % 5 {
            0 => Verdict::Hold,
            1 => Verdict::Lose,
            2 => Verdict::Twice,
            3 => Verdict::Fail(Status::from_bits(input.number(2) as u16)),
            _ => return self.controller.clear_hook(),
        };
        let mut left = input.byte() % 8;
        self.controller.set_hook(move |_, _| {
            left = left.saturating_sub(1);
            if left > 0 { verdict } else { Verdict::Run }
        });
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 5 {
            0 => self.controller.namespace_changed(input.edgy() as u32),
            1 => drop(self.controller.attach_namespace(input.edgy() as u32, input.byte() & 1 == 0)),
            2 => self.controller.set_temperature(input.edgy() as u16),
            3 => self.controller.refuse_disable(input.byte() & 1 == 0),
            _ => {
                self.controller.reset();
            }
        }
    }
}

/// Returns an address that is mostly in memory that no queue uses, and often page aligned.
fn address(input: &mut Input) -> u64 {
    let kind = input.byte();
    let offset = input.number(2) << 2;
    match kind % 8 {
        0..=3 => DATA + (offset & !0xfff),
        4 | 5 => DATA + offset,
        6 => RAM + offset,
        _ => input.edgy(),
    }
}

/// Returns a command whose fields are likely to be meaningful.
fn command(input: &mut Input) -> (usize, [u32; 16]) {
    const ADMIN: [u8; 14] = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 0x15, 0x18, 0x7c];
    const IO: [u8; 8] = [0, 1, 2, 4, 5, 8, 9, 0x19];
    let kind = input.byte();
    let queue = usize::from(kind & 1);
    let opcode = match kind >> 1 & 7 {
        7 => input.byte(),
        _ if queue == 0 => input.pick(&ADMIN),
        _ => input.pick(&IO),
    };
    let mut words = [0; 16];
    words[0] = u32::from(opcode) | u32::from(if kind & 0x10 != 0 { input.byte() } else { 0 }) << 8;
    words[1] = if kind & 0x20 != 0 { input.edgy() as u32 } else { 1 };
    for (at, value) in [(6, address(input)), (8, address(input))] {
        (words[at], words[at + 1]) = (value as u32, (value >> 32) as u32);
    }
    if words[0] & 0x4000 != 0 {
        words[8] = input.edgy() as u32;
        words[9] = u32::from(input.byte() & 0xf3) << 24;
    }
    let count = input.byte() % 7;
    (10..10 + usize::from(count.min(6))).for_each(|at| words[at] = input.edgy() as u32);
    (queue, words)
}
