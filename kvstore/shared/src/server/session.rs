//! One client: its thread, which greets it, shares its memory, and lets it go.
//!
//! The thread wakes for messages and the hang-up on the socket, for a fault in the rings, and for the server's end. What
//! is in the rings is the business of a thread of the store's ([`Taking`]).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::runtime::caught;
use adit_driver::serve::parts::{Signaller, close_elsewhere, is_eventfd};
use adit_kvstore::Store;
use adit_kvstore::store::{Attached, PutWith};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use zerocopy::IntoBytes;

use super::counts::Counts;
use super::desk::Desk;
use super::taking::{Link, Taking};
use super::{Event, Options};
use crate::memory;
use crate::ring::{self, Rings};
use crate::socket::{Incoming, Peer};
use crate::wire::{Code, GREETING_FILES, Matter, Message, VERSION, layout_of};

/// How long a client may take to greet.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// How long requests in progress may take once the server ends.
const ENDING_MAX: Duration = Duration::from_secs(10);
/// The most layouts that a client may define.
const LAYOUTS_MAX: usize = 256;

/// Names of what the thread sleeps on.
const SOCKET: u64 = 0;
const FAULT: u64 = 1;
const END: u64 = 2;

/// Why a session ends.
pub(super) enum End {
    /// The client left, or the server ends.
    Left(String),
    /// The client broke a rule.
    Expelled(String),
}

/// What the sessions of a server share.
pub(super) struct Common<'a> {
    pub(super) store: &'a Store,
    pub(super) options: &'a Options,
    pub(super) counts: &'a Arc<Counts>,
    pub(super) stops: &'a AtomicBool,
    /// Readable once the server ends.
    pub(super) end: &'a EventFd,
    pub(super) tell: &'a (dyn Fn(&Event) + Sync),
}

/// A client that has greeted.
struct Greeted {
    desk: Arc<Desk>,
    link: Arc<Link>,
    taking: Attached,
}

struct Session<'a> {
    common: &'a Common<'a>,
    number: u64,
    peer: Peer,
    epoll: Epoll,
    greeted: Option<Greeted>,
    /// Bytes of memory that it shares.
    shared_bytes: u64,
    regions_bytes: Vec<u64>,
}

/// Serves a client until it leaves, breaks a rule, or the server ends. Nothing of it stays behind but what the store is
/// still doing with its memory.
pub(super) fn run(common: &Common<'_>, number: u64, stream: UnixStream) {
    let end = match Session::new(common, number, stream) {
        Ok(mut session) => {
            let served = caught("it served a client, which is a bug", || session.serve());
            let end = served.unwrap_or_else(|why| End::Left(format!("its thread died ({why})")));
            session.close();
            end
        }
        Err(why) => End::Left(format!("cannot serve it: {why}")),
    };
    let (why, is_expelled) = match end {
        End::Left(why) => (why, false),
        End::Expelled(why) => (why, true),
    };
    // Before it is counted: what the counters show has been told.
    (common.tell)(&Event::ClientGone { client: number, why, is_expelled });
    common.counts.clients_expelled.fetch_add(u64::from(is_expelled), Ordering::Relaxed);
    common.counts.clients_now.fetch_sub(1, Ordering::Relaxed);
}

