//! The protocol of client and server: messages on the socket, entries in the rings.
//!
//! The socket carries [`Message`]s of one length, each answered by one: the greeting, memory to share, layouts,
//! counters. Only memory taken back has no answer. All else goes through the rings: a [`RequestEntry`] asks, a [`Done`]
//! answers. Numbers are in the byte order of the machine, as both sides run on it.
//!
//! Every bit pattern is a value of its field's type, so that decoding cannot fail. [`Ask::of`] returns the valid
//! requests; the server checks their regions, offsets and lengths against the client's.

mod code;
mod layouts;
mod object;
mod reason;

use std::time::Duration;

use adit_kvstore::shard::{Condition, Digest, Part, Stats};
use adit_kvstore::{KEY_BYTES_MAX, Key, Version};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, TryFromBytes};

pub use code::Code;
pub use layouts::{layout_numbers, layout_of};
pub use object::{OBJECT_BYTES_MAX, object_bytes, object_of};
pub use reason::Reason;

/// The version of the protocol, the same in client and server.
pub const VERSION: u64 = 6;
/// Begins every message: "aditkvs1".
pub const MAGIC: u64 = u64::from_be_bytes(*b"aditkvs1");
/// Bytes of a message on the socket.
pub const MESSAGE_BYTES: usize = 512;
/// Bytes of a message's body.
pub const BODY_BYTES: usize = MESSAGE_BYTES - 48;
/// Files that come with a greeting: the rings' memory, and the doorbells of server and client.
pub const GREETING_FILES: usize = 3;
/// The most entries that a ring may have; their number is a power of two.
pub const DEPTH_MAX: u64 = 4096;
/// The most keys that one request may name.
pub const KEYS_MAX: usize = 16 << 10;
/// Bytes of the text of an answer.
pub const TEXT_BYTES: usize = 224;
/// Words of 8 bytes of a request.
pub const ENTRY_WORDS: usize = HEAD_WORDS + KEY_BYTES_MAX / 8;
/// Words of a request before its key.
pub const HEAD_WORDS: usize = 9;
/// Words of an answer.
pub const DONE_WORDS: usize = DONE_HEAD_WORDS + TEXT_BYTES / 8;
/// Words of an answer before its text.
pub const DONE_HEAD_WORDS: usize = 4;
/// [`Done::extra`] of the last page of a scan.
pub const SCAN_END: u64 = u64::MAX;
/// Bytes of a removal in a page before its key: the length of the key.
pub const REMOVED_BYTES: usize = 2;

/// A message on the socket, or its answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Message {
    /// [`MAGIC`].
    pub magic: u64,
    /// The subject, a [`Matter`]. The answer repeats it.
    pub matter: u32,
    /// In an answer, a [`Code`]; unless it is [`Code::Done`], numbers and body are its [`Reason`].
    pub code: u16,
    /// Bytes of the body in use.
    pub body_bytes: u16,
    /// Numbers, by matter.
    pub numbers: [u64; 4],
    /// Text or numbers, by matter.
    pub body: [u8; BODY_BYTES],
}

const _: () = assert!(size_of::<Message>() == MESSAGE_BYTES);
const _: () = assert!(size_of::<Serving>() + 8 * Stats::FIELDS <= BODY_BYTES);

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub enum Matter {
    /// The greeting, which comes first, with [`GREETING_FILES`]. Numbers: the version, the rings' depth, the client's
    /// process. Body: its tenant's name. Answer: the server's version.
    Greet = 1,
    /// Shares memory, with its file. Numbers: its bytes. Answer: the region's number.
    Share = 2,
    /// Takes back memory that no request has. Numbers: the region's number. It has no answer, because no client waits
    /// for one.
    Unshare = 3,
    /// Defines a layout. Numbers: see [`layout_numbers`]. Answer: its number, from 1.
    Layout = 4,
    /// Asks for counters. Answer: in the body [`Stats::fields`], then [`Serving`].
    Stats = 5,
}

impl Matter {
    /// Returns the matter with this number.
    pub fn of(number: u32) -> Option<Matter> {
        Matter::try_read_from_bytes(&number.to_ne_bytes()).ok()
    }
}

