//! The clients: each owns its keys, writes and reads them over HTTP, and checks every byte.
//!
//! A client sends one request at a time, at a steady pace, so that latencies of different moments compare.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::body::{Bodies, Random};
use super::figures::Figures;
use super::http::{Answer, Connection};
use super::ledger::{History, Version};
use super::server::{BLOCK_BYTES, LAYOUT, Lives};

/// The pace of a client.
const BETWEEN: Duration = Duration::from_millis(10);
/// Writes of a client of the ledger until it commits.
const WRITES_PER_COMMIT: u32 = 100;

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Puts, reads and deletes keys of a store that holds them all: a miss is a loss.
    Ledger,
    /// Reads popular keys and puts what is missing, as a cache is used: a miss may be an eviction.
    Cache,
    /// Like `Cache` with KV blocks of a layout, while a second model is there.
    SecondModel,
}

impl Role {
    fn keys(self) -> u64 {
        match self {
            Role::Ledger => 400,
            Role::Cache => 4000,
            Role::SecondModel => 300,
        }
    }

    /// Returns the length of a key's values: it never changes.
    fn bytes(self, key: u64) -> usize {
        let mut random = Random::new(key);
        match (self, random.below(20)) {
            (Role::SecondModel, _) => BLOCK_BYTES,
            (_, 0..8) => 512 + random.below(16 << 10) as usize,
            (_, 8..18) => 128 << 10,
            _ => 1 << 20,
        }
    }
}

/// What all clients share with the supervisor.
pub(super) struct Shared {
    pub(super) bodies: Bodies,
    pub(super) stops: AtomicBool,
    pub(super) second_model: AtomicBool,
    pub(super) figures: Mutex<Figures>,
    pub(super) violations: Mutex<Vec<String>>,
    /// Flips a bit of an answer, once: the check must find it.
    pub(super) flips: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Shared {
        let (stops, second_model, flips) = Default::default();
        let (figures, violations) = Default::default();
        Shared { bodies: Bodies::new(), stops, second_model, figures, violations, flips }
    }

    /// Takes what was counted since the last call.
    pub(super) fn take_figures(&self) -> Figures {
        std::mem::take(&mut *self.figures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the first violations, if any.
    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, figures: Figures) {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).add(figures);
    }
}

