//! Objects longer than the pool, read and put in pieces.

use std::future::poll_fn;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::pin::Pin;

use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Failure, Outcome};
use adit_kvstore::store::{ImportWith, Imported, ObjectInfo, OpenOptions, PutWith};
use adit_kvstore::{Error, Key, Store};
use tokio::io::{AsyncRead, ReadBuf};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    an_object_longer_than_the_pool_is_read_and_put,
    a_replaced_object_ends_its_readers,
    a_get_beyond_the_pool_names_the_reader,
    a_kv_block_is_read_by_layers,
    an_export_is_imported_as_it_was,
);

/// Longer than the pool of 8 MiB, and no multiple of anything.
const LONG: usize = (20 << 20) + 12_345;

fn open(rig: &Rig) -> Store {
    rig.format(2).open()
}

fn an_object_longer_than_the_pool_is_read_and_put(rig: &Rig) {
    let (store, all) = (open(rig), data(1, LONG));
    let with = PutWith::default();
    let put = |number: u64, bytes| {
        let put = store.put_from(key(number), bytes, Cursor::new(&all), &with);
        assert_eq!(put.expect("stored"), Outcome::Stored);
    };
    put(1, Some(LONG as u64));
    put(2, None);
    put(3, Some(5000));
    for (number, bytes) in [(1, LONG), (2, LONG), (3, 5000)] {
        let mut reader = store.reader(key(number)).wait().expect("asked").expect("there");
        assert_eq!(reader.object_bytes(), bytes as u64);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("read");
        assert!(read == all[..bytes], "the same bytes");
        assert!(reader.next().expect("read").is_none());
    }
    let stats = store.stats().wait().expect("counted");
    assert_eq!(stats.spills, 0, "it keeps to the pool");
    assert!(store.reader(key(4)).wait().expect("asked").is_none());

    let mut reader = store.reader(key(1)).wait().expect("asked").expect("there");
    // A range longer than the pool, and some of it skipped.
    reader.set_range(777..(10 << 20) + 5);
    let mut some = [0; 1000];
    reader.read_exact(&mut some).expect("read");
    assert!(some == all[777..1777], "from where the range begins");
    let piece = reader.next().expect("read").expect("more");
    assert!(piece[..] == all[1777..1777 + piece.len()], "what was not taken comes again");
    reader.seek(SeekFrom::Start((9 << 20) + 1)).expect("within");
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).expect("read");
    assert!(rest == all[(9 << 20) + 1..(10 << 20) + 5], "up to the end of the range");
    assert_eq!(reader.position(), (10 << 20) + 5);
    reader.seek(SeekFrom::End(10)).expect("allowed");
    assert_eq!(reader.read(&mut some).expect("nothing"), 0);
    assert!(reader.seek(SeekFrom::Current(-(1 << 40))).is_err());

    let short = store.put_from(key(1), Some(LONG as u64 + 1), Cursor::new(&all), &with);
    assert!(matches!(short, Err(Error::Source { .. })), "{short:?}");
    let again = store.reader(key(1)).wait().expect("asked").expect("the object stays");
    assert_eq!(again.object_bytes(), LONG as u64);
}

fn a_replaced_object_ends_its_readers(rig: &Rig) {
    let (store, first, second) = (open(rig), data(1, LONG), data(2, LONG));
    let with = PutWith::default();
    let put = |all: &Vec<u8>| store.put_from(key(1), None, Cursor::new(all), &with).expect("put");
    put(&first);
    for is_deleted in [false, true] {
        let now = if is_deleted { &second } else { &first };
        let mut reader = store.reader(key(1)).wait().expect("asked").expect("there");
        let begun = reader.next().expect("read").expect("some").to_vec();
        assert!(begun[..] == now[..begun.len()]);
        if is_deleted {
            assert!(store.delete(key(1)).wait().expect("deleted"));
        } else {
            put(&second);
        }
        // What was read ahead is of the old version; nothing of the new one follows.
        let mut read = begun.len();
        let why = loop {
            match reader.next() {
                Ok(piece) => {
                    let piece = piece.expect("it does not end early");
                    assert!(piece[..] == now[read..read + piece.len()], "of one version");
                    read += piece.len();
                }
                Err(why) => break why,
            }
        };
        assert!(matches!(why, Error::Gone { at, .. } if at == read as u64), "{why}");
        assert!(why.to_string().contains("read it again from its beginning"), "{why}");
    }
}

