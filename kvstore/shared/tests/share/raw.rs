//! A client of a server that writes what it likes: the other end of the protocol, by hand.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use adit_kvshare::wire::{
    Ask, DONE_WORDS, Done, ENTRY_WORDS, Matter, Message, RequestEntry, VERSION,
};
use memmap2::MmapRaw;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// How long what has to happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const DEPTH: u64 = 8;
pub(crate) const PAGE: u64 = 4096;
/// Where the counters are in the rings' memory.
pub(crate) const REQUESTS_TAIL: u64 = 0;
pub(crate) const REQUESTS_HEAD: u64 = 64;
pub(crate) const ANSWERS_TAIL: u64 = 128;
pub(crate) const ANSWERS_HEAD: u64 = 192;

/// A client that writes what it likes. It reaches its rings through their file.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) rings: Mapped,
    pub(crate) bell: EventFd,
    pub(crate) server_bell: EventFd,
    pub(crate) tail: u64,
    pub(crate) head: u64,
}

/// A memory file that is mapped, as one must be to be shared. Its bytes are reached as a debugger reaches them, which
/// takes no unsafe code.
pub(crate) struct Mapped {
    pub(crate) file: File,
    map: MmapRaw,
    process: File,
}

impl Mapped {
    pub(crate) fn new(file: File) -> Mapped {
        let map = MmapRaw::map_raw(&file).expect("mapped");
        let process = File::options().read(true).write(true).open("/proc/self/mem");
        Mapped { file, map, process: process.expect("Linux") }
    }

    pub(crate) fn write(&self, bytes: &[u8], at: u64) {
        let at = self.map.as_ptr().addr() as u64 + at;
        self.process.write_all_at(bytes, at).expect("written");
    }

    pub(crate) fn read(&self, into: &mut [u8], at: u64) {
        let at = self.map.as_ptr().addr() as u64 + at;
        self.process.read_exact_at(into, at).expect("read");
    }
}

/// Makes a memory file without a hole.
pub(crate) fn memory(bytes: u64, flags: MFdFlags) -> File {
    let file = File::from(memfd_create(c"test", flags).expect("memfd"));
    file.write_all_at(&vec![0; bytes as usize], 0).expect("room");
    file
}

pub(crate) fn sealable(bytes: u64) -> File {
    memory(bytes, MFdFlags::MFD_ALLOW_SEALING)
}

pub(crate) fn ring_bytes() -> u64 {
    PAGE + (DEPTH * 8 * (ENTRY_WORDS + DONE_WORDS) as u64).next_multiple_of(PAGE)
}

pub(crate) fn eventfd() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd")
}

pub(crate) fn send(stream: &UnixStream, message: &Message, files: &[RawFd]) {
    let sent = stream.send_with_fds(&[message.as_bytes()], files).expect("sent");
    assert_eq!(sent, size_of::<Message>());
}

/// Returns the answer, or `None` if the server has closed the connection.
pub(crate) fn answer(mut stream: &UnixStream) -> Option<Message> {
    let mut answer = Message::new_zeroed();
    stream.read_exact(answer.as_mut_bytes()).ok().map(|()| answer)
}

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

impl Raw {
    pub(crate) fn greeted(socket: &Path) -> Raw {
        Raw::greet(socket, b"").expect("the server takes it")
    }

    /// Greets for a tenant. `None` if the server does not take it.
    pub(crate) fn greet(socket: &Path, tenant: &[u8]) -> Option<Raw> {
        let stream = connect(socket);
        let rings = Mapped::new(sealable(ring_bytes()));
        let (bell, server_bell) = (eventfd(), eventfd());
        let files =
            [rings.file.as_raw_fd(), server_bell.as_fd().as_raw_fd(), bell.as_fd().as_raw_fd()];
        let greeting = Message::new(Matter::Greet, [VERSION, DEPTH, 1, 0]).with_body(tenant);
        stream.send_with_fds(&[greeting.as_bytes()], &files).ok()?;
        let answer = answer(&stream).filter(|answer| answer.code == 0)?;
        assert_eq!(answer.matter(), Some(Matter::Greet));
        Some(Raw { stream, rings, bell, server_bell, tail: 0, head: 0 })
    }

    /// Forgets the answers that have come.
    pub(crate) fn skip(&mut self) {
        self.head = self.answers();
        self.store(ANSWERS_HEAD, self.head);
    }

    pub(crate) fn share(&self, bytes: u64) -> u32 {
        self.share_file(&sealable(bytes), bytes)
    }

    pub(crate) fn share_file(&self, file: &File, bytes: u64) -> u32 {
        send(&self.stream, &Message::new(Matter::Share, [bytes, 0, 0, 0]), &[file.as_raw_fd()]);
        let answer = answer(&self.stream).expect("an answer");
        assert_eq!(answer.code, 0);
        answer.numbers[0] as u32
    }

    pub(crate) fn store(&self, at: u64, value: u64) {
        self.rings.write(&value.to_ne_bytes(), at);
    }

    pub(crate) fn ring(&self) {
        self.server_bell.write(1).expect("rung");
    }

    pub(crate) fn push(&mut self, entry: &RequestEntry) {
        self.push_all(std::slice::from_ref(entry));
    }

    /// Publishes entries together.
    pub(crate) fn push_all(&mut self, entries: &[RequestEntry]) {
        for entry in entries {
            let at = PAGE + self.tail % DEPTH * 8 * ENTRY_WORDS as u64;
            self.rings.write(entry.as_bytes(), at);
            self.tail += 1;
        }
        self.store(REQUESTS_TAIL, self.tail);
    }

    pub(crate) fn ask(&mut self, ask: &Ask, tag: u64) {
        self.push(&RequestEntry::of(ask, tag));
        self.ring();
    }

    pub(crate) fn answers(&self) -> u64 {
        let mut word = [0; 8];
        self.rings.read(&mut word, ANSWERS_TAIL);
        u64::from_ne_bytes(word)
    }

    /// Waits for the next answer, looking now and then.
    pub(crate) fn take(&mut self) -> Done {
        let begin = std::time::Instant::now();
        while self.answers() == self.head {
            assert!(begin.elapsed() < PATIENCE, "no answer");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let answers = PAGE + DEPTH * 8 * ENTRY_WORDS as u64;
        let at = answers + self.head % DEPTH * 8 * DONE_WORDS as u64;
        let mut bytes = [0; size_of::<Done>()];
        self.rings.read(&mut bytes, at);
        self.head += 1;
        self.store(ANSWERS_HEAD, self.head);
        Done::read_from_bytes(&bytes).expect("its size")
    }

    /// Waits until the server has closed the connection.
    pub(crate) fn is_left(&self) -> bool {
        answer(&self.stream).is_none()
    }
}
