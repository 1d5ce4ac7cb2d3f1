//! The handle of a client: how it connects, what it shares, and what takes its answers.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_kvstore::shard::Stats;
use adit_kvstore::{Error, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};
use zerocopy::FromBytes;

use super::Unfinished;
use super::control::{Control, Registration};
use super::options::ClientOptions;
use super::pending::{Meaning, Pending};
use super::requests::{Memory, Requests, Wish};
use super::shared::Shared;
use crate::mapping::{LARGE, Mapping, PAGE};
use crate::memory::{self, SharedRegion, Span};
use crate::ring::{self, Rings, Sleep};
use crate::wire::{Matter, Message, Serving, VERSION};

/// How long the server may take to answer a message.
const MESSAGE_MAX: Duration = Duration::from_secs(60);

/// A request to make, or why there is none.
pub(super) type Made = Result<(Wish, Memory), Unfinished>;

/// A connection to the server of a store, usable from any thread. Clones refer to the same connection, which ends with
/// the last of them and of their requests, spans, values and leases.
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
    /// Bytes that the server lets a client share.
    pub(super) bytes_max: u64,
}

impl Client {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// [`Error::System`] if no server listens there; [`Error::Refused`] if it does not take this client;
    /// [`Error::Invalid`] for an invalid option.
    pub fn connect(path: &Path, options: &ClientOptions) -> Result<Client> {
        if !ring::is_depth(options.depth) {
            let fix = "use a power of two from 2 to 4096";
            return Err(Error::invalid("depth", options.depth, fix));
        }
        let connect = |why| Error::system(format!("connect to {}", path.display()), why);
        let bytes = ring::bytes(options.depth);
        let make = |why| Error::system("make the rings", why);
        let file = memory::make(c"adit-rings", bytes as u64).map_err(make)?;
        let rings = Rings::new(memory::own_rings(&file, bytes).map_err(make)?, options.depth);
        let (bell, bell_file) = doorbell()?;
        let (server_bell, server_bell_file) = doorbell()?;
        let process = std::process::id().into();
        let greeting = Message::new(Matter::Greet, [VERSION, options.depth, process, 0])
            .with_body(options.tenant.as_deref().unwrap_or_default().as_bytes());
        // Connects last, because the server closes silent connections first.
        let stream = UnixStream::connect(path).map_err(connect)?;
        stream.set_read_timeout(Some(MESSAGE_MAX)).map_err(connect)?;
        stream.set_write_timeout(Some(MESSAGE_MAX)).map_err(connect)?;
        let watched = stream.try_clone().map_err(connect)?;
        let control = Control::new(stream);
        let answer = control.ask(&greeting, &[&file, &server_bell_file, &bell_file]);
        let answer = answer.map_err(|error| match error {
            Error::Lost { why } => Error::Lost {
                why: format!(
                    "{why}, before it answered: it may have too many connections; try again"
                ),
            },
            error => error,
        })?;
        let bytes_max = answer.numbers[1];
        let state = Requests::new(&rings, options.depth);
        let (sleep, bells) = (Sleep::of_client(&rings), (bell, server_bell));
        let shared = Shared::new(state, (control, watched), sleep, bells, options.clone());
        Ok(Client { shared, bytes_max })
    }

    /// Makes and registers shared memory, as [`Client`]'s `allocate` says.
    ///
    /// # Errors
    /// [`Error::Refused`] if that is more than a client may share; [`Error::System`] if there is no
    /// memory.
    pub(super) fn make_memory(&self, len: usize) -> Result<Span> {
        let page = if len < LARGE { PAGE } else { LARGE as u64 };
        let bytes = (len.max(1) as u64).next_multiple_of(page);
        let make = |why| Error::system(format!("make {bytes} bytes of shared memory"), why);
        self.check_lost()?;
        let file = memory::make(c"adit-pool", bytes).map_err(make)?;
        // The server refuses files with missing pages, and seals them against later mappings. It pins the pages, which
        // then stay as they are. None are made if it is going to refuse them.
        let map = || Mapping::new(&file, bytes as usize).map_err(make);
        let mapping = (bytes <= self.bytes_max).then(map).transpose()?;
        if let Some(mapping) = &mapping {
            mapping.enlarge();
            mapping.populate().map_err(make)?;
        }
        let answer = self.ask(&Message::new(Matter::Share, [bytes, 0, 0, 0]), &[&file])?;
        let (control, number) = (Arc::clone(&self.shared.control), answer.numbers[0]);
        let registration = Box::new(Registration { control, number });
        let mapping = mapping.map_or_else(map, Ok)?;
        Ok(SharedRegion::span(mapping, (self.shared.number, number as u32), registration))
    }

    /// Takes the answers that have arrived, for an event loop; see the module's documentation. Wakes their futures.
    pub fn reap(&self) {
        self.shared.reap();
    }

