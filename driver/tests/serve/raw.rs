//! A client that sends arbitrary messages, well-formed or not.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

pub(crate) const VERSION: u16 = 1;
pub(crate) const DMA_MAP: u16 = 2;
pub(crate) const DMA_UNMAP: u16 = 3;
pub(crate) const GET_INFO: u16 = 4;
pub(crate) const GET_REGION_INFO: u16 = 5;
pub(crate) const GET_IRQ_INFO: u16 = 7;
pub(crate) const SET_IRQS: u16 = 8;
pub(crate) const REGION_READ: u16 = 9;
pub(crate) const REGION_WRITE: u16 = 10;
pub(crate) const RESET: u16 = 13;

pub(crate) const REPLY: u32 = 1;
pub(crate) const NO_REPLY: u32 = 1 << 4;
pub(crate) const ERROR: u32 = 1 << 5;

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) id: u16,
    pub(crate) command: u16,
    pub(crate) flags: u32,
    pub(crate) errno: i32,
    pub(crate) body: Vec<u8>,
    pub(crate) file: Option<File>,
}

pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    next_id: u16,
}

/// Returns the little-endian bytes of some words.
pub(crate) fn dwords(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn qwords(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn header(id: u16, command: u16, size: u32, flags: u32) -> Vec<u8> {
    let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
    bytes.extend(dwords(&[size, flags, 0]));
    bytes
}

impl Raw {
    pub(crate) fn connect(socket: &Path) -> Raw {
        let stream = UnixStream::connect(socket).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        Raw { stream, next_id: 100 }
    }

    pub(crate) fn open(socket: &Path) -> Raw {
        let mut raw = Raw::connect(socket);
        let reply = raw.ask(VERSION, b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":8}}\0");
        assert_eq!((reply.flags, &reply.body[..4]), (REPLY, &[0, 0, 1, 0][..]), "{reply:?}");
        raw
    }

    pub(crate) fn send(&mut self, command: u16, flags: u32, body: &[u8], files: &[RawFd]) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        let mut bytes = header(self.next_id, command, 16 + body.len() as u32, flags);
        bytes.extend(body);
        self.send_bytes(&bytes, files).expect("sent");
        self.next_id
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], files: &[RawFd]) -> io::Result<()> {
        let sent = self.stream.send_with_fds(&[bytes], files).map_err(io::Error::from)?;
        assert_eq!(sent, bytes.len(), "a short message is sent whole");
        Ok(())
    }

    /// Receives the next reply, or an error if the server closed the connection.
    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let mut header = [0; 16];
        let (count, file) = self.stream.recv_with_fd(&mut header).map_err(io::Error::from)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.stream.read_exact(&mut header[count..])?;
        let dword = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let mut body = vec![0; dword(4) as usize - 16];
        self.stream.read_exact(&mut body)?;
        let (id, command) = (dword(0) as u16, (dword(0) >> 16) as u16);
        Ok(Reply { id, command, flags: dword(8), errno: dword(12) as i32, body, file })
    }

    pub(crate) fn ask(&mut self, command: u16, body: &[u8]) -> Reply {
        self.ask_with(command, body, &[])
    }

    /// Sends a request and returns its reply, positive or not.
    pub(crate) fn ask_with(&mut self, command: u16, body: &[u8], files: &[&File]) -> Reply {
        let files: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
        let id = self.send(command, 0, body, &files);
        let reply = self.receive().expect("a reply");
        assert_eq!((reply.id, reply.command), (id, command), "{reply:?}");
        if reply.flags & ERROR != 0 {
            assert_eq!((reply.flags, reply.body.len()), (REPLY | ERROR, 0), "{reply:?}");
        }
        reply
    }

    /// Sends a request that must be refused; returns the errno.
    pub(crate) fn refusal(&mut self, command: u16, body: &[u8], files: &[&File]) -> i32 {
        let reply = self.ask_with(command, body, files);
        assert_eq!(reply.flags, REPLY | ERROR, "accepted: command {command}, {body:x?}");
        assert_ne!(reply.errno, 0, "a refusal has a reason");
        reply.errno
    }

    pub(crate) fn read(&mut self, region: u32, offset: u64, len: usize) -> Vec<u8> {
        let access = [qwords(&[offset]), dwords(&[region, len as u32])].concat();
        let reply = self.ask(REGION_READ, &access);
        assert_eq!((reply.flags, &reply.body[..16]), (REPLY, &access[..]), "{reply:?}");
        reply.body[16..].to_vec()
    }

    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let access = [qwords(&[offset]), dwords(&[region, data.len() as u32])].concat();
        let reply = self.ask(REGION_WRITE, &[&access, data].concat());
        assert_eq!((reply.flags, reply.body), (REPLY, access));
    }

    pub(crate) fn is_hung_up(&mut self) -> bool {
        loop {
            match self.receive() {
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
    }
}
