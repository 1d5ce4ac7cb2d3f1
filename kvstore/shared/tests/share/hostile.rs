//! Clients that break the rules: each is refused or left, and hurts neither the server nor the client beside it.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_kvshare::wire::{
    Ask, Code, Matter, MemoryRun, Message, OBJECT_BYTES_MAX, RequestEntry, VERSION,
};
use adit_kvshare::{KvStore, PendingAnswer};
use adit_kvstore::shard::{Condition, Part};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::MFdFlags;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use zerocopy::FromBytes;

use crate::raw::{
    ANSWERS_HEAD, DEPTH, Mapped, PAGE, REQUESTS_HEAD, REQUESTS_TAIL, Raw, answer, connect, eventfd,
    memory, ring_bytes, sealable, send,
};
use crate::rig::{PATIENCE, Rig, data, key};

/// Checks that a client beside the hostile one is served rightly.
fn check_the_server(rig: &Rig) {
    let client = rig.client();
    client.put(key(1), &data(1, 3, 20_000)).wait().expect("put");
    let value = client.get(key(1)).wait().expect("got").expect("a hit");
    assert!(value.to_vec() == data(1, 3, 20_000));
}

fn expelled(rig: &Rig, part: &str) {
    rig.until("a client was disconnected", |counts| counts.clients_expelled > 0);
    rig.until("it is gone", |counts| counts.clients_now == 0);
    let reasons = rig.reasons();
    assert!(
        reasons.iter().any(|(why, is_expelled)| *is_expelled && why.contains(part)),
        "{reasons:?}"
    );
    check_the_server(rig);
    rig.until_nothing_is_left();
}

#[test]
fn what_is_no_message_ends_the_connection() {
    let rig = Rig::soft();
    let mut stream = connect(&rig.socket());
    stream.write_all(&[0x5a; 4096]).expect("sent");
    expelled(&rig, "does not speak this protocol");
    let stream = connect(&rig.socket());
    send(&stream, &Message::new(Matter::Share, [PAGE, 0, 0, 0]), &[]);
    let refused = answer(&stream).expect("an answer");
    assert_eq!(refused.body(), b"greet first");
    assert!(answer(&stream).is_none());
}

#[test]
fn greetings_that_are_wrong_are_refused_with_the_reason() {
    let rig = Rig::soft();
    let (good, bell) = (sealable(ring_bytes()), eventfd());
    let bell = bell.as_fd().as_raw_fd();
    let (short, unsealable) = (sealable(PAGE), memory(ring_bytes(), MFdFlags::empty()));
    let null = File::open("/dev/null").expect("a file");
    let good_files = [good.as_raw_fd(), bell, bell];
    let greet = [VERSION, DEPTH, 1, 0];
    let cases: [([u64; 4], &[RawFd], &str); 8] = [
        ([VERSION + 1, DEPTH, 1, 0], &good_files, "use one version"),
        ([VERSION, 3, 1, 0], &good_files, "2 to 4096"),
        ([VERSION, 1 << 40, 1, 0], &good_files, "2 to 4096"),
        (greet, &good_files[..2], "3 files"),
        (greet, &[null.as_raw_fd(), bell, bell], "not a memory file"),
        (greet, &[good.as_raw_fd(), null.as_raw_fd(), bell], "no eventfds"),
        (greet, &[short.as_raw_fd(), bell, bell], "the file has 4096 bytes"),
        (greet, &[unsealable.as_raw_fd(), bell, bell], "can be shortened"),
    ];
    for (numbers, files, part) in cases {
        let stream = connect(&rig.socket());
        send(&stream, &Message::new(Matter::Greet, numbers), files);
        let refused = answer(&stream).expect("an answer");
        let why = String::from_utf8_lossy(refused.body()).into_owned();
        assert!(refused.code != 0 && why.contains(part), "{why}");
        assert!(answer(&stream).is_none(), "{part}");
    }
    expelled(&rig, "no eventfds");
}