fn a_get_beyond_the_pool_names_the_reader(rig: &Rig) {
    let (store, all) = (open(rig), data(1, LONG));
    store.put_from(key(1), None, Cursor::new(&all), &PutWith::default()).expect("put");
    let told = |why: Option<adit_kvstore::store::Unfinished>| {
        let told = why.expect("more than the pool").to_string();
        assert!(told.contains("8388608") && told.contains("Store::reader"), "{told}");
        told
    };
    let whole = told(store.get(key(1)).wait().err());
    assert!(whole.contains(&LONG.to_string()), "{whole}");
    let range = told(store.get_range(key(1), 0..12 << 20).wait().err());
    assert!(range.contains(&(12 << 20).to_string()), "the range's length: {range}");
    assert!(!range.contains(&LONG.to_string()), "not the object's: {range}");
    let many = store.get_many([key(1), key(2)]).wait().into_iter().next().expect("answered");
    assert_eq!(told(many.err()), whole);
    let put = store.put(key(2), all).wait().expect_err("more than the pool").to_string();
    assert!(put.contains("Store::put_from"), "{put}");
}

fn a_kv_block_is_read_by_layers(rig: &Rig) {
    let store = open(rig);
    let (dtype, tensors_per_layer) = (Dtype::Bf16, 2);
    let shape =
        BlockShape { layers: 6, tensors_per_layer, kv_heads: 8, head_dim: 128, dtype, tokens: 200 };
    for (number, order) in [(1, Order::BlockMajor), (2, Order::LayerMajor { slots: 4 })] {
        let layout = Layout::new(shape, order).expect("a layout");
        let bytes = layout.block_units() * 4096;
        let all = data(number, bytes as usize);
        let with = PutWith {
            layout: Some(store.layout(layout).wait().expect("defined")),
            ..PutWith::default()
        };
        store.put_from(key(number), Some(bytes), Cursor::new(&all), &with).expect("put");
        let tensor = layout.tensor_bytes() as usize;
        let stride = layout.tensor_units() as usize * 4096;
        let check = |read: &[u8], from: usize| {
            for at in (from..from + read.len()).filter(|at| at % stride < tensor) {
                assert!(read[at - from] == all[at], "byte {at} of {order:?}");
            }
        };
        let mut reader = store.reader(key(number)).wait().expect("asked").expect("there");
        let layer = layout.run_units() * 4096;
        let mut at = 0;
        while let Some(piece) = reader.next().expect("read") {
            check(&piece, at);
            at += piece.len();
            assert!((at as u64).is_multiple_of(layer));
        }
        assert_eq!(at as u64, bytes);
        let range = store.get_range(key(number), layer + 5..layer + 9).wait().expect("read");
        check(&range.expect("there"), layer as usize + 5);
    }
}

#[test]
fn readers_that_wait_for_memory_share_the_pool_and_end() {
    let rig = Rig::soft();
    rig.format(1);
    let store =
        Store::open(&OpenOptions { pool_bytes: 4 << 20, ..rig.options() }).expect("a store");
    let all = data(1, 6 << 20);
    store.put_from(key(1), None, Cursor::new(&all), &PutWith::default()).expect("put");
    let mut readers: Vec<_> =
        (0..5).map(|_| store.reader(key(1)).wait().expect("asked").expect("there")).collect();
    let mut read = vec![Vec::new(); readers.len()];
    for _ in 0..6 << 20 >> 10 {
        for (reader, read) in readers.iter_mut().zip(&mut read) {
            let mut some = [0; 1024];
            reader.read_exact(&mut some).expect("read");
            read.extend(some);
        }
    }
    assert!(read.iter().all(|read| *read == all), "the same bytes for each");
}

