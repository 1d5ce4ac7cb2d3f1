//! A store that an earlier build left behind opens, and each of its objects comes back byte by byte.
//!
//! `kvstore/tests/images/format-3.pages` is such a store, as after a crash: a checkpoint of two shards, and records in
//! their journals behind it. `docs/design/disk-format.md` says what it promises. The file has the pages that are not
//! zero: its length, then for each page its number, both as eight bytes, and its 4096 bytes.

use std::fs::{File, read, write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::store::{FormatStore, PutWith};
use adit_kvstore::{Key, Quota, Store, WhenReached};

use crate::rig::{Rig, data, key};

const PAGE: usize = 4096;
const FILE_BYTES: u64 = 16 << 20;
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
const QUOTAS: [(&str, Quota); 2] = [
    ("refused", Quota { bytes: 1 << 20, when_reached: WhenReached::Refuse }),
    ("evicts", Quota { bytes: 2 << 20, when_reached: WhenReached::EvictOwn }),
];

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/images/format-3.pages")
}

/// Returns the pages of a file that are not zero.
fn packed(file: &[u8]) -> Vec<u8> {
    let mut packed = (file.len() as u64).to_le_bytes().to_vec();
    for (number, page) in (0u64..).zip(file.chunks(PAGE)) {
        if page.iter().any(|byte| *byte != 0) {
            packed.extend_from_slice(&number.to_le_bytes());
            packed.extend_from_slice(page);
        }
    }
    packed
}

/// Makes a copy of the stored image.
fn unpacked() -> Rig {
    let (packed, rig) = (read(path()).expect("the image is in the tree"), Rig::file());
    let number = |at: usize| u64::from_le_bytes(packed[at..at + 8].try_into().expect("8 bytes"));
    let file = File::create(rig.path()).expect("a file");
    file.set_len(number(0)).expect("room");
    for at in (8..packed.len()).step_by(8 + PAGE) {
        let page = &packed[at + 8..at + 8 + PAGE];
        file.write_all_at(page, number(at) * PAGE as u64).expect("a write");
    }
    rig
}

fn layout() -> Layout {
    let (layers, tensors_per_layer, dtype) = (2, 2, Dtype::F16);
    let block =
        BlockShape { layers, tensors_per_layer, kv_heads: 2, head_dim: 48, dtype, tokens: 16 };
    Layout::new(block, Order::LayerMajor { slots: 8 }).expect("a layout")
}

/// Returns a KV block: four tensors of 3072 bytes, each padded to a page.
fn block(number: u64) -> Vec<u8> {
    let tensor = |index| [data(number << 8 | index, 3072), vec![0; 1024]].concat();
    (0..4).flat_map(tensor).collect()
}

/// Returns an object of several checksums, of which only the first and the last page are not zero.
fn long(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 300_001];
    bytes[..100].copy_from_slice(&data(number, 100));
    bytes[299_901..].copy_from_slice(&data(number + 1, 100));
    bytes
}

fn name(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a key")
}