#[test]
fn memory_that_could_make_the_server_fault_is_not_mapped() {
    let rig = Rig::soft();
    let raw = Raw::greeted(&rig.socket());
    let null = File::open("/dev/null").expect("a file");
    let sealed = |seals| {
        let file = sealable(1 << 20);
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
        file
    };
    let shrink = sealed(SealFlag::F_SEAL_SHRINK);
    let read_only = File::open(format!("/proc/self/fd/{}", shrink.as_raw_fd())).expect("opened");
    let constant = sealed(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE);
    let cases = [
        (1 << 20, read_only, "for writing: Permission denied"),
        (1 << 20, constant, "for writing: Operation not permitted"),
        (PAGE, memory(PAGE, MFdFlags::empty()), "can be shortened"),
        (2 * PAGE, sealable(PAGE), "the file has 4096 bytes"),
        (PAGE, null, "not a memory file"),
        (0, sealable(PAGE), "whole pages"),
        (u64::MAX, sealable(PAGE), "more than"),
    ];
    for (bytes, file, part) in cases {
        send(&raw.stream, &Message::new(Matter::Share, [bytes, 0, 0, 0]), &[file.as_raw_fd()]);
        let refused = answer(&raw.stream).expect("an answer");
        let why = String::from_utf8_lossy(refused.body()).into_owned();
        assert!(refused.code != 0 && why.contains(part), "{why}");
    }
    let file = sealable(4 * PAGE);
    send(&raw.stream, &Message::new(Matter::Share, [4 * PAGE, 0, 0, 0]), &[file.as_raw_fd()]);
    assert_eq!(answer(&raw.stream).expect("an answer").code, 0);
    assert!(file.set_len(0).is_err(), "it is sealed now");
    send(&raw.stream, &Message::new(Matter::Layout, [7, 7, 7, 7]), &[]);
    assert_ne!(answer(&raw.stream).expect("an answer").code, 0);
    drop(raw);
    for number in [0, 1, 1 << 40] {
        let raw = Raw::greeted(&rig.socket());
        send(&raw.stream, &Message::new(Matter::Unshare, [number, 0, 0, 0]), &[]);
        assert!(answer(&raw.stream).is_none(), "it has no region {number}");
    }
    expelled(&rig, "no such region");
    check_the_server(&rig);
    rig.until_nothing_is_left();
}

#[test]
fn counters_that_jump_end_the_connection() {
    for (word, value) in [
        (REQUESTS_TAIL, DEPTH + 1),
        (REQUESTS_TAIL, u64::MAX),
        (ANSWERS_HEAD, 1),
        (ANSWERS_HEAD, u64::MAX - DEPTH),
    ] {
        let rig = Rig::soft();
        let raw = Raw::greeted(&rig.socket());
        raw.store(word, value);
        raw.ring();
        assert!(raw.is_left());
        expelled(&rig, "a counter of its rings cannot be right");
    }
}

#[test]
fn a_client_that_never_reads_its_answers_is_left() {
    let rig = Rig::soft();
    let mut raw = Raw::greeted(&rig.socket());
    for tag in 0..DEPTH {
        raw.ask(&Ask::Exists(key(tag)), tag);
    }
    rig.until("all were taken", |counts| counts.requests == DEPTH);
    raw.ask(&Ask::Exists(key(9)), 9);
    assert!(raw.is_left());
    expelled(&rig, "more than it has room for answers");
}

