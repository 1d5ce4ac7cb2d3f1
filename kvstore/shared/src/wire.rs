//! What client and server say to each other: messages on the socket, entries in the rings.
//!
//! The socket carries [`Message`]s of one length, each answered by one: the greeting, memory to share, layouts,
//! counters. All else goes through the rings: a [`Entry`] asks, a [`Done`] answers. Numbers are in the byte order of the
//! machine, as both sides run on it.
//!
//! Every value of every field is a value of its type, so that reading one cannot go wrong. [`Ask::of`] says which
//! entries mean something; the server checks the rest (regions, offsets, lengths) against what it has.

use std::time::Duration;

use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Part, Stats};
use adit_kvstore::{KEY_BYTES_MAX, Key};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The version of all of this; client and server have the same.
pub const VERSION: u64 = 1;
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
/// Words of 8 bytes of a request, and of those before its key.
pub const ENTRY_WORDS: usize = HEAD_WORDS + KEY_BYTES_MAX / 8;
/// Words of a request before its key.
pub const HEAD_WORDS: usize = 8;
/// Words of an answer.
pub const DONE_WORDS: usize = DONE_HEAD_WORDS + TEXT_BYTES / 8;
/// Words of an answer before its text.
pub const DONE_HEAD_WORDS: usize = 4;

/// A message on the socket, or its answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Message {
    /// [`MAGIC`].
    pub magic: u64,
    /// What is asked for: a [`Matter`]. The answer repeats it.
    pub matter: u32,
    /// In an answer, a [`Code`]; the body is its text unless it is [`Code::Done`].
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

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Matter {
    /// The greeting, which comes first, with [`GREETING_FILES`]. Numbers: the version, the rings' depth, the client's
    /// process. Body: its tenant's name. Answer: the server's version.
    Greet = 1,
    /// Shares memory, with its file. Numbers: its bytes. Answer: the region's number.
    Share = 2,
    /// Takes it back. Numbers: the region's number.
    Unshare = 3,
    /// Defines a layout. Numbers: see [`layout_numbers`]. Answer: its number, from 1.
    Layout = 4,
    /// Asks for counters. Answer: in the body [`Stats::fields`], then [`Serving`].
    Stats = 5,
}

impl Matter {
    /// Returns the matter with this number.
    pub fn of(number: u32) -> Option<Matter> {
        use Matter::*;
        [Greet, Share, Unshare, Layout, Stats].into_iter().find(|it| *it as u32 == number)
    }
}

impl Message {
    /// Creates a message without a body.
    pub fn new(matter: Matter, numbers: [u64; 4]) -> Message {
        let magic = MAGIC;
        Message { magic, matter: matter as u32, numbers, ..Message::new_zeroed() }
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

    /// Returns what it is about; `None` if this version knows no such matter.
    pub fn matter(&self) -> Option<Matter> {
        Matter::of(self.matter).filter(|_| self.magic == MAGIC)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Code {
    /// As it was asked for: stored, read, removed, counted.
    Done = 0,
    /// There is no such object.
    Miss = 1,
    /// Admission rejected the object, which is no failure.
    DeclinedByAdmission = 2,
    /// The write budget rejected the object, which is no failure.
    DeclinedByBudget = 3,
    /// The object can never fit.
    TooLarge = 16,
    /// The store is full, or too many objects are leased.
    Full = 17,
    /// The tenant's quota is used up.
    Quota = 18,
    /// The memory is too short: [`Done::value`] bytes are needed.
    Memory = 19,
    /// The object has no such part.
    Part = 20,
    /// The deadline passed before the request began.
    Deadline = 21,
    /// A device failed.
    Device = 22,
    /// No space is left on the file system of a sparse file.
    NoSpace = 23,
    /// The store is being closed.
    Closed = 24,
    /// Another failure of the store.
    Failed = 25,
    /// The request means nothing, or names what is not there.
    Malformed = 32,
    /// A request in progress has some of this memory.
    InUse = 33,
    /// A limit of the server's is reached.
    Limit = 34,
}

impl Code {
    /// Returns the code with this number; [`Code::Failed`] for one that this version does not know.
    pub fn of(number: u16) -> Code {
        use Code::*;
        let all = [
            Done,
            Miss,
            DeclinedByAdmission,
            DeclinedByBudget,
            TooLarge,
            Full,
            Quota,
            Memory,
            Part,
            Deadline,
            Device,
            NoSpace,
            Closed,
            Failed,
            Malformed,
            InUse,
            Limit,
        ];
        all.into_iter().find(|code| *code as u16 == number).unwrap_or(Failed)
    }

    /// Returns whether the request failed; an answer of its own kind is none.
    pub fn is_failure(self) -> bool {
        self as u16 >= Code::TooLarge as u16
    }
}

/// What a request is, as a number in [`Head::action`].
mod action {
    pub(super) const PUT: u8 = 1;
    pub(super) const GET: u8 = 2;
    pub(super) const EXISTS: u8 = 3;
    pub(super) const LENGTH: u8 = 4;
    pub(super) const DELETE: u8 = 5;
    pub(super) const KEY: u8 = 6;
    pub(super) const LOOKUP_PREFIX: u8 = 7;
    pub(super) const LEASE: u8 = 8;
    pub(super) const RELEASE: u8 = 9;
    pub(super) const COMMIT: u8 = 10;
    pub(super) const DELETE_PREFIX: u8 = 11;
}

/// A request before its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// What is asked for.
    pub action: u8,
    /// Which part: 0 for all, 1 for the bytes `low..high`, 2 for layer `low`.
    pub part: u8,
    /// Bytes of the key.
    pub key_bytes: u16,
    /// Memory: the region,
    pub region: u32,
    /// Comes back with the answer.
    pub tag: u64,
    /// where in it,
    pub offset: u64,
    /// and how many bytes.
    pub room: u64,
    /// Bytes of the object to put.
    pub bytes: u64,
    /// By action.
    pub low: u64,
    /// By action.
    pub high: u64,
    /// The object's layout, or 0.
    pub layout: u32,
    /// Seconds until the object expires, or 0.
    pub ttl_s: u32,
}

/// A request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    /// All but the key.
    pub head: Head,
    /// The key; bytes behind it mean nothing.
    pub key: [u8; KEY_BYTES_MAX],
}

const _: () = assert!(size_of::<Head>() == 8 * HEAD_WORDS);
const _: () = assert!(size_of::<Entry>() == 8 * ENTRY_WORDS);

/// An answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Done {
    /// The request's.
    pub tag: u64,
    /// How it ended, a [`Code`].
    pub code: u16,
    /// Bytes of the text.
    pub text_bytes: u16,
    /// Zero.
    pub reserved: u32,
    /// By action: bytes, a number of objects, a lease, 1 for yes.
    pub value: u64,
    /// By action: the number of objects leased.
    pub extra: u64,
    /// Why it failed.
    pub text: [u8; TEXT_BYTES],
}