/// An object of the image: its key, bytes, tenant and lifetime.
type Stored = (Key, Vec<u8>, Option<&'static str>, Option<Duration>);

/// Returns the objects that the image holds: those of the checkpoint, then those of the journal.
fn objects() -> [Vec<Stored>; 2] {
    let plain = |key, bytes| (key, bytes, None, None);
    let checkpoint = vec![
        plain(name("empty"), Vec::new()),
        plain(name("byte"), data(1, 1)),
        plain(name("page"), data(2, PAGE)),
        plain(name("odd"), data(3, 5001)),
        plain(name("long"), long(4)),
        plain(Key::new(&[0xff; 512]).expect("a key"), data(5, 700)),
        (name("of a tenant"), data(6, 900), Some(QUOTAS[0].0), None),
        (name("for a century"), data(7, 800), None, Some(CENTURY)),
    ];
    let journal = vec![
        plain(name("newer"), data(8, 6000)),
        plain(name("page, replaced"), data(10, PAGE + 1)),
        plain(name("replaced twice"), data(13, 77)),
        (name("of another tenant"), data(14, 1000), Some(QUOTAS[1].0), Some(CENTURY)),
    ];
    [checkpoint, journal]
}

/// Returns objects that are replaced or removed later: puts of the checkpoint, and of the journal before others.
fn gone() -> [Vec<(Key, Vec<u8>)>; 2] {
    let checkpoint = vec![
        (name("page, replaced"), data(9, PAGE)),
        (name("replaced twice"), data(11, 5000)),
        (name("removed"), data(15, 300)),
    ];
    [
        checkpoint,
        vec![(name("replaced twice"), data(12, 20_000)), (name("newer, removed"), data(16, 2))],
    ]
}

/// The blocks of the checkpoint and of the journal.
const BLOCKS: [std::ops::Range<u64>; 2] = [100..103, 103..105];

/// Puts what belongs to the checkpoint (0) or the journal (1).
fn fill(store: &Store, part: usize) {
    for (key, bytes) in gone()[part].iter().cloned() {
        assert!(store.put(key, bytes).wait().expect("put").is_stored());
    }
    for (key, bytes, tenant, ttl) in objects()[part].iter().cloned() {
        let tenant = tenant.map(|name| store.tenant(name).wait().expect("a tenant"));
        let with = PutWith { tenant, ttl, ..PutWith::default() };
        assert!(store.put_with(key, bytes, &with).wait().expect("put").is_stored());
    }
    let defined = store.layout(layout()).wait().expect("a layout");
    let blocks = BLOCKS[part].clone().map(|number| (key(number), block(number)));
    for put in store.put_blocks(&defined, blocks, &PutWith::default()).wait() {
        assert!(put.expect("put").is_stored());
    }
}

#[test]
#[ignore = "makes the stored image anew, for a new version of the format: ADIT_BLESS=1 cargo test -- --ignored"]
fn the_stored_image_is_made_anew() {
    assert!(std::env::var_os("ADIT_BLESS").is_some(), "set ADIT_BLESS=1 to replace the image");
    let rig = Rig::file();
    let options = FormatStore {
        targets: rig.target().into_iter().collect(),
        shards: 2,
        objects_max: Some(64),
        journal_bytes: Some(64 << 10),
        label: "a stored image".to_owned(),
        file_bytes: Some(FILE_BYTES),
        ..FormatStore::default()
    };
    Store::format(&options).expect("formatted");
    let store = rig.open();
    for (name, quota) in QUOTAS {
        let tenant = store.tenant(name).wait().expect("a tenant");
        store.set_quota(&tenant, Some(quota)).wait().expect("a quota");
    }
    fill(&store, 0);
    // A clean stop takes a checkpoint.
    store.close().wait().expect("closed");
    let store = rig.open();
    fill(&store, 1);
    let second = PutWith { ttl: Some(Duration::from_secs(1)), ..PutWith::default() };
    store.put_with(name("expired"), data(17, 50), &second).wait().expect("put");
    for gone in ["removed", "newer, removed"] {
        assert!(store.delete(name(gone)).wait().expect("deleted"));
    }
    store.commit().wait().expect("durable");
    let file = read(rig.path()).expect("the file, as after a crash");
    write(path(), packed(&file)).expect("a file in the tree");
}

#[test]
fn a_stored_image_gives_each_object_back() {
    let rig = unpacked();
    for pass in ["after the crash", "after a clean stop"] {
        let store = rig.open();
        let recovered = store.recoveries().iter().filter_map(|shard| shard.recovered.as_ref());
        let [checkpoint, journal] = recovered.fold([0, 0], |[checkpoint, journal], shard| {
            [checkpoint + shard.checkpoint_records, journal + shard.journal_records]
        });
        assert!(checkpoint >= 15, "{pass}: {checkpoint} records of checkpoints");
        assert!(pass != "after the crash" || journal >= 10, "{journal} records of journals");
        for (key, bytes, tenant, ttl) in objects().into_iter().flatten() {
            let value = store.get(key.clone()).wait().expect("read").expect("a hit");
            assert!(value[..] == bytes, "{pass}: {key:?} has other bytes");
            let info = store.info(key.clone()).wait().expect("known").expect("it is there");
            assert_eq!((info.bytes, info.ttl_s.is_some()), (bytes.len() as u64, ttl.is_some()));
            assert_eq!(&*info.tenant, tenant.unwrap_or_default(), "{pass}: {key:?}");
        }
        for gone in ["removed", "newer, removed", "expired"] {
            assert!(store.get(name(gone)).wait().expect("read").is_none(), "{pass}: {gone}");
        }
        let blocks = BLOCKS.into_iter().flatten();
        for number in blocks.clone() {
            let value = store.get(key(number)).wait().expect("read").expect("a hit");
            assert!(value[..] == block(number), "{pass}: block {number}");
        }
        for layer in 0..2 {
            let memory =
                |number| (key(number), AnyBuffer::One(store.allocate(2 * PAGE).expect("memory")));
            let reads = store.get_layer(layer as u32, blocks.clone().map(memory)).wait();
            for (number, read) in blocks.clone().zip(reads) {
                let AnyBuffer::One(memory) = read.expect("read").memory else {
                    panic!("it was lent")
                };
                let part = &block(number)[layer * 2 * PAGE..][..2 * PAGE];
                assert!(memory[..2 * PAGE] == *part, "{pass}: layer {layer} of block {number}");
            }
        }
        for (name, quota) in QUOTAS {
            let tenants = store.tenants().wait().expect("known");
            let found = tenants.iter().find(|tenant| &*tenant.name == name).expect("a tenant");
            assert_eq!((found.quota, found.objects), (Some(quota), 1), "{pass}");
        }
        assert_eq!(store.stats().wait().expect("counted").objects, 17, "{pass}: and no others");
        store.close().wait().expect("closed");
    }
}
