//! A store that another process serves, as a client of it sees it: bytes are copied into and out of the memory that it
//! shares with the server.

use std::path::Path;
use std::time::Instant;

use adit_driver::{Buffer, Device, DeviceOptions, Target, Time};
use adit_kvshare::client::{Pending, Value};
use adit_kvshare::{Client, ClientOptions, KvStore, PendingAnswer, Span, StoredBytes, Unfinished};
use adit_kvstore::shard::{Action, Outcome, Request, Stats};
use adit_kvstore::store::{Put, PutWith};
use adit_kvstore::{Error, Key, UNIT_BYTES, units};

use super::bed::{Bed, EndedRequest, Measured, SLEEP_MAX};
use crate::any_store::{POOL_BYTES, connect};
use crate::failure::Result;
use adit_tools_common::session::one;

/// Objects listed at once.
const PAGE: usize = 1024;

/// A connection to a server, and the requests in flight.
pub(super) struct Served {
    client: Client,
    /// Lends the memory of objects.
    memory: Device,
    began: Instant,
    waiting: Vec<ClientRequest>,
}

/// A request in flight.
struct ClientRequest {
    reply: u64,
    memory: Buffer,
    answer: ServedAnswer,
}

enum ServedAnswer {
    Get(Pending<Option<Value>>),
    Put(Pending<Put<Option<Span>>>),
}

impl Served {
    /// Connects to the server at `socket`, for `items` objects of `object_bytes` in flight.
    ///
    /// # Errors
    /// When no server answers there, or it has no memory for these objects.
    pub(super) fn connect(socket: &Path, items: usize, object_bytes: u64) -> Result<Served> {
        let pool_bytes = items * (units(object_bytes) * UNIT_BYTES) as usize;
        let options = ClientOptions {
            depth: (items as u64).next_power_of_two().clamp(2, 4096),
            pool_bytes: pool_bytes.max(POOL_BYTES),
            ..ClientOptions::default()
        };
        let client = connect(socket, &options)?;
        client.make_pool()?;
        let null: Target = "null:".parse()?;
        let memory = Device::open(&null, &DeviceOptions::default())?;
        Ok(Served { client, memory, began: Instant::now(), waiting: Vec::new() })
    }
}

impl ClientRequest {
    /// Takes the answer.
    ///
    /// # Errors
    /// Itself if the answer has not arrived.
    fn try_end(self) -> std::result::Result<EndedRequest, ClientRequest> {
        let ClientRequest { reply, mut memory, answer } = self;
        let mut hit =
            |value: Option<Value>| value.map_or(Outcome::Miss, |value| copy(&value, &mut memory));
        let ended = match answer {
            ServedAnswer::Get(pending) => match answered(pending) {
                Ok(value) => Ok(value.map(&mut hit)),
                Err(pending) => Err(ServedAnswer::Get(pending)),
            },
            ServedAnswer::Put(pending) => match answered(pending) {
                Ok(put) => Ok(put.map(|put| put.outcome)),
                Err(pending) => Err(ServedAnswer::Put(pending)),
            },
        };
        match ended {
            Ok(result) => Ok(EndedRequest { reply, result, memory }),
            Err(answer) => Err(ClientRequest { reply, memory, answer }),
        }
    }
}

/// Takes an answer that has arrived, or that the client no longer waits for.
fn answered<T: Send + 'static>(
    pending: Pending<T>,
) -> std::result::Result<std::result::Result<T, Error>, Pending<T>> {
    let reason = |unfinished: Unfinished| *unfinished.error;
    match pending.try_wait() {
        Err(pending) if pending.patience().is_zero() => Ok(pending.wait().map_err(reason)),
        other => other.map(|answer| answer.map_err(reason)),
    }
}

/// Copies as much of an object as the memory has room for.
fn copy(value: &Value, memory: &mut Buffer) -> Outcome {
    let bytes = value.len().min(memory.len());
    value.bytes().read(0, &mut memory[..bytes]);
    Outcome::Hit { bytes: value.len() as u64 }
}

impl Bed for Served {
    fn now(&self) -> Time {
        Time::from_ns(self.began.elapsed().as_nanos() as u64)
    }

    fn submit(&mut self, _now: Time, requests: impl Iterator<Item = Request>) {
        let (mut gets, mut puts) = (Vec::new(), Vec::new());
        for Request { reply, action, .. } in requests {
            match action {
                Action::Get(get) => gets.push((reply, get.key, one(get.into))),
                Action::Put(put) => puts.push((reply, put.key, put.bytes as usize, one(put.data))),
                other => unreachable!("a load gets and puts, and does not {other:?}"),
            }
        }
        let asked = self.client.get_many(gets.iter().map(|(_, key, _)| key.clone()));
        for ((reply, _, memory), pending) in gets.into_iter().zip(asked) {
            self.waiting.push(ClientRequest { reply, memory, answer: ServedAnswer::Get(pending) });
        }
        let items = puts.iter().map(|(_, key, bytes, data)| (key.clone(), &data[..*bytes]));
        let asked = self.client.put_many(items, &PutWith::default());
        for ((reply, _, _, memory), pending) in puts.into_iter().zip(asked) {
            self.waiting.push(ClientRequest { reply, memory, answer: ServedAnswer::Put(pending) });
        }
    }

    fn poll(&mut self, _now: Time, ended: &mut dyn FnMut(EndedRequest)) -> usize {
        let before = self.waiting.len();
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting.try_end() {
                Ok(end) => ended(end),
                Err(waiting) => self.waiting.push(waiting),
            }
        }
        let count = before - self.waiting.len();
        if count == 0 {
            self.client.watch(SLEEP_MAX);
        }
        count
    }

    fn lookup_prefix(&mut self, _now: Time, keys: &[Key]) -> Result<usize> {
        Ok(self.client.lookup_prefix(keys).wait()?)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer> {
        Ok(self.memory.allocate(bytes)?)
    }
}

impl Measured for Served {
    fn stats(&self) -> Result<Stats> {
        Ok(self.client.stats()?.0)
    }

    /// The server does not say for how many objects its store was formatted.
    fn objects_max(&self) -> u64 {
        u64::MAX
    }

    fn commit(&mut self) -> Result<()> {
        Ok(self.client.commit().wait()?)
    }

    fn keys(&self, each: &mut dyn FnMut(&Key)) -> Result<()> {
        let mut from = Some(0);
        while let Some(cursor) = from {
            let (page, next) = self.client.scan_prefix(&[], cursor, PAGE).wait()?;
            page.iter().for_each(|info| each(&info.key));
            from = next;
        }
        Ok(())
    }
}