impl Message {
    /// Creates a message without a body.
    pub fn new(matter: Matter, numbers: [u64; 4]) -> Message {
        let magic = MAGIC;
        Message { magic, matter: matter as u32, numbers, ..Message::new_zeroed() }
    }

    /// Creates the answer of a server that refuses a message.
    pub fn refused(matter: Matter, reason: &Reason) -> Message {
        let message = Message::new(matter, [reason.value, reason.extra, 0, 0]);
        Message { code: reason.code as u16, ..message }.with_body(reason.text.as_bytes())
    }

    /// Returns why the server refused a message.
    pub fn reason(&self) -> Reason {
        let [value, extra, ..] = self.numbers;
        let text = String::from_utf8_lossy(self.body()).into_owned();
        Reason { code: Code::of(self.code), value, extra, text }
    }

    /// Sets the body, cut off at its length.
    pub fn with_body(mut self, body: &[u8]) -> Message {
        let bytes = body.len().min(BODY_BYTES);
        self.body[..bytes].copy_from_slice(&body[..bytes]);
        self.body_bytes = bytes as u16;
        self
    }

    /// Returns the bytes of the body in use, at most all of it.
    pub fn body(&self) -> &[u8] {
        &self.body[..usize::from(self.body_bytes).min(BODY_BYTES)]
    }

    /// Returns its subject; `None` if this version does not know it.
    pub fn matter(&self) -> Option<Matter> {
        Matter::of(self.matter).filter(|_| self.magic == MAGIC)
    }
}

/// The kinds of requests, as numbers in [`Head::action`].
mod action {
    pub(super) const PUT: u8 = 1;
    pub(super) const GET: u8 = 2;
    pub(super) const EXISTS: u8 = 3;
    pub(super) const INFO: u8 = 4;
    pub(super) const DELETE: u8 = 5;
    pub(super) const KEY: u8 = 6;
    pub(super) const LOOKUP_PREFIX: u8 = 7;
    pub(super) const LEASE: u8 = 8;
    pub(super) const RELEASE: u8 = 9;
    pub(super) const COMMIT: u8 = 10;
    pub(super) const DELETE_PREFIX: u8 = 11;
    pub(super) const TOUCH: u8 = 12;
    pub(super) const SCAN: u8 = 13;
    pub(super) const RESERVE: u8 = 14;
    pub(super) const FILL: u8 = 15;
    pub(super) const SEAL: u8 = 16;
    pub(super) const ABANDON: u8 = 17;
    pub(super) const REMOVALS: u8 = 18;
    pub(super) const REFRESH: u8 = 19;
}

/// A request before its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// The kind of request.
    pub action: u8,
    /// The part to read: 0 for all, 1 for the bytes `low..high`, 2 for layer `low`. Added to it, 16 times the condition:
    /// 0 for none, 1 if there must be no object, 2 if it must have `version`.
    pub part: u8,
    /// Bytes of the key.
    pub key_bytes: u16,
    /// The region of its memory.
    pub region: u32,
    /// The request's tag, which its answer repeats.
    pub tag: u64,
    /// The memory's offset in the region.
    pub offset: u64,
    /// The memory's length in bytes.
    pub room: u64,
    /// Bytes of the object to put. Of a get, 1 if the server verifies it. Of a list, the most items.
    pub bytes: u64,
    /// By action.
    pub low: u64,
    /// By action.
    pub high: u64,
    /// The object's layout, or 0.
    pub layout: u32,
    /// Seconds until the object expires, or 0.
    pub ttl_s: u32,
    /// The version that the object must have, if its condition is that; the writer of a part.
    pub version: u64,
}

/// A request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestEntry {
    /// All but the key.
    pub head: Head,
    /// The key, and unused bytes behind it.
    pub key: [u8; KEY_BYTES_MAX],
}

const _: () = assert!(size_of::<Head>() == 8 * HEAD_WORDS);
const _: () = assert!(size_of::<RequestEntry>() == 8 * ENTRY_WORDS);

/// An answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Done {
    /// The request's.
    pub tag: u64,
    /// The outcome, a [`Code`].
    pub code: u16,
    /// Bytes of the text.
    pub text_bytes: u16,
    /// Of removals, 1 if some were missed.
    pub missed: u32,
    /// By action: bytes, a number of objects, a lease, a writer, 1 for yes.
    pub value: u64,
    /// By action: the number of leased objects (whose bytes are in the text), the version that was stored or read, the
    /// next position of a scan or of a reader of removals.
    pub extra: u64,
    /// By code: why it failed, a description of an object ([`object_of`]), or the digest that the bytes have to match.
    pub text: [u8; TEXT_BYTES],
}