    /// Takes the answers that have arrived and wakes their futures, for a thread that serves them.
    pub fn take_answers(&self) {
        self.shared.with(Requests::turn);
    }

    /// Sleeps until an answer arrives, [`Client::rouse`] is called, or `at_most` has passed. It may return early.
    pub fn watch(&self, at_most: Duration) {
        self.shared.watch(at_most);
    }

    /// Makes [`Client::watch`] of another thread return, or its next call.
    pub fn rouse(&self) {
        self.shared.rouse();
    }

    /// Makes the pool if there is none and waits for it, so that no later request has to.
    ///
    /// # Errors
    /// [`Error::Refused`] if that is more than a client may share; [`Error::System`] if there is no memory.
    pub fn make_pool(&self) -> Result<()> {
        if !self.has_pool() {
            let memory = self.make_memory(self.shared.options.pool_bytes)?;
            self.shared.with(|state| state.set_pool(memory));
        }
        Ok(())
    }

    /// Returns whether the pool was made.
    pub fn has_pool(&self) -> bool {
        self.shared.with(|state| state.has_pool())
    }

    /// Makes the pool if there is none, and checks that it can hold `bytes`.
    pub(super) fn check_pool(&self, bytes: usize) -> Result<(), Unfinished> {
        let pool_bytes = self.shared.options.pool_bytes;
        if bytes > pool_bytes {
            let fix = format!(
                "the client's pool has {pool_bytes}: put it in pieces (Client::put_from) or from shared memory \
                 (Client::allocate), or raise pool_bytes"
            );
            let error = Error::invalid("the length of an object in bytes", bytes, fix);
            return Err(Unfinished::new(error));
        }
        self.make_pool().map_err(Unfinished::new)
    }

    /// Fails if the server is lost, before anything is made for it.
    pub(super) fn check_lost(&self) -> Result<()> {
        let why = self.shared.with(|state| state.why_lost().map(str::to_owned));
        why.map_or(Ok(()), |why| Err(Error::Lost { why }))
    }

    /// Sends a message and returns its answer. Without one the server is lost.
    pub(super) fn ask(&self, message: &Message, files: &[&File]) -> Result<Message> {
        self.check_lost()?;
        let answer = self.shared.control.ask(message, files);
        if let Err(Error::Lost { why }) = &answer {
            self.shared.lose(why);
        }
        answer
    }

    /// Returns the counters of the store and of the server, and waits for them.
    ///
    /// # Errors
    /// [`Error::Lost`] if the server is gone.
    pub fn stats(&self) -> Result<(Stats, Serving)> {
        let answer = self.ask(&Message::new(Matter::Stats, [0; 4]), &[])?;
        let read = <[u64; Stats::FIELDS]>::read_from_prefix(answer.body()).ok();
        let read =
            read.and_then(|(fields, rest)| Some((fields, Serving::read_from_bytes(rest).ok()?)));
        let lost = || Error::Lost { why: "it counts what this version does not".to_owned() };
        read.map(|(fields, serving)| (Stats::of_fields(fields), serving)).ok_or_else(lost)
    }

    /// Calls `then` once the server is lost, with the reason, on the thread that notices: one that makes a request,
    /// waits for an answer, or drops a value or a lease. A loss that was noticed before calls it at once. It replaces
    /// the function of an earlier call.
    pub fn when_lost(&self, then: impl FnOnce(&str) + Send + 'static) {
        self.shared.when_lost(Box::new(then));
    }

    pub(super) fn submit<T>(&self, made: Made, meaning: Meaning<T>) -> Pending<T> {
        self.submit_all(vec![made], meaning).pop().expect("one request, one answer")
    }

    /// Makes requests that go to the server together.
    pub(super) fn submit_all<T>(&self, made: Vec<Made>, meaning: Meaning<T>) -> Vec<Pending<T>> {
        let slots = self.shared.with(|state| {
            let add = |made: Made| made.map(|(wish, memory)| state.add(wish, memory));
            let slots: Vec<Result<u32, Unfinished>> = made.into_iter().map(add).collect();
            state.turn();
            slots
        });
        let pending = |slot| match slot {
            Ok(slot) => Pending::new(&self.shared, slot, meaning),
            Err(why) => Pending::made(&self.shared, Err(why)),
        };
        slots.into_iter().map(pending).collect()
    }
}

/// Makes an eventfd and a second descriptor of it.
fn doorbell() -> Result<(EventFd, File)> {
    let make = |why| Error::system("make a doorbell", why);
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    let bell = EventFd::from_flags(flags).map_err(|why| make(why.into()))?;
    let file = bell.as_fd().try_clone_to_owned().map_err(make)?;
    Ok((bell, File::from(file)))
}

/// A descriptor that becomes readable when answers arrive after [`Client::reap`].
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("options", &self.shared.options).finish_non_exhaustive()
    }
}
