//! Servers that break the rules: what a client reads of one that keeps writing its memory, or whose answers do not match it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use adit_driver::serve::parts::receive;
use adit_kvshare::client::PutWith;
use adit_kvshare::wire::{
    Ask, Code, DONE_WORDS, Done, ENTRY_WORDS, Matter, MemoryRun, Message, RequestEntry, VERSION,
    object_bytes,
};
use adit_kvshare::{Client, ClientOptions, Error, KvStore, PendingAnswer};
use adit_kvstore::shard::{Digest, Part};
use adit_kvstore::store::ObjectInfo;
use adit_kvstore::{Key, Version};
use zerocopy::{FromZeros, IntoBytes};

use crate::rig::{key, scratch};

const DEPTH: u64 = 8;
const PAGE: u64 = 4096;
const POOL_BYTES: usize = 1 << 20;
/// Where the counters are in the rings' memory.
const REQUESTS_TAIL: u64 = 0;
const REQUESTS_HEAD: u64 = 64;
const ANSWERS_TAIL: u64 = 128;

/// A server of one client, which does only what a test says. It is safe code: it reaches rings and memory through their
/// files.
struct Fake {
    stream: UnixStream,
    rings: File,
    client_bell: File,
    taken: u64,
}

/// A socket where a client may connect.
struct Socket {
    folder: PathBuf,
    listener: UnixListener,
}

impl Socket {
    fn new() -> Socket {
        let folder = scratch();
        std::fs::create_dir_all(&folder).expect("a folder");
        let listener = UnixListener::bind(folder.join("kv.sock")).expect("bound");
        Socket { folder, listener }
    }

    /// Connects a client to a fake server.
    fn meet(&self) -> (Client, Fake) {
        std::thread::scope(|scope| {
            let fake = scope.spawn(|| Fake::welcome(self));
            (self.connect(), fake.join().expect("no panic"))
        })
    }

    fn connect(&self) -> Client {
        let options =
            ClientOptions { depth: DEPTH, pool_bytes: POOL_BYTES, ..ClientOptions::default() };
        Client::connect(&self.folder.join("kv.sock"), &options).expect("connected")
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).expect("it was made");
    }
}

impl Fake {
    /// Welcomes the client that connects.
    fn welcome(socket: &Socket) -> Fake {
        let (stream, _) = socket.listener.accept().expect("a client");
        let (greeting, files) = message(&stream);
        assert_eq!(greeting.numbers[..2], [VERSION, DEPTH]);
        let [rings, _bell, client_bell] = files.try_into().expect("three files");
        let fake = Fake { stream, rings, client_bell, taken: 0 };
        fake.say(Matter::Greet, [VERSION, 1 << 30, 0, 0]);
        fake
    }

    fn say(&self, matter: Matter, numbers: [u64; 4]) {
        (&self.stream).write_all(Message::new(matter, numbers).as_bytes()).expect("sent");
    }

    /// Takes the memory that the client shares next.
    fn take_memory(&self, number: u64) -> File {
        let (share, mut files) = message(&self.stream);
        assert_eq!(share.matter(), Some(Matter::Share));
        self.say(Matter::Share, [number, 0, 0, 0]);
        files.pop().expect("its file")
    }

    /// Returns the region that the client takes back next.
    fn taken_back(&self) -> u64 {
        let (unshare, _) = message(&self.stream);
        assert_eq!(unshare.matter(), Some(Matter::Unshare));
        unshare.numbers[0]
    }

    /// Waits for the next request.
    fn take(&mut self) -> RequestEntry {
        let tail = || {
            let mut tail = [0; 8];
            self.rings.read_exact_at(&mut tail, REQUESTS_TAIL).expect("read");
            u64::from_ne_bytes(tail)
        };
        while tail() == self.taken {
            std::thread::yield_now();
        }
        let mut entry = RequestEntry::new_zeroed();
        let at = PAGE + self.taken % DEPTH * 8 * ENTRY_WORDS as u64;
        self.rings.read_exact_at(entry.as_mut_bytes(), at).expect("read");
        self.taken += 1;
        self.rings.write_all_at(&self.taken.to_ne_bytes(), REQUESTS_HEAD).expect("written");
        entry
    }

    /// Answers the request that was taken last.
    fn answer(&self, done: &Done) {
        let number = self.taken - 1;
        let answers = PAGE + DEPTH * 8 * ENTRY_WORDS as u64;
        let at = answers + number % DEPTH * 8 * DONE_WORDS as u64;
        self.rings.write_all_at(done.as_bytes(), at).expect("written");
        self.rings.write_all_at(&self.taken.to_ne_bytes(), ANSWERS_TAIL).expect("written");
        (&self.client_bell).write_all(&1u64.to_ne_bytes()).expect("rung");
    }