#[test]
fn requests_beyond_the_memory_are_refused_and_so_is_memory_in_use() {
    let rig = Rig::soft();
    rig.store.put(key(1), data(1, 0, 4096)).wait().expect("put");
    let mut raw = Raw::greeted(&rig.socket());
    let region = raw.share(4 * PAGE);
    let good = MemoryRun { region, offset: 0, bytes: PAGE };
    let get = |memory| Ask::Get {
        key: key(1),
        part: Part::All,
        memory,
        version: None,
        is_checked: false,
    };
    let put = |memory, bytes, layout| {
        let (key, ttl_s, joins, condition) = (key(2), 0, false, Condition::Always);
        Ask::Put { key, memory, bytes, layout, ttl_s, joins, condition }
    };
    let scan = |from, memory| Ask::Scan { prefix: [].into(), from, limit: 9, memory };
    let asks = [
        get(MemoryRun { region: 1000, ..good }),
        get(MemoryRun { offset: 4 * PAGE, ..good }),
        get(MemoryRun { offset: u64::MAX, ..good }),
        get(MemoryRun { offset: PAGE, bytes: u64::MAX, ..good }),
        get(MemoryRun { bytes: 0, ..good }),
        put(good, PAGE + 1, 0),
        scan(0, MemoryRun { bytes: 0, ..good }),
        scan(0, MemoryRun { offset: 4 * PAGE, ..good }),
        put(good, 1, 1),
        put(good, u64::MAX, u32::MAX),
        Ask::Fill { writer: 1, offset: 0, bytes: PAGE, memory: good },
        Ask::Fill { writer: 1, offset: 0, bytes: PAGE + 1, memory: good },
        Ask::Seal(1),
        Ask::Reserve { key: key(1), bytes: 1, layout: 1, ttl_s: 0, condition: Condition::Always },
    ];
    for (tag, ask) in (0..).zip(&asks) {
        raw.ask(ask, tag);
        let done = raw.take();
        assert_eq!((done.tag, Code::of(done.code)), (tag, Code::Malformed), "{ask:?}");
    }
    // Both are taken in one turn: the second finds the memory with the first.
    raw.push(&RequestEntry::of(&get(good), 100));
    raw.ask(&get(MemoryRun { offset: 0, bytes: 2 * PAGE, ..good }), 101);
    let mut codes = [raw.take(), raw.take()].map(|done| (done.tag, Code::of(done.code)));
    codes.sort_by_key(|(tag, _)| *tag);
    assert_eq!(codes[0], (100, Code::Unverified));
    assert!(matches!(codes[1], (101, Code::InUse | Code::Unverified)), "{codes:?}");
    // A page has room for whole objects only, whatever the memory.
    const ROOM: u64 = OBJECT_BYTES_MAX as u64;
    for (tag, bytes) in [(200, 1), (201, ROOM - 1), (202, ROOM), (203, PAGE)] {
        // One of the two shards has the object.
        let found = [0, 1 << 32].map(|from| {
            let memory = MemoryRun { bytes, ..good };
            raw.ask(&scan(from, memory), tag);
            let done = raw.take();
            assert_eq!(Code::of(done.code), Code::Done);
            done.value
        });
        assert_eq!(found.iter().sum::<u64>(), u64::from(bytes >= ROOM), "{bytes} bytes");
    }
    let nowhere = Ask::Scan { prefix: [7; 512].into(), from: u64::MAX, limit: 9, memory: good };
    raw.ask(&nowhere, 204);
    assert_eq!(raw.take().value, 0);
    raw.ask(&Ask::Abandon(1), 102);
    assert_eq!(raw.take().value, 0, "there was no such writer");
    raw.ask(&Ask::Release(77), 102);
    assert_eq!(raw.take().value, 0, "there was no such lease");
    drop(raw);
    check_the_server(&rig);
    rig.until_nothing_is_left();
}

#[test]
fn a_page_of_removals_has_whole_keys_only_and_any_position_is_one() {
    let rig = Rig::soft();
    rig.store.put(key(1), data(1, 0, 4096)).wait().expect("put");
    let mut raw = Raw::greeted(&rig.socket());
    let good = MemoryRun { region: raw.share(4 * PAGE), offset: 0, bytes: PAGE };
    let removals = |from, memory| Ask::Removals { prefix: [].into(), from, limit: 9, memory };
    for (tag, bad) in (0..).zip([MemoryRun { bytes: 0, ..good }, MemoryRun { region: 9, ..good }]) {
        raw.ask(&removals(Some(1), bad), tag);
        assert_eq!(Code::of(raw.take().code), Code::Malformed, "{bad:?}");
    }
    raw.ask(&removals(None, good), 2);
    let begin = raw.take().extra;
    rig.store.delete(key(1)).wait().expect("deleted");
    for (tag, bytes) in [(3, 1), (4, 513), (5, 514), (6, PAGE)] {
        raw.ask(&removals(Some(begin), MemoryRun { bytes, ..good }), tag);
        let done = raw.take();
        let fits = u64::from(bytes >= 514);
        assert_eq!((done.value, done.extra), (fits, begin + fits), "{bytes} bytes");
    }
    for from in [0, begin - 1, begin + 2, u64::MAX] {
        raw.ask(&removals(Some(from), good), 7);
        let done = raw.take();
        assert_eq!((done.value, done.missed), (1, 1), "what there is, and that there was more");
    }
    drop(raw);
    check_the_server(&rig);
    rig.until_nothing_is_left();
}

