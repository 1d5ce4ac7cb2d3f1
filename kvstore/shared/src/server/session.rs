//! A client's session: its thread takes the greeting, maps the client's memory and ends the connection.
//!
//! The thread wakes for messages and the hang-up on the socket, for a fault in the rings, and for the server's end.
//! A thread of the store handles the rings' contents ([`Taking`]).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::runtime::caught;
use adit_driver::serve::parts::{Signaller, is_eventfd};
use adit_kvstore::layout::Layout;
use adit_kvstore::store::{Attached, PutWith};
use adit_kvstore::{Store, UNIT_BYTES};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use zerocopy::IntoBytes;

use super::counts::{Counts, add};
use super::desk::{Desk, Shares};
use super::link::{End, Link};
use super::mapped::{self, Allowance};
use super::options::{Event, Options};
use super::taking::Taking;
use super::waiting::Waiting;

use crate::ring::{self, Rings};
use crate::socket::{Files, Incoming, Peer};
use crate::wire::{Code, GREETING_FILES, Matter, Message, Reason, VERSION, layout_of};

/// How long a client may take to greet.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// How long requests in progress may take once the server ends.
const ENDING_MAX: Duration = Duration::from_secs(10);

/// The state that the sessions of a server share.
pub(super) struct Common<'a> {
    pub(super) store: &'a Store,
    pub(super) options: &'a Options,
    pub(super) counts: &'a Arc<Counts>,
    pub(super) stops: &'a AtomicBool,
    /// Readable once the server ends.
    pub(super) end: &'a EventFd,
    /// Connections that have not greeted.
    pub(super) waiting: &'a Waiting,
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
    greeted: Option<Greeted>,
    /// The client has one of the places.
    is_counted: bool,
    allowance: Allowance,
    /// Bytes of memory that it shares.
    shared_bytes: u64,
    regions_bytes: Vec<u64>,
}

/// Serves a client until it leaves, breaks a rule, or the server ends. Afterwards only memory
/// of in-flight requests remains.
pub(super) fn run(common: &Common<'_>, number: u64, stream: UnixStream) {
    let mut is_counted = false;
    let end = match Session::new(common, number, stream) {
        Ok(mut session) => {
            let served = caught("it served a client, which is a bug", || session.serve());
            let end = served.unwrap_or_else(|why| End::Left(format!("its thread died ({why})")));
            is_counted = session.is_counted;
            session.close();
            end
        }
        Err(why) => End::Left(format!("cannot serve it: {why}")),
    };
    let end = if common.waiting.remove(number) { End::TurnedAway } else { end };
    let counts = common.counts;
    let gone = |why, is_expelled| {
        // Before it is counted, so that the counters show reported events only.
        (common.tell)(&Event::ClientGone { client: number, why, is_expelled });
        counts.clients_expelled.fetch_add(u64::from(is_expelled), Ordering::Relaxed);
    };
    match end {
        End::Left(why) => gone(why, false),
        End::Expelled(why) => gone(why, true),
        End::TurnedAway => drop(counts.clients_turned_away.fetch_add(1, Ordering::Relaxed)),
    }
    counts.clients_now.fetch_sub(u64::from(is_counted), Ordering::Relaxed);
}