    /// Waits for the next request, a get, and returns its tag, its memory and whether it is to be checked.
    fn take_get(&mut self) -> (u64, MemoryRun, bool) {
        let entry = self.take();
        let Ok(Ask::Get { memory, is_checked, .. }) = Ask::of(&entry) else {
            panic!("a get: {:?}", entry.head)
        };
        (entry.head.tag, memory, is_checked)
    }
}

/// A digest of `bytes` bytes in one piece that hardly any have.
fn wrong(bytes: u64) -> Digest {
    Digest { pieces: 1, stride_bytes: bytes, piece_bytes: bytes, last_bytes: bytes, sum: 12_345 }
}

fn unverified(tag: u64, bytes: u64, digest: &Digest) -> Done {
    Done::new(Code::Unverified, bytes, 1).with_tag(tag).with_digest(digest)
}

/// A source that ends before its first byte.
struct Unreadable;

impl Read for Unreadable {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("as arranged"))
    }
}

/// Returns the next message on a socket, with its files.
fn message(stream: &UnixStream) -> (Message, Vec<File>) {
    let (mut message, mut files, mut filled) = (Message::new_zeroed(), Vec::new(), 0);
    while filled < size_of::<Message>() {
        let rest = &mut message.as_mut_bytes()[filled..];
        let count = receive(stream, rest, &mut files).expect("received");
        assert!(count > 0, "the client is there");
        filled += count;
    }
    (message, files)
}

/// Writes one, then the other to the beginning of a file, until no one else has `goes_on`.
fn flicker(file: &File, [one, other]: [&[u8]; 2], goes_on: &Weak<()>) {
    while goes_on.strong_count() > 0 {
        file.write_all_at(one, 0).expect("written");
        file.write_all_at(other, 0).expect("written");
    }
}

/// Serves one client: `serve` answers it with memory that flickers between two contents while `client` works.
fn with_flicker(
    contents: [&[u8]; 2],
    serve: impl FnOnce(&mut Fake) + Send,
    client: impl FnOnce(&Client),
) {
    let socket = &Socket::new();
    std::thread::scope(|scope| {
        let works = Arc::new(());
        let goes_on = Arc::downgrade(&works);
        let serving = scope.spawn(move || {
            let mut fake = Fake::welcome(socket);
            let memory = fake.take_memory(0);
            memory.write_all_at(contents[0], 0).expect("written");
            std::thread::scope(|scope| {
                scope.spawn(|| flicker(&memory, contents, &goes_on));
                serve(&mut fake);
            });
            fake
        });
        client(&socket.connect());
        drop(works);
        serving.join().expect("no panic");
    });
}

/// The server does not run while something is dropped: a wait for it would end the connection.
#[test]
fn nothing_that_is_dropped_waits_for_the_server() {
    // More messages than its socket has room for.
    const REGIONS: u64 = 500;
    let socket = Socket::new();
    let (client, mut fake) = socket.meet();
    let (value, lease, spans) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            fake.take_memory(0);
            for (value, extra) in [(10, 1), (5, 1), (9, 0)] {
                let tag = fake.take().head.tag;
                fake.answer(&Done::new(Code::Done, value, extra).with_tag(tag));
            }
            fake.take_memory(1);
            assert_eq!(fake.taken_back(), 1);
            (2..=REGIONS).for_each(|number| drop(fake.take_memory(number)));
        });
        let value = client.get(key(1)).wait().expect("got").expect("a hit");
        let lease = client.lease(&[key(1)], Duration::from_secs(9)).wait().expect("leased");
        // Its writer and its memory are dropped.
        let put = client.put_from(key(2), Some(100), Unreadable, &PutWith::default());
        assert!(put.expect_err("nothing can be read").to_string().contains("as arranged"));
        let spans = (2..=REGIONS).map(|_| client.allocate(1).expect("memory"));
        let spans: Vec<_> = spans.collect();
        serving.join().expect("no panic");
        (value, lease, spans)
    });
    let unsent = client.exists(key(3));
    drop((value, lease, spans, unsent));
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let asked: Vec<_> = (0..3).map(|_| Ask::of(&fake.take()).expect("a request")).collect();
            assert!(matches!(asked[..2], [Ask::Abandon(9), Ask::Exists(_)]), "{asked:?}");
            assert_eq!(asked[2], Ask::Release(5));
            (2..=REGIONS).for_each(|number| assert_eq!(fake.taken_back(), number, "in order"));
            fake.take_memory(7);
            fake
        });
        client.allocate(1).expect("the connection is as it was");
        drop(client);
        let fake = serving.join().expect("no panic");
        assert_eq!(fake.taken_back(), 7, "of what was made last");
    });
}

