//! Requests that wait for registered memory. Their type differs from that of requests which a shard can begin.
//!
//! Only four requests can wait: a put or a part of an object with its data, and a read into the store's memory or by
//! way of it, once its object is found. Such a request is [`Unequipped`]; [`Unequipped::equip`] turns it into one
//! that a shard can begin.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::bounced::BouncedRead;
use super::caller::{Caller, ReadCaller, Waiter};
use super::fetch::Fetch;
use crate::error::Error;
use crate::shard::{Action, FillItem, GetItem, Hashed, PutItem, Request};
use crate::store::answer::{Put, Reply, Wanted};
use crate::store::memory::{Counts, PoolBuffer, RegisteredData, Unfinished, Unregistered};

/// A request without the memory that it needs.
pub(crate) struct Unequipped {
    hash: u64,
    since: Time,
    deadline: Time,
    /// How many bytes it lacks, and for which device, or any.
    lacks: (usize, Option<u8>),
    call: Call,
}

enum Call {
    Fetch(Fetch, GetItem),
    Bounced(Box<BouncedRead>, GetItem),
    Put(Reply<Put>, PutItem, Box<Unregistered<'static>>),
    Fill(Reply<AnyBuffer>, FillItem, Box<Unregistered<'static>>),
}

impl Unequipped {
    /// Takes a read back from a shard that has found its object, because it lacks memory for the object's device.
    ///
    /// # Errors
    /// The request, if it is not a read that needs the store's memory.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(crate) fn read(
        asked: Hashed<Waiter>,
        lacks: (usize, Option<u8>),
    ) -> Result<Unequipped, Hashed<Waiter>> {
        let Hashed { hash, request } = asked;
        let Request { reply: Waiter { since, caller }, deadline, action } = request;
        let call = match (caller, action) {
            (Caller::Read(ReadCaller::Fetch(fetch)), Action::Get(item)) => Call::Fetch(fetch, item),
            (Caller::Read(ReadCaller::Bounced(read)), Action::Get(item)) => {
                Call::Bounced(read, item)
            }
            (caller, action) => {
                let reply = Waiter { since, caller };
                return Err(Hashed { hash, request: Request { reply, deadline, action } });
            }
        };
        Ok(Unequipped { hash, since, deadline, lacks, call })
    }

    /// Creates a put whose data wait for memory.
    pub(crate) fn put(
        hash: u64,
        (since, deadline): (Time, Time),
        (reply, item): (Reply<Put>, PutItem),
        data: Unregistered<'static>,
    ) -> Unequipped {
        let (lacks, call) = (data.lacks(), Call::Put(reply, item, Box::new(data)));
        Unequipped { hash, since, deadline, lacks, call }
    }

    /// Creates a part of an object whose data wait for memory.
    pub(crate) fn fill(
        (since, deadline): (Time, Time),
        (reply, item): (Reply<AnyBuffer>, FillItem),
        data: Unregistered<'static>,
    ) -> Unequipped {
        let (lacks, call) = (data.lacks(), Call::Fill(reply, item, Box::new(data)));
        Unequipped { hash: 0, since, deadline, lacks, call }
    }

    /// Returns how many bytes it lacks, and for which device, or any.
    pub(crate) fn lacks(&self) -> (usize, Option<u8>) {
        self.lacks
    }

    /// Returns when it fails if it has not begun.
    pub(crate) fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns the hash of the key that it changes, if it changes one.
    pub(crate) fn key_hash(&self) -> Option<u64> {
        matches!(self.call, Call::Put(..)).then_some(self.hash)
    }

    /// Returns the store's end of its answer.
    pub(crate) fn reply(&self) -> &dyn Wanted {
        match &self.call {
            Call::Fetch(fetch, _) => &fetch.reply,
            Call::Bounced(read, _) => &read.reply,
            Call::Put(reply, ..) => reply,
            Call::Fill(reply, ..) => reply,
        }
    }

    /// Answers with an error, and gives back the caller's memory.
    pub(crate) fn refuse(self, error: impl Into<Error>) {
        match self.call {
            Call::Fetch(fetch, _) => fetch.reply.send(Err(Unfinished::new(error))),
            Call::Bounced(read, _) => read.refuse(error),
            Call::Put(reply, _, data) => reply.send(Err(Unfinished::with(error, data.into_lent()))),
            Call::Fill(reply, _, data) => {
                reply.send(Err(Unfinished::with(error, data.into_lent())));
            }
        }
    }

    /// Gives it the memory that it waited for: a shard can begin it.
    pub(crate) fn equip(self, buffer: PoolBuffer, counts: &Counts) -> Hashed<Waiter> {
        let Unequipped { hash, since, deadline, call, .. } = self;
        let (caller, action) = match call {
            Call::Fetch(mut fetch, item) => {
                fetch.grant(buffer);
                (Caller::Read(ReadCaller::Fetch(fetch)), Action::Get(item))
            }
            Call::Bounced(mut read, item) => {
                read.grant(buffer);
                (Caller::Read(ReadCaller::Bounced(read)), Action::Get(item))
            }
            Call::Put(reply, item, data) => {
                let RegisteredData { memory: data, origin, .. } = data.register(buffer, counts);
                (Caller::Put { reply, origin }, Action::Put(PutItem { data, ..item }))
            }
            Call::Fill(reply, item, data) => {
                let RegisteredData { memory: data, origin, .. } = data.register(buffer, counts);
                (Caller::Fill { reply, origin }, Action::Fill(FillItem { data, ..item }))
            }
        };
        let request = Request { reply: Waiter { since, caller }, deadline, action };
        Hashed { hash, request }
    }
}

/// A caller's request for memory of the pools.
pub(crate) struct Lend {
    pub(crate) len: usize,
    /// The device that it is for, or any.
    pub(crate) device: Option<u8>,
    pub(crate) deadline: Time,
    pub(crate) reply: Reply<PoolBuffer>,
}

impl Lend {
    /// Answers with an error.
    pub(crate) fn refuse(self, error: impl Into<Error>) {
        self.reply.send(Err(Unfinished::new(error)));
    }
}