impl<'a> Session<'a> {
    fn new(
        common: &'a Common<'a>,
        number: u64,
        stream: UnixStream,
    ) -> std::io::Result<Session<'a>> {
        let peer = Peer::new(stream)?;
        let allowance = Allowance {
            mapped_bytes: Arc::clone(&common.counts.mapped_bytes_now),
            mappings: Arc::clone(&common.counts.mappings_now),
            bytes_max: common.options.all_bytes_max,
            maps_files: common.store.maps_files(),
        };
        Ok(Session {
            common,
            number,
            peer,
            greeted: None,
            is_counted: false,
            allowance,
            shared_bytes: 0,
            regions_bytes: Vec::new(),
        })
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
        // A hang-up is readable, too.
        let readable = |file| PollFd::new(file, PollFlags::POLLIN);
        let mut polled =
            vec![readable(self.peer.stream().as_fd()), readable(self.common.end.as_fd())];
        polled.extend(self.greeted.iter().map(|it| readable(it.link.bell.as_fd())));
        let at_most = match self.greeted {
            Some(_) => PollTimeout::NONE,
            None => PollTimeout::from(1000u16),
        };
        match poll(&mut polled, at_most) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(End::Left(format!("cannot wait for it: {why}"))),
        }
        let has_messages = polled[0].any() == Some(true);
        if let Some(Greeted { link, .. }) = &self.greeted {
            let fault = link.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
            fault.map_or(Ok(()), Err)?;
        }
        if has_messages { self.hear() } else { Ok(()) }
    }

    /// Handles the messages that have come.
    fn hear(&mut self) -> Result<(), End> {
        loop {
            match self.peer.receive() {
                Incoming::Nothing => return Ok(()),
                Incoming::Gone(why) => return Err(End::Left(why)),
                Incoming::Message(message, files) => {
                    let Some(matter) = message.matter() else {
                        return Err(End::Expelled("it does not speak this protocol".to_owned()));
                    };
                    if self.greeted.is_none() && !self.common.waiting.greets(self.number) {
                        return Err(End::TurnedAway);
                    }
                    if matter == Matter::Unshare {
                        self.unshare(message.numbers[0])?;
                        continue;
                    }
                    let answer = self.handle(matter, &message, files);
                    let answer = answer.unwrap_or_else(|why| Message::refused(matter, &why));
                    self.peer.answer(&answer).map_err(End::Left)?;
                    if self.greeted.is_none() {
                        let why = answer.reason().error().to_string();
                        return Err(match Code::of(answer.code) {
                            Code::Limit if !self.is_counted => End::TurnedAway,
                            Code::Malformed => End::Expelled(why),
                            _ => End::Left(why),
                        });
                    }
                    self.common.waiting.remove(self.number);
                }
            }
        }
    }

    fn handle(
        &mut self,
        matter: Matter,
        message: &Message,
        files: Files,
    ) -> Result<Message, Reason> {
        if matter == Matter::Greet {
            return Ok(Message::new(matter, self.greet(message, files)?));
        }
        let Some(Greeted { desk, link, .. }) = &self.greeted else {
            return Err(Reason::malformed("greet first"));
        };
        let (desk, link) = (Arc::clone(desk), Arc::clone(link));
        let answer = |number| Message::new(matter, [number, 0, 0, 0]);
        Ok(match matter {
            Matter::Share => answer(self.share(&desk, message.numbers[0], files)?),
            Matter::Layout => answer(self.layout(&link, message.numbers)?),
            Matter::Stats => {
                let stats = self.common.store.stats().wait();
                let fields = stats.map_err(|why| Reason::of(&why.into()))?.fields();
                let serving = self.common.counts.read();
                answer(0).with_body(&[fields.as_bytes(), serving.as_bytes()].concat())
            }
            Matter::Greet | Matter::Unshare => unreachable!("handled before"),
        })
    }

    fn greet(&mut self, message: &Message, mut files: Files) -> Result<[u64; 4], Reason> {
        let [version, depth, process, _] = message.numbers;
        let [rings, bell, client_bell] = &files.0[..] else {
            let why = format!("{GREETING_FILES} files come with a greeting");
            return Err(Reason::malformed(why));
        };
        if version != VERSION {
            return Err(Reason::malformed(format!(
                "the server speaks version {VERSION}, the client {version}: use one version of Adit"
            )));
        }
        if self.greeted.is_some() || !ring::is_depth(depth) {
            let why = "a greeting comes once, with rings of 2 to 4096 entries";
            return Err(Reason::malformed(why));
        }
        if !is_eventfd(bell) || !is_eventfd(client_bell) {
            return Err(Reason::malformed("the doorbells are no eventfds"));
        }
        self.take_place()?;
        let with = self.put_with(message)?;
        let memory = mapped::rings(rings, ring::bytes(depth), &self.allowance);
        let memory = memory.map_err(|Reason { code, text, .. }| {
            Reason::new(code, format!("the rings' memory: {text}"))
        })?;
        let failed = |why: std::io::Error| Reason::new(Code::Failed, format!("the server: {why}"));
        let link = Link::new().map_err(failed)?;
        let signaller = Signaller::new().map_err(failed)?;
        let rings = Rings::new(memory, depth);
        let (store, counts) = (self.common.store, self.common.counts);
        let stats = store.stats().wait().map_err(|why| Reason::of(&why.into()))?;
        let shares = Shares::new(stats.capacity_units * UNIT_BYTES, self.common.options);
        let bells = <[File; 2]>::try_from(files.0.split_off(1));
        let [bell, client_bell] = bells.expect("two files follow that of the rings");
        let desk = Desk::new(&rings, depth, shares, (signaller, client_bell), counts);
        let ends = (store.clone(), Arc::clone(&link));
        let lease_max = self.common.options.lease_max;
        let taking = Taking::new(ends, (&rings, bell), &desk, (with, lease_max), counts);
        let taking = store.attach_feed(Box::new(taking));
        counts.clients.fetch_add(1, Ordering::Relaxed);
        self.greeted = Some(Greeted { desk, link, taking });
        (self.common.tell)(&Event::ClientCame { client: self.number, process });
        Ok([VERSION, self.common.options.client_bytes_max, 0, 0])
    }

    /// Takes one of the places for clients.
    fn take_place(&mut self) -> Result<(), Reason> {
        let most = self.common.options.clients_max;
        let taken = add(&self.common.counts.clients_now, 1, most);
        self.is_counted = taken.is_ok();
        let why = || format!("too many clients: the server takes {most}; raise its --clients");
        taken.map(drop).map_err(|_| Reason::limit(why()))
    }

    /// Returns how the client's objects are stored: for its tenant, if it names one.
    fn put_with(&self, message: &Message) -> Result<PutWith, Reason> {
        let name = std::str::from_utf8(message.body());
        let name = name.map_err(|_| Reason::malformed("a tenant's name is text"))?;
        let tenant = match name {
            "" => None,
            name => {
                self.check_tenant(name)?;
                let tenant = self.common.store.tenant(name).wait();
                Some(tenant.map_err(|why| Reason::of(&why.error))?)
            }
        };
        Ok(PutWith { tenant, ..PutWith::default() })
    }

    /// Checks that a client may name this tenant: it has objects, or few tenants do. A tenant named earlier but without
    /// objects counts as new; otherwise clients could name many at first and use all of them later.
    fn check_tenant(&self, name: &str) -> Result<(), Reason> {
        let tenants = self.common.store.tenants().wait();
        let tenants = tenants.map_err(|why| Reason::of(&why.into()))?;
        let most = self.common.options.tenants_max;
        let named = tenants.iter().filter(|tenant| !tenant.name.is_empty());
        let used: Vec<_> =
            named.filter(|tenant| tenant.objects > 0 || tenant.quota.is_some()).collect();
        if used.len() < most || used.iter().any(|tenant| &*tenant.name == name) {
            return Ok(());
        }
        let why = format!(
            "too many tenants for another: clients bring in new ones while there are fewer than {most}; raise the \
             server's --tenants, or end it and give this one a quota by 'adit kv tenant TARGET {name} --quota SIZE'"
        );
        Err(Reason::limit(why))
    }

    /// Maps a client's memory for requests, and returns the region's number.
    fn share(&mut self, desk: &Desk, bytes: u64, mut files: Files) -> Result<u64, Reason> {
        if files.0.len() != 1 {
            return Err(Reason::malformed("one file comes with memory to share"));
        }
        let most = self.common.options.client_bytes_max;
        if self.shared_bytes.checked_add(bytes).is_none_or(|all| all > most) {
            let why = format!(
                "{bytes} bytes more than the {} that it shares; a client may share {most}: raise the server's \
                 --memory, or share less",
                self.shared_bytes
            );
            return Err(Reason::limit(why));
        }
        let file = files.0.pop().expect("there is one");
        let memory = mapped::dma(file, bytes, &self.allowance)?;
        let buffer = self.common.store.register(memory);
        let number = desk.add_region(buffer.map_err(|why| Reason::of(&why))?);
        let number = number.ok_or_else(|| Reason::limit("it shares too many regions"))?;
        self.shared_bytes += bytes;
        let place = number as usize;
        self.regions_bytes.resize(self.regions_bytes.len().max(place + 1), 0);
        self.regions_bytes[place] = bytes;
        Ok(number.into())
    }

    /// Releases a region. The client does not wait for an answer, so naming a region that it does not have breaks a
    /// rule.
    fn unshare(&mut self, number: u64) -> Result<(), End> {
        let Some(Greeted { desk, .. }) = &self.greeted else {
            return Err(End::Expelled("greet first".to_owned()));
        };
        let removed = desk.remove_region(number);
        removed.map_err(|why| End::Expelled(format!("it takes back memory: {why}")))?;
        self.shared_bytes -= std::mem::take(&mut self.regions_bytes[number as usize]);
        Ok(())
    }

    /// Defines a layout, and returns its number for the client.
    fn layout(&self, link: &Link, numbers: [u64; 4]) -> Result<u64, Reason> {
        let layout = layout_of(numbers);
        let layout = layout.ok_or_else(|| Reason::malformed("there cannot be such a layout"))?;
        let layouts = || link.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.common.options.client_layouts_max;
        let known = layouts().iter().position(|known| *known.layout() == layout);
        let place = match known {
            Some(place) => place,
            None if layouts().len() >= most => {
                let why = format!("a client may use {most} layouts: raise the server's --layouts");
                return Err(Reason::limit(why));
            }
            None => {
                self.check_layout(layout)?;
                let defined = self.common.store.layout(layout).wait();
                let defined = defined.map_err(|why| Reason::of(&why.error))?;
                // Only this thread adds layouts.
                layouts().push(defined);
                layouts().len() - 1
            }
        };
        Ok(place as u64 + 1)
    }

    /// Checks that a client may use this layout: it is in use, or few layouts are.
    fn check_layout(&self, layout: Layout) -> Result<(), Reason> {
        let used = self.common.store.layouts_beside(layout).wait();
        let used = used.map_err(|why| Reason::of(&why.into()))?;
        let most = self.common.options.all_layouts_max;
        if used == 0 || used < most {
            return Ok(());
        }
        let why = format!(
            "too many layouts for another: clients bring in new ones while fewer than {most} have objects or are in \
             use; raise the server's --layouts-all, or delete the objects of some"
        );
        Err(Reason::limit(why))
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
