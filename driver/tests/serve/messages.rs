//! Messages with one fault each. Each must get an error reply with an errno, or an error reply and a hang-up where the
//! stream becomes unreadable; after it, the same connection or the next works.

use std::fs::File;
use std::io::Write;

use adit_driver::sys::SharedPages;

use crate::raw::{
    DMA_MAP, DMA_UNMAP, ERROR, GET_INFO, GET_IRQ_INFO, GET_REGION_INFO, NO_REPLY, REGION_READ,
    REGION_WRITE, REPLY, RESET, Raw, SET_IRQS, VERSION, dwords, header, qwords,
};
use crate::{file_of, served, works};

const EVENTFD: u32 = 1 << 2 | 1 << 5;
const MSIX: u32 = 2;

fn dma(argsz: u32, flags: u32, words: &[u64]) -> Vec<u8> {
    [dwords(&[argsz, flags]), qwords(words)].concat()
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [qwords(&[offset]), dwords(&[region, count]), data.to_vec()].concat()
}

/// Returns each request that has a body, in valid form.
fn right() -> Vec<(u16, Vec<u8>)> {
    vec![
        (DMA_UNMAP, dma(24, 2, &[0, 0])),
        (GET_INFO, dwords(&[16, 0, 0, 0])),
        (GET_REGION_INFO, dwords(&[32, 0, 0, 0, 0, 0, 0, 0])),
        (GET_IRQ_INFO, dwords(&[16, 0, MSIX, 0])),
        (SET_IRQS, dwords(&[20, 1 | 1 << 5, MSIX, 0, 0])),
        (REGION_READ, access(0, 8, 4, &[])),
        (REGION_WRITE, access(0, 0x24, 4, &[1, 0, 1, 0])),
    ]
}

fn is_well(raw: &mut Raw) {
    assert_eq!(raw.read(0, 8, 4), 0x0002_0000u32.to_le_bytes(), "VS, on the same connection");
}

#[test]
fn the_right_ones_are_right() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    for (command, body) in right() {
        assert_eq!(raw.ask(command, &body).flags, REPLY, "command {command}");
    }
    assert_eq!(raw.ask(RESET, &[]).flags, REPLY);
}

#[test]
fn bodies_cut_short_are_refused_and_long_ones_are_their_start() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    for (command, body) in right() {
        for len in 0..body.len() {
            assert_eq!(raw.refusal(command, &body[..len], &[]), libc::EINVAL, "{command}, {len}");
        }
        let long = [body, vec![0xff; 1000]].concat();
        let reply = raw.ask(command, &long);
        // A write is exactly as long as it says.
        assert_eq!(reply.flags & ERROR != 0, command == REGION_WRITE, "command {command}");
        is_well(&mut raw);
    }
    let map = dma(32, 3, &[0, 0x10000, 4096]);
    for len in 0..map.len() {
        assert_eq!(raw.refusal(DMA_MAP, &map[..len], &[]), libc::EINVAL, "{len}");
    }
    is_well(&mut raw);
}

#[test]
fn what_is_no_request_is_refused() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    for kind in 1..16 {
        let id = raw.send(RESET, kind, &[], &[]);
        let reply = raw.receive().expect("reply");
        assert_eq!((reply.id, reply.flags, reply.errno), (id, REPLY | ERROR, libc::EINVAL));
    }
    for command in [0, 6, 11, 12, 14, 15, 16, 0x100, u16::MAX] {
        assert_eq!(raw.refusal(command, &[0; 64], &[]), libc::EOPNOTSUPP, "command {command}");
    }
    is_well(&mut raw);
}

#[test]
fn impossible_sizes_end_the_connection_and_nothing_else() {
    let server = served();
    for size in [0, 1, 15, 16 + (16 << 10) + 1, 0x7fff_ffff, u32::MAX] {
        for is_open in [false, true] {
            let mut raw = match is_open {
                true => Raw::open(server.socket()),
                false => Raw::connect(server.socket()),
            };
            raw.send_bytes(&header(7, GET_INFO, size, 0), &[]).expect("sent");
            let reply = raw.receive().expect("told before it ends");
            assert_eq!((reply.id, reply.flags), (7, REPLY | ERROR), "size {size}");
            assert!(raw.is_hung_up(), "size {size}");
        }
        works(server.socket());
    }
}

