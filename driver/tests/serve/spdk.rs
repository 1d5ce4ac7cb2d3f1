//! SPDK's initiator, step by step: the messages of `lib/vfio_user/host` and `lib/nvme/nvme_vfio_user.c`.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use adit_driver::sys::{SharedPages, Window};

use crate::raw::{
    DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO, REPLY, RESET, Raw, Reply, VERSION, dwords,
    qwords,
};
use crate::{file_of, served, wait_for, works};

const CONFIG: u32 = 7;
/// Length of region queries: the longest reply that fits a page.
const QUERY_LEN: usize = 4096 - 32;
const LARGE_PAGE: usize = 2 << 20;
/// It uses its own addresses as the device's.
const IOVA: u64 = 0x2000_0020_0000;

fn dword(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn qword(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn region(raw: &mut Raw, index: u32) -> Reply {
    let mut query = dwords(&[QUERY_LEN as u32, 0, index]);
    query.resize(QUERY_LEN, 0);
    let reply = raw.ask(GET_REGION_INFO, &query);
    assert_eq!((reply.flags, dword(&reply.body, 8)), (REPLY, index));
    reply
}

/// Maps the doorbells as SPDK does: by the first sparse area of BAR0.
fn doorbells(reply: &Reply) -> Window {
    let body = &reply.body;
    assert_eq!(dword(body, 4) & 0b1100, 0b1100, "mappable, with capabilities");
    let at = dword(body, 12) as usize;
    assert_eq!((dword(body, at) & 0xffff, dword(body, at + 8)), (1, 1), "sparse mmap, one area");
    let (start, len) = (qword(body, at + 16), qword(body, at + 24));
    assert!(start <= 0x1000 && start + len >= 0x2000, "SPDK wants 0x1000 bytes at 0x1000");
    let file = reply.file.as_ref().expect("a file for the only area");
    let offset = qword(body, 24) + 0x1000;
    Window::map(file.as_fd(), offset, 0x1000).expect("mapped")
}

#[test]
fn its_way_from_connect_to_identify_and_back() {
    let server = served();
    let mut raw = Raw::connect(server.socket());
    // vfio_user_check_version: no capabilities, not even a zero byte.
    let version = raw.ask(VERSION, &[0, 0, 1, 0]);
    assert_eq!((version.flags, &version.body[..4]), (REPLY, &[0, 0, 1, 0][..]));
    let info = raw.ask(GET_INFO, &dwords(&[16, 0, 0, 0]));
    assert_eq!((info.body.len(), dword(&info.body, 4) & 0b10), (16, 0b10), "a PCI device");
    let regions: Vec<Reply> =
        (0..dword(&info.body, 8)).map(|index| region(&mut raw, index)).collect();
    let doorbells = doorbells(&regions[0]);
    assert!(qword(&regions[CONFIG as usize].body, 16) >= 256);

    let memory = SharedPages::allocate(2 * LARGE_PAGE).expect("memory");
    let map = [dwords(&[32, 3]), qwords(&[LARGE_PAGE as u64, IOVA, LARGE_PAGE as u64])].concat();
    assert_eq!(raw.ask_with(DMA_MAP, &map, &[&file_of(&memory)]).flags, REPLY);

    let command = u16::from_le_bytes(raw.read(CONFIG, 4, 2).try_into().expect("two bytes"));
    raw.write(CONFIG, 4, &(command | 0x404).to_le_bytes());
    assert_eq!(raw.read(CONFIG, 4, 2), 0x404u16.to_le_bytes());

    assert_ne!(qword(&raw.read(0, 0, 8), 0), 0, "CAP");
    assert_eq!(dword(&raw.read(0, 8, 4), 0), 0x0002_0000, "VS");
    raw.write(0, 0x28, &IOVA.to_le_bytes());
    raw.write(0, 0x30, &(IOVA + 0x1000).to_le_bytes());
    raw.write(0, 0x24, &0x001f_001fu32.to_le_bytes());
    raw.write(0, 0x14, &0x0046_0001u32.to_le_bytes());
    wait_for("CSTS.RDY", || dword(&raw.read(0, 0x1c, 4), 0) & 1 == 1);

    // The mapping starts at the second large page of the file.
    let atomics = memory.atomics().slice(LARGE_PAGE, 3 * 0x1000);
    let words = atomics.dwords();
    for (index, value) in [(0, 6), (6, IOVA as u32 + 0x2000), (7, (IOVA >> 32) as u32), (10, 1)] {
        words[index].store(value, Ordering::Relaxed);
    }
    doorbells.write32(0, 1);
    let status = &words[0x1000 / 4 + 3];
    wait_for("a completion", || status.load(Ordering::Acquire) & 1 << 16 != 0);
    assert_eq!(status.load(Ordering::Relaxed) >> 17, 0, "status");
    assert!(words[0x2000 / 4..].iter().any(|word| word.load(Ordering::Relaxed) != 0));

    raw.write(0, 0x14, &0u32.to_le_bytes());
    wait_for("CSTS.RDY to go", || dword(&raw.read(0, 0x1c, 4), 0) & 1 == 0);
    assert_eq!(raw.ask(RESET, &[]).flags, REPLY);
    let unmap = [dwords(&[24, 0]), qwords(&[IOVA, LARGE_PAGE as u64])].concat();
    // SPDK attaches the file again.
    assert_eq!(raw.ask_with(DMA_UNMAP, &unmap, &[&file_of(&memory)]).flags, REPLY);
    assert_eq!(server.with(|it| it.mapping_count()), 0);
    drop(raw);
    works(server.socket());
}

/// SPDK reads a reply's body with one `read`, which must return all of it.
#[test]
fn a_reply_comes_in_one_piece() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    let mut query = dwords(&[QUERY_LEN as u32, 0, 0]);
    query.resize(QUERY_LEN, 0);
    for _ in 0..100 {
        raw.send(GET_REGION_INFO, 0, &query, &[]);
        let mut reply = [0; 16];
        raw.stream.read_exact(&mut reply).expect("header");
        let mut body = [0; 4096];
        let count = raw.stream.read(&mut body).expect("body");
        assert_eq!(count + 16, dword(&reply, 4) as usize);
    }
}
