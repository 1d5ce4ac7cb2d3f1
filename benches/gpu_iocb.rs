//! The CPU cost of filling control blocks for the GPU: one layer of 8,000 tensors, with the emulated CUDA driver.
//!
//! The emulated driver is not part of the measurement; it only provides memory that a GPU would read.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "criterion's macros make functions without")]

use std::hint::black_box;
use std::sync::Arc;

use adit_driver::spec::Lba;
use adit_driver::{Controller, ControllerOptions};
use adit_gpu::{Device, Direction, GioUring, Gpu, Options, Place, Pool, Slice, Transfer};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const TENSORS: u64 = 8_000;
const REGION_BYTES: u64 = 32 << 20;

fn rings(target: &str) -> GioUring {
    adit_gpu_emulated::load();
    let gpu = Gpu::open(0).expect("a GPU");
    let options = ControllerOptions { shadow_doorbells: false, ..ControllerOptions::default() };
    let target = target.parse().expect("a target");
    let controller = Arc::new(Controller::open(&target, &options).expect("a controller"));
    let first = controller.namespace_ids().expect("namespaces")[0];
    let namespace = controller.namespace(first).expect("a namespace");
    let controllers = [Arc::clone(&controller)];
    let pool =
        Pool::allocate(&gpu, &controllers, &[REGION_BYTES], Some(Place::Host)).expect("a pool");
    let options = Options { queues: 1, sms: Some(1), blocks: 16, ..Options::default() };
    GioUring::init_queue(&gpu, vec![Device { controller, namespace }], pool, &options)
        .expect("rings")
}

/// Returns tensors of 4 KiB, scattered over the device.
fn layer() -> Vec<Transfer<[Slice; 1]>> {
    let transfer = |tensor: u64| Transfer {
        device: 0,
        direction: Direction::Read,
        lba: Lba(tensor * 7919 % (1 << 20) * 8),
        slices: [Slice { region: 0, offset: tensor * 4096 % REGION_BYTES, bytes: 4096 }],
    };
    (0..TENSORS).map(transfer).collect()
}

fn fill(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("get_iocb");
    group.throughput(Throughput::Elements(TENSORS));
    let targets = [
        ("sgl", "soft:null,dbbuf=off"),
        ("prp", "soft:null,dbbuf=off,sgl=off"),
        ("boundary", "soft:null,dbbuf=off,noiob=256"),
    ];
    for (name, target) in targets {
        let (uring, transfers) = (rings(target), layer());
        group.bench_function(BenchmarkId::new("layer", name), |bencher| {
            bencher.iter(|| {
                black_box(uring.get_iocb(transfers.iter().copied(), None).expect("blocks"))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, fill);
criterion_main!(benches);