#[test]
fn an_async_reader_reads_what_an_async_put_stored() {
    let rig = Rig::file();
    let (store, all) = (open(&rig), data(1, LONG));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let with = PutWith::default();
        let put = store.put_from_async(key(1), LONG as u64, &all[..], &with);
        assert_eq!(put.await.expect("stored"), Outcome::Stored);
        let short = store.put_from_async(key(2), LONG as u64 + 1, &all[..], &with).await;
        assert!(matches!(short, Err(Error::Source { .. })), "{short:?}");
        let mut reader = store.reader(key(1)).await.expect("asked").expect("there");
        let (mut read, mut some) = (Vec::new(), vec![0; 100_000]);
        loop {
            let mut buffer = ReadBuf::new(&mut some);
            let polled = poll_fn(|context| Pin::new(&mut reader).poll_read(context, &mut buffer));
            polled.await.expect("read");
            match buffer.filled() {
                [] => break,
                bytes => read.extend_from_slice(bytes),
            }
        }
        assert!(read == all, "the same bytes");
        assert!(reader.next_async().await.expect("read").is_none());
    });
    let mut reader = store.reader(key(1)).wait().expect("asked").expect("there");
    store.close().wait().expect("closed");
    assert!(matches!(reader.next(), Err(Error::Failed(Failure::Closed))));
}

/// Puts objects of these lengths; the last is a KV block.
const LENGTHS: [usize; 7] = [0, 1, 5000, 1 << 20, (1 << 20) + 1, LONG, 6 * 4096];

fn fill(store: &Store) {
    let tenant = Some(store.tenant("red").wait().expect("a tenant"));
    let ttl = Some(std::time::Duration::from_secs(1000));
    let shape = BlockShape {
        layers: 3,
        tensors_per_layer: 2,
        kv_heads: 1,
        head_dim: 64,
        dtype: Dtype::F16,
        tokens: 20,
    };
    let layout = Layout::new(shape, Order::LayerMajor { slots: 8 }).expect("a layout");
    for (number, bytes) in (0..).zip(LENGTHS) {
        let is_block = number == LENGTHS.len() as u64 - 1;
        let defined = is_block.then(|| store.layout(layout).wait().expect("defined"));
        let with = PutWith { tenant: tenant.clone(), ttl, layout: defined, ..PutWith::default() };
        let all = data(number, bytes);
        store.put_from(key(number), Some(bytes as u64), &all[..], &with).expect("put");
    }
    store.put(other(), b"another").wait().expect("put");
}

fn other() -> Key {
    Key::new(b"other").expect("a key")
}

fn infos(store: &Store) -> Vec<ObjectInfo> {
    let info = |key| store.info(key).wait().expect("asked").expect("there");
    (0..).take(LENGTHS.len()).map(key).chain([other()]).map(info).collect()
}

fn an_export_is_imported_as_it_was(rig: &Rig) {
    let store = open(rig);
    fill(&store);
    let mut whole = Vec::new();
    let counts = store.export(b"", &mut whole).expect("exported");
    let bytes: u64 = LENGTHS.iter().map(|bytes| *bytes as u64).sum();
    assert_eq!((counts.objects, counts.bytes), (LENGTHS.len() as u64 + 1, bytes + 7));
    assert_eq!(store.export(b"oth", std::io::sink()).expect("exported").objects, 1);
    let before = infos(&store);
    store.close().wait().expect("closed");

    let store = open(rig);
    let import = |from: &[u8], keeps| {
        let mut import = store
            .import(from, ImportWith { keeps, ..ImportWith::default() })
            .expect("it is a stream");
        (import.run(), import.told())
    };
    // Cut off within the longest object, whose place in the stream is any.
    let (ended, told) = import(&whole[..whole.len() - 9], false);
    assert!(matches!(ended, Err(Error::Stream { .. })), "{ended:?}");
    assert_eq!(told.objects, counts.objects, "all but the end has come");
    let (ended, told) = import(&whole[..whole.len() / 2], true);
    assert!(ended.expect_err("cut off").to_string().contains("cut off"));
    assert!(told.objects == 0 && told.kept > 0, "{told:?}");
    assert!(store.delete(key(5)).wait().expect("deleted"));
    let (ended, told) = import(&whole, true);
    ended.expect("whole");
    let expected = Imported { objects: 1, bytes: LONG as u64, ..Imported::default() };
    assert_eq!(told, Imported { kept: counts.objects - 1, ..expected });

    for (before, now) in before.iter().zip(infos(&store)) {
        assert_eq!(
            (&now.tenant, now.layout, now.bytes),
            (&before.tenant, before.layout, before.bytes)
        );
        let (left, left_before) = (now.ttl_s.unwrap_or(0), before.ttl_s.unwrap_or(0));
        // Seconds are rounded up each time.
        assert!(left <= left_before + 2 && left + 100 > left_before, "{left} of {left_before} s");
        assert_ne!(now.version, before.version);
    }
    for (number, bytes) in (0..).zip(LENGTHS).take(LENGTHS.len() - 1) {
        let mut reader = store.reader(key(number)).wait().expect("asked").expect("there");
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("read");
        assert!(read == data(number, bytes), "the bytes of object {number}");
    }
    let prefix = b"oth".to_vec();
    let mut import =
        store.import(&whole[..], ImportWith { prefix, keeps: false }).expect("it is a stream");
    import.run().expect("whole");
    assert_eq!(import.told().objects, 1);
}

