//! The CPU time of a request through a reactor, all in one thread: a burst through a client, a lane turned by hand,
//! and the null controller. The difference from the same burst through a queue pair (`queue_pair.rs`) is the mailbox
//! and the way back.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "criterion's macros make functions without")]

use std::sync::Arc;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::reactor::{Lane, Pending, ReactorOptions};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Buffer, Controller, ControllerOptions, Time};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn burst(c: &mut Criterion) {
    let mut group = c.benchmark_group("burst_through_a_lane");
    for depth in [1usize, 32] {
        let options = "null,dbbuf=off".parse().expect("valid options");
        let bus = SoftBus::new(options, Drive::Manual).expect("a null controller");
        let controller =
            Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default());
        let controller = controller.expect("the controller comes up");
        let namespace = controller.namespace(Nsid(1)).expect("namespace 1");
        let (mut lane, client) =
            Lane::attach(&controller, &namespace, &ReactorOptions::default()).expect("a lane");
        let mut buffers: Vec<Buffer> =
            (0..depth).map(|_| controller.allocate(4096).expect("memory")).collect();
        let mut pendings: Vec<Pending<Buffer>> = Vec::with_capacity(depth);
        let now = Time::ZERO;
        group.throughput(Throughput::Elements(depth as u64));
        group.bench_function(BenchmarkId::new("4096B", depth), |b| {
            b.iter(|| {
                let sent = buffers.drain(..).map(|buffer| client.read(Lba(0), buffer));
                pendings.extend(sent.map(|sent| sent.expect("room")));
                lane.turn(now);
                while bus.step() > 0 {}
                lane.turn(now);
                let ended = pendings.drain(..).map(|pending| pending.try_wait());
                buffers.extend(ended.map(|ended| {
                    ended.expect("a burst completes whole").expect("carried out").buffer
                }));
            });
        });
    }
    group.finish();
}

fn idle_turn(c: &mut Criterion) {
    let bus = SoftBus::new("null".parse().expect("valid options"), Drive::Manual)
        .expect("a null controller");
    let controller =
        Controller::attach(bus, &ControllerOptions::default()).expect("the controller comes up");
    let namespace = controller.namespace(Nsid(1)).expect("namespace 1");
    let (mut lane, _client) =
        Lane::attach(&controller, &namespace, &ReactorOptions::default()).expect("a lane");
    c.bench_function("idle_turn", |b| b.iter(|| lane.turn(Time::ZERO)));
}

criterion_group!(benches, burst, idle_turn);
criterion_main!(benches);
