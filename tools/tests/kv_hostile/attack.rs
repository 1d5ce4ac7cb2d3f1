//! Hostile clients.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_kvshare::wire::{Ask, Code, Matter, MemoryRun, Message, RequestEntry, VERSION};
use adit_kvstore::Key;
use adit_kvstore::shard::{Condition, Part};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::{FromBytes, IntoBytes};

use crate::Random;
use crate::raw::{
    ANSWERS_HEAD, DEPTH, PAGE, REQUESTS_TAIL, Raw, answer, connect, eventfd, ring_bytes, sealable,
};

/// The most silent connections of one attacker.
const SILENT_MAX: usize = 40;
/// The largest object that it reserves room for.
const PIECE_MAX: u64 = 256 << 10;
/// Bytes of the memory that it puts from.
const REGION: u64 = 1 << 20;
const KEYS: u64 = 400;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    Everything,
    /// Reserves room that it never uses, as much as there is.
    Reserves,
}

pub(crate) struct Attacks<'a> {
    socket: &'a Path,
    random: Random,
    attack: Attack,
    silent: VecDeque<UnixStream>,
    /// A client that the server took, and its memory if it shares some.
    client: Option<(Raw, Option<u32>)>,
    /// Bytes of the objects that it reserves room for.
    piece: u64,
    count: u64,
}

/// A file to share, or almost.
struct Offer {
    file: File,
    /// Whether the server has to refuse it.
    is_bad: bool,
}

fn blocks(file: &File) -> u64 {
    file.metadata().map_or(0, |about| about.blocks())
}

fn punch(file: &File, at: u64) -> nix::Result<()> {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, flags, at as i64, PAGE as i64)
}

fn tell(stream: &UnixStream, message: &Message, files: &[RawFd]) -> Option<Message> {
    stream.send_with_fds(&[message.as_bytes()], files).ok()?;
    answer(stream)
}

fn is_hung_up(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLHUP)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