impl<'a> Session<'a> {
    fn new(
        common: &'a Common<'a>,
        number: u64,
        stream: UnixStream,
    ) -> std::io::Result<Session<'a>> {
        let peer = Peer::new(stream)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        epoll.add(peer.stream(), EpollEvent::new(readable, SOCKET))?;
        epoll.add(common.end.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, END))?;
        let (greeted, shared_bytes, regions_bytes) = (None, 0, Vec::new());
        Ok(Session { common, number, peer, epoll, greeted, shared_bytes, regions_bytes })
    }

    fn serve(&mut self) -> End {
        let came = Instant::now();
        loop {
            if self.common.stops.load(Ordering::Acquire) {
                self.finish();
                return End::Left("the server ends".to_owned());
            }
            if self.greeted.is_none() && came.elapsed() > GREETING_MAX {
                return End::Expelled("it did not greet".to_owned());
            }
            if let Err(end) = self.sleep() {
                return end;
            }
        }
    }

    /// Sleeps until there is something to do, and does it.
    fn sleep(&mut self) -> Result<(), End> {
        let at_most = match self.greeted {
            Some(_) => EpollTimeout::NONE,
            None => EpollTimeout::from(1000u16),
        };
        let mut events = [EpollEvent::empty(); 3];
        let count = match self.epoll.wait(&mut events, at_most) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(why) => return Err(End::Left(format!("cannot wait for it: {why}"))),
        };
        if let Some(Greeted { link, .. }) = &self.greeted {
            let fault = link.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
            fault.map_or(Ok(()), Err)?;
        }
        match events[..count].iter().any(|event| event.data() == SOCKET) {
            true => self.hear(),
            false => Ok(()),
        }
    }

    /// Handles the messages that have come.
    fn hear(&mut self) -> Result<(), End> {
        loop {
            match self.peer.receive() {
                Incoming::Nothing => return Ok(()),
                Incoming::Gone(why) => return Err(End::Left(why)),
                Incoming::Message(message, files) => {
                    let matter = message.matter();
                    let Some(matter) = matter else {
                        close_elsewhere(files);
                        return Err(End::Expelled("it does not speak this protocol".to_owned()));
                    };
                    if matter == Matter::Unshare {
                        self.unshare(message.numbers[0], files)?;
                        continue;
                    }
                    let answer = match self.handle(matter, &message, files) {
                        Ok(numbers) => self.answer_of(matter, numbers),
                        Err((code, why)) => {
                            let code = code as u16;
                            Message { code, ..Message::new(matter, [0; 4]) }
                                .with_body(why.as_bytes())
                        }
                    };
                    self.peer.answer(&answer).map_err(End::Left)?;
                    if self.greeted.is_none() {
                        let why = String::from_utf8_lossy(answer.body()).into_owned();
                        return Err(End::Expelled(why));
                    }
                }
            }
        }
    }

    fn answer_of(&self, matter: Matter, numbers: [u64; 4]) -> Message {
        let answer = Message::new(matter, numbers);
        if matter != Matter::Stats {
            return answer;
        }
        match self.common.store.stats().wait() {
            Ok(stats) => {
                let fields = stats.fields();
                let serving = self.common.counts.read();
                answer.with_body(&[fields.as_bytes(), serving.as_bytes()].concat())
            }
            Err(why) => {
                let code = Code::Failed as u16;
                Message { code, ..answer }.with_body(why.to_string().as_bytes())
            }
        }
    }

    fn handle(
        &mut self,
        matter: Matter,
        message: &Message,
        files: Vec<File>,
    ) -> Result<[u64; 4], (Code, String)> {
        if matter == Matter::Greet {
            return self.greet(message, files);
        }
        if self.greeted.is_none() {
            close_elsewhere(files);
            return Err((Code::Malformed, "greet first".to_owned()));
        }
        let number = message.numbers[0];
        match matter {
            Matter::Share => self.share(number, files),
            Matter::Layout => self.layout(message.numbers),
            Matter::Greet | Matter::Unshare | Matter::Stats => Ok([0; 4]),
        }
    }

    fn greet(&mut self, message: &Message, files: Vec<File>) -> Result<[u64; 4], (Code, String)> {
        let [version, depth, process, _] = message.numbers;
        let refuse = |why: String| Err((Code::Malformed, why));
        let [rings, bell, client_bell] = match <[File; GREETING_FILES]>::try_from(files) {
            Ok(files) => files,
            Err(files) => {
                close_elsewhere(files);
                return refuse(format!("{GREETING_FILES} files come with a greeting"));
            }
        };
        if version != VERSION {
            close_elsewhere([rings, bell, client_bell]);
            return refuse(format!(
                "the server speaks version {VERSION}, the client {version}: use one version of Adit"
            ));
        }
        if self.greeted.is_some() || !ring::is_depth(depth) {
            close_elsewhere([rings, bell, client_bell]);
            return refuse("a greeting comes once, with rings of 2 to 4096 entries".to_owned());
        }
        if !is_eventfd(&bell) || !is_eventfd(&client_bell) {
            close_elsewhere([rings, bell, client_bell]);
            return refuse("the doorbells are no eventfds".to_owned());
        }
        let with = self.put_with(message)?;
        let memory =
            memory::rings(&rings, ring::bytes(depth), &self.common.counts.mapped_bytes_now);
        close_elsewhere(rings);
        let memory =
            memory.map_err(|why| (Code::Malformed, format!("the rings' memory: {why}")))?;
        let failed = |why: std::io::Error| (Code::Failed, format!("the server: {why}"));
        let link = Link::new().map_err(failed)?;
        let added = self.epoll.add(&link.bell, EpollEvent::new(EpollFlags::EPOLLIN, FAULT));
        added.map_err(|why| failed(why.into()))?;
        let signaller = Signaller::new().map_err(failed)?;
        let rings = Rings::new(memory, depth);
        let (store, counts) = (self.common.store, self.common.counts);
        let desk = Desk::new(&rings, depth, signaller, client_bell, counts);
        let ends = (store.clone(), Arc::clone(&link));
        let taking = Taking::new(ends, (&rings, bell), &desk, with, counts);
        let taking = store.attach_feed(Box::new(taking));
        self.greeted = Some(Greeted { desk, link, taking });
        (self.common.tell)(&Event::ClientCame { client: self.number, process });
        Ok([VERSION, self.common.options.client_bytes_max, 0, 0])
    }

    /// Returns how the client's objects are stored: for its tenant, if it names one.
    fn put_with(&self, message: &Message) -> Result<PutWith, (Code, String)> {
        let name = std::str::from_utf8(message.body());
        let name = name.map_err(|_| (Code::Malformed, "a tenant's name is text".to_owned()))?;
        let tenant = match name {
            "" => None,
            name => {
                let tenant = self.common.store.tenant(name).wait();
                Some(tenant.map_err(|why| (Code::Failed, why.to_string()))?)
            }
        };
        Ok(PutWith { tenant, ..PutWith::default() })
    }

    fn share(&mut self, bytes: u64, mut files: Vec<File>) -> Result<[u64; 4], (Code, String)> {
        let file = match (files.pop(), files.is_empty()) {
            (Some(file), true) => file,
            (last, _) => {
                close_elsewhere((files, last));
                return Err((Code::Malformed, "one file comes with memory to share".to_owned()));
            }
        };
        let most = self.common.options.client_bytes_max;
        if self.shared_bytes.checked_add(bytes).is_none_or(|all| all > most) {
            close_elsewhere(file);
            let why = format!(
                "{bytes} bytes more than the {} that it shares; a client may share {most}: raise the server's \
                 --memory, or share less",
                self.shared_bytes
            );
            return Err((Code::Limit, why));
        }
        let Some(Greeted { desk, .. }) = &self.greeted else {
            unreachable!("checked by the caller")
        };
        let memory = memory::dma(file, bytes, &self.common.counts.mapped_bytes_now)
            .map_err(|why| (Code::Malformed, why))?;
        let buffer = self.common.store.register(memory);
        let buffer = buffer.map_err(|why| (Code::Failed, why.to_string()))?;
        let number = desk.add_region(buffer);
        let number = number.ok_or((Code::Limit, "it shares too many regions".to_owned()))?;
        self.shared_bytes += bytes;
        let place = number as usize;
        self.regions_bytes.resize(self.regions_bytes.len().max(place + 1), 0);
        self.regions_bytes[place] = bytes;
        Ok([number.into(), 0, 0, 0])
    }

    /// Lets go of a region. The client does not wait for an answer, so one that names another breaks a rule.
    fn unshare(&mut self, number: u64, files: Vec<File>) -> Result<(), End> {
        if !files.is_empty() {
            close_elsewhere(files);
        }
        let Some(Greeted { desk, .. }) = &self.greeted else {
            return Err(End::Expelled("greet first".to_owned()));
        };
        let removed = desk.remove_region(number);
        removed.map_err(|why| End::Expelled(format!("it takes back memory: {why}")))?;
        self.shared_bytes -= std::mem::take(&mut self.regions_bytes[number as usize]);
        Ok(())
    }

    fn layout(&mut self, numbers: [u64; 4]) -> Result<[u64; 4], (Code, String)> {
        let layout = layout_of(numbers);
        let layout = layout.ok_or((Code::Malformed, "there cannot be such a layout".to_owned()))?;
        let Some(Greeted { link, .. }) = &self.greeted else {
            unreachable!("checked by the caller")
        };
        let layouts = || link.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = layouts().iter().position(|known| *known.layout() == layout);
        let place = match known {
            Some(place) => place,
            None if layouts().len() == LAYOUTS_MAX => {
                return Err((Code::Limit, "it defines too many layouts".to_owned()));
            }
            None => {
                let defined = self.common.store.layout(layout).wait();
                let defined = defined.map_err(|why| (Code::Failed, why.to_string()))?;
                // Only this thread adds some.
                layouts().push(defined);
                layouts().len() - 1
            }
        };
        Ok([place as u64 + 1, 0, 0, 0])
    }

    /// Takes no more requests, and lets those in progress end.
    fn finish(&self) {
        let Some(Greeted { desk, link, .. }) = &self.greeted else { return };
        link.is_over.store(true, Ordering::Release);
        let since = Instant::now();
        while desk.in_progress() > 0 && since.elapsed() < ENDING_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn close(self) {
        let Some(Greeted { desk, link, taking }) = self.greeted else { return };
        link.is_over.store(true, Ordering::Release);
        drop(taking);
        desk.close();
    }
}
