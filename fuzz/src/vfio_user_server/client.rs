//! A client: valid messages about anything, and anything else.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::files::{Files, PAGE, PAGES};
use crate::input::Input;

/// Base address of the clients' memory.
const IOVA: u64 = 1 << 32;
const HEADER_BYTES: usize = 16;
/// The longest reply: region accesses and region descriptions.
const REPLY_BYTES_MAX: usize = HEADER_BYTES + (8 << 10);
const FLAG_ERROR: u32 = 1 << 5;
const DOORBELLS: u64 = 0x1000;
const CONFIG_REGION: u32 = 7;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const GET_REGION_INFO: u16 = 5;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const RESET: u16 = 13;

/// A connection, and the data received on it.
pub(super) struct Client {
    stream: UnixStream,
    next_id: u16,
    /// Whether replies are aligned: only messages were sent.
    is_framed: bool,
    incoming: Vec<u8>,
    last_reply: Vec<u8>,
    replies: usize,
    doorbells: Option<File>,
}

impl Client {
    pub(super) fn connect(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_nonblocking(true).expect("a socket");
        Client {
            stream,
            next_id: 0,
            is_framed: true,
            incoming: Vec::new(),
            last_reply: Vec::new(),
            replies: 0,
            doorbells: None,
        }
    }

    pub(super) fn replies(&mut self) -> usize {
        self.listen();
        self.replies
    }

    pub(super) fn last_reply(&self) -> &[u8] {
        &self.last_reply
    }

    /// Negotiates in one of several ways; 0 is a valid one.
    pub(super) fn negotiate(&mut self, kind: u8) {
        let bodies: [&[u8]; 4] =
            [b"\0\0\x01\0{\"capabilities\":{}}\0", b"\0\0\0\0", b"\0\0\x01\0[]\0", b"\x01\0\0\0"];
        let index = if kind & 15 < 12 { 0 } else { usize::from(kind & 3) };
        self.send(VERSION, bodies[index], &[]);
    }

    pub(super) fn read_version(&mut self) {
        self.send(REGION_READ, &access(0, 8, 4), &[]);
    }

    /// Sends a message with its correct length. Drops it if the socket is full.
    fn send(&mut self, command: u16, body: &[u8], files: &[RawFd]) {
        let mut message = [self.next_id.to_le_bytes(), command.to_le_bytes()].concat();
        self.next_id = self.next_id.wrapping_add(1);
        message.extend(dwords(&[(HEADER_BYTES + body.len()) as u32, 0, 0]));
        message.extend(body);
        self.send_bytes(&message, files);
    }

    fn send_bytes(&mut self, bytes: &[u8], files: &[RawFd]) {
        match self.stream.send_with_fds(&[bytes], files) {
            Ok(sent) if sent < bytes.len() => self.is_framed = false,
            _ => {}
        }
    }

    pub(super) fn map(&mut self, input: &mut Input, files: &Files) {
        let flags = input.pick(&[3, 3, 3, 1, 2, 0, 7]);
        let (offset, address, size) =
            (page(input, PAGES), IOVA + page(input, 24), page(input, PAGES));
        let body = [dwords(&[32, flags]), qwords(&[offset, address, size + PAGE])].concat();
        match input.byte() {
            255 => self.send(DMA_MAP, &body, &[]),
            which => self.send(DMA_MAP, &body, &[files.any(which)]),
        }
    }

    pub(super) fn unmap(&mut self, input: &mut Input) {
        let flags = input.pick(&[0, 0, 0, 2, 1]);
        let (address, size) = (IOVA + page(input, 24), PAGE + page(input, PAGES));
        let place = if flags == 2 { [0, 0] } else { [address, size] };
        self.send(DMA_UNMAP, &[dwords(&[24, flags]), qwords(&place)].concat(), &[]);
    }

    pub(super) fn set_irqs(&mut self, input: &mut Input, files: &Files) {
        let flags = input.pick(&[1 << 2 | 1 << 5, 1 << 5 | 1, 1 << 2 | 1 << 5, 1 << 3]);
        let index = input.pick(&[2, 2, 2, 0, 3, 9]);
        let (start, count) = (u32::from(input.byte() % 4), u32::from(input.byte() % 4));
        let with_files = flags & 4 != 0 && input.byte() & 7 != 7;
        let fds: Vec<RawFd> = match with_files {
            true => (0..count).map(|_| files.eventfd_or_other(input.byte())).collect(),
            false => Vec::new(),
        };
        self.send(SET_IRQS, &dwords(&[20, flags, index, start, count]), &fds);
    }

    /// Sets admin queues at some page and the next, and CC.EN.
    pub(super) fn enable(&mut self, input: &mut Input) {
        let queues = IOVA + page(input, 16);
        self.write(0, 0x24, &0x003f_003fu32.to_le_bytes());
        self.write(0, 0x28, &queues.to_le_bytes());
        self.write(0, 0x30, &(queues + PAGE).to_le_bytes());
        let cc: u32 = input.pick(&[0x0046_0001, 0x0046_0001, 0, 0x0046_4001]);
        self.write(0, 0x14, &cc.to_le_bytes());
    }

    pub(super) fn write_register(&mut self, input: &mut Input) {
        let offset = u64::from(input.pick(&[0x14u32, 0x20, 0x24, 0x28, 0x30, 0x0c, 0x10, 0xe00]));
        let value = input.edgy().to_le_bytes();
        let len = if input.byte() & 1 == 0 { 4 } else { 8 };
        self.write(0, offset, &value[..len]);
    }

