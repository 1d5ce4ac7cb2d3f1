//! What one store made, given to another: each is refused with a reason, or works; nothing is mixed up and nothing lost.

use std::time::Duration;

use adit_driver::memory::{AnyBuffer, IoBuffer};
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Failure, Part};
use adit_kvstore::store::{DefinedLayout, Payload, PutWith, Tenant};
use adit_kvstore::{Quota, Store, WhenReached};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    tenants_of_another_store_are_no_tenants_here,
    layouts_of_another_store_are_no_layouts_here,
    where_all_numbers_are_used_those_of_another_store_are_refused,
    a_handle_outlives_no_store,
    memory_of_another_store_is_used_or_comes_back,
    a_lease_of_another_local_store_comes_back,
);

/// Stores with more shards here than there, and the other way around.
fn two(rig: &Rig, shards: [u16; 2]) -> (Rig, [Store; 2]) {
    let other = Rig::soft();
    let stores = [rig.format(shards[0]).open(), other.format(shards[1]).open()];
    (other, stores)
}

fn of(tenant: &Tenant) -> PutWith {
    PutWith { tenant: Some(tenant.clone()), ..PutWith::default() }
}

fn as_blocks(layout: &DefinedLayout) -> PutWith {
    PutWith { layout: Some(layout.clone()), ..PutWith::default() }
}

fn layout() -> Layout {
    layout_of(2)
}

fn layout_of(layers: u32) -> Layout {
    let (dtype, tensors_per_layer) = (Dtype::Bf16, 2);
    let block =
        BlockShape { layers, tensors_per_layer, kv_heads: 2, head_dim: 64, dtype, tokens: 16 };
    Layout::new(block, Order::BlockMajor).expect("a layout")
}

fn bytes_of(memory: &AnyBuffer) -> u64 {
    (0..memory.segment_count()).map(|at| memory.segment(at).len).sum()
}

fn tenants_of_another_store_are_no_tenants_here(rig: &Rig) {
    for shards in [[2, 1], [1, 2], [2, 2]] {
        let (_other, [here, there]) = two(rig, shards);
        let theirs = there.tenant("theirs").wait().expect("a tenant");
        let ours = here.tenant("ours").wait().expect("a tenant");
        assert_ne!(ours, theirs);
        let undefined = Some(Failure::Undefined("tenant"));
        for number in 0..8 {
            let put = here.put_with(key(number), data(number, 100), &of(&theirs)).wait();
            assert_eq!(put.expect_err("another store's").failure(), undefined.as_ref());
            let writer = here.reserve(key(number), 100, &of(&theirs)).wait();
            assert_eq!(writer.expect_err("another store's").failure(), undefined.as_ref());
            assert!(!here.exists(key(number)).wait().expect("known"));
            here.put_with(key(number), data(number, 100), &of(&ours)).wait().expect("its own");
        }
        let quota = Quota { bytes: 4096, when_reached: WhenReached::Refuse };
        let set = here.set_quota(&theirs, Some(quota)).wait();
        assert_eq!(set.expect_err("another store's").failure(), undefined.as_ref());
        here.put_with(key(9), data(9, 8192), &of(&ours)).wait().expect("it has no quota");
        here.close().wait().expect("closed");
    }
}

fn layouts_of_another_store_are_no_layouts_here(rig: &Rig) {
    for shards in [[2, 1], [1, 2], [2, 2]] {
        let (_other, [here, there]) = two(rig, shards);
        let theirs = there.layout(layout()).wait().expect("a layout");
        let ours = here.layout(layout()).wait().expect("a layout");
        let block = vec![7; layout().block_bytes() as usize];
        for number in 0..8 {
            let put = here.put_with(key(number), &block, &as_blocks(&theirs)).wait();
            let failure = put.expect_err("another store's");
            assert_eq!(failure.failure(), Some(&Failure::Undefined("layout")));
            here.put_with(key(number), &block, &as_blocks(&ours)).wait().expect("its own");
        }
        here.close().wait().expect("closed");
    }
}

