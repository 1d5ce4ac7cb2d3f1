//! The cost of planning and building lists, without a queue.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "criterion's macros make functions without")]

use std::hint::black_box;

use adit_driver::spec::{Iova, Lba};
use adit_driver::transfer::{
    Form, Limits, ListMemory, PAGE_BYTES, Plan, Segment, SglSupport, prp, sgl,
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

struct Lists(Vec<u64>);

impl ListMemory for Lists {
    fn page_iova(&self, page: usize) -> Iova {
        Iova(0x8000_0000 + page as u64 * PAGE_BYTES)
    }

    fn write(&mut self, page: usize, index: usize, value: u64) {
        self.0[page * 512 + index] = value;
    }
}

fn limits(sgl: SglSupport) -> Limits {
    Limits {
        lba_shift: 12,
        max_bytes: 1 << 20,
        boundary_lbas: 0,
        sgl,
        list_pages: 8,
        bounce_bytes: 4096,
    }
}

/// Returns `count` pieces of 64 KiB that are not adjacent.
fn scattered(count: u64) -> Vec<Segment> {
    (0..count).map(|i| Segment { iova: Iova((i + 1) << 20), len: 64 << 10 }).collect()
}

fn build(limits: &Limits, segments: &[Segment], lists: &mut Lists) {
    for piece in Plan::new(limits, Lba(0), segments).expect("a valid request") {
        match piece.form {
            Form::Prp { .. } => {
                black_box(prp::build(segments, piece.start, piece.bytes, lists));
            }
            Form::Sgl { descriptors } => {
                black_box(sgl::build(segments, piece.start, piece.bytes, descriptors, lists));
            }
            Form::Bounce => unreachable!("aligned memory is not bounced"),
        }
    }
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan_and_build");
    let mut lists = Lists(vec![0; 8 * 512]);
    for count in [1, 4, 16] {
        let segments = scattered(count);
        group.throughput(Throughput::Bytes(count * (64 << 10)));
        for (name, support) in [("prp", SglSupport::None), ("sgl", SglSupport::Byte)] {
            let limits = limits(support);
            group.bench_with_input(BenchmarkId::new(name, count), &segments, |b, segments| {
                b.iter(|| build(&limits, segments, &mut lists));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