const _: () = assert!(size_of::<Done>() == 8 * DONE_WORDS);

impl Done {
    /// Creates an answer.
    pub fn new(tag: u64, code: Code, value: u64, extra: u64) -> Done {
        Done { tag, code: code as u16, value, extra, ..Done::new_zeroed() }
    }

    /// Sets the text, cut off at a character where it is too long.
    pub fn with_text(mut self, text: &str) -> Done {
        let bytes = text.floor_char_boundary(TEXT_BYTES);
        self.text[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
        self.text_bytes = bytes as u16;
        self
    }

    /// Returns the text.
    pub fn text(&self) -> String {
        let bytes = usize::from(self.text_bytes).min(TEXT_BYTES);
        String::from_utf8_lossy(&self.text[..bytes]).into_owned()
    }

    /// Returns how many words of it mean something.
    pub fn words(&self) -> usize {
        DONE_HEAD_WORDS + usize::from(self.text_bytes).min(TEXT_BYTES).div_ceil(8)
    }
}

/// A run of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The region's number.
    pub region: u32,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// A request that means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Stores an object of `bytes` at the start of `memory`.
    Put {
        /// Its key.
        key: Key,
        /// Its data, and the padding behind it.
        memory: Run,
        /// Its length.
        bytes: u64,
        /// The number of its layout, or 0.
        layout: u32,
        /// Seconds until it expires, or 0.
        ttl_s: u32,
        /// It is of the same call as the put before it, and is laid out behind that one.
        joins: bool,
    },
    /// Reads a part of an object.
    Get {
        /// The object's key.
        key: Key,
        /// Which part.
        part: Part,
        /// The destination.
        memory: Run,
    },
    /// Asks whether an object exists.
    Exists(Key),
    /// Asks for an object's length in bytes.
    Length(Key),
    /// Removes an object.
    Delete(Key),
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
    /// Makes everything acknowledged durable.
    Commit,
    /// Removes all objects whose keys begin with this.
    DeletePrefix(Key),
}

impl Entry {
    fn zeroed(action: u8, tag: u64) -> Entry {
        let mut entry = Entry::new_zeroed();
        (entry.head.action, entry.head.tag) = (action, tag);
        entry
    }