const _: () = assert!(size_of::<Done>() == 8 * DONE_WORDS);

/// A digest in an answer: its numbers, in the order of its fields.
type DigestWords = [u64; 5];

const _: () = assert!(size_of::<DigestWords>() <= TEXT_BYTES);
const _: () = assert!(OBJECT_BYTES_MAX - KEY_BYTES_MAX <= TEXT_BYTES);

impl Done {
    /// Creates an answer, whose tag is to be set.
    pub fn new(code: Code, value: u64, extra: u64) -> Done {
        Done { code: code as u16, value, extra, ..Done::new_zeroed() }
    }

    /// Creates the answer of a request that failed.
    pub fn failed(reason: &Reason) -> Done {
        Done::new(reason.code, reason.value, reason.extra).with_text(&reason.text)
    }

    /// Makes it the answer of the request with this tag.
    pub fn with_tag(self, tag: u64) -> Done {
        Done { tag, ..self }
    }

    /// Returns why it failed.
    pub fn reason(&self) -> Reason {
        let Done { code, value, extra, .. } = *self;
        Reason { code: Code::of(code), value, extra, text: self.text() }
    }

    /// Sets the text, cut off at a character where it is too long.
    pub fn with_text(self, text: &str) -> Done {
        self.with_told(&text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES)])
    }

    /// Sets bytes in place of the text, which has room for them.
    pub fn with_told(mut self, bytes: &[u8]) -> Done {
        self.text[..bytes.len()].copy_from_slice(bytes);
        self.text_bytes = bytes.len() as u16;
        self
    }

    /// Returns the bytes of the text.
    pub fn told(&self) -> &[u8] {
        &self.text[..usize::from(self.text_bytes).min(TEXT_BYTES)]
    }

    /// Returns the text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.told()).into_owned()
    }

    /// Sets what the bytes have to match, in place of the text.
    pub fn with_digest(self, digest: &Digest) -> Done {
        let Digest { pieces, stride_bytes, piece_bytes, last_bytes, sum } = *digest;
        let words: DigestWords = [pieces.into(), stride_bytes, piece_bytes, last_bytes, sum];
        self.with_told(words.as_bytes())
    }

    /// Returns what the bytes have to match, if they are [`Code::Unverified`].
    pub fn digest(&self) -> Option<Digest> {
        if Code::of(self.code) != Code::Unverified {
            return None;
        }
        let (words, _) = DigestWords::read_from_prefix(&self.text).ok()?;
        let [pieces, stride_bytes, piece_bytes, last_bytes, sum] = words;
        let pieces = u32::try_from(pieces).ok()?;
        Some(Digest { pieces, stride_bytes, piece_bytes, last_bytes, sum })
    }

    /// Returns how many words of it mean something.
    pub fn words(&self) -> usize {
        DONE_HEAD_WORDS + self.told().len().div_ceil(8)
    }
}

/// A run of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRun {
    /// The region's number.
    pub region: u32,
    /// The offset in the region.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
}

impl MemoryRun {
    /// No bytes: the memory of a request that has yet to get some.
    pub const NONE: MemoryRun = MemoryRun { region: 0, offset: 0, bytes: 0 };
}