#[test]
fn only_puts_of_one_call_are_laid_out_together() {
    let rig = Rig::soft();
    let mut raw = Raw::greeted(&rig.socket());
    let region = raw.share(DEPTH * PAGE);
    let mut commands = |first: u64, joins: bool| {
        let written = || rig.store.stats().wait().expect("counters").commands_write;
        let before = written();
        let put = |number: u64| {
            let memory = MemoryRun { region, offset: number * PAGE, bytes: PAGE };
            let (key, joins) = (key(first + number), joins && number > 0);
            let (bytes, condition) = (PAGE, Condition::Always);
            let ask = Ask::Put { key, memory, bytes, layout: 0, ttl_s: 0, joins, condition };
            RequestEntry::of(&ask, number)
        };
        raw.push_all(&(0..DEPTH).map(put).collect::<Vec<_>>());
        raw.ring();
        (0..DEPTH).for_each(|_| assert_eq!(Code::of(raw.take().code), Code::Done));
        written() - before
    };
    let (alone, together) = (commands(0, false), commands(100, true));
    // Those together are a command for each shard; the journal may add some.
    assert!(alone >= DEPTH && together <= DEPTH / 2, "{alone} and {together} commands");
}

#[test]
fn any_bytes_in_the_ring_are_answered_and_nothing_else_happens() {
    let rig = Rig::soft();
    let raw = Raw::greeted(&rig.socket());
    raw.share(16 * PAGE);
    let entries = (
        proptest::collection::vec(any::<u8>(), size_of::<RequestEntry>()),
        0u8..20,
        any::<bool>(),
        any::<bool>(),
    );
    let (raw, tags) = (RefCell::new(raw), Cell::new(0));
    let tried = TestRunner::default().run(&entries, |(bytes, action, is_key, is_near)| {
        let mut raw = raw.borrow_mut();
        let mut entry = RequestEntry::read_from_bytes(&bytes).expect("its size");
        entry.head.action = action;
        if is_key {
            entry.head.key_bytes %= 600;
        }
        if is_near {
            let head = &mut entry.head;
            (head.region, head.offset, head.room) =
                (head.region % 2, head.offset % (20 * PAGE), head.room % (20 * PAGE));
            head.bytes %= 20 * PAGE;
        }
        let tag = tags.replace(tags.get() + 1);
        entry.head.tag = tag;
        // One more key has no answer; the request that ends the list has.
        let is_list = matches!(Ask::of(&entry), Ok(Ask::Key(_)));
        raw.push(&entry);
        raw.ring();
        if is_list {
            raw.ask(&Ask::LookupPrefix(key(1 << 40)), tag);
        }
        prop_assert_eq!(raw.take().tag, tag);
        Ok(())
    });
    tried.expect("each was answered");
    drop(raw);
    check_the_server(&rig);
    rig.until_nothing_is_left();
}

#[test]
fn a_list_of_keys_without_an_end_ends_the_connection() {
    let rig = Rig::soft();
    let mut raw = Raw::greeted(&rig.socket());
    let begin = std::time::Instant::now();
    while rig.counts().clients_expelled == 0 {
        assert!(begin.elapsed() < PATIENCE, "it is not left");
        let mut head = [0; 8];
        raw.rings.read(&mut head, REQUESTS_HEAD);
        for _ in raw.tail - u64::from_ne_bytes(head)..DEPTH {
            raw.push(&RequestEntry::of(&Ask::Key(key(1)), 0));
        }
        raw.ring();
        std::thread::yield_now();
    }
    assert!(raw.tail > 16_000 && raw.is_left());
    expelled(&rig, "keys in one request");
}