    /// Creates a request.
    pub fn of(ask: &Ask, tag: u64) -> Entry {
        match ask {
            Ask::Put { key, memory, bytes, layout, ttl_s, joins } => {
                let mut entry = Entry::zeroed(action::PUT, tag).with_key(key).with_run(memory);
                let head = &mut entry.head;
                (head.bytes, head.layout, head.ttl_s) = (*bytes, *layout, *ttl_s);
                head.low = u64::from(*joins);
                entry
            }
            Ask::Get { key, part, memory } => {
                let mut entry = Entry::zeroed(action::GET, tag).with_key(key).with_run(memory);
                let head = &mut entry.head;
                (head.part, head.low, head.high) = match part {
                    Part::All => (0, 0, 0),
                    Part::Bytes(range) => (1, range.start, range.end),
                    Part::Layer(layer) => (2, u64::from(*layer), 0),
                };
                entry
            }
            Ask::Exists(key) => Entry::zeroed(action::EXISTS, tag).with_key(key),
            Ask::Length(key) => Entry::zeroed(action::LENGTH, tag).with_key(key),
            Ask::Delete(key) => Entry::zeroed(action::DELETE, tag).with_key(key),
            Ask::Key(key) => Entry::zeroed(action::KEY, tag).with_key(key),
            Ask::LookupPrefix(key) => Entry::zeroed(action::LOOKUP_PREFIX, tag).with_key(key),
            Ask::Lease { key, time } => {
                let mut entry = Entry::zeroed(action::LEASE, tag).with_key(key);
                entry.head.low = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                entry
            }
            Ask::Release(lease) => {
                let mut entry = Entry::zeroed(action::RELEASE, tag);
                entry.head.low = *lease;
                entry
            }
            Ask::Commit => Entry::zeroed(action::COMMIT, tag),
            Ask::DeletePrefix(key) => Entry::zeroed(action::DELETE_PREFIX, tag).with_key(key),
        }
    }

    fn with_key(mut self, key: &Key) -> Entry {
        let bytes = key.as_bytes();
        self.key[..bytes.len()].copy_from_slice(bytes);
        self.head.key_bytes = bytes.len() as u16;
        self
    }

    fn with_run(mut self, run: &Run) -> Entry {
        let head = &mut self.head;
        (head.region, head.offset, head.room) = (run.region, run.offset, run.bytes);
        self
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

    fn part(&self) -> Result<Part, &'static str> {
        let Head { part, low, high, .. } = self.head;
        match (part, u32::try_from(low)) {
            (0, _) => Ok(Part::All),
            (1, _) if low < high => Ok(Part::Bytes(low..high)),
            (2, Ok(layer)) => Ok(Part::Layer(layer)),
            _ => Err("an object has no such part"),
        }
    }
}

impl Ask {
    /// Returns what an entry asks for.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(entry: &Entry) -> Result<Ask, &'static str> {
        let Head { region, offset, room, bytes, low, layout, ttl_s, .. } = entry.head;
        let memory = Run { region, offset, bytes: room };
        Ok(match entry.head.action {
            action::PUT => {
                Ask::Put { key: entry.key()?, memory, bytes, layout, ttl_s, joins: low != 0 }
            }
            action::GET => Ask::Get { key: entry.key()?, part: entry.part()?, memory },
            action::EXISTS => Ask::Exists(entry.key()?),
            action::LENGTH => Ask::Length(entry.key()?),
            action::DELETE => Ask::Delete(entry.key()?),
            action::KEY => Ask::Key(entry.key()?),
            action::LOOKUP_PREFIX => Ask::LookupPrefix(entry.key()?),
            action::LEASE => Ask::Lease { key: entry.key()?, time: Duration::from_millis(low) },
            action::RELEASE => Ask::Release(low),
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
    /// Bytes of clients' memory that is mapped, for requests or for rings.
    pub mapped_bytes_now: u64,
    /// Requests in progress.
    pub requests_now: u64,
    /// Requests that were taken.
    pub requests: u64,
    /// Leases that clients hold.
    pub leases_now: u64,
}

/// Encodes a layout as numbers of a message.
pub fn layout_numbers(layout: &Layout) -> [u64; 4] {
    let BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens } =
        *layout.block();
    let slots = match layout.order() {
        Order::BlockMajor => 0,
        Order::LayerMajor { slots } => slots,
    };
    let two = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let dtype = DTYPES.iter().position(|it| *it == dtype).expect("all are listed") as u32;
    [
        two(layers, tensors_per_layer.into()),
        two(kv_heads, head_dim),
        two(tokens, dtype),
        slots.into(),
    ]
}

const DTYPES: [Dtype; 5] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Fp8, Dtype::Int8];

/// Decodes a layout from the numbers of a message; `None` if there is no such layout.
pub fn layout_of(numbers: [u64; 4]) -> Option<Layout> {
    let two = |number: u64| ((number >> 32) as u32, number as u32);
    let [(layers, tensors), (kv_heads, head_dim), (tokens, dtype), (_, slots)] = numbers.map(two);
    let block = BlockShape {
        layers,
        tensors_per_layer: u8::try_from(tensors).ok()?,
        kv_heads,
        head_dim,
        dtype: *DTYPES.get(dtype as usize)?,
        tokens,
    };
    let order = if slots == 0 { Order::BlockMajor } else { Order::LayerMajor { slots } };
    Layout::new(block, order).ok()
}

#[cfg(test)]
mod tests;
