//! A burst through a queue pair and the null controller: the cost of the ring, the slots, and the software controller
//! itself.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "criterion's macros make functions without")]

use std::sync::Arc;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Buffer, Controller, ControllerOptions, QueuePair, QueuePairOptions, Time};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn burst(c: &mut Criterion) {
    let mut group = c.benchmark_group("burst_of_reads");
    for (depth, bytes) in [(1usize, 4096usize), (32, 4096), (32, 128 << 10)] {
        let options = "null,dbbuf=off,mdts=12".parse().expect("valid options");
        let bus = SoftBus::new(options, Drive::Manual).expect("a null controller");
        let controller =
            Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
        let controller = controller.expect("the controller comes up");
        let namespace = controller.namespace(Nsid(1)).expect("namespace 1");
        let mut queue: QueuePair<Buffer> =
            controller.create_queue_pair(QueuePairOptions::default()).expect("a queue pair");
        let mut buffers: Vec<Buffer> =
            (0..depth).map(|_| controller.allocate(bytes).expect("memory")).collect();
        let now = Time::ZERO;
        group.throughput(Throughput::Elements(depth as u64));
        group.bench_function(BenchmarkId::new(format!("{bytes}B"), depth), |b| {
            b.iter(|| {
                for _ in 0..depth {
                    let buffer = buffers.pop().expect("as many as the burst");
                    queue.post(now, namespace.read(Lba(0), buffer)).expect("the burst fits");
                }
                queue.ring();
                while bus.step() > 0 {}
                queue.poll(now, |completion| buffers.push(completion.buffer));
                assert_eq!(buffers.len(), depth, "a burst completes whole");
            });
        });
    }
    group.finish();
}

fn empty_poll(c: &mut Criterion) {
    let bus = SoftBus::new("null".parse().expect("valid options"), Drive::Manual)
        .expect("a null controller");
    let controller =
        Controller::attach(bus, &ControllerOptions::default()).expect("the controller comes up");
    let mut queue: QueuePair<Buffer> =
        controller.create_queue_pair(QueuePairOptions::default()).expect("a queue pair");
    c.bench_function("empty_poll", |b| b.iter(|| queue.poll(Time::ZERO, |_| ())));
}

criterion_group!(benches, burst, empty_poll);
criterion_main!(benches);