/// A request that means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Stores an object of `bytes` at the start of `memory`.
    Put {
        /// Its key.
        key: Key,
        /// Its data, and the padding behind it.
        memory: MemoryRun,
        /// Its length.
        bytes: u64,
        /// The number of its layout, or 0.
        layout: u32,
        /// Seconds until it expires, or 0.
        ttl_s: u32,
        /// It is of the same call as the put before it, and is laid out behind that one.
        joins: bool,
        /// The condition that the key must meet.
        condition: Condition,
    },
    /// Reads a part of an object.
    Get {
        /// The object's key.
        key: Key,
        /// The part to read.
        part: Part,
        /// The destination.
        memory: MemoryRun,
        /// The version that it must have.
        version: Option<Version>,
        /// The server verifies the bytes, in memory of its own, and drops an object that is damaged. Otherwise the
        /// client verifies them.
        is_checked: bool,
    },
    /// Asks whether an object exists.
    Exists(Key),
    /// Asks what the store knows about an object.
    Info(Key),
    /// Removes an object, if it has this version.
    Delete {
        /// Its key.
        key: Key,
        /// The version that it must have.
        version: Option<Version>,
    },
    /// Sets when an object expires.
    Touch {
        /// Its key.
        key: Key,
        /// Seconds from now; `None` for never.
        ttl_s: Option<u32>,
    },
    /// Reads a page of the objects with a prefix into `memory`: [`object_bytes`] of each, with its key.
    Scan {
        /// The bytes that the keys begin with, at most 512.
        prefix: Box<[u8]>,
        /// The position to go on from; 0 at first.
        from: u64,
        /// The most objects.
        limit: u64,
        /// The destination.
        memory: MemoryRun,
    },
    /// Reads removals of keys with a prefix into `memory`: for each [`REMOVED_BYTES`] and its key.
    Removals {
        /// The bytes that the keys begin with, at most 512.
        prefix: Box<[u8]>,
        /// The position to go on from; `None` at first.
        from: Option<u64>,
        /// The most removals.
        limit: u64,
        /// The destination.
        memory: MemoryRun,
    },
    /// Asks whether an object exists, and counts as a use of it.
    Refresh(Key),
    /// Adds a key to the list of the next request that takes several. Has no answer.
    Key(Key),
    /// Counts the objects before the first miss, of the keys before and this one.
    LookupPrefix(Key),
    /// Keeps these objects for a time.
    Lease {
        /// The last key.
        key: Key,
        /// For how long at most.
        time: Duration,
    },
    /// Ends a lease.
    Release(u64),
    /// Makes room for an object that is written in parts.
    Reserve {
        /// Its key.
        key: Key,
        /// Its length.
        bytes: u64,
        /// The number of its layout, or 0.
        layout: u32,
        /// Seconds until it expires, or 0.
        ttl_s: u32,
        /// The condition that the key must meet when the object is sealed.
        condition: Condition,
    },
    /// Writes the first `bytes` of `memory` as a part of a writer's object.
    Fill {
        /// The writer's number.
        writer: u64,
        /// The part's offset in the object.
        offset: u64,
        /// The part's length in bytes.
        bytes: u64,
        /// The data.
        memory: MemoryRun,
    },
    /// Turns what a writer wrote into an object.
    Seal(u64),
    /// Gives up a writer and its room.
    Abandon(u64),
    /// Makes everything acknowledged durable.
    Commit,
    /// Removes all objects whose keys begin with this.
    DeletePrefix(Key),
}

fn of_version(version: Option<Version>) -> Condition {
    version.map_or(Condition::Always, Condition::Version)
}

impl Head {
    fn new(action: u8) -> Head {
        Head { action, ..Head::new_zeroed() }
    }

    fn with_part(self, part: &Part) -> Head {
        let (part, low, high) = match part {
            Part::All => (0, 0, 0),
            Part::Bytes(range) => (1, range.start, range.end),
            Part::Layer(layer) => (2, u64::from(*layer), 0),
        };
        Head { part, low, high, ..self }
    }

    fn with_condition(self, condition: Condition) -> Head {
        let (kind, version) = match condition {
            Condition::Always => (0, Version::NONE),
            Condition::Absent => (1, Version::NONE),
            Condition::Version(version) => (2, version),
        };
        Head { part: self.part | kind << 4, version: version.0, ..self }
    }

    fn with_run(self, run: &MemoryRun) -> Head {
        let MemoryRun { region, offset, bytes: room } = *run;
        Head { region, offset, room, ..self }
    }
}

impl RequestEntry {
    /// Creates a request. Of a prefix, only the first [`KEY_BYTES_MAX`] bytes are sent.
    pub fn of(ask: &Ask, tag: u64) -> RequestEntry {
        let (head, key) = RequestEntry::parts(ask);
        let key = &key[..key.len().min(KEY_BYTES_MAX)];
        let mut entry = RequestEntry::new_zeroed();
        entry.head = Head { tag, key_bytes: key.len() as u16, ..head };
        entry.key[..key.len()].copy_from_slice(key);
        entry
    }