#[test]
fn a_piece_that_is_longer_than_the_pool_is_refused_with_what_to_do() {
    let rig = Rig::soft();
    rig.format(1);
    let (dtype, tensors_per_layer) = (Dtype::Bf16, 2);
    let shape =
        BlockShape { layers: 2, tensors_per_layer, kv_heads: 8, head_dim: 128, dtype, tokens: 800 };
    let layout = Layout::new(shape, Order::BlockMajor).expect("a layout");
    let (bytes, layer) = (layout.block_units() * 4096, layout.run_units() * 4096);
    let all = data(1, bytes as usize);
    let open = |pool_bytes| {
        let store = Store::open(&OpenOptions { pool_bytes, ..rig.options() }).expect("a store");
        let layout = Some(store.layout(layout).wait().expect("defined"));
        (store, PutWith { layout, ..PutWith::default() })
    };
    let (store, with) = open(4 << 20);
    store.put_from(key(1), Some(bytes), &all[..], &with).expect("a layer fits");
    store.close().wait().expect("closed");
    let (store, with) = open(1 << 20);
    let read = store.reader(key(1)).wait().expect_err("a layer does not fit").to_string();
    let put = store.put_from(key(1), Some(bytes), &all[..], &with).expect_err("nor here");
    for told in [read, put.to_string()] {
        assert!(told.contains(&layer.to_string()) && told.contains("raise pool_bytes"), "{told}");
    }
}

/// A stream during which something happens, once.
struct Meanwhile<'a>(Vec<u8>, Option<&'a dyn Fn()>);

impl std::io::Write for Meanwhile<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        // Behind the first pieces of the object.
        if self.0.len() > 3 << 20
            && let Some(happens) = self.1.take()
        {
            happens();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_object_that_is_replaced_while_it_is_exported_comes_in_one_version_or_not() {
    let with = PutWith::default();
    for is_deleted in [false, true] {
        let rig = Rig::soft();
        let (store, first, second) = (open(&rig), data(1, LONG), data(2, LONG + 1));
        store.put_from(key(1), None, Cursor::new(&first), &with).expect("put");
        let happens = || match is_deleted {
            true => assert!(store.delete(key(1)).wait().expect("deleted")),
            false => {
                store.put_from(key(1), None, Cursor::new(&second), &with).expect("put");
            }
        };
        let mut stream = Meanwhile(Vec::new(), Some(&happens));
        let counts = store.export(b"", &mut stream).expect("exported");
        let expected = (u64::from(!is_deleted), 1);
        assert_eq!((counts.objects, counts.abandoned), expected, "deleted: {is_deleted}");
        let other = Rig::soft();
        let store = open(&other);
        let mut import = store.import(&stream.0[..], ImportWith::default()).expect("a stream");
        import.run().expect("whole");
        assert_eq!(import.told().objects, expected.0);
        let reader = store.reader(key(1)).wait().expect("asked");
        assert_eq!(reader.is_none(), is_deleted);
        if let Some(mut reader) = reader {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).expect("read");
            assert!(read == second, "the new version");
        }
    }
}
