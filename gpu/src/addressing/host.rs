//! A host that counts what its controller reads.
//!
//! The software controller, brought up by hand; its media are unwritten and read as zeros. Memory has two parts: the
//! queues, and the table under test. The controller's writes of object data are only checked for their place, the range
//! of the command's data.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use adit_driver::Time;
use adit_driver::soft::{Controller, DOORBELLS_OFFSET, DmaResult, Fault, HostMemory};
use adit_driver::spec::Iova;

use super::LBA_BYTES;
use super::table::{Pointer, REGION, Table};
use crate::error::{Error, Result};

/// Addresses of the queues, a page each.
const ADMIN_SQ: u64 = 0x10_0000;
const ADMIN_CQ: u64 = 0x10_1000;
const IO_SQ: u64 = 0x10_2000;
const IO_CQ: u64 = 0x10_3000;
const QUEUES_BYTES: usize = 0x4000;
/// Entries of each queue: an SQ of 64-byte entries fills its page.
const ENTRIES: u32 = 64;

/// What a controller read to locate objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Objects read.
    pub objects: u64,
    /// Commands that they took.
    pub commands: u64,
    /// Bytes of data located.
    pub data_bytes: u64,
    /// Bytes of submission entries.
    pub command_bytes: u64,
    /// Bytes of PRP or SGL lists.
    pub list_bytes: u64,
    /// Reads of lists: up to 64 entries at a time, within one page.
    pub list_reads: u64,
}

/// The host's memory as the controller sees it.
struct Memory<'a> {
    queues: &'a RefCell<[u8; QUEUES_BYTES]>,
    table: Option<&'a Table>,
    /// Range of the current command's data.
    data: &'a Range<u64>,
    counted: &'a Cell<Fetched>,
}

impl Memory<'_> {
    fn queue_range(iova: Iova, len: usize) -> Result<Range<usize>, Fault> {
        let start = usize::try_from(iova.0.checked_sub(ADMIN_SQ).ok_or(Fault)?);
        let start = start.map_err(|_| Fault)?;
        let end = start.checked_add(len).filter(|end| *end <= QUEUES_BYTES).ok_or(Fault)?;
        Ok(start..end)
    }

    fn read_list(&self, iova: Iova, into: &mut [u8]) -> DmaResult {
        let table = self.table.ok_or(Fault)?;
        for (index, bytes) in into.chunks_exact_mut(8).enumerate() {
            let word = table.word(iova.0 + index as u64 * 8).ok_or(Fault)?;
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.count(|counted| {
            counted.list_bytes += into.len() as u64;
            counted.list_reads += 1;
        });
        Ok(())
    }

    fn count(&self, change: impl FnOnce(&mut Fetched)) {
        let mut counted = self.counted.get();
        change(&mut counted);
        self.counted.set(counted);
    }
}