    /// Returns all but tag and length of a request's head, and its key or prefix.
    fn parts(ask: &Ask) -> (Head, &[u8]) {
        let number = |action, low| (Head { low, ..Head::new(action) }, &[][..]);
        match ask {
            Ask::Put { key, memory, bytes, layout, ttl_s, joins, condition } => {
                let (bytes, layout, ttl_s, low) = (*bytes, *layout, *ttl_s, u64::from(*joins));
                let head = Head { bytes, layout, ttl_s, low, ..Head::new(action::PUT) };
                (head.with_run(memory).with_condition(*condition), key.as_bytes())
            }
            Ask::Get { key, part, memory, version, is_checked } => {
                let head = Head { bytes: u64::from(*is_checked), ..Head::new(action::GET) };
                let head = head.with_run(memory).with_part(part);
                (head.with_condition(of_version(*version)), key.as_bytes())
            }
            Ask::Exists(key) => (Head::new(action::EXISTS), key.as_bytes()),
            Ask::Info(key) => (Head::new(action::INFO), key.as_bytes()),
            Ask::Delete { key, version } => {
                (Head::new(action::DELETE).with_condition(of_version(*version)), key.as_bytes())
            }
            Ask::Touch { key, ttl_s } => {
                let (ttl_s, low) = (ttl_s.unwrap_or(0), u64::from(ttl_s.is_some()));
                (Head { ttl_s, low, ..Head::new(action::TOUCH) }, key.as_bytes())
            }
            Ask::Scan { prefix, from, limit, memory } => {
                let head = Head { low: *from, bytes: *limit, ..Head::new(action::SCAN) };
                (head.with_run(memory), prefix)
            }
            Ask::Removals { prefix, from, limit, memory } => {
                let (low, high) = (from.unwrap_or(0), u64::from(from.is_some()));
                let head = Head { low, high, bytes: *limit, ..Head::new(action::REMOVALS) };
                (head.with_run(memory), prefix)
            }
            Ask::Refresh(key) => (Head::new(action::REFRESH), key.as_bytes()),
            Ask::Key(key) => (Head::new(action::KEY), key.as_bytes()),
            Ask::LookupPrefix(key) => (Head::new(action::LOOKUP_PREFIX), key.as_bytes()),
            Ask::Lease { key, time } => {
                let low = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                (Head { low, ..Head::new(action::LEASE) }, key.as_bytes())
            }
            Ask::Release(lease) => number(action::RELEASE, *lease),
            Ask::Seal(writer) => number(action::SEAL, *writer),
            Ask::Abandon(writer) => number(action::ABANDON, *writer),
            Ask::Reserve { key, bytes, layout, ttl_s, condition } => {
                let (bytes, layout, ttl_s) = (*bytes, *layout, *ttl_s);
                let head = Head { bytes, layout, ttl_s, ..Head::new(action::RESERVE) };
                (head.with_condition(*condition), key.as_bytes())
            }
            Ask::Fill { writer: version, offset: low, bytes, memory } => {
                let (version, low, bytes) = (*version, *low, *bytes);
                let head = Head { version, low, bytes, ..Head::new(action::FILL) };
                (head.with_run(memory), &[])
            }
            Ask::Commit => number(action::COMMIT, 0),
            Ask::DeletePrefix(key) => (Head::new(action::DELETE_PREFIX), key.as_bytes()),
        }
    }

    /// Returns how many words of it mean something.
    pub fn words(&self) -> usize {
        HEAD_WORDS + usize::from(self.head.key_bytes).min(KEY_BYTES_MAX).div_ceil(8)
    }