/// A `str` of these bytes that were still the server's would change after it was checked.
#[test]
fn what_is_read_of_a_value_stays_as_it_was_whatever_the_server_writes() {
    let contents = [&[b'a'; 9000][..], &[0xff; 9000]];
    let serve = |fake: &mut Fake| {
        let tag = fake.take().head.tag;
        fake.answer(&Done::new(Code::Done, 9000, 1).with_tag(tag));
    };
    with_flicker(contents, serve, |client| {
        let value = client.get(key(1)).wait().expect("got").expect("a hit");
        let mut seen = [0; 2];
        while seen.contains(&0) {
            let copy = value.to_vec();
            let is_text = std::str::from_utf8(&copy).is_ok();
            // Time for the server to write: of its memory, this would find something else.
            std::thread::yield_now();
            assert_eq!(copy.iter().all(|byte| *byte == b'a'), is_text, "after the check");
            assert!(copy.iter().all(|byte| [b'a', 0xff].contains(byte)), "bytes that were there");
            seen[usize::from(is_text)] += 1;
        }
    });
}

#[test]
fn a_page_of_a_scan_is_read_once() {
    // An object whose key has 8 bytes, then 500: a length that was checked must not be another when it is used.
    let told = |key_bytes: usize| {
        let (key, tenant) = (Key::new(&[b'k'; 500][..key_bytes]).expect("a key"), "".into());
        let (layout, version, ttl_s) = (None, Version(1), None);
        let info = ObjectInfo { key, bytes: 1, tenant, layout, version, ttl_s, device: 0 };
        [object_bytes(&info, true), vec![b'k'; 600]].concat()
    };
    let [short, long] = [8, 500].map(told);
    let serve = |fake: &mut Fake| {
        for _ in 0..300 {
            let entry = fake.take();
            assert!(matches!(Ask::of(&entry), Ok(Ask::Scan { .. })));
            fake.answer(&Done::new(Code::Done, 1, 7).with_tag(entry.head.tag));
        }
    };
    with_flicker([&short, &long], serve, |client| {
        for _ in 0..300 {
            let (found, next) = client.scan_prefix(b"k", 0, 1000).wait().expect("scanned");
            assert_eq!(next, Some(7));
            for object in found {
                let key = object.key.as_bytes();
                assert!([8, 500, 0x0108, 0x00f4].contains(&key.len()), "{} bytes", key.len());
                assert!(key.iter().all(|byte| *byte == b'k'));
            }
        }
    });
}

#[test]
fn bytes_that_do_not_match_are_not_seen_and_the_server_is_asked_to_look() {
    const BYTES: u64 = 9000;
    let good = vec![b'g'; BYTES as usize];
    let digests = [
        wrong(BYTES),
        Digest { pieces: 0, ..wrong(BYTES) },
        Digest { pieces: u32::MAX, ..wrong(0) },
        Digest { pieces: 512, stride_bytes: u64::MAX, ..wrong(1) },
        Digest { pieces: 2, stride_bytes: u64::MAX, last_bytes: 2, ..wrong(1) },
        Digest { last_bytes: u64::MAX, ..wrong(BYTES) },
        Digest { last_bytes: POOL_BYTES as u64 + 1, ..wrong(BYTES) },
    ];
    let socket = Socket::new();
    let (client, mut fake) = socket.meet();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let memory = fake.take_memory(0);
            for (number, digest) in digests.iter().enumerate() {
                let (tag, run, is_checked) = fake.take_get();
                assert!(!is_checked);
                memory.write_all_at(&vec![b'b'; BYTES as usize], run.offset).expect("written");
                fake.answer(&unverified(tag, BYTES, digest));
                let (tag, again, is_checked) = fake.take_get();
                assert!(is_checked && again.offset == run.offset && again.bytes >= BYTES);
                memory.write_all_at(&good, again.offset).expect("written");
                let code = if number % 2 == 0 { Code::Done } else { Code::Miss };
                fake.answer(&Done::new(code, BYTES, 1).with_tag(tag));
            }
        });
        for number in 0..digests.len() {
            let value = client.get(key(1)).wait().expect("got");
            assert_eq!(value.is_some(), number % 2 == 0, "digest {number}");
            assert!(value.is_none_or(|value| value.to_vec() == good), "digest {number}");
        }
        serving.join().expect("no panic");
    });
}