#[test]
fn the_version_comes_first_and_once() {
    let server = served();
    let refused: [&[u8]; 7] = [
        b"",
        b"\0\0\x01",
        b"\x01\0\0\0",
        b"\0\0\x01\0{}",
        b"\0\0\x01\0{\0",
        b"\0\0\x01\0[]\0",
        b"\0\0\x01\0\xff\xff\0",
    ];
    for body in refused {
        let mut raw = Raw::connect(server.socket());
        raw.refusal(VERSION, body, &[]);
        assert!(raw.is_hung_up(), "{body:?}");
    }
    for (command, body) in right() {
        let mut raw = Raw::connect(server.socket());
        assert_eq!(raw.refusal(command, &body, &[]), libc::EINVAL);
        assert!(raw.is_hung_up(), "command {command}");
    }
    for body in [&b"\0\0\x01\0"[..], b"\0\0\x01\0\0", b"\0\0\x09\0{}\0", b"\0\0\0\0{\"x\":1}\0"] {
        let mut raw = Raw::connect(server.socket());
        assert_eq!(raw.ask(VERSION, body).flags, REPLY, "{body:?}");
        assert_eq!(raw.refusal(VERSION, body, &[]), libc::EINVAL, "once is enough");
        is_well(&mut raw);
    }
}

#[test]
fn counts_places_and_kinds_that_are_not_there_are_refused() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    let mut refused = |command, body: Vec<u8>| raw.refusal(command, &body, &[]);
    for region in [9, 0x7fff_ffff, u32::MAX] {
        assert_eq!(refused(GET_REGION_INFO, dwords(&[32, 0, region, 0, 0, 0, 0, 0])), libc::EINVAL);
        assert_eq!(refused(REGION_READ, access(region, 0, 4, &[])), libc::EINVAL);
        assert_eq!(refused(REGION_WRITE, access(region, 0, 4, &[0; 4])), libc::EINVAL);
    }
    for (offset, count) in [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 16),
        (0, 4097),
        (0, u32::MAX),
        (2, 4),
        (0x4000, 4),
        (0x3ffc, 8),
        (u64::MAX, 4),
        (u64::MAX - 3, 4),
        (0x1000, 8),
        (0xffc, 8),
    ] {
        let data = vec![0; count.min(8) as usize];
        assert_eq!(
            refused(REGION_READ, access(0, offset, count, &[])),
            libc::EINVAL,
            "{offset:#x}"
        );
        refused(REGION_WRITE, access(0, offset, count, &data));
    }
    for region in [1, 3, 5, 6, 8] {
        assert_eq!(refused(REGION_READ, access(region, 0, 4, &[])), libc::EINVAL, "empty");
    }
    for (region, end) in [(4, 0x2000), (7, 0x1000)] {
        assert_eq!(refused(REGION_READ, access(region, end, 1, &[])), libc::EINVAL);
        assert_eq!(refused(REGION_WRITE, access(region, end - 1, 2, &[0; 2])), libc::EINVAL);
        assert_eq!(refused(REGION_READ, access(region, u64::MAX, 1, &[])), libc::EINVAL);
    }
    for argsz in [0, 15] {
        assert_eq!(refused(GET_INFO, dwords(&[argsz, 0, 0, 0])), libc::EINVAL);
        assert_eq!(refused(GET_IRQ_INFO, dwords(&[argsz, 0, 0, 0])), libc::EINVAL);
        assert_eq!(refused(GET_REGION_INFO, dwords(&[argsz, 0, 0, 0, 0, 0, 0, 0])), libc::EINVAL);
    }
    assert_eq!(refused(GET_IRQ_INFO, dwords(&[16, 0, 5, 0])), libc::EINVAL);
    assert_eq!(refused(SET_IRQS, dwords(&[20, EVENTFD, 5, 0, 0])), libc::EINVAL);
    assert_eq!(refused(SET_IRQS, dwords(&[20, EVENTFD, MSIX, 0, u32::MAX])), libc::EINVAL);
    assert_eq!(refused(SET_IRQS, dwords(&[20, EVENTFD, MSIX, u32::MAX, u32::MAX])), libc::EINVAL);
    assert_eq!(refused(SET_IRQS, dwords(&[20, u32::MAX, MSIX, 0, 1])), libc::EOPNOTSUPP);
    is_well(&mut raw);
}

