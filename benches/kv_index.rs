//! The cost of lookups among 10 million objects: lookups per second on one core, and bytes per object.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "criterion's macros make functions without")]

use std::hint::black_box;
use std::time::Instant;

use adit_kvstore::evict::{Lru, Policy};
use adit_kvstore::internals::KeyHasher;
use adit_kvstore::internals::index::{Index, Loading, NewObject};
use adit_kvstore::{Key, LayoutId, Object, ObjectId, Place, TenantId, Version};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const OBJECTS: u32 = 10_000_000;
/// Keys per batch of lookups.
const BATCH: usize = 256;

/// Returns a 16-byte hash like a block hash: unique for each number, and without order.
fn key(number: u32) -> [u8; 16] {
    let mixed = (u128::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    mixed.to_be_bytes()
}

/// Returns the next of a pseudorandom sequence of numbers below [`OBJECTS`].
fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((u128::from(*state) * u128::from(OBJECTS)) >> 64) as u32
}

fn object(number: u32) -> Object {
    Object {
        place: Place { device: 0, unit: u64::from(number) * 32 },
        bytes: 128 << 10,
        layout: LayoutId::PLAIN,
        tenant: TenantId(0),
        version: Version(u64::from(number)),
    }
}

/// Loads the objects as recovery does.
fn fill() -> Index {
    let mut loading =
        Loading::new(OBJECTS, OBJECTS / 8, KeyHasher::new([1; 16])).expect("a capacity");
    let gone = &mut |id| panic!("keys differ, and {id:?} went");
    for number in 0..OBJECTS {
        let key = key(number);
        let new = NewObject { key: &key, object: object(number), checksums: &[7] };
        loading.put(new, gone).expect("there is room");
    }
    loading.linked(gone);
    let mut index = loading.into_index();
    index.shed_spare(&mut |from, _| panic!("nothing was removed, and {from:?} moved"));
    index
}

fn report(index: &Index, fill_s: f64) {
    let policy = Lru::new(OBJECTS);
    let bytes = index.memory_bytes() + policy.memory_bytes();
    println!("{OBJECTS} objects loaded: {fill_s:.2} s");
    println!(
        "index and links of a policy: {:.2} bytes an object",
        bytes as f64 / f64::from(OBJECTS)
    );
}

fn find(c: &mut Criterion) {
    let start = Instant::now();
    let mut index = fill();
    report(&index, start.elapsed().as_secs_f64());
    let mut group = c.benchmark_group("index_10m");
    let (mut state, mut victims) = (1, 2);
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut found: Vec<Option<ObjectId>> = Vec::new();
    // Draw new keys for each batch, so that none is in a cache; drawing is not measured.
    let mut draw = || {
        let keys = (0..BATCH).map(|_| Key::new(&key(next(&mut state))).expect("16 bytes"));
        keys.collect::<Vec<_>>()
    };
    group.bench_function("find_one_by_one", |b| {
        b.iter_batched(
            &mut draw,
            |keys| keys.iter().filter(|key| index.find(key.as_bytes()).is_some()).count(),
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function("find_many", |b| {
        b.iter_batched(
            &mut draw,
            |keys| {
                found.clear();
                index.find_many(&keys, &mut found);
                assert!(found.iter().all(Option::is_some), "every key is an object's");
            },
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function("find_many_and_read", |b| {
        b.iter_batched(
            &mut draw,
            |keys| {
                found.clear();
                index.find_many(&keys, &mut found);
                found.iter().flatten().map(|id| index.object(*id).bytes).sum::<u64>()
            },
            criterion::BatchSize::SmallInput,
        );
    });
    // Removed objects are put back at once, so each iteration finds the index full.
    group.bench_function("remove_and_insert", |b| {
        b.iter(|| {
            for _ in 0..BATCH {
                let key = key(next(&mut victims));
                let id = index.find(&key).expect("every key is an object's");
                let was = index.remove(id);
                black_box(index.insert(&key, was, &[7]).expect("room for one"));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, find);
criterion_main!(benches);