/// It would be asked forever, or for what has no bytes.
#[test]
fn a_server_that_verifies_nothing_though_it_has_to_is_lost() {
    for checks in [true, false] {
        let socket = Socket::new();
        let (client, mut fake) = socket.meet();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tag = if checks {
                    fake.take_memory(0);
                    let (tag, ..) = fake.take_get();
                    fake.answer(&unverified(tag, 9000, &wrong(9000)));
                    fake.take_get().0
                } else {
                    fake.take().head.tag
                };
                fake.answer(&unverified(tag, 9000, &wrong(9000)));
            });
            let why = match checks {
                true => Error::from(client.get(key(1)).wait().expect_err("lost")),
                false => Error::from(client.exists(key(1)).wait().expect_err("lost")),
            };
            assert!(why.to_string().contains("answered what was not asked"), "{why}");
        });
    }
}

#[test]
fn a_server_that_is_lost_before_bytes_were_verified_leaves_the_memory_with_the_client() {
    let socket = Socket::new();
    let (client, mut fake) = socket.meet();
    let (pending, told) = std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            fake.take_memory(0);
            let (tag, ..) = fake.take_get();
            fake.answer(&unverified(tag, 9000, &wrong(9000)));
            // It ends here.
            fake.taken
        });
        let memory = client.allocate(12 << 10).expect("memory");
        let pending = client.get_into(key(1), Part::All, memory);
        (pending, serving.join().expect("no panic"))
    });
    assert_eq!(told, 1);
    // The loss is noticed before the bytes are looked at: otherwise the request that is made again takes the memory along.
    client.reap();
    let unfinished = pending.wait().expect_err("nothing verifies them");
    assert!(matches!(*unfinished.error, Error::Lost { .. }), "{unfinished}");
    assert_eq!(unfinished.memory.map(|memory| memory.len()), Some(12 << 10));
}

/// What waits for memory of the pool, before it in line, would wait for its memory.
#[test]
fn a_get_that_is_made_again_waits_for_none_that_waits_for_its_memory() {
    let socket = Socket::new();
    let (client, mut fake) = socket.meet();
    let all = POOL_BYTES as u64;
    let ((has_all, has_it_all), (goes_on, may_go_on)) = (channel(), channel());
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            fake.take_memory(0);
            let (tag, ..) = fake.take_get();
            // It takes all of the pool.
            fake.answer(&Done::new(Code::Memory, all, 0).with_tag(tag));
            let (tag, run, _) = fake.take_get();
            assert_eq!(run.bytes, all);
            has_all.send(()).expect("the client waits for it");
            may_go_on.recv().expect("the client is there");
            fake.answer(&unverified(tag, all, &wrong(all)));
            let (tag, run, is_checked) = fake.take_get();
            assert!(is_checked && run.bytes == all, "before the other get");
            fake.answer(&Done::new(Code::Done, all, 1).with_tag(tag));
            let (tag, _, is_checked) = fake.take_get();
            assert!(!is_checked);
            fake.answer(&Done::new(Code::Miss, 0, 0).with_tag(tag));
        });
        let mut first = client.get(key(1));
        while has_it_all.try_recv().is_err() {
            first = first.wait_timeout(Duration::from_millis(1)).expect_err("no answer");
        }
        let second = client.get(key(2));
        goes_on.send(()).expect("the server is there");
        let value = first.wait().expect("got").expect("a hit");
        assert_eq!(value.len() as u64, all);
        drop(value);
        assert!(second.wait().expect("got").is_none());
        serving.join().expect("no panic");
    });
}

/// The object is replaced between the reads, by a shorter one and by one of a length in between.
#[test]
fn a_get_that_is_made_again_gets_the_memory_that_it_then_needs() {
    let socket = Socket::new();
    let (client, mut fake) = socket.meet();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            fake.take_memory(0);
            for (has, is_first) in [(128 << 10, true), (300 << 10, false)] {
                let (tag, run, is_checked) = fake.take_get();
                assert_eq!((run.bytes, is_checked), (has, false));
                fake.answer(&match is_first {
                    true => Done::new(Code::Memory, 300 << 10, 0).with_tag(tag),
                    false => unverified(tag, 9000, &wrong(9000)),
                });
            }
            for (has, needs) in [(12 << 10, 200 << 10), (200 << 10, 0)] {
                let (tag, run, is_checked) = fake.take_get();
                assert_eq!((run.bytes, is_checked), (has, true));
                fake.answer(&match needs {
                    0 => Done::new(Code::Done, 200 << 10, 3).with_tag(tag),
                    needs => Done::new(Code::Memory, needs, 0).with_tag(tag),
                });
            }
        });
        let value = client.get(key(1)).wait().expect("got").expect("a hit");
        assert_eq!(value.len(), 200 << 10);
        serving.join().expect("no panic");
    });
}