impl HostMemory for Memory<'_> {
    fn read(&self, iova: Iova, into: &mut [u8]) -> DmaResult {
        let Ok(range) = Memory::queue_range(iova, into.len()) else {
            return self.read_list(iova, into);
        };
        into.copy_from_slice(&self.queues.borrow()[range]);
        if (IO_SQ..IO_CQ).contains(&iova.0) {
            self.count(|counted| counted.command_bytes += into.len() as u64);
        }
        Ok(())
    }

    fn write(&self, iova: Iova, from: &[u8]) -> DmaResult {
        let end = iova.0.checked_add(from.len() as u64).ok_or(Fault)?;
        if self.data.contains(&iova.0) && end <= self.data.end {
            self.count(|counted| counted.data_bytes += from.len() as u64);
            return Ok(());
        }
        let range = Memory::queue_range(iova, from.len())?;
        self.queues.borrow_mut()[range].copy_from_slice(from);
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

/// The host's view of a queue pair.
struct Queue {
    qid: u32,
    sq: u64,
    cq: u64,
    sent: u32,
}

struct Host {
    controller: Controller,
    queues: RefCell<[u8; QUEUES_BYTES]>,
    data: Range<u64>,
    counted: Cell<Fetched>,
    now_ns: u64,
}

/// Reads consecutive objects through one queue.
pub(super) fn count(table: &mut Table, object_bytes: u64, objects: u64) -> Result<Fetched> {
    let stride = object_bytes.next_multiple_of(LBA_BYTES);
    let (mut host, mut queue) = Host::new(objects * stride)?;
    let mut commands = 0;
    let mut outcome = Ok(());
    for object in 0..objects {
        table.commands(object * stride, object_bytes, |table, lba, bytes, pointer| {
            commands += 1;
            let first = REGION + lba * LBA_BYTES;
            host.data = first..first + bytes;
            let read = host.send(&mut queue, Some(table), command(2, lba, bytes, pointer));
            outcome = std::mem::replace(&mut outcome, Ok(())).and(read);
        });
    }
    outcome?;
    Ok(Fetched { objects, commands, ..host.counted.get() })
}

fn command(opcode: u32, lba: u64, bytes: u64, pointer: Pointer) -> [u32; 16] {
    let mut dwords = [0; 16];
    dwords[0] = opcode | u32::from(pointer.is_sgl) << 14;
    dwords[1] = 1;
    set_pointer(&mut dwords, pointer.words);
    dwords[10] = lba as u32;
    dwords[11] = (lba >> 32) as u32;
    dwords[12] = (bytes / LBA_BYTES) as u32 - 1;
    dwords
}

fn set_pointer(dwords: &mut [u32; 16], words: [u64; 2]) {
    for (index, word) in words.into_iter().enumerate() {
        dwords[6 + 2 * index] = word as u32;
        dwords[7 + 2 * index] = (word >> 32) as u32;
    }
}

impl Host {
    /// Creates an enabled controller with an I/O queue pair.
    fn new(media_bytes: u64) -> Result<(Host, Queue)> {
        let media = media_bytes.next_multiple_of(1 << 20);
        let options = format!("mem={media},lba=512,mdts=8,sgl=on,dbbuf=off");
        let made = options.parse().and_then(Controller::new);
        let mut host = Host {
            controller: made.map_err(adit_driver::Error::from)?,
            queues: RefCell::new([0; QUEUES_BYTES]),
            data: 0..0,
            counted: Cell::default(),
            now_ns: 0,
        };
        let sizes = u64::from(ENTRIES - 1);
        for (register, width, value) in [
            (0x24, 4, sizes << 16 | sizes),
            (0x28, 8, ADMIN_SQ),
            (0x30, 8, ADMIN_CQ),
            // Entries of 64 and 16 bytes, and enable (NVMe Base 2.0 section 3.1.3.5).
            (0x14, 4, 0x0046_0001),
        ] {
            host.controller.write_register(register, width, value);
        }
        host.step(None);
        let mut admin = Queue { qid: 0, sq: ADMIN_SQ, cq: ADMIN_CQ, sent: 0 };
        for (opcode, at, dword_11) in [(5, IO_CQ, 1), (1, IO_SQ, 1 << 16 | 1)] {
            let mut create = [0; 16];
            create[0] = opcode;
            set_pointer(&mut create, [at, 0]);
            create[10] = (ENTRIES - 1) << 16 | 1;
            create[11] = dword_11;
            host.send(&mut admin, None, create)?;
        }
        Ok((host, Queue { qid: 1, sq: IO_SQ, cq: IO_CQ, sent: 0 }))
    }

    fn step(&mut self, table: Option<&Table>) {
        self.now_ns += 1_000_000;
        let Host { controller, queues, data, counted, now_ns } = self;
        let memory = Memory { queues, table, data, counted };
        controller.step(&memory, Time::from_ns(*now_ns));
    }

    /// Sends a command, alone in its queue, and takes its completion.
    fn send(
        &mut self,
        queue: &mut Queue,
        table: Option<&Table>,
        mut dwords: [u32; 16],
    ) -> Result<()> {
        let (slot, lap) = (queue.sent % ENTRIES, queue.sent / ENTRIES);
        queue.sent += 1;
        dwords[0] |= slot << 16;
        self.poke(queue.sq + u64::from(slot) * 64, &dwords);
        self.ring(2 * queue.qid, queue.sent % ENTRIES);
        // With a timing model, time passes before a completion.
        for _ in 0..1000 {
            self.step(table);
            let status = self.peek(queue.cq + u64::from(slot) * 16 + 12) >> 16;
            if (status & 1 == 1) == lap.is_multiple_of(2) {
                self.ring(2 * queue.qid + 1, queue.sent % ENTRIES);
                return check(status >> 1);
            }
        }
        Err(Error::invalid("a command of the comparison", "the controller never completed it"))
    }

    fn ring(&mut self, index: u32, value: u32) {
        let stride = 4 << self.controller.options().dstrd;
        self.controller.write_register(DOORBELLS_OFFSET + index * stride, 4, u64::from(value));
    }

    fn poke(&mut self, at: u64, dwords: &[u32]) {
        let start = (at - ADMIN_SQ) as usize;
        for (index, dword) in dwords.iter().enumerate() {
            let at = start + 4 * index;
            self.queues.get_mut()[at..at + 4].copy_from_slice(&dword.to_le_bytes());
        }
    }

    fn peek(&mut self, at: u64) -> u32 {
        let start = (at - ADMIN_SQ) as usize;
        let word = self.queues.get_mut()[start..start + 4].try_into().expect("four bytes");
        u32::from_le_bytes(word)
    }
}

fn check(status: u32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let status = adit_driver::spec::Status::from_bits(status as u16);
    Err(Error::invalid("a command of the comparison", format!("the controller says {status}")))
}