    /// Reads or writes any region.
    pub(super) fn access(&mut self, input: &mut Input) {
        let region = u32::from(input.byte() % 10);
        let (offset, count) = (input.edgy(), input.edgy() as u32);
        if input.byte() & 1 == 0 {
            return self.send(REGION_READ, &access(region, offset, count), &[]);
        }
        let data: Vec<u8> = (0..count % 64).map(|_| input.byte()).collect();
        let body = [access(region, offset, data.len() as u32), data].concat();
        self.send(REGION_WRITE, &body, &[]);
    }

    /// Writes a command to memory that may be a queue's, and rings.
    pub(super) fn command(&mut self, input: &mut Input, files: &Files) {
        let opcode =
            input.pick(&[0x06u8, 0x05, 0x01, 0x02, 0x00, 0x04, 0x08, 0x09, 0x0a, 0x0c, 0x7c]);
        let (memory, page_at, slot) = (input.byte(), page(input, 4), u64::from(input.byte() % 8));
        let nsid = input.pick(&[0, 1, u32::MAX]);
        let mut command = dwords(&[opcode.into(), nsid, 0, 0, 0, 0]);
        command[2] = slot as u8;
        command.extend(qwords(&[address(input), address(input)]));
        command.extend(dwords(&std::array::from_fn::<u32, 6, _>(|_| cdw(input))));
        files.write(memory, page_at + slot * 64, &command);
        self.ring_one(u64::from(input.byte() % 3) * 8, slot as u32 + 1);
    }

    pub(super) fn ring(&mut self, input: &mut Input) {
        let offset = u64::from(input.byte() % 32) * 4;
        self.ring_one(offset, input.edgy() as u32);
    }

    /// Rings through the mapped page if the client has it, otherwise by message.
    fn ring_one(&mut self, offset: u64, value: u32) {
        let bytes = value.to_le_bytes();
        let mapped = self
            .doorbells
            .as_ref()
            .is_some_and(|page| page.write_all_at(&bytes, DOORBELLS + offset).is_ok());
        if !mapped {
            self.write(0, DOORBELLS + offset, &bytes);
        }
    }

    /// Sends requests with few choices: region descriptions, and both kinds of reset.
    pub(super) fn ask(&mut self, input: &mut Input) {
        match input.byte() % 4 {
            0 | 1 => {
                let argsz = input.pick(&[64, 64, 32, 0]);
                let index = u32::from(input.pick(&[0u8, 0, 2, 4, 7, 9]));
                self.send(GET_REGION_INFO, &dwords(&[argsz, 0, index, 0, 0, 0, 0, 0]), &[]);
            }
            2 => self.send(RESET, &[], &[]),
            _ => self.write(CONFIG_REGION, 0x58, &0x8000u16.to_le_bytes()),
        }
    }

    /// Sends bytes that need not be a message.
    pub(super) fn send_anything(&mut self, input: &mut Input) {
        let bytes: Vec<u8> = (0..input.byte() % 64).map(|_| input.byte()).collect();
        if !bytes.is_empty() {
            self.is_framed = false;
            self.send_bytes(&bytes, &[]);
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let body = [&access(region, offset, data.len() as u32), data].concat();
        self.send(REGION_WRITE, &body, &[]);
    }

    /// Takes received data, and checks replies as long as they can be told apart.
    pub(super) fn listen(&mut self) {
        let mut some = [0; 4096];
        loop {
            match self.stream.recv_with_fd(&mut some).map_err(io::Error::from) {
                Ok((0, _)) | Err(_) => break,
                Ok((count, file)) => {
                    self.incoming.extend(&some[..count]);
                    self.doorbells = file.or(self.doorbells.take());
                }
            }
        }
        while self.is_framed && self.take_reply() {}
    }

    fn take_reply(&mut self) -> bool {
        let Some(header) = self.incoming.get(..HEADER_BYTES) else { return false };
        let dword = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let (len, flags, errno) = (dword(4) as usize, dword(8), dword(12));
        assert!((HEADER_BYTES..=REPLY_BYTES_MAX).contains(&len), "a reply of {len} bytes");
        assert_eq!(flags & !FLAG_ERROR, 1, "a reply");
        assert_eq!(flags & FLAG_ERROR != 0, errno != 0, "an errno goes with an error");
        if self.incoming.len() < len {
            return false;
        }
        let rest = self.incoming.split_off(len);
        self.last_reply = std::mem::replace(&mut self.incoming, rest);
        self.replies += 1;
        true
    }
}

fn page(input: &mut Input, count: u64) -> u64 {
    u64::from(input.byte()) % count * PAGE
}

/// Returns an address: often a page that may be mapped, sometimes anything.
fn address(input: &mut Input) -> u64 {
    match input.byte() {
        0..224 => IOVA + page(input, 24),
        224..240 => IOVA + page(input, 24) + input.number(2),
        _ => input.edgy(),
    }
}

/// Returns queue identifiers with sizes, queue flags, block counts, or anything.
fn cdw(input: &mut Input) -> u32 {
    match input.byte() {
        0..64 => 0,
        64..96 => 1,
        96..128 => 0x000f_0001,
        128..144 => 0x0001_0001,
        144..160 => 3,
        160..192 => u32::from(input.byte()),
        _ => input.edgy() as u32,
    }
}

fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    [qwords(&[offset]), dwords(&[region, count])].concat()
}

fn dwords(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn qwords(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