#[test]
fn a_doorbell_that_would_block_stops_only_its_owner() {
    let rig = Rig::soft();
    let mut raw = Raw::greeted(&rig.socket());
    for bell in [&raw.bell, &raw.server_bell] {
        let flags = OFlag::from_bits_retain(fcntl(bell, FcntlArg::F_GETFL).expect("flags"));
        fcntl(bell, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).expect("set");
    }
    raw.bell.write(u64::MAX - 1).expect("full: a write would wait");
    // It says that it sleeps, so that the server rings.
    for tag in 0..100 {
        raw.store(320, 1);
        raw.ask(&Ask::Exists(key(tag)), tag);
        assert_eq!(raw.take().tag, tag);
    }
    // Taking the doorbell's count away leaves the server's thread awake or asleep, not stuck.
    raw.ring();
    raw.server_bell.read().expect("taken away");
    drop(raw);
    check_the_server(&rig);
    rig.until_nothing_is_left();
}

#[test]
fn a_client_that_hangs_up_in_the_middle_leaves_nothing_behind() {
    for rig in [Rig::soft(), Rig::file()] {
        for round in 0..20 {
            let client = rig.client();
            let put = (0..64).map(|number| (key(number), data(number, round, 60_000)));
            let items: Vec<_> = put.collect();
            let items = items.iter().map(|(key, data)| (key.clone(), data));
            let puts = client.put_many(items, &Default::default());
            let keys: Vec<_> = (0..64).map(key).collect();
            let lease = client.lease(&keys, PATIENCE);
            let gets = client.get_many((0..64).map(key));
            // The connection ends with the last of these.
            drop((lease, puts, gets, client));
        }
        rig.until_nothing_is_left();
        check_the_server(&rig);
    }
}

/// What it writes is in no memory of the server's, and no claim of its own that an object is damaged is believed.
#[test]
fn a_client_that_writes_its_memory_while_it_is_read_into_changes_and_drops_no_object() {
    const BYTES: u64 = 64 << 10;
    let rig = Rig::soft();
    rig.store.set_tier(64 << 20).expect("memory");
    let client = rig.client();
    let keys = || 1..41;
    for number in keys() {
        client.put(key(number), &data(number, 3, BYTES as usize)).wait().expect("put");
    }
    let mut raw = Raw::greeted(&rig.socket());
    let mapped = Mapped::new(sealable(BYTES));
    let memory = MemoryRun { region: raw.share_file(&mapped.file, BYTES), offset: 0, bytes: BYTES };
    let (reads, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Writes the last byte that the object being read has, and another one.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let number = reads.load(Ordering::Relaxed);
                let last = *data(number, 3, BYTES as usize).last().expect("it has bytes");
                for byte in (0..100).flat_map(|_| [last, !last]) {
                    mapped.write(&[byte], BYTES - 1);
                }
            }
        });
        for number in keys() {
            reads.store(number, Ordering::Relaxed);
            let (key, part) = (key(number), Part::All);
            for is_checked in [false, true] {
                let (key, part) = (key.clone(), part.clone());
                raw.ask(&Ask::Get { key, part, memory, version: None, is_checked }, number);
                // It may be in the memory tier, and verified.
                let code = Code::of(raw.take().code);
                let is_verified = code == Code::Done;
                assert!(is_verified || (code == Code::Unverified && !is_checked), "{code:?}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for number in keys() {
        let value = client.get(key(number)).wait().expect("got").expect("a hit");
        assert!(value.to_vec() == data(number, 3, BYTES as usize), "object {number}");
    }
    let stats = rig.store.stats().wait().expect("counted");
    assert_eq!((stats.hits, stats.misses_corrupt), (3 * 40, 0), "{stats:?}");
}