impl<'a> Attacks<'a> {
    pub(crate) fn new(socket: &'a Path, random: Random, attack: Attack) -> Attacks<'a> {
        let (silent, client, piece, count) = (VecDeque::new(), None, PIECE_MAX, 0);
        Attacks { socket, random, attack, silent, client, piece, count }
    }

    /// Attacks until `ends`; returns how often.
    ///
    /// # Errors
    /// What the server did that it must not do.
    pub(crate) fn go_on_until(mut self, ends: &AtomicBool) -> Result<u64, String> {
        while !ends.load(Ordering::Relaxed) {
            self.count += 1;
            match self.attack {
                Attack::Reserves => self.reserve_all(),
                Attack::Everything => self.anything()?,
            }
        }
        Ok(self.count)
    }

    fn anything(&mut self) -> Result<(), String> {
        match self.random.below(40) {
            0..4 => self.be_silent(),
            4 => self.be_half_silent(),
            5..7 => self.greet_badly(),
            7..10 => self.greet(),
            10..14 => self.share()?,
            14 => self.unshare(),
            15..17 => self.define(),
            17 => _ = self.tell(Matter::Stats, [0; 4], &[]),
            18..26 => self.ask_anything(),
            26..32 => self.fill_and_lease(),
            32..35 => self.reserve(),
            35 => self.jump(),
            36 => self.talk_nonsense(),
            37 => self.client = None,
            _ => drop(self.silent.pop_front()),
        }
        Ok(())
    }

    fn be_silent(&mut self) {
        // A full backlog makes it wait, as it does others.
        self.silent.push_back(connect(self.socket));
        if self.silent.len() > SILENT_MAX {
            self.silent.pop_front();
        }
    }

    fn be_half_silent(&mut self) {
        let mut stream = connect(self.socket);
        let greeting = Message::new(Matter::Greet, [VERSION, DEPTH, 1, 0]);
        let bytes = self.random.below(512) as usize;
        let _ = stream.write(&greeting.as_bytes()[..bytes]);
        self.silent.push_back(stream);
    }

    fn greet_badly(&mut self) {
        let stream = connect(self.socket);
        let (version, depth) = match self.random.below(3) {
            0 => (VERSION, DEPTH),
            1 => (self.random.below(6), DEPTH),
            _ => (VERSION, self.random.next()),
        };
        let offer = self.offer(ring_bytes());
        let bell = eventfd();
        let bell =
            if self.random.one_in(4) { offer.file.as_raw_fd() } else { bell.as_fd().as_raw_fd() };
        let files = [offer.file.as_raw_fd(), bell, bell];
        let count = self.random.below(4) as usize;
        let tenant: Vec<u8> =
            (0..self.random.below(90)).map(|_| self.random.next() as u8).collect();
        let greeting = Message::new(Matter::Greet, [version, depth, 1, 0]).with_body(&tenant);
        let _ = tell(&stream, &greeting, &files[..count]);
    }

    fn greet(&mut self) {
        let number = self.random.below(300);
        let tenant = if self.random.one_in(2) { String::new() } else { format!("t{number}") };
        self.client = Raw::greet(self.socket, tenant.as_bytes()).map(|raw| (raw, None));
    }

    /// Makes a file of any kind.
    fn offer(&mut self, bytes: u64) -> Offer {
        let make = |flags| File::from(memfd_create(c"hostile", flags).expect("memfd"));
        let long = |file: File| {
            file.set_len(bytes).expect("room");
            file
        };
        let at = self.random.below(bytes / PAGE) * PAGE;
        let seal = |file: File, seals| {
            let _ = fcntl(&file, FcntlArg::F_ADD_SEALS(seals));
            file
        };
        let (file, is_bad) = match self.random.below(9) {
            0 => (long(make(MFdFlags::MFD_ALLOW_SEALING)), true),
            1 => {
                let file = sealable(bytes);
                punch(&file, at).expect("a hole");
                (file, true)
            }
            2 => {
                let file = long(make(MFdFlags::MFD_ALLOW_SEALING));
                let behind = FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let _ = fallocate(&file, behind, bytes as i64, bytes as i64);
                (file, true)
            }
            3 => (long(make(MFdFlags::empty())), true),
            4 => (File::open("/dev/null").expect("a file"), true),
            5 => (seal(sealable(bytes), SealFlag::F_SEAL_WRITE), true),
            6 => (seal(sealable(bytes), SealFlag::F_SEAL_SEAL), true),
            7 => (sealable(bytes.saturating_sub(PAGE).max(PAGE)), bytes > PAGE),
            _ => (sealable(bytes), false),
        };
        Offer { file, is_bad }
    }

    fn tell(&mut self, matter: Matter, numbers: [u64; 4], files: &[RawFd]) -> Option<Message> {
        let (raw, _) = self.client.as_ref()?;
        let answer = tell(&raw.stream, &Message::new(matter, numbers), files);
        if answer.is_none() {
            self.client = None;
        }
        answer
    }

    /// Shares memory of any kind. The server takes none that it would have to make itself, or that can go.
    fn share(&mut self) -> Result<(), String> {
        let bytes = if self.random.one_in(3) { REGION } else { (1 + self.random.below(64)) * PAGE };
        let offer = self.offer(bytes);
        let before = blocks(&offer.file);
        let claim = if self.random.one_in(6) { self.random.next() } else { bytes };
        let file = [offer.file.as_raw_fd()];
        let Some(answer) = self.tell(Matter::Share, [claim, 0, 0, 0], &file) else { return Ok(()) };
        if blocks(&offer.file) != before {
            return Err(format!("the server made pages of a file of {bytes} bytes"));
        }
        if answer.code != 0 {
            return Ok(());
        }
        // One that claims less than it has may have a hole behind that.
        if offer.is_bad && claim == bytes {
            return Err(format!("the server took a bad file of {bytes} bytes"));
        }
        if punch(&offer.file, 0).is_ok() || offer.file.set_len(0).is_ok() {
            return Err("pages that the server took can go".to_owned());
        }
        if let Some((_, region)) = &mut self.client
            && bytes == REGION
        {
            *region = Some(answer.numbers[0] as u32);
        }
        Ok(())
    }

    fn unshare(&mut self) {
        let number = self.random.below(4);
        let Some((raw, region)) = &mut self.client else { return };
        // It has no answer. One that was not shared ends the connection.
        let _ = raw
            .stream
            .send_with_fds(&[Message::new(Matter::Unshare, [number, 0, 0, 0]).as_bytes()], &[]);
        *region = region.filter(|region| u64::from(*region) != number);
    }

    fn define(&mut self) {
        let two = |high: u64, low: u64| high << 32 | low;
        let tokens = 1 + self.random.below(500);
        let numbers = match self.random.one_in(4) {
            true => [self.random.next(), self.random.next(), self.random.next(), 7],
            false => [two(2, 2), two(1, 64), two(tokens, 2), self.random.below(3)],
        };
        let _ = self.tell(Matter::Layout, numbers, &[]);
    }

    /// Waits a moment for answers, of which it reads none.
    fn pause(&mut self) {
        let Some((raw, _)) = &mut self.client else { return };
        let begin = Instant::now();
        while raw.answers() != raw.tail && begin.elapsed() < Duration::from_millis(50) {
            std::thread::yield_now();
        }
        raw.skip();
    }

    fn ask_anything(&mut self) {
        let count = 1 + self.random.below(DEPTH);
        let entries: Vec<RequestEntry> = (0..count)
            .map(|_| {
                let words: Vec<u8> = (0..size_of::<RequestEntry>() / 8)
                    .flat_map(|_| self.random.next().to_le_bytes())
                    .collect();
                let mut entry = RequestEntry::read_from_bytes(&words).expect("its size");
                entry.head.action = self.random.below(24) as u8;
                if !self.random.one_in(4) {
                    entry.head.key_bytes %= 600;
                }
                if !self.random.one_in(4) {
                    let head = &mut entry.head;
                    (head.region, head.offset) = (head.region % 2, head.offset % REGION);
                    (head.room, head.bytes) = (head.room % REGION, head.bytes % REGION);
                    head.layout %= 6;
                }
                entry
            })
            .collect();
        self.push(&entries);
    }

    fn push(&mut self, entries: &[RequestEntry]) {
        let Some((raw, _)) = &mut self.client else { return };
        raw.push_all(entries);
        // Its counter may be full, which is its own fault.
        let _ = raw.server_bell.write(1);
        if self.attack == Attack::Everything && !self.random.one_in(30) {
            self.pause();
        }
    }

    fn some_key(&mut self) -> Key {
        Key::new(format!("x{}", self.random.below(KEYS)).as_bytes()).expect("a key")
    }

    /// Puts some objects, and leases them and others for a day.
    fn fill_and_lease(&mut self) {
        if self.client.is_none() {
            self.greet();
        }
        let Some((_, region)) = &self.client else { return };
        let region = match *region {
            Some(region) => region,
            None => {
                let file = sealable(REGION);
                let files = [file.as_raw_fd()];
                let Some(answer) = self.tell(Matter::Share, [REGION, 0, 0, 0], &files) else {
                    return;
                };
                if Code::of(answer.code) != Code::Done {
                    self.client = None;
                    return;
                }
                let number = answer.numbers[0] as u32;
                if let Some((_, region)) = &mut self.client {
                    *region = Some(number);
                }
                number
            }
        };
        let bytes = REGION / 4;
        let puts: Vec<RequestEntry> = (0..4)
            .map(|number| {
                let memory = MemoryRun { region, offset: number * bytes, bytes };
                let (key, condition) = (self.some_key(), Condition::Always);
                let ask = Ask::Put {
                    key,
                    memory,
                    bytes,
                    layout: 0,
                    ttl_s: 0,
                    joins: number > 0,
                    condition,
                };
                RequestEntry::of(&ask, number)
            })
            .collect();
        self.push(&puts);
        let day = Duration::from_secs(24 * 3600);
        let leases: Vec<RequestEntry> = (0..DEPTH)
            .map(|tag| RequestEntry::of(&Ask::Lease { key: self.some_key(), time: day }, tag))
            .collect();
        self.push(&leases);
        if self.random.one_in(2) {
            let memory = MemoryRun { region, offset: 0, bytes };
            let (key, part, is_checked) = (self.some_key(), Part::All, self.random.one_in(2));
            let ask = Ask::Get { key, part, memory, version: None, is_checked };
            self.push(&[RequestEntry::of(&ask, 0)]);
        }
    }

    fn reserve_all(&mut self) {
        if self.client.is_none() {
            self.greet();
            self.piece = PIECE_MAX;
        }
        let Some((raw, _)) = &mut self.client else { return };
        // Those that wait for room have no answer yet; with more of them it would be left.
        if raw.answers() != raw.tail {
            if is_hung_up(&raw.stream) {
                self.client = None;
            }
            return std::thread::sleep(Duration::from_millis(1));
        }
        let answered = raw.tail - raw.head;
        let refused = (0..answered).filter(|_| Code::of(raw.take().code) != Code::Done).count();
        if refused as u64 == DEPTH {
            // What is left is in smaller pieces, or is the share of one client.
            self.piece = (self.piece / 2).max(PAGE);
        }
        let (condition, bytes) = (Condition::Always, self.piece);
        let entries: Vec<RequestEntry> = (0..DEPTH)
            .map(|tag| {
                let key = self.some_key();
                RequestEntry::of(&Ask::Reserve { key, bytes, layout: 0, ttl_s: 0, condition }, tag)
            })
            .collect();
        self.push(&entries);
    }

    /// Reserves room that it never uses.
    fn reserve(&mut self) {
        let bytes = if self.random.one_in(4) { self.random.next() } else { 8 << 20 };
        let (key, condition) = (self.some_key(), Condition::Always);
        let ask = Ask::Reserve { key, bytes, layout: 0, ttl_s: 0, condition };
        self.push(&[RequestEntry::of(&ask, 0)]);
    }

    /// Writes counters that can hardly be.
    fn jump(&mut self) {
        let value = if self.random.one_in(2) { self.random.next() } else { u64::MAX };
        let word = if self.random.one_in(2) { REQUESTS_TAIL } else { ANSWERS_HEAD };
        if let Some((raw, _)) = self.client.take() {
            raw.store(word, value);
            raw.ring();
            // Some of these may be, modulo 2^64; then nothing has to happen.
            std::thread::sleep(Duration::from_millis(self.random.below(3)));
        }
    }

    fn talk_nonsense(&mut self) {
        let bytes: Vec<u8> =
            (0..self.random.below(900)).map(|_| self.random.next() as u8).collect();
        if let Some((raw, _)) = self.client.take() {
            let _ = (&raw.stream).write(&bytes);
        }
    }
}