/// A client.
pub(super) struct Client<'a> {
    shared: &'a Shared,
    lives: &'a Lives,
    role: Role,
    first_key: u64,
    entries: Vec<History>,
    random: Random,
    connection: Option<Connection>,
    address: String,
    /// The lives of the server whose ends were noted.
    seen: usize,
    writes: u32,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        lives: &'a Lives,
        role: Role,
        number: u64,
        seed: u64,
    ) -> Client<'a> {
        let entries = (0..role.keys()).map(|_| History::new(Instant::now())).collect();
        Client {
            shared,
            lives,
            role,
            first_key: number << 32,
            entries,
            random: Random::new(seed ^ number << 32),
            connection: None,
            address: String::new(),
            seen: 0,
            writes: 0,
        }
    }

    /// Sends requests until the run is over or something is wrong.
    pub(super) fn run(mut self) {
        let mut due = Instant::now();
        while !self.shared.stops.load(Ordering::Relaxed) {
            due = (due + BETWEEN).max(Instant::now());
            if self.role == Role::SecondModel && !self.shared.second_model.load(Ordering::Relaxed) {
                // The server would close it meanwhile.
                self.connection = None;
                std::thread::sleep(BETWEEN);
            } else if self.meet()
                && let Err(what) = self.step()
            {
                let violation = format!("{:?}, {what}", self.role);
                self.shared
                    .violations
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(violation);
                return;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    /// Notes the ends of servers. Returns false while none lives.
    fn meet(&mut self) -> bool {
        for end in self.lives.ends_since(self.seen) {
            self.entries.iter_mut().for_each(|entry| entry.ended(end));
            self.seen += 1;
        }
        let Some((life, address)) = self.lives.current() else { return false };
        if self.address != address {
            (self.address, self.connection) = (address, None);
        }
        // It ended just now: note that first.
        life == self.seen
    }

    /// # Errors
    /// A fault in an answer.
    fn step(&mut self) -> Result<(), String> {
        if self.role == Role::Ledger {
            return self.keep_ledger();
        }
        // A few keys get most of the requests.
        let key = (self.random.share().powi(3) * self.entries.len() as f64) as usize;
        if self.random.below(20) == 0 {
            self.put(key);
            return Ok(());
        }
        if self.get(key)? == Some(None) {
            self.put(key);
        }
        Ok(())
    }

    fn keep_ledger(&mut self) -> Result<(), String> {
        let key = self.random.below(self.entries.len() as u64) as usize;
        match self.random.below(20) {
            0 => self.delete(key),
            1..9 => self.put(key),
            _ => drop(self.get(key)?),
        }
        if self.writes >= WRITES_PER_COMMIT {
            self.writes = 0;
            self.commit();
        }
        Ok(())
    }

    fn path(&self, key: usize) -> String {
        format!("/objects/{:016x}", self.first_key + key as u64)
    }

    /// Sends a request and returns its answer, or `None` without a whole one.
    fn ask(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Option<Answer> {
        let open = || Connection::open(&self.address).ok();
        let mut connection = self.connection.take().or_else(open)?;
        let answer = connection.ask(method, path, headers, body).ok()?;
        self.connection = answer.is_kept.then_some(connection);
        Some(answer)
    }

    fn put(&mut self, key: usize) {
        let number = self.first_key + key as u64;
        let version = self.entries[key].begin_put();
        let body = self.shared.bodies.of(number, version, self.role.bytes(number));
        let begun = Instant::now();
        let layout = format!("X-Layout: {LAYOUT}\r\n");
        let headers = if self.role == Role::SecondModel { &layout } else { "" };
        let answer = self.ask("PUT", &self.path(key), headers, &body);
        let is_done = answer.is_some_and(|answer| answer.status == 201);
        self.wrote(key, is_done, |figures| figures.put(begun.elapsed()));
    }

    fn delete(&mut self, key: usize) {
        self.entries[key].begin_delete();
        let answer = self.ask("DELETE", &self.path(key), "", &[]);
        let is_done = answer.is_some_and(|answer| matches!(answer.status, 204 | 404));
        self.wrote(key, is_done, |_| {});
    }

    fn wrote(&mut self, key: usize, is_done: bool, count: impl FnOnce(&mut Figures)) {
        let mut figures = Figures::default();
        if is_done {
            self.entries[key].acknowledged(Instant::now());
            self.writes += 1;
            match self.role {
                Role::Ledger => figures.ledger += 1,
                _ => count(&mut figures),
            }
        } else {
            figures.refused += 1;
        }
        self.shared.add(figures);
    }

    fn commit(&mut self) {
        let before = Instant::now();
        let answer = self.ask("POST", "/commit", "", &[]);
        if answer.is_some_and(|answer| answer.status == 204) {
            self.entries.iter_mut().for_each(|entry| entry.committed(before));
        }
    }

    /// Reads a key and checks it. Returns what was read, or `None` without an answer.
    fn get(&mut self, key: usize) -> Result<Option<Version>, String> {
        let begun = Instant::now();
        let answer = self.ask("GET", &self.path(key), "", &[]);
        let mut figures = Figures::default();
        let version = match answer {
            Some(Answer { status: 200, body, .. }) => self.version(key, &body)?,
            Some(Answer { status: 404, .. }) => None,
            _ => {
                figures.refused += 1;
                self.shared.add(figures);
                return Ok(None);
            }
        };
        match self.role {
            Role::Ledger => figures.ledger += 1,
            _ => {
                figures.gets += 1;
                if version.is_some() {
                    figures.hit(begun.elapsed());
                }
            }
        }
        self.shared.add(figures);
        let may_miss = self.role != Role::Ledger;
        let checked = self.entries[key].read(Instant::now(), version, may_miss);
        checked.map_err(|what| format!("{}: {what}", self.path(key)))?;
        Ok(Some(version))
    }

    fn version(&self, key: usize, body: &[u8]) -> Result<Version, String> {
        let number = self.first_key + key as u64;
        let mut body = std::borrow::Cow::Borrowed(body);
        if self.shared.flips.swap(false, Ordering::Relaxed) {
            let middle = body.len() / 2;
            body.to_mut()[middle] ^= 1;
        }
        let version = self.shared.bodies.version(number, self.role.bytes(number), &body);
        version.map_err(|what| format!("{}: {what}", self.path(key)))
    }
}
