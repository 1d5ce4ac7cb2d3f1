//! A client whose memory is many small regions beside each other, as guests behind a virtual IOMMU or with several
//! memory slots have it: the device sees one range of addresses.

use std::sync::atomic::Ordering;

use adit_driver::sys::SharedPages;

use crate::raw::{DMA_MAP, DMA_UNMAP, REPLY, Raw, dwords, qwords};
use crate::{Served, file_of, served, wait_for};

const IOVA: u64 = 1 << 32;
const PAGE: u64 = 4096;
const PAGES: u64 = 64;
const SUBMISSION_ENTRIES: u32 = 128;
const COMPLETION_ENTRIES: u32 = 512;

/// Places in pages. All that can extend over two pages does.
const ADMIN: [u64; 2] = [0, 2];
const IO: [u64; 2] = [4, 6];
const PRP_LIST: u64 = 8;
const SGL: u64 = 10;
const OUT: u64 = 16;
const IN: u64 = 32;
/// The data of a transfer.
const DATA_PAGES: u64 = 16;

const DATA_TRANSFER_ERROR: u32 = 0x04;

/// A queue pair with one command at a time.
struct Queue {
    id: u32,
    pages: [u64; 2],
    sent: u32,
}

/// A client with an enabled controller, whose memory is one region for each page, in an order of its own.
struct Guest {
    raw: Raw,
    memory: SharedPages,
    admin: Queue,
    io: Queue,
}

fn address(page: u64) -> u64 {
    IOVA + page * PAGE
}

/// Returns where a page of the device is in the file.
fn in_file(page: u64) -> u64 {
    page * 37 % PAGES
}

impl Guest {
    fn enable(server: &Served) -> Guest {
        let mut raw = Raw::open(server.socket());
        let memory = SharedPages::allocate((PAGES * PAGE) as usize).expect("memory");
        let file = file_of(&memory);
        for page in 0..PAGES {
            let place = qwords(&[in_file(page) * PAGE, address(page), PAGE]);
            let map = [dwords(&[32, 3]), place].concat();
            assert_eq!(raw.ask_with(DMA_MAP, &map, &[&file]).flags, REPLY);
        }
        let sizes = (COMPLETION_ENTRIES - 1) << 16 | (SUBMISSION_ENTRIES - 1);
        raw.write(0, 0x24, &sizes.to_le_bytes());
        raw.write(0, 0x28, &address(ADMIN[0]).to_le_bytes());
        raw.write(0, 0x30, &address(ADMIN[1]).to_le_bytes());
        raw.write(0, 0x14, &0x0046_0001u32.to_le_bytes());
        wait_for("CSTS.RDY", || raw.read(0, 0x1c, 4)[0] & 1 == 1);
        let queue = |id, pages| Queue { id, pages, sent: 0 };
        let mut guest = Guest { raw, memory, admin: queue(0, ADMIN), io: queue(1, IO) };
        guest.create_io_queue();
        guest
    }

    fn create_io_queue(&mut self) {
        let create = |opcode, page, entries: u32, flags| {
            let at = address(page);
            let mut sqe = [0; 16];
            (sqe[0], sqe[6], sqe[7]) = (opcode, at as u32, (at >> 32) as u32);
            (sqe[10], sqe[11]) = ((entries - 1) << 16 | 1, flags);
            sqe
        };
        assert_eq!(self.run(false, create(5, IO[1], COMPLETION_ENTRIES, 1)), 0);
        assert_eq!(self.run(false, create(1, IO[0], SUBMISSION_ENTRIES, 1 << 16 | 1)), 0);
    }

    /// Writes words to the device's address of `page`, `offset` bytes into it; they may go on in the pages behind.
    fn put(&self, page: u64, offset: u64, words: &[u64]) {
        for (index, word) in (0..).zip(words) {
            self.word(page * PAGE + offset + 8 * index, |place| {
                place.store(*word, Ordering::Release)
            });
        }
    }

    fn get(&self, page: u64, count: u64) -> Vec<u64> {
        let word =
            |index| self.word(page * PAGE + 8 * index, |place| place.load(Ordering::Acquire));
        (0..count).map(word).collect()
    }

    fn word<T>(&self, at: u64, access: impl FnOnce(&std::sync::atomic::AtomicU64) -> T) -> T {
        let at = in_file(at / PAGE) * PAGE + at % PAGE;
        access(&self.memory.atomics().words()[(at / 8) as usize])
    }