    fn key(&self) -> Result<Key, &'static str> {
        let bytes = self.key.get(..usize::from(self.head.key_bytes));
        let key = bytes.and_then(|bytes| Key::new(bytes).ok());
        key.ok_or("a key has 1 to 512 bytes")
    }

    fn prefix(&self) -> Result<Box<[u8]>, &'static str> {
        let bytes = self.key.get(..usize::from(self.head.key_bytes));
        bytes.map(Box::from).ok_or("a prefix has up to 512 bytes")
    }

    fn condition(&self) -> Result<Condition, &'static str> {
        match self.head.part >> 4 {
            0 => Ok(Condition::Always),
            1 => Ok(Condition::Absent),
            2 => Ok(Condition::Version(Version(self.head.version))),
            _ => Err("there is no such condition"),
        }
    }

    /// Returns the version that an object must have, of a request that cannot ask for none.
    fn version(&self) -> Result<Option<Version>, &'static str> {
        match self.condition()? {
            Condition::Always => Ok(None),
            Condition::Version(version) => Ok(Some(version)),
            Condition::Absent => Err("what is read or removed cannot be absent"),
        }
    }

    fn part(&self) -> Result<Part, &'static str> {
        let Head { part, low, high, .. } = self.head;
        match (part & 15, u32::try_from(low)) {
            (0, _) => Ok(Part::All),
            (1, _) if low < high => Ok(Part::Bytes(low..high)),
            (2, Ok(layer)) => Ok(Part::Layer(layer)),
            _ => Err("an object has no such part"),
        }
    }
}

impl Ask {
    /// Returns where its memory is named, if it has some.
    pub fn memory_mut(&mut self) -> Option<&mut MemoryRun> {
        match self {
            Ask::Put { memory, .. }
            | Ask::Get { memory, .. }
            | Ask::Fill { memory, .. }
            | Ask::Scan { memory, .. }
            | Ask::Removals { memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// Returns what an entry asks for.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn of(entry: &RequestEntry) -> Result<Ask, &'static str> {
        let Head { region, offset, room, bytes, low, high, layout, ttl_s, version, .. } =
            entry.head;
        let memory = MemoryRun { region, offset, bytes: room };
        Ok(match entry.head.action {
            action::PUT => {
                let (key, condition, joins) = (entry.key()?, entry.condition()?, low != 0);
                Ask::Put { key, memory, bytes, layout, ttl_s, joins, condition }
            }
            action::GET => {
                let (key, part, version) = (entry.key()?, entry.part()?, entry.version()?);
                Ask::Get { key, part, memory, version, is_checked: bytes != 0 }
            }
            action::EXISTS => Ask::Exists(entry.key()?),
            action::INFO => Ask::Info(entry.key()?),
            action::DELETE => Ask::Delete { key: entry.key()?, version: entry.version()? },
            action::TOUCH => Ask::Touch { key: entry.key()?, ttl_s: (low != 0).then_some(ttl_s) },
            action::SCAN => Ask::Scan { prefix: entry.prefix()?, from: low, limit: bytes, memory },
            action::REMOVALS => {
                let (prefix, from) = (entry.prefix()?, (high != 0).then_some(low));
                Ask::Removals { prefix, from, limit: bytes, memory }
            }
            action::REFRESH => Ask::Refresh(entry.key()?),
            action::KEY => Ask::Key(entry.key()?),
            action::LOOKUP_PREFIX => Ask::LookupPrefix(entry.key()?),
            action::LEASE => Ask::Lease { key: entry.key()?, time: Duration::from_millis(low) },
            action::RELEASE => Ask::Release(low),
            action::RESERVE => {
                let (key, condition) = (entry.key()?, entry.condition()?);
                Ask::Reserve { key, bytes, layout, ttl_s, condition }
            }
            action::FILL => Ask::Fill { writer: version, offset: low, bytes, memory },
            action::SEAL => Ask::Seal(low),
            action::ABANDON => Ask::Abandon(low),
            action::COMMIT => Ask::Commit,
            action::DELETE_PREFIX => Ask::DeletePrefix(entry.key()?),
            _ => return Err("there is no such request"),
        })
    }
}

/// The server's own counters, which come with the store's. Those that end in `now` go back to 0 with the clients.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Serving {
    /// Clients that are connected.
    pub clients_now: u64,
    /// Clients that ever were.
    pub clients: u64,
    /// Clients that were left because they broke a rule.
    pub clients_expelled: u64,
    /// Connections that were turned away, as there were too many.
    pub clients_turned_away: u64,
    /// Bytes of clients' memory that is mapped, for requests or for rings.
    pub mapped_bytes_now: u64,
    /// Requests in progress.
    pub requests_now: u64,
    /// Requests that were taken.
    pub requests: u64,
    /// Leases that clients hold.
    pub leases_now: u64,
}

#[cfg(test)]
mod tests;