#[test]
fn files_that_are_missing_too_many_or_the_wrong_ones_are_refused() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    let pages = SharedPages::allocate(8192).expect("memory");
    let memory = file_of(&pages);
    let status = File::open("/proc/self/status").expect("a file");
    let map = dma(32, 3, &[0, 0x10000, 8192]);
    assert_eq!(raw.refusal(DMA_MAP, &map, &[]), libc::EOPNOTSUPP, "no file");
    assert_eq!(raw.refusal(DMA_MAP, &map, &[&memory, &memory]), libc::EINVAL, "two");
    assert_eq!(raw.refusal(DMA_MAP, &map, &[&status]), libc::EINVAL, "no memory");
    for words in [
        [0, 0x10000, 0],
        [1, 0x10000, 4096],
        [0, 1, 4096],
        [4096, 0x10000, 8192],
        [u64::MAX - 4095, 0, 4096],
        [0, u64::MAX - 4095, 8192],
        [0, 0x10000, u64::MAX - 4095],
    ] {
        let body = dma(32, 3, &words);
        assert_eq!(raw.refusal(DMA_MAP, &body, &[&memory]), libc::EINVAL, "{words:x?}");
    }
    assert_eq!(raw.refusal(DMA_MAP, &dma(32, 0, &[0, 0, 4096]), &[&memory]), libc::EINVAL);
    assert_eq!(raw.ask_with(DMA_MAP, &map, &[&memory]).flags, REPLY);
    assert_eq!(raw.refusal(DMA_MAP, &map, &[&memory]), libc::EEXIST);
    assert_eq!(raw.refusal(DMA_UNMAP, &dma(24, 0, &[0x10000, 4096]), &[]), libc::EINVAL, "half");
    assert_eq!(raw.refusal(DMA_UNMAP, &dma(24, 0, &[0, 4096]), &[]), libc::ENOENT);
    assert_eq!(raw.refusal(DMA_UNMAP, &dma(24, 1, &[0x10000, 8192]), &[]), libc::EOPNOTSUPP);
    let vectors = |count| dwords(&[20, EVENTFD, MSIX, 0, count]);
    assert_eq!(raw.refusal(SET_IRQS, &vectors(2), &[&memory]), libc::EINVAL, "one for two");
    assert_eq!(raw.refusal(SET_IRQS, &vectors(1), &[&memory, &memory]), libc::EINVAL);
    assert_eq!(raw.refusal(SET_IRQS, &vectors(1), &[&status]), libc::EINVAL, "no eventfd");
    for (command, body) in right() {
        if !matches!(command, SET_IRQS | DMA_UNMAP) {
            assert_eq!(raw.refusal(command, &body, &[&memory]), libc::EINVAL, "{command}");
        }
    }
    is_well(&mut raw);
    assert_eq!(server.with(|it| it.mapping_count()), 1);
}

#[test]
fn too_many_files_end_the_connection() {
    let server = served();
    let raw_fds = |count| vec![0; count];
    let mut raw = Raw::open(server.socket());
    let vectors = dwords(&[20, EVENTFD, MSIX, 0, 200]);
    raw.send(SET_IRQS, 0, &vectors, &raw_fds(200));
    assert!(raw.is_hung_up());
    let mut raw = Raw::open(server.socket());
    // Each part of one message brings files, never more at once than there is room for.
    raw.send_bytes(&header(7, SET_IRQS, 16 + 1000, 0), &[]).expect("sent");
    for _ in 0..10 {
        if raw.send_bytes(&[0; 8], &raw_fds(60)).is_err() {
            break;
        }
    }
    assert!(raw.is_hung_up());
    works(server.socket());
}

#[test]
fn no_reply_means_none_and_order_is_kept() {
    let server = served();
    let mut raw = Raw::open(server.socket());
    for value in 0..100u32 {
        raw.send(REGION_WRITE, NO_REPLY, &access(0, 0x24, 4, &value.to_le_bytes()), &[]);
        raw.send(REGION_WRITE, NO_REPLY, &access(99, 0, 4, &[0; 4]), &[]);
    }
    assert_eq!(raw.read(0, 0x24, 4), 99u32.to_le_bytes());
}

#[test]
fn a_message_that_never_ends_delays_no_other_client() {
    let server = served();
    let mut slow = Raw::connect(server.socket());
    slow.stream.write_all(&header(1, VERSION, 1000, 0)[..9]).expect("a part");
    works(server.socket());
    let mut slower = Raw::open(server.socket());
    slower.stream.write_all(&header(1, REGION_WRITE, 1000, 0)).expect("a part");
    drop(slower);
    works(server.socket());
    slow.stream.write_all(&header(1, VERSION, 1000, 0)[9..]).expect("more");
}