    /// Runs a command; returns its status.
    fn run(&mut self, is_io: bool, sqe: [u32; 16]) -> u32 {
        let queue = if is_io { &mut self.io } else { &mut self.admin };
        let Queue { id, pages, sent } = *queue;
        queue.sent += 1;
        let words: Vec<u64> =
            sqe.chunks(2).map(|pair| u64::from(pair[1]) << 32 | u64::from(pair[0])).collect();
        self.put(pages[0], u64::from(sent % SUBMISSION_ENTRIES) * 64, &words);
        let tail = (sent + 1) % SUBMISSION_ENTRIES;
        self.raw.write(0, 0x1000 + u64::from(id) * 8, &tail.to_le_bytes());
        let entry = u64::from(sent % COMPLETION_ENTRIES) * 16 + 8;
        let phase = u64::from((sent / COMPLETION_ENTRIES).is_multiple_of(2));
        let mut last = 0;
        wait_for("a completion", || {
            last = self.word(pages[1] * PAGE + entry, |place| place.load(Ordering::Acquire));
            last >> 48 & 1 == phase
        });
        let head = (sent + 1) % COMPLETION_ENTRIES;
        self.raw.write(0, 0x1004 + u64::from(id) * 8, &head.to_le_bytes());
        (last >> 49) as u32
    }

    /// Writes `OUT` to the first LBAs, by a PRP list.
    fn write(&mut self) -> u32 {
        let list: Vec<u64> = (1..DATA_PAGES).map(|page| address(OUT + page)).collect();
        self.put(PRP_LIST, PAGE - 8 * (DATA_PAGES - 1), &list);
        let (first, list) = (address(OUT), address(PRP_LIST + 1) - 8 * (DATA_PAGES - 1));
        self.run(true, transfer(1, 0, [first, list]))
    }

    /// Reads the first LBAs into `IN`, by a segment of SGL descriptors that begins on one page and ends on the next.
    fn read(&mut self) -> u32 {
        let half = DATA_PAGES / 2 * PAGE;
        let blocks = [address(IN), half, address(IN) + half, half];
        self.put(SGL - 1, PAGE - 16, &blocks);
        self.run(true, transfer(2, 1 << 14, [address(SGL) - 16, 32 | 0x30 << 56]))
    }
}

/// Returns a Read or Write of the first LBAs, `DATA_PAGES` long.
fn transfer(opcode: u32, psdt: u32, pointers: [u64; 2]) -> [u32; 16] {
    let mut sqe = [0; 16];
    (sqe[0], sqe[1]) = (opcode | psdt, 1);
    for (at, pointer) in [6, 8].into_iter().zip(pointers) {
        (sqe[at], sqe[at + 1]) = (pointer as u32, (pointer >> 32) as u32);
    }
    sqe[12] = (DATA_PAGES * PAGE / 512) as u32 - 1;
    sqe
}

#[test]
fn transfers_lists_and_queues_go_on_in_the_next_region() {
    let server = served();
    let mut guest = Guest::enable(&server);
    let words = DATA_PAGES * PAGE / 8;
    // Around all queues, of which each is in two regions.
    for round in 0..600u64 {
        let data: Vec<u64> = (0..words).map(|word| word << 16 | round).collect();
        guest.put(OUT, 0, &data);
        assert_eq!((guest.write(), guest.read()), (0, 0), "round {round}");
        assert!(guest.get(IN, words) == data, "round {round}");
        let mut identify = [0; 16];
        (identify[0], identify[10]) = (6, 1);
        // Ends in the next region.
        let at = [address(OUT) + 512, address(OUT + 1)];
        for (word, pointer) in [6, 8].into_iter().zip(at) {
            (identify[word], identify[word + 1]) = (pointer as u32, (pointer >> 32) as u32);
        }
        assert_eq!(guest.run(false, identify), 0);
    }
}

#[test]
fn a_hole_between_regions_is_no_memory() {
    let server = served();
    let mut guest = Guest::enable(&server);
    assert_eq!((guest.write(), guest.read()), (0, 0));
    for page in [OUT + 5, IN + 5] {
        let unmap = [dwords(&[24, 0]), qwords(&[address(page), PAGE])].concat();
        assert_eq!(guest.raw.ask(DMA_UNMAP, &unmap).flags, REPLY);
    }
    for status in [guest.write(), guest.read()] {
        assert_eq!(status & 0xff, DATA_TRANSFER_ERROR);
    }
}