fn where_all_numbers_are_used_those_of_another_store_are_refused(rig: &Rig) {
    let (_other, [here, there]) = two(rig, [2, 1]);
    let all = |store: &Store| -> Vec<(Tenant, DefinedLayout)> {
        let define = |number| {
            let tenant = store.tenant(&format!("tenant {number}")).wait().expect("a tenant");
            (tenant, store.layout(layout_of(number)).wait().expect("a layout"))
        };
        (1..=255).map(define).collect()
    };
    let (ours, theirs) = (all(&here), all(&there));
    let full = here.tenant("one more").wait().expect_err("255 are all").to_string();
    assert!(full.contains("at most 255 tenants"), "{full}");
    for (tenant, layout) in &theirs {
        let block = vec![7; layout.layout().block_bytes() as usize];
        for (with, what) in [(of(tenant), "tenant"), (as_blocks(layout), "layout")] {
            let put = here.put_with(key(1), &block, &with).wait().expect_err("another store's");
            assert_eq!(put.failure(), Some(&Failure::Undefined(what)));
        }
    }
    assert!(!here.exists(key(1)).wait().expect("known"));
    let (tenant, layout) = ours.last().expect("255");
    let with = PutWith { layout: Some(layout.clone()), ..of(tenant) };
    let block = vec![7; layout.layout().block_bytes() as usize];
    here.put_with(key(1), &block, &with).wait().expect("its own");
}

fn a_handle_outlives_no_store(rig: &Rig) {
    let store = rig.format(1).open();
    let before = store.tenant("one").wait().expect("a tenant");
    store.close().wait().expect("closed");
    let store = rig.open();
    let put = store.put_with(key(1), data(1, 100), &of(&before)).wait();
    let failure = put.expect_err("the closed store's");
    assert_eq!(failure.failure(), Some(&Failure::Undefined("tenant")));
    let again = store.tenant("one").wait().expect("it is there");
    store.put_with(key(1), data(1, 100), &of(&again)).wait().expect("put");
}

fn memory_of_another_store_is_used_or_comes_back(rig: &Rig) {
    const LEN: usize = 16 << 10;
    let (_other, [here, there]) = two(rig, [1, 1]);
    let content = data(3, LEN);
    let get = |store: &Store, number| {
        let value = store.get(key(number)).wait().expect("read");
        value.map(|value| value.to_vec())
    };
    for store in [&here, &there] {
        // Lent by one store's pool, given to the other.
        let lender = if std::ptr::eq(store, &here) { &there } else { &here };
        let mut pooled = lender.buffer(LEN).wait().expect("memory");
        pooled.copy_from_slice(&content);
        if store.put(key(1), pooled).wait().is_ok() {
            assert_eq!(get(store, 1).as_deref(), Some(&*content));
        } else {
            assert_eq!(get(store, 1), None);
        }
        // Allocated by one store, given to the other.
        let mut own = lender.allocate(LEN).expect("memory");
        own.copy_from_slice(&content);
        let memory = match store.put(key(2), Payload::lent(own, LEN as u64)).wait() {
            Ok(put) => {
                assert_eq!(get(store, 2).as_deref(), Some(&*content));
                put.memory
            }
            Err(unfinished) => {
                let failure = unfinished.failure();
                assert_eq!(failure, Some(&Failure::Foreign { device: 0 }), "{unfinished}");
                assert_eq!(get(store, 2), None);
                unfinished.memory
            }
        };
        assert_eq!(bytes_of(&memory), LEN as u64, "it was lost");
        store.put(key(3), &content).wait().expect("put");
        let memory = match store.get_into(key(3), Part::All, memory).wait() {
            Ok(read) => {
                assert_eq!(read.bytes, Some(LEN as u64));
                read.memory
            }
            Err(unfinished) => {
                assert_eq!(unfinished.failure(), Some(&Failure::Foreign { device: 0 }));
                unfinished.memory
            }
        };
        assert_eq!(bytes_of(&memory), LEN as u64, "it was lost");
    }
    for store in [here, there] {
        let buffers: Vec<_> = (0..8).map(|_| store.buffer(1 << 19).wait()).collect();
        assert!(buffers.iter().all(Result::is_ok), "its pool is whole");
        drop(buffers);
        store.close().wait().expect("closed");
    }
}

fn a_lease_of_another_local_store_comes_back(rig: &Rig) {
    let other = Rig::soft();
    let mut stores = [(rig, 1), (&other, 2)].map(|(rig, shards)| {
        let store = rig.format(shards).open();
        (0..8).for_each(|number| drop(store.put(key(number), b"one").wait().expect("put")));
        store.close().wait().expect("closed");
        Store::open_local(&rig.options()).expect("a store")
    });
    let [here, there] = &mut stores;
    let keys: Vec<_> = (0..8).map(key).collect();
    let (now, until) = (there.now(), there.now() + Duration::from_secs(60));
    let (lease, leased) = there.lease(now, &keys, until).expect("leased");
    assert_eq!(leased, 8);
    let lease = here.release(lease).expect_err("another store's, which has two shards");
    there.release(lease).expect("its own");
    for store in stores {
        store.close(&mut |_| ()).expect("closed");
    }
}
